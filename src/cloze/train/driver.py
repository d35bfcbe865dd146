"""The training driver that fine-tuning, contrastive training, correction and distillation share.

It opens the run, returns if the run is finished, builds the batches and the objective, trains with an evaluation on the
dev set after every epoch (and early stopping if a patience is set), and finishes the run. ``TrainingParts`` holds what
differs between the kinds of training. The steps themselves, and their checkpoints, are those of ``loop.py``, which this
module calls once per run. Pre-training has no epochs and no dev rows, so it calls ``loop.py`` directly.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from cloze.checkpoint.weights import read_safetensors_with_metadata, write_safetensors
from cloze.errors import CheckpointError, format_option
from cloze.files import replaced_file
from cloze.hardware import format_bytes, keep_freed_memory, require_memory, return_freed_memory
from cloze.model import Backbone
from cloze.model.bert import require_bert
from cloze.model.cost import count_activations
from cloze.predict import Model
from cloze.progress import Progress
from cloze.train.finetuning.settings import FinetuneSettings, ResolvedSettings
from cloze.train.loop import BatchSource, TrainerOptions, train
from cloze.train.optimization import Precision, layer_decay_scale
from cloze.train.run import BEST, Run, open_run

# Memory per trained parameter in addition to its weight: the gradient and two moments, in float32.
_BYTES_TRAINED = 12
_DIGEST = "sha256"  # metadata key: digest of the best weights


class EpochBatches(BatchSource, Protocol):
    """Batches of a training set that is iterated in epochs."""

    steps_per_epoch: int

    def largest_part(self, parts: int) -> tuple[int, int]:
        """Return the tokens of the largest part if each batch is divided into ``parts``, and the longest sequence."""


@dataclass(frozen=True)
class TrainingParts:
    """The components that differ between the kinds of training.

    Attributes:
        recorded: Everything the result depends on; a run recorded with other values is not resumed.
        settings: The training settings.
        model: The model to train, which also predicts for the evaluation.
        batches: Builds the batches; None if there are no training steps and ``finish`` does all the work.
        objective: Builds the objective.
        metric: The metric in the scores that early stopping compares.
        score: Evaluates the model on the dev set.
        finish: Writes the results and the model; it receives the settings with the precision that was used.
        choose: Returns the parts to train with instead, after a choice that is recorded in the run.
        activations: Maps the number of rows and their length to the peak bytes of a step's activations; by default,
            those of the model alone are estimated.
        save_memory: Returns the advice to divide a step into smaller parts, for the error of a step that does not fit
            into memory.
    """

    recorded: Mapping[str, Any]
    settings: ResolvedSettings
    model: Model
    batches: Callable[[], EpochBatches] | None
    objective: Callable[[], nn.Module]
    metric: str
    score: Callable[[], Mapping[str, float]]
    finish: Callable[[Run, ResolvedSettings], None]
    choose: "Callable[[Run], TrainingParts] | None" = None
    activations: Callable[[int, int], int] | None = None
    save_memory: Callable[[], str] = lambda: f"more parts with {format_option('accumulate')}"


def run_training(parts: TrainingParts, out: str | Path, *, fresh: bool, progress: Progress) -> Path:
    """Run a training from start to finish, or resume it.

    Args:
        parts: The model, the batches, the objective and the functions to call.
        out: The run's folder.
        fresh: Delete an existing run first.
        progress: Receives messages and progress.

    Returns:
        The run's folder.
    """
    # Gradient checkpointing changes how gradients are computed, not their values.
    recorded = {name: value for name, value in parts.recorded.items() if name != "checkpointing"}
    with open_run(Path(out), recorded, fresh=fresh) as run:
        if run.report_finished(progress):
            return run.folder
        if parts.choose is not None:
            parts = parts.choose(run)
        settings = replace(parts.settings, precision="fp32")
        if parts.batches is not None:
            settings = replace(settings, precision=_train_in_steps(parts, parts.batches, run, progress).name)
        parts.model.bert.eval()
        parts.finish(run, settings)
        return run.folder


def _train_in_steps(
    parts: TrainingParts, make_batches: Callable[[], EpochBatches], run: Run, progress: Progress
) -> Precision:
    """Build batches and objective, check that a step fits into memory, and train; return the precision used."""
    settings, bert = parts.settings, parts.model.bert
    if settings.checkpointing:
        require_bert(bert, "checkpointing").encoder.checkpointing = True
    return_freed_memory() if settings.checkpointing else keep_freed_memory()
    batches, objective = make_batches(), parts.objective()
    require_step_memory(objective, bert, batches, parts)
    return train_with_evaluation(objective, batches, parts, run, progress)


def require_step_memory(
    objective: nn.Module,
    bert: Backbone,
    batches: EpochBatches,
    parts: TrainingParts,
) -> None:
    """Check that the largest step fits into memory, before the first step.

    Raises:
        ConfigError: If it does not; the message has the sizes and the flags that reduce them.
    """
    if next(bert.parameters()).device.type != "cpu":
        return  # an accelerator's allocator reports the failure itself; a CPU machine would swap or kill the process
    settings = parts.settings
    tokens, longest = batches.largest_part(settings.accumulate)
    trained = sum(parameter.numel() for parameter in objective.parameters() if parameter.requires_grad)
    states, rows = 0, -(-tokens // longest)
    if parts.activations is not None:
        states = parts.activations(rows, longest)
    elif bert.reader is None:  # frozen states need no backward pass
        states = count_activations(
            bert.config,
            bert.head_names,
            rows,
            longest,
            chosen=1.0,
            explicit=bert.config.attention_dropout > 0 or settings.precision == "bf16",
            checkpointing=settings.checkpointing,
        )
    gradients = _BYTES_TRAINED * trained
    require_memory(
        gradients + states,
        f"a step of {settings.batch_size} rows of up to {longest} tokens in {settings.accumulate} parts (gradients and "
        f"moments {format_bytes(gradients)}, states {format_bytes(states)})",
        f"use a smaller {format_option('batch_size')}, {parts.save_memory()}, "
        f"{format_option('checkpointing', True)}, a smaller {format_option('max_length')} or a smaller model",
    )


def train_with_evaluation(
    objective: nn.Module, batches: EpochBatches, parts: TrainingParts, run: Run, progress: Progress
) -> Precision:
    """Train, evaluate on the dev set after every epoch, and stop early if the settings have a patience.

    Returns:
        The precision that was used. The model has the weights of the last step or, with early stopping, the best ones.
    """
    settings, model = parts.settings, parts.model
    stopping = EarlyStopping(run, model.bert, parts.metric, settings.patience) if settings.patience else None

    def evaluate(check_signals: Callable[[], None]) -> Mapping[str, float]:
        # Always in float32, at any training precision: the scores must be those of the saved model.
        with model.before_each_batch(check_signals), torch.autocast(model.device.type, enabled=False):
            scores = parts.score()
        if stopping is not None:
            stopping.update(scores[parts.metric])
        return {f"dev_{name}": value for name, value in scores.items()}

    options = TrainerOptions(
        precision=finetuning_precision(settings, model.device),
        should_stop=stopping.should_stop if stopping else None,
        rate_scale=layer_decay_scale(model.bert.config.distinct_layers, settings.layer_decay),
    )
    precision = train(objective, batches, settings.loop(batches.steps_per_epoch), run, progress, evaluate, options)
    if stopping is not None:
        stopping.restore_best()
    return precision


def finetuning_precision(settings: FinetuneSettings, device: torch.device) -> Precision:
    """Return the training precision: float32 for frozen states, which are computed once, else as in the settings."""
    return Precision.choose("fp32" if settings.frozen else settings.precision, device)


class EarlyStopping:
    """Saves the best weights by dev score, and stops training after ``patience`` evaluations without improvement.

    The scores are read from the run's metrics and the weights from its folder, so a resumed run continues with the same
    state.
    """

    def __init__(self, run: Run, model: nn.Module, metric: str, patience: int) -> None:
        self._run, self._model, self._metric, self._patience = run, model, f"dev_{metric}", patience

    @property
    def path(self) -> Path:
        """The file of the best weights."""
        return self._run.folder / BEST

    def update(self, score: float) -> None:
        """Save the weights if this score is better than all previous scores."""
        if score > max(self._scores(), default=-float("inf")):
            tensors = self._model.state_dict()
            with replaced_file(self.path) as temporary:
                write_safetensors(temporary, tensors, {_DIGEST: _digest(tensors)})

    def should_stop(self) -> bool:
        """Return whether the last ``patience`` evaluations did not improve the best score."""
        scores = self._scores()
        return bool(scores) and len(scores) - 1 - scores.index(max(scores)) >= self._patience

    def restore_best(self) -> None:
        """Load the best weights into the model.

        Raises:
            CheckpointError: If the file is damaged or missing.
        """
        tensors, metadata = read_safetensors_with_metadata(self.path)
        # Runs of earlier versions did not record a digest.
        if metadata.get(_DIGEST) not in (None, _digest(tensors)):
            raise CheckpointError(
                f"{self.path}: has changed since it was written; start over with {format_option('fresh', True)}"
            )
        with torch.no_grad():
            self._model.load_state_dict(tensors)

    def _scores(self) -> list[float]:
        return [row[self._metric] for row in self._run.metrics() if self._metric in row]


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
