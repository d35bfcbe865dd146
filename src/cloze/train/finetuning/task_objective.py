"""What fine-tuning minimises, whatever the kind of task."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from cloze.model import Bert, HeadName, read_by
from cloze.model.losses import task_logits, task_loss
from cloze.train.finetuning.task_batches import TaskBatch
from cloze.train.loop import Outcome


class TaskObjective(nn.Module):
    """Cross-entropy of labels, places or options; squared error of numbers."""

    weights: Tensor | None

    def __init__(self, model: Bert, head: HeadName, weights: Tensor | None = None) -> None:
        """``weights`` says how much each label counts."""
        super().__init__()
        self.model, self.head = model, head
        # Not part of a checkpoint: it follows from the training rows.
        self.register_buffer("weights", weights, persistent=False)

    def forward(self, batch: TaskBatch, totals: Mapping[str, int]) -> Outcome:
        """This part's share of the loss of a batch."""
        return Outcome(task_loss(self.logits(batch), batch.targets, totals["targets"], self.weights))

    def logits(self, batch: TaskBatch) -> Tensor:
        """What the model says."""
        inputs = batch.inputs
        needed = read_by(self.head, inputs.ids)
        last = self.model(inputs.ids, inputs.segments, inputs.mask, needed).last
        # The head is little work, and an answer rounded to bfloat16 has two digits.
        with torch.autocast(last.device.type, enabled=False):
            return task_logits(self.model, self.head, last.float(), batch.sizes, inputs.real)
