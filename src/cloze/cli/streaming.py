"""Files that are answered part by part: what ``embed`` and ``classify`` share."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloze.cli import inputs
from cloze.cli.console import Reporter
from cloze.cli.outputs import join_parts
from cloze.errors import ConfigError

if TYPE_CHECKING:
    from cloze.predict import Model


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
    # What comes through a pipe is gone once it is read: its rows are not counted beforehand.
    total = None if source.is_fifo() else inputs.count_rows(source, text=text, pair=pair)
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
        return run_stream(stream, inputs.read_parts(source, text=text, pair=pair), total, output, reporter, fresh=fresh)
