"""How much each label counts, where some are rare."""

import torch
from torch import Tensor

from cloze.tasks.classify import LabelledTexts
from cloze.tasks.registry import TaskData


def balanced_weights(data: TaskData) -> Tensor:
    """Weights by which every label counts as much as any other, whatever its share of the rows.

    Of labels that exclude each other, rows / (labels * rows with it), whose mean over the rows is 1. Of labels that do
    not, how many rows are without it for each that has it.
    """
    assert data.labels is not None
    assert isinstance(data.train, LabelledTexts), "other kinds were refused"
    rows = len(data.train)
    if data.kind == "multilabel":
        having = torch.tensor(data.train.targets).sum(0).clamp(min=1)
        return (rows - having).clamp(min=1) / having
    counts = torch.bincount(torch.tensor(data.train.targets), minlength=len(data.labels)).clamp(min=1)
    return rows / (len(data.labels) * counts)
