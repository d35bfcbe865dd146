"""What is known of a task by its name: its kind, how it is scored, and how its rows are read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from cloze.kinds import TaskKind
from cloze.tasks.items import Examples
from cloze.tasks.labels import LabelSet
from cloze.tasks.source import Source


class Read(NamedTuple):
    """The rows of a split, and the labels that they are held to; None where a task has none."""

    examples: Examples
    labels: LabelSet | None = None


# Source, split ("train", "dev", ...), and the labels to hold the rows to: None for those of training, which are found.
Reader = Callable[[Source, str, LabelSet | None], Read]


@dataclass(frozen=True)
class TaskSpec:
    """One task; ``published`` ones have files of known names, the others are anybody's own."""

    kind: TaskKind
    metrics: tuple[str, ...]  # the first is the one that counts
    read: Reader
    published: bool = True
    columns: tuple[str, ...] = ("text", "pair", "label")  # of anybody's own tables
