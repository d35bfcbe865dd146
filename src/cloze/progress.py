"""The progress of long work: library functions take a ``Progress`` and never print by themselves.

The command line passes one that draws bars. The public functions that train draw a bar on a terminal or in a notebook
unless they are given another listener. Where output goes to a pipe or a file, both print plain lines now and then.
"""

import sys
import time
from collections.abc import Mapping
from typing import Protocol, TextIO

# Seconds between two updates of a bar, and its width in characters.
_EVERY = 0.2
_WIDTH = 24
# Seconds between plain lines, where there is no bar.
PLAIN_EVERY = 10.0
# Names of figures in a line, and figures that are left out of it.
_SHORT_NAMES = {
    "tokens_per_second": "tokens/s",
    "rows_per_second": "rows/s",
    "share_of_peak": "of peak",
    "mlm_accuracy": "mlm",
    "nsp_accuracy": "nsp",
    "sop_accuracy": "sop",
    "relation_accuracy": "relation",
}
_HIDDEN = {"mlm_loss", "nsp_loss", "sop_loss", "relation_loss", "sbo_loss", "tokens_seen"}


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


class StageClock:
    """Estimates the time left of each stage from its mean rate."""

    def __init__(self) -> None:
        self._starts: dict[str, tuple[float, int]] = {}
        self._done: dict[str, int] = {}

    def restarts(self, stage: str, done: int) -> bool:
        """Return whether a stage begins again, as that of another run does; its start is then forgotten."""
        again = done < self._done.get(stage, 0)
        self._done[stage] = done
        if again:
            self._starts.pop(stage, None)
        return again

    def seconds_left(self, stage: str, done: int, total: int | None) -> float | None:
        """Return the estimate; None where the stage has just begun, is over, or has no known end."""
        now = time.monotonic()
        start, first = self._starts.setdefault(stage, (now, done))
        return (now - start) / (done - first) * (total - done) if total and first < done < total else None


class PlainLines:
    """Plain lines on standard error: one every ten seconds while a stage goes on, and one at its end."""

    def __init__(self) -> None:
        self._clock, self._last = StageClock(), 0.0
        self._messages: set[str] = set()

    def advance(self, stage: str, done: int, total: int | None, **figures: float) -> None:
        """Print how far a stage is, unless the last line is recent."""
        self._clock.restarts(stage, done)
        left = self._clock.seconds_left(stage, done, total)
        if done == 0:  # "0 done" looks as if it were stuck
            return
        now = time.monotonic()
        if now - self._last < PLAIN_EVERY and done != total:
            return
        self._last = now
        of = f" of {total:,}" if total else ""
        time_left = "" if left is None else f", {left:.0f} s left"
        shown = format_figures(figures)
        _print(f"{stage}: {done:,}{of}{time_left}{'  ' + shown if shown else ''}")

    def say(self, message: str) -> None:
        """Print one line; a repeated line is printed once."""
        if message not in self._messages:
            self._messages.add(message)
            _print(message)


def _print(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def format_figures(figures: Mapping[str, float]) -> str:
    """Return the figures of a stage that are worth showing, in one line."""
    shown = {
        _SHORT_NAMES.get(name, name): _number(name, value) for name, value in figures.items() if name not in _HIDDEN
    }
    return "  ".join(f"{name} {number}" for name, number in shown.items())


def _number(name: str, value: float) -> str:
    if name.endswith("accuracy") or name == "share_of_peak":
        return f"{value:.0%}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3f}"


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
        progress: A listener; True for a bar, False for silence, None for a bar on a terminal or in a notebook, and for
            plain lines elsewhere.
    """
    if progress is None:
        if not sys.stderr.isatty() and "ipykernel" not in sys.modules:
            return PlainLines()
        progress = True
    if isinstance(progress, bool):
        return TextBar(sys.stderr) if progress else Silent()
    return progress
