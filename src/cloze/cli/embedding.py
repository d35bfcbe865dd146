"""``cloze embed``."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from cloze.cli.classifying import HERE, Place, Texts, with_pair
from cloze.cli.console import print_json, print_table
from cloze.cli.inputs import Inputs, gather_texts
from cloze.cli.outputs import VECTOR_FILES, check_ending, write_vectors
from cloze.cli.streaming import stream_file
from cloze.errors import ConfigError
from cloze.kinds import LongTexts
from cloze.models import SHIPPED_MODEL

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from cloze.predict import Model


@dataclass(frozen=True)
class Work:
    """What else is done with vectors."""

    word: str | None = None
    """The vector of this word in each text, instead of the text's."""
    whiten: Path | None = None
    """A text file, a text a line, to fit whitening on: written with the model to --out, or used in --report."""
    dimensions: int | None = None
    """Dimensions that whitening keeps; all if left out."""
    out: Path | None = None
    """The folder for the whitened model."""
    report: bool = False
    """Compare ways to make vectors, with advice: on texts, or on --input pairs with scores (--pair and --label)."""
    label: str = "label"
    """For --report: the column with the scores."""

    def __post_init__(self) -> None:
        if self.out is not None and self.whiten is None:
            raise ConfigError("--out is for the whitened model; name a text with --whiten, or use --output for vectors")
        if self.whiten is not None and self.out is None and not self.report:
            raise ConfigError("--whiten needs --out FOLDER for the whitened model, or --report to try it")
        if self.dimensions is not None and self.whiten is None:
            raise ConfigError("--dimensions is for whitening; name a text with --whiten")
        if self.report and self.out is not None:
            raise ConfigError("--out writes the whitened model, --report tries it; use one of the two")
        if self.report and self.word is not None:
            raise ConfigError("--report compares vectors of texts; leave out --word")

    def check(self, how: Sequence[str], *, given: bool, output: Path | None, pair: str | None) -> None:
        """Refuse what would go unheard: ``how`` vectors are asked for; ``given`` tells whether there are texts."""
        heard = {"--word": {"--layer"}, "--out": {"--pooling"}, "--report": set[str]()}
        for flag, asked in (("--word", self.word), ("--out", self.out), ("--report", self.report)):
            unheard = [one for one in how if asked and one not in heard[flag]]
            if unheard:
                raise ConfigError(f"{unheard[0]} has no part in what {flag} does; leave out one of the two")
        if self.out is not None and (given or output is not None):
            raise ConfigError(
                f"--out writes the whitened model, and no vectors; ask it for them with --model {self.out}"
            )
        if self.report and output is not None:
            raise ConfigError("--report prints a table, and no vectors; leave out --output")
        if self.word is not None and pair is not None:
            raise ConfigError("--word is looked for in single texts; leave out --pair")


WORK = Work()


def embed(
    texts: Texts = None,
    /,
    *,
    model: str = SHIPPED_MODEL,
    input: Path | None = None,  # noqa: A002 (the flag's name is fixed)
    output: Path | None = None,
    text: str = "text",
    pair: str | None = None,
    pooling: str | None = None,
    layer: Annotated[str, Parameter(allow_leading_hyphen=True)] = "-1",
    long_texts: LongTexts = "cut",
    fresh: bool = False,
    work: Annotated[Work, Parameter(name="*")] = WORK,
    json: bool = False,
    machine: Place = HERE,
) -> None:
    """Turn texts into vectors; whiten a model's vectors, or report on them.

    Args:
        model: A model folder, or a hub name.
        input: A file: a text a line, or CSV, TSV, JSONL or Parquet.
        output: Where to write the vectors: .npy, .jsonl or .parquet; if it was stopped, the same command goes on.
        text: The column with the texts.
        pair: The column with second texts, if there are any; with texts as arguments, the second text itself.
        pooling: cls, mean, max or mean_max; as the folder says if left out.
        layer: Which layer's states: 0 the embeddings, -1 the last; of several, commas between, the mean.
        long_texts: Texts beyond the model's length: cut, head-tail, or windows, whose vectors are averaged.
        fresh: Begin anew in place of going on.
        json: Print JSON.
    """
    layers = read_layers(layer)
    defaults = (pooling, None, "--pooling"), (layers, -1, "--layer"), (long_texts, "cut", "--long-texts")
    how = [flag for value, default, flag in defaults if value != default]
    work.check(how, given=bool(texts) or input is not None, output=output, pair=pair)
    if output is not None:
        check_ending(output, VECTOR_FILES)
    if work.out is not None:
        _whiten(machine.load(model), work, pooling, json)
        return
    if work.report and input is not None and pair is not None:
        _report_pairs(machine.load(model), input, text, pair, work, json)
        return
    asked = {"pooling": pooling, "layer": layers, "long_texts": long_texts}
    if input is not None and output is not None and not texts and not work.report and work.word is None:
        _stream(machine.load(model), input, output, text, pair, asked, fresh=fresh, json=json)
        return
    inputs = gather_texts(texts, input, text=text, pair=pair)
    if pair is not None and input is None:
        inputs = with_pair(inputs, pair)
    loaded = machine.load(model)
    if work.report:
        _report(loaded, work, json, inputs.texts)
        return
    if work.word is not None:
        import numpy as np

        vectors = np.stack([loaded.word(work.word, one, layer=layers) for one in inputs.texts])
    else:
        vectors = loaded.embed(inputs.texts, inputs.pairs, **asked)  # type: ignore[arg-type]
    _tell(inputs, vectors, output, json)


