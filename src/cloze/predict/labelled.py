"""Logits -> labels with their probabilities, as they are told.

Dimensions: N texts, L labels.
"""

from cloze.checkpoint import TaskLabels
from cloze.predict.labels import Floats, chosen_classes, chosen_labels, probabilities
from cloze.predict.results import Label, Labels


def likeliest_labels(task: TaskLabels, logits: Floats) -> list[Label]:
    """(N, L): the label of each text, with the probability of every label."""
    found = zip(probabilities(task, logits), chosen_classes(task, logits), strict=True)
    return [
        Label(task.names[chosen], float(row[chosen]), dict(zip(task.names, row.tolist(), strict=True)))
        for row, chosen in found
    ]


def labels_that_hold(task: TaskLabels, logits: Floats) -> list[Labels]:
    """(N, L): all labels that hold for each text, with the probability of every label."""
    found = zip(probabilities(task, logits), chosen_labels(task, logits), strict=True)
    return [
        Labels(
            tuple(name for name, holds in zip(task.names, flags, strict=True) if holds),
            dict(zip(task.names, row.tolist(), strict=True)),
        )
        for row, flags in found
    ]
