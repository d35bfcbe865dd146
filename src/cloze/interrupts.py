"""Handle SIGTERM and SIGINT: between two steps if the work must be saved first, or immediately if it is safe."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

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
