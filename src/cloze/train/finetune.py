"""``cloze finetune``: one more layer on [CLS], and all of the model trained a little (section 4 of the paper)."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cloze.checkpoint import (
    EmbeddingSettings,
    ModelFolder,
    TaskLabels,
    find_source,
    load_folder,
    save_folder,
)
from cloze.errors import ConfigError
from cloze.model import Bert, HeadName
from cloze.model.losses import sequence_loss
from cloze.model.surgery import with_heads
from cloze.predict import Evaluation, Model, choose_device, evaluate_examples
from cloze.predict.batching import Batch, collate
from cloze.progress import Progress, Silent
from cloze.tasks.classify import Examples
from cloze.tasks.source import Source
from cloze.tasks.task import TaskData, read_task
from cloze.text import Encoding, Tokenizer
from cloze.train.allocator import keep_freed_memory
from cloze.train.curves import draw_curves
from cloze.train.loop import Outcome, train
from cloze.train.run import Run
from cloze.train.settings import FinetuneSettings

HEADS: tuple[HeadName, ...] = ("sequence",)


@dataclass(frozen=True)
class SequenceBatch:
    """Texts and what they should be called."""

    inputs: Batch
    targets: Tensor  # (B,) indices of labels, or numbers

    @property
    def counts(self) -> Mapping[str, int]:
        """What the loss is a mean over."""
        return {"rows": len(self.targets)}

    @property
    def token_count(self) -> int:
        """Real tokens, padding not counted."""
        return int(self.inputs.real.sum())


class SequenceBatches:
    """Batches of a training set: a new order every epoch, a function of (seed, epoch) alone."""

    def __init__(
        self,
        encodings: list[Encoding],
        targets: Tensor,
        batch: int,
        seed: int,
        pad_id: int,
        device: torch.device,
    ) -> None:
        self._encodings, self._targets = encodings, targets
        self._batch, self._seed, self._pad_id, self._device = batch, seed, pad_id, device
        self.steps_an_epoch = -(-len(encodings) // batch)

    def at(self, step: int, part: int = 0, parts: int = 1, progress: float = 0.0) -> SequenceBatch:  # noqa: ARG002
        """A part of the batch of a step, counted from 0."""
        epoch, index = divmod(step, self.steps_an_epoch)
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._encodings))
        rows = np.array_split(order[index * self._batch : (index + 1) * self._batch], parts)[part]
        inputs = collate([self._encodings[row] for row in rows], self._pad_id, self._device)
        return SequenceBatch(inputs, self._targets[torch.from_numpy(rows)].to(self._device))


class SequenceObjective(nn.Module):
    """Cross-entropy of labels, or squared error of numbers."""

    def __init__(self, model: Bert) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: SequenceBatch, totals: Mapping[str, int]) -> Outcome:
        """This part's share of the loss of a batch."""
        inputs = batch.inputs
        last = self.model(inputs.ids, inputs.segments, inputs.mask).last
        logits = self.model.heads["sequence"](self.model.pooled(last))
        return Outcome(sequence_loss(logits, batch.targets) * (len(batch.targets) / totals["rows"]))


