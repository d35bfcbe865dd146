"""Targets and predictions -> scores: the official metrics of GLUE, by name, on scikit-learn and SciPy.

Undefined values are 0.0, without a warning: a correlation with a constant, since a model with constant output has
learned nothing, and F1 without any true or predicted positive.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloze.errors import ConfigError, DataError, did_you_mean
from cloze.tasks.examples import LabelSet

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Number of sequences of tests when a threshold for abstaining is chosen.
_STARTS = 10
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


# -- selective prediction ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RiskCoverage:
    """The error rate among the answered rows if only the most confident rows are answered (El-Yaniv and Wiener 2010).

    Attributes:
        coverage: Fractions of the rows that are answered, one per distinct confidence, increasing.
        risk: The error rate among them.
        area: Area under the curve (AURC): the mean error rate over all numbers of answered rows; lower is better.
        best_area: The area if every error had a lower confidence than every correct answer.
    """

    coverage: "NDArray[np.float64]"
    risk: "NDArray[np.float64]"
    area: float
    best_area: float


def risk_coverage(confidences: Sequence[float], correct: Sequence[bool]) -> RiskCoverage:
    """Return the risk-coverage curve; rows with equal confidence are answered together."""
    import numpy as np

    values, wrong = np.asarray(confidences, np.float64), ~np.asarray(correct, bool)
    order = np.argsort(-values, kind="stable")
    values, wrong = values[order], wrong[order]
    count = len(values)
    answered = np.arange(1, count + 1)
    last = np.append(values[1:] != values[:-1], True)  # the last row of each group with equal confidence
    groups = np.cumsum(np.append(False, last[:-1]))
    shares = np.bincount(groups, wrong) / np.bincount(groups)  # error rate of each group: its rows have no order
    errors = np.cumsum(shares[groups])
    best = np.cumsum(np.sort(wrong))
    return RiskCoverage(
        answered[last] / count,
        (errors / answered)[last],
        float((errors / answered).mean()),
        float((best / answered).mean()),
    )


@dataclass(frozen=True)
class Abstention:
    """A minimum confidence for answers, and what is known about the error rate above it.

    Attributes:
        rate: The error rate among answers that was asked for.
        below: The model abstains below this confidence.
        coverage: The fraction of the rows that are answered.
        risk: The observed error rate among them.
        bound: The upper bound of the error rate on new rows of the same kind.
        certainty: The probability that the bound holds.
    """

    rate: float
    below: float
    coverage: float
    risk: float
    bound: float
    certainty: float


def choose_abstention(
    confidences: Sequence[float], correct: Sequence[bool], rate: float, certainty: float = 0.95
) -> Abstention:
    """Choose the lowest confidence above which the error rate on new rows is at most ``rate``, with high probability.

    The observed error rate at a threshold that was chosen by it is too optimistic. Instead, thresholds are tested with
    the exact binomial upper bound of the error rate. The tests form ten sequences that start at a coverage of 10, 20,
    ... 100 %, go up in steps of 1 %, and end at the first failure. Each sequence may fail with a tenth of the allowed
    probability, and within one no further correction is necessary (fixed sequence testing with several starts,
    Angelopoulos et al. 2021).

    Args:
        confidences: The probability of each row's prediction.
        correct: Whether each prediction is correct.
        rate: The error rate to allow among answers.
        certainty: The probability that the bound holds.

    Raises:
        ConfigError: If the rate is not between 0 and 1.
        DataError: If no threshold is known to be good enough.
    """
    import numpy as np

    if not 0 < rate < 1:
        raise ConfigError(f"the error rate to abstain at is {rate}; expected a fraction above 0 and below 1")
    order = np.argsort(-np.asarray(confidences, np.float64), kind="stable")
    values = np.asarray(confidences, np.float64)[order]
    errors, count = np.cumsum(~np.asarray(correct, bool)[order]), len(order)
    failure, found = (1 - certainty) / _STARTS, None
    for start in range(1, _STARTS + 1):
        for percent in range(100 * start // _STARTS, 101):
            least = values[max(1, count * percent // 100) - 1]
            answered = int(np.searchsorted(-values, -least, side="right"))  # with all rows of equal confidence
            wrong = int(errors[answered - 1])
            bound = binomial_upper_bound(wrong, answered, failure)
            if bound > rate:
                break
            if found is None or answered / count > found.coverage:
                found = Abstention(rate, float(least), answered / count, wrong / answered, bound, certainty)
    if found is None:
        needed = math.ceil(math.log(failure) / math.log(1 - rate))
        raise DataError(
            f"{count} rows do not show that the error rate can be kept below {rate:g}: that needs at least {needed} "
            "rows without an error among the most confident; give more rows, or a higher rate"
        )
    return found


def binomial_upper_bound(errors: int, rows: int, failure: float) -> float:
    """Return the exact upper bound of an error rate (Clopper and Pearson 1934) that fails with this probability."""
    from scipy.stats import beta  # deferred: slow to import

    return 1.0 if errors >= rows else float(beta.ppf(1 - failure, errors + 1, rows - errors))
