"""A file -> numbered physical lines: the first step on the way from rows, word lists and maps to what they mean.

Whatever a file holds, at most ``LONGEST_LINE`` bytes of it are in memory at once, and every complaint names
the line. Compressed files are read as they unfold; a UTF-8 mark at the beginning and CRLF ends are taken off.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from cloze.errors import DataError
from cloze.files import BROKEN_ARCHIVE, open_bytes

LONGEST_LINE = 10 * 2**20
UTF8_MARK = b"\xef\xbb\xbf"


class RowError(DataError):
    """One row is bad and the rows around it are not: whoever reads may skip it and go on.

    ``line`` is the line that it is about, if that could be read at all, with something else for what could not.
    """

    def __init__(self, message: str, line: str | None = None) -> None:
        super().__init__(message)
        self.line = line


class Lines(Iterator[str]):
    """The lines of a file with their number; after a ``RowError`` the next line can still be asked for."""

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self.path = path
        self.number = 0
        self._stream = stream
        self._inside_long_line = False

    @property
    def place(self) -> str:
        """``file:line`` of the line read last."""
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
    """Return the error of a compressed file that cannot be read beyond a line."""
    return DataError(
        f"{path}: cannot be decompressed after line {line} ({error}); "
        "it is damaged or cut short: fetch or compress it again"
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
    """Refuse a path that names nothing, or a folder, or a file without a byte in it."""
    if path.is_dir():
        raise DataError(f"{path} is a folder; expected a file: name the file inside it")
    if not path.exists():
        raise DataError(f"{path} does not exist; check the name and the folder")
    if path.is_file() and path.stat().st_size == 0:
        raise DataError(f"{path} is empty; expected text in it")
