"""Output files of the commands: rows and vectors. Each file is written completely or not at all."""

import csv
import io
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from cloze.cli.inputs import Inputs, Survey
from cloze.errors import ConfigError, DataError
from cloze.files import check_replaceable, replaced_file
from cloze.locks import hold_target, target_name

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


VECTOR_FILES = (".npy", ".jsonl", ".parquet")
ROW_FILES = (".jsonl", ".csv", ".tsv")
_WHITE = re.compile("[\t\r\n]+")


def check_file(path: Path, endings: Sequence[str] = (), flag: str = "--output") -> None:
    """Reject an output file that cannot be written, before any work is done; missing parent folders are not an error.

    The file is locked until the command ends, so that no other command writes to it.

    Args:
        path: The file.
        endings: The allowed suffixes; by default, any.
        flag: The flag that named it, for the message.
    """
    if endings and path.suffix not in endings:
        expected = " or ".join(filter(None, [", ".join(endings[:-1]), endings[-1]]))
        raise ConfigError(f"{flag} {path}: expected {expected}")
    if path.is_dir():
        raise ConfigError(f"{flag} {path}: this is a folder; name a file in it")
    _check_place(path.parent, f"{flag} {path}")
    check_replaceable(path, "file")
    hold_target(path)


def check_not_input(path: Path, source: Path, flag: str = "--output", given: str = "the --input") -> None:
    """Reject an output file that is also the input, before any work is done.

    Args:
        path: The file to write.
        source: The file to read.
        flag: The flag that named the output, for the message.
        given: What the input is called in the message.
    """
    if path.exists() and source.exists() and path.samefile(source):
        raise ConfigError(f"{flag} {path}: this is {given} itself; choose another location")


def check_folder(path: Path | None, flag: str = "--out") -> None:
    """Reject an output folder that cannot be created or written to, before any work is done.

    The folder is locked until the command ends, so that no other command writes to it.

    Args:
        path: The folder; None if the command writes no folder.
        flag: The flag that named it, for the message.
    """
    if path is not None:
        _check_place(path, f"{flag} {path}".strip())
        check_replaceable(path, "folder")
        hold_target(path)


def _check_place(path: Path, shown: str) -> None:
    """Reject a folder that cannot be created or written to."""
    try:
        existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    except OSError as error:  # a name that is too long, for example
        raise ConfigError(f"{shown}: cannot be created ({error.strerror}); choose another location") from error
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        reason = "cannot be written to" if existing.is_dir() else "is a file"
        raise ConfigError(f"{shown}: {existing} {reason}; choose another folder")


def beside(
    kept: Sequence[Mapping[str, object]], predictions: Sequence[Mapping[str, object]], columns: Sequence[str] = ()
) -> list[dict[str, object]]:
    """Append predictions to the columns of their rows, under names that do not occur in the file.

    Args:
        kept: The columns of each row.
        predictions: The columns to append to each row.
        columns: All columns of the file, if ``kept`` is only a part of it.

    Returns:
        The combined rows.
    """
    taken = {*columns, *_names(kept)}
    free_names = {name: _free_name(name, taken) for name in _names(predictions)}
    return [
        {**fields, **{free_names[name]: value for name, value in prediction.items()}}
        for fields, prediction in zip(kept, predictions, strict=True)
    ]


