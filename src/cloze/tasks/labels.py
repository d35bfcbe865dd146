"""The labels of a task, in the order of a model's outputs: found in the training rows, or fixed by the task."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from cloze.errors import DataError, did_you_mean
from cloze.lines import RowError


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

    def index(self, label: str, place: str) -> int:
        """Return the index of a label that stands at a place of a file."""
        if label not in self.indices:
            known = did_you_mean(label, self.names)
            raise RowError(f"{place}: label {label!r} is not among the {len(self)} labels of training{known}")
        return self.indices[label]


def sorted_labels(found: Iterable[str], fewest: int = 2) -> LabelSet:
    """Labels in order: by value if all are integers."""
    distinct = set(found)
    if not distinct:
        raise DataError("no training row has a label; expected at least one row with one: check the label column")
    if len(distinct) < fewest:
        raise DataError(
            f"all training rows have the same label ({', '.join(distinct)}); expected at least {fewest} labels: "
            "check the label column"
        )
    return LabelSet(tuple(sorted(distinct, key=int) if _all_integers(distinct) else sorted(distinct)))


def _all_integers(labels: set[str]) -> bool:
    try:
        return len({int(label) for label in labels}) == len(labels)  # "1" and "01" are two labels
    except ValueError:
        return False
