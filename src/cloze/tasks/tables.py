"""Read tables (CSV, TSV, JSONL, Parquet) as records: cells by column name, with their location in the file.

CSV follows RFC 4180: a quoted cell may contain commas, doubled quotes and line breaks. The location of a record is the
line on which it starts. The first line determines whether commas, tabs or semicolons separate the cells. TSV has no
quoting, as in GLUE: a quote is an ordinary character.
"""

import csv
import json
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from cloze import files
from cloze.errors import DataError, format_option
from cloze.files import BROKEN_ARCHIVE, COMPRESSED, Lines, RowError, broken_archive, check_is_file, open_file

# Bytes in which the first line of a file is searched for a delimiter.
_PEEKED = 65536
_LONGEST_NAME = 40
# Rows of a Parquet file that are in memory at the same time.
_PARQUET_ROWS = 64
_NUMBER = re.compile(r"[+-]?\d+([.,]\d+)?")
_SENTENCE = re.compile(r"[。！？，；]|[.!?](\s|$)|\w+(\s+\w+){3}")

if TYPE_CHECKING:
    from cloze.tasks.in_memory import TableSource

TABLES = frozenset({".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet"})


@dataclass(frozen=True)
class Record:
    """One row of a table, as cells by column: strings in CSV and TSV, any value in JSONL and Parquet."""

    place: str
    cells: dict[str, object]


class Table(Iterator[Record]):
    """An open table. ``columns`` is None if each row names its own. Reading can continue after a ``RowError``."""

    columns: tuple[str, ...] | None

    @abstractmethod
    def close(self) -> None:
        """Close the file."""


class CellTable(Table):
    """CSV or TSV: a header, then records with the same number of cells; empty lines are skipped."""

    def __init__(self, path: Path, columns: Sequence[str] | None, delimiters: str, *, quoted: bool) -> None:
        self._stream = open_file(path)
        source = Lines(path, self._stream)
        one = columns is not None and len(columns) == 1
        self._headerless = columns is not None
        try:
            delimiter = delimiters[0] if one else find_delimiter(self._stream, delimiters, path)
            unquoted = delimiter == "\t" and not quoted
            self._records = TabbedRecords(source) if unquoted else QuotedRecords(source, delimiter)
            self.columns = tuple(columns) if columns else self._read_header(path)
        except DataError:
            self.close()
            raise

    def __next__(self) -> Record:
        assert self.columns is not None
        cells = self._next_cells()
        if len(cells) != len(self.columns):
            raise RowError(
                f"{self._records.place}: {len(cells)} cells, but there are {len(self.columns)} columns "
                f"({', '.join(self.columns)}); {self._records.advice}"
            )
        if self._headerless:
            self._refuse_header(cells)
        return Record(self._records.place, dict(zip(self.columns, cells, strict=True)))

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def _refuse_header(self, cells: list[str]) -> None:
        """Refuse a header in a file declared to have none: it would become a row with a label of its own."""
        assert self.columns is not None
        self._headerless = False  # only the first row can be a header
        if any(cell.strip() == name for cell, name in zip(cells, self.columns, strict=True)):
            raise DataError(
                f"{self._records.place}: {', '.join(cells)[:60]!r} is a header, but the columns were named as for a "
                f"file without one; leave out {format_option('columns')}"
            )

    def _next_cells(self) -> list[str]:
        cells = next(self._records)
        while cells in ([], [""]):
            cells = next(self._records)
        return cells

    def _read_header(self, path: Path) -> tuple[str, ...]:
        try:
            names = [name.strip() for name in self._next_cells()]
        except StopIteration:
            raise DataError(f"{path} is empty; expected a header and rows") from None
        except RowError as error:
            raise DataError(str(error)) from error  # not a RowError: without a header, skipping rows does not help
        twice = [name for name in names if names.count(name) > 1]
        if twice and looks_like_data(names):
            raise DataError(f"{self._records.place}: {no_header(names)}")
        if twice:
            raise DataError(
                f"{self._records.place}: the header names column {twice[0]!r} {names.count(twice[0])} times; "
                "give every column a unique name"
            )
        return tuple(names)


