"""The plan of a preparation: the slices of files that form each shard, and the recipe that determines the result.

Slices depend only on the files and the shard size: a file is cut after the first document that ends beyond the size,
and small slices are combined with the following ones. So the shards do not depend on the number of workers or on
interruptions. The recipe is stored with the corpus and compared before existing work is reused.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cloze.corpus.documents import (
    LONGEST_PARAGRAPH,
    CorpusSlice,
    FileRange,
    ShardText,
    format_of,
    is_compressed,
    named_errors,
    open_text,
)
from cloze.corpus.record_files import open_parquet
from cloze.corpus.settings import PrepareSettings
from cloze.corpus.shards import MANIFEST, file_digest, read_manifest
from cloze.errors import DataError
from cloze.files import OUR_JSON_LIMIT, read_json
from cloze.locks import real_target
from cloze.progress import Progress
from cloze.text import Tokenizer
from cloze.workers import Report

PLAN = "plan.json"
WORDS = "words.txt"
HASHES = "hashes"
# Increase these when the results of split_sentences or encode_words change.
SENTENCE_RULES = 1
WORD_RULES = 1
_REPORT_EVERY = 2**22  # bytes
_METER_EVERY = 2**18  # bytes between two reports of a meter
_FEWEST_REPORTED = 2**15  # stages with fewer bytes are not reported
_LIKELY_COMPRESSION = 4  # bytes of text per byte of a compressed file

FileState = list[int]
"""Size, modification time and status-change time of a file, which change when it is written to."""


def file_state(path: Path) -> FileState:
    """Return the state of a text file; it includes the status-change time, which programs cannot reset."""
    with named_errors(path):
        state = path.stat()
    return [state.st_size, state.st_mtime_ns, state.st_ctime_ns]


@dataclass(frozen=True)
class ShardPlan:
    """The plan, which every worker and every cluster job reads from the work folder."""

    paths: list[Path]
    texts: list[ShardText]  # the text of each shard
    recipe: dict[str, Any]
    dtype: str
    states: list[FileState]  # state of each file before it was read for its fingerprint

    @classmethod
    def read(cls, folder: Path) -> "ShardPlan":
        """Read the plan of a work folder."""
        values = read_json(folder / PLAN, DataError, OUR_JSON_LIMIT)
        texts = [
            tuple(CorpusSlice(file, FileRange(start, stop, first), size) for file, start, stop, first, size in text)
            for text in values["parts"]
        ]
        return cls(
            [Path(path) for path in values["paths"]], texts, values["recipe"], values["dtype"], values.get("states", [])
        )

    def as_json(self) -> dict[str, Any]:
        """Return the plan in the JSON form that ``read`` accepts."""
        return {
            "recipe": self.recipe,
            "dtype": self.dtype,
            "paths": [str(path) for path in self.paths],
            "states": self.states,
            "parts": [[[piece.file, *piece.range, piece.size] for piece in text] for text in self.texts],
        }

    def check_unchanged(self, files: Iterable[int]) -> None:
        """Raise an error if one of the text files (by number) has changed since its fingerprint was taken."""
        for file in sorted(set(files)):
            path, (name, digest) = self.paths[file], self.recipe["texts"][file]
            now = file_state(path)
            # The status-change time also changes if a file is renamed or its permissions change: compare the digest.
            if now[:-1] != self.states[file][:-1] or (now != self.states[file] and file_digest(path) != digest):
                raise DataError(
                    f"{path}: {name} changed while it was being prepared; run the same command again when no program "
                    f"is writing to it"
                )

    def size(self, shard: int) -> int:
        """Return the approximate number of bytes of text of a shard."""
        return sum(piece.size for piece in self.texts[shard])


def work_folder(folder: Path) -> Path:
    """Return the folder in which a corpus is built: next to its final location, so that renaming suffices."""
    place = real_target(folder) if folder.is_symlink() else folder
    return place.with_name(f"{place.name}.partial")


def shard_name(shard: int) -> str:
    """Return the name of the shard with this number."""
    return f"{shard:05d}"


def hashes_path(folder: Path, shard: int) -> Path:
    """Return the path of the hashes of a shard's documents."""
    return folder / HASHES / f"{shard_name(shard)}.hashes"


def kept_path(folder: Path, shard: int) -> Path:
    """Return the path of the flags of documents to keep in a shard."""
    return folder / HASHES / f"{shard_name(shard)}.kept"


def survey(path: Path, file: int, column: str, size: int, report: Report = lambda _: None) -> list[CorpusSlice]:
    """Cut a file into slices of about ``size`` bytes; ``report`` is called with the number of bytes read."""
    if format_of(path) == "parquet":
        return list(_survey_parquet(path, file, column, size))
    return list(_survey_lines(path, file, size, report))


def _survey_lines(path: Path, file: int, size: int, report: Report) -> Iterator[CorpusSlice]:
    every_line = format_of(path) == "jsonl"
    start = position = reported = 0
    number = first = 1
    inside = False  # a line longer than LONGEST_PARAGRAPH
    with open_text(path) as stream:
        while line := stream.readline(LONGEST_PARAGRAPH):
            position += len(line)
            was_inside, inside = inside, not line.endswith(b"\n")
            number += not inside
            if position - start >= size and not inside and (every_line or (not was_inside and _is_blank(line))):
                yield CorpusSlice(file, FileRange(start, position, first), position - start)
                start, first = position, number
            if position - reported >= _REPORT_EVERY:
                report(position - reported)
                reported = position
    report(position - reported)
    if start < position:
        yield CorpusSlice(file, FileRange(start, position, first), position - start)


