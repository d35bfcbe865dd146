"""How a model that labels texts, or gives each a number, is scored."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from cloze.checkpoint import TaskLabels
from cloze.errors import ConfigError, RequestError
from cloze.predict.calibration import Calibration, calibrate
from cloze.predict.labels import chosen_classes, chosen_labels
from cloze.predict.model import Model
from cloze.predict.reports import Confusion, Evaluation
from cloze.tasks.classify import LabelledTexts
from cloze.tasks.items import Examples
from cloze.tasks.labels import LabelSet
from cloze.tasks.metrics import confusion, score


def evaluate_texts(model: Model, examples: LabelledTexts, metrics: Sequence[str]) -> Evaluation:
    """Score a model that labels texts, or gives each a number."""
    if examples.targets is None:
        raise RequestError("these rows have no labels to score against; evaluate on a split that has them")
    task = model.task or TaskLabels("regress")
    logits = model.logits(examples.texts, examples.pairs)
    inputs = _inputs(examples)
    if task.kind == "regress":
        numbers = [float(value) for value in logits[:, 0]]
        told, expected = [str(number) for number in numbers], [str(target) for target in examples.targets]
        errors = [abs(number - float(target)) for number, target in zip(numbers, examples.targets, strict=True)]
        return Evaluation(
            score(metrics, examples.targets, numbers), told, examples.places, expected, inputs, errors=errors
        )
    if task.kind == "multilabel":
        flags = [tuple(map(float, row)) for row in chosen_labels(task, logits)]
        told, expected = _names(task, flags), _names(task, examples.targets)
        return Evaluation(score(metrics, examples.targets, flags), told, examples.places, expected, inputs)
    classes = chosen_classes(task, logits).tolist()
    labels = LabelSet(task.names)
    return Evaluation(
        score(metrics, examples.targets, classes),
        [task.names[index] for index in classes],
        examples.places,
        [task.names[int(index)] for index in examples.targets],
        inputs,
        Confusion(task.names, confusion(labels, examples.targets, classes)),
    )


def calibrate_texts(model: Model, examples: Examples, metrics: Sequence[str]) -> Calibration:
    """Fit temperature and threshold on rows with labels."""
    task = model.task
    if task is None or task.kind not in ("classify", "multilabel") or not isinstance(examples, LabelledTexts):
        raise ConfigError(f"calibrate is for labels of texts; this model is to {task.kind if task else 'do nothing'}")
    logits = model.logits(examples.texts, examples.pairs)
    targets = examples.targets
    assert targets is not None, "dev rows have labels"

    def scored(candidate: TaskLabels) -> float:
        if candidate.kind == "multilabel":
            told: Sequence[Any] = [tuple(map(float, row)) for row in chosen_labels(candidate, logits)]
        else:
            told = chosen_classes(candidate, logits).tolist()
        return score(metrics[:1], targets, told)[metrics[0]]

    return calibrate(task, logits, np.asarray(targets, np.int64), scored)


def _names(task: TaskLabels, flags: Sequence[Any]) -> list[str]:
    return ["|".join(name for name, flag in zip(task.names, row, strict=True) if flag) for row in flags]


def _inputs(examples: LabelledTexts) -> list[dict[str, str]]:
    if examples.pairs is None:
        return [{"text": text} for text in examples.texts]
    return [{"text": text, "pair": pair} for text, pair in zip(examples.texts, examples.pairs, strict=True)]