def finetune(
    source: Source,
    model: str | Path,
    out: str | Path,
    *,
    settings: FinetuneSettings | None = None,
    device: str | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Fine-tune a model folder on a task and return the run's folder. The same call goes on where another stopped."""
    settings, progress = settings or FinetuneSettings(), progress or Silent()
    base = load_folder(find_source(model))
    data = read_task(source)
    for note in data.notes:
        progress.say(note)
    # What cannot be trained is found out now, not after the folder is made.
    tuned = _start(base, data, settings, progress)
    wrapped = Model(tuned, device=device)
    run = Run.open(Path(out), _recorded(source, model, data) | asdict(settings), fresh=fresh)
    if run.finished:
        run.store.clear()  # there if the end came between the model and this
        progress.say(f"{run.folder}: finished already; use --fresh to start over")
        return run.folder
    keep_freed_memory()
    batches = _batches(data.train, tuned.tokenizer, settings, choose_device(device), progress)

    def score_dev(pause: Callable[[], None]) -> Mapping[str, float]:  # noqa: ARG001 (small sets are soon read)
        return {
            f"dev_{name}": value for name, value in evaluate_examples(wrapped, data.dev, data.metrics).metrics.items()
        }

    train(
        SequenceObjective(wrapped.bert),
        batches,
        settings.loop(batches.steps_an_epoch),
        run,
        progress,
        score_dev,
    )
    _finish(run, wrapped, tuned, data, settings)
    return run.folder


def _recorded(source: Source, model: str | Path, data: TaskData) -> dict[str, Any]:
    """What the run was asked to do, for comparing with what it is asked next time."""
    files = {key: None if value is None else str(value) for key, value in asdict(source).items()}
    # A file that has changed meanwhile would change the order of the rows, or the size of the head.
    facts = {"rows": len(data.train), "labels": None if data.labels is None else list(data.labels.names)}
    return {"command": "finetune", "model": str(model), **files, **facts}


def _start(base: ModelFolder, data: TaskData, settings: FinetuneSettings, progress: Progress) -> ModelFolder:
    """The base with a new head for the task's labels."""
    if settings.length > base.model.config.positions:
        raise ConfigError(
            f"length is {settings.length}, but the model reads at most {base.model.config.positions} tokens"
        )
    if base.model.pooler is None:
        progress.say("the model has no pooler; a new one starts at random")
    outputs = 1 if data.labels is None else len(data.labels)
    bert = with_heads(base.model, HEADS, labels=outputs, keep=False, seed=settings.seed, dropout=settings.dropout)
    names = () if data.labels is None else data.labels.names
    length = min(settings.length, base.tokenizer.max_length)
    if length < settings.length:
        progress.say(f"the model reads at most {length} tokens")
    # What it is trained and scored on is what it will read: the limit goes with the folder.
    tokenizer = base.tokenizer.with_max_length(length)
    return ModelFolder(bert, tokenizer, TaskLabels(data.kind, names), base.embedding)


def _batches(
    examples: Examples,
    tokenizer: Tokenizer,
    settings: FinetuneSettings,
    device: torch.device,
    progress: Progress,
) -> SequenceBatches:
    encodings = tokenizer.encode_batch(examples.texts, examples.pairs)
    cut = sum(encoding.dropped > 0 for encoding in encodings)
    if cut:
        progress.say(
            f"{cut} of {len(encodings)} training texts are longer than {tokenizer.max_length} tokens and are cut"
        )
    targets = torch.tensor(examples.targets)
    return SequenceBatches(encodings, targets, settings.batch, settings.seed, tokenizer.pad_id, device)


def _finish(run: Run, wrapped: Model, tuned: ModelFolder, data: TaskData, settings: FinetuneSettings) -> None:
    """Write scores, curves and, last, the model: its presence says that the run is over."""
    wrapped.bert.eval()
    evaluation = evaluate_examples(wrapped, data.dev, data.metrics)
    run.write_results(evaluation.results())
    draw_curves(run.metrics(), run.folder / "curves.png")
    card = finetuning_card(tuned, evaluation, settings, len(data.train))
    tuned.model.cpu()
    save_folder(
        ModelFolder(tuned.model, tuned.tokenizer, tuned.task, EmbeddingSettings(), card=card),
        run.model_folder,
    )
    run.store.clear()


def finetuning_card(tuned: ModelFolder, evaluation: Evaluation, settings: FinetuneSettings, rows: int) -> str:
    """The model card of a fine-tuned model."""
    assert tuned.task is not None
    scores = "\n".join(f"- {name}: {value:.4f}" for name, value in evaluation.metrics.items())
    labels = ", ".join(tuned.task.names) or "a number"
    return (
        f"# BERT, fine-tuned to {tuned.task.kind}\n\n"
        f"- answers: {labels}\n- training: {rows:,} rows, {settings.epochs} epochs, batch {settings.batch}, "
        f"rate {settings.rate:g}, seed {settings.seed}\n\n"
        f"On {len(evaluation.predictions):,} dev rows:\n\n{scores}\n"
    )
