"""Ensure a single writer per target, and manage the temporary names next to a target.

    .NAME.cloze-lock                    locked by ``flock`` while a process writes to NAME; released with the process
    .NAME.0123456789abcdef.cloze-tmp    the new version while it is being written
    .NAME.0123456789abcdef.cloze-old    the old folder between the two renames of a replacement

A writer deletes its lock file when it finishes. A lock file that exists but is not locked was therefore left behind by
a killed writer, and the next writer cleans up that writer's temporary names. Other names, such as NAME.tmp, are never
touched, because they may belong to someone else.
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

# Name of the lock file inside folders that belong to cloze, such as the checkpoints of a run.
LOCK = "lock"
_LOCK_ENDING, _TEMPORARY_ENDING, _ASIDE_ENDING = "cloze-lock", "cloze-tmp", "cloze-old"
_TEMPORARY_NAME = re.compile(rf"\.(?P<name>.+)\.[0-9a-f]{{16}}\.({_TEMPORARY_ENDING}|{_ASIDE_ENDING})")
_LOCK_NAME = re.compile(rf"\.(.+)\.{_LOCK_ENDING}")
_LONGEST_STEM = 200  # bytes; a file name has at most 255
# A link or a pipe with this name does not belong to cloze, and opening it must not block.
_LOCK_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# Errors of file systems without locks.
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


@contextmanager
def locked(folder: Path, complaint: ClozeError) -> Iterator[None]:
    """Lock a folder that belongs to cloze; raise ``complaint`` if another process holds the lock.

    The lock is released when the block or the process ends.
    """
    path = folder / LOCK
    try:
        descriptor, _ = _open_lock(path)
    except BlockingIOError as error:
        raise complaint from error
    except OSError as error:
        raise ClozeError(f"{path}: cannot be written ({error.strerror}); choose another location") from error
    try:
        yield
    finally:
        os.close(descriptor)


def _open_lock(path: Path) -> tuple[int, bool]:
    """Open a lock file and lock it; return its descriptor, and whether a killed writer left it behind.

    Raises:
        BlockingIOError: If another process holds the lock.
    """
    # Opened for reading, because a file open for writing prevents remounting read-only. On NFS, however, a file must be
    # open for writing to be locked.
    access, existed = os.O_RDONLY, True
    while True:
        try:
            # Without O_CREAT, which Linux rejects for existing files of other users in shared folders such as /tmp.
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
            if error.errno in _NO_LOCKS:  # without support for locks, the user must avoid concurrent writers
                return descriptor, False
            if error.errno != errno.EBADF or access == os.O_RDWR:
                os.close(descriptor)
                raise
            access = os.O_RDWR
        os.close(descriptor)


def _is_named(descriptor: int, path: Path) -> bool:
    """Return whether an open file still has its name; another process may have deleted it in the meantime."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


@dataclass
class _Held:
    """A target held by this process: the thread, the number of holds, and the folders created for the target."""

    descriptor: int
    thread: int
    created: list[Path]
    count: int = 0


_held: dict[Path, _Held] = {}
# Guards _held. Reentrant, because the garbage collector may close a run, which releases a target, at any time.
_guard = threading.RLock()


@contextmanager
def only_writer(target: Path) -> Iterator[None]:
    """Lock a target (file or folder) against other writers while the block runs.

    A thread may hold a target several times. If a previous writer was killed, its temporary files are cleaned up first.

    Args:
        target: The file or folder. Symbolic links are resolved.

    Raises:
        ClozeError: If another process or thread is writing to the target, or it cannot be written.
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
            f"{target}: cannot be written ({error.strerror or error}); free some space or choose another location"
        ) from error
    if left_behind:
        put_in_order(place)
    return _Held(descriptor, threading.get_ident(), created)


def _busy(target: Path) -> ClozeError:
    return ClozeError(
        f"{target}: another process is writing to {target.name}; wait for it to end, or choose another location"
    )


def _release(place: Path, held: _Held) -> None:
    with suppress(OSError):
        if not os.fstat(held.descriptor).st_size:  # lock files of cloze are empty
            _beside(place, _LOCK_ENDING).unlink(missing_ok=True)
    os.close(held.descriptor)
    with suppress(OSError):  # removes only unused folders: rmdir fails for folders with content
        for folder in held.created:
            folder.rmdir()


_command_locks: ContextVar[ExitStack | None] = ContextVar("command_locks", default=None)


@contextmanager
def command_locks() -> Iterator[None]:
    """Allow ``hold_target`` to hold targets until the end of the block, which is a whole command."""
    with ExitStack() as stack:
        token = _command_locks.set(stack)
        try:
            yield
        finally:
            _command_locks.reset(token)


def hold_target(target: Path) -> None:
    """Hold a target until the command ends, so that a second command for it is rejected before it does any work."""
    stack = _command_locks.get()
    # Only the main process (rank 0) of a distributed run writes.
    if stack is not None and os.environ.get("RANK", "0") == "0":
        stack.enter_context(only_writer(target))


def real_target(path: Path) -> Path:
    """Resolve symbolic links: writing replaces the target of a link, not the link."""
    return Path(os.path.realpath(path))


def temporary_name(place: Path) -> Path:
    """Return a new name next to a target for the version being written."""
    return _beside(place, f"{secrets.token_hex(8)}.{_TEMPORARY_ENDING}")


def aside_name(place: Path) -> Path:
    """Return a new name next to a folder, to which the folder is moved while it is being replaced."""
    return _beside(place, f"{secrets.token_hex(8)}.{_ASIDE_ENDING}")


def target_name(temporary: Path) -> str | None:
    """Return the name of the target that a temporary name belongs to; None for any other name."""
    found = _TEMPORARY_NAME.fullmatch(temporary.name)
    return found["name"] if found else None


def aside_target(path: Path) -> str | None:
    """Return the original name of a folder that was moved aside to this path; None for any other path."""
    return target_name(path) if path.name.endswith(_ASIDE_ENDING) else None


def is_ours(path: Path) -> bool:
    """Return whether a path has the name of a lock file or a temporary file."""
    return target_name(path) is not None or _LOCK_NAME.fullmatch(path.name) is not None


def _beside(place: Path, ending: str) -> Path:
    name = os.fsencode(place.name)
    stem = place.name if len(name) <= _LONGEST_STEM else hashlib.sha256(name).hexdigest()[:32]
    return place.with_name(f".{stem}.{ending}")


def put_in_order(place: Path) -> None:
    """Restore a folder that a killed writer had moved aside, and delete its unfinished files.

    The caller must hold the target; otherwise, this could delete the temporary files of a running writer.
    """
    stem = target_name(temporary_name(place))
    with suppress(OSError):  # if the disk has an error, writing will report it
        left = [path for path in place.parent.iterdir() if target_name(path) == stem and not path.is_symlink()]
        aside = [path for path in left if aside_target(path) is not None]
        if aside and not os.path.lexists(place):
            newest = max(aside, key=lambda path: path.stat().st_mtime_ns)
            newest.rename(place)
            left.remove(newest)
        for path in left:
            delete(path)


def sweep(folder: Path) -> None:
    """Clean up after killed writers in a folder that belongs to cloze; files of running writers are not touched."""
    for path in folder.iterdir():
        if found := _LOCK_NAME.fullmatch(path.name):
            with suppress(ClozeError), only_writer(folder / found[1]):
                pass


def delete(path: Path) -> None:
    """Delete a file or folder that belongs to cloze, ignoring errors."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
