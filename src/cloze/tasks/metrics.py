"""Targets and predictions -> scores: the official metrics of GLUE, by name, on scikit-learn and SciPy.

Two decisions. A correlation with a constant is undefined; it counts as 0.0, since a model with constant output has
learned nothing. F1 without a positive case, predicted or true, counts as 0.0 too. Neither warns.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from cloze.errors import ConfigError, DataError, did_you_mean
from cloze.tasks.examples import LabelSet

# Indices of classes, numbers, or a yes or no for each label.
Numbers = Sequence[Any]


def accuracy(targets: Numbers, predictions: Numbers) -> float:
    """Return the share of predictions that equal their target."""
    return float(
        sum(target == prediction for target, prediction in zip(targets, predictions, strict=True)) / len(targets)
    )


def f1(targets: Numbers, predictions: Numbers) -> float:
    """F1 of class 1, the positive one."""
    from sklearn.metrics import f1_score

    return float(f1_score(targets, predictions, labels=[1], average="macro", zero_division=0))


def macro_f1(targets: Numbers, predictions: Numbers) -> float:
    """Mean F1 of the classes that occur among targets or predictions; of labels, where a row may have several."""
    from sklearn.metrics import f1_score

    if _has_one_label(targets):
        return _f1_of_label(targets, predictions)
    return float(f1_score(targets, predictions, average="macro", zero_division=0))


def micro_f1(targets: Numbers, predictions: Numbers) -> float:
    """F1 over all labels of all rows at once, where a row may have several."""
    from sklearn.metrics import f1_score

    if _has_one_label(targets):
        return _f1_of_label(targets, predictions)
    return float(f1_score(targets, predictions, average="micro", zero_division=0))


def matthews(targets: Numbers, predictions: Numbers) -> float:
    """Matthews' correlation coefficient."""
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(targets, predictions)) if _both_vary(targets, predictions) else 0.0


def pearson(targets: Numbers, predictions: Numbers) -> float:
    """Pearson's correlation; 0.0 where it is undefined."""
    from scipy.stats import pearsonr

    return _correlate(pearsonr, targets, predictions)


def spearman(targets: Numbers, predictions: Numbers) -> float:
    """Spearman's rank correlation; 0.0 where it is undefined."""
    from scipy.stats import spearmanr

    return _correlate(spearmanr, targets, predictions)


def auc(targets: Numbers, predictions: Numbers) -> float:
    """Area under the ROC curve of 0/1 targets; 0.5 where all targets are the same."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(targets, predictions)) if len(set(targets)) > 1 else 0.5


def mse(targets: Numbers, predictions: Numbers) -> float:
    """Mean squared error."""
    return float(
        sum((target - prediction) ** 2 for target, prediction in zip(targets, predictions, strict=True)) / len(targets)
    )


METRICS: dict[str, Callable[[Numbers, Numbers], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "macro_f1": macro_f1,
    "micro_f1": micro_f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
    "auc": auc,
    "mse": mse,
}


def score(metrics: Sequence[str], targets: Numbers, predictions: Numbers) -> dict[str, float]:
    """Compute the named metrics; classes are given by index, regression by number."""
    for name in metrics:
        if name not in METRICS:
            raise ConfigError(f"there is no metric {name!r}{did_you_mean(name, METRICS)}")
    if len(targets) != len(predictions):
        raise DataError(f"{len(targets)} targets, but {len(predictions)} predictions; give one for each row, in order")
    if not targets:
        raise DataError("there is nothing to score: 0 rows; expected at least one with a label")
    for index, value in enumerate(predictions):
        if not all(map(math.isfinite, value if isinstance(value, tuple) else (value,))):
            raise DataError(f"prediction {index + 1} is {value}; expected a finite number: check the model's training")
    return {name: METRICS[name](targets, predictions) for name in metrics}


def confusion(labels: LabelSet, targets: Sequence[int], predictions: Sequence[int]) -> list[list[int]]:
    """Count predictions by class: row = the true one, column = the predicted one."""
    counts = [[0] * len(labels) for _ in labels.names]
    for target, prediction in zip(targets, predictions, strict=True):
        counts[target][prediction] += 1
    return counts


def _has_one_label(targets: Numbers) -> bool:
    """Return whether rows have flags for a single label: scikit-learn would count "no" as a label of its own."""
    return isinstance(targets[0], Sequence) and len(targets[0]) == 1


def _f1_of_label(targets: Numbers, predictions: Numbers) -> float:
    return f1([target for (target,) in targets], [prediction for (prediction,) in predictions])


def _both_vary(targets: Numbers, predictions: Numbers) -> bool:
    return len(set(targets)) > 1 and len(set(predictions)) > 1


def _correlate(function: Callable[..., tuple[float, float]], targets: Numbers, predictions: Numbers) -> float:
    if not _both_vary(targets, predictions):
        return 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SciPy warns about nearly constant values and still returns a number
        coefficient = float(function(targets, predictions)[0])
    return coefficient if math.isfinite(coefficient) else 0.0
