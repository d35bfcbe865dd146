"""What fine-tuning minimises, whatever the kind of task.

Items of a task -> batches, in a new order every epoch.

Rows of a batch are drawn at random and stand by length: padding is not computed (``model/packing.py``), but for a
little of it in attention, between neighbours. Batches of like length would need none, and teach worse: short texts are
often of another kind than long ones, and a batch of them pulls one way (a point of F1 on CoNLL, docs/findings.md).

Dimensions: B rows of a batch, T tokens, N items.

How much each label counts, where some are rare.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cloze.model import Backbone, HeadName
from cloze.model.batch import Batch, collate
from cloze.model.losses import task_logits, task_loss
from cloze.options import IGNORED
from cloze.progress import Progress
from cloze.tasks.classification.kind import LabelledTexts
from cloze.tasks.examples import Item
from cloze.tasks.registry import TaskData
from cloze.train.loop import ObjectiveOutput

# Where they are to be of like length, so many batches are cut from neighbours; their rows are drawn from all.
_CUT_TOGETHER = 50


@dataclass(frozen=True)
class TaskBatch:
    """Texts and what should be said of them."""

    inputs: Batch
    targets: Tensor  # (N,), (N, labels), (N, 2) or (N, T), as the head has it
    sizes: tuple[int, ...]  # rows of the inputs that belong to each item

    @property
    def counts(self) -> Mapping[str, int]:
        """What the loss is a mean over."""
        return {"targets": count_targets(self.targets)}

    @property
    def token_count(self) -> int:
        """Real tokens, padding not counted."""
        return int(self.inputs.real.sum())


def count_targets(targets: Tensor) -> int:
    """Those that are asked for: of labels, all but the ignored; of numbers all, whatever they are."""
    return targets.numel() if targets.is_floating_point() else int(targets.ne(IGNORED).sum())


def report_truncated(items: Sequence[Item], longest: int, progress: Progress, what: str = "texts") -> None:
    """Say how much of what a model trains on was cut."""
    cut = sum(any(encoding.dropped for encoding in item.encodings) for item in items)
    if cut:
        progress.say(f"{cut} of {len(items)} training {what} are longer than {longest} tokens and are cut")


class TaskBatches:
    """Batches of a training set: their order is a function of (seed, epoch) alone."""

    def __init__(
        self,
        items: Sequence[Item],
        batch: int,
        seed: int,
        pad_id: int,
        device: torch.device,
        *,
        labels_tokens: bool = False,
        like_lengths: bool = False,
    ) -> None:
        """``labels_tokens``: a target has an entry a token, and is padded with it.

        ``like_lengths``: rows of a batch are of like length, for objectives that compare them, or need them padded.
        """
        self.items, self._batch, self._seed = items, batch, seed
        self._cut_together = _CUT_TOGETHER if like_lengths else 1
        self._pad_id, self._device, self._labels_tokens = pad_id, device, labels_tokens
        self._lengths = np.array([sum(len(encoding.ids) for encoding in item.encodings) for item in items])
        self.steps_per_epoch = -(-len(items) // batch)
        self._epoch, self._batches = -1, list[NDArray[np.int64]]()

    def at(self, step: int, part: int = 0, parts: int = 1, progress: float = 0.0) -> TaskBatch:  # noqa: ARG002
        """A part of the batch of a step, counted from 0."""
        epoch, index = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._batches = epoch, self._shuffled(epoch)
        rows = np.array_split(self._batches[index], parts)[part]
        return self._collate([self.items[row] for row in rows])

    def _shuffled(self, epoch: int) -> list[NDArray[np.int64]]:
        """Rows at random; those of a batch, or of some batches, by length; and these batches at random again."""
        generator = np.random.default_rng([self._seed, epoch])
        order = generator.permutation(len(self.items))
        together = self._cut_together * self._batch
        groups = np.split(order, range(together, len(order), together))
        near = np.concatenate([group[np.argsort(self._lengths[group], kind="stable")] for group in groups])
        batches = np.split(near, range(self._batch, len(near), self._batch))
        return [batches[index] for index in generator.permutation(len(batches))]

    def _collate(self, items: Sequence[Item]) -> TaskBatch:
        encodings = [encoding for item in items for encoding in item.encodings]
        inputs = collate(encodings, self._pad_id, self._device)
        if self._labels_tokens:
            targets = torch.full(inputs.ids.shape, IGNORED)
            for row, item in enumerate(items):
                labels = torch.tensor(item.target)
                targets[row, : len(labels)] = labels
        else:
            targets = torch.tensor([item.target for item in items])
        return TaskBatch(inputs, targets.to(self._device), tuple(len(item.encodings) for item in items))


class TaskObjective(nn.Module):
    """Cross-entropy of labels, places or options; squared error of numbers."""

    weights: Tensor | None

    def __init__(self, model: Backbone, head: HeadName, weights: Tensor | None = None) -> None:
        """``weights`` says how much each label counts."""
        super().__init__()
        self.model, self.head = model, head
        # Not part of a checkpoint: it follows from the training rows.
        self.register_buffer("weights", weights, persistent=False)

    def forward(self, batch: TaskBatch, totals: Mapping[str, int]) -> ObjectiveOutput:
        """This part's share of the loss of a batch."""
        return ObjectiveOutput(task_loss(self.logits(batch), batch.targets, totals["targets"], self.weights))

    def logits(self, batch: TaskBatch) -> Tensor:
        """What the model says."""
        inputs = batch.inputs
        needed = self.model.needed_by(self.head, inputs.ids, inputs.mask)
        last = self.model(inputs.ids, inputs.segments, inputs.mask, needed).last
        # The head is little work, and an answer rounded to bfloat16 has two digits.
        with torch.autocast(last.device.type, enabled=False):
            return task_logits(self.model, self.head, last.float(), batch.sizes, inputs.real)


def balanced_weights(data: TaskData) -> Tensor:
    """Weights by which every label counts as much as any other, whatever its share of the rows.

    Of labels that exclude each other, rows / (labels * rows with it), whose mean over the rows is 1. Of labels that do
    not, how many rows are without it for each that has it.
    """
    assert data.labels is not None
    assert isinstance(data.train, LabelledTexts), "other kinds were refused"
    rows = len(data.train)
    if data.kind.targets == "flags":
        having = torch.tensor(data.train.targets).sum(0).clamp(min=1)
        return (rows - having).clamp(min=1) / having
    counts = torch.bincount(torch.tensor(data.train.targets), minlength=len(data.labels)).clamp(min=1)
    return rows / (len(data.labels) * counts)
