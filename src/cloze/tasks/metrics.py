"""Targets and predictions -> scores: the official metrics of GLUE by name, and the metrics of text correction.

Undefined values are 0.0, without a warning: a correlation with a constant, since a model with constant output has
learned nothing, and F1 without any true or predicted positive.

Text correction: SIGHAN's sentence level, a stricter sentence level (flagged), and single characters. A sentence is
detected if exactly the wrong positions are changed, and corrected if all changes are right as well. In SIGHAN's metrics
(Tseng et al. 2015), a false positive is a correct sentence that was changed. Later papers also count every changed
sentence whose result is wrong, which is stricter: ``flagged``. At the level of characters (of words, in alphabetic
text), every change counts. ``choose_threshold`` chooses the confidence threshold on rows whose corrections are known.
"""

import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloze.errors import ConfigError, DataError, did_you_mean
from cloze.tasks.examples import LabelSet
from cloze.text.characters import is_ideograph

# Class indices, numbers, or tuples with 0 or 1 for each label.
Numbers = Sequence[Any]
Floats = NDArray[np.float64]


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


def divide(above: Floats, below: Floats) -> Floats:
    """Divide elementwise; the result is 0 where the divisor is 0."""
    return np.divide(above, below, out=np.zeros_like(np.asarray(above, np.float64)), where=np.asarray(below) > 0)


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


# -- text correction ---------------------------------------------------------------------------------------------------


_RUN = re.compile(r"\w+|\W")

Edits = frozenset[tuple[int, str, str]]  # position, original, replacement


@dataclass(frozen=True)
class Tally:
    """Counts of right, predicted and expected items, per text or per resample."""

    right: Floats
    predicted: Floats
    expected: Floats

    def resampled(self, counts: Floats) -> "Tally":
        """Return the counts of each resample."""
        return Tally(counts @ self.right, counts @ self.predicted, counts @ self.expected)

    def figures(self, name: str) -> dict[str, Floats]:
        """Return precision, recall and their harmonic mean."""
        precision, recall = divide(self.right, self.predicted), divide(self.right, self.expected)
        f1 = divide(2 * precision * recall, precision + recall)
        return {f"{name}_f1": f1, f"{name}_precision": precision, f"{name}_recall": recall}


def find_edits(source: str, target: str) -> Edits:
    """Return the edits between two texts, in units of Chinese characters and of other words."""
    before, after = _units(source), _units(target)
    places = [0]
    for unit in before:
        places.append(places[-1] + len(unit))
    edits = set()
    # Mistakes rarely change the number of units; with equal numbers, units correspond one to one.
    if len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return frozenset((places[place], old, new) for place, (old, new) in pairs if old != new)
    for kind, first, last, start, stop in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind != "equal":
            edits.add((places[first], "".join(before[first:last]), "".join(after[start:stop])))
    return frozenset(edits)


def _units(text: str) -> list[str]:
    units: list[str] = []
    for found in _RUN.finditer(text):
        run = found.group()
        units.extend(run if any(map(is_ideograph, run)) else [run])
    return units


def score_corrections(sources: Sequence[str], targets: Sequence[str], corrected: Sequence[str]) -> dict[str, float]:
    """Return all scores; the first one selects models."""
    if not sources:
        raise DataError("no rows to score; expected at least one row with a correction")
    rows = CorrectedRows(sources, targets, corrected)
    return {name: float(values[0]) for name, values in rows.scores(np.ones((1, len(rows)))).items()}


@dataclass(frozen=True)
class CorrectedRows:
    """Texts, their targets and the corrections of a model, for the scores of resampled texts."""

    sources: Sequence[str]
    targets: Sequence[str]
    corrected: Sequence[str]

    def __len__(self) -> int:
        return len(self.sources)

    @cached_property
    def edits(self) -> list[tuple[Edits, Edits]]:
        """The edits made in each text, and the expected ones."""
        rows = zip(self.sources, self.targets, self.corrected, strict=True)
        return [(find_edits(source, corrected), find_edits(source, target)) for source, target, corrected in rows]

    @cached_property
    def tallies(self) -> dict[str, Tally]:
        """The contribution of each text to the counts behind each score."""
        false_alarms = np.array([bool(made) and not wanted for made, wanted in self.edits], float)
        tallies: dict[str, Tally] = {}
        for level, parts in (("correction", 3), ("detection", 1)):
            pairs = [(_cut(made, parts), _cut(wanted, parts)) for made, wanted in self.edits]
            right = np.array([made == wanted and bool(wanted) for made, wanted in pairs], float)
            flagged, wrong = np.array([(bool(made), bool(wanted)) for made, wanted in pairs], float).T
            both, predicted, expected = np.array(
                [(len(made & wanted), len(made), len(wanted)) for made, wanted in pairs], float
            ).T
            tallies |= {level: Tally(right, right + false_alarms, wrong)}
            tallies |= {f"flagged_{level}": Tally(right, flagged, wrong)}
            tallies |= {f"character_{level}": Tally(both, predicted, expected)}
        return tallies

    def scores(self, counts: Floats) -> dict[str, Floats]:
        """Return the scores of each resample."""
        figures: dict[str, Floats] = {}
        for name, tally in self.tallies.items():
            figures |= tally.resampled(counts).figures(name)
        clean = np.array([not wanted for _, wanted in self.edits], float)
        alarms = np.array([bool(made) for made, _ in self.edits], float) * clean
        return figures | {"false_alarms": divide(counts @ alarms, counts @ clean)}

    def by_label(self) -> dict[str, dict[str, float]]:
        """Return an empty dict: corrections have no labels."""
        return {}


def _cut(edits: Edits, parts: int) -> frozenset[tuple[object, ...]]:
    """Return the edits, or with ``parts`` 1 only their positions."""
    return frozenset(edit[:parts] for edit in edits)


# For each text: position, original, replacement and confidence of each change.
Changes = Sequence[Sequence[tuple[int, str, str, float]]]

MOST_FALSE_ALARMS = 0.05
# Thresholds from 0.44 to almost 1, denser towards 1, where most confidences are.
_GRID = [float(1 - 10**-power) for power in np.arange(0.25, 7, 0.25)]


def applied(texts: Sequence[str], changes: Changes, threshold: float) -> list[str]:
    """Return the texts with all changes whose confidence reaches the threshold."""
    corrected = []
    for text, own in zip(texts, changes, strict=True):
        for start, wrong, right, confidence in sorted(own, reverse=True):
            if confidence >= threshold:
                text = text[:start] + right + text[start + len(wrong) :]
        corrected.append(text)
    return corrected


def choose_threshold(sources: Sequence[str], targets: Sequence[str], changes: Changes) -> float:
    """Return the threshold with the best correction F1 among those with few false alarms; the highest if none has."""
    scored = [(score_corrections(sources, targets, applied(sources, changes, at)), at) for at in _GRID]
    quiet = [(found["correction_f1"], at) for found, at in scored if found["false_alarms"] < MOST_FALSE_ALARMS]
    return max(quiet)[1] if quiet else _GRID[-1]
