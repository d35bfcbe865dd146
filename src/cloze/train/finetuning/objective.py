"""Batches and loss of supervised fine-tuning, for every kind of task.

The items of a task are shuffled into batches in a new order every epoch. The rows of a batch are drawn at random and
sorted by length, so that most padding is skipped (``model/batch.py``). Batches of rows of similar length would need
no padding at all, but they train worse: short texts often differ in kind from long ones, which biases the gradient of
such a batch (by one point of F1 on CoNLL).

Dimensions: B rows of a batch, T tokens, N items.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cloze.model import Backbone, HeadName
from cloze.model.batch import Batch, collate
from cloze.model.losses import IMPOSSIBLE, task_logits, task_loss
from cloze.options import IGNORED
from cloze.predict import Model
from cloze.progress import Progress
from cloze.tasks.classification.kind import LabelledTexts
from cloze.tasks.examples import Item
from cloze.tasks.kind import TaskKind
from cloze.tasks.registry import TaskData
from cloze.text import Tokenizer
from cloze.text.oov.coverage import unknown_note
from cloze.train.finetuning.settings import ResolvedSettings
from cloze.train.loop import ObjectiveOutput

# With similar lengths, the rows of this many batches form a bucket, which is sorted by length and cut into batches.
BATCHES_PER_BUCKET = 50


@dataclass(frozen=True)
class TaskBatch:
    """The inputs of a batch and their targets."""

    inputs: Batch
    targets: Tensor  # (N,), (N, labels), (N, 2) or (N, T), depending on the head
    sizes: tuple[int, ...]  # number of input rows that belong to each item

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of targets over which the loss is averaged."""
        return {"targets": count_targets(self.targets)}

    @property
    def token_count(self) -> int:
        """The number of tokens without padding."""
        return int(self.inputs.real.sum())


def count_targets(targets: Tensor) -> int:
    """Return the number of targets: labels that are not ignored, or all numbers."""
    return targets.numel() if targets.is_floating_point() else int(targets.ne(IGNORED).sum())


def report_truncated(items: Sequence[Item], max_length: int, progress: Progress, noun: str = "texts") -> None:
    """Report how many training items were truncated; ``noun`` is the plural name of an item."""
    truncated = sum(any(encoding.dropped for encoding in item.encodings) for item in items)
    if truncated:
        progress.say(f"{truncated} of {len(items)} training {noun} are longer than {max_length} tokens and are cut")


def report_unknown(tokenizer: Tokenizer, texts: Sequence[str], progress: Progress) -> None:
    """Report if the vocabulary does not fit the training texts."""
    note = unknown_note(tokenizer, texts)
    if note is not None:
        progress.say(f"training texts: {note}")


