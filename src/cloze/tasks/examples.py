"""Examples of a task: rows, their targets, the labels they use, and splits into training and dev rows.

Splits: rows are assigned in random order, because the order of a file may be regular: if labels alternate, every tenth
row has the same label. The seed is fixed, so that the same rows are always split in the same way. Rows with labels are
stratified: both parts have about the same proportion of each label. Within a part, rows keep the order of the file.
"""

import hashlib
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, Self, TypeVar

from cloze.errors import DataError, did_you_mean, format_option
from cloze.files import RowError

if TYPE_CHECKING:
    from cloze.text import Encoding

# The index of a label or a number; 0.0 or 1.0 for each label; a label for each token; the first and last token of a
# span.
Target = int | float | Sequence[int] | Sequence[float]


@dataclass(frozen=True)
class Item:
    """One training item: a sequence and its target; for a choice, one sequence per option."""

    encodings: "tuple[Encoding, ...]"
    target: Target


class Examples(Protocol):
    """The rows of a task of any kind."""

    @property
    def places(self) -> Sequence[str]:
        """The location of each row: its file and line."""

    @property
    def skipped(self) -> int:
        """The number of rows that could not be used."""

    def __len__(self) -> int: ...

    def select(self, indices: Sequence[int]) -> Self:
        """Return the rows at these indices, in that order."""

    def documents(self) -> Sequence[Sequence[str]]:
        """Return the texts of each row, without labels."""

    def strata(self) -> Sequence[Any] | None:
        """Return the key by which each row is stratified in splits; None for no stratification."""


AnyExamples = TypeVar("AnyExamples", bound=Examples)


def fingerprint(*all_examples: object) -> str:
    """Return a hash of the rows in some dataclasses: their texts and targets, but not their locations."""
    digest = hashlib.blake2b(digest_size=16)
    for examples in all_examples:
        assert is_dataclass(examples)
        for field in fields(examples):
            value = getattr(examples, field.name)
            for row in value if isinstance(value, Sequence) and field.name != "places" else ():
                digest.update(repr(_without_place(row)).encode("utf-8", errors="replace"))
    return digest.hexdigest()


def _without_place(row: object) -> object:
    return row if not is_dataclass(row) else [getattr(row, one.name) for one in fields(row) if one.name != "place"]


class Example(Protocol):
    """One example of a task, for kinds with a class per example."""

    @property
    def place(self) -> str:
        """The example's location: file and line."""

    @property
    def texts(self) -> list[str]:
        """The example's texts, without the label."""


AnyExample = TypeVar("AnyExample", bound=Example)


@dataclass(frozen=True)
class ExampleList(Generic[AnyExample]):
    """The ``Examples`` of kinds with a class per example."""

    rows: list[AnyExample]
    skipped: int = 0  # number of rows that could not be used

    @property
    def places(self) -> list[str]:
        """The location of each row: its file and line."""
        return [row.place for row in self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, indices: Sequence[int]) -> Self:
        """Return the rows at these indices, in that order."""
        return replace(self, rows=[self.rows[index] for index in indices])

    def documents(self) -> list[list[str]]:
        """Return the texts of each row."""
        return [row.texts for row in self.rows]

    def strata(self) -> None:
        """Return None: rows are split without stratification."""


@dataclass(frozen=True)
class LabelSet:
    """The labels of a task in the order of a model's outputs."""

    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def indices(self) -> dict[str, int]:
        """Label -> index."""
        return {name: index for index, name in enumerate(self.names)}

    def index(self, label: str, place: str) -> int:
        """Return the index of a label; ``place`` is its row, for the error message."""
        if label not in self.indices:
            known = did_you_mean(label, self.names)
            raise RowError(f"{place}: label {label!r} is not among the {len(self)} labels of training{known}")
        return self.indices[label]


def sorted_labels(labels: Iterable[str], fewest: int = 2) -> LabelSet:
    """Return the distinct labels in ascending order: by value if all are integers, else alphabetically."""
    distinct = set(labels)
    if not distinct:
        raise DataError("no training row has a label; at least one is needed: check the label column")
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
    """The rows of a split and the labels they use; None for tasks without labels."""

    examples: Examples
    labels: LabelSet | None = None


# Without a dev file, this fraction of the training rows is used as dev rows.
DEV_SHARE = 0.1
_SEED = 0


def split_dev(examples: AnyExamples) -> tuple[AnyExamples, AnyExamples]:
    """Return the training rows and a held-out tenth."""
    every = round(1 / DEV_SHARE)
    if len(examples) < 2 * every:
        raise DataError(
            f"{len(examples)} rows are too few to hold some out: at least {2 * every} are needed; give "
            f"{format_option('dev')}"
        )
    return _partition(examples, _deal(examples)[every - 1 :: every])


def split_fold(examples: AnyExamples, fold: int, folds: int) -> tuple[AnyExamples, AnyExamples]:
    """Return the training rows and the held-out rows of a fold, counted from 0; each row is in one fold."""
    return _partition(examples, fold_indices(examples, fold, folds))


def fold_indices(examples: Examples, fold: int, folds: int) -> list[int]:
    """Return the indices of the rows of a fold, counted from 0, in no particular order."""
    return _deal(examples)[fold::folds]


def _partition(examples: AnyExamples, chosen: list[int]) -> tuple[AnyExamples, AnyExamples]:
    scored = set(chosen)
    others = [index for index in range(len(examples)) if index not in scored]
    return examples.select(others), examples.select(sorted(scored))


def _deal(examples: Examples) -> list[int]:
    """Return row indices in a fixed random order, grouped by stratum: every n-th one is a representative sample."""
    draw = random.Random(_SEED)
    # Python guarantees that these numbers stay the same across versions, unlike the result of a shuffle.
    keys = [draw.random() for _ in range(len(examples))]
    order = sorted(range(len(examples)), key=keys.__getitem__)
    strata = examples.strata()
    if strata is not None:
        order.sort(key=strata.__getitem__)
    return order
