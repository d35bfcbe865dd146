"""Results into files: all of a file, or none of it; and files of parts into one."""

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

from cloze.cli.inputs import Inputs
from cloze.errors import ConfigError, DataError
from cloze.files import replaced_file

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


VECTOR_FILES = (".npy", ".jsonl", ".parquet")
ROW_FILES = (".jsonl", ".csv", ".tsv")
_WHITE = re.compile("[\t\r\n]+")


def check_ending(path: Path, endings: Sequence[str]) -> None:
    """Refuse an output that could not be written, before the work and not after it."""
    if path.suffix not in endings:
        *others, last = endings
        raise ConfigError(f"--output {path}: {', '.join(others)} or {last} was expected")


def check_folder(path: Path) -> None:
    """Refuse a folder for results that could not be made or written to, before the work and not after it."""
    there = next(one for one in (path, *path.absolute().parents) if one.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        why = "cannot be written to" if there.is_dir() else "is a file"
        raise ConfigError(f"--out {path}: {there} {why}; choose another folder")


def beside(
    kept: Sequence[Mapping[str, object]], answers: Sequence[Mapping[str, object]], columns: Sequence[str] = ()
) -> list[dict[str, object]]:
    """A file's rows as they are, each with its answer, under names that no column of the file has.

    ``columns`` are those of the whole file, where these are a part of it.
    """
    taken = {*columns, *_names(kept)}
    own = {name: _free_name(name, taken) for name in _names(answers)}
    return [
        {**fields, **{own[name]: value for name, value in answer.items()}}
        for fields, answer in zip(kept, answers, strict=True)
    ]


def _free_name(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name = f"predicted_{name}"
    return name


def write_rows(path: Path, rows: Sequence[Mapping[str, object]], columns: Sequence[str] = ()) -> None:
    """Write rows as JSONL, CSV or TSV, by the file's ending; ``columns`` are there in any case, and first."""
    check_ending(path, ROW_FILES)
    names = list(dict.fromkeys([*columns, *_names(rows)]))
    with replaced_file(path) as temporary:
        if path.suffix == ".jsonl":
            _write_json_lines(temporary, rows)
        elif path.suffix == ".csv":
            _write_quoted(temporary, names, rows)
        else:
            _write_tabbed(temporary, names, rows)


def write_vectors(path: Path, inputs: Inputs, vectors: "NDArray[np.float32]") -> None:
    """Write vectors as a NumPy array, or with the input's columns as JSONL or Parquet."""
    check_ending(path, VECTOR_FILES)
    kept = inputs.kept
    with replaced_file(path) as temporary:
        if path.suffix == ".npy":
            _write_array(temporary, vectors)
        elif path.suffix == ".jsonl":
            answers = [{"vector": vector.tolist()} for vector in vectors]
            _write_json_lines(temporary, beside(kept, answers, inputs.columns))
        else:
            _write_parquet(temporary, inputs, vectors)


def _write_array(path: Path, vectors: "NDArray[np.float32]") -> None:
    import numpy as np

    # np.save would add its ending to a temporary name; an open file is left as it is called.
    with path.open("wb") as file:
        np.save(file, vectors)


def _write_json_lines(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    text = "".join(_json(row) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")


def _write_quoted(path: Path, names: Sequence[str], rows: Sequence[Mapping[str, object]]) -> None:
    # Half of a character, which JSON can have and a text cannot, is written as its number.
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)


def _write_tabbed(path: Path, names: Sequence[str], rows: Sequence[Mapping[str, object]]) -> None:
    """Quotes protect nothing in the TSV that we read, so that a tab or a line end in a cell becomes a space."""
    cells = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    lines = ("\t".join(_WHITE.sub(" ", cell) for cell in line) + "\n" for line in cells)
    path.write_text("".join(lines), encoding="utf-8", errors="backslashreplace")


def _cell(value: object) -> str:
    """What a table without kinds shows: nothing for what is not there, and JSON for what has parts."""
    if value is None:
        return ""
    return _json(value) if isinstance(value, list | dict) else str(value)


def _json(value: object) -> str:
    """On one line; dates and the like, which columns of Parquet have and JSON has not, as texts."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), ensure_ascii=False, default=str)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # half of a character, which only an escape can say
        return json.dumps(_finite(value), default=str)
    return text


def _finite(value: object) -> object:
    """The same with null for numbers that are none, which JSON cannot say."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(one) for name, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


def _names(rows: Sequence[Mapping[str, object]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _write_parquet(path: Path, inputs: Inputs, vectors: "NDArray[np.float32]") -> None:
    import pyarrow as arrow
    from pyarrow import parquet

    flat = arrow.array(vectors.reshape(-1))
    column = arrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
    with _keepable(path):
        table = _table(inputs.kept, inputs.survey.kinds if inputs.survey else None)
        parquet.write_table(table.append_column(_free_name("vector", table.column_names), column), path)


def kinds_of(kept: Sequence[Mapping[str, object]], before: Any, path: Path) -> Any:
    """The Arrow schema of rows that a Parquet file is to keep, and of those before them; refused if it cannot."""
    import pyarrow as arrow
    from pyarrow import parquet

    with _keepable(path):
        # A column may be empty at first and have texts, or whole numbers and then others, later.
        schemas = [*([before] if before else []), _table(kept).schema]
        kinds = arrow.unify_schemas(schemas, promote_options="permissive")
        parquet.write_table(kinds.empty_table(), io.BytesIO())  # some kinds Arrow has, and Parquet has not
    return kinds


def _table(kept: Sequence[Mapping[str, object]], kinds: Any = None) -> Any:
    import pyarrow as arrow

    names = _names(kept)  # of all rows; by itself, Arrow takes those of the first
    return arrow.Table.from_pylist([{name: fields.get(name) for name in names} for fields in kept], schema=kinds)


@contextmanager
def _keepable(path: Path) -> Iterator[None]:
    """A column of Parquet holds values of one kind, and not of any."""
    import pyarrow as arrow

    try:
        yield
    except (arrow.ArrowException, OverflowError, UnicodeEncodeError) as error:
        name, reason = path.name.removesuffix(".tmp"), str(error).splitlines()[0]
        raise DataError(f"{name}: Parquet cannot keep a column as it is ({reason}); write .jsonl instead") from error


def join_parts(parts: Sequence[Path], path: Path) -> None:
    """Make one file of several that were written here, one of them in memory at a time."""
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
                own = _read_header(source, quoted=quoted)
                if header is None:
                    file.write(own)
                elif own != header:
                    raise DataError(
                        f"{part}: its rows have other columns than those before them; write .jsonl, which allows it"
                    )
                header = own
                shutil.copyfileobj(source, file)


def _read_header(source: TextIO, *, quoted: bool) -> str:
    """The first record, which in quotes may have several lines."""
    read: list[str] = []
    while not read or (quoted and "".join(read).count('"') % 2):
        read.append(source.readline())
        if not read[-1]:
            break
    return "".join(read)


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

    with _keepable(path):
        schema = arrow.unify_schemas([parquet.read_schema(part) for part in parts], promote_options="permissive")
    with parquet.ParquetWriter(path, schema) as writer:
        for part in parts:
            table = parquet.read_table(part)
            missing = [name for name in schema.names if name not in table.column_names]
            for name in missing:
                table = table.append_column(name, arrow.nulls(len(table), schema.field(name).type))
            writer.write_table(table.select(schema.names).cast(schema))
