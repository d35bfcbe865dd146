"""Terminal output: progress bars (plain lines without a terminal), tables and JSON; and the options for the device."""

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO, cast

from cloze.errors import ClozeError
from cloze.options import PrecisionName
from cloze.progress import PlainLines, StageClock, format_figures

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from cloze.predict import Model

# Number of characters of a text that a table shows on a terminal.
SHOWN_CHARACTERS = 80


# Control characters (except tab and newline) and characters that change the direction of text. On a terminal, a label
# or a text could use them to hide or forge lines, or to set the window title.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def escape_controls(text: str) -> str:
    r"""Return a text with its control characters replaced by escapes, such as ``\x1b``."""
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


class OutputError(ClozeError):
    """Standard output cannot be written, for example because the disk is full."""


class GuardedStream:
    """A standard stream whose failed writes are not reported as bugs.

    Failures of standard output raise ``OutputError``. Messages on standard error are dropped, since training must not
    fail because its log cannot be written. A closed pipe still raises ``BrokenPipeError``.
    """

    def __init__(self, stream: TextIO, *, drops: bool) -> None:
        self._stream, self._drops = stream, drops

    def write(self, text: str) -> int:
        """Write a text, and return its length."""
        with self._guarded():
            self._stream.write(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush the buffer."""
        with self._guarded():
            self._stream.flush()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if self._drops:
                return
            if isinstance(error, BrokenPipeError):
                raise
            raise OutputError(
                f"standard output cannot be written ({error.strerror}); free some space, or write elsewhere"
            ) from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class TerminalStream(GuardedStream):
    """A terminal to which texts are written with their control characters escaped."""

    def __init__(self, stream: TextIO, *, drops: bool) -> None:
        super().__init__(stream, drops=drops)
        self.rich_proxied_file = stream  # rich writes its colors to this one; its cells are escaped before

    def write(self, text: str) -> int:
        """Write a text, and return its length."""
        super().write(escape_controls(text))
        return len(text)


@contextmanager
def guard_outputs() -> Iterator[None]:
    """Guard the standard streams, and escape control characters on terminals, since texts are not trusted."""
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _guard(sys.stdout, drops=False), _guard(sys.stderr, drops=True)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams
        for stream in filter(None, streams):
            _flush_or_discard(stream)


def _guard(stream: TextIO | None, *, drops: bool) -> TextIO:
    if stream is None:  # closed before the command was started
        stream = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (open until the command ends)
    kind = TerminalStream if stream.isatty() else GuardedStream
    return cast("TextIO", kind(stream, drops=drops))


def _flush_or_discard(stream: TextIO) -> None:
    """Flush the buffer; if that fails, discard it, because the interpreter would report the error again at exit."""
    try:
        stream.flush()
    except OSError:
        with suppress(OSError):  # a stream without a file, as in a notebook
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@dataclass
class Reporter:
    """Progress display: a bar with rate and time left on a terminal, an occasional line elsewhere."""

    _bar: "Bar | None" = None
    _tasks: "dict[str, TaskID]" = field(default_factory=dict)
    _clock: StageClock = field(default_factory=StageClock)
    _lines: PlainLines = field(default_factory=PlainLines)
    _messages: set[str] = field(default_factory=set)

    def __enter__(self) -> "Reporter":
        if sys.stderr.isatty():
            self._bar = _make_bar()
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def advance(self, stage: str, done: int, total: int | None, **figures: float) -> None:
        """Show the progress of a stage."""
        if self._bar is None:
            self._lines.advance(stage, done, total, **figures)
            return
        if self._clock.restarts(stage, done) and stage in self._tasks:
            self._bar.remove_task(self._tasks.pop(stage))
        if stage not in self._tasks:
            self._tasks[stage] = self._bar.add_task(stage, total=total, figures="", left="")
        # The bar's own estimate covers only half a minute and is lost when the total changes.
        left = self._clock.seconds_left(stage, done, total)
        time_left = "" if left is None else f"{timedelta(seconds=round(left))} left"
        self._bar.update(
            self._tasks[stage], completed=done, total=total, figures=format_figures(figures), left=time_left
        )

    def say(self, message: str) -> None:
        """Print one line to standard error, above the bar if there is one; a repeated line is printed once."""
        if self._bar is None:
            self._lines.say(message)
        elif message not in self._messages:
            self._messages.add(message)
            self._bar.console.print(escape_controls(message), markup=False, highlight=False)


def _make_bar() -> "Bar":
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        console=Console(stderr=True),
    )


def print_json(value: Any) -> None:
    """Print one JSON value per line; types that JSON lacks, such as dates, become strings."""
    print(json.dumps(value, ensure_ascii=False, default=str))


def print_written(output: Path, rows: int, json: bool, **counts: int) -> None:
    """Report an output file: its number of rows, and further counts."""
    if json:
        print_json({"file": str(output), "rows": rows, **counts})
    else:
        print(", ".join([f"{output}: {rows:,} rows", *(f"{count:,} {name}" for name, count in counts.items())]))


def join_cell(value: object) -> object:
    """Join several labels in one cell."""
    return "|".join(value) if isinstance(value, tuple | list) else value


def format_cell(value: object) -> str:
    """Format a value for a cell of a printed table; None becomes an empty cell."""
    return f"{value:.4f}" if isinstance(value, float) else "" if value is None else str(value)


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """Print a table: with borders on a terminal, tab-separated elsewhere."""
    if not sys.stdout.isatty():
        for row in (header, *rows):
            print("\t".join(str(cell) for cell in row))
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(title=None if title is None else _plain(title), box=SIMPLE_HEAD, title_justify="left")
    for name in header:
        table.add_column(_plain(name))
    for row in rows:
        table.add_row(*(_plain(cell) for cell in row))  # plain text: brackets are not markup
    Console().print(table)


def shorten(text: str) -> str:
    """Return a text, shortened with an ellipsis on a terminal."""
    if len(text) <= SHOWN_CHARACTERS or not sys.stdout.isatty():
        return text
    return text[: SHOWN_CHARACTERS - 1] + "…"


def format_figure(value: float | None, digits: int) -> str:
    """Format a number for a table; None becomes a dash."""
    return "-" if value is None else f"{value:.{digits}f}"


def _plain(cell: object) -> Any:
    from rich.text import Text

    return Text(escape_controls(str(cell)))


@dataclass(frozen=True)
class Machine:
    """Device and threads. The docstring of a field is its flag's help."""

    device: str | None = None
    """Device: cpu, cuda or mps; by default, the best available."""
    threads: int | None = None
    """Number of threads per operation; by default, at most one per core, and fewer while other processes run."""

    def use(self) -> str | None:
        """Set the threads and return the device."""
        from cloze.threads import request_threads

        if self.threads is not None and self.threads < 1:
            from cloze.errors import ConfigError

            raise ConfigError(f"threads is {self.threads}; expected at least 1")
        request_threads(self.threads)
        return self.device


@dataclass(frozen=True)
class InferenceMachine(Machine):
    """Device, threads and precision of a prediction."""

    precision: PrecisionName = "fp32"
    """Precision: fp32 (same results as other libraries), bf16, int8 (CPU only), or auto (fastest accurate enough)."""

    def load(self, model: str) -> "Model":
        """Load a model for prediction."""
        from cloze.predict import load

        return load(model, device=self.use(), precision=self.precision)


def print_scores(results: Mapping[str, Any]) -> None:
    """Print scores with intervals and baselines; if the model is worse than the baseline, a first line warns of it."""
    from cloze.tasks.reports import headline, label_table, score_table, summary_lines

    if (first := headline(results)) is not None:
        print(first)
    print_table(*score_table(results))
    print(*summary_lines(results), sep="\n")
    if (labels := label_table(results)) is not None:
        print_table(*labels)


def print_results(run: Path, json: bool) -> None:
    """Print the results of a finished run."""
    from cloze.train.run import Run

    results = Run(run).results()
    if json:
        print_json({"folder": str(run), **results})
        return
    results.pop("advice", None)  # reported at the end of the training
    if "intervals" in results:
        print_scores(results)
        print(run / "model")
        return
    rows = [(name, f"{value:.4f}" if isinstance(value, float) else value) for name, value in results.items()]
    print_table((str(run / "model"), ""), rows)
