"""Published classification and regression tasks: files, columns, order of labels and metrics.

GLUE (Wang et al. 2019) is read from the folder that its download unpacks to: tab-separated, with literal quotes, CoLA
without a header, MRPC with a byte-order mark. Test files have no labels. ``main`` is the metric that the BERT paper
reports.

Chinese tasks: reviews, paraphrases and sentence similarity. Pairs are lines of two texts and a label, tab-separated and
without a header (LCQMC, AFQMC and STS-B in most collections), or CLUE's JSON (Xu et al. 2020) with one object per line.
A quote is an ordinary character. ``cloze.tasks.clue`` has the other tasks of CLUE.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from cloze.errors import ConfigError, DataError, did_you_mean
from cloze.files import COMPRESSED, RowError
from cloze.tasks.examples import LabelSet
from cloze.tasks.rows import OnBadRow, RowFile, read_rows
from cloze.tasks.tables import Record, open_table

FILES = {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"}
BINARY = LabelSet(("0", "1"))


@dataclass(frozen=True)
class PublishedTask:
    """One task: ``labels`` is None for regression; ``headers`` has the columns of splits without a header."""

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
    )  # if a split has several names, the first existing file is used
    headers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    on_bad_row: OnBadRow = "stop"
    test_labels: bool = False  # whether the test rows have labels
    other_folders: tuple[str, ...] = ()  # other names of the folder
    unlabelled: frozenset[str] = frozenset()  # label values of rows on whose label annotators did not agree
    convert: Callable[[Record], Record] | None = None  # computes the columns named above

    def is_labelled(self, split: str) -> bool:
        """Return whether the rows of a split have labels."""
        return self.test_labels or not split.startswith("test")


def read_split(
    task: PublishedTask, folder: Path, split: str, on_bad_row: OnBadRow | None = None, own: Path | None = None
) -> RowFile:
    """Open a split of a task from the task's folder, or from the folder that contains the folders of all tasks.

    ``own`` is a file in the same format to use instead of the published one.
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
        unlabelled=task.unlabelled,
        convert=task.convert,
    )


def read_unlabelled_split(task: PublishedTask, folder: Path, split: str) -> tuple[list[str], list[str] | None]:
    """Return the texts and pairs of every row, in order: each row needs a prediction, even if its cells are empty."""
    path = find_split(task, folder, split)
    assert path is not None, "a missing file is refused"
    with closing(open_table(path, task.headers.get(split))) as table:
        for name in (task.text, *([task.pair] if task.pair else [])):
            if table.columns is not None and name not in table.columns:
                raise DataError(f"{path} has no column {name!r}; expected {task.folder} as published")
        cells = [record.cells for record in table]
    return [str(row[task.text]) for row in cells], [str(row[task.pair]) for row in cells] if task.pair else None


def find_split(task: PublishedTask, folder: Path, split: str, *, missing_ok: bool = False) -> Path | None:
    """Return the file of a split, plain or compressed; with ``missing_ok``, None if it is missing."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; expected {task.folder} or the folder that contains it")
    home = find_home(folder, (task.folder, *task.other_folders))
    names = task.files[split]
    plain = [home / name for name in ((names,) if isinstance(names, str) else names)]
    for path in plain:
        for ending in ("", *COMPRESSED):
            if (spelled := Path(f"{path}{ending}")).is_file():
                return spelled
    if missing_ok:
        return None
    wanted = " or ".join(path.name for path in plain)
    raise DataError(f"{home} has no {wanted} (plain or compressed); expected {task.folder} as published")


def find_home(folder: Path, names: Iterable[str]) -> Path:
    """Return the first subfolder with one of these names; the folder itself if there is none."""
    return next((own for name in names if (own := folder / name).is_dir()), folder)


MNLI_FILES = {
    "train": "train.tsv",
    "dev": "dev_matched.tsv",
    "dev_matched": "dev_matched.tsv",
    "dev_mismatched": "dev_mismatched.tsv",
    "test": "test_matched.tsv",
    "test_matched": "test_matched.tsv",
    "test_mismatched": "test_mismatched.tsv",
    "test_diagnostic": "../diagnostic/diagnostic.tsv",  # GLUE's diagnostic set, which is predicted by the MNLI model
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
        # A few of the published lines lack cells; the scripts of BERT and GLUE skip them as well.
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
    """Return the GLUE task with this name, ignoring case and the hyphen."""
    if not is_glue_task(name):
        raise ConfigError(f"GLUE has no task {name!r}{did_you_mean(task_key(name), GLUE)}")
    return GLUE[task_key(name)]


def is_glue_task(name: str) -> bool:
    """Return whether GLUE has a task with this name."""
    return task_key(name) in GLUE


def task_key(name: str) -> str:
    """Return the canonical spelling of a task's name."""
    return ALIASES.get(name.lower(), name.lower())


