"""Read documents from text files: the first step of ``cloze vocab`` and ``cloze prepare``.

A plain text file has one sentence or paragraph per line and a blank line between documents. A JSONL or Parquet file has
one document per row (``corpus/record_files.py``). All formats but Parquet may be compressed (``.gz``, ``.xz``,
``.zst``).

Files are read in ranges that start and end between documents. A range is read paragraph by paragraph, in pieces of at
most one megabyte, so memory use does not depend on the size of the file or of a document. ``ParagraphReader`` reads
several ranges of several files in any of these formats.
"""

import codecs
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import groupby
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from cloze.errors import DataError
from cloze.files import BROKEN_ARCHIVE, COMPRESSED, UTF8_MARK, RowError, open_bytes

# A line with more bytes is split into several paragraphs.
LONGEST_PARAGRAPH = 2**20
# It is split at the last sentence end, or else the last space, within this many characters of the limit.
_SEARCHED_FOR_CUT = 2**16
_SENTENCE_END = re.compile(r"[.!?…][\"'”’)\]]*\s|[。！？][」』”’）]*")
_SKIPPED_AT_ONCE = 2**20
_READ_AT_ONCE = 2**18


class FileRange(NamedTuple):
    """A range of a file: bytes of its (decompressed) text, or row groups of a Parquet file.

    ``first`` is the number of the first line or row; documents are identified by such numbers.
    """

    start: int
    stop: int
    first: int


# A stop beyond the end of any file, to read a file from start to end.
TO_THE_END = sys.maxsize
WHOLE = FileRange(0, TO_THE_END, 1)


class Paragraph(NamedTuple):
    """Text without a line end; ``document`` is the number of the line or row at which its document starts."""

    document: int
    text: str


class CorpusSlice(NamedTuple):
    """A range of file number ``file`` of the corpus, with about ``size`` bytes of text."""

    file: int
    range: FileRange
    size: int


# The text of one shard.
ShardText = tuple[CorpusSlice, ...]

Format = Literal["text", "jsonl", "parquet"]


def format_of(path: Path) -> Format:
    """Return the format of a file according to its name."""
    name = path.name.lower()
    ending = next((ending for ending in COMPRESSED if name.endswith(ending)), "")
    kind = name.removesuffix(ending).rpartition(".")[2]
    if kind in ("csv", "tsv"):  # headers, labels and commas would become text
        raise DataError(f"{path}: is a table; expected plain text, or .jsonl or .parquet with a column of documents")
    if kind == "parquet":
        return "parquet"
    return "jsonl" if kind in ("jsonl", "ndjson", "json") else "text"


def is_compressed(path: Path) -> bool:
    """Return whether a file is compressed, in which case offsets of its text are not offsets of the file."""
    return path.suffix.lower() in COMPRESSED


def read_documents(paths: Sequence[Path]) -> Iterator[list[str]]:
    """Yield the documents of plain text files, each as a list of paragraphs."""
    for path in paths:
        for has_text, lines in groupby(read_lines(path), bool):
            if has_text:
                yield list(lines)


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file without surrounding whitespace; a blank line is an empty string."""
    with open_text(path) as file:
        for number, line in enumerate(file, start=1):
            try:
                # The byte-order mark is not part of the text.
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError as error:
                raise _not_utf8(path, number, error.start) from error


@contextmanager
def open_text(path: Path) -> Iterator[BinaryIO]:
    """Open a text file, compressed or not, for reading bytes; every error names the file."""
    with named_errors(path), open_bytes(path) as file:
        yield file


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Convert errors of reading a file to a ``DataError`` that names the file."""
    if path.is_dir():
        raise DataError(f"{path}: is a folder; name the text files in it, for example {path}/*.txt")
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except BROKEN_ARCHIVE as error:
        raise DataError(f"{path}: damaged or truncated {path.suffix} file ({error}); fetch it again") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


