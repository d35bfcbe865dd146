"""Rows without labels, which a student can still learn from: its teacher answers them."""

from dataclasses import replace
from math import nan
from pathlib import Path

from cloze.corpus.documents import read_lines
from cloze.errors import ConfigError, DataError
from cloze.kinds import IGNORED
from cloze.tasks.classify import LabelledTexts
from cloze.tasks.registry import TaskData, find_published
from cloze.tasks.rows import read_rows
from cloze.tasks.source import Source
from cloze.tasks.tables import is_table


def read_unlabelled(path: Path, source: Source, data: TaskData) -> LabelledTexts:
    """Read a text a line, or a table by the columns of the training rows; each target says that there is none."""
    if not isinstance(data.train, LabelledTexts):
        raise ConfigError(
            f"{path}: rows without labels are for labels and numbers of texts; this task is to {data.kind}"
        )
    paired = data.train.pairs is not None
    examples = _read(path, source, paired=paired)
    if paired and examples.pairs is None:
        raise DataError(f"{path}: the rows of this task are pairs of texts; give a table with the columns of both")
    none = nan if data.labels is None else IGNORED
    absent = (nan,) * len(data.labels) if data.kind == "multilabel" and data.labels is not None else none
    return replace(examples, targets=[absent] * len(examples))


def _read(path: Path, source: Source, *, paired: bool) -> LabelledTexts:
    if is_table(path):
        published = find_published(source.task)
        columns = source if published is None else published  # whose files have columns of their own
        pair = columns.pair if paired else None
        rows = read_rows(path, text=columns.text, pair=pair, on_bad_row=source.on_bad_row or "stop")
        found = list(rows)
        pairs = None if pair is None else [row.pair or "" for row in found]
        return LabelledTexts([row.text for row in found], pairs, None, [row.place for row in found], rows.skipped)
    numbered = [(number, line) for number, line in enumerate(read_lines(path), start=1) if line.strip()]
    if not numbered:
        raise DataError(f"{path} has no text in it; expected a text a line")
    return LabelledTexts([line for _, line in numbered], None, None, [f"{path}:{number}" for number, _ in numbered])
