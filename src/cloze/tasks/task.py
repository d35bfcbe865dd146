"""A task by name: which rows, which labels, which metrics, for GLUE's folders and for anybody's own files."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cloze.errors import ConfigError, DataError, did_you_mean
from cloze.tasks.classify import Examples, LabelSet, classification_examples, find_labels, regression_examples
from cloze.tasks.glue import ALIASES, GLUE, find_glue_task, read_glue
from cloze.tasks.rows import RowFile, read_rows
from cloze.tasks.source import Source

Kind = Literal["classify", "regress"]
GENERIC: dict[str, tuple[Kind, tuple[str, ...]]] = {
    "classify": ("classify", ("accuracy", "macro_f1")),
    "regress": ("regress", ("pearson", "spearman", "mse")),
}
TASK_NAMES = (*GENERIC, *GLUE)
# Without a dev file, this share of the training rows stands in for one.
DEV_SHARE = 0.1


@dataclass(frozen=True)
class TaskData:
    """Rows with targets; ``labels`` is None for regression."""

    kind: Kind
    metrics: tuple[str, ...]  # the first is the one that counts
    labels: LabelSet | None
    train: Examples
    dev: Examples
    notes: tuple[str, ...] = ()


def task_metrics(name: str) -> tuple[Kind, tuple[str, ...]]:
    """A task's kind, and its metrics with the main one first."""
    if name in GENERIC:
        return GENERIC[name]
    if name.lower() not in GLUE and name.lower() not in ALIASES:
        raise ConfigError(f"unknown task {name!r}{did_you_mean(name, TASK_NAMES)}")
    task = find_glue_task(name)
    others = tuple(metric for metric in task.metrics if metric != task.main)
    return ("regress" if task.labels is None else "classify"), (task.main, *others)


def read_task(source: Source) -> TaskData:
    """Read the rows for training, and those for scoring it."""
    kind, metrics = task_metrics(source.task)
    rows = _rows(source, "train")
    labels = None
    if kind == "classify":
        labels = find_labels(rows) if source.task in GENERIC else find_glue_task(source.task).labels
    train = _examples(rows, labels, source)
    notes = _skipped(rows, train)
    if source.task in GENERIC and source.dev is None:
        train, dev = _split(train)
        notes += (f"no --dev file: {len(dev)} of the training rows, every tenth, are kept for scoring",)
    else:
        dev_rows = _rows(source, "dev")
        dev = _examples(dev_rows, labels, source)
        notes += _skipped(dev_rows, dev)
    return TaskData(kind, metrics, labels, train, dev, notes)


def read_examples(source: Source, labels: Sequence[str] | None, split: str = "dev") -> Examples:
    """Read rows to score a model on; ``labels`` are the model's own, None for regression."""
    rows = _rows(replace(source, dev=source.data) if source.task in GENERIC else source, split)
    return _examples(rows, None if labels is None else LabelSet(tuple(labels)), source)


def _rows(source: Source, split: str) -> RowFile:
    if source.task not in GENERIC:
        return read_glue(source.task, source.data, split, source.on_bad_row)
    path = source.data if split == "train" or source.dev is None else source.dev
    return read_rows(
        path, text=source.text, pair=source.pair, label=source.label, on_bad_row=source.on_bad_row or "stop"
    )


def _examples(rows: RowFile, labels: LabelSet | None, source: Source) -> Examples:
    on_bad_row = source.on_bad_row or "stop"
    if labels is None:
        return regression_examples(rows, on_bad_row)
    return classification_examples(rows, labels, on_bad_row)


def _skipped(rows: RowFile, examples: Examples) -> tuple[str, ...]:
    count = rows.skipped + examples.skipped
    return (f"{rows.path}: {count} bad rows were skipped",) if count else ()


def _split(examples: Examples) -> tuple[Examples, Examples]:
    every = round(1 / DEV_SHARE)
    if len(examples) < 2 * every:
        raise DataError(f"{len(examples)} rows are too few to keep some for scoring; give a --dev file")
    chosen = [index for index in range(len(examples)) if index % every == every - 1]
    others = [index for index in range(len(examples)) if index % every != every - 1]
    return examples.select(others), examples.select(chosen)
