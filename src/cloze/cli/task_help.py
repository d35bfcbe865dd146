"""``cloze finetune TASK --help`` and ``cloze evaluate TASK --help``: the page of a command with the flags of one task.

The ``TaskKind`` descriptors determine which flags apply. Importing them takes too long for help, so
``scripts/make_help_pages.py`` stores the result in ``help/tasks.json`` and the page is filtered when it is printed.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloze.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from cloze.tasks.kind import TaskKind
    from cloze.tasks.registry import TaskSpec

PAGES = Path(__file__).parent / "help"
INDEX = PAGES / "tasks.json"
COMMANDS = ("finetune", "evaluate")
SUITES = ("glue", "clue")

# A new entry of a help page is indented by at most this many columns; its further lines are indented more.
_ENTRY_INDENT = 5
_FLAG = re.compile(r"│[ *]*--([a-z-]+)")
# The paragraph of the full page that points to the pages of the tasks.
_POINTER = re.compile(r"'cloze \w+ TASK --help'[^╭]*\n\n")
_TASK_ARGUMENT = re.compile(r"│ \*  TASK ")
_NAMED_COLUMNS = ("text", "pair", "label", "options")
# Flags of ``cloze evaluate`` for rows with one label per text.
_LABEL_FLAGS = frozenset({"abstain-at", "label-errors", "folds", "method"})
# Settings of fine-tuning that a kind has if its descriptor lists them.
_OWN_SETTINGS = ("context", "class_weights", "long_texts", "stride", "longest_answer")


def page(command: str, task: str) -> str:
    """Return the help page of a command for one task.

    Raises:
        ConfigError: If there is no such task; the message suggests a similar name.
    """
    name = task.lower()
    entries: list[dict[str, str]] = json.loads(INDEX.read_text(encoding="utf-8"))[command]
    tasks = {one: entry for entry in entries for one in entry["tasks"].split()}
    if name not in tasks:
        if name in SUITES:
            raise ConfigError(f"{name} is a suite of several tasks; name one of them")
        raise ConfigError(f"unknown task {task!r}{did_you_mean(name, tasks)}")
    hidden = {"TASK", *tasks[name]["hidden"].split()}
    lines = PAGES.joinpath(f"{command}.txt").read_text(encoding="utf-8").split("\n")
    text = "\n".join(line for entry, block in _entries(lines) if entry not in hidden for line in block)
    usage, _, description, options = _POINTER.sub("", text).split("\n", 3)
    usage = usage.replace(" TASK DATA", f" {name} DATA")
    return f"{usage}\n\n{name}: {tasks[name]['summary']}\n\n{description}\n{options}"


def _entries(lines: Iterable[str]) -> Iterator[tuple[str | None, list[str]]]:
    """Yield the lines of a page in blocks, each with the name of its flag; None for lines outside of entries."""
    name: str | None = None
    block: list[str] = []
    for line in lines:
        inside = line.startswith("│")
        if inside and len(line[1:]) - len(line[1:].lstrip(" ")) > _ENTRY_INDENT:
            block.append(line)
            continue
        yield name, block
        flag = _FLAG.match(line)
        name = flag[1] if flag else "TASK" if _TASK_ARGUMENT.match(line) else None
        block = [line]
    yield name, block


def describe_tasks() -> dict[str, list[dict[str, str]]]:
    """Return, for each command, groups of tasks with their summary and the flags that do not apply to them."""
    from cloze.predict.clustering import CLUSTERING_NAME
    from cloze.tasks.classification.published import ALIASES
    from cloze.tasks.registry import KINDS, PUBLISHED, find_task
    from cloze.tasks.retrieval.kind import RETRIEVAL

    specs: dict[str, TaskSpec | TaskKind] = {**KINDS, **{name: find_task(name) for name in (*PUBLISHED, *ALIASES)}}
    finetuning = {name: (_summary(spec), _hidden_in_finetuning(spec)) for name, spec in specs.items()}
    finetuning |= {suite: _describe_suite(suite) for suite in SUITES}
    evaluation = {name: (_summary(spec), _hidden_in_evaluation(spec)) for name, spec in specs.items()}
    evaluation[RETRIEVAL.name] = (RETRIEVAL.summary, _hidden_in_evaluation(RETRIEVAL))
    evaluation[CLUSTERING_NAME] = (
        "Compare clusters of text vectors with the labels of the texts.",
        _hidden_for_clusters(),
    )
    evaluation["mlm"] = ("Measure the loss on masked words of any text.", _hidden_for_mlm())
    return {"finetune": _group(finetuning), "evaluate": _group(evaluation)}


def _group(described: Mapping[str, tuple[str, set[str]]]) -> list[dict[str, str]]:
    """Join tasks with equal descriptions; names are separated by spaces."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, (summary, hidden) in described.items():
        groups.setdefault((summary, " ".join(sorted(hidden))), []).append(name)
    return [
        {"tasks": " ".join(names), "summary": summary, "hidden": hidden} for (summary, hidden), names in groups.items()
    ]


