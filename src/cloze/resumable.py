"""Resumable file jobs: an input of any size is processed and written in parts, so that memory use stays constant.

While a job runs, the folder ``OUTPUT.parts`` next to the output contains one finished file per part, and ``work.json``,
which identifies the job. Re-running the same command resumes after the last finished part; a command with other
settings is rejected. At the end, the parts are joined into one file and the folder is removed.

``work.json`` is written before the first part and deleted after the last one. Parts without it belong to an unknown job
and are deleted.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any, Generic, TypeVar

from cloze.errors import ClozeError, DataError
from cloze.files import flush, read_json, replace_json
from cloze.locks import is_ours, only_writer, real_target
from cloze.progress import Interrupted, Progress, heard_at_once

Part = TypeVar("Part")
WORK = "work.json"
_PART = re.compile(r"\d{6,}\.\w+(\.json)?")  # file name of a part or of its counts


@dataclass(frozen=True)
class ResumableJob(Generic[Part]):
    """The steps of a job that is processed in parts.

    Attributes:
        name: Label of the progress bar.
        size: Returns the number of rows in a part.
        write: Processes a part and writes its file, completely or not at all.
        join: Joins the files of all parts into the output.
        identity: Everything that must be unchanged for the job to be resumed; JSON values.
        ending: Suffix of the files of parts; by default, that of the output, to which a single part is written
            directly.
        flag: The flag that names the output, for messages.
    """

    name: str
    size: Callable[[Part], int]
    write: Callable[[Part, Path], None]
    join: Callable[[list[Path], Path], None]
    identity: Mapping[str, Any]
    ending: str | None = None
    flag: str = "--output"

    def run(
        self, parts: Iterator[Part], total: int | None, output: Path, progress: Progress, *, fresh: bool = False
    ) -> int:
        """Process all parts into one file, resuming a previous run of the same job.

        Args:
            parts: The input, in parts. A single part is written directly, without a folder next to the output.
            total: Number of rows in all parts, if it is known.
            output: The file to write.
            progress: Receives the number of finished rows.
            fresh: Discard the parts of a previous run.

        Returns:
            The number of rows in the output.
        """
        with only_writer(output):
            return self._run(parts, total, output, progress, fresh=fresh)

    def _run(self, parts: Iterator[Part], total: int | None, output: Path, progress: Progress, *, fresh: bool) -> int:
        folder = parts_folder(output)
        if fresh:
            _delete_parts(folder, self.flag)
        first, second = next(parts, None), next(parts, None)
        if first is None:
            raise DataError("the input has no rows; give at least one")
        if second is None and self.ending is None and not (folder / WORK).exists():
            self.write(first, output)
            return self.size(first)
        _open_folder(folder, self.identity, output, self.flag)
        paths, done = self._write_parts(
            chain([first] if second is None else [first, second], parts),
            folder,
            output.suffix if self.ending is None else self.ending,
            _RowRate(progress, self.name, total),
        )
        with _disk_errors(output):
            self.join(paths, output)
        with suppress(ClozeError):  # the output is complete; the next job will delete what remains
            _delete_parts(folder, self.flag)
        return done

    def _write_parts(
        self, parts: Iterator[Part], folder: Path, suffix: str, rate: "_RowRate"
    ) -> tuple[list[Path], int]:
        """Write the parts that are missing; return the paths of all parts and their number of rows."""
        paths, done = [], 0
        for number, part in enumerate(parts):
            path, rows = folder / f"{number:06}{suffix}", self.size(part)
            if not path.exists():
                self._write_part(part, path, done)
                rate.advance(done + rows, rows)
            done += rows
            paths.append(path)
        return paths, done

    def _write_part(self, part: Part, path: Path, done: int) -> None:
        try:
            with heard_at_once():
                self.write(part, path)
        except Interrupted as stop:
            message = f"stopped after {done:,} rows, which are kept in {path.parent}; re-run the command to resume"
            raise Interrupted(stop.number, message) from stop


@contextmanager
def _disk_errors(output: Path) -> Iterator[None]:
    """Convert a disk error into a one-line message."""
    try:
        yield
    except OSError as error:
        raise ClozeError(f"{output}: cannot be written ({error.strerror or error}); choose another location") from error


def parts_folder(output: Path) -> Path:
    """Return the folder that holds the parts of an unfinished job."""
    place = real_target(output)
    return place.with_name(f"{place.name}.parts")


def discard_parts(output: Path, flag: str = "--output") -> None:
    """Delete the parts of an unfinished job; the caller must hold the output."""
    _delete_parts(parts_folder(output), flag)


def _open_folder(folder: Path, identity: Mapping[str, Any], output: Path, flag: str) -> None:
    """Create the folder of a new job, or check that an existing one belongs to the same job."""
    record = folder / WORK
    identity = json.loads(json.dumps(identity))  # tuples become lists, as in the record
    if not record.exists():
        _delete_parts(folder, flag)
        with _disk_errors(output):
            folder.mkdir(parents=True, exist_ok=True)
            replace_json(record, dict(identity))
            flush(folder)
        return
    before = read_json(record, DataError)
    changed = [name for name in identity if before.get(name) != identity[name]]
    if changed:
        name = changed[0]
        raise DataError(
            f"{folder}: belongs to a job with other settings ({name} was {before.get(name)!r}, is {identity[name]!r}); "
            f"pass --fresh to start over, or choose another {flag}"
        )


def _delete_parts(folder: Path, flag: str) -> None:
    """Delete the folder of a job: first the parts, then their record, so that no other job can adopt the parts.

    Raises:
        DataError: If the folder contains other files, which may be the user's.
    """
    if not os.path.lexists(folder):
        return
    if folder.is_symlink() or not folder.is_dir():
        raise DataError(f"{folder}: is not a folder of unfinished work; rename it, or choose another {flag}")
    paths = list(folder.iterdir())
    foreign = sorted(path.name for path in paths if path.name != WORK and not _PART.fullmatch(path.name))
    foreign = [name for name in foreign if not is_ours(folder / name)]
    if foreign:
        raise DataError(
            f"{folder}: contains {foreign[0]!r}, which cloze did not write, but unfinished work is stored there; "
            f"rename that folder, or choose another {flag}"
        )
    with _disk_errors(folder):
        for path in paths:
            if path.name != WORK:
                path.unlink(missing_ok=True)
        flush(folder)
        (folder / WORK).unlink(missing_ok=True)
        folder.rmdir()


def file_identity(path: Path) -> list[str]:
    """Return the path of a file and the SHA-256 of its content; for a pipe, the digest is an empty string."""
    if not path.is_file():
        return [str(path.resolve()), ""]
    with path.open("rb") as file:
        return [str(path.resolve()), hashlib.file_digest(file, "sha256").hexdigest()]


class UnchangedFile:
    """Checks that a file does not change while it is read; pipes are not checked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state = self._read_state()

    def _read_state(self) -> tuple[int, ...]:
        if not self._path.is_file():
            return ()
        state = self._path.stat()
        return state.st_size, state.st_ino, state.st_mtime_ns

    def check(self) -> None:
        """Raise an error if the file has changed."""
        if self._read_state() != self._state:
            raise DataError(f"{self._path}: has changed while it was read; run the command again with --fresh")


