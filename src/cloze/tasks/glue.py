"""The nine GLUE tasks as they are published: files, columns, order of labels and metrics (Wang et al. 2019).

A folder is read as the GLUE download unpacks it: tab-separated, quotes literal, CoLA without a header,
MRPC behind a byte-order mark. Test files bear no labels. ``main`` is the metric that the BERT paper reports.
"""

from pathlib import Path

from cloze.errors import ConfigError, did_you_mean
from cloze.tasks.labels import LabelSet
from cloze.tasks.published import PublishedTask, read_split
from cloze.tasks.rows import RowFile
from cloze.tasks.source import OnBadRow

MNLI_FILES = {
    "train": "train.tsv",
    "dev": "dev_matched.tsv",
    "dev_matched": "dev_matched.tsv",
    "dev_mismatched": "dev_mismatched.tsv",
    "test": "test_matched.tsv",
    "test_matched": "test_matched.tsv",
    "test_mismatched": "test_mismatched.tsv",
    "test_diagnostic": "../diagnostic/diagnostic.tsv",  # GLUE's own, which it has answered by whoever does MNLI
}
ENTAILMENT = LabelSet(("entailment", "not_entailment"))
COLA_COLUMNS = ("source", "label", "mark", "sentence")

GLUE: dict[str, PublishedTask] = {
    "cola": PublishedTask(
        "cola",
        "CoLA",
        text="sentence",
        pair=None,
        label="label",
        metrics=("matthews", "accuracy"),
        main="matthews",
        headers={"train": COLA_COLUMNS, "dev": COLA_COLUMNS},
    ),
    "sst-2": PublishedTask("sst-2", "SST-2", text="sentence", pair=None, label="label"),
    "mrpc": PublishedTask(
        "mrpc",
        "MRPC",
        text="#1 String",
        pair="#2 String",
        label="Quality",
        metrics=("f1", "accuracy"),
        main="f1",
    ),
    "sts-b": PublishedTask(
        "sts-b",
        "STS-B",
        text="sentence1",
        pair="sentence2",
        label="score",
        labels=None,
        metrics=("pearson", "spearman"),
        main="spearman",
    ),
    "qqp": PublishedTask(
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
    "mnli": PublishedTask(
        "mnli",
        "MNLI",
        text="sentence1",
        pair="sentence2",
        label="gold_label",
        labels=LabelSet(("contradiction", "entailment", "neutral")),
        files=MNLI_FILES,
    ),
    "qnli": PublishedTask("qnli", "QNLI", text="question", pair="sentence", label="label", labels=ENTAILMENT),
    "rte": PublishedTask("rte", "RTE", text="sentence1", pair="sentence2", label="label", labels=ENTAILMENT),
    "wnli": PublishedTask("wnli", "WNLI", text="sentence1", pair="sentence2", label="label"),
}
ALIASES = {"sst2": "sst-2", "stsb": "sts-b"}


def find_glue_task(name: str) -> PublishedTask:
    """Return the task of that name, in any case, with or without its hyphen."""
    if not is_glue_task(name):
        raise ConfigError(f"GLUE has no task {name!r}{did_you_mean(task_key(name), GLUE)}")
    return GLUE[task_key(name)]


def is_glue_task(name: str) -> bool:
    """Whether it has a task of that name."""
    return task_key(name) in GLUE


def task_key(name: str) -> str:
    """The one spelling of a task's name."""
    return ALIASES.get(name.lower(), name.lower())


def read_glue(name: str, folder: Path, split: str, on_bad_row: OnBadRow | None = None) -> RowFile:
    """Open a split of a task by its name."""
    return read_split(find_glue_task(name), folder, split, on_bad_row)