class TabbedRecords(Iterator[list[str]]):
    """Records of a file without quoting: lines split at tabs."""

    advice = "put one tab between cells and none inside (quotes do not protect it here; in a .csv file they do)"

    def __init__(self, source: Lines) -> None:
        self._source = source

    @property
    def place(self) -> str:
        """The location of the last record."""
        return self._source.place

    def __next__(self) -> list[str]:
        return next(self._source).split("\t")


class QuotedRecords(Iterator[list[str]]):
    """CSV records, which may span several lines."""

    advice = "put quotes around a cell that contains a comma"

    def __init__(self, source: Lines, delimiter: str = ",") -> None:
        # The csv module has a low, process-wide limit on the size of cells; ``Lines`` has a limit of its own.
        csv.field_size_limit(max(csv.field_size_limit(), 2 * files.LONGEST_LINE))
        self._feed = BoundedLines(source)
        self._parsed = csv.reader(self._feed, strict=True, delimiter=delimiter)

    @property
    def place(self) -> str:
        """The location at which the last record starts."""
        return self._feed.place

    def __next__(self) -> list[str]:
        self._feed.begin()
        try:
            cells = next(self._parsed)
        except csv.Error as error:
            if "end of data" in str(error):
                raise self._feed.unclosed() from error
            raise RowError(
                f"{self.place}: not a CSV row ({error}); "
                'put quotes around the whole cell, and write "" for a quote inside it'
            ) from error
        if self._feed.flaw is not None:
            raise self._feed.flaw
        return cells


def find_delimiter(stream: BinaryIO, delimiters: str, path: Path) -> str:
    """Return the delimiter of a file: the first of ``delimiters`` that occurs in its first line."""
    peek = getattr(stream, "peek", None)
    try:
        first = b"" if peek is None else bytes(peek(_PEEKED)).partition(b"\n")[0]
    except BROKEN_ARCHIVE as error:
        raise broken_archive(path, 0, error) from error
    return next((delimiter for delimiter in delimiters if delimiter.encode() in first), delimiters[0])


def looks_like_data(names: Sequence[str]) -> bool:
    """Return whether a first row seems to be data: it has a number, a long cell, or a sentence."""
    return any(_NUMBER.fullmatch(name) or len(name) > _LONGEST_NAME or _SENTENCE.search(name) for name in names)


def no_header(names: Sequence[str]) -> str:
    """Return the error message for a file whose first row seems to be data."""
    shown = ", ".join(name if len(name) <= 20 else f"{name[:20]}..." for name in names)
    return (
        f"the first row looks like data ({shown}), not like the names of columns; name them, such as with "
        + format_option("columns", ",".join(("text", "label", "third", "fourth")[: max(2, min(4, len(names)))]))
    )


class BoundedLines(Iterator[str]):
    """Lines for the csv module, limited in length per record; unlike a generator, it can continue after an error."""

    def __init__(self, source: Lines) -> None:
        self.place = ""
        self.flaw: RowError | None = None  # error in a line of this record, which is still read to its end
        self._source = source
        self._characters = 0

    def begin(self) -> None:
        """Mark the next line as the start of a record."""
        self.place = f"{self._source.path}:{self._source.number + 1}"
        self.flaw, self._characters = None, 0

    def __next__(self) -> str:
        line = self._next_line()
        self._characters += len(line) + 1
        if self._characters > files.LONGEST_LINE + 1:
            raise self.unclosed()
        return line + "\n"

    def _next_line(self) -> str:
        try:
            return next(self._source)
        except RowError as error:
            if error.line is None and self._characters:
                raise DataError(str(error)) from error  # not a RowError: where the record ends is unknown
            if error.line is None:
                raise
            self.flaw = self.flaw or error
            return error.line

    def unclosed(self) -> DataError:
        """Return the error for an unclosed quote; not a ``RowError``, since it may extend over many rows."""
        return DataError(f'{self.place}: a quote opens in this row and does not close; write "" for a quote in a cell')


