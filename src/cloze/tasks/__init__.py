"""Rows <-> labels: what a fine-tuning task reads and how it is scored, one file a kind; no torch here.

lines (bytes -> numbered lines) -> tables (lines -> cells) -> rows (cells -> text, pair, label) -> classify
(labels -> targets) -> task (all of it by name), with glue (the published tasks) and metrics (targets, predictions ->
figures) beside.
"""

from cloze.tasks.classify import Examples, LabelSet
from cloze.tasks.metrics import score
from cloze.tasks.rows import OnBadRow, Row, read_rows
from cloze.tasks.task import TASK_NAMES, Kind, Source, TaskData, read_examples, read_task, task_metrics

__all__ = [
    "TASK_NAMES",
    "Examples",
    "Kind",
    "LabelSet",
    "OnBadRow",
    "Row",
    "Source",
    "TaskData",
    "read_examples",
    "read_rows",
    "read_task",
    "score",
    "task_metrics",
]
