"""Results into files: all of a file, or none of it."""

import csv
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cloze.cli.inputs import Inputs
from cloze.errors import ConfigError
from cloze.files import replaced_file

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_WHITE = re.compile("[\t\r\n]+")


def write_rows(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows as JSONL, CSV or TSV, by the file's ending."""
    writers = {".jsonl": _write_json_lines, ".csv": _write_quoted, ".tsv": _write_tabbed}
    if path.suffix not in writers:
        raise ConfigError(f"--output {path}: .jsonl, .csv or .tsv was expected")
    with replaced_file(path) as temporary:
        writers[path.suffix](temporary, rows)


def write_vectors(path: Path, inputs: Inputs, vectors: "NDArray[np.float32]") -> None:
    """Write vectors as a NumPy array, or with the input's columns as JSONL or Parquet."""
    if path.suffix not in {".npy", ".jsonl", ".parquet"}:
        raise ConfigError(f"--output {path}: .npy, .jsonl or .parquet was expected")
    kept = inputs.fields or [{"text": text} for text in inputs.texts]
    with replaced_file(path) as temporary:
        if path.suffix == ".npy":
            _write_array(temporary, vectors)
        elif path.suffix == ".jsonl":
            rows = [{**fields, "vector": vector.tolist()} for fields, vector in zip(kept, vectors, strict=True)]
            _write_json_lines(temporary, rows)
        else:
            _write_parquet(temporary, kept, vectors)


def _write_array(path: Path, vectors: "NDArray[np.float32]") -> None:
    import numpy as np

    # np.save would add its ending to a temporary name; an open file is left as it is called.
    with path.open("wb") as file:
        np.save(file, vectors)


def _write_json_lines(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")


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
