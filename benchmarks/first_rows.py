"""Shortened copies of tasks, for benchmarks that would take too long on all rows."""

import lzma
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TextIO


def first_rows(
    task: Path, folder: Path, train: int = 10_000, dev: int | None = None, parts: Sequence[str] = ("train", "dev")
) -> Path:
    """Copy a GLUE task with only the first training and dev rows; None copies all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", train), ("dev", dev)):
        if part not in parts:
            continue
        name = f"{part}.tsv"
        with _open(task / name) as file:
            (folder / name).write_text("".join(islice(file, None if count is None else count + 1)), encoding="utf-8")
    return folder


def first_sentences(task: Path, folder: Path, train: int = 5_000) -> Path:
    """Copy CoNLL-2003 with only the first training sentences; the dev set stays complete."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("eng.train", train), ("eng.testa", None)):
        with _open(task / name) as file:
            (folder / name).write_text("".join(islice(_sentences(file), count)), encoding="utf-8")
    return folder


def _sentences(file: TextIO) -> Iterator[str]:
    """Yield each sentence with its trailing blank line; a document marker belongs to the sentence after it."""
    lines: list[str] = []
    for line in file:
        lines.append(line)
        if not line.strip() and any(one.strip() and not one.startswith("-DOCSTART-") for one in lines):
            yield "".join(lines)
            lines = []
    yield "".join(lines)


def _open(path: Path) -> TextIO:
    packed = Path(f"{path}.xz")
    return lzma.open(packed, "rt", encoding="utf-8") if packed.is_file() else path.open(encoding="utf-8")