def _summary(spec: "TaskSpec | TaskKind") -> str:
    kind, published = _kind_of(spec)
    return f"{kind.summary} Use the files of the published task." if published else kind.summary


def _kind_of(spec: "TaskSpec | TaskKind") -> "tuple[TaskKind, bool]":
    """Return the kind of a task, and whether it is a published one."""
    from cloze.tasks.registry import TaskSpec

    return (spec.kind, spec.published) if isinstance(spec, TaskSpec) else (spec, False)


def _hidden_columns(kind: "TaskKind", published: bool) -> set[str]:
    """Return the flags that name columns which such rows do not have."""
    if published:
        return {*_NAMED_COLUMNS, "columns"}
    hidden = set(_NAMED_COLUMNS) - set(kind.columns)
    return hidden | {"columns"} if kind.inputs == "words" else hidden


def _hidden_in_finetuning(spec: "TaskSpec | TaskKind") -> set[str]:
    from cloze.train.finetuning.settings import SETTINGS_OF, RankingSettings, SearchSettings

    kind, published = _kind_of(spec)
    hidden = _hidden_columns(kind, published) | {flag for flag, applies in task_flags(kind).items() if not applies}
    hidden |= _flags(RankingSettings) - set(map(_flag, SETTINGS_OF.get(kind.name, ())))
    if not kind.labelled:
        hidden |= _flags(SearchSettings)
    return hidden


def task_flags(kind: "TaskKind") -> dict[str, bool]:
    """Return the settings of fine-tuning that only some kinds have, as flags, and whether this kind has them."""
    from cloze.model.heads import POOLED_HEADS
    from cloze.train.finetuning.settings import FinetuneSettings
    from cloze.train.finetuning.trainable import LABEL_FREE_SETTINGS

    few = "few" in kind.settings
    flags = {
        **{_flag(name): name in kind.settings for name in _OWN_SETTINGS},
        **dict.fromkeys(("augment", "augment-copies", "synonyms"), "augment" in kind.settings),
        **dict.fromkeys(("few", "no-few", "linear-start"), few),
        "contrastive": few and kind.targets == "index",
        "calibrate": kind.calibrate is not None,
        "pooling": kind.head in POOLED_HEADS,
    }
    if not kind.labelled:
        flags |= dict.fromkeys(
            _flags(FinetuneSettings) - set(map(_flag, {*LABEL_FREE_SETTINGS, *kind.settings})), False
        )
    return flags


def _describe_suite(suite: str) -> tuple[str, set[str]]:
    """Return the summary of a suite, and the flags that not all of its tasks have."""
    from cloze.tasks.classification.published import GLUE
    from cloze.tasks.clue import CLUE
    from cloze.tasks.registry import find_task

    tasks = list(GLUE if suite == "glue" else CLUE)
    hidden = set[str]().union(*(_hidden_in_finetuning(find_task(name)) for name in tasks))
    summary = f"Fine-tune on each task of {suite.upper()} whose files are in the folder DATA, and average the scores."
    return summary, hidden | {"dev", "folds"}


def _hidden_in_evaluation(spec: "TaskSpec | TaskKind") -> set[str]:
    from cloze.cli.retrieval import vector_tasks
    from cloze.tasks.correction.kind import CORRECTION, CorrectionSettings
    from cloze.tasks.retrieval.kind import RETRIEVAL, RetrievalSettings
    from cloze.train.settings import MlmEvaluationSettings

    kind, published = _kind_of(spec)
    hidden = _hidden_columns(kind, published) | _flags(MlmEvaluationSettings)
    for owner, settings in ((CORRECTION, CorrectionSettings), (RETRIEVAL, RetrievalSettings)):
        if kind.name != owner.name:
            hidden |= _flags(settings)
    if kind.name == CORRECTION.name:
        hidden.add("report")
    if "longest_answer" not in kind.settings:
        hidden.add("longest-answer")
    if kind.head != "sequence" or kind.targets != "index":
        hidden |= _LABEL_FLAGS
    if kind.name not in vector_tasks():
        hidden.add("precision")
    return hidden if published or kind.name == RETRIEVAL.name else hidden | {"split"}


def _hidden_for_clusters() -> set[str]:
    from cloze.train.settings import MlmEvaluationSettings

    return _flags(MlmEvaluationSettings) | _hidden_for_mlm() - {"label", "columns", "precision", "report"}


def _hidden_for_mlm() -> set[str]:
    from cloze.tasks.correction.kind import CorrectionSettings
    from cloze.tasks.retrieval.kind import RetrievalSettings

    others = _flags(CorrectionSettings) | _flags(RetrievalSettings) | {*_LABEL_FLAGS, "precision", "report"}
    return others | {*_NAMED_COLUMNS, "columns", "longest-answer", "split"} - {"text"}


def _flags(settings: type[Any]) -> set[str]:
    return {_flag(field.name) for field in fields(settings)}


def _flag(name: str) -> str:
    return name.replace("_", "-")
