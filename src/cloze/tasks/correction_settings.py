"""How texts are corrected. Light to import: the command line reads it.

The text under a field is its help on the command line.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cloze.errors import ConfigError

Reading = Literal["hidden", "seen"]


@dataclass(frozen=True)
class CorrectionSettings:
    """When something is corrected, and to what."""

    threshold: float = 0.9
    """How sure a correction must be to be made, from 0 to 1."""
    reading: Reading = "hidden"
    """hidden: each word is hidden in turn. seen: the text as it stands, for models pre-trained to correct."""
    mistakes: float = 0.001
    """How likely somebody writes a certain other character or word instead of the right one."""
    similar: Path | None = None
    """A file of what is mistaken for what: a word or character, a tab, and others with spaces between, a line."""
    protect: Path | None = None
    """A file of words that are never changed, one a line."""

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise ConfigError(f"threshold is {self.threshold}; a number from 0 to 1 was expected")
        if not 0 < self.mistakes < 1:
            raise ConfigError(f"mistakes is {self.mistakes}; a share above 0 and below 1 was expected")
        if self.reading not in ("hidden", "seen"):
            raise ConfigError(f"reading is {self.reading!r}; hidden or seen was expected")
