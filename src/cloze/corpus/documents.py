"""Text files -> documents: a sentence or a paragraph a line, a blank line between documents.

Plain or compressed (``.gz``, ``.xz``, ``.zst``), read line by line, so that memory does not grow with the file.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from cloze.errors import DataError
from cloze.files import BROKEN_ARCHIVE, open_bytes

Document = list[str]


def read_documents(paths: Sequence[Path]) -> Iterator[Document]:
    """Yield the documents of all files in order; a file's end ends its last document."""
    for path in paths:
        document: Document = []
        for line in read_lines(path):
            if line:
                document.append(line)
            elif document:
                yield document
                document = []
        if document:
            yield document


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of one file without surrounding white space; blank ones are empty strings."""
    with open_text(path) as file:
        for number, line in enumerate(file, start=1):
            try:
                # A byte-order mark is not a character of the text.
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path}:{number}: not valid UTF-8 at byte {error.start} of the line; "
                    "convert the file, for example with iconv"
                ) from error


@contextmanager
def open_text(path: Path) -> Iterator[BinaryIO]:
    """Open a text file for reading bytes, whatever its compression; name the file in every error."""
    if path.is_dir():
        raise DataError(f"{path}: is a folder; name the text files in it, for example {path}/*.txt")
    try:
        with open_bytes(path) as file:
            yield file
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except BROKEN_ARCHIVE as error:
        raise DataError(f"{path}: not a whole {path.suffix} file ({error}); fetch it again") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
