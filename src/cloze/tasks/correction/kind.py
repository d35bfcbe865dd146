"""The task kind ``correction`` and its settings.

Imports nothing heavy, because the command line loads it for ``--help``. The docstring of a field is its flag's help.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from cloze.errors import ConfigError
from cloze.models import SHIPPED_MODEL
from cloze.tasks.kind import TaskKind

Reading = Literal["hidden", "seen"]

CORRECTION_NAME = "correction"
DEFAULT_THRESHOLD = 0.9  # minimum confidence of a correction

CORRECTION = TaskKind(
    name=CORRECTION_NAME,
    summary="Train the masked-LM head to correct mistakes in texts.",
    operation="correct",
    head="mlm",
    metrics=("correction_f1",),
    columns=("text", "label"),
    labelled=False,
    unlabelled_note="correction has no labels to learn; it is only for cloze finetune (one run) and cloze evaluate",
    start=SHIPPED_MODEL,
)


@dataclass(frozen=True)
class CorrectionSettings:
    """Settings of text correction."""

    threshold: float | None = None
    """For correction: minimum confidence, from 0 to 1; by default 0.9, or the value that fine-tuning chose."""
    reading: Reading | None = None
    """For correction: hidden masks each word in turn; seen encodes the text unmasked (default if fine-tuned)."""
    mistakes: float = 0.001
    """For correction: prior probability that a given wrong character or word is written instead of the right one."""
    similar: Path | None = None
    """For correction: a file of confusion sets; each line is a word or character, then a tab, colon or space, then what
    it may be confused with."""
    protect: Path | None = None
    """For correction: a file of words that are never changed, one per line."""

    def __post_init__(self) -> None:
        if self.threshold is not None and not 0 <= self.threshold <= 1:
            raise ConfigError(f"threshold is {self.threshold}; expected a number from 0 to 1")
        if not 0 < self.mistakes < 1:
            raise ConfigError(f"mistakes is {self.mistakes}; expected a fraction above 0 and below 1")
        if self.reading not in (None, "hidden", "seen"):
            raise ConfigError(f"reading is {self.reading!r}; expected hidden or seen")

    def completed(self, correcting: float | None) -> "CorrectionSettings":
        """Fill in missing values; ``correcting`` is the threshold of a model trained for correction, else None."""
        reading = self.reading or ("hidden" if correcting is None else "seen")
        threshold = DEFAULT_THRESHOLD if correcting is None or reading == "hidden" else correcting
        return replace(self, reading=reading, threshold=threshold if self.threshold is None else self.threshold)
