"""Files of any size: read, answered and written in parts, so that memory stays flat and an interruption costs a part.

While the work goes on, a folder ``OUTPUT.parts`` beside the output holds one finished file for each part of the input
and what the work is: the same command goes on behind the last of them, another one is refused. In the end the parts
become one file, and the folder goes.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any, Generic, TypeVar

from cloze.errors import ClozeError, DataError
from cloze.files import read_json, replace_json
from cloze.interrupts import Interrupted, heard_at_once
from cloze.progress import Progress

Part = TypeVar("Part")
WORK = "work.json"


@dataclass(frozen=True)
class Stream(Generic[Part]):
    """What is done with each part of an input: answered and written, and in the end joined."""

    name: str  # what the bar says
    size: Callable[[Part], int]  # in rows
    write: Callable[[Part, Path], None]  # answers of one part, into a file that is there wholly or not at all
    join: Callable[[list[Path], Path], None]
    work: Mapping[str, Any]  # what must be the same for the work to go on


def run_stream(
    stream: Stream[Part], parts: Iterator[Part], total: int | None, output: Path, progress: Progress, *, fresh: bool
) -> int:
    """Answer all parts into one file and return the number of rows; a single part needs no folder beside."""
    folder = output.with_name(f"{output.name}.parts")
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    first, second = next(parts, None), next(parts, None)
    if first is None:
        raise DataError("there are no rows to answer; give some")
    if second is None and not folder.exists():
        stream.write(first, output)
        return stream.size(first)
    _begin(folder, stream.work, output)
    done, meter = 0, _Meter(progress, stream.name, total)
    paths = []
    for number, part in enumerate(chain([first] if second is None else [first, second], parts)):
        path = folder / f"{number:06}{output.suffix}"
        rows = stream.size(part)
        if not path.exists():
            _write(stream, part, path, done)
            meter.advance(done + rows, rows)
        done += rows
        paths.append(path)
    with _told(output):
        stream.join(paths, output)
    shutil.rmtree(folder, ignore_errors=True)
    return done


def _write(stream: Stream[Part], part: Part, path: Path, done: int) -> None:
    try:
        with heard_at_once():
            stream.write(part, path)
    except Interrupted as stop:
        message = f"stopped after {done:,} rows, which are kept in {path.parent}; the same command goes on from there"
        raise Interrupted(stop.number, message) from stop


@contextmanager
def _told(output: Path) -> Iterator[None]:
    """An error of the disk, as one line."""
    try:
        yield
    except OSError as error:
        raise ClozeError(f"{output}: cannot be written ({error.strerror or error}); choose another place") from error


def _begin(folder: Path, work: Mapping[str, Any], output: Path) -> None:
    """Note what the work is, or see that it is the same."""
    noted = folder / WORK
    if not noted.exists():
        with _told(output):
            folder.mkdir(exist_ok=True)
            replace_json(noted, dict(work))
        return
    before = read_json(noted, DataError)
    other = [name for name in work if before.get(name) != work[name]]
    if other:
        name = other[0]
        raise DataError(
            f"{folder}: holds the beginning of other work ({name} was {before.get(name)!r}, is {work[name]!r}); "
            "pass --fresh to begin anew, or give another --output"
        )


class _Meter:
    """Rows a second of this process alone: those that were there before cost nothing."""

    def __init__(self, progress: Progress, name: str, total: int | None) -> None:
        self._progress, self._name, self._total = progress, name, total
        self._start, self._answered = perf_counter(), 0

    def advance(self, done: int, rows: int) -> None:
        """Tell that so many rows are done in all, and so many more by us."""
        self._answered += rows
        rate = self._answered / max(perf_counter() - self._start, 1e-9)
        self._progress.advance(self._name, done, self._total, rows_per_second=rate)
