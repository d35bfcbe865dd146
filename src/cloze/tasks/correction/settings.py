"""How texts are corrected. Light to import: the command line reads it.

The text under a field is its help on the command line.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from cloze.errors import ConfigError

# The name of the kind, here because the command line must not import more for it.
CORRECTION_NAME = "correction"

Reading = Literal["hidden", "seen"]

# How sure a correction must be where nobody says otherwise.
USUAL_THRESHOLD = 0.9


@dataclass(frozen=True)
class CorrectionSettings:
    """When something is corrected, and to what."""

    threshold: float | None = None
    """How sure a correction must be to be made, from 0 to 1; left out, 0.9, or what a fine-tuning to correct found."""
    reading: Reading | None = None
    """hidden: each word is hidden in turn. seen: the text as it stands, as models trained to correct do."""
    mistakes: float = 0.001
    """How likely somebody writes a certain other character or word instead of the right one."""
    similar: Path | None = None
    """A file of what is mistaken for what: a word or character, a tab, and others with spaces between, a line."""
    protect: Path | None = None
    """A file of words that are never changed, one a line."""

    def __post_init__(self) -> None:
        if self.threshold is not None and not 0 <= self.threshold <= 1:
            raise ConfigError(f"threshold is {self.threshold}; a number from 0 to 1 was expected")
        if not 0 < self.mistakes < 1:
            raise ConfigError(f"mistakes is {self.mistakes}; a share above 0 and below 1 was expected")
        if self.reading not in (None, "hidden", "seen"):
            raise ConfigError(f"reading is {self.reading!r}; hidden or seen was expected")

    def completed(self, correcting: float | None) -> "CorrectionSettings":
        """What was left out, as it suits a model; ``correcting`` is the threshold of one fine-tuned to correct."""
        reading = self.reading or ("hidden" if correcting is None else "seen")
        suits = USUAL_THRESHOLD if correcting is None or reading == "hidden" else correcting
        return replace(self, reading=reading, threshold=suits if self.threshold is None else self.threshold)
