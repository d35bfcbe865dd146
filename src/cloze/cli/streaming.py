"""Files that are answered part by part: what all commands share that ask a model about the rows of a file.

Files of any size: read, answered and written in parts, so that memory stays flat and an interruption costs a part.

While the work goes on, a folder ``OUTPUT.parts`` beside the output holds one finished file for each part of the input
and what the work is: the same command goes on behind the last of them, another one is refused. In the end the parts
become one file, and the folder goes.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from cloze.cli import inputs
from cloze.cli.console import Reporter, tell_written
from cloze.cli.outputs import ROW_FILES, beside, check_ending, join_parts, kinds_of, write_rows
from cloze.errors import ClozeError, ConfigError, DataError
from cloze.files import read_json, replace_json
from cloze.interrupts import Interrupted, heard_at_once
from cloze.progress import Progress

if TYPE_CHECKING:
    from cloze.predict import Model

Answer = dict[str, Any]

# Rows a part where a row is asked about many times over: an interruption costs a part, and the bar moves by parts.
SLOW_ROWS = 256


class Rows(Protocol):
    """Some rows of a file: what is asked about each, and what is to stand beside its answer."""

    @property
    def texts(self) -> Sequence[object]:
        """One a row."""

    @property
    def kept(self) -> Sequence[Mapping[str, object]]:
        """The columns of each."""


Part = TypeVar("Part", bound=Rows)


def ask(
    given: Sequence[str] | inputs.Inputs | None,
    source: Path | None,
    output: Path | None,
    load: "Callable[[], Model]",
    say: "Callable[[Model, inputs.Inputs], list[Answer]]",
    *,
    text: str,
    pair: str | None = None,
    settings: Mapping[str, Any],
    fresh: bool,
    json: bool,
) -> tuple[inputs.Inputs, list[Answer]] | None:
    """Texts with their answers, to be printed; None where they are written: rows, each with its answer beside."""
    if output is not None:
        check_ending(output, ROW_FILES)
    if not given and source is not None and output is not None:
        model, read = load(), partial(inputs.read_parts, source, text=text, pair=pair)
        known = {"text": text, "pair": pair, **settings}
        answer_file(model, source, output, read, partial(say, model), settings=known, fresh=fresh, json=json)
        return None
    asked = given if isinstance(given, inputs.Inputs) else inputs.gather_texts(given, source, text=text, pair=pair)
    answers = say(load(), asked)
    if output is None:
        return asked, answers
    write_rows(output, beside(asked.kept, answers))
    tell_written(output, len(answers), json)
    return None


def answer_file(
    model: "Model",
    source: Path,
    output: Path,
    read: Callable[[int], Iterator[Part]],
    say: Callable[[Part], list[Answer]],
    *,
    settings: Mapping[str, Any],
    fresh: bool,
    json: bool,
    rows: int | None = None,
    counts: Mapping[str, Callable[[Answer], int]] | None = None,
) -> None:
    """Write the rows of a file with their answers beside, and tell of it, and what ``counts`` say of all answers."""
    tally = Tally(output)

    def write(part: Part, path: Path, survey: inputs.Survey | None) -> None:
        answers, columns = say(part), survey.columns if survey else ()
        tally.note(path, {name: sum(map(count, answers)) for name, count in (counts or {}).items()})
        write_rows(path, beside(part.kept, answers, columns), columns)

    count = stream_parts(model, source, output, read, write, join=tally.join, settings=settings, fresh=fresh, rows=rows)
    tell_written(output, count, json, **tally.counts)


def stream_file(
    model: "Model",
    source: Path,
    output: Path,
    write: Callable[[inputs.Inputs, Path], None],
    *,
    text: str,
    pair: str | None,
    settings: Mapping[str, Any],
    fresh: bool,
) -> int:
    """Answer a file of texts into another, and return its number of rows."""

    def write_surveyed(part: inputs.Inputs, path: Path, survey: inputs.Survey | None) -> None:
        write(replace(part, survey=survey), path)

    read, known = partial(inputs.read_parts, source, text=text, pair=pair), {"text": text, "pair": pair, **settings}
    return stream_parts(model, source, output, read, write_surveyed, settings=known, fresh=fresh)


def stream_parts(
    model: "Model",
    source: Path,
    output: Path,
    read: Callable[[int], Iterator[Part]],
    write: Callable[[Part, Path, inputs.Survey | None], None],
    *,
    join: Callable[[Sequence[Path], Path], None] = join_parts,
    settings: Mapping[str, Any],
    fresh: bool,
    rows: int | None = None,
) -> int:
    """Answer a file of any size into another, and return its number of rows; the same command goes on.

    ``read`` gives the file in parts of so many rows, anew each time, and ``write`` the file of a part.
    """
    from cloze import __version__

    if output.exists() and source.exists() and output.samefile(source):
        raise ConfigError(f"--output {output}: this is the --input itself; choose another place")
    most = min(rows or inputs.PART_ROWS, inputs.PART_ROWS)
    # What comes through a pipe is gone once it is read: it cannot be looked through beforehand.
    survey = None if source.is_fifo() else _survey(source, output, read(most))
    total = survey.rows if survey else None
    work = {
        "cloze": __version__,
        "input": file_state(source),
        "model": model.fingerprint if total is None or total > most else "",
        "precision": model.precision,
        "rows": most,
        **settings,
    }

    def write_part(part: Part, path: Path) -> None:
        write(part, path, survey)

    stream = Stream[Part]("rows", lambda part: len(part.texts), write_part, join, work)
    with Reporter() as reporter:
        return run_stream(stream, read(most), total, output, reporter, fresh=fresh)


def file_state(path: Path) -> list[Any]:
    """What tells a file from what it was before."""
    state = path.stat()
    return [str(path.resolve()), state.st_size, state.st_mtime_ns]


@dataclass
class Tally:
    """Counts over all parts, also those that another process has written: each part's lie beside it."""

    output: Path
    counts: dict[str, int] = field(default_factory=dict)

    def note(self, path: Path, counts: Mapping[str, int]) -> None:
        """Keep the counts of a part, before it is there itself: where there is a part, there are its counts."""
        if path == self.output:  # the only one
            self.counts = dict(counts)
        elif counts:
            replace_json(_counts_of(path), dict(counts))

    def join(self, parts: Sequence[Path], path: Path) -> None:
        """Make one file of all parts, and one sum of their counts."""
        self.add_up(parts)
        join_parts(parts, path)

    def add_up(self, parts: Sequence[Path]) -> None:
        """Take the counts of all parts together."""
        for part in parts:
            if (noted := _counts_of(part)).exists():
                for name, count in read_json(noted, DataError).items():
                    self.counts[name] = self.counts.get(name, 0) + int(count)