class JsonTable(Table):
    """JSONL: one object per line."""

    columns = None

    def __init__(self, path: Path) -> None:
        self._stream = open_file(path)
        self._lines = Lines(path, self._stream)

    def __next__(self) -> Record:
        line = next(self._lines)
        while not line.strip():
            line = next(self._lines)
        place = self._lines.place
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise RowError(
                f"{place}: not JSON ({error.msg} at character {error.pos + 1}); expected one object per line"
            ) from error
        except (RecursionError, ValueError) as error:  # deep nesting, or an integer of thousands of digits
            raise RowError(f"{place}: JSON that cannot be read ({error}); expected one flat object per line") from error
        if not isinstance(value, dict):
            raise RowError(f"{place}: {line[:40]!r} is not an object; expected one such as " + '{"text": "..."}')
        return Record(place, value)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


class ParquetTable(Table):
    """Parquet, read in batches; the location of a record is its row number."""

    def __init__(self, path: Path) -> None:
        check_is_file(path)
        import pyarrow  # deferred: it takes a quarter of a second and is needed only for Parquet
        from pyarrow import parquet

        try:
            self._file = parquet.ParquetFile(path)
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(
                f"{path}: not a Parquet file ({str(error).splitlines()[0]}); check how it was written"
            ) from error
        self.columns = tuple(self._file.schema_arrow.names)
        self._records = self._read(path)

    def __next__(self) -> Record:
        return next(self._records)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _read(self, path: Path) -> Iterator[Record]:
        import pyarrow

        number = 0
        try:
            for batch in self._file.iter_batches(batch_size=_PARQUET_ROWS):
                _check_cells(batch, path, number)
                for cells in batch.to_pylist():
                    number += 1
                    yield Record(f"{path}:{number}", cells)
        except (pyarrow.ArrowException, OSError, ValueError) as error:  # ValueError: timestamps too precise for Python
            raise DataError(
                f"{path}: cannot be read after row {number} ({str(error).splitlines()[0]}); write it again"
            ) from error


def _check_cells(batch: Any, path: Path, first: int) -> None:
    """Refuse a cell above the size limit for lines of other tables, before it becomes a Python object."""
    if batch.nbytes <= files.LONGEST_LINE:
        return
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        for number, cell in enumerate(column, start=first + 1):
            size = _cell_size(cell)
            if size > files.LONGEST_LINE:
                raise DataError(
                    f"{path}:{number}: the column {name!r} holds {size} bytes; expected at most "
                    f"{files.LONGEST_LINE}: shorten the text, or leave out the row"
                )


def _cell_size(cell: Any) -> int:
    """Return the size in bytes of a string in an Arrow column; 0 for other types."""
    plain = getattr(cell, "value", cell) if hasattr(cell, "dictionary") else cell
    buffer = plain.as_buffer() if hasattr(plain, "as_buffer") else None
    return 0 if buffer is None else len(buffer)


def is_table(path: "TableSource") -> bool:
    """Return whether the file extension is that of a table; other files have one text per line."""
    return not isinstance(path, Path) or table_ending(path) in TABLES


def table_ending(path: "TableSource") -> str:
    """Return the lower-case file extension, ignoring a compression suffix; empty for rows in memory."""
    if not isinstance(path, Path):
        return ""
    return (Path(path.stem).suffix if path.suffix.lower() in COMPRESSED else path.suffix).lower()


def open_table(path: "TableSource", columns: Sequence[str] | None = None) -> Table:
    """Open a table by its file extension; ``columns`` are the column names of a CSV or TSV file without a header."""
    if not isinstance(path, Path):
        return path.open()
    kind = table_ending(path)
    match kind:
        case ".csv":
            return CellTable(path, columns, ",\t;", quoted=True)
        case ".txt" if columns is not None:  # files without a header; published ones are separated by tabs
            return CellTable(path, columns, "\t,", quoted=False)
        case ".tsv":
            return CellTable(path, columns, "\t", quoted=False)
        case ".jsonl" | ".ndjson" | ".json":
            return JsonTable(path)
        case ".parquet" if kind == path.suffix.lower():
            return ParquetTable(path)
    check_is_file(path)
    raise DataError(
        f"{path}: {kind!r} is not the extension of a table; expected .csv, .tsv, .jsonl (each also with .gz or .xz) "
        f"or .parquet: rename or convert the file"
    )
