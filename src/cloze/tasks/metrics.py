"""Targets and predictions -> scores: the official metrics of GLUE, by name, on scikit-learn and SciPy.

Undefined values are 0.0, without a warning: a correlation with a constant, since a model with constant output has
learned nothing, and F1 without any true or predicted positive.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from cloze.errors import ConfigError, DataError, did_you_mean
from cloze.tasks.examples import LabelSet

# Class indices, numbers, or tuples with 0 or 1 for each label.
Numbers = Sequence[Any]


def accuracy(targets: Numbers, predictions: Numbers) -> float:
    """Return the fraction of predictions that equal their target."""
    return float(
        sum(target == prediction for target, prediction in zip(targets, predictions, strict=True)) / len(targets)
    )


def f1(targets: Numbers, predictions: Numbers) -> float:
    """Return the F1 of class 1, the positive class."""
    from sklearn.metrics import f1_score

    return float(f1_score(targets, predictions, labels=[1], average="macro", zero_division=0))


def macro_f1(targets: Numbers, predictions: Numbers) -> float:
    """Return the mean F1 over the classes among targets or predictions, or over all labels of multi-label rows."""
    from sklearn.metrics import f1_score

    if _has_one_label(targets):
        return _f1_of_label(targets, predictions)
    return float(f1_score(targets, predictions, average="macro", zero_division=0))


def micro_f1(targets: Numbers, predictions: Numbers) -> float:
    """Return the F1 over all labels of all multi-label rows together."""
    from sklearn.metrics import f1_score

    if _has_one_label(targets):
        return _f1_of_label(targets, predictions)
    return float(f1_score(targets, predictions, average="micro", zero_division=0))


def matthews(targets: Numbers, predictions: Numbers) -> float:
    """Return Matthews' correlation coefficient."""
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(targets, predictions)) if _both_vary(targets, predictions) else 0.0


def pearson(targets: Numbers, predictions: Numbers) -> float:
    """Return Pearson's correlation; 0.0 if it is undefined."""
    from scipy.stats import pearsonr

    return _correlate(pearsonr, targets, predictions)


def spearman(targets: Numbers, predictions: Numbers) -> float:
    """Return Spearman's rank correlation; 0.0 if it is undefined."""
    from scipy.stats import spearmanr

    return _correlate(spearmanr, targets, predictions)


def auc(targets: Numbers, predictions: Numbers) -> float:
    """Return the area under the ROC curve for 0/1 targets; 0.5 if all targets are equal."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(targets, predictions)) if len(set(targets)) > 1 else 0.5


def mse(targets: Numbers, predictions: Numbers) -> float:
    """Return the mean squared error."""
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
    """Compute the named metrics; classes are given as indices, regression targets as numbers."""
    for name in metrics:
        if name not in METRICS:
            raise ConfigError(f"there is no metric {name!r}{did_you_mean(name, METRICS)}")
    if len(targets) != len(predictions):
        raise DataError(f"{len(targets)} targets, but {len(predictions)} predictions; give one for each row, in order")
    if not targets:
        raise DataError("no rows to score; expected at least one row with a label")
    for index, value in enumerate(predictions):
        if not all(map(math.isfinite, value if isinstance(value, tuple) else (value,))):
            raise DataError(f"prediction {index + 1} is {value}; expected a finite number: check the model's training")
    return {name: METRICS[name](targets, predictions) for name in metrics}


def confusion(labels: LabelSet, targets: Sequence[int], predictions: Sequence[int]) -> list[list[int]]:
    """Count predictions by class: rows are the true classes, columns the predicted ones."""
    counts = [[0] * len(labels) for _ in labels.names]
    for target, prediction in zip(targets, predictions, strict=True):
        counts[target][prediction] += 1
    return counts


def _has_one_label(targets: Numbers) -> bool:
    """Return whether rows have a flag for a single label: scikit-learn would treat its absence as a second class."""
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
