"""Files -> documents: the first step of preparation, and of learning a vocabulary.

A plain text file holds a sentence or a paragraph a line, with a blank line between documents; a JSONL or Parquet file
a document a row. All but Parquet may be compressed (``.gz``, ``.xz``, ``.zst``). A file is read in spans that begin
and end between documents, and a span paragraph by paragraph, never more than a megabyte of one, so that memory grows
neither with the file nor with a document.
"""

import codecs
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from cloze.errors import DataError
from cloze.files import BROKEN_ARCHIVE, COMPRESSED, open_bytes
from cloze.lines import UTF8_MARK, RowError

# A line of more bytes is read in several pieces, each of which counts as a paragraph.
LONGEST_PARAGRAPH = 2**20
# Such a piece ends at the last sentence end, or else space, within so many characters of its limit.
_SEARCHED_FOR_CUT = 2**16
_SENTENCE_END = re.compile(r"[.!?…][\"'”’)\]]*\s|[。！？][」』”’）]*")
_SKIPPED_AT_ONCE = 2**20
_READ_AT_ONCE = 2**18


class Span(NamedTuple):
    """A stretch of a file: bytes of its (decompressed) text, or row groups of a Parquet file.

    ``first`` is the number of the first line or row, from which documents have theirs.
    """

    start: int
    stop: int
    first: int


# A stop beyond every end: the file may end where it likes. For those who read files once, and in one go.
TO_THE_END = sys.maxsize
WHOLE = Span(0, TO_THE_END, 1)


class Paragraph(NamedTuple):
    """Text without a line end; ``document`` is the number of the line or row where its document starts."""

    document: int
    text: str


Format = Literal["text", "jsonl", "parquet"]
OnBadRow = Callable[[RowError], None]


def format_of(path: Path) -> Format:
    """Which kind of file this is, by its name."""
    name = path.name.lower()
    ending = next((ending for ending in COMPRESSED if name.endswith(ending)), "")
    kind = name.removesuffix(ending).rpartition(".")[2]
    if kind in ("csv", "tsv"):  # whose header, labels and commas would be taken for text
        raise DataError(
            f"{path}: is a table of rows; expected documents: plain text, or a column of .jsonl or .parquet"
        )
    if kind == "parquet":
        return "parquet"
    return "jsonl" if kind in ("jsonl", "ndjson", "json") else "text"


def is_compressed(path: Path) -> bool:
    """Whether places in the text are not places in the file."""
    return path.suffix.lower() in COMPRESSED


def read_documents(paths: Sequence[Path]) -> Iterator[list[str]]:
    """Yield the documents of plain text files, each as its paragraphs: for those who want whole ones in memory."""
    for path in paths:
        for has_text, lines in groupby(read_lines(path), bool):
            if has_text:
                yield list(lines)


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of one file without surrounding white space; blank ones are empty strings."""
    with open_text(path) as file:
        for number, line in enumerate(file, start=1):
            try:
                # A byte-order mark is not a character of the text.
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError as error:
                raise _not_utf8(path, number, error.start) from error


@contextmanager
def open_text(path: Path) -> Iterator[BinaryIO]:
    """Open a text file for reading bytes, whatever its compression; name the file in every error."""
    with named_errors(path), open_bytes(path) as file:
        yield file


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Turn whatever reading a file may raise into an error that names it."""
    if path.is_dir():
        raise DataError(f"{path}: is a folder; name the text files in it, for example {path}/*.txt")
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except BROKEN_ARCHIVE as error:
        raise DataError(f"{path}: not a whole {path.suffix} file ({error}); fetch it again") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


