"""The table of task kinds, and tasks by name with their rows, labels and metrics.

``KINDS`` is the only place where kinds are registered. A task is either published (``PUBLISHED``: files with known
names) or a kind applied to the user's own files, under the name of the kind.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from cloze.errors import ConfigError, did_you_mean, format_option
from cloze.models import SENTENCE_MODEL
from cloze.progress import Progress
from cloze.tasks import clue
from cloze.tasks.answering.examples import CMRC, SQUAD, SQUAD2, read_squad
from cloze.tasks.answering.kind import ANSWER
from cloze.tasks.answering.kind import read_other_splits as read_other_questions
from cloze.tasks.choice.kind import CHOOSE, read_arc, read_arc_test, read_swag
from cloze.tasks.classification.kind import CLASSIFY, MULTILABEL, REGRESS, read_other_splits, read_published_texts
from cloze.tasks.classification.published import CHINESE, GLUE, PublishedTask, task_key
from cloze.tasks.correction.kind import CORRECTION
from cloze.tasks.examples import Examples, LabelSet, split_dev
from cloze.tasks.in_memory import RowsInMemory
from cloze.tasks.kind import PlacedTexts, Reader, TaskKind
from cloze.tasks.retrieval.kind import RERANK, RETRIEVAL
from cloze.tasks.rows import Source
from cloze.tasks.similarity.kind import SIMILARITY
from cloze.tasks.tagging.kind import PUBLISHED_TAGS, TAG, read_published_tags, read_test_split

if TYPE_CHECKING:
    from cloze.model import HeadName

# In the order in which messages list them. Several kinds may share a head: a model folder that does not record its kind
# gets the first kind with its head.
KINDS: dict[str, TaskKind] = {
    kind.name: kind
    for kind in (CLASSIFY, MULTILABEL, REGRESS, TAG, ANSWER, CHOOSE, SIMILARITY, RETRIEVAL, RERANK, CORRECTION)
}

# Names of tasks in transformers and elsewhere (words separated by spaces), and the corresponding kinds.
TASKS_ELSEWHERE = {
    **dict.fromkeys(("ner", "pos", "chunking", "token classification", "sequence labeling"), TAG.name),
    **dict.fromkeys(("classification", "text classification", "sequence classification", "sentiment"), CLASSIFY.name),
    **dict.fromkeys(("sentiment analysis", "nli", "text pair classification", "topic"), CLASSIFY.name),
    **dict.fromkeys(("multi label", "multi label classification"), MULTILABEL.name),
    **dict.fromkeys(("qa", "question answering", "mrc", "reading comprehension"), ANSWER.name),
    **dict.fromkeys(("multiple choice", "mc"), CHOOSE.name),
    **dict.fromkeys(("sts", "embedding", "embeddings", "sentence similarity", "feature extraction"), SIMILARITY.name),
    **dict.fromkeys(("search", "dense retrieval", "ir", "bi encoder"), RETRIEVAL.name),
    **dict.fromkeys(("reranking", "reranker", "cross encoder", "text ranking"), RERANK.name),
    **dict.fromkeys(("spelling", "csc", "grammar"), CORRECTION.name),
}


@contextmanager
def registered(kind: TaskKind) -> Iterator[TaskKind]:
    """Register a kind for the duration of a ``with`` block, for kinds defined outside this package.

    Example:
        >>> with registered(MY_KIND):
        ...     cloze.finetune(MY_KIND.name, "rows.csv", model="cloze-mini", out="run")
    """
    if kind.name in KINDS or kind.name in PUBLISHED:
        raise ConfigError(f"a task named {kind.name!r} already exists; choose another name")
    KINDS[kind.name] = kind
    try:
        yield kind
    finally:
        del KINDS[kind.name]


def find_kind(name: str) -> TaskKind:
    """Return the kind with this name."""
    if name not in KINDS:
        raise ConfigError(f"unknown kind of task {name!r}{did_you_mean(name, KINDS)}")
    return KINDS[name]


def head_of(name: str) -> "HeadName":
    """Return the name of the head that models of this kind use."""
    head = find_kind(name).head
    assert head is not None, "a fine-tuned model has a head"
    return head


def labelled_kinds() -> list[TaskKind]:
    """Return the kinds that are trained on labelled rows, in the order of the table."""
    return [kind for kind in KINDS.values() if kind.labelled]


def is_unlabelled(name: str) -> bool:
    """Return whether this is the name of a kind that is trained without labels."""
    return name.lower() in KINDS and not KINDS[name.lower()].labelled


def _none(source: Source) -> list[PlacedTexts]:  # noqa: ARG001
    return []


@dataclass(frozen=True)
class TaskSpec:
    """One task by name: a published task with files of known names, or a kind for the user's own files."""

    kind: TaskKind
    metrics: tuple[str, ...]  # the first one selects models
    read: Reader
    # Rows of published splits besides train and dev. A model must not be pre-trained on them if it is evaluated on
    # them.
    read_other_splits: Callable[[Source], list[PlacedTexts]] = _none
    published: bool = True

    def metrics_for(self, labels: LabelSet | None) -> tuple[str, ...]:
        """Return the metrics for these labels; for some kinds they depend on the labels (entity tags or plain tags)."""
        return self.metrics if self.kind.label_metrics is None else self.kind.label_metrics(labels)


