"""Files that are answered part by part: what ``embed``, ``classify``, ``fill``, ``follows`` and ``score`` share."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloze.cli import inputs
from cloze.cli.console import Reporter, tell_written
from cloze.cli.outputs import ROW_FILES, beside, check_ending, join_parts, kinds_of, write_rows
from cloze.errors import ConfigError

if TYPE_CHECKING:
    from cloze.predict import Model

Answer = dict[str, Any]


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
        model = load()

        def write(part: inputs.Inputs, path: Path) -> None:
            write_rows(path, beside(part.kept, say(model, part), part.columns), part.columns)

        count = stream_file(model, source, output, write, text=text, pair=pair, settings=settings, fresh=fresh)
        tell_written(output, count, json)
        return None
    asked = given if isinstance(given, inputs.Inputs) else inputs.gather_texts(given, source, text=text, pair=pair)
    answers = say(load(), asked)
    if output is None:
        return asked, answers
    write_rows(output, beside(asked.kept, answers))
    tell_written(output, len(answers), json)
    return None


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
    """Answer a file of any size into another, and return its number of rows; the same command goes on."""
    from cloze import __version__
    from cloze.predict.streaming import Stream, run_stream

    if output.exists() and source.exists() and output.samefile(source):
        raise ConfigError(f"--output {output}: this is the --input itself; choose another place")
    # What comes through a pipe is gone once it is read: it cannot be looked through beforehand.
    survey = None if source.is_fifo() else _survey(source, output, text, pair)
    total = survey.rows if survey else None
    state = source.stat()
    work = {
        "cloze": __version__,
        "input": [str(source.resolve()), state.st_size, state.st_mtime_ns],
        "model": model.fingerprint if total is None or total > inputs.PART_ROWS else "",
        "precision": model.precision,
        "text": text,
        "pair": pair,
        "rows": inputs.PART_ROWS,
        **settings,
    }
    stream = Stream("rows", lambda part: len(part.texts), write, join_parts, work)
    with Reporter() as reporter:
        parts = inputs.read_parts(source, text=text, pair=pair, survey=survey)
        return run_stream(stream, parts, total, output, reporter, fresh=fresh)


def _survey(source: Path, output: Path, text: str, pair: str | None) -> inputs.Survey:
    """Look through a file: that takes a moment, and what is wrong with any row is known before the work."""
    rows, columns, kinds = 0, dict[str, None](), None
    if output.suffix == ".parquet" and source.suffix.lower() == ".parquet":
        from pyarrow import parquet

        kinds = parquet.read_schema(source).remove_metadata()
    infers = output.suffix == ".parquet" and kinds is None
    for part in inputs.read_parts(source, text=text, pair=pair):
        rows += len(part.texts)
        columns.update(dict.fromkeys(name for fields in part.kept for name in fields))
        kinds = kinds_of(part.kept, kinds, output) if infers else kinds
    return inputs.Survey(rows, tuple(columns), kinds)
