"""Logits -> probabilities -> labels, as the folder says they are to be read.

Dimensions: N texts, L labels.

Logits -> labels with their probabilities, as they are told.

Dimensions: N texts, L labels.
"""

import numpy as np
from numpy.typing import NDArray

from cloze.checkpoint import TaskLabels
from cloze.predict.results import Label, Labels

Floats = NDArray[np.float32]


def probabilities(task: TaskLabels, logits: Floats) -> Floats:
    """(N, L) logits as probabilities: of one label each, or of every label on its own."""
    scaled = logits / task.temperature
    if task.kind == "multilabel":
        each: Floats = 1 / (1 + np.exp(-scaled))
        return each
    exponents = np.exp(scaled - scaled.max(-1, keepdims=True, initial=-np.inf))
    shares: Floats = exponents / exponents.sum(-1, keepdims=True)
    return shares


def chosen_classes(task: TaskLabels, logits: Floats) -> NDArray[np.int64]:
    """The label of each text: the likeliest, or the second of two from a threshold on."""
    if task.threshold is not None and len(task.names) == 2:
        return (probabilities(task, logits)[:, 1] >= task.threshold).astype(np.int64)
    likeliest: NDArray[np.int64] = logits.argmax(-1)
    return likeliest


def chosen_labels(task: TaskLabels, logits: Floats) -> NDArray[np.bool_]:
    """(N, L): which labels hold."""
    return probabilities(task, logits) >= (0.5 if task.threshold is None else task.threshold)


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