def _published_texts(task: PublishedTask) -> TaskSpec:
    return TaskSpec(
        REGRESS if task.labels is None else CLASSIFY,
        (task.main, *(metric for metric in task.metrics if metric != task.main)),
        partial(read_published_texts, task),
        partial(read_other_splits, task),
    )


PUBLISHED: dict[str, TaskSpec] = {
    **{name: _published_texts(task) for name, task in (GLUE | CHINESE).items()},
    **{
        name: TaskSpec(TAG, TAG.metrics, partial(read_published_tags, files), partial(read_test_split, files))
        for name, files in PUBLISHED_TAGS.items()
    },
    **{
        name: TaskSpec(
            ANSWER, metrics, partial(read_squad, files, always), partial(read_other_questions, files, always)
        )
        for name, files, always, metrics in (
            ("squad", SQUAD, True, ("f1", "exact_match")),
            ("squad2", SQUAD2, False, ("f1", "exact")),
        )
    },
    **{
        name: TaskSpec(
            ANSWER,
            ("f1", "em", "average"),
            partial(clue.read_clue_squad, files),
            partial(clue.read_other_clue_questions, files),
        )
        for name, files in (("cmrc", CMRC), ("drcd", clue.DRCD))
    },
    **{
        name: TaskSpec(kind, kind.metrics, partial(clue.read_clue, name), partial(clue.read_clue_test, name))
        for name, kind in (("chid", CHOOSE), ("c3", CHOOSE), ("cluener", TAG))
    },
    "swag": TaskSpec(CHOOSE, CHOOSE.metrics, read_swag),
    "arc": TaskSpec(CHOOSE, CHOOSE.metrics, read_arc, read_arc_test),
}


@dataclass(frozen=True)
class TaskData:
    """The training and dev rows of a task; ``labels`` is None for kinds without labels."""

    kind: TaskKind
    metrics: tuple[str, ...]  # the first one selects models
    labels: LabelSet | None
    train: Examples
    dev: Examples
    notes: tuple[str, ...] = ()


def find_task(name: str) -> TaskSpec:
    """Return the task with this name, ignoring case."""
    key = task_key(name)
    if key == "clue":
        raise ConfigError(
            f"clue is a suite of several tasks; name one of them: {', '.join(clue.CLUE)}; cloze finetune clue runs all"
        )
    if key == "glue":
        raise ConfigError(
            f"glue is a suite of several tasks; name one of them: {', '.join(GLUE)}; cloze finetune glue runs all"
        )
    if key in PUBLISHED:
        return PUBLISHED[key]
    kind = KINDS.get(key)
    if kind is None:
        meant = TASKS_ELSEWHERE.get(key.replace("-", " ").replace("_", " "))
        known = [*map(str, KINDS), *PUBLISHED]
        raise ConfigError(f"unknown task {name!r}{did_you_mean(meant or name, known)}")
    if not kind.labelled or kind.read is None:
        raise ConfigError(kind.unlabelled_note)
    return TaskSpec(kind, kind.metrics, kind.read, published=False)


