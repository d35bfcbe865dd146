"""Rows in memory -> records: lists, data frames, Arrow tables and data sets, with the same checks as rows of a file.

Data is recognized by protocol, so that nothing here imports the library it comes from: the Arrow C stream (pandas,
polars, pyarrow, DuckDB), ``__dataframe__``, ``to_dict`` (a frame that Arrow cannot represent), a mapping of columns, a
tuple of texts and labels, and any iterable of rows (lists, ``datasets``, generators). Cells are first converted to
Python values, so that the same rows give the same model in every form. The location of a row is its position, counted
from 1: ``train row 3``; for a pandas frame with an index other than 0, 1, 2, ..., with the index of the row.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NoReturn

from cloze.errors import DataError, did_you_mean
from cloze.files import RowError
from cloze.tasks.tables import Record, Table

_FORMS = (
    "a path, a list of dicts, (texts, labels), ((texts, pairs), labels), a data frame, an Arrow table, "
    "or an iterable of rows"
)
# Missing values of pandas. NaN in a float column stays a number; the readers refuse it and report its location.
_MISSING = frozenset({"NAType", "NaTType"})


class RowsInMemory:
    """Rows under the name of the argument that contained them; an iterator is consumed once, into a list."""

    def __init__(
        self, name: str, cells: Sequence[Any], columns: Sequence[str] | None, index: Sequence[Any] | None = None
    ) -> None:
        self.name = name
        self.cells = cells
        self.columns = None if columns is None else tuple(columns)
        self._index = index  # of a pandas frame; None if it only counts the rows

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"RowsInMemory({self.name!r}, {len(self):,} rows)"

    def __len__(self) -> int:
        return len(self.cells)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowsInMemory) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the cells, the same for equal rows in any form."""
        digest = hashlib.blake2b(digest_size=16)
        for cells in self.cells:
            digest.update(repr(_stable(cells)).encode("utf-8", "backslashreplace"))
        return digest.hexdigest()

    def recorded(self) -> str:
        """Return the description of these rows that a run records."""
        return f"{len(self)} rows in memory ({self.fingerprint})"

    def place(self, number: int) -> str:
        """Return the location of a row, counted from 1."""
        index = "" if self._index is None else f" (index {self._index[number - 1]})"
        return f"{self.name} row {number}{index}"

    def open(self) -> Table:
        """Return the rows as a table."""
        return _MemoryTable(self)


class _MemoryTable(Table):
    def __init__(self, rows: RowsInMemory) -> None:
        self.columns = rows.columns
        self._records = enumerate(rows.cells, start=1)
        self._place = rows.place

    def __next__(self) -> Record:
        number, cells = next(self._records)
        place = self._place(number)
        if not isinstance(cells, Mapping):
            raise RowError(
                f"{place}: {cells!r:.40} is not a row; expected a dict such as {{'text': '...', 'label': '...'}}"
            )
        return Record(place, dict(cells))

    def close(self) -> None:
        """Do nothing, because there is no file."""


TableSource = Path | RowsInMemory
"""The origin of a table: a file, or rows in memory."""


def as_table_source(data: Any, name: str, *, text: str, pair: str | None, label: str) -> TableSource:
    """Convert data in any of the accepted forms to a path or to rows in memory.

    Args:
        data: The data.
        name: The name of the rows in messages, such as ``train``.
        text: The column for the texts of a tuple.
        pair: The column for its second texts.
        label: The column for its labels.

    Returns:
        The path, or the rows.

    Raises:
        DataError: If the data has none of the accepted forms.
    """
    if isinstance(data, TableSource):
        return data
    if isinstance(data, str | os.PathLike):
        return Path(os.fspath(data))
    if isinstance(data, tuple) and len(data) == 2 and not any(isinstance(part, Mapping) for part in data):
        return _from_columns(name, _tuple_columns(data, text, pair or "pair", label))
    if hasattr(data, "__arrow_c_stream__"):
        return _from_arrow(name, data, _frame_index(data))
    if hasattr(data, "__dataframe__"):
        from pyarrow.interchange import from_dataframe

        return _from_arrow(name, from_dataframe(data))
    if isinstance(data, Mapping):
        return _from_columns(name, data)
    if isinstance(data, bytes) or not hasattr(data, "__iter__"):
        _refuse(name, data)
    return _from_rows(name, data, cells=partial(_row_cells, text=text, label=label))


