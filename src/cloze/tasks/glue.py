"""The nine GLUE tasks as they are published: files, columns, order of labels and metrics (Wang et al. 2019).

A folder is read as the GLUE download unpacks it: tab-separated, quotes literal, CoLA without a header,
MRPC behind a byte-order mark. Test files bear no labels. ``main`` is the metric that the BERT paper reports.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cloze.errors import ConfigError, DataError, did_you_mean
from cloze.tasks.labels import LabelSet
from cloze.tasks.rows import RowFile, read_rows
from cloze.tasks.source import OnBadRow

FILES = {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"}
MNLI_FILES = {
    "train": "train.tsv",
    "dev": "dev_matched.tsv",
    "dev_matched": "dev_matched.tsv",
    "dev_mismatched": "dev_mismatched.tsv",
    "test": "test_matched.tsv",
    "test_matched": "test_matched.tsv",
    "test_mismatched": "test_mismatched.tsv",
}
BINARY = LabelSet(("0", "1"))
ENTAILMENT = LabelSet(("entailment", "not_entailment"))


COLA_COLUMNS = ("source", "label", "mark", "sentence")


@dataclass(frozen=True)
class GlueTask:
    """One task: ``labels`` is None for regression; ``headers`` is for splits without one."""

    name: str
    folder: str
    text: str
    pair: str | None
    label: str
    labels: LabelSet | None = BINARY
    metrics: tuple[str, ...] = ("accuracy",)
    main: str = "accuracy"
    files: Mapping[str, str] = field(default_factory=lambda: FILES)
    headers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    on_bad_row: OnBadRow = "stop"


GLUE: dict[str, GlueTask] = {
    "cola": GlueTask(
        "cola",
        "CoLA",
        text="sentence",
        pair=None,
        label="label",
        metrics=("matthews", "accuracy"),
        main="matthews",
        headers={"train": COLA_COLUMNS, "dev": COLA_COLUMNS},
    ),
    "sst-2": GlueTask("sst-2", "SST-2", text="sentence", pair=None, label="label"),
    "mrpc": GlueTask(
        "mrpc",
        "MRPC",
        text="#1 String",
        pair="#2 String",
        label="Quality",
        metrics=("f1", "accuracy"),
        main="f1",
    ),
    "sts-b": GlueTask(
        "sts-b",
        "STS-B",
        text="sentence1",
        pair="sentence2",
        label="score",
        labels=None,
        metrics=("pearson", "spearman"),
        main="spearman",
    ),
    "qqp": GlueTask(
        "qqp",
        "QQP",
        text="question1",
        pair="question2",
        label="is_duplicate",
        metrics=("f1", "accuracy"),
        main="f1",
        # A few of the published lines lack cells; the scripts of BERT and of GLUE pass over them as well.
        on_bad_row="skip",
    ),
    "mnli": GlueTask(
        "mnli",
        "MNLI",
        text="sentence1",
        pair="sentence2",
        label="gold_label",
        labels=LabelSet(("contradiction", "entailment", "neutral")),
        files=MNLI_FILES,
    ),
    "qnli": GlueTask("qnli", "QNLI", text="question", pair="sentence", label="label", labels=ENTAILMENT),
    "rte": GlueTask("rte", "RTE", text="sentence1", pair="sentence2", label="label", labels=ENTAILMENT),
    "wnli": GlueTask("wnli", "WNLI", text="sentence1", pair="sentence2", label="label"),
}
ALIASES = {"sst2": "sst-2", "stsb": "sts-b"}


def find_glue_task(name: str) -> GlueTask:
    """Return the task of that name, in any case, with or without its hyphen."""
    key = ALIASES.get(name.lower(), name.lower())
    if key not in GLUE:
        raise ConfigError(f"GLUE has no task {name!r}{did_you_mean(key, GLUE)}")
    return GLUE[key]


def read_glue(task: str | GlueTask, folder: Path, split: str, on_bad_row: OnBadRow | None = None) -> RowFile:
    """Open a split of a task; ``folder`` is the task's own, or the one that holds those of all."""
    task = find_glue_task(task) if isinstance(task, str) else task
    if split not in task.files:
        raise ConfigError(f"{task.name} has no split {split!r}{did_you_mean(split, task.files)}")
    path = find_split(task, Path(folder), split)
    assert path is not None, "a missing file is refused"
    return read_rows(
        path,
        text=task.text,
        pair=task.pair,
        label=None if split.startswith("test") else task.label,
        on_bad_row=on_bad_row or task.on_bad_row,
        header=task.headers.get(split),
    )


def find_split(task: GlueTask, folder: Path, split: str, *, missing_ok: bool = False) -> Path | None:
    """Return the file of a split, plain or compressed; None if it may be missing and is."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; expected the GLUE folder, or its {task.folder} inside")
    own = folder / task.folder
    home = own if own.is_dir() else folder
    plain = home / task.files[split]
    for path in (plain, Path(f"{plain}.xz"), Path(f"{plain}.gz")):
        if path.is_file():
            return path
    if missing_ok:
        return None
    raise DataError(f"{home} has no {plain.name} (nor .xz, .gz of it); expected {task.folder} of GLUE as published")
