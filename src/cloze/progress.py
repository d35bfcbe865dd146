"""The progress of long work: library functions take a ``Progress`` and never print by themselves.

The command line passes one that draws bars. The public functions that train draw a bar on a terminal or in a notebook
unless they are given another listener; elsewhere they are silent.
"""

import sys
import time
from typing import Protocol, TextIO

# Seconds between two updates of a bar, and its width in characters.
_EVERY = 0.2
_WIDTH = 24


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


class TextBar:
    """A bar of plain text that overwrites its line, which terminals and notebooks both show."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._stage, self._start, self._shown, self._length = "", 0.0, 0.0, 0
        self._messages: set[str] = set()

    def advance(self, stage: str, done: int, total: int | None, **figures: float) -> None:
        """Draw the bar of a stage, a few times per second."""
        now = time.monotonic()
        if stage != self._stage:
            self._end_line()
            self._stage, self._start, self._shown = stage, now, 0.0
        if done == 0 or (now - self._shown < _EVERY and done != total):
            return
        self._shown = now
        self._write(_bar_line(stage, done, total, now - self._start, figures.get("loss")))
        if done == total:
            self._end_line()

    def say(self, message: str) -> None:
        """Write one line; a repeated line is written once."""
        if message not in self._messages:
            self._messages.add(message)
            self._end_line()
            self._stream.write(f"{message}\n")
            self._stream.flush()

    def _write(self, line: str) -> None:
        self._stream.write("\r" + line.ljust(self._length))
        self._stream.flush()
        self._length = len(line)

    def _end_line(self) -> None:
        if self._length:
            self._stream.write("\n")
            self._length = 0


def _bar_line(stage: str, done: int, total: int | None, seconds: float, loss: float | None) -> str:
    shown_loss = "" if loss is None else f"  loss {loss:.3f}"
    if not total:
        return f"{stage}: {done:,}{shown_loss}"
    filled = round(_WIDTH * done / total)
    left = seconds / done * (total - done)
    bar = "█" * filled + "·" * (_WIDTH - filled)
    return f"{stage} {bar} {done:,}/{total:,}{shown_loss}  {seconds:.0f} s, {left:.0f} s left"


def choose_progress(progress: "Progress | bool | None" = None) -> "Progress":
    """Return the listener of a public function.

    Args:
        progress: A listener; True for a bar, False for silence, None for a bar on a terminal or in a notebook.
    """
    if progress is None:
        progress = sys.stderr.isatty() or "ipykernel" in sys.modules
    if isinstance(progress, bool):
        return TextBar(sys.stderr) if progress else Silent()
    return progress