class PartCounts:
    """Counts over all parts of a job. The counts of each part are stored next to it, so that they survive a resume."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self.each: list[dict[str, int]] = []

    def record(self, path: Path, counts: Mapping[str, int]) -> None:
        """Store the counts of a part. This is called before the part is written: a finished part always has counts."""
        if path == self._output:  # the only part
            self.each = [dict(counts)]
        elif counts:
            replace_json(path.with_suffix(".counts.json"), dict(counts))

    def load(self, parts: Sequence[Path]) -> None:
        """Read the counts of all parts before their folder is removed."""
        records = [part.with_suffix(".counts.json") for part in parts]
        self.each = [read_json(record, DataError) for record in records if record.exists()]


class _RowRate:
    """Reports finished rows and the rate of this process, to which rows of earlier runs do not contribute."""

    def __init__(self, progress: Progress, name: str, total: int | None) -> None:
        self._progress, self._name, self._total = progress, name, total
        self._start, self._processed = perf_counter(), 0

    def advance(self, done: int, rows: int) -> None:
        """Report that ``done`` rows are finished in total, ``rows`` of them since the last call."""
        self._processed += rows
        rate = self._processed / max(perf_counter() - self._start, 1e-9)
        self._progress.advance(self._name, done, self._total, rows_per_second=rate)
