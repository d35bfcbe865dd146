"""The rows of a task (``Source``), and the conversion of table records to rows: text, pair and raw label by column.

A file is read as a stream. A bad row stops the reading and its location is reported, or it is skipped and counted,
depending on ``on_bad_row``; an error of the whole file always stops it. Imports nothing heavy, because the command line
loads the settings for ``--help``.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from cloze.errors import ConfigError, DataError, did_you_mean, format_option
from cloze.files import RowError
from cloze.tasks.in_memory import RowsInMemory, TableSource, as_table_source, is_paired
from cloze.tasks.tables import Record, Table, looks_like_data, no_header, open_table, table_ending

OnBadRow = Literal["stop", "skip"]
# The settings that name columns.
COLUMNS = ("text", "pair", "label", "options")


@dataclass(frozen=True)
class RowSettings:
    """Settings for reading the rows of a task. The docstring of a field is also the help text of its flag."""

    text: str = "text"
    """The column with the texts, prompts or words."""
    pair: str | None = None
    """The column with the second texts of pairs; by default, rows have one text."""
    label: str = "label"
    """The column with the labels, scores or correct texts."""
    options: str = "options"
    """For choose: the column with a list of options, or several columns with one option each, separated by commas."""
    columns: str | None = None
    """For CSV and TSV files without a header: their column names, separated by commas, such as text,label."""
    on_bad_row: OnBadRow | None = None
    """On a malformed row: stop, or skip and count it; by default stop, except for published files with known errors."""

    def source(self, task: str, data: Any, dev: Any = None) -> "Source":
        """Return the source of a task whose rows are read with these settings."""
        return Source(task, data, dev, **asdict(self))


@dataclass(frozen=True)
class Source:
    """A task by name, its rows, and the columns of the user's own rows.

    Attributes:
        task: The kind of task (``classify``, ``multilabel``, ``regress``, ``tag``, ``answer``, ``choose``,
            ``similarity``, ``correct``) for rows of your own, or a published task such as ``sst-2``.
        data: The training rows: a path or data in memory (a list of dicts, ``(texts, labels)``,
            ``((texts, pairs), labels)``, a data frame, an Arrow table, or an iterable of rows, which is consumed once).
            For a published task, its folder.
        dev: The dev rows, in the same forms; by default, a tenth of the training rows is held out.
        text: The column with the texts, prompts or words.
        pair: The column with the second texts of pairs.
        label: The column with the labels.
        on_bad_row: ``stop``, or ``skip`` and count; by default stop, except for published files with known bad rows.
        options: For ``choose``: the column with a list of options, or comma-separated columns with one each.
        columns: For CSV and TSV files without a header: their comma-separated column names.

    Raises:
        DataError: If the data has none of these forms.
        ConfigError: If ``columns`` has empty or repeated names.

    Example:
        >>> source = cloze.Source("classify", (["good", "bad"], ["pos", "neg"]))
        >>> source.data
        RowsInMemory('train', 2 rows)
    """

    task: str
    data: Any  # a TableSource after initialization
    dev: Any = None
    text: str = RowSettings.text
    pair: str | None = RowSettings.pair
    label: str = RowSettings.label
    on_bad_row: OnBadRow | None = RowSettings.on_bad_row
    options: str = RowSettings.options
    columns: str | None = RowSettings.columns

    def __post_init__(self) -> None:
        if self.pair is None and (is_paired(self.data) or is_paired(self.dev)):
            object.__setattr__(self, "pair", "pair")
        for name, role in (("data", "train"), ("dev", "dev")):
            given = getattr(self, name)
            if given is not None or name == "data":
                rows = as_table_source(given, role, text=self.text, pair=self.pair, label=self.label)
                object.__setattr__(self, name, rows)
        names = [] if self.columns is None else self.columns.split(",")
        if self.columns is not None and (not all(map(str.strip, names)) or len(set(names)) < len(names)):
            raise ConfigError(
                f"columns is {self.columns!r}; expected different comma-separated names, such as text,label"
            )

    def rows_of(self, split: str) -> TableSource:
        """Return the rows of a split; without dev rows, all rows stand in for them."""
        rows: TableSource = self.dev if split == "dev" and self.dev is not None else self.data
        return rows

    @property
    def path(self) -> Path:
        """The file or folder of the data. Raises ``ConfigError`` if the rows are in memory."""
        return self._path(self.data)

    @property
    def dev_path(self) -> Path | None:
        """The file of the dev rows, or None."""
        return None if self.dev is None else self._path(self.dev)

    def _path(self, rows: TableSource) -> Path:
        if isinstance(rows, Path):
            return rows
        raise ConfigError(
            f"{rows} is {len(rows)} rows in memory, but {self.task} is read from its published files; "
            "give the path of their folder"
        )

    def recorded(self) -> dict[str, Any]:
        """Return the values that a run records, to be compared when it is resumed."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        texts = {name: one.recorded() if isinstance(one, RowsInMemory) else one for name, one in values.items()}
        return {name: None if value is None else str(value) for name, value in texts.items()}

    def header(self, path: TableSource) -> tuple[str, ...] | None:
        """Return the columns that were named for a file without a header; None if no columns were named."""
        return None if self.columns is None else parse_columns(self.columns, path)

    def columns_named(self) -> dict[str, str]:
        """Return the column settings that differ from their defaults."""
        return {name: value for name in COLUMNS if (value := getattr(self, name)) != getattr(RowSettings, name)}


