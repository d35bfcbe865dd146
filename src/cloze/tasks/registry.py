"""A task by name: which rows, which labels, which metrics, for published files and for anybody's own."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from cloze.errors import ConfigError, did_you_mean
from cloze.kinds import TaskKind
from cloze.tasks.answering.files import CMRC, SQUAD, SQUAD2, read_own_questions, read_squad
from cloze.tasks.choice import read_arc, read_own_choices, read_swag
from cloze.tasks.classification import read_own_texts, read_published_texts
from cloze.tasks.examples import Examples, LabelSet, TaskSpec
from cloze.tasks.published import CHINESE, GLUE, PublishedTask, task_key
from cloze.tasks.source import Source
from cloze.tasks.splits import split_dev
from cloze.tasks.tagging.entities import ENTITY_METRICS, tag_metrics
from cloze.tasks.tagging.examples import PUBLISHED_TAGS, read_own_tags, read_published_tags

OWN: dict[str, TaskSpec] = {
    "classify": TaskSpec("classify", ("accuracy", "macro_f1"), partial(read_own_texts, "classify"), published=False),
    "multilabel": TaskSpec(
        "multilabel", ("micro_f1", "macro_f1"), partial(read_own_texts, "multilabel"), published=False
    ),
    "regress": TaskSpec("regress", ("pearson", "spearman", "mse"), partial(read_own_texts, "regress"), published=False),
    "tag": TaskSpec("tag", ENTITY_METRICS, read_own_tags, published=False, columns=("text", "label")),
    "answer": TaskSpec("answer", ("f1", "exact"), read_own_questions, published=False),
    "choose": TaskSpec(
        "choose", ("accuracy",), read_own_choices, published=False, columns=("text", "label", "options")
    ),
}
PUBLISHED: dict[str, TaskSpec] = {
    name: TaskSpec(
        "regress" if task.labels is None else "classify",
        (task.main, *(metric for metric in task.metrics if metric != task.main)),
        partial(read_published_texts, task),
    )
    for name, task in (GLUE | CHINESE).items()
} | {
    **{
        name: TaskSpec("tag", ENTITY_METRICS, partial(read_published_tags, files))
        for name, files in PUBLISHED_TAGS.items()
    },
    "squad": TaskSpec("answer", ("f1", "exact_match"), partial(read_squad, SQUAD, True)),
    "squad2": TaskSpec("answer", ("f1", "exact"), partial(read_squad, SQUAD2, False)),
    "cmrc": TaskSpec("answer", ("f1", "em", "average"), partial(read_squad, CMRC, True)),
    "swag": TaskSpec("choose", ("accuracy",), read_swag),
    "arc": TaskSpec("choose", ("accuracy",), read_arc),
}
TASKS = OWN | PUBLISHED
# What `cloze finetune` knows besides, and why it is no task with rows to score.
NOT_ONE = {
    "glue": f"glue is several tasks; name one of them: {', '.join(GLUE)}; cloze finetune glue goes through all",
    "correction": "correction has no labels to learn; it is for cloze finetune and evaluate, and one run",
    "similarity": "similarity has no labels to learn; it is for cloze finetune alone, and one run",
}


@dataclass(frozen=True)
class TaskData:
    """Rows with targets; ``labels`` is None where the kind has none."""

    kind: TaskKind
    metrics: tuple[str, ...]  # the first is the one that counts
    labels: LabelSet | None
    train: Examples
    dev: Examples
    notes: tuple[str, ...] = ()


def find_task(name: str) -> TaskSpec:
    """The task of that name, in any case."""
    key = task_key(name)
    if key in NOT_ONE:
        raise ConfigError(NOT_ONE[key])
    if key not in TASKS:
        raise ConfigError(f"unknown task {name!r}{did_you_mean(name, TASKS)}")
    return TASKS[key]


def find_published(name: str) -> PublishedTask | None:
    """The files of a published task of texts; None of other tasks, and of anybody's own."""
    return (GLUE | CHINESE).get(task_key(name))


def _find_task_of(source: Source) -> TaskSpec:
    """The task of a source; what would be silently passed over is refused."""
    spec = find_task(source.task)
    for name, value in source.columns_named().items():
        if spec.published:
            raise ConfigError(
                f"{name} is {value!r}, but the files of {source.task} have columns of their own; "
                f"leave it out, or take {spec.kind} for files of yours"
            )
        if name not in spec.columns:
            raise ConfigError(
                f"{name} is {value!r}, but rows to {spec.kind} have no such column; "
                f"leave it out (they have: {', '.join(spec.columns)})"
            )
    return spec


def read_task(source: Source, *, part: bool = True, labels: LabelSet | None = None) -> TaskData:
    """Read the rows for training, and those for scoring it; ``labels``, if given, are what both are held to.

    Own rows without a dev file are parted, a tenth being kept for scoring; or not, and then ``dev`` is all of them.
    """
    spec = _find_task_of(source)
    train, labels = spec.read(source, "train", labels)
    notes = _skipped("training", train)
    # A single file of a published task has no other beside it.
    if source.dev is None and (not spec.published or source.data.is_file()):
        dev = train
        if part:
            train, dev = split_dev(train)
            notes += (f"no --dev file: {len(dev)} of the training rows, a tenth, are kept for scoring",)
    else:
        dev, _ = spec.read(source, "dev", labels)
        notes += _skipped("dev", dev)
    metrics = tag_metrics(labels) if spec.kind == "tag" else spec.metrics
    return TaskData(spec.kind, metrics, labels, train, dev, notes)


def read_examples(source: Source, labels: Sequence[str] | None, split: str = "dev") -> Examples:
    """Read rows to score a model on; ``labels`` are the model's own, None where its kind has none.

    Of files of one's own these are the dev rows, if there is such a file, or else all that are there.
    """
    known = None if labels is None else LabelSet(tuple(labels))
    spec = _find_task_of(source)
    if not spec.published and split not in ("train", "dev"):
        raise ConfigError(f"files of your own have no split {split!r}; leave it out, and name the file itself")
    return spec.read(source, split, known).examples


def _skipped(name: str, examples: Examples) -> tuple[str, ...]:
    return (f"{examples.skipped} bad {name} rows were skipped",) if examples.skipped else ()
