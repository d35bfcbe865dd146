"""Files: atomic writing, bounded reading, and numbered lines of text.

A file or folder is written under a temporary name next to its target, flushed to disk, and renamed. Readers see either
the old or the new version, never a partial one.

``open_file`` opens plain or compressed text, and ``Lines`` iterates over its lines. At most ``LONGEST_LINE`` bytes are
in memory at once, and every error names the line. A UTF-8 byte-order mark and CRLF line ends are removed.
"""

import gzip
import io
import json
import lzma
import os
import stat
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from cloze.errors import CheckpointError, ClozeError, ConfigError, DataError, format_option
from cloze.locks import aside_name, delete, only_writer, put_in_order, real_target, temporary_name

# Configuration files are a few kilobytes; a larger one is a mistake or an attack.
JSON_LIMIT = 16 * 2**20
# Limit for cloze's own manifests and plans of corpora, which list every file and shard.
OUR_JSON_LIMIT = 2**30
_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link that leads nowhere",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def flush(path: Path) -> None:
    """Flush a file or folder from the cache of the operating system to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_tree(folder: Path) -> None:
    """Flush every file in a folder tree, then the folders, so that both contents and names are on disk."""
    for path in sorted(folder.rglob("*"), reverse=True):
        flush(path)
    flush(folder)


def check_named(folder: Path) -> Path:
    """Return the folder, or raise ``ConfigError`` if its path has no name (it is created under another name first)."""
    if folder.name in ("", ".."):
        raise ConfigError(f"{folder}: expected a path with a folder name, such as {folder / 'new'}")
    return folder


def check_replaceable(target: Path, kind: Literal["file", "folder"]) -> os.stat_result | None:
    """Check that a target can be replaced by a file or a folder.

    Args:
        target: Path to be written.
        kind: Whether a file or a folder will be written.

    Returns:
        The state of the existing target; None if it does not exist.

    Raises:
        ConfigError: If the target is of another kind (such as a device or a pipe), or is write-protected.
    """
    place = real_target(target)
    try:
        state = os.lstat(place)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{target}: cannot be written ({error.strerror}); choose another location") from error
    actual = _KINDS.get(stat.S_IFMT(state.st_mode), "of an unknown kind")
    if actual != f"a {kind}":
        raise ConfigError(f"{target}: is {actual}, but a {kind} must be written; choose another location")
    # The permission bits are checked as well, because os.access is always true for the superuser.
    if not state.st_mode & 0o222 or not os.access(place, os.W_OK):
        raise ConfigError(f"{target}: is write-protected; make it writable, or choose another location")
    return state


def _keep_permissions(temporary: Path, mode: int, before: os.stat_result | None) -> None:
    """Set the mode of a new file or, if it replaces an existing one, the mode and owner of the latter."""
    if before is not None:
        mode = before.st_mode
        with suppress(PermissionError):
            os.chown(temporary, before.st_uid, before.st_gid)
    # Needed for new files too, because libraries that write temporary files themselves create them with other modes.
    temporary.chmod(stat.S_IMODE(mode))


@contextmanager
def replaced_folder(destination: Path) -> Iterator[Path]:
    """Yield an empty folder that is renamed to ``destination`` if the block succeeds, and deleted otherwise."""
    place = real_target(check_named(destination))
    with only_writer(destination):
        temporary, old = temporary_name(place), aside_name(place)
        try:
            if not place.exists():
                put_in_order(place)  # an earlier process may have been killed between the two renames below
            before = check_replaceable(destination, "folder")
            temporary.mkdir()
            mode = temporary.stat().st_mode
            yield temporary
            _keep_permissions(temporary, mode, before)
            flush_tree(temporary)
            if before is not None:
                place.rename(old)
            temporary.rename(place)
            flush(place.parent)
        except OSError as error:
            raise ClozeError(
                f"{destination}: cannot be written ({error.strerror or error}); "
                f"the previous version is unchanged; free some space or choose another {format_option('out')}"
            ) from error
        finally:
            delete(temporary)
            with suppress(OSError):  # report the original error instead
                if old.exists() and not place.exists():
                    old.rename(place)
            delete(old)


@contextmanager
def scratch_folder(target: Path) -> Iterator[Path]:
    """Yield an empty temporary folder next to a target; it is deleted when the block ends."""
    with only_writer(target):
        temporary = temporary_name(real_target(target))
        try:
            temporary.mkdir()
        except OSError as error:
            raise ClozeError(f"{target}: cannot be written ({error.strerror}); choose another location") from error
        try:
            yield temporary
        finally:
            delete(temporary)


COMPRESSED = (".gz", ".xz", ".zst")
# Exceptions that a damaged or truncated compressed file may raise.
BROKEN_ARCHIVE = (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError)


def open_bytes(path: Path) -> BinaryIO:
    """Open a file for reading; decompress it if its name ends in ``.gz``, ``.xz`` or ``.zst``."""
    match path.suffix.lower():
        case ".gz":
            return cast("BinaryIO", gzip.open(path))
        case ".xz":
            return cast("BinaryIO", lzma.open(path))
        case ".zst":
            import pyarrow  # deferred, because the import takes a quarter of a second

            return io.BufferedReader(pyarrow.CompressedInputStream(pyarrow.OSFile(str(path)), "zstd"))
    return path.open("rb")


@contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """Yield the path of an empty file that is renamed to ``path`` if the block succeeds, and deleted otherwise."""
    place = real_target(path)
    with only_writer(path):
        temporary = temporary_name(place)
        try:
            before = check_replaceable(path, "file")
            # Always a new file: no link is followed and no file is truncated. Its mode follows the umask.
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o666))
            mode = temporary.stat().st_mode
            yield temporary
            _keep_permissions(temporary, mode, before)
            flush(temporary)
            temporary.replace(place)
        except OSError as error:
            raise ClozeError(
                f"{path}: cannot be written ({error.strerror or error}); choose another location"
            ) from error
        finally:
            delete(temporary)


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, not atomically: for files in a temporary folder."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def replace_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON atomically."""
    with replaced_file(path) as temporary:
        write_json(temporary, value)


