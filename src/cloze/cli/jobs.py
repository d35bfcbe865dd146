"""The driver of the prediction commands (fill, score, follows, classify, tag, answer, choose, embed, correct).

A command is a subclass of ``Prediction``: a frozen dataclass whose fields are its settings, with methods to read
inputs, predict a part of them, and show or write the results. ``run_prediction`` does the rest: it predicts the
arguments or a whole file at once and prints the results, or processes a file in parts into another file (see
``resumable``).

Since the settings are fields of this object, all of them apply to arguments and files alike, and all are part of the
identity of a resumable job.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Protocol, TypeVar

from cyclopts import Parameter

from cloze.cli import inputs
from cloze.cli.console import InferenceMachine, Reporter, print_json, print_written
from cloze.cli.inputs import Inputs, Survey
from cloze.cli.outputs import ROW_FILES, arrow_schema, beside, check_file, check_not_input, join_parts, write_rows
from cloze.errors import ConfigError
from cloze.models import SHIPPED_MODEL
from cloze.resumable import PartCounts, ResumableJob, UnchangedFile, file_identity

if TYPE_CHECKING:
    from cloze.predict import Model

Row = dict[str, Any]

# Rows per part of a slow command. An interruption loses at most one part.
SLOW_PART_ROWS = 256


@dataclass(frozen=True)
class PredictionOptions:
    """Options that all prediction commands share. The docstring of a field is its flag's help."""

    model: str = SHIPPED_MODEL
    """A model folder or run with the required head, or a hub name."""
    input: Path | None = None
    """A file with one text per line, or a CSV, TSV, JSONL or Parquet file, whose columns are copied to the output."""
    output: Path | None = None
    """The file to write: .jsonl, .csv or .tsv. Re-running an interrupted command resumes it."""
    fresh: bool = False
    """Start over instead of resuming an interrupted command."""
    json: bool = False
    """Print JSON."""
    machine: Annotated[InferenceMachine, Parameter(name="*")] = InferenceMachine()  # noqa: RUF009 (frozen)

    def load(self) -> "Model":
        """Load the model."""
        return self.machine.load(self.model)


@dataclass(frozen=True)
class TableOptions(PredictionOptions):
    """Options of the commands whose file has several columns per row."""

    input: Path | None = None
    """A CSV, TSV, JSONL or Parquet file, whose columns are copied to the output."""


# The shared options as parameters of a command, with their defaults.
Options = Annotated[PredictionOptions, Parameter(name="*")]
PairOptions = Annotated[TableOptions, Parameter(name="*")]
OPTIONS, TABLE_OPTIONS = PredictionOptions(), TableOptions()


class Part(Protocol):
    """A part of the inputs, with one item per row."""

    @property
    def texts(self) -> Sequence[object]:
        """Return the text of each row."""

    @property
    def kept(self) -> Sequence[Mapping[str, object]]:
        """Return the columns to write next to each prediction."""


