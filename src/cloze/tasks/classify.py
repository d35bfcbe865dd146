"""Rows -> examples with targets, for classification and regression of single texts and of pairs.

The label of a class becomes its index (``LabelSet``), the label of a regression a finite number. Training
reads the labels off its own rows, or takes those that the task fixes; every other split is held to them.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from cloze.errors import DataError, did_you_mean
from cloze.lines import RowError
from cloze.tasks.rows import Row
from cloze.tasks.source import OnBadRow

Target = TypeVar("Target", int, float)


@dataclass(frozen=True)
class LabelSet:
    """The classes of a task in the order of a model's outputs."""

    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def indices(self) -> dict[str, int]:
        """Label -> index."""
        return {name: index for index, name in enumerate(self.names)}

    def index(self, row: Row) -> int:
        """Return the index of a row's label."""
        label = _label_of(row)
        if label not in self.indices:
            known = did_you_mean(label, self.names)
            raise RowError(f"{row.place}: label {label!r} is not among the {len(self)} labels of training{known}")
        return self.indices[label]


@dataclass(frozen=True)
class Examples:
    """What a model is trained, scored or asked on; ``targets`` is None where the rows bear no labels."""

    texts: list[str]
    pairs: list[str] | None
    targets: list[int] | list[float] | None
    places: list[str]
    skipped: int = 0  # rows whose label could not be used; those that could not be read are their file's

    def __len__(self) -> int:
        return len(self.texts)

    def select(self, indices: Sequence[int]) -> "Examples":
        """Return the examples at these indices, in their order."""
        return Examples(
            texts=[self.texts[index] for index in indices],
            pairs=None if self.pairs is None else [self.pairs[index] for index in indices],
            targets=None if self.targets is None else [self.targets[index] for index in indices],
            places=[self.places[index] for index in indices],
            skipped=self.skipped,
        )


def find_labels(rows: Iterable[Row]) -> LabelSet:
    """Collect the labels of training rows: sorted, by value if all are integers."""
    found = {_label_of(row) for row in rows}
    if len(found) < 2:
        raise DataError(
            f"all training rows have the same label ({', '.join(found)}); expected at least 2 labels: "
            "check the label column"
        )
    return LabelSet(tuple(sorted(found, key=int) if _all_integers(found) else sorted(found)))


def classification_examples(rows: Iterable[Row], labels: LabelSet, on_bad_row: OnBadRow = "stop") -> Examples:
    """Turn rows into texts and class indices."""
    kept, targets, skipped = _with_targets(rows, labels.index, on_bad_row)
    return _examples(kept, targets, skipped)


def regression_examples(rows: Iterable[Row], on_bad_row: OnBadRow = "stop") -> Examples:
    """Turn rows into texts and numbers."""
    kept, targets, skipped = _with_targets(rows, parse_number, on_bad_row)
    return _examples(kept, targets, skipped)


def parse_number(row: Row) -> float:
    """Return a row's label as a finite number."""
    label = _label_of(row)
    try:
        number = float(label)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise RowError(f"{row.place}: label {label!r} is not a finite number; expected one such as 3.5")
    return number


def _with_targets(
    rows: Iterable[Row], target_of: Callable[[Row], Target], on_bad_row: OnBadRow
) -> tuple[list[Row], list[Target], int]:
    """Keep the rows whose target is good, with the targets and the number of the others."""
    kept: list[Row] = []
    targets: list[Target] = []
    skipped = 0
    for row in rows:
        try:
            target = target_of(row)
        except RowError:
            if on_bad_row == "stop":
                raise
            skipped += 1
            continue
        kept.append(row)
        targets.append(target)
    return kept, targets, skipped


def _examples(rows: Sequence[Row], targets: list[int] | list[float] | None, skipped: int) -> Examples:
    pairs = [row.pair for row in rows if row.pair is not None]
    return Examples(
        texts=[row.text for row in rows],
        pairs=pairs or None,
        targets=targets,
        places=[row.place for row in rows],
        skipped=skipped,
    )


def _label_of(row: Row) -> str:
    if row.label is None:
        raise DataError(f"{row.place}: this row was read without a label; name the label column")
    return row.label


def _all_integers(labels: set[str]) -> bool:
    try:
        return len({int(label) for label in labels}) == len(labels)  # "1" and "01" are two labels
    except ValueError:
        return False
