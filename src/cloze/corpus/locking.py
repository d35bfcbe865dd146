"""Two processes are kept from preparing text in one place."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cloze.errors import DataError

LOCK = "lock"


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
