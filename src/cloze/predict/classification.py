"""How a model that labels texts, or gives each a number, is scored.

Probabilities that mean what they say (Guo et al. 2017), and the threshold that scores best.

Both are fitted on dev rows and travel with the folder. What is reported on the same rows is therefore a little too
good; figures on a test set are honest.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloze.checkpoint import TaskLabels
from cloze.errors import ConfigError, RequestError
from cloze.predict.labels import Floats, chosen_classes, chosen_labels, probabilities
from cloze.predict.model import Model
from cloze.predict.reports import Confusion, Evaluation
from cloze.tasks.classification import LabelledTexts
from cloze.tasks.examples import Examples, LabelSet
from cloze.tasks.metrics import confusion, score

_BINS = 15
_COLDEST, _HOTTEST = 0.05, 20.0


@dataclass(frozen=True)
class Calibration:
    """A task with its temperature and threshold, and the calibration error before and after."""

    task: TaskLabels
    error_before: float
    error_after: float

    def results(self) -> dict[str, float]:
        """What ``eval_results.json`` adds."""
        found = {
            "temperature": self.task.temperature,
            "calibration_error_before": self.error_before,
            "calibration_error": self.error_after,
        }
        return found if self.task.threshold is None else {**found, "threshold": self.task.threshold}


def calibrate(
    task: TaskLabels, logits: Floats, targets: NDArray[np.int64], score: Callable[[TaskLabels], float]
) -> Calibration:
    """Fit the temperature, and of two labels, or of labels on their own, the threshold.

    ``score`` is what the threshold is to make large. Targets are indices (N,), or 0 and 1 (N, L).
    """
    from scipy.optimize import minimize_scalar  # slow to import, and a service never fits

    def surprise(temperature: float) -> float:
        shares = probabilities(replace(task, temperature=float(temperature)), logits)
        return float(-np.log(np.clip(_of_truth(shares, targets), 1e-12, 1)).mean())

    fitted = minimize_scalar(surprise, bounds=(_COLDEST, _HOTTEST), method="bounded")
    warm = replace(task, temperature=float(fitted.x))
    if task.kind == "multilabel" or len(task.names) == 2:
        warm = replace(warm, threshold=_best_threshold(warm, logits, score))
    before, after = (calibration_error(probabilities(one, logits), targets) for one in (task, warm))
    return Calibration(warm, before, after)


def calibration_error(shares: Floats, targets: NDArray[np.int64]) -> float:
    """Expected calibration error: how far, on average, being sure is from being right, over bins of like sureness."""
    if targets.ndim == 2:
        sure, right = shares.ravel(), targets.ravel().astype(float)
    else:
        sure, right = shares.max(-1), (shares.argmax(-1) == targets).astype(float)
    bins = np.minimum((sure * _BINS).astype(int), _BINS - 1)
    gaps = [abs(sure[bins == one].mean() - right[bins == one].mean()) * (bins == one).mean() for one in np.unique(bins)]
    return float(sum(gaps))


def _of_truth(shares: Floats, targets: NDArray[np.int64]) -> Floats:
    if targets.ndim == 2:
        return np.where(targets == 1, shares, 1 - shares)
    truth: Floats = shares[np.arange(len(targets)), targets]
    return truth


def _best_threshold(task: TaskLabels, logits: Floats, score: Callable[[TaskLabels], float]) -> float:
    """Halfway between two probabilities that occur; the one nearest to a half where several are equally good."""
    shares = probabilities(task, logits)
    values = np.unique(shares if task.kind == "multilabel" else shares[:, 1])
    if len(values) > 400:  # neighbours differ little
        values = np.quantile(values, np.linspace(0, 1, 400))
    middles = np.append((values[1:] + values[:-1]) / 2, 0.5)
    return float(max(middles, key=lambda one: (score(replace(task, threshold=float(one))), -abs(one - 0.5))))


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