PartT = TypeVar("PartT", bound=Part)
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Prediction(ABC, Generic[PartT, ResultT]):
    """A prediction command: its settings (the fields of the subclass) and its steps (the methods)."""

    output_formats: ClassVar[tuple[str, ...]] = ROW_FILES
    # Settings that name columns of --input. Without --input, they would have no effect and are rejected.
    column_settings: ClassVar[tuple[str, ...]] = ("text",)
    slow: ClassVar[bool] = False  # whether the model runs many times per row

    @abstractmethod
    def read_file(self, path: Path) -> PartT:
        """Read a whole file."""

    @abstractmethod
    def read_parts(self, model: "Model", path: Path, rows: int) -> Iterator[PartT]:
        """Read a file, ``rows`` rows at a time."""

    @abstractmethod
    def predict(self, model: "Model", part: PartT) -> Sequence[ResultT]:
        """Return one result per row."""

    @abstractmethod
    def to_row(self, result: ResultT) -> Row:
        """Return the columns to write for a result."""

    @abstractmethod
    def print_table(self, model: "Model", part: PartT, results: Sequence[ResultT]) -> None:
        """Print results as a table."""

    def to_json(self, part: PartT, results: Sequence[ResultT]) -> Iterable[Row]:
        """Return the objects that ``--json`` prints, one per line."""
        return beside(self.kept(part), [self.to_row(result) for result in results])

    def kept(self, part: PartT) -> Sequence[Mapping[str, object]]:
        """Return the columns to write next to each prediction."""
        return part.kept

    def predictor(self, model: "Model") -> Callable[[PartT], Sequence[ResultT]]:
        """Return a function that predicts one part; override it to prepare something once for all parts."""
        return partial(self.predict, model)

    def can_read_in_parts(self, path: Path) -> bool:  # noqa: ARG002 (for subclasses)
        """Return whether ``read_parts`` supports this file; otherwise it is read as a whole."""
        return True

    def write(self, path: Path, part: PartT, results: Sequence[ResultT], survey: Survey | None = None) -> None:
        """Write rows with the columns of the input and the prediction; ``survey`` describes the whole input file."""
        columns = survey.columns if survey else ()
        rows = beside(self.kept(part), [self.to_row(result) for result in results], columns)
        write_rows(path, rows, columns)

    def write_part(self, path: Path, part: PartT, results: Sequence[ResultT], survey: Survey | None) -> None:
        """Write the file of one part, to be joined with others."""
        self.write(path, part, results, survey)

    def join(self, parts: Sequence[Path], path: Path) -> None:
        """Join the files of all parts."""
        join_parts(parts, path)

    def counts(self, results: Sequence[ResultT]) -> Mapping[str, int]:  # noqa: ARG002 (for subclasses)
        """Return counts to report after writing an output."""
        return {}

    def combine_counts(self, counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
        """Combine the counts of several parts."""
        total = Counter[str]()
        for part_counts in counts:
            total.update(part_counts)
        return dict(total)

    def print_written(self, output: Path, rows: int, counts: Mapping[str, int], json: bool) -> None:
        """Report a written output."""
        print_written(output, rows, json, **counts)

    def identity(self, model: "Model") -> dict[str, Any]:  # noqa: ARG002 (for subclasses)
        """Return the settings that must be equal for a job to be resumed."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class TextPrediction(Prediction[Inputs, ResultT]):
    """A prediction for texts or pairs of texts, read by column name."""

    column_settings: ClassVar[tuple[str, ...]] = ("text", "pair")

    text: str = inputs.TEXT_COLUMN
    pair: str | None = None

    def read_file(self, path: Path) -> Inputs:
        """Read a whole file."""
        return inputs.read_file(path, text=self.text, pair=self.pair)

    def read_parts(self, model: "Model", path: Path, rows: int) -> Iterator[Inputs]:  # noqa: ARG002 (for subclasses)
        """Read a file, ``rows`` rows at a time."""
        return inputs.read_parts(path, rows, text=self.text, pair=self.pair)

    def to_json(self, part: Inputs, results: Sequence[ResultT]) -> Iterable[Row]:
        """Return each text with its result."""
        for text, result in zip(part.texts, results, strict=True):
            yield {"text": text, **self.to_row(result)}


def run_prediction(command: Prediction[PartT, ResultT], arguments: PartT | None, options: PredictionOptions) -> None:
    """Run a prediction command: read its inputs, predict, and print or write the results.

    Args:
        command: The command with its settings.
        arguments: The inputs from the command line or standard input; None to read ``options.input``.
        options: The model to load, the files to read and write, and the output format.
    """
    source, output = options.input, options.output
    if output is not None:
        check_file(output, command.output_formats)
    if arguments is not None:
        _refuse_column_settings(command)
    elif source is not None and output is not None and command.can_read_in_parts(source):
        _predict_file(command, source, output, options)
        return
    if arguments is None:
        assert source is not None, "the command checks that there are arguments or --input"
        arguments = command.read_file(source)
    model = options.load()
    results = command.predictor(model)(arguments)
    if output is not None:
        command.write(output, arguments, results)
        command.print_written(output, len(results), command.counts(results), options.json)
    elif options.json:
        for row in command.to_json(arguments, results):
            print_json(row)
    else:
        command.print_table(model, arguments, results)


def _refuse_column_settings(command: Prediction[PartT, ResultT]) -> None:
    """Reject settings that name columns if there is no input file."""
    for field in fields(command):
        value = getattr(command, field.name)
        if field.name in command.column_settings and value != field.default:
            raise ConfigError(f"--{field.name} {value} names a column of --input; leave it out, or give --input FILE")


def _predict_file(command: Prediction[PartT, ResultT], source: Path, output: Path, options: PredictionOptions) -> None:
    """Predict a file of any size into another, in parts."""
    model = options.load()
    predict, counts = command.predictor(model), PartCounts(output)
    check_not_input(output, source)
    rows = min(SLOW_PART_ROWS, inputs.PART_ROWS) if command.slow else inputs.PART_ROWS
    unchanged = UnchangedFile(source)
    # A pipe can be read only once, so there is no first pass over it.
    survey = None if source.is_fifo() else _survey(command, command.read_parts(model, source, rows), source, output)

    def write(part: PartT, path: Path) -> None:
        results = predict(part)
        unchanged.check()
        counts.record(path, command.counts(results))
        (command.write if path == output else command.write_part)(path, part, results, survey)

    def join(parts: Sequence[Path], path: Path) -> None:
        unchanged.check()
        counts.load(parts)
        command.join(parts, path)

    total = survey.rows if survey else None
    identity = _base_identity(model, source, rows, total) | command.identity(model)
    job = ResumableJob[PartT]("rows", lambda part: len(part.texts), write, join, identity)
    with Reporter() as reporter:
        count = job.run(command.read_parts(model, source, rows), total, output, reporter, fresh=options.fresh)
    command.print_written(output, count, command.combine_counts(counts.each), options.json)


def _base_identity(model: "Model", source: Path, rows: int, total: int | None) -> dict[str, Any]:
    """Return the part of a job's identity that all commands share: the version, the input and the model."""
    from cloze import __version__

    # Hashing takes time and is not needed for a single part.
    is_resumable = total is None or total > rows
    return {
        "cloze": __version__,
        "input": file_identity(source) if is_resumable else [],
        "model": model.fingerprint if is_resumable else "",
        "precision": model.precision,
        "rows": rows,
    }


def _survey(command: Prediction[PartT, ResultT], parts: Iterator[PartT], source: Path, output: Path) -> Survey:
    """Read a file once before predicting, in order to find malformed rows early and to know all columns."""
    rows, columns, schema = 0, dict[str, None](), None
    if output.suffix == ".parquet" and source.suffix.lower() == ".parquet":
        from pyarrow import parquet

        schema = parquet.read_schema(source).remove_metadata()
    infer_schema = output.suffix == ".parquet" and schema is None
    for part in parts:
        rows += len(part.texts)
        kept = command.kept(part)
        columns.update(dict.fromkeys(name for row in kept for name in row))
        schema = arrow_schema(kept, schema, output) if infer_schema else schema
    return Survey(rows, tuple(columns), schema)
