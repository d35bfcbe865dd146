"""SIGTERM and SIGINT, heard between two steps instead of in the middle of one."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(Exception):  # noqa: N818 (it is not an error: the work is saved)
    """The training was told to stop, and has saved what it had."""

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
    """Note the signals while the block runs; the handlers before are put back after it."""
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts  # only the main thread may set handlers
        return
    before = {number: signal.signal(number, interrupts._note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
