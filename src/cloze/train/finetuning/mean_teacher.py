"""A model that is its own teacher, which is the running average of its weights.

After Xu et al. (2020), "Improving BERT fine-tuning via self-ensemble and self-distillation", and Tarvainen and Valpola
(2017), "Mean teachers are better role models". Beside the labels, what the average says is a second target, by squared
error. The average is part of the checkpoint, so that a run goes on with the teacher that it had; the model that is
scored and saved is the student.
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

# An average over all steps would be held back by the random head of the start: while there are few of them, it is over
# the latest tenth or so.
_EARLY = 9


class MeanTeacherObjective(nn.Module):
    """The loss of a task, and the distance from the average of the weights so far."""

    updates: Tensor

    def __init__(self, objective: TaskObjective, weight: float, decay: float) -> None:
        super().__init__()
        self.student, self._weight, self._decay = objective, weight, decay
        self.teacher = TaskObjective(deepcopy(objective.model).requires_grad_(False), objective.head).eval()
        self.register_buffer("updates", torch.tensor(0))

    def train(self, mode: bool = True) -> Self:
        """As of any module; but the teacher has no dropout."""
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, batch: TaskBatch, totals: Mapping[str, int]) -> ObjectiveOutput:
        """This part's share of both losses; in training, the teacher first takes in what the last step has changed."""
        if self.training:
            self._follow()
        said = self.student.logits(batch)
        with torch.no_grad():
            taught = self.teacher.logits(batch)
        own = task_loss(said, batch.targets, totals["targets"], self.student.weights)
        away = distance(said, taught, batch.targets, totals["targets"])
        return ObjectiveOutput(own + self._weight * away, {"labels_loss": own, "teacher_loss": away})

    @torch.no_grad()
    def _follow(self) -> None:
        """Move the average towards the student; before the first step both are the same."""
        count = int(self.updates)
        decay = min(self._decay, (count + 1) / (count + 1 + _EARLY))
        for average, weight in zip(self.teacher.model.parameters(), self.student.model.parameters(), strict=True):
            if weight.requires_grad:
                average.lerp_(weight, 1 - decay)
        self.updates += 1


def distance(said: Tensor, taught: Tensor, targets: Tensor, total: int) -> Tensor:
    """A part's share of the mean squared difference of two answers to a batch that has ``total`` targets."""
    # Options that an item has not, and places without a token, are out of the question with both, and do not count.
    possible = taught > IMPOSSIBLE
    squares = (said - taught).float().masked_fill(~possible, 0.0) ** 2
    if not targets.is_floating_point():
        squares = (squares.sum(-1) / possible.sum(-1))[targets.ne(IGNORED)]
    return squares.sum() / max(1, total)


def with_mean_teacher(objective: TaskObjective, weight: float, decay: float) -> nn.Module:
    """The objective with a teacher of its own; the objective itself where that counts for nothing."""
    return MeanTeacherObjective(objective, weight, decay) if weight else objective
