"""One writer per target, and the names beside a target that only cloze makes.

    .NAME.cloze-lock                    locked by ``flock`` while a process writes to NAME; it ends with the process
    .NAME.0123456789abcdef.cloze-tmp    what is being written, until it gets the name of the target
    .NAME.0123456789abcdef.cloze-old    the folder that was there before, between the two renames of an exchange

A writer deletes its lock file when it is done. So a lock file that is there but not locked was left by a writer that
was killed, and the next writer puts in order what that has left, and nothing else: NAME.tmp may be anybody's.
"""

import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from cloze.errors import ClozeError

# The lock file inside a folder that is cloze's own, such as that of the checkpoints.
LOCK = "lock"
_LOCK_ENDING, _TEMPORARY_ENDING, _ASIDE_ENDING = "cloze-lock", "cloze-tmp", "cloze-old"
_TEMPORARY_NAME = re.compile(rf"\.(?P<name>.+)\.[0-9a-f]{{16}}\.({_TEMPORARY_ENDING}|{_ASIDE_ENDING})")
_LOCK_NAME = re.compile(rf"\.(.+)\.{_LOCK_ENDING}")
_LONGEST_STEM = 200  # bytes; a file name has at most 255
# A link or a pipe of this name is not ours, and opening it must not wait.
_LOCK_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# Errors of file systems without locks.
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


@contextmanager
def locked(folder: Path, complaint: ClozeError) -> Iterator[None]:
    """Hold a folder of cloze's own against others, who get this complaint; the lock goes with the process."""
    path = folder / LOCK
    try:
        descriptor, _ = _open_lock(path)
    except BlockingIOError as error:
        raise complaint from error
    except OSError as error:
        raise ClozeError(f"{path}: cannot be written ({error.strerror}); choose another place") from error
    try:
        yield
    finally:
        os.close(descriptor)


def _open_lock(path: Path) -> tuple[int, bool]:
    """Open a lock file and lock it; return its descriptor, and whether a writer that was killed has left it.

    Raises:
        BlockingIOError: If another process holds the lock.
    """
    # Opened for reading: a file open for writing keeps a file system from being remounted read-only. NFS needs writing.
    access, existed = os.O_RDONLY, True
    while True:
        try:
            # Without O_CREAT: in a shared folder such as /tmp, Linux refuses that for an existing file of another user.
            descriptor = os.open(path, access | _LOCK_FLAGS)
        except FileNotFoundError:
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | _LOCK_FLAGS, 0o666))
                existed = False
            continue
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise FileExistsError(errno.EEXIST, f"{path.name} is not a file")
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_named(descriptor, path):
                return descriptor, existed
        except OSError as error:
            if error.errno in _NO_LOCKS:  # those who use such a file system have to take care themselves
                return descriptor, False
            if error.errno != errno.EBADF or access == os.O_RDWR:
                os.close(descriptor)
                raise
            access = os.O_RDWR
        os.close(descriptor)


