"""Results into files: all of a file, or none of it."""

import csv
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cloze.cli.inputs import Inputs
from cloze.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_WHITE = re.compile("[\t\r\n]+")


def write_rows(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows as JSONL, CSV or TSV, by the file's ending."""
    if path.suffix == ".jsonl":
        _replace(path, lambda place: place.write_text(_json_lines(rows), encoding="utf-8"))
    elif path.suffix in {".csv", ".tsv"}:
        _replace(path, lambda place: (_write_tabbed if path.suffix == ".tsv" else _write_quoted)(place, rows))
    else:
        raise ConfigError(f"--output {path}: .jsonl, .csv or .tsv was expected")


def write_vectors(path: Path, inputs: Inputs, vectors: "NDArray[np.float32]") -> None:
    """Write vectors as a NumPy array, or with the input's columns as JSONL or Parquet."""
    import numpy as np

    kept = inputs.fields or [{"text": text} for text in inputs.texts]
    if path.suffix == ".npy":
        # np.save would add the ending to a temporary name; an open file is left as it is called.
        def save(place: Path) -> None:
            with place.open("wb") as file:
                np.save(file, vectors)

        _replace(path, save)
    elif path.suffix == ".jsonl":
        rows = [{**fields, "vector": vector.tolist()} for fields, vector in zip(kept, vectors, strict=True)]
        _replace(path, lambda place: place.write_text(_json_lines(rows), encoding="utf-8"))
    elif path.suffix == ".parquet":
        _replace(path, lambda place: _write_parquet(place, kept, vectors))
    else:
        raise ConfigError(f"--output {path}: .npy, .jsonl or .parquet was expected")


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write under another name, then rename."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        write(temporary)
        os.replace(temporary, path)  # noqa: PTH105 (Path.replace says the same, less clearly)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror})") from error
    finally:
        temporary.unlink(missing_ok=True)


def _json_lines(rows: Sequence[Mapping[str, object]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _write_quoted(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, _names(rows), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _write_tabbed(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Quotes protect nothing in the TSV that we read, so that a tab or a line end in a cell becomes a space."""
    names = _names(rows)
    cells = [names, *([str(row.get(name, "")) for name in names] for row in rows)]
    lines = ("\t".join(_WHITE.sub(" ", cell) for cell in line) + "\n" for line in cells)
    path.write_text("".join(lines), encoding="utf-8")


def _names(rows: Sequence[Mapping[str, object]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _write_parquet(path: Path, kept: Sequence[Mapping[str, object]], vectors: "NDArray[np.float32]") -> None:
    import pyarrow as arrow
    from pyarrow import parquet

    flat = arrow.array(vectors.reshape(-1))
    table = arrow.Table.from_pylist([dict(fields) for fields in kept])
    column = arrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
    parquet.write_table(table.append_column("vector", column), path)
