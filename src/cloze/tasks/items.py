"""What a model is trained on at once: a row of a task as the sequences that a model reads, and what it should say."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

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