def _is_named(descriptor: int, path: Path) -> bool:
    """Return whether an open file still has its name; its owner may have deleted it since it was opened."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


@dataclass
class _Held:
    """A target that this process holds: by which thread, how often, and which folders were created for it."""

    descriptor: int
    thread: int
    created: list[Path]
    count: int = 0


_held: dict[Path, _Held] = {}
# Of _held. Reentrant: while one target is taken, the garbage collector may close a run, which releases another.
_guard = threading.RLock()


@contextmanager
def only_writer(target: Path) -> Iterator[None]:
    """Hold a target, file or folder, against other writers.

    A thread may hold a target several times. What a killed writer of the target has left is put in order first.

    Args:
        target: The file or folder. A symbolic link stands for what it points to.

    Raises:
        ClozeError: If another process or thread writes to it, or the place cannot be written.
    """
    place = real_target(target)
    with _guard:
        held = _held.get(place)
        if held is None:
            held = _held[place] = _hold(place, target)
        elif held.thread != threading.get_ident():
            raise _busy(target)
        held.count += 1
    try:
        yield
    finally:
        with _guard:
            held.count -= 1
            if not held.count:
                del _held[place]
                _release(place, held)


def _hold(place: Path, target: Path) -> _Held:
    created = [folder for folder in place.parents if not folder.exists()]
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        descriptor, left_behind = _open_lock(_beside(place, _LOCK_ENDING))
    except BlockingIOError as error:
        raise _busy(target) from error
    except OSError as error:
        raise ClozeError(
            f"{target}: cannot be written ({error.strerror or error}); free some space or choose another place"
        ) from error
    if left_behind:
        put_in_order(place)
    return _Held(descriptor, threading.get_ident(), created)


def _busy(target: Path) -> ClozeError:
    return ClozeError(
        f"{target}: another process is writing to {target.name}; wait for it to end, or choose another place"
    )


def _release(place: Path, held: _Held) -> None:
    with suppress(OSError):
        if not os.fstat(held.descriptor).st_size:  # ours are empty
            _beside(place, _LOCK_ENDING).unlink(missing_ok=True)
    os.close(held.descriptor)
    with suppress(OSError):  # folders that were created for nothing; others are not empty
        for folder in held.created:
            folder.rmdir()


_command_locks: ContextVar[ExitStack | None] = ContextVar("command_locks", default=None)


@contextmanager
def command_locks() -> Iterator[None]:
    """Let ``hold_target`` hold targets until the block ends: that of a command."""
    with ExitStack() as stack:
        token = _command_locks.set(stack)
        try:
            yield
        finally:
            _command_locks.reset(token)


def hold_target(target: Path) -> None:
    """Hold a target until the command ends, so that a second command on it is refused before it does any work."""
    stack = _command_locks.get()
    # Of the processes that torchrun starts, only the first writes.
    if stack is not None and os.environ.get("RANK", "0") == "0":
        stack.enter_context(only_writer(target))


def real_target(path: Path) -> Path:
    """Return where a path leads: writing replaces what a symbolic link points to, not the link."""
    return Path(os.path.realpath(path))


def temporary_name(place: Path) -> Path:
    """Return a new name beside a target for what is being written."""
    return _beside(place, f"{secrets.token_hex(8)}.{_TEMPORARY_ENDING}")


def aside_name(place: Path) -> Path:
    """Return a new name beside a folder, for it to wait there while another one takes its name."""
    return _beside(place, f"{secrets.token_hex(8)}.{_ASIDE_ENDING}")


def target_name(temporary: Path) -> str | None:
    """Return the name of the target that a temporary name belongs to; None for any other name."""
    found = _TEMPORARY_NAME.fullmatch(temporary.name)
    return found["name"] if found else None


def aside_target(path: Path) -> str | None:
    """Return the name of a folder that was put aside here; None for any other name."""
    return target_name(path) if path.name.endswith(_ASIDE_ENDING) else None


def is_ours(path: Path) -> bool:
    """Return whether a name is that of a lock file or a temporary."""
    return target_name(path) is not None or _LOCK_NAME.fullmatch(path.name) is not None


def _beside(place: Path, ending: str) -> Path:
    name = os.fsencode(place.name)
    stem = place.name if len(name) <= _LONGEST_STEM else hashlib.sha256(name).hexdigest()[:32]
    return place.with_name(f".{stem}.{ending}")


def put_in_order(place: Path) -> None:
    """Give what a killed writer had put aside its name again, and delete what it had not finished.

    Only for those who hold the target: the temporaries of a living writer are under its lock.
    """
    stem = target_name(temporary_name(place))
    with suppress(OSError):  # writing will report an error of the disk
        left = [path for path in place.parent.iterdir() if target_name(path) == stem and not path.is_symlink()]
        aside = [path for path in left if aside_target(path) is not None]
        if aside and not os.path.lexists(place):
            newest = max(aside, key=lambda path: path.stat().st_mtime_ns)
            newest.rename(place)
            left.remove(newest)
        for path in left:
            delete(path)


def sweep(folder: Path) -> None:
    """Put in order what killed writers have left in a folder of cloze's own; what others are writing stays."""
    for path in folder.iterdir():
        if found := _LOCK_NAME.fullmatch(path.name):
            with suppress(ClozeError), only_writer(folder / found[1]):
                pass


def delete(path: Path) -> None:
    """Delete a file or folder that is cloze's own, as far as the disk lets it."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