class TextStream:
    """A file that can be read from any byte offset of its text.

    A compressed file must be decompressed up to that offset. If offsets ascend, it is decompressed only once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.position = 0
        self._file: BinaryIO | None = None

    def go_to(self, place: int) -> None:
        """Move to a byte offset of the text."""
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
        """Read up to the next line end, at most ``longest`` bytes."""
        assert self._file is not None
        return self._counted(self._file.readline, longest)

    def read(self, most: int) -> bytes:
        """Read at most ``most`` bytes."""
        assert self._file is not None
        return self._counted(self._file.read, most)

    def _counted(self, read: Callable[[int], bytes], most: int) -> bytes:
        try:
            data = read(most)
        except (*BROKEN_ARCHIVE, OSError):
            with named_errors(self.path):
                raise
        self.position += len(data)
        return data

    def check_end(self, file_range: FileRange) -> None:
        """Raise an error if the file has become shorter and now ends inside a range."""
        if file_range.stop != TO_THE_END:
            raise self.cut_short(file_range.stop)

    def cut_short(self, place: int) -> DataError:
        """Return the error for a file that has become shorter."""
        return DataError(
            f"{self.path}: ends at byte {self.position:,}, but had {place:,} when the work started; "
            "do not change the file while it is read, and run the command again with --fresh"
        )

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        self._file = None


def read_text(stream: TextStream, file_range: FileRange) -> Iterator[Paragraph]:
    """Yield the paragraphs of a range of a plain text file."""
    document: int | None = None
    for number, text in _numbered_lines(stream, file_range):
        if not text:
            document = None
            continue
        if document is None:
            document = number
        yield Paragraph(document, text)


def cut_paragraph(text: str) -> Iterator[str]:
    """Split a text into pieces of at most ``LONGEST_PARAGRAPH`` characters, without surrounding whitespace."""
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
    ends = [mark.end() for mark in _SENTENCE_END.finditer(text, earliest, latest)]
    if ends:
        return ends[-1]
    space = text.rfind(" ", earliest, latest)
    return space if space >= 0 else latest


def _numbered_lines(stream: TextStream, file_range: FileRange) -> Iterator[tuple[int, str]]:
    """Yield (line number, stripped text): several pieces for a long line, an empty string for a blank line."""
    stream.go_to(file_range.start)
    number = file_range.first
    while stream.position < file_range.stop:
        block = stream.read(min(_READ_AT_ONCE, LONGEST_PARAGRAPH, file_range.stop - stream.position))
        if not block:
            stream.check_end(file_range)
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
    """Decode the lines of a block at once; if that fails, one by one, so that the error names the line."""
    try:
        return [line.strip() for line in block.decode("utf-8").split("\n")]
    except UnicodeDecodeError:
        return [_decoded(path, number, line) for number, line in enumerate(block.split(b"\n"), start=first)]


def _decoded(path: Path, number: int, line: bytes) -> str:
    try:
        return line.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise _not_utf8(path, number, error.start) from error


def _long_line(stream: TextStream, number: int, beginning: bytes) -> Iterator[str]:
    """Yield the pieces of a line longer than a paragraph; a single empty string if the line is blank."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    text, read, has_text = "", 0, False
    piece = beginning
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
                has_text = True
                yield part
            text = text[stop:]
        piece = b"" if is_last else stream.readline(LONGEST_PARAGRAPH)
    if decoder.getstate()[0]:  # the file ends inside a character
        raise _not_utf8(stream.path, number, read - len(decoder.getstate()[0]))
    text = text.strip()
    if text or not has_text:
        yield text


def _not_utf8(path: Path, number: int, place: int) -> DataError:
    return DataError(
        f"{path}:{number}: not valid UTF-8 at byte {place} of the line; convert the file, for example with iconv"
    )


class ParagraphReader:
    """Reads the text of shards from files in any format.

    It keeps the last file open, because the next shard often continues in the same file.
    """

    def __init__(self, paths: Sequence[Path], column: str, skip_bad_rows: bool) -> None:
        self._paths = paths
        self._column = column
        self._skip = skip_bad_rows
        self._stream: TextStream | None = None
        self.bad_rows = 0

    def read(self, text: ShardText) -> Iterator[tuple[int, Paragraph]]:
        """Yield (file number, paragraph) for the text of a shard; ``bad_rows`` counts its bad rows."""
        self.bad_rows = 0
        try:
            for piece in text:
                for paragraph in self._read_slice(piece):
                    yield piece.file, paragraph
        except BaseException:  # including GeneratorExit, raised here if the consumer stops early
            self.close()
            raise

    def _read_slice(self, piece: CorpusSlice) -> Iterator[Paragraph]:
        path, form = self._paths[piece.file], format_of(self._paths[piece.file])
        if form == "text":
            return read_text(self._open(path), piece.range)
        from cloze.corpus import record_files  # deferred: a circular import, and not needed for plain text

        if form == "parquet":
            return record_files.read_parquet(path, piece.range, self._column, self._on_bad_row)
        return record_files.read_jsonl(self._open(path), piece.range, self._column, self._on_bad_row)

    def _open(self, path: Path) -> TextStream:
        if self._stream is None or self._stream.path != path:
            self.close()
            self._stream = TextStream(path)
        return self._stream

    def _on_bad_row(self, error: RowError) -> None:
        if not self._skip:
            raise DataError(str(error)) from error
        self.bad_rows += 1

    def close(self) -> None:
        """Close the open file."""
        if self._stream is not None:
            self._stream.close()
        self._stream = None


def read_paragraphs(paths: Sequence[Path], column: str, *, skip_bad_rows: bool = False) -> Iterator[str]:
    """Yield the paragraphs of files of any format, ignoring document boundaries."""
    with closing(ParagraphReader(paths, column, skip_bad_rows)) as reader:
        for file in range(len(paths)):
            for _, paragraph in reader.read((CorpusSlice(file, WHOLE, 0),)):
                yield paragraph.text


def read_any_documents(paths: Sequence[Path], column: str) -> Iterator[list[str]]:
    """Yield the documents of files of any format, each as a list of paragraphs."""
    with closing(ParagraphReader(paths, column, skip_bad_rows=False)) as reader:
        for file in range(len(paths)):
            paragraphs = reader.read((CorpusSlice(file, WHOLE, 0),))
            for _, document in groupby(paragraphs, lambda numbered: numbered[1].document):
                yield [paragraph.text for _, paragraph in document]
