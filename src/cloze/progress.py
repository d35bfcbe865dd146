"""Long-running work: progress reports, and handling of SIGTERM and SIGINT.

Library functions take a ``Progress`` and never print themselves. The command line passes a listener that draws progress
bars. By default, the public training functions draw a bar on a terminal or in a notebook. If the output goes to a pipe
or a file, both print plain lines at intervals.

Signals are handled between two steps if the work must be saved first, or immediately if it is safe.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Protocol, TextIO

# Seconds between two updates of a bar, and its width in characters.
_EVERY = 0.2
_WIDTH = 24
# Seconds between plain lines if there is no bar.
PLAIN_EVERY = 10.0
# Short names of figures, and figures that are not shown.
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
    """A listener for progress (``advance``) and messages (``say``)."""

    def advance(self, stage: str, done: int, total: int | None, **figures: float) -> None:
        """Report that ``done`` of ``total`` units of ``stage`` are finished, with figures to show."""

    def say(self, message: str) -> None:
        """Report a one-line message."""


class Silent:
    """A listener that ignores all reports."""

    def advance(self, stage: str, done: int, total: int | None, **figures: float) -> None:
        """Ignore it."""

    def say(self, message: str) -> None:
        """Ignore it."""


class StageClock:
    """Estimates the remaining time of each stage from its mean rate."""

    def __init__(self) -> None:
        self._starts: dict[str, tuple[float, int]] = {}
        self._done: dict[str, int] = {}

    def restarts(self, stage: str, done: int) -> bool:
        """Return whether a stage starts again, for example in another run; if so, its estimate is reset."""
        again = done < self._done.get(stage, 0)
        self._done[stage] = done
        if again:
            self._starts.pop(stage, None)
        return again

    def seconds_left(self, stage: str, done: int, total: int | None) -> float | None:
        """Return the remaining seconds; None if the stage has just started, is finished, or has no known total."""
        now = time.monotonic()
        start, first = self._starts.setdefault(stage, (now, done))
        return (now - start) / (done - first) * (total - done) if total and first < done < total else None


class PlainLines:
    """A listener that prints plain lines to standard error: one every ten seconds, and one at the end of a stage."""

    def __init__(self) -> None:
        self._clock, self._last = StageClock(), 0.0
        self._messages: set[str] = set()

    def advance(self, stage: str, done: int, total: int | None, **figures: float) -> None:
        """Print the progress of a stage unless the last line is recent."""
        self._clock.restarts(stage, done)
        left = self._clock.seconds_left(stage, done, total)
        if done == 0:  # "0 of 100" would look as if the work were stuck
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
    """Return the visible figures of a stage in one line."""
    shown = {
        _SHORT_NAMES.get(name, name): _number(name, value) for name, value in figures.items() if name not in _HIDDEN
    }
    return "  ".join(f"{name} {number}" for name, number in shown.items())


def _number(name: str, value: float) -> str:
    if name.endswith("accuracy") or name == "share_of_peak":
        return f"{value:.0%}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3f}"


class TextBar:
    """A listener that draws a plain-text bar by overwriting its line, for terminals and notebooks."""

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
    """Return the listener for the ``progress`` argument of a public function.

    Args:
        progress: A listener, True for a bar, or False for no output. None selects a bar on a terminal or in a notebook,
            and plain lines otherwise.
    """
    if progress is None:
        if not sys.stderr.isatty() and "ipykernel" not in sys.modules:
            return PlainLines()
        progress = True
    if isinstance(progress, bool):
        return TextBar(sys.stderr) if progress else Silent()
    return progress


# -- signals -----------------------------------------------------------------------------------------------------------


NUMBERS = (signal.SIGINT, signal.SIGTERM)
Handler = Callable[[int, FrameType | None], None]


class Interrupted(Exception):  # noqa: N818 (it is not an error: the work is saved)
    """Raised when a signal stopped the work; the progress so far is saved."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number

    @property
    def exit_code(self) -> int:
        """Exit code that shells expect after a signal: 130 for SIGINT, 143 for SIGTERM."""
        return 128 + self.number


class Interrupts:
    """The number of the last signal, or None."""

    def __init__(self) -> None:
        self.number: int | None = None

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 (the handler's signature)
        self.number = number


@contextmanager
def heard_between_steps() -> Iterator[Interrupts]:
    """Record signals while the block runs, so that it can check for them between steps."""
    interrupts = Interrupts()
    with _handled(interrupts._note):
        yield interrupts


@contextmanager
def heard_at_once() -> Iterator[None]:
    """Raise ``Interrupted`` immediately if a signal arrives while the block runs."""

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 (the handler's signature)
        for each in NUMBERS:  # ignore further signals, which would interrupt the cleanup
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number, "stopped")

    with _handled(stop):
        yield


@contextmanager
def _handled(handler: Handler) -> Iterator[None]:
    """Install a signal handler while the block runs, then restore the previous handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    before = {number: signal.signal(number, handler) for number in NUMBERS}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