def default_model(task: str) -> str:
    """Return the shipped model for a task: the one that fine-tuning starts from if no other is given."""
    key = task_key(task)
    kind = PUBLISHED[key].kind if key in PUBLISHED else KINDS.get(key)
    return SENTENCE_MODEL if kind is None else kind.start  # suites have no kind; unknown tasks are refused later


def announce_default_model(task: str, progress: Progress) -> str:
    """Return the shipped model for a task, and report that it is the default."""
    name = default_model(task)
    progress.say(f"model: {name}, the default for {task}; {format_option('model')} overrides")
    return name


def find_published(name: str) -> PublishedTask | None:
    """Return the files of a published text-classification task; None for other tasks and the user's own files."""
    return (GLUE | CHINESE).get(task_key(name))


def _find_task_of(source: Source) -> TaskSpec:
    """Return the task of a source; refuse columns that would be silently ignored."""
    spec = find_task(source.task)
    if source.columns is not None and (spec.published or spec.kind.inputs == "words"):
        numbers = f"name columns by number with {format_option('text')} and {format_option('label')}"
        remedy = "leave it out" if spec.published else numbers
        raise ConfigError(f"columns is {source.columns!r}, but the files of {source.task} have no header; {remedy}")
    if spec.published and isinstance(source.data, RowsInMemory):
        raise ConfigError(
            f"{source.data} is {len(source.data)} rows in memory, but {source.task} is read from its published files; "
            f"give the path of their folder, or use {spec.kind} for your own rows"
        )
    for name, value in source.columns_named().items():
        if spec.published:
            raise ConfigError(
                f"{name} is {value!r}, but the files of {source.task} have their own columns; "
                f"leave it out, or use {spec.kind} for your own files"
            )
        if name not in spec.kind.columns:
            raise ConfigError(
                f"{name} is {value!r}, but rows for {spec.kind} have no such column; "
                f"leave it out (they have: {', '.join(spec.kind.columns)})"
            )
    return spec


def read_task(source: Source, *, part: bool = True, labels: LabelSet | None = None) -> TaskData:
    """Read the training and dev rows of a task.

    Args:
        source: The task and its files.
        part: Whether to hold out a tenth of the user's own rows if there is no dev file; if False, ``dev`` is all rows.
        labels: The labels that both splits must use; collected from the training rows if omitted.

    Returns:
        The rows, the labels and the metrics, with notes about held-out and skipped rows.
    """
    spec = _find_task_of(source)
    train, labels = spec.read(source, "train", labels)
    notes = _skipped("training", train)
    # A single file of a published task has no dev file next to it.
    if source.dev is None and (not spec.published or source.path.is_file()):
        dev = train
        if part:
            train, dev = split_dev(train)
            notes += (f"no {_dev_name(source)}: {len(dev)} of the training rows, a tenth, are held out",)
    else:
        dev, _ = spec.read(source, "dev", labels)
        notes += _skipped("dev", dev)
    return TaskData(spec.kind, spec.metrics_for(labels), labels, train, dev, notes)


def read_examples(source: Source, labels: Sequence[str] | None, split: str = "dev") -> Examples:
    """Read the rows to evaluate a model on.

    Args:
        source: The task and its files. Of the user's own files, the dev file is read if there is one, else all rows.
        labels: The model's labels; None for kinds without labels.
        split: The split of a published task.

    Returns:
        The examples.
    """
    known = None if labels is None else LabelSet(tuple(labels))
    spec = _find_task_of(source)
    if not spec.published and split not in ("train", "dev"):
        raise ConfigError(f"your own files have no split {split!r}; leave it out and give the file itself")
    return spec.read(source, split, known).examples


def _dev_name(source: Source) -> str:
    return "dev rows" if isinstance(source.data, RowsInMemory) else f"{format_option('dev')} file"


def _skipped(name: str, examples: Examples) -> tuple[str, ...]:
    unlabelled = getattr(examples, "unlabelled", 0)
    notes = (f"{examples.skipped} bad {name} rows were skipped",) if examples.skipped else ()
    return (
        (*notes, f"{unlabelled} {name} rows that are marked as having no label were skipped") if unlabelled else notes
    )
