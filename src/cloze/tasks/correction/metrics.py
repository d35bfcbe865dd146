"""Metrics of text correction: SIGHAN's sentence level, a stricter sentence level (flagged), and single characters.

A sentence is detected if exactly the wrong positions are changed, and corrected if all changes are right as well.
In SIGHAN's metrics (Tseng et al. 2015), a false positive is a correct sentence that was changed. Later papers also
count every changed sentence whose result is wrong, which is stricter: ``flagged``. At the level of characters (of
words, in alphabetic text), every change counts.

Also chooses the confidence threshold of corrections, on rows whose corrections are known.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property

import numpy as np

from cloze.errors import DataError
from cloze.tasks.intervals import Floats, divide
from cloze.text.boundaries import is_ideograph

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