class TextStream:
    """A file that can be read from any place of its text on.

    What is compressed has to be unfolded up to that place; whoever asks for places in ascending order has it unfolded
    only once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.position = 0
        self._file: BinaryIO | None = None

    def go_to(self, place: int) -> None:
        """Have the next line read from here."""
        with named_errors(self.path):
            if self._file is None or place < self.position:
                self.close()
                self._file = open_bytes(self.path)
                self.position = 0
            if not is_compressed(self.path):
                self._file.seek(place)
                self.position = place
            while self.position < place:
                skipped = len(self._file.read(min(_SKIPPED_AT_ONCE, place - self.position)))
                if not skipped:
                    raise self.cut_short(place)
                self.position += skipped

    def readline(self, longest: int) -> bytes:
        """Read up to the next line end, or so many bytes."""
        assert self._file is not None
        return self._counted(self._file.readline, longest)

    def read(self, most: int) -> bytes:
        """Read so many bytes, or what there is."""
        assert self._file is not None
        return self._counted(self._file.read, most)

    def _counted(self, read: Callable[[int], bytes], most: int) -> bytes:
        try:
            found = read(most)
        except (*BROKEN_ARCHIVE, OSError):
            with named_errors(self.path):
                raise
        self.position += len(found)
        return found

    def check_end(self, span: Span) -> None:
        """Refuse the end of the file within a span that was cut from a longer one."""
        if span.stop != TO_THE_END:
            raise self.cut_short(span.stop)

    def cut_short(self, place: int) -> DataError:
        """What to say of a file that has become shorter."""
        return DataError(
            f"{self.path}: ends at byte {self.position:,}, but had {place:,} when the work began; "
            "leave the file alone and give the command with --fresh"
        )

    def close(self) -> None:
        """Release the file."""
        if self._file is not None:
            self._file.close()
        self._file = None


def read_text(stream: TextStream, span: Span) -> Iterator[Paragraph]:
    """Yield the paragraphs of a span of a plain text file."""
    document: int | None = None
    for number, text in _numbered_lines(stream, span):
        if not text:
            document = None
            continue
        if document is None:
            document = number
        yield Paragraph(document, text)


def cut_paragraph(text: str) -> Iterator[str]:
    """Cut what is longer than a paragraph may be; nothing but white space is lost."""
    start = 0
    while len(text) - start > LONGEST_PARAGRAPH:
        stop = _cut_place(text, start)
        if part := text[start:stop].strip():
            yield part
        start = stop
    if part := text[start:].strip():
        yield part


def _cut_place(text: str, start: int) -> int:
    latest = start + LONGEST_PARAGRAPH
    earliest = latest - _SEARCHED_FOR_CUT
    ends = [found.end() for found in _SENTENCE_END.finditer(text, earliest, latest)]
    if ends:
        return ends[-1]
    space = text.rfind(" ", earliest, latest)
    return space if space >= 0 else latest


def _numbered_lines(stream: TextStream, span: Span) -> Iterator[tuple[int, str]]:
    """Yield (line number, text without surrounding space); a long line in several pieces, a blank one as empty."""
    stream.go_to(span.start)
    number = span.first
    while stream.position < span.stop:
        block = stream.read(min(_READ_AT_ONCE, LONGEST_PARAGRAPH, span.stop - stream.position))
        if not block:
            stream.check_end(span)
            return
        if number == 1:
            block = block.removeprefix(UTF8_MARK)
        whole, line_end, last = block.rpartition(b"\n")
        lines = _decoded_lines(stream.path, number, whole) if line_end else []
        yield from enumerate(lines, start=number)
        number += len(lines)
        if last:
            last += stream.readline(LONGEST_PARAGRAPH - len(last))
            if len(last) < LONGEST_PARAGRAPH or last.endswith(b"\n"):
                yield number, _decoded(stream.path, number, last)
            else:
                yield from ((number, part) for part in _long_line(stream, number, last))
            number += 1


def _decoded_lines(path: Path, first: int, block: bytes) -> list[str]:
    """The lines of a block, decoded all at once, or one by one to say which of them is wrong."""
    try:
        return [line.strip() for line in block.decode("utf-8").split("\n")]
    except UnicodeDecodeError:
        return [_decoded(path, number, line) for number, line in enumerate(block.split(b"\n"), start=first)]


def _decoded(path: Path, number: int, line: bytes) -> str:
    try:
        return line.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise _not_utf8(path, number, error.start) from error


def _long_line(stream: TextStream, number: int, begun: bytes) -> Iterator[str]:
    """Yield the pieces of a line that goes on, each when it is known where it ends; one empty piece if all is blank."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    text, read, found = "", 0, False
    piece = begun
    while piece:
        pending = len(decoder.getstate()[0])
        is_last = piece.endswith(b"\n")
        try:
            text += decoder.decode(piece, final=is_last)
        except UnicodeDecodeError as error:
            raise _not_utf8(stream.path, number, read - pending + error.start) from error
        read += len(piece)
        while len(text) > LONGEST_PARAGRAPH:
            stop = _cut_place(text, 0)
            if part := text[:stop].strip():
                found = True
                yield part
            text = text[stop:]
        piece = b"" if is_last else stream.readline(LONGEST_PARAGRAPH)
    if decoder.getstate()[0]:  # the file ends inside a character
        raise _not_utf8(stream.path, number, read - len(decoder.getstate()[0]))
    text = text.strip()
    if text or not found:
        yield text


def _not_utf8(path: Path, number: int, place: int) -> DataError:
    return DataError(
        f"{path}:{number}: not valid UTF-8 at byte {place} of the line; convert the file, for example with iconv"
    )
