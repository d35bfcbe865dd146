"""Where a task's rows are. Light to import: the command line reads it."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

OnBadRow = Literal["stop", "skip"]


@dataclass(frozen=True)
class RowSettings:
    """How the rows of a task are read. The text under a field is its help on the command line."""

    text: str = "text"
    """The column with the texts, prompts or words."""
    pair: str | None = None
    """The column with second texts, if there are any."""
    label: str = "label"
    """The column with the labels."""
    options: str = "options"
    """To choose: the column with a list of options, or the columns with one each, commas between."""
    on_bad_row: OnBadRow | None = None
    """stop, or skip and count; left out, to stop, unless the published files of the task are known to be bad."""

    def source(self, task: str, data: Path, dev: Path | None = None) -> "Source":
        """These rows of that task."""
        return Source(task, data, dev, **asdict(self))


@dataclass(frozen=True)
class Source:
    """A task by name, its file or folder, and which columns of the user's own files hold what."""

    task: str
    data: Path
    dev: Path | None = None
    text: str = RowSettings.text
    pair: str | None = RowSettings.pair
    label: str = RowSettings.label
    on_bad_row: OnBadRow | None = RowSettings.on_bad_row
    options: str = RowSettings.options

    def __post_init__(self) -> None:
        # Whoever writes Python writes names of files as texts.
        object.__setattr__(self, "data", Path(self.data))
        object.__setattr__(self, "dev", None if self.dev is None else Path(self.dev))

    def recorded(self) -> dict[str, Any]:
        """The same as a run writes it down, to be compared when it goes on."""
        return {name: None if value is None else str(value) for name, value in asdict(self).items()}

    def columns_named(self) -> dict[str, str]:
        """The columns that were named, and not left to their defaults."""
        named = {name: getattr(self, name) for name in ("text", "pair", "label", "options")}
        return {name: value for name, value in named.items() if value != getattr(RowSettings, name)}
