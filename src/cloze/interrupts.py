"""SIGTERM and SIGINT: heard between two steps where the work is then saved, or at once where it is safe already."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

NUMBERS = (signal.SIGINT, signal.SIGTERM)
Handler = Callable[[int, FrameType | None], None]


class Interrupted(Exception):  # noqa: N818 (it is not an error: the work is saved)
    """The work was told to stop, and what it had is saved."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number

    @property
    def exit_code(self) -> int:
        """What the shell expects of a process that a signal ended: 130 for SIGINT, 143 for SIGTERM."""
        return 128 + self.number


class Interrupts:
    """The signal that came last, if one did."""

    def __init__(self) -> None:
        self.number: int | None = None

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 (the handler's signature)
        self.number = number


@contextmanager
def heard_between_steps() -> Iterator[Interrupts]:
    """Note the signals while the block runs."""
    interrupts = Interrupts()
    with _handled(interrupts._note):
        yield interrupts


@contextmanager
def heard_at_once() -> Iterator[None]:
    """Raise ``Interrupted`` where a signal finds us while the block runs."""

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 (the handler's signature)
        for each in NUMBERS:  # one is enough: the second would find us tidying up
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number, "stopped")

    with _handled(stop):
        yield


@contextmanager
def _handled(handler: Handler) -> Iterator[None]:
    """Have signals handled so while the block runs; the handlers before are put back after it."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    before = {number: signal.signal(number, handler) for number in NUMBERS}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
