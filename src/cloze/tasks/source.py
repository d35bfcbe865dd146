"""Where a task's rows are. Light to import: the command line reads it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

OnBadRow = Literal["stop", "skip"]


@dataclass(frozen=True)
class Source:
    """A task by name, its file or folder, and which columns of the user's own files hold what."""

    task: str
    data: Path
    dev: Path | None = None
    text: str = "text"
    pair: str | None = None
    label: str = "label"
    on_bad_row: OnBadRow | None = None  # None: as the task has it, which is to stop unless its published files are bad
    options: str = "options"  # to choose: the column with a list, or columns with an option each, commas between