def _tell(inputs: Inputs, vectors: "NDArray[np.float32]", output: Path | None, json: bool) -> None:
    """Write the vectors, or print them whole or in part."""
    if output is not None:
        write_vectors(output, inputs, vectors)
        _tell_written(output, len(vectors), vectors.shape[1], json)
    elif json:
        for one, vector in zip(inputs.texts, vectors, strict=True):
            print_json({"text": one, "vector": vector.tolist()})
    else:
        rows = [
            (one if len(one) < 60 else one[:57] + "...", len(vector), " ".join(f"{value:+.3f}" for value in vector[:6]))
            for one, vector in zip(inputs.texts, vectors, strict=True)
        ]
        print_table(("text", "size", "first values (--json or --output for all)"), rows)


def _tell_written(output: Path, count: int, width: int | None, json: bool) -> None:
    """Say what was written; the width is not known where all parts were there from before."""
    if json:
        print_json({"file": str(output), "vectors": count, "size": width})
    else:
        print(f"{output}: {count:,} vectors" + (f" of {width}" if width else ""))


def _stream(
    model: "Model",
    source: Path,
    output: Path,
    text: str,
    pair: str | None,
    asked: dict[str, Any],
    *,
    fresh: bool,
    json: bool,
) -> None:
    """Embed a file of any size into another."""
    width: int | None = None

    def write(part: Inputs, path: Path) -> None:
        nonlocal width
        vectors = model.embed(part.texts, part.pairs, **asked)
        width = vectors.shape[1]
        write_vectors(path, part, vectors)

    settings = asked | {"layer": str(asked["layer"])}
    count = stream_file(model, source, output, write, text=text, pair=pair, settings=settings, fresh=fresh)
    _tell_written(output, count, width, json)


def read_layers(layer: str) -> int | tuple[int, ...]:
    """One layer, or several with commas between."""
    try:
        layers = tuple(int(one) for one in layer.split(","))
    except ValueError as error:
        raise ConfigError(f"--layer {layer!r}: a number was expected, or several with commas between") from error
    return layers if len(layers) > 1 else layers[0]


def _whiten(model: "Model", work: Work, pooling: str | None, json: bool) -> None:
    """Fit whitening on a text and write the model with it."""
    assert work.whiten is not None
    assert work.out is not None
    texts = gather_texts(None, work.whiten).texts
    whitened = model.whiten(texts, work.dimensions, pooling)  # type: ignore[arg-type]
    whitened.save(work.out)
    size = len(whitened.embedding.projections[-1].bias)
    if json:
        print_json({"folder": str(work.out), "texts": len(texts), "size": size})
    else:
        print(f"{work.out}: vectors of {size}, whitened on {len(texts):,} texts")


def _report_pairs(model: "Model", path: Path, text: str, pair: str, work: Work, json: bool) -> None:
    from cloze.tasks.similarity import read_scored_pairs
    from cloze.tasks.source import RowSettings

    pairs = read_scored_pairs(path, RowSettings(text, pair, work.label))
    _report(model, work, json, pairs.firsts, pairs.seconds, pairs.scores)


def _report(
    model: "Model",
    work: Work,
    json: bool,
    firsts: list[str],
    seconds: list[str] | None = None,
    scores: list[float] | None = None,
) -> None:
    """Print how ways to make vectors compare, and what follows."""
    from cloze.predict.embeddings.report import report_embeddings

    fit_on = [] if work.whiten is None else gather_texts(None, work.whiten).texts
    report = report_embeddings(model, firsts, seconds or (), scores or (), fit_on)
    rows = [way.row() for way in report.ways]
    if json:
        print_json({"ways": rows, "advice": report.advice})
        return
    shown = [name for name in rows[0] if scores or name != "spearman"]
    print_table(
        shown, [[f"{row[name]:.3f}" if isinstance(row[name], float) else row[name] for name in shown] for row in rows]
    )
    print(report.advice)