def is_paired(data: Any) -> bool:
    """Return whether the data is ``((texts, pairs), labels)``."""
    return (
        isinstance(data, tuple)
        and len(data) == 2
        and isinstance(data[0], tuple)
        and len(data[0]) == 2
        and not isinstance(data[0][0], str)
    )


def _tuple_columns(data: tuple[Any, Any], text: str, pair: str, label: str) -> dict[str, Any]:
    """Return the columns of ``(texts, labels)`` or ``((texts, pairs), labels)``."""
    texts, labels = data
    if is_paired(data):
        return {text: texts[0], pair: texts[1], label: labels}
    return {text: texts, label: labels}


def _from_columns(name: str, columns: Mapping[Any, Any]) -> RowsInMemory:
    lists: dict[str, list[object]] = {}
    for column, values in columns.items():
        if hasattr(values, "column_names"):  # datasets.DatasetDict
            raise DataError(f"{name} is a dict of data sets; give one of them, such as {name}=data[{column!r}]")
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise DataError(f"{name}: column {column!r} is {values!r:.40}; expected a list with one value per row")
        lists[str(column)] = [plain_value(value) for value in values]
    counts = {column: len(values) for column, values in lists.items()}
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{count} in {column!r}" for column, count in counts.items())
        raise DataError(f"{name}: the columns differ in length: {shown}; give one value per row")
    rows = [dict(zip(lists, cells, strict=True)) for cells in zip(*lists.values(), strict=True)]
    return RowsInMemory(name, rows, tuple(lists))


def _frame_index(frame: Any) -> list[Any] | None:
    """Return the index of a pandas frame; None for other tables, and for an index that counts the rows from 0."""
    index = getattr(frame, "index", None)
    if index is None or not hasattr(index, "tolist"):
        return None
    labels: list[Any] = index.tolist()
    return None if labels == list(range(len(labels))) else labels


def _from_arrow(name: str, data: Any, index: Sequence[Any] | None = None) -> RowsInMemory:
    import pyarrow

    try:
        table = pyarrow.table(data)
        names = list(table.column_names)
        _refuse_double_columns(name, names)
        names = [column for column in names if index is None or column != "__index_level_0__"]
        rows = [{column: row[column] for column in names} for row in table.to_pylist()]
        return RowsInMemory(name, [_plain_cells(row) for row in rows], names, index)
    # Columns of mixed types, or timestamps too precise for Python: the frame can convert its rows itself.
    except (pyarrow.ArrowException, TypeError, ValueError) as error:
        if hasattr(data, "to_dict"):
            _refuse_double_columns(name, [str(column) for column in data.columns])
            converted = _from_rows(name, data.to_dict("records"), [str(column) for column in data.columns])
            return RowsInMemory(name, converted.cells, converted.columns, index)
        reason = str(error).splitlines()[0]
        raise DataError(f"{name}: cannot be read as a table ({reason}); convert its columns to texts") from error


def _refuse_double_columns(name: str, columns: Sequence[str]) -> None:
    twice = [column for column in columns if columns.count(column) > 1]
    if twice:
        raise DataError(
            f"{name}: {columns.count(twice[0])} columns are named {twice[0]!r}; give every column a unique name"
        )


def _from_rows(
    name: str,
    data: Iterable[Any],
    columns: Sequence[str] | None = None,
    cells: Callable[[Any], Any] = lambda row: row,
) -> RowsInMemory:
    """Read an iterable once; rows of an unknown form are refused later, with their location."""
    if columns is None and isinstance(names := getattr(data, "column_names", None), list):  # datasets.Dataset
        columns = names
    rows = [cells(row) for row in data]
    return RowsInMemory(name, [_plain_cells(row) if isinstance(row, Mapping) else row for row in rows], columns)


def _row_cells(row: Any, text: str, label: str) -> Any:
    """Return the cells of a row that is a text or (text, label); other rows are returned unchanged."""
    if isinstance(row, str):
        return {text: row}
    if isinstance(row, tuple) and len(row) == 2:
        return {text: row[0], label: row[1]}
    return row


def _plain_cells(row: Mapping[Any, object]) -> dict[str, object]:
    return {str(column): plain_value(value) for column, value in row.items()}