class TaskBatches:
    """Shuffled batches of a training set; the order depends only on the seed and the epoch."""

    def __init__(
        self,
        items: Sequence[Item],
        batch_size: int,
        seed: int,
        pad_id: int,
        device: torch.device,
        *,
        token_targets: bool = False,
        similar_lengths: bool = False,
    ) -> None:
        """Create the batches.

        Args:
            items: The encoded training rows and their targets.
            batch_size: Items per batch.
            seed: Seed of the order.
            pad_id: The id of the padding token.
            device: The device of the tensors.
            token_targets: Whether each target has one entry per token, and is padded like the tokens.
            similar_lengths: Whether to group rows of similar length, for objectives that compare rows with each other
                or need padded batches.
        """
        self.items, self._batch_size, self._seed = items, batch_size, seed
        self._batches_per_bucket = BATCHES_PER_BUCKET if similar_lengths else 1
        self._pad_id, self._device, self._token_targets = pad_id, device, token_targets
        self._lengths = np.array([sum(len(encoding.ids) for encoding in item.encodings) for item in items])
        self.steps_per_epoch = -(-len(items) // batch_size)
        self._epoch, self._batches = -1, list[NDArray[np.int64]]()

    def at(self, step: int, part: int = 0, parts: int = 1, progress: float = 0.0) -> TaskBatch | None:  # noqa: ARG002
        """Return a part of the batch of a step, both counted from 0; None if the batch has fewer rows than parts."""
        epoch, index = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._batches = epoch, self._shuffled(epoch)
        rows = np.array_split(self._batches[index], parts)[part]
        return self._collate([self.items[row] for row in rows]) if len(rows) else None

    def largest_part(self, parts: int) -> tuple[int, int]:
        """Return the tokens of the largest part of the first epoch's batches, and of the longest sequence."""
        batches = [part for batch in self._shuffled(0) for part in np.array_split(batch, parts)]
        longest = max(len(encoding.ids) for item in self.items for encoding in item.encodings)
        return max(int(self._lengths[rows].sum()) for rows in batches), longest

    def _shuffled(self, epoch: int) -> list[NDArray[np.int64]]:
        generator = np.random.default_rng([self._seed, epoch])
        return shuffle_batches(self._lengths, self._batch_size, generator, self._batches_per_bucket)

    def _collate(self, items: Sequence[Item]) -> TaskBatch:
        encodings = [encoding for item in items for encoding in item.encodings]
        inputs = collate(encodings, self._pad_id, self._device)
        if self._token_targets:
            targets = torch.full(inputs.ids.shape, IGNORED)
            for row, item in enumerate(items):
                labels = torch.tensor(item.target)
                targets[row, : len(labels)] = labels
        else:
            targets = torch.tensor([item.target for item in items])
        return TaskBatch(inputs, targets.to(self._device), tuple(len(item.encodings) for item in items))


def shuffle_batches(
    lengths: NDArray[np.int64], batch_size: int, generator: np.random.Generator, batches_per_bucket: int = 1
) -> list[NDArray[np.int64]]:
    """Shuffle rows, sort each bucket by length, cut it into batches, and shuffle the batches.

    Args:
        lengths: The length of each row in tokens.
        batch_size: Rows per batch.
        generator: Determines the order.
        batches_per_bucket: Number of batches that are sorted together; more give rows of more similar length.

    Returns:
        The row indices of each batch.
    """
    order = generator.permutation(len(lengths))
    bucket_size = batches_per_bucket * batch_size
    buckets = np.split(order, range(bucket_size, len(order), bucket_size))
    by_length = np.concatenate([bucket[np.argsort(lengths[bucket], kind="stable")] for bucket in buckets])
    batches = np.split(by_length, range(batch_size, len(by_length), batch_size))
    return [batches[index] for index in generator.permutation(len(batches))]


class TaskObjective(nn.Module):
    """Cross-entropy for labels, answer positions and choices; squared error for numbers."""

    weights: Tensor | None

    def __init__(self, model: Backbone, head: HeadName, weights: Tensor | None = None) -> None:
        """Create the objective; ``weights`` are class weights, one per label."""
        super().__init__()
        self.model, self.head = model, head
        # Not saved in checkpoints, because the weights are computed from the training rows.
        self.register_buffer("weights", weights, persistent=False)

    def forward(self, batch: TaskBatch, totals: Mapping[str, int]) -> ObjectiveOutput:
        """Return this part's share of the loss of a batch with ``totals`` targets."""
        return ObjectiveOutput(task_loss(self.logits(batch), batch.targets, totals["targets"], self.weights))

    def logits(self, batch: TaskBatch) -> Tensor:
        """Return the head's logits."""
        inputs = batch.inputs
        needed = self.model.needed_by(self.head, inputs.ids, inputs.mask)
        last = self.model(inputs.ids, inputs.segments, inputs.mask, needed).last
        # In float32: the head is cheap, and bfloat16 would round its logits to two or three digits.
        with torch.autocast(last.device.type, enabled=False):
            return task_logits(self.model, self.head, last.float(), batch.sizes, inputs.real)


def balanced_weights(data: TaskData) -> Tensor:
    """Return class weights that give every label the same total weight, however rare it is.

    For single-label tasks: rows / (labels * rows with the label), whose mean over the rows is 1. For multi-label tasks:
    the ratio of rows without the label to rows with it.
    """
    assert data.labels is not None
    assert isinstance(data.train, LabelledTexts), "check_kind rejects other kinds"
    rows = len(data.train)
    if data.kind.targets == "flags":
        positives = torch.tensor(data.train.targets).sum(0).clamp(min=1)
        return (rows - positives).clamp(min=1) / positives
    counts = torch.bincount(torch.tensor(data.train.targets), minlength=len(data.labels)).clamp(min=1)
    return rows / (len(data.labels) * counts)


def make_batches(
    items: list[Item],
    kind: TaskKind,
    tokenizer: Tokenizer,
    settings: ResolvedSettings,
    device: torch.device,
    progress: Progress,
    *,
    similar_lengths: bool = False,
) -> TaskBatches:
    """Return batches of training items, and report how many of them were truncated."""
    report_truncated(items, tokenizer.max_length, progress, kind.item_noun)
    return TaskBatches(
        items,
        settings.batch_size,
        settings.seed,
        tokenizer.pad_id,
        device,
        token_targets=kind.targets == "token_indices",
        similar_lengths=similar_lengths,
    )


# -- mean teacher ------------------------------------------------------------------------------------------------------


# After n updates, the decay is at most (n + 1) / (n + 1 + _RAMP_UP). Early on, the average therefore covers only about
# the last tenth of the steps, and soon forgets the random initial head.
_RAMP_UP = 9


class MeanTeacherObjective(nn.Module):
    """The loss of a task plus the weighted distance from the mean teacher's logits.

    Self-distillation from a moving average of the student's weights: Xu et al. (2020), "Improving BERT fine-tuning via
    self-ensemble and self-distillation", and Tarvainen and Valpola (2017), "Mean teachers are better role models".
    The teacher's logits are a second target besides the labels, with a squared-error loss. The teacher is part of the
    checkpoint, so that a resumed run continues with it. The student is the model that is evaluated and saved.
    """

    updates: Tensor

    def __init__(self, objective: TaskObjective, weight: float, decay: float) -> None:
        super().__init__()
        self.student, self._weight, self._decay = objective, weight, decay
        self.teacher = TaskObjective(deepcopy(objective.model).requires_grad_(False), objective.head).eval()
        self.register_buffer("updates", torch.tensor(0))
        self._update_due = True

    def train(self, mode: bool = True) -> Self:
        """Set the training mode of the student; the teacher stays in evaluation mode, without dropout.

        The loop calls this at the start of every step, so that the first part of the step updates the teacher.
        """
        super().train(mode)
        self.teacher.eval()
        self._update_due = mode
        return self

    def forward(self, batch: TaskBatch, totals: Mapping[str, int]) -> ObjectiveOutput:
        """Return this part's share of both losses; the first part of a step first updates the teacher."""
        if self._update_due:
            self._update_teacher()
            self._update_due = False
        logits = self.student.logits(batch)
        with torch.no_grad():
            teacher_logits = self.teacher.logits(batch)
        labels_loss = task_loss(logits, batch.targets, totals["targets"], self.student.weights)
        teacher_loss = logits_distance(logits, teacher_logits, batch.targets, totals["targets"])
        loss = labels_loss + self._weight * teacher_loss
        return ObjectiveOutput(loss, {"labels_loss": labels_loss, "teacher_loss": teacher_loss})

    @torch.no_grad()
    def _update_teacher(self) -> None:
        """Move the average towards the student's weights; before the first step both are equal."""
        count = int(self.updates)
        decay = min(self._decay, (count + 1) / (count + 1 + _RAMP_UP))
        for average, weight in zip(self.teacher.model.parameters(), self.student.model.parameters(), strict=True):
            if weight.requires_grad:
                average.lerp_(weight, 1 - decay)
        self.updates += 1


def logits_distance(logits: Tensor, teacher_logits: Tensor, targets: Tensor, total: int) -> Tensor:
    """Return a part's share of the mean squared difference of the logits, for a batch with ``total`` targets."""
    # Missing choices and padding positions are masked in both models and do not contribute.
    possible = teacher_logits > IMPOSSIBLE
    squares = (logits - teacher_logits).float().masked_fill(~possible, 0.0) ** 2
    if not targets.is_floating_point():
        squares = (squares.sum(-1) / possible.sum(-1))[targets.ne(IGNORED)]
    return squares.sum() / max(1, total)


def with_mean_teacher(objective: TaskObjective, weight: float, decay: float) -> nn.Module:
    """Add a mean teacher to an objective; return the objective unchanged if ``weight`` is 0."""
    return MeanTeacherObjective(objective, weight, decay) if weight else objective


def make_objective(data: TaskData, wrapped: Model, settings: ResolvedSettings) -> nn.Module:
    """Return the loss of the head, with the class weights and the mean teacher of the settings."""
    weights = balanced_weights(data) if settings.class_weights == "balanced" else None
    objective = TaskObjective(wrapped.bert, wrapped.heads[0], weights).to(wrapped.device)
    return with_mean_teacher(objective, settings.mean_teacher, settings.teacher_decay)
