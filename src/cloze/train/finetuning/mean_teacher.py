"""Mean teacher: self-distillation from a running average of the student's weights.

After Xu et al. (2020), "Improving BERT fine-tuning via self-ensemble and self-distillation", and Tarvainen and Valpola
(2017), "Mean teachers are better role models". Besides the labels, the teacher's logits are a second target, by
squared error. The teacher is part of the checkpoint, so that a resumed run continues with it. The model that is
evaluated and saved is the student.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Self

import torch
from torch import Tensor, nn

from cloze.model.losses import IMPOSSIBLE, task_loss
from cloze.options import IGNORED
from cloze.train.finetuning.objective import TaskBatch, TaskObjective
from cloze.train.loop import ObjectiveOutput

# The decay is limited to (n + 1) / (n + 1 + _RAMP_UP) after n updates: early on, the average covers only the latest
# tenth or so of the steps, so that the random head of the start is soon forgotten.
_RAMP_UP = 9


class MeanTeacherObjective(nn.Module):
    """The loss of a task plus the weighted distance from the mean teacher's logits."""

    updates: Tensor

    def __init__(self, objective: TaskObjective, weight: float, decay: float) -> None:
        super().__init__()
        self.student, self._weight, self._decay = objective, weight, decay
        self.teacher = TaskObjective(deepcopy(objective.model).requires_grad_(False), objective.head).eval()
        self.register_buffer("updates", torch.tensor(0))

    def train(self, mode: bool = True) -> Self:
        """Set the training mode of the student; the teacher stays in evaluation mode, without dropout."""
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, batch: TaskBatch, totals: Mapping[str, int]) -> ObjectiveOutput:
        """Return this part's share of both losses; in training, first update the teacher by the last step."""
        if self.training:
            self._update_teacher()
        logits = self.student.logits(batch)
        with torch.no_grad():
            teacher_logits = self.teacher.logits(batch)
        labels_loss = task_loss(logits, batch.targets, totals["targets"], self.student.weights)
        teacher_loss = logits_distance(logits, teacher_logits, batch.targets, totals["targets"])
        loss = labels_loss + self._weight * teacher_loss
        return ObjectiveOutput(loss, {"labels_loss": labels_loss, "teacher_loss": teacher_loss})

    @torch.no_grad()
    def _update_teacher(self) -> None:
        """Move the average towards the student; before the first step both are equal."""
        count = int(self.updates)
        decay = min(self._decay, (count + 1) / (count + 1 + _RAMP_UP))
        for average, weight in zip(self.teacher.model.parameters(), self.student.model.parameters(), strict=True):
            if weight.requires_grad:
                average.lerp_(weight, 1 - decay)
        self.updates += 1


def logits_distance(logits: Tensor, teacher_logits: Tensor, targets: Tensor, total: int) -> Tensor:
    """Return a part's share of the mean squared difference of logits, for a batch that has ``total`` targets."""
    # Missing choices and padding positions are masked in both, and do not count.
    possible = teacher_logits > IMPOSSIBLE
    squares = (logits - teacher_logits).float().masked_fill(~possible, 0.0) ** 2
    if not targets.is_floating_point():
        squares = (squares.sum(-1) / possible.sum(-1))[targets.ne(IGNORED)]
    return squares.sum() / max(1, total)


def with_mean_teacher(objective: TaskObjective, weight: float, decay: float) -> nn.Module:
    """Add a mean teacher to an objective; return the objective unchanged if ``weight`` is 0."""
    return MeanTeacherObjective(objective, weight, decay) if weight else objective
