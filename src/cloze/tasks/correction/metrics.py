"""How well texts are corrected: SIGHAN's sentence level, the same over flagged sentences, and single characters.

A sentence is detected if the places that were changed are those that are wrong, all of them and no others, and
corrected if what stands there now is right as well. In SIGHAN's figures (Tseng et al. 2015) a false positive is a
sentence without a mistake that was changed; later papers count every changed sentence that is not as it should be,
which is stricter: ``flagged``. At the level of characters (of words, where letters make them) each change counts.

From when on a correction is sure enough: chosen on rows whose corrections are known.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property

import numpy as np

from cloze.errors import DataError
from cloze.tasks.intervals import Floats, divide
from cloze.text.characters import is_ideograph

_RUN = re.compile(r"\w+|\W")

Edits = frozenset[tuple[int, str, str]]  # where, what stood there, what stands there now


@dataclass(frozen=True)
class Tally:
    """Counts of what was right, of what was said and of what was to be said: of each text, or of each resample."""

    right: Floats
    said: Floats
    wanted: Floats

    def resampled(self, counts: Floats) -> "Tally":
        """Sum the texts of each resample."""
        return Tally(counts @ self.right, counts @ self.said, counts @ self.wanted)

    def figures(self, name: str) -> dict[str, Floats]:
        """Precision, recall and their harmonic mean."""
        precision, recall = divide(self.right, self.said), divide(self.right, self.wanted)
        f1 = divide(2 * precision * recall, precision + recall)
        return {f"{name}_f1": f1, f"{name}_precision": precision, f"{name}_recall": recall}


def find_edits(source: str, target: str) -> Edits:
    """What was changed in a text, by characters of Chinese and by words of others."""
    before, after = _units(source), _units(target)
    places = [0]
    for unit in before:
        places.append(places[-1] + len(unit))
    edits = set()
    # Mistakes leave the number of units as it is, nearly always; then units correspond one to one.
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


def score_corrections(sources: Sequence[str], targets: Sequence[str], told: Sequence[str]) -> dict[str, float]:
    """All figures; the first is the one that counts."""
    if not sources:
        raise DataError("there is nothing to score: 0 rows; expected at least one with its correction")
    rows = CorrectedRows(sources, targets, told)
    return {name: float(values[0]) for name, values in rows.scores(np.ones((1, len(rows)))).items()}


@dataclass(frozen=True)
class CorrectedRows:
    """The figures of ``score_corrections`` over resampled texts."""

    sources: Sequence[str]
    targets: Sequence[str]
    told: Sequence[str]

    def __len__(self) -> int:
        return len(self.sources)

    @cached_property
    def edits(self) -> list[tuple[Edits, Edits]]:
        """The edits that were made in each text, and those that were wanted."""
        rows = zip(self.sources, self.targets, self.told, strict=True)
        return [(find_edits(source, told), find_edits(source, target)) for source, target, told in rows]

    @cached_property
    def tallies(self) -> dict[str, Tally]:
        """What each text adds to the counts behind each figure."""
        false_alarms = np.array([bool(made) and not wanted for made, wanted in self.edits], float)
        tallies: dict[str, Tally] = {}
        for level, parts in (("correction", 3), ("detection", 1)):
            pairs = [(_cut(made, parts), _cut(wanted, parts)) for made, wanted in self.edits]
            right = np.array([made == wanted and bool(wanted) for made, wanted in pairs], float)
            flagged, wrong = np.array([(bool(made), bool(wanted)) for made, wanted in pairs], float).T
            both, said, asked = np.array(
                [(len(made & wanted), len(made), len(wanted)) for made, wanted in pairs], float
            ).T
            tallies |= {level: Tally(right, right + false_alarms, wrong)}
            tallies |= {f"flagged_{level}": Tally(right, flagged, wrong)}
            tallies |= {f"character_{level}": Tally(both, said, asked)}
        return tallies

    def scores(self, counts: Floats) -> dict[str, Floats]:
        """Return the figures of each resample."""
        figures: dict[str, Floats] = {}
        for name, tally in self.tallies.items():
            figures |= tally.resampled(counts).figures(name)
        clean = np.array([not wanted for _, wanted in self.edits], float)
        alarms = np.array([bool(made) for made, _ in self.edits], float) * clean
        return figures | {"false_alarms": divide(counts @ alarms, counts @ clean)}

    def by_label(self) -> dict[str, dict[str, float]]:
        """Return nothing: corrections have no labels."""
        return {}


def _cut(edits: Edits, parts: int) -> frozenset[tuple[object, ...]]:
    """The edits, or their places alone."""
    return frozenset(edit[:parts] for edit in edits)


# By text: where, what stood there, what should, how sure.
Changes = Sequence[Sequence[tuple[int, str, str, float]]]

MOST_FALSE_ALARMS = 0.05
# Near 1 every digit counts.
_GRID = [float(1 - 10**-power) for power in np.arange(0.25, 7, 0.25)]


def applied(texts: Sequence[str], changes: Changes, threshold: float) -> list[str]:
    """The texts with the changes that are sure enough."""
    made = []
    for text, own in zip(texts, changes, strict=True):
        for start, wrong, right, sure in sorted(own, reverse=True):
            if sure >= threshold:
                text = text[:start] + right + text[start + len(wrong) :]
        made.append(text)
    return made


def choose_threshold(sources: Sequence[str], targets: Sequence[str], changes: Changes) -> float:
    """The one with the best correction, of those with few false alarms; the highest if there is none."""
    scored = [(score_corrections(sources, targets, applied(sources, changes, at)), at) for at in _GRID]
    quiet = [(found["correction_f1"], at) for found, at in scored if found["false_alarms"] < MOST_FALSE_ALARMS]
    return max(quiet)[1] if quiet else _GRID[-1]