def replace_json_lines(path: Path, rows: Iterable[Any]) -> None:
    """Write rows to a JSONL file atomically."""
    with replaced_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def read_json(path: Path, kind: type[ClozeError] = CheckpointError, limit: int = JSON_LIMIT) -> dict[str, Any]:
    """Read a JSON object from an untrusted file; any problem is raised as ``kind``."""
    value = read_json_value(path, kind, limit)
    if not isinstance(value, dict):
        raise kind(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def read_json_value(path: Path, kind: type[ClozeError] = CheckpointError, limit: int = JSON_LIMIT) -> Any:
    """Read any JSON value from an untrusted file; any problem is raised as ``kind``."""
    try:
        size = path.stat().st_size
        if size > limit:
            raise kind(f"{path}: {size} bytes; expected at most {limit}")
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise kind(f"{path}: cannot be read ({error.strerror})") from error
    # Deep nesting exceeds the recursion limit; huge integers exceed Python's digit limit (a ValueError).
    except (ValueError, RecursionError) as error:
        raise kind(f"{path}: not valid JSON ({str(error)[:100]}); fetch the file again") from error


def plain_name(name: Any, place: Path) -> str:
    """Return a file name from an index file, or raise an error if it could lead outside the folder."""
    if not isinstance(name, str) or not name or name in {".", ".."} or "\0" in name or "/" in name or "\\" in name:
        raise CheckpointError(f"{place}: {name!r} is not a plain file name; the file may have been tampered with")
    return name


LONGEST_LINE = 10 * 2**20
UTF8_MARK = b"\xef\xbb\xbf"


class RowError(DataError):
    """A single bad row; the caller may skip it and continue with the next row.

    ``line`` is the text of the row, if available, with replacement characters for undecodable parts.
    """

    def __init__(self, message: str, line: str | None = None) -> None:
        super().__init__(message)
        self.line = line


class Lines(Iterator[str]):
    """An iterator over the lines of a file that records line numbers; it can continue after a ``RowError``."""

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self.path = path
        self.number = 0
        self._stream = stream
        self._inside_long_line = False

    @property
    def place(self) -> str:
        """``file:line`` of the last line."""
        return f"{self.path}:{self.number}"

    def __next__(self) -> str:
        line = self._read()
        if not line:
            raise StopIteration
        self.number += 1
        if len(line) > LONGEST_LINE:
            self._inside_long_line = not line.endswith(b"\n")
            raise RowError(
                f"{self.place}: this line is longer than {LONGEST_LINE // 2**20} MB; "
                "check that the file has line ends, or shorten the text"
            )
        if self.number == 1:
            line = line.removeprefix(UTF8_MARK)
        return self._decode(line.removesuffix(b"\n").removesuffix(b"\r"))

    def _read(self) -> bytes:
        try:
            while self._inside_long_line:
                piece = self._stream.readline(LONGEST_LINE)
                self._inside_long_line = bool(piece) and not piece.endswith(b"\n")
            return self._stream.readline(LONGEST_LINE + 1)
        except BROKEN_ARCHIVE as error:
            raise broken_archive(self.path, self.number, error) from error

    def _decode(self, line: bytes) -> str:
        if b"\x00" in line:
            raise RowError(
                f"{self.place}: a NUL character at byte {line.index(0) + 1}; "
                "expected UTF-8 text: save the file as UTF-8 (not UTF-16), or remove the character",
                _readable(line),
            )
        try:
            return line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise RowError(
                f"{self.place}: byte {error.start + 1} (0x{line[error.start]:02x}) is not UTF-8; "
                "save the file as UTF-8",
                _readable(line),
            ) from error


def broken_archive(path: Path, line: int, error: Exception) -> DataError:
    """Return the error for a compressed file that cannot be read beyond a line."""
    return DataError(
        f"{path}: cannot be decompressed after line {line} ({error}); "
        "it is damaged or truncated: fetch or compress it again"
    )


def _readable(line: bytes) -> str:
    return line.decode("utf-8", errors="replace").replace("\x00", "\ufffd")


def open_file(path: Path) -> BinaryIO:
    """Open a task file, plain or compressed."""
    check_is_file(path)
    try:
        return open_bytes(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error


def check_is_file(path: Path) -> None:
    """Raise ``DataError`` if a path does not exist, is a folder, or is an empty file."""
    if path.is_dir():
        raise DataError(f"{path} is a folder; expected a file: name the file inside it")
    if not path.exists():
        raise DataError(f"{path} does not exist; check the name and the folder")
    if path.is_file() and path.stat().st_size == 0:
        raise DataError(f"{path} is empty; expected text in it")
