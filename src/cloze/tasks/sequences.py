"""Tasks that ask for a label, several, or a number of each text: published files as they are, and anybody's own."""

from collections.abc import Callable
from dataclasses import replace

from cloze.errors import DataError
from cloze.kinds import TaskKind
from cloze.tasks.classify import (
    LabelledTexts,
    classification_examples,
    find_labels,
    find_several_labels,
    regression_examples,
    several_labels_examples,
)
from cloze.tasks.labels import LabelSet
from cloze.tasks.published import PublishedTask, read_split
from cloze.tasks.rows import RowFile, read_rows
from cloze.tasks.source import Source
from cloze.tasks.spec import Read


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