def _is_blank(line: bytes) -> bool:
    return not line.decode("utf-8", "replace").strip()


def _survey_parquet(path: Path, file: int, column: str, size: int) -> Iterator[CorpusSlice]:
    with open_parquet(path, column) as opened:
        metadata = opened.metadata
        place = next(index for index in range(metadata.num_columns) if metadata.schema.column(index).path == column)
        start, row, first, pending = 0, 1, 1, 0
        for group in range(metadata.num_row_groups):
            pending += metadata.row_group(group).column(place).total_uncompressed_size
            row += metadata.row_group(group).num_rows
            if pending >= size or group == metadata.num_row_groups - 1:
                yield CorpusSlice(file, FileRange(start, group + 1, first), pending)
                start, first, pending = group + 1, row, 0


def gather(slices: Iterable[CorpusSlice], size: int) -> list[ShardText]:
    """Combine small slices, so that many small files do not become as many shards."""
    texts: list[ShardText] = []
    pending: list[CorpusSlice] = []
    waiting = 0
    for piece in slices:
        pending.append(piece)
        waiting += piece.size
        if 2 * waiting >= size:
            texts.append(tuple(pending))
            pending, waiting = [], 0
    return [*texts, tuple(pending)] if pending else texts


def make_recipe(texts: list[list[str]], tokenizer: Tokenizer, settings: PrepareSettings) -> dict[str, Any]:
    """Return everything that affects the result; ``texts`` are the names and fingerprints of the files."""
    return {
        # A list, because the order affects which documents are held out, and two files may have the same name.
        "texts": texts,
        "vocabulary": tokenizer.digest,
        "held_out": settings.held_out,
        "seed": settings.seed,
        "column": settings.text,
        "on_bad_row": settings.on_bad_row,
        "words": None if settings.words is None else file_digest(settings.words),
        "lines": settings.lines,
        "duplicates": settings.duplicates,
        "shard_size": settings.shard_size,
        "sentence_rules": f"{SENTENCE_RULES}, sentencex {version('sentencex')}",
        "word_rules": f"{WORD_RULES}, rjieba {version('rjieba')}",
    }


def check_same(folder: Path, recipe: dict[str, Any]) -> None:
    """Raise an error unless the folder holds a corpus of exactly this recipe."""
    check_is_corpus(folder)
    if changes := differences(read_manifest(folder).get("recipe"), recipe):
        raise DataError(f"{folder}: was prepared with other settings ({changes}); choose another --out or delete it")


def check_is_corpus(folder: Path) -> None:
    """Raise an error if an existing folder is not a prepared corpus."""
    if not (folder / MANIFEST).is_file():
        raise DataError(f"{folder}: exists and is not a prepared corpus; choose another --out")


def differences(recorded: Any, recipe: dict[str, Any]) -> str:
    """Describe how a recorded recipe differs from this one; an empty string means that they are equal."""
    recorded = recorded if isinstance(recorded, dict) else {}
    changed = [key for key in recipe if key not in recorded or recorded[key] != recipe[key]]
    if not changed:
        return ""
    shown = [
        f"{key} is {recorded[key]} there and {recipe[key]} here"
        for key in changed
        if key in recorded and key not in {"texts", "vocabulary", "words"}
    ]
    return f"{', '.join(changed)} differ{': ' if shown else ''}{', '.join(shown)}"


def id_type(tokenizer: Tokenizer) -> str:
    """Return the smallest NumPy type that holds every id."""
    return "<u2" if tokenizer.size <= 2**16 else "<i4"


def estimated_size(paths: Sequence[Path]) -> int:
    """Return the approximate number of bytes of text, ignoring missing files; reading them raises the error."""
    sizes = ((path, path.stat().st_size) for path in paths if path.is_file())
    return sum(size * (_LIKELY_COMPRESSION if is_compressed(path) else 1) for path, size in sizes)


class ByteMeter:
    """Adds up processed bytes and reports them as progress."""

    def __init__(self, progress: Progress, stage: str, total: int | None) -> None:
        self._progress = progress
        self._stage = stage
        self._total = total
        self._done = self._reported = 0
        self._started = time.monotonic()

    def add(self, count: int) -> None:
        """Add processed bytes; a negative number subtracts bytes of work that was lost."""
        self._done += count
        if abs(self._done - self._reported) < _METER_EVERY:
            return
        self._reported = self._done
        # The total itself is reported only once, by ``finish``.
        done = max(0, self._done) if self._total is None else min(max(0, self._done), max(0, self._total - 1))
        rate = done / 10**6 / max(1e-3, time.monotonic() - self._started)
        self._progress.advance(self._stage, done, self._total, **{"MB/s": rate})

    def finish(self) -> None:
        """Report the end of the stage."""
        if self._total is not None and self._total >= _FEWEST_REPORTED:
            self._progress.advance(self._stage, self._total, self._total)