def _counts_of(part: Path) -> Path:
    return part.with_suffix(".counts.json")


def _survey(source: Path, output: Path, parts: Iterator[Rows]) -> inputs.Survey:
    """Look through a file: that takes a moment, and what is wrong with any row is known before the work."""
    rows, columns, kinds = 0, dict[str, None](), None
    if output.suffix == ".parquet" and source.suffix.lower() == ".parquet":
        from pyarrow import parquet

        kinds = parquet.read_schema(source).remove_metadata()
    infers = output.suffix == ".parquet" and kinds is None
    for part in parts:
        rows += len(part.texts)
        columns.update(dict.fromkeys(name for fields in part.kept for name in fields))
        kinds = kinds_of(part.kept, kinds, output) if infers else kinds
    return inputs.Survey(rows, tuple(columns), kinds)


AnyPart = TypeVar("AnyPart")
WORK = "work.json"


@dataclass(frozen=True)
class Stream(Generic[AnyPart]):
    """What is done with each part of an input: answered and written, and in the end joined."""

    name: str  # what the bar says
    size: Callable[[AnyPart], int]  # in rows
    write: Callable[[AnyPart, Path], None]  # answers of one part, into a file that is there wholly or not at all
    join: Callable[[list[Path], Path], None]
    work: Mapping[str, Any]  # what must be the same for the work to go on


def run_stream(
    stream: Stream[AnyPart],
    parts: Iterator[AnyPart],
    total: int | None,
    output: Path,
    progress: Progress,
    *,
    fresh: bool,
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


def _write(stream: Stream[AnyPart], part: AnyPart, path: Path, done: int) -> None:
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