def plain_value(value: object) -> object:
    """Return a cell as a Python value: converts NumPy scalars and arrays, tuples and the missing values of pandas."""
    if value is None or isinstance(value, str | bool | int | float | dict):
        # np.str_ and np.float64 are subclasses of str and float, but with another repr.
        return value.item() if value is not None and hasattr(value, "item") else value
    if hasattr(value, "as_py"):  # an Arrow scalar
        return plain_value(value.as_py())
    if type(value).__name__ in _MISSING:
        return None
    if hasattr(value, "tolist"):  # NumPy, pandas and polars arrays and scalars
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    return value


def _stable(value: object) -> object:
    """Return a value whose ``repr`` is the same in every process; an object of another type becomes its type's name."""
    if isinstance(value, dict):
        return {key: _stable(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, list):
        return [_stable(item) for item in value]
    return value if value is None or isinstance(value, str | int | float | bytes) else type(value).__qualname__


def place_of(source: TableSource, number: int) -> str:
    """Return the location of a line of a file, or of a row in memory."""
    return f"{source}:{number}" if isinstance(source, Path) else source.place(number)


def _refuse(name: str, data: object) -> NoReturn:
    raise DataError(f"{name} is {data!r:.40} ({type(data).__name__}); expected {_FORMS}")


def texts_of(data: Any, name: str) -> list[str]:
    """Return a list, array or series of texts as a list; raise an error that locates a value that is not text."""
    if isinstance(data, str | bytes | Mapping) or not isinstance(data, Iterable):
        raise DataError(f"{name} is {data!r:.40} ({type(data).__name__}); expected a list of texts")
    values = [plain_value(value) for value in data]
    for number, value in enumerate(values, start=1):
        if not isinstance(value, str):
            raise DataError(f"{name} row {number}: {value!r:.40} is not a text; expected a list of texts, one per row")
    return [str(value) for value in values]


def is_frame(data: Any) -> bool:
    """Return whether the data is a table with named columns: a data frame, an Arrow table or a ``datasets.Dataset``."""
    return (hasattr(data, "__arrow_c_stream__") or hasattr(data, "__dataframe__") or hasattr(data, "add_column")) and (
        hasattr(data, "columns") or hasattr(data, "column_names")
    )


def read_columns(frame: Any, names: Sequence[str], *, trained: bool = False) -> list[list[Any]]:
    """Return columns of a frame as lists of texts or of lists of words; refuse other cells with their row.

    Args:
        frame: The frame.
        names: The names of the columns.
        trained: Whether the model was trained on columns with these names, for messages.
    """
    rows = as_table_source(frame, "data", text=names[0], pair=None, label="label")
    assert isinstance(rows, RowsInMemory), "a frame is not a path"
    for name in names:
        if rows.columns is not None and name not in rows.columns:
            remedy = did_you_mean(name, rows.columns)
            if trained:
                columns = ", ".join(rows.columns)
                remedy = f", which the model was trained on; it has: {columns}; name the column with text= or pair="
            raise DataError(f"data has no column {name!r}{remedy}")
        for number, cells in enumerate(rows.cells, start=1):
            if not isinstance(cells[name], str | list):
                raise DataError(f"{rows.place(number)}: {name!r} is {cells[name]!r:.40}; expected text in quotes")
    return [[cells[name] for cells in rows.cells] for name in names]


def add_columns(frame: Any, columns: Mapping[str, list[Any]]) -> Any:
    """Return the frame with more columns, as a frame of the same library or else as an Arrow table."""
    names = getattr(frame, "column_names", None) or list(frame.columns)
    for name in columns:
        if name in names:
            raise DataError(f"data already has a column {name!r}, which the results need; rename or drop it")
    if hasattr(frame, "assign"):  # pandas
        return frame.assign(**columns)
    if hasattr(frame, "hstack"):  # polars
        return frame.hstack(type(frame)(columns))
    import pyarrow

    if not hasattr(frame, "append_column"):
        for name, values in columns.items() if hasattr(frame, "add_column") else ():  # datasets
            frame = frame.add_column(name, values)
        if hasattr(frame, "add_column"):
            return frame
        frame = pyarrow.table(frame)
    for name, values in columns.items():
        frame = frame.append_column(name, pyarrow.array(values))
    return frame
