"""The loop with a dev score: looked at as the settings say, and where there is patience, kept at its best.

Early stopping: the weights that scored best on dev are kept, and waiting for better ones has an end.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from cloze.files import replaced_file
from cloze.predict import Model
from cloze.progress import Progress
from cloze.train.finetuning.trainable import rate_scale
from cloze.train.loop import BatchSource, Company, train
from cloze.train.precision import Precision
from cloze.train.run import BEST, Run
from cloze.train.settings import FinetuneSettings


class Best:
    """Watches a dev score of a run. All that it knows lies in the run's folder, so that a resumed run knows it too."""

    def __init__(self, run: Run, model: nn.Module, metric: str, patience: int) -> None:
        self._run, self._model, self._metric, self._patience = run, model, f"dev_{metric}", patience

    @property
    def path(self) -> Path:
        """Where the best weights lie."""
        return self._run.folder / BEST

    def look(self, score: float) -> None:
        """Keep the weights if no evaluation before was as good."""
        if score > max(self._history(), default=-float("inf")):
            with replaced_file(self.path) as temporary:
                save_file({name: tensor.contiguous() for name, tensor in self._model.state_dict().items()}, temporary)

    def enough(self) -> bool:
        """Whether the last ``patience`` evaluations brought nothing better."""
        history = self._history()
        return bool(history) and len(history) - 1 - history.index(max(history)) >= self._patience

    def restore(self) -> None:
        """Put the best weights back."""
        with torch.no_grad():
            self._model.load_state_dict(load_file(self.path))

    def _history(self) -> list[float]:
        return [row[self._metric] for row in self._run.metrics() if self._metric in row]


class ScoredBatches(BatchSource, Protocol):
    """Batches of a training set whose epochs are told apart."""

    steps_an_epoch: int


def train_scored(
    objective: nn.Module,
    batches: ScoredBatches,
    settings: FinetuneSettings,
    run: Run,
    progress: Progress,
    model: Model,
    metric: str,
    score: Callable[[], Mapping[str, float]],
) -> Precision:
    """Train, and end with the weights of the last step, or with patience those that scored best by ``metric``.

    Returns in which numbers it was computed.
    """
    bert = model.bert
    best = Best(run, bert, metric, settings.patience) if settings.patience else None

    def score_dev(pause: Callable[[], None]) -> Mapping[str, float]:
        # In float32, whatever the training computes in: what is told is what the saved model will have.
        with model.paused(pause), torch.autocast(model.device.type, enabled=False):
            scored = score()
        if best is not None:
            best.look(scored[metric])
        return {f"dev_{name}": value for name, value in scored.items()}

    precision = train(
        objective,
        batches,
        settings.loop(batches.steps_an_epoch),
        run,
        progress,
        score_dev,
        Company(
            precision=finetuning_precision(settings, model.device),
            enough=best.enough if best else None,
            rate_scale=rate_scale(bert, settings.layer_decay),
        ),
    )
    if best is not None:
        best.restore()
    return precision


def finetuning_precision(settings: FinetuneSettings, device: torch.device) -> Precision:
    """In which numbers a fine-tuning computes."""
    # Frozen states are there once and for all; the little that is trained on them gains nothing.
    return Precision.choose("fp32" if settings.frozen else settings.precision, device)
