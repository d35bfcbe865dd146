"""What a model is trained on at once: a row of a task as the sequences that a model reads, and what it should say."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Generic, Protocol, Self, TypeVar

from cloze.text import Encoding

# A label's index or a number; 0.0 or 1.0 for each label; a label for each token; the first and last token of an answer.
Target = int | float | Sequence[int] | Sequence[float]


@dataclass(frozen=True)
class Item:
    """One sequence and its target; of a choice, the sequence of each option."""

    encodings: tuple[Encoding, ...]
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