PAIR = ("sentence1", "sentence2", "label")
_HEADERS = {"train": PAIR, "dev": PAIR, "test": PAIR}


def _files(*names: str) -> dict[str, tuple[str, ...]]:
    """Return the file names of each split; ``{}`` stands for the name of the split."""
    return {split: tuple(name.format(split) for name in names) for split in ("train", "dev", "test")}


def clue_folders(name: str) -> tuple[str, ...]:
    """Return the usual folder names of a CLUE task, whose archives are named like ``tnews_public.zip``."""
    return (name, f"{name}_public", name.upper(), f"{name.upper()}_public")


def _mark_keywords(record: Record) -> Record:
    """Return a record of CSL with its keywords joined to one text."""
    words = record.cells.get("keyword")
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise RowError(f"{record.place}: 'keyword' is {words!r:.40}; expected a list of texts")
    return Record(record.place, {**record.cells, "keyword": " ".join(words)})


def _mark_spans(record: Record) -> Record:
    """Return a record of WSC with _ around the noun and [ ] around the pronoun, as in CLUE's own baseline."""
    text, target = record.cells.get("text"), record.cells.get("target")
    if not isinstance(text, str) or not isinstance(target, dict):
        raise RowError(f"{record.place}: expected 'text' and an object 'target' with span1_text, span1_index, ...")
    marks = []
    for name, before, after in (("span1", "_", "_"), ("span2", "[", "]")):
        span, start = target.get(f"{name}_text"), target.get(f"{name}_index")
        if not isinstance(span, str) or type(start) is not int or not text.startswith(span, max(0, start)):
            raise RowError(f"{record.place}: {name} is {span!r:.40} at {start!r:.20}, but 'text' differs there")
        marks += [(start, 1, before), (start + len(span), 0, after)]
    for place, _, mark in sorted(marks, reverse=True):
        text = text[:place] + mark + text[place:]
    return Record(record.place, {**record.cells, "text": text})


NLI = LabelSet(("contradiction", "entailment", "neutral"))
# OCNLI and CMNLI have - if annotators did not agree on a label; copies of test files have -1, or nothing.
UNLABELLED = frozenset({"-", "-1", ""})
TNEWS = LabelSet(tuple(str(code) for code in range(100, 117) if code not in (105, 111)))
IFLYTEK = LabelSet(tuple(map(str, range(119))))


def _clue(
    name: str,
    text: str,
    labels: LabelSet,
    pair: str | None = None,
    *,
    files: tuple[str, ...] = ("{}.json",),
    folders: tuple[str, ...] = (),
    convert: Callable[[Record], Record] | None = None,
) -> PublishedTask:
    """Return a task of CLUE in the format of its archive; the labels of the test rows are not published."""
    return PublishedTask(
        name,
        name,
        text,
        pair,
        "label",
        labels,
        files=_files(*files),
        other_folders=(*clue_folders(name), *folders),
        unlabelled=UNLABELLED,
        convert=convert,
    )


CHINESE: dict[str, PublishedTask] = {
    "tnews": _clue("tnews", "sentence", TNEWS),
    "iflytek": _clue("iflytek", "sentence", IFLYTEK),
    "ocnli": _clue("ocnli", "sentence1", NLI, "sentence2", files=("{}.json", "{}.50k.json")),
    "cmnli": _clue("cmnli", "sentence1", NLI, "sentence2"),
    "csl": _clue("csl", "keyword", BINARY, "abst", convert=_mark_keywords),
    "wsc": _clue("wsc", "text", LabelSet(("false", "true")), folders=clue_folders("cluewsc2020"), convert=_mark_spans),
    "chnsenticorp": PublishedTask(
        "chnsenticorp", "chnsenticorp", text="text_a", pair=None, label="label", test_labels=True
    ),
    "lcqmc": PublishedTask(
        "lcqmc",
        "LCQMC",
        text="sentence1",
        pair="sentence2",
        label="label",
        files=_files("{}.txt"),
        headers=_HEADERS,
        test_labels=True,
    ),
    # The labels of the test rows are not published.
    "afqmc": PublishedTask(
        "afqmc",
        "AFQMC",
        text="sentence1",
        pair="sentence2",
        label="label",
        files=_files("{}.txt", "{}.json"),
        headers=_HEADERS | {"test": PAIR[:2]},
        other_folders=clue_folders("afqmc"),
        unlabelled=UNLABELLED,
    ),
    "sts-b-zh": PublishedTask(
        "sts-b-zh",
        "Chinese-STS-B",
        text="sentence1",
        pair="sentence2",
        label="label",
        labels=None,
        metrics=("spearman", "pearson"),
        main="spearman",
        files=_files("sts-b-{}.txt"),
        headers=_HEADERS,
        test_labels=True,
    ),
}