def _free_name(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name = f"predicted_{name}"
    return name


def write_rows(path: Path, rows: Sequence[Mapping[str, object]], columns: Sequence[str] = ()) -> None:
    """Write rows as JSONL, CSV or TSV, by the suffix; tables start with all of ``columns``."""
    check_file(path, ROW_FILES)
    names = list(dict.fromkeys([*columns, *_names(rows)]))
    with replaced_file(path) as temporary:
        if path.suffix == ".jsonl":
            _write_json_lines(temporary, rows)
        elif path.suffix == ".csv":
            _write_quoted(temporary, names, rows)
        else:
            _write_tabbed(temporary, names, rows)


def write_vectors(path: Path, inputs: Inputs, vectors: "NDArray[np.float32]", survey: Survey | None = None) -> None:
    """Write vectors as a NumPy array, or as JSONL or Parquet with the columns of the input.

    Args:
        path: The file to write.
        inputs: The texts the vectors belong to.
        vectors: One vector per text, (N, H).
        survey: The columns of the whole file, if ``inputs`` is only a part of it.
    """
    check_file(path, VECTOR_FILES)
    with replaced_file(path) as temporary:
        if path.suffix == ".npy":
            _write_array(temporary, vectors)
        elif path.suffix == ".jsonl":
            predictions = [{"vector": vector.tolist()} for vector in vectors]
            _write_json_lines(temporary, beside(inputs.kept, predictions, survey.columns if survey else ()))
        else:
            _write_parquet(temporary, inputs, vectors, survey.schema if survey else None)


def _write_array(path: Path, vectors: "NDArray[np.float32]") -> None:
    import numpy as np

    # With a path instead of a file, np.save would append .npy to the temporary name.
    with path.open("wb") as file:
        np.save(file, vectors)


def _write_json_lines(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    text = "".join(_json(row) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")


def _write_quoted(path: Path, names: Sequence[str], rows: Sequence[Mapping[str, object]]) -> None:
    # An unpaired surrogate, which JSON can represent but UTF-8 cannot, is written as an escape.
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)


def _write_tabbed(path: Path, names: Sequence[str], rows: Sequence[Mapping[str, object]]) -> None:
    """Write TSV without quoting, as cloze also reads it: a tab or line break in a cell becomes a space."""
    cells = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    lines = ("\t".join(_WHITE.sub(" ", cell) for cell in line) + "\n" for line in cells)
    path.write_text("".join(lines), encoding="utf-8", errors="backslashreplace")


def _cell(value: object) -> str:
    """Format a cell of a text table: empty for None, JSON for lists and dicts."""
    if value is None:
        return ""
    return _json(value) if isinstance(value, list | dict) else str(value)


def _json(value: object) -> str:
    """Format a value as JSON on one line; types that JSON lacks, such as dates, become strings."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), ensure_ascii=False, default=str)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # an unpaired surrogate, which only an escape can represent
        return json.dumps(_finite(value), default=str)
    return text


def _finite(value: object) -> object:
    """Replace NaN and infinities, which JSON lacks, with None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _names(rows: Sequence[Mapping[str, object]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _write_parquet(path: Path, inputs: Inputs, vectors: "NDArray[np.float32]", schema: Any) -> None:
    import pyarrow as arrow
    from pyarrow import parquet

    flat = arrow.array(vectors.reshape(-1))
    column = arrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
    with _parquet_errors(path):
        table = _table(inputs.kept, schema)
        parquet.write_table(table.append_column(_free_name("vector", table.column_names), column), path)


def arrow_schema(kept: Sequence[Mapping[str, object]], before: Any, path: Path) -> Any:
    """Return the Arrow schema of rows, unified with that of earlier rows; reject rows that Parquet cannot store."""
    import pyarrow as arrow
    from pyarrow import parquet

    with _parquet_errors(path):
        # A column may start with empty cells or integers, and contain strings or floats later.
        schemas = [*([before] if before else []), _table(kept).schema]
        schema = arrow.unify_schemas(schemas, promote_options="permissive")
        parquet.write_table(schema.empty_table(), io.BytesIO())  # Arrow has types that Parquet lacks
    return schema


def _table(kept: Sequence[Mapping[str, object]], schema: Any = None) -> Any:
    import pyarrow as arrow

    names = _names(kept)  # from all rows; by default, Arrow uses only the names in the first row
    return arrow.Table.from_pylist([{name: fields.get(name) for name in names} for fields in kept], schema=schema)


@contextmanager
def _parquet_errors(path: Path) -> Iterator[None]:
    """Convert an error about values that Parquet cannot store in one column into a one-line message."""
    import pyarrow as arrow

    try:
        yield
    except (arrow.ArrowException, OverflowError, UnicodeEncodeError) as error:
        name, reason = target_name(path) or path.name, str(error).splitlines()[0]
        raise DataError(f"{name}: Parquet cannot store a column unchanged ({reason}); write .jsonl instead") from error


def join_parts(parts: Sequence[Path], path: Path) -> None:
    """Join files written by this module into one, with at most one of them in memory at a time."""
    joiners: dict[str, Callable[[Sequence[Path], Path], None]] = {
        ".npy": _join_arrays,
        ".parquet": _join_parquet,
        ".jsonl": _join_lines,
        ".csv": partial(_join_tables, quoted=True),
        ".tsv": partial(_join_tables, quoted=False),
    }
    with replaced_file(path) as temporary:
        joiners[path.suffix](parts, temporary)


def _join_lines(parts: Sequence[Path], path: Path) -> None:
    with path.open("wb") as file:
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, file)


def _join_tables(parts: Sequence[Path], path: Path, *, quoted: bool) -> None:
    header = None
    with path.open("w", encoding="utf-8", newline="") as file:
        for part in parts:
            with part.open(encoding="utf-8", newline="") as source:
                part_header = _read_header(source, quoted=quoted)
                if header is None:
                    file.write(part_header)
                elif part_header != header:
                    raise DataError(
                        f"{part}: its columns differ from those of the preceding rows; write a .jsonl file instead, "
                        f"where columns may differ"
                    )
                header = part_header
                shutil.copyfileobj(source, file)


def _read_header(source: TextIO, *, quoted: bool) -> str:
    """Read the first record; a quoted cell may contain line breaks."""
    lines: list[str] = []
    while not lines or (quoted and "".join(lines).count('"') % 2):
        lines.append(source.readline())
        if not lines[-1]:
            break
    return "".join(lines)


def _join_arrays(parts: Sequence[Path], path: Path) -> None:
    import numpy as np

    arrays = [np.load(part, mmap_mode="r") for part in parts]
    shape = (sum(len(array) for array in arrays), *arrays[0].shape[1:])
    joined = np.lib.format.open_memmap(path, mode="w+", dtype=arrays[0].dtype, shape=shape)
    start = 0
    for array in arrays:
        joined[start : start + len(array)] = array
        start += len(array)
    joined.flush()


def _join_parquet(parts: Sequence[Path], path: Path) -> None:
    import pyarrow as arrow
    from pyarrow import parquet

    with _parquet_errors(path):
        schema = arrow.unify_schemas([parquet.read_schema(part) for part in parts], promote_options="permissive")
    with parquet.ParquetWriter(path, schema) as writer:
        for part in parts:
            table = parquet.read_table(part)
            missing = [name for name in schema.names if name not in table.column_names]
            for name in missing:
                table = table.append_column(name, arrow.nulls(len(table), schema.field(name).type))
            writer.write_table(table.select(schema.names).cast(schema))
