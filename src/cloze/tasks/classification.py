"""Rows -> examples with targets, for one label a text, several, or a number; of single texts and of pairs.

The label of a class becomes its index, several become a yes or no for each label, the label of a regression a finite
number. Training reads the labels off its own rows, or takes those that the task fixes; every other split is held to
them.

Tasks that ask for a label, several, or a number of each text: published files as they are, and anybody's own.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from cloze.errors import DataError
from cloze.kinds import LongTexts, TaskKind
from cloze.lines import RowError
from cloze.tasks.examples import Item, LabelSet, Read, sorted_labels
from cloze.tasks.published import PublishedTask, read_split
from cloze.tasks.rows import SEVERAL, Row, RowFile, read_rows
from cloze.tasks.source import OnBadRow, Source
from cloze.text import Tokenizer, encode_long

Target = TypeVar("Target", int, float, tuple[float, ...])
Targets = Sequence[Any]  # of one kind: indices, numbers, or a yes or no for each label


@dataclass(frozen=True)
class LabelledTexts:
    """What a model is trained, scored or asked on; ``targets`` is None where the rows bear no labels."""

    texts: list[str]
    pairs: list[str] | None
    targets: Targets | None
    places: list[str]
    skipped: int = 0  # rows that could not be used

    def __len__(self) -> int:
        return len(self.texts)

    def select(self, indices: Sequence[int]) -> "LabelledTexts":
        """Return the examples at these indices, in their order."""
        return LabelledTexts(
            texts=[self.texts[index] for index in indices],
            pairs=None if self.pairs is None else [self.pairs[index] for index in indices],
            targets=None if self.targets is None else [self.targets[index] for index in indices],
            places=[self.places[index] for index in indices],
            skipped=self.skipped,
        )

    def documents(self) -> list[list[str]]:
        """The texts of each row."""
        if self.pairs is None:
            return [[text] for text in self.texts]
        return [list(both) for both in zip(self.texts, self.pairs, strict=True)]


def find_labels(rows: Iterable[Row]) -> LabelSet:
    """Collect the labels of training rows."""
    return sorted_labels(_label_of(row) for row in rows)


def find_several_labels(rows: Iterable[Row]) -> LabelSet:
    """Collect the labels of training rows that bear any number of them."""
    return sorted_labels((label for row in rows for label in _labels_of(row)), fewest=1)


def classification_examples(rows: Iterable[Row], labels: LabelSet, on_bad_row: OnBadRow = "stop") -> LabelledTexts:
    """Turn rows into texts and class indices."""
    return _examples(rows, lambda row: labels.index(_label_of(row), row.place), on_bad_row)


def several_labels_examples(rows: Iterable[Row], labels: LabelSet, on_bad_row: OnBadRow = "stop") -> LabelledTexts:
    """Turn rows into texts and, for each label, 1.0 or 0.0."""

    def flags(row: Row) -> tuple[float, ...]:
        chosen = {labels.index(label, row.place) for label in _labels_of(row)}
        return tuple(float(index in chosen) for index in range(len(labels)))

    return _examples(rows, flags, on_bad_row)


def regression_examples(rows: Iterable[Row], on_bad_row: OnBadRow = "stop") -> LabelledTexts:
    """Turn rows into texts and numbers."""
    return _examples(rows, parse_number, on_bad_row)


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


def sequence_items(examples: LabelledTexts, tokenizer: Tokenizer, long: LongTexts) -> list[Item]:
    """What a model trains on: a text each, or each window of a long one, with the text's target."""
    assert examples.targets is not None, "training rows have labels"
    encoded = encode_long(tokenizer, examples.texts, examples.pairs, long)
    return [
        Item((window,), target) for windows, target in zip(encoded, examples.targets, strict=True) for window in windows
    ]


def _examples(rows: Iterable[Row], target_of: Callable[[Row], Target], on_bad_row: OnBadRow) -> LabelledTexts:
    """Keep the rows whose target is good, with the targets and the number of the others."""
    kept: list[Row] = []
    targets: list[Target] = []
    skipped, problem = 0, ""
    for row in rows:
        try:
            target = target_of(row)
        except RowError as error:
            if on_bad_row == "stop":
                raise
            skipped, problem = skipped + 1, problem or str(error)
            continue
        kept.append(row)
        targets.append(target)
    if not kept:
        raise DataError(f"all of the {skipped} rows are bad; the first: {problem}")
    pairs = [row.pair for row in kept if row.pair is not None]
    return LabelledTexts([row.text for row in kept], pairs or None, targets, [row.place for row in kept], skipped)


def _label_of(row: Row) -> str:
    if row.label is None:
        raise DataError(f"{row.place}: this row was read without a label; name the label column")
    return row.label


def _labels_of(row: Row) -> list[str]:
    return [label for part in _label_of(row).split(SEVERAL) if (label := part.strip())]


def read_published_texts(task: PublishedTask, source: Source, split: str, labels: LabelSet | None) -> Read:
    """A split of a published task; its labels are fixed, unless a model brings its own."""
    if split in task.files and not task.is_labelled(split):
        raise DataError(f"{task.name}: the labels of its test rows are not published; only dev rows can be scored")
    rows = read_split(task, source.data, split, source.on_bad_row, source.dev if split == "dev" else None)
    kind: TaskKind = "regress" if task.labels is None else "classify"
    return _read(kind, rows, source, labels or task.labels)


def read_own_texts(kind: TaskKind, source: Source, split: str, labels: LabelSet | None) -> Read:
    """The user's own table, by column name."""
    rows = read_rows(
        source.dev if split == "dev" and source.dev is not None else source.data,
        text=source.text,
        pair=source.pair,
        label=source.label,
        several=kind == "multilabel",
        on_bad_row=source.on_bad_row or "stop",
    )
    return _read(kind, rows, source, labels)


def _read(kind: TaskKind, rows: RowFile, source: Source, labels: LabelSet | None) -> Read:
    on_bad_row = source.on_bad_row or "stop"
    if kind == "regress":
        return Read(_counted(rows, regression_examples(rows, on_bad_row)))
    find, turn = _LABELLED[kind]
    labels = labels or find(rows)
    return Read(_counted(rows, turn(rows, labels, on_bad_row)), labels)


def _counted(rows: RowFile, examples: LabelledTexts) -> LabelledTexts:
    """With the rows that could not be read among those that were skipped."""
    return replace(examples, skipped=examples.skipped + rows.skipped)


_LABELLED: dict[TaskKind, tuple[Callable[..., LabelSet], Callable[..., LabelledTexts]]] = {
    "classify": (find_labels, classification_examples),
    "multilabel": (find_several_labels, several_labels_examples),
}
