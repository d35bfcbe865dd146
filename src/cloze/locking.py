"""Two processes are kept from working in one place."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cloze.errors import ClozeError

LOCK = "lock"


@contextmanager
def locked(folder: Path, complaint: ClozeError) -> Iterator[None]:
    """Hold a folder against others, who get this complaint; the lock goes with the process, however it ends."""
    try:
        file = (folder / LOCK).open("w")
    except OSError as error:
        raise ClozeError(f"{folder}: cannot be written ({error.strerror}); choose another place") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise complaint from error
        except OSError:
            pass  # a file system without locks: those who use one have to take care themselves
        yield
