"""Results into files: all of a file, or none of it; and files of parts into one."""

import csv
import json
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

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


def beside(fields: Mapping[str, object], answer: Mapping[str, object]) -> dict[str, object]:
    """A file's own columns as they are, and an answer under names that none of them has."""
    return {**fields, **{_own_name(name, fields): value for name, value in answer.items()}}


def _own_name(name: str, taken: Collection[str]) -> str:
    return f"predicted_{name}" if name in taken else name


def write_rows(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows as JSONL, CSV or TSV, by the file's ending."""
    writers = {".jsonl": _write_json_lines, ".csv": _write_quoted, ".tsv": _write_tabbed}
    check_ending(path, ROW_FILES)
    with replaced_file(path) as temporary:
        writers[path.suffix](temporary, rows)


def write_vectors(path: Path, inputs: Inputs, vectors: "NDArray[np.float32]") -> None:
    """Write vectors as a NumPy array, or with the input's columns as JSONL or Parquet."""
    check_ending(path, VECTOR_FILES)
    kept = inputs.kept
    with replaced_file(path) as temporary:
        if path.suffix == ".npy":
            _write_array(temporary, vectors)
        elif path.suffix == ".jsonl":
            rows = [beside(fields, {"vector": vector.tolist()}) for fields, vector in zip(kept, vectors, strict=True)]
            _write_json_lines(temporary, rows)
        else:
            _write_parquet(temporary, kept, vectors)


def _write_array(path: Path, vectors: "NDArray[np.float32]") -> None:
    import numpy as np

    # np.save would add its ending to a temporary name; an open file is left as it is called.
    with path.open("wb") as file:
        np.save(file, vectors)


def _write_json_lines(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    text = "".join(_json(row) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")


def _write_quoted(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, _names(rows), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)


def _write_tabbed(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Quotes protect nothing in the TSV that we read, so that a tab or a line end in a cell becomes a space."""
    names = _names(rows)
    cells = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    lines = ("\t".join(_WHITE.sub(" ", cell) for cell in line) + "\n" for line in cells)
    path.write_text("".join(lines), encoding="utf-8")


def _cell(value: object) -> str:
    """What a table without kinds shows: nothing for what is not there, and JSON for what has parts."""
    if value is None:
        return ""
    return _json(value) if isinstance(value, list | dict) else str(value)


def _json(value: object) -> str:
    """On one line; dates and the like, which columns of Parquet have and JSON has not, as texts."""
    return json.dumps(value, ensure_ascii=False, default=str)


def _names(rows: Sequence[Mapping[str, object]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _write_parquet(path: Path, kept: Sequence[Mapping[str, object]], vectors: "NDArray[np.float32]") -> None:
    import pyarrow as arrow
    from pyarrow import parquet

    flat = arrow.array(vectors.reshape(-1))
    names = _names(kept)  # of all rows; by itself, Arrow takes those of the first
    with _one_kind(path):
        table = arrow.Table.from_pylist([{name: fields.get(name) for name in names} for fields in kept])
    column = arrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
    parquet.write_table(table.append_column(_own_name("vector", names), column), path)


@contextmanager
def _one_kind(path: Path) -> Iterator[None]:
    """A column of Parquet holds values of one kind."""
    import pyarrow as arrow

    try:
        yield
    except arrow.ArrowException as error:
        name, reason = path.name.removesuffix(".tmp"), str(error).splitlines()[0]
        raise DataError(f"{name}: a column holds values of several kinds ({reason}); write .jsonl instead") from error


def join_parts(parts: Sequence[Path], path: Path) -> None:
    """Make one file of several that were written here, one of them in memory at a time."""
    joiners = {".npy": _join_arrays, ".parquet": _join_parquet, ".jsonl": _join_lines}
    with replaced_file(path) as temporary:
        joiners.get(path.suffix, _join_tables)(parts, temporary)


def _join_lines(parts: Sequence[Path], path: Path) -> None:
    with path.open("wb") as file:
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, file)


def _join_tables(parts: Sequence[Path], path: Path) -> None:
    header = None
    with path.open("wb") as file:
        for part in parts:
            with part.open("rb") as source:
                own = source.readline()
                if header is None:
                    file.write(own)
                elif own != header:
                    raise DataError(
                        f"{part}: its rows have other columns than those before them; write .jsonl, which allows it"
                    )
                header = own
                shutil.copyfileobj(source, file)


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

    with _one_kind(path):
        # A column may be empty in one part and have texts, or whole numbers and then others, in the next.
        schema = arrow.unify_schemas([parquet.read_schema(part) for part in parts], promote_options="permissive")
    with parquet.ParquetWriter(path, schema) as writer:
        for part in parts:
            table = parquet.read_table(part)
            missing = [name for name in schema.names if name not in table.column_names]
            for name in missing:
                table = table.append_column(name, arrow.nulls(len(table), schema.field(name).type))
            writer.write_table(table.select(schema.names).cast(schema))