def parse_columns(names: str, path: TableSource) -> tuple[str, ...]:
    """Return the column names for a file without a header; refuse them for a file whose rows name their columns."""
    if not isinstance(path, Path) or table_ending(path) in (".jsonl", ".ndjson", ".json", ".parquet"):
        raise ConfigError(
            f"columns is {names!r}, which only applies to CSV and TSV files without a header; the rows of {path} "
            "name their columns: leave it out"
        )
    return tuple(name.strip() for name in names.split(","))


# Separates the labels of a multi-label row, as in "sports|politics"; JSON and Parquet may have a list instead.
SEVERAL = "|"


@dataclass(frozen=True)
class Row:
    """One example. ``label`` is spelled as in the file; ``fields`` has all its columns."""

    place: str
    text: str
    pair: str | None = None
    label: str | None = None
    fields: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Columns:
    """The columns that contain the text, the pair and the label, and how their cells are read."""

    text: str
    pair: str | None = None
    label: str | None = None
    several: bool = False  # whether a row may have any number of labels
    skippable: bool = True  # whether the caller has an option to skip bad rows
    unlabelled: frozenset[str] = frozenset()  # values of a published file that mark a missing label
    convert: Callable[[Record], Record] | None = None  # set for published files whose texts combine several cells
    in_memory: bool = False

    @property
    def otherwise(self) -> str:
        """The alternative to correcting a bad row, for error messages."""
        skip = "pass on_bad_row='skip'" if self.in_memory else f"pass {format_option('on_bad_row', 'skip')}"
        return skip if self.skippable else "remove the row"

    def names(self) -> list[str]:
        """Return the required columns."""
        return [name for name in (self.text, self.pair, self.label) if name is not None]


class RowFile:
    """The rows of a file, read anew by each iteration; ``skipped`` and ``problem`` describe the latest iteration."""

    def __init__(self, path: TableSource, columns: Columns, header: Sequence[str] | None, on_bad_row: OnBadRow) -> None:
        self.path = path
        self.columns = columns
        self.skipped = 0
        self.unlabelled = 0  # rows that are marked as having no label
        self.problem: str | None = None  # message of the first bad row
        self._header = header
        self._on_bad_row = on_bad_row
        # Report problems of the file itself before any row is read.
        self._opened: Table | None = self._open()
        if not isinstance(path, Path) or not path.is_fifo():  # a pipe cannot be opened again
            self._opened.close()
            self._opened = None

    def __iter__(self) -> Iterator[Row]:
        self.skipped, self.unlabelled, self.problem = 0, 0, None
        count = 0
        table, self._opened = self._opened or self._open(), None
        with closing(table):
            for row in self._good_rows(table):
                count += 1
                yield row
        if count == 0:
            raise self._nothing()

    def _open(self) -> Table:
        table = open_table(self.path, self._header)
        for name in self.columns.names():
            if table.columns is not None and name not in table.columns:
                table.close()
                if self._header is None and self.columns.skippable and looks_like_data(table.columns):
                    raise DataError(f"{self.path} has no column {name!r}: {no_header(table.columns)}")
                raise DataError(f"{self.path} has no column {name!r}{_offer(name, table.columns)}")
        return table

    def _good_rows(self, table: Table) -> Iterator[Row]:
        while True:
            try:
                row = make_row(next(table), self.columns)
                if row.label is not None and row.label in self.columns.unlabelled:
                    self.unlabelled += 1
                else:
                    yield row
            except StopIteration:
                return
            except RowError as error:
                if self._on_bad_row == "stop":
                    raise
                self.skipped += 1
                self.problem = self.problem or str(error)

    def _nothing(self) -> DataError:
        if self.unlabelled:
            return DataError(f"{self.path}: no row has a label ({self.unlabelled} are marked as having none)")
        if self.problem is None:
            below = " below its header" if isinstance(self.path, Path) else ""
            return DataError(f"{self.path} has no rows{below}; expected at least one")
        return DataError(f"{self.path}: all {self.skipped} rows are bad; the first: {self.problem}")


