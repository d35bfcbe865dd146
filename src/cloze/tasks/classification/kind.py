"""The kinds that label or rate texts: ``classify`` (one label), ``multilabel`` (any number), ``regress`` (a number).

Rows -> examples with targets -> training items, for single texts or pairs. A class label becomes its index, several
labels become 0 or 1 for each label, and a regression label becomes a finite number. The labels are collected from the
training rows, or fixed by the task; every other split must use the same ones.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from cloze.errors import DataError
from cloze.files import RowError
from cloze.options import IGNORED, LongTexts
from cloze.progress import Progress
from cloze.tasks.classification.published import PublishedTask, find_split, read_split
from cloze.tasks.examples import Item, LabelSet, Read, sorted_labels
from cloze.tasks.in_memory import TableSource
from cloze.tasks.kind import PlacedTexts, ReadingOptions, TargetType, TaskKind, deferred
from cloze.tasks.rows import SEVERAL, OnBadRow, Row, RowFile, Source, read_rows
from cloze.text import Tokenizer, encode_long

Target = TypeVar("Target", int, float, tuple[float, ...])
Targets = Sequence[Any]  # all of one type: indices, numbers, or tuples with 0.0 or 1.0 for each label


@dataclass(frozen=True)
class LabelledTexts:
    """Texts or pairs of texts with targets; ``targets`` is None for rows without labels."""

    texts: list[str]
    pairs: list[str] | None
    targets: Targets | None
    places: list[str]
    skipped: int = 0  # rows that could not be used
    unlabelled: int = 0  # rows of a published file that are marked as having no label

    def __len__(self) -> int:
        return len(self.texts)

    def select(self, indices: Sequence[int]) -> "LabelledTexts":
        """Return the examples at these indices, in that order."""
        return LabelledTexts(
            texts=[self.texts[index] for index in indices],
            pairs=None if self.pairs is None else [self.pairs[index] for index in indices],
            targets=None if self.targets is None else [self.targets[index] for index in indices],
            places=[self.places[index] for index in indices],
            skipped=self.skipped,
            unlabelled=self.unlabelled,
        )

    def strata(self) -> Targets | None:
        """Return the targets, so that every part of a split has the same proportion of each label."""
        return self.targets

    def documents(self) -> list[list[str]]:
        """Return the texts of each row."""
        if self.pairs is None:
            return [[text] for text in self.texts]
        return [list(both) for both in zip(self.texts, self.pairs, strict=True)]


def find_labels(rows: Iterable[Row]) -> LabelSet:
    """Collect the labels of training rows."""
    return sorted_labels(_label_of(row) for row in rows)


def find_several_labels(rows: Iterable[Row]) -> LabelSet:
    """Collect the labels of multi-label training rows."""
    return sorted_labels((label for row in rows for label in _labels_of(row)), fewest=1)


def classification_examples(rows: Iterable[Row], labels: LabelSet, on_bad_row: OnBadRow = "stop") -> LabelledTexts:
    """Convert rows to texts and class indices."""
    return _examples(rows, lambda row: labels.index(_label_of(row), row.place), on_bad_row)


def several_labels_examples(rows: Iterable[Row], labels: LabelSet, on_bad_row: OnBadRow = "stop") -> LabelledTexts:
    """Convert rows to texts and tuples with 1.0 or 0.0 for each label."""

    def flags(row: Row) -> tuple[float, ...]:
        chosen = {labels.index(label, row.place) for label in _labels_of(row)}
        return tuple(float(index in chosen) for index in range(len(labels)))

    return _examples(rows, flags, on_bad_row)


def regression_examples(rows: Iterable[Row], on_bad_row: OnBadRow = "stop") -> LabelledTexts:
    """Convert rows to texts and numbers."""
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
    """Return one item per text, or per window of a long one, with the text's target."""
    assert examples.targets is not None, "training rows have labels"
    encoded = encode_long(tokenizer, examples.texts, examples.pairs, long)
    return [
        Item((window,), target) for windows, target in zip(encoded, examples.targets, strict=True) for window in windows
    ]


def _examples(rows: Iterable[Row], target_of: Callable[[Row], Target], on_bad_row: OnBadRow) -> LabelledTexts:
    """Convert the rows with a valid target, and count the others."""
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
        raise DataError(f"all {skipped} rows are bad; the first: {problem}")
    pairs = [row.pair for row in kept if row.pair is not None]
    return LabelledTexts([row.text for row in kept], pairs or None, targets, [row.place for row in kept], skipped)


def _label_of(row: Row) -> str:
    if row.label is None:
        raise DataError(f"{row.place}: this row was read without a label; name the label column")
    return row.label


def _labels_of(row: Row) -> list[str]:
    return [label for part in _label_of(row).split(SEVERAL) if (label := part.strip())]


def read_published_texts(task: PublishedTask, source: Source, split: str, labels: LabelSet | None) -> Read:
    """Read a split of a published task; a model's own labels replace the task's fixed ones."""
    if split in task.files and not task.is_labelled(split):
        raise DataError(f"{task.name}: the labels of its test rows are not published; only dev rows can be scored")
    rows = read_split(task, source.path, split, source.on_bad_row, source.dev_path if split == "dev" else None)
    return _read("number" if task.labels is None else "index", rows, source, labels or task.labels)


