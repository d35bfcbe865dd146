"""Tasks of texts as they are published: which files, which columns, in which order the labels, scored by what."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from cloze.errors import ConfigError, DataError, did_you_mean
from cloze.files import COMPRESSED
from cloze.tasks.labels import LabelSet
from cloze.tasks.rows import RowFile, read_rows
from cloze.tasks.source import OnBadRow
from cloze.tasks.tables import open_table

FILES = {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"}
BINARY = LabelSet(("0", "1"))


@dataclass(frozen=True)
class PublishedTask:
    """One task: ``labels`` is None for regression; ``headers`` is for splits whose tables have none."""

    name: str
    folder: str
    text: str
    pair: str | None
    label: str
    labels: LabelSet | None = BINARY
    metrics: tuple[str, ...] = ("accuracy",)
    main: str = "accuracy"
    files: Mapping[str, str | tuple[str, ...]] = field(
        default_factory=lambda: FILES
    )  # several: the first that is there
    headers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    on_bad_row: OnBadRow = "stop"
    test_labels: bool = False  # whether the test rows bear their labels

    def is_labelled(self, split: str) -> bool:
        """Whether the rows of a split bear labels."""
        return self.test_labels or not split.startswith("test")


def read_split(
    task: PublishedTask, folder: Path, split: str, on_bad_row: OnBadRow | None = None, own: Path | None = None
) -> RowFile:
    """Open a split of a task; ``folder`` is the task's own, or the one that holds those of all.

    ``own`` is a file of the same form that stands in for the published one.
    """
    if split not in task.files:
        raise ConfigError(f"{task.name} has no split {split!r}{did_you_mean(split, task.files)}")
    path = own or find_split(task, Path(folder), split)
    assert path is not None, "a missing file is refused"
    return read_rows(
        path,
        text=task.text,
        pair=task.pair,
        label=task.label if task.is_labelled(split) else None,
        on_bad_row=on_bad_row or task.on_bad_row,
        header=task.headers.get(split),
    )


def read_unlabelled_split(task: PublishedTask, folder: Path, split: str) -> tuple[list[str], list[str] | None]:
    """The texts of every row, and their pairs; also of those that have none: each must be answered, in its place."""
    path = find_split(task, folder, split)
    assert path is not None, "a missing file is refused"
    with closing(open_table(path, task.headers.get(split))) as table:
        for name in (task.text, *([task.pair] if task.pair else [])):
            if table.columns is not None and name not in table.columns:
                raise DataError(f"{path} has no column {name!r}; expected {task.folder} as published")
        cells = [record.cells for record in table]
    return [str(row[task.text]) for row in cells], [str(row[task.pair]) for row in cells] if task.pair else None


def find_split(task: PublishedTask, folder: Path, split: str, *, missing_ok: bool = False) -> Path | None:
    """Return the file of a split, plain or compressed; None if it may be missing and is."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; expected the one with {task.folder} inside, or that itself")
    own = folder / task.folder
    home = own if own.is_dir() else folder
    names = task.files[split]
    plain = [home / name for name in ((names,) if isinstance(names, str) else names)]
    for path in plain:
        for ending in ("", *COMPRESSED):
            if (spelled := Path(f"{path}{ending}")).is_file():
                return spelled
    if missing_ok:
        return None
    wanted = " or ".join(path.name for path in plain)
    raise DataError(f"{home} has no {wanted} (nor one of them compressed); expected {task.folder} as published")
