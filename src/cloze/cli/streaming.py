"""Files that are answered part by part: what ``embed``, ``classify``, ``fill``, ``follows`` and ``score`` share."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloze.cli import inputs
from cloze.cli.console import Reporter
from cloze.cli.outputs import beside, join_parts, keep_kinds, write_rows
from cloze.errors import ConfigError

if TYPE_CHECKING:
    from cloze.predict import Model


def answer_file(
    model: "Model",
    source: Path,
    output: Path,
    answers: "Callable[[inputs.Inputs], list[dict[str, object]]]",
    *,
    text: str,
    pair: str | None = None,
    settings: Mapping[str, Any],
    fresh: bool,
) -> int:
    """Write the rows of a file of any size, each with its answer, and return how many they are."""

    def write(part: inputs.Inputs, path: Path) -> None:
        write_rows(path, beside(part.kept, answers(part), part.columns), part.columns)

    return stream_file(model, source, output, write, text=text, pair=pair, settings=settings, fresh=fresh)


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
    rows, columns = 0, dict[str, None]()

    def kept() -> Iterator[list[Mapping[str, object]]]:
        nonlocal rows
        for part in inputs.read_parts(source, text=text, pair=pair):
            rows += len(part.texts)
            columns.update(dict.fromkeys(name for fields in part.kept for name in fields))
            yield part.kept

    kinds = keep_kinds(kept(), source, output)
    return inputs.Survey(rows, tuple(columns), kinds)
