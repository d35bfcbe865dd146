"""Writing that survives a power cut, and reading that trusts no size.

A folder is written beside its place under another name, flushed to the disk, and renamed: whoever looks sees the old
one or the new one, never half of one.
"""

import errno
import fcntl
import gzip
import io
import json
import lzma
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from cloze.errors import CheckpointError, ClozeError, ConfigError

# The lock file of a folder.
LOCK = "lock"
# Configuration files are a few kilobytes; a larger one is a mistake or an attack.
JSON_LIMIT = 16 * 2**20
# What we write ourselves of corpora names every file and every shard of them.
OUR_JSON_LIMIT = 2**30


def flush(path: Path) -> None:
    """Have the disk, not only the cache, hold this file or folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_tree(folder: Path) -> None:
    """Flush every file below a folder, then the folders, so that names and contents both hold."""
    for path in sorted(folder.rglob("*"), reverse=True):
        flush(path)
    flush(folder)


@contextmanager
def locked(folder: Path, complaint: ClozeError) -> Iterator[None]:
    """Hold a folder against others, who get this complaint; the lock goes with the process, however it ends."""
    descriptor = _lock(folder / LOCK, complaint)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(path: Path, complaint: ClozeError, flags: int = os.O_RDONLY) -> int:
    try:
        descriptor = os.open(path, flags | os.O_CREAT, 0o666)
    except OSError as error:
        raise ClozeError(f"{path}: cannot be written ({error.strerror}); choose another place") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise complaint from error
    except OSError as error:
        # Opened for reading: a file open for writing keeps a file system from being remounted read-only. NFS needs it.
        if error.errno == errno.EBADF and flags != os.O_RDWR:
            os.close(descriptor)
            return _lock(path, complaint, os.O_RDWR)
        # Else a file system without locks: those who use one have to take care themselves.
    return descriptor


def check_named(folder: Path) -> Path:
    """Return a place for a folder that is made beside it and then gets its name; refuse one without a name."""
    if folder.name in ("", ".."):
        raise ConfigError(f"{folder}: a folder with a name of its own was expected, such as {folder / 'new'}")
    return folder


@contextmanager
def replaced_folder(destination: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes ``destination`` when the block ends well, and vanishes when it does not."""
    temporary = check_named(destination).with_name(f"{destination.name}.tmp")
    old = put_aside(destination)
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        _put_back(old, destination)  # an earlier process was ended between the two renames below
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        yield temporary
        flush_tree(temporary)
        if destination.exists():
            destination.rename(old)
        temporary.rename(destination)
        flush(destination.parent)
    except OSError as error:
        raise ClozeError(
            f"{destination}: cannot be written ({error.strerror or error}); "
            "what was there before is untouched; free some space or choose another --out"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        with suppress(OSError):  # whatever ails the disk has been told
            _put_back(old, destination)


def put_aside(destination: Path) -> Path:
    """Where a folder waits while another takes its name.

    A place that nobody else uses: "model.old" may well be what somebody wants to keep.
    """
    return destination.with_name(f".{destination.name}.replaced")


def _put_back(old: Path, destination: Path) -> None:
    """Give the old folder its name again if nothing has taken its place; drop it otherwise."""
    if old.exists() and not destination.exists():
        old.rename(destination)
    shutil.rmtree(old, ignore_errors=True)


COMPRESSED = (".gz", ".xz", ".zst")
# What a compressed file that is damaged or cut short may raise.
BROKEN_ARCHIVE = (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError)


def open_bytes(path: Path) -> BinaryIO:
    """Open a file for reading, through its decompressor if its name ends in ``.gz``, ``.xz`` or ``.zst``."""
    match path.suffix.lower():
        case ".gz":
            return cast("BinaryIO", gzip.open(path))
        case ".xz":
            return cast("BinaryIO", lzma.open(path))
        case ".zst":
            import pyarrow  # a quarter of a second, so only for those who need it

            return io.BufferedReader(pyarrow.CompressedInputStream(pyarrow.OSFile(str(path)), "zstd"))
    return path.open("rb")


@contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """Yield the name of a file that becomes ``path`` when the block ends well, and vanishes when it does not."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        flush(temporary)
        temporary.replace(path)
    except OSError as error:
        raise ClozeError(f"{path}: cannot be written ({error.strerror or error}); choose another place") from error
    finally:
        with suppress(OSError):  # whatever ails the disk has been told
            temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write a value the way people like to read and to compare it, into a folder that is being made."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def replace_json(path: Path, value: Any) -> None:
    """Write a file of its own: all of it, or nothing."""
    with replaced_file(path) as temporary:
        write_json(temporary, value)


def replace_json_lines(path: Path, rows: Iterable[Any]) -> None:
    """Put rows into a JSONL file: the old one stays whole until the new one is."""
    with replaced_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def read_json(path: Path, kind: type[ClozeError] = CheckpointError, limit: int = JSON_LIMIT) -> dict[str, Any]:
    """Read a JSON object, however hostile the file; what is wrong with it is raised as ``kind``."""
    value = read_json_value(path, kind, limit)
    if not isinstance(value, dict):
        raise kind(f"{path}: a JSON object was expected, not {type(value).__name__}")
    return value


def read_json_value(path: Path, kind: type[ClozeError] = CheckpointError, limit: int = JSON_LIMIT) -> Any:
    """Read any JSON value, however hostile the file."""
    try:
        size = path.stat().st_size
        if size > limit:
            raise kind(f"{path}: {size} bytes; at most {limit} were expected")
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise kind(f"{path}: cannot be read ({error.strerror})") from error
    # Deep nesting exhausts the recursion limit; huge integers exceed Python's digit limit (a ValueError).
    except (ValueError, RecursionError) as error:
        raise kind(f"{path}: not valid JSON ({str(error)[:100]}); fetch the file again") from error


def plain_name(name: Any, place: Path) -> str:
    """Return a file name from an index, refusing one that could leave the folder."""
    if not isinstance(name, str) or not name or name in {".", ".."} or "\0" in name or "/" in name or "\\" in name:
        raise CheckpointError(f"{place}: {name!r} is not a plain file name; the file may have been tampered with")
    return name
