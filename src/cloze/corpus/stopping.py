"""How preparation is stopped by a signal, and how two of them are kept from working in one place.

A signal is heard at once, not between two steps, since finished shards are safe at any moment.
"""

import fcntl
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from cloze.errors import DataError
from cloze.interrupts import Interrupted

LOCK = "lock"


@contextmanager
def heard_at_once() -> Iterator[None]:
    """Raise ``Interrupted`` where a signal finds us while the block runs; the handlers before are put back after it."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 (the handler's signature)
        for each in before:  # one is enough: the second would find us tidying up
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number, "stopped")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder against other processes; the lock goes with the process, however it ends."""
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DataError(
                f"{folder}: another process is preparing this; wait for it or choose another --out"
            ) from error
        except OSError:
            pass  # a file system without locks: those who use one have to take care themselves
        yield