def read_rows(
    path: TableSource | str,
    *,
    text: str,
    pair: str | None = None,
    label: str | None = None,
    several: bool = False,
    on_bad_row: OnBadRow = "stop",
    header: Sequence[str] | str | None = None,
    skippable: bool = True,
    unlabelled: frozenset[str] = frozenset(),
    convert: Callable[[Record], Record] | None = None,
) -> RowFile:
    """Open a CSV, TSV, JSONL or Parquet file, or rows in memory, by column names.

    Args:
        path: The file, or the rows in memory.
        text: The column with the texts.
        pair: The column with the second texts, if any.
        label: The column with the labels, if any.
        several: Whether a row may have any number of labels.
        on_bad_row: Whether a bad row stops reading, or is skipped and counted.
        header: The column names of a file without a header.
        skippable: Whether error messages may suggest ``--on-bad-row``.
        unlabelled: Values in place of a label in rows without one; these rows are counted and skipped.
        convert: Computes the named cells of a record.

    Returns:
        The rows, which can be iterated repeatedly.
    """
    source = Path(path) if isinstance(path, str) else path
    in_memory = isinstance(source, RowsInMemory)
    columns = Columns(text, pair, label, several, skippable, unlabelled, convert, in_memory)
    names = parse_columns(header, source) if isinstance(header, str) else header
    return RowFile(source, columns, names, on_bad_row)


def make_row(record: Record, columns: Columns) -> Row:
    """Convert a record to a row; raise ``RowError`` if a text or label is invalid."""
    if columns.convert is not None:
        record = columns.convert(record)
    for name in columns.names():
        if name not in record.cells:
            raise RowError(f"{record.place}: this row has no {name!r}{_offer(name, list(record.cells))}")
    return Row(
        place=record.place,
        text=_text_of(record, columns.text, columns.otherwise),
        pair=None if columns.pair is None else _text_of(record, columns.pair, columns.otherwise),
        label=None if columns.label is None else _label_of(record, columns.label, columns),
        fields=record.cells,
    )


def _text_of(record: Record, name: str, otherwise: str) -> str:
    value = record.cells[name]
    if value is None or value != value:  # NaN, which pandas uses for a missing text
        raise RowError(f"{record.place}: {name!r} is {value}; expected text in quotes; fill it in, or {otherwise}")
    if not isinstance(value, str):
        raise RowError(f"{record.place}: {name!r} is {value!r:.40}; expected text in quotes")
    if not value.strip():
        raise RowError(f"{record.place}: {name!r} is empty; fill it in, or {otherwise}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        half = f"\\u{ord(value[error.start]):04x}"
        raise RowError(f"{record.place}: {name!r} has half a surrogate pair ({half}); use whole characters") from error
    return value


def _label_of(record: Record, name: str, columns: Columns) -> str:
    value = record.cells[name]
    if "" in columns.unlabelled and value in (None, ""):
        return ""
    if columns.several and isinstance(value, list) and all(type(label) in (str, int) for label in value):
        labels = [str(label) for label in value]
        for label in labels:
            if SEVERAL in label:
                raise RowError(f"{record.place}: the label {label!r:.40} has a {SEVERAL!r}, which separates labels")
        return SEVERAL.join(labels)
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float):
        raise RowError(f"{record.place}: {name!r} is {value!r:.40}; expected text or a number")
    if isinstance(value, float) and math.isnan(value):  # pandas uses NaN for an empty cell of a numeric column
        raise RowError(f"{record.place}: {name!r} is nan; label the row, or {columns.otherwise}")
    label = str(value).strip()
    if not label and not columns.several:
        raise RowError(f"{record.place}: {name!r} is empty; label the row, or {columns.otherwise}")
    return label


def _offer(name: str, known: Sequence[str]) -> str:
    """Return the end of an error message: the existing columns, and the one that was probably meant."""
    hint = did_you_mean(name, known) if known else ""
    nearest = hint if "did you mean" in hint else "; name one of these"
    return f"; it has: {', '.join(known)}{nearest}"
