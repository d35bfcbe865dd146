"""What a model is trained on at once: a row of a task as the sequences that a model reads, and what it should say.

The labels of a task, in the order of a model's outputs: found in the training rows, or fixed by the task.

What is known of a task by its name: its kind, how it is scored, and how its rows are read.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, Self, TypeVar

from cloze.errors import DataError, did_you_mean
from cloze.kinds import TaskKind
from cloze.lines import RowError
from cloze.tasks.source import Source

if TYPE_CHECKING:
    from cloze.text import Encoding

# A label's index or a number; 0.0 or 1.0 for each label; a label for each token; the first and last token of an answer.
Target = int | float | Sequence[int] | Sequence[float]


@dataclass(frozen=True)
class Item:
    """One sequence and its target; of a choice, the sequence of each option."""

    encodings: "tuple[Encoding, ...]"
    target: Target


class Examples(Protocol):
    """The rows of a task, whatever its kind."""

    @property
    def places(self) -> Sequence[str]:
        """Where each row stands in its file."""

    @property
    def skipped(self) -> int:
        """Rows that could not be used."""

    def __len__(self) -> int: ...

    def select(self, indices: Sequence[int]) -> Self:
        """The rows at these indices, in their order."""

    def documents(self) -> Sequence[Sequence[str]]:
        """The texts of each row, for those who want to read them without their labels."""


AnyExamples = TypeVar("AnyExamples", bound=Examples)


def fingerprint(*all_examples: object) -> str:
    """What tells the rows of dataclasses from others: all that they say and are to be answered, wherever they stand."""
    found = hashlib.blake2b(digest_size=16)
    for examples in all_examples:
        assert is_dataclass(examples)
        for field in fields(examples):
            value = getattr(examples, field.name)
            for one in value if isinstance(value, Sequence) and field.name != "places" else ():
                found.update(repr(_without_place(one)).encode("utf-8", errors="replace"))
    return found.hexdigest()


def _without_place(row: object) -> object:
    return row if not is_dataclass(row) else [getattr(row, one.name) for one in fields(row) if one.name != "place"]


class Row(Protocol):
    """One row of a task."""

    @property
    def place(self) -> str:
        """Where it stands in its file."""

    @property
    def texts(self) -> list[str]:
        """What it asks about, without its label."""


AnyRow = TypeVar("AnyRow", bound=Row)


@dataclass(frozen=True)
class Rows(Generic[AnyRow]):
    """The examples of a kind whose rows are objects of their own."""

    rows: list[AnyRow]
    skipped: int = 0  # rows that could not be used

    @property
    def places(self) -> list[str]:
        """Where each row is from."""
        return [row.place for row in self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, indices: Sequence[int]) -> Self:
        """The rows at these indices, in their order."""
        return replace(self, rows=[self.rows[index] for index in indices])

    def documents(self) -> list[list[str]]:
        """The texts of each row."""
        return [row.texts for row in self.rows]


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


class Read(NamedTuple):
    """The rows of a split, and the labels that they are held to; None where a task has none."""

    examples: Examples
    labels: LabelSet | None = None


# Source, split ("train", "dev", ...), and the labels to hold the rows to: None for those of training, which are found.
Reader = Callable[[Source, str, LabelSet | None], Read]


@dataclass(frozen=True)
class TaskSpec:
    """One task; ``published`` ones have files of known names, the others are anybody's own."""

    kind: TaskKind
    metrics: tuple[str, ...]  # the first is the one that counts
    read: Reader
    published: bool = True
    columns: tuple[str, ...] = ("text", "pair", "label")  # of anybody's own tables