def read_own_texts(targets: TargetType, source: Source, split: str, labels: LabelSet | None) -> Read:
    """Read the user's own table with named columns."""
    path = source.rows_of(split)
    rows = read_rows(
        path,
        text=source.text,
        pair=source.pair,
        label=source.label,
        several=targets == "flags",
        on_bad_row=source.on_bad_row or "stop",
        header=source.columns,
    )
    return _read(targets, rows, source, labels)


def _read(targets: TargetType, rows: RowFile, source: Source, labels: LabelSet | None) -> Read:
    on_bad_row = source.on_bad_row or "stop"
    if targets == "number":
        return Read(_count_skipped(rows, regression_examples(rows, on_bad_row)))
    find, convert = _LABELLED[targets]
    labels = labels or find(rows)
    return Read(_count_skipped(rows, convert(rows, labels, on_bad_row)), labels)


def _count_skipped(rows: RowFile, examples: LabelledTexts) -> LabelledTexts:
    """Add the number of unreadable rows to the number of rows with bad targets."""
    return replace(examples, skipped=examples.skipped + rows.skipped, unlabelled=rows.unlabelled)


_LABELLED: dict[TargetType, tuple[Callable[..., LabelSet], Callable[..., LabelledTexts]]] = {
    "index": (find_labels, classification_examples),
    "flags": (find_several_labels, several_labels_examples),
}


def read_unlabelled_texts(source: Source, path: TableSource) -> list[PlacedTexts]:
    """Return location and texts of each row of a table like the user's own, ignoring labels."""
    rows = read_rows(
        path,
        text=source.text,
        pair=source.pair,
        on_bad_row=source.on_bad_row or "stop",
        header=source.columns,
    )
    return [(row.place, _texts(row)) for row in rows]


def read_other_splits(task: PublishedTask, source: Source) -> list[PlacedTexts]:
    """Return the rows of all splits of a published task other than train and dev whose files exist."""
    # Compared by file, because MNLI has two names for some splits.
    splits = {find_split(task, source.path, split, missing_ok=True): split for split in task.files}
    known = {find_split(task, source.path, split, missing_ok=True) for split in ("train", "dev")}
    return [
        (row.place, _texts(row))
        for path, split in splits.items()
        if path is not None and path not in known
        for row in read_split(task, source.path, split, source.on_bad_row)
    ]


def _texts(row: Row) -> list[str]:
    return [text for text in (row.text, row.pair) if text is not None]


def text_items(
    examples: LabelledTexts,
    tokenizer: Tokenizer,
    options: ReadingOptions,
    progress: Progress,  # noqa: ARG001
) -> list[Item]:
    """Return training items, with the arguments of ``TaskKind.items``."""
    return sequence_items(examples, tokenizer, options.long_texts)


# These functions are imported when they are called, because decoding imports torch and the command line loads the kinds
# for --help.
_decoded = partial(deferred, "cloze.tasks.classification.decoding")
_baseline = partial(deferred, "cloze.tasks.baselines")

CLASSIFY = TaskKind(
    name="classify",
    summary="Give each text, or pair of texts, one label.",
    operation="classify",
    head="sequence",
    targets="index",
    metrics=("accuracy", "macro_f1"),
    read=partial(read_own_texts, "index"),
    items=text_items,
    evaluate=_decoded("evaluate_labels"),
    baseline=partial(_baseline("fit_tfidf"), "index"),
    floor=partial(_baseline("fit_constant"), "index"),
    respond=_decoded("respond_labels"),
    read_texts=read_unlabelled_texts,
    named_outputs=True,
    problem_type="single_label_classification",
    missing_target=lambda _: IGNORED,
    settings=frozenset({"long_texts", "augment", "class_weights", "few"}),
    cuts_texts=True,
    calibrate=_decoded("calibrate_texts"),
)
MULTILABEL = replace(
    CLASSIFY,
    name="multilabel",
    summary="Give each text, or pair of texts, any number of labels.",
    targets="flags",
    metrics=("micro_f1", "macro_f1"),
    read=partial(read_own_texts, "flags"),
    evaluate=_decoded("evaluate_label_sets"),
    baseline=partial(_baseline("fit_tfidf"), "flags"),
    floor=partial(_baseline("fit_constant"), "flags"),
    respond=_decoded("respond_label_sets"),
    problem_type="multi_label_classification",
    missing_target=lambda labels: (math.nan,) * labels,
)
REGRESS = replace(
    CLASSIFY,
    name="regress",
    summary="Give each text, or pair of texts, a number.",
    targets="number",
    metrics=("pearson", "spearman", "mse"),
    read=partial(read_own_texts, "number"),
    evaluate=_decoded("evaluate_numbers"),
    baseline=partial(_baseline("fit_tfidf"), "number"),
    floor=partial(_baseline("fit_constant"), "number"),
    respond=_decoded("respond_numbers"),
    named_outputs=False,
    problem_type="regression",
    missing_target=lambda _: math.nan,
    settings=frozenset({"long_texts", "augment", "few"}),
    answers="a number",
    calibrate=None,
)
