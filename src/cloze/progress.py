"""The progress of long work, reported without printing.

Library functions take a ``Progress`` and never print; the command line passes one that draws a bar on a terminal and
plain lines elsewhere, and everybody else gets the silent default.
"""

from typing import Protocol


class Progress(Protocol):
    """A listener: ``advance`` as the work goes on, ``say`` for a sentence worth reading."""

    def advance(self, stage: str, done: int, total: int | None, **figures: float) -> None:
        """Report that ``done`` of ``total`` units of ``stage`` are finished, with figures worth showing."""

    def say(self, message: str) -> None:
        """Pass on one line of information."""


class Silent:
    """The listener of those who did not ask."""

    def advance(self, stage: str, done: int, total: int | None, **figures: float) -> None:
        """Ignore it."""

    def say(self, message: str) -> None:
        """Ignore it."""
