"""``cloze embed``: vectors of texts or words, whitening, and a report that compares methods; and ``cloze rerank``."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from cyclopts import Parameter

from cloze.cli.console import print_json, print_table, shorten
from cloze.cli.inputs import TEXT_COLUMN, Inputs, Survey, Texts, gather_texts, read_arguments, with_pair
from cloze.cli.jobs import OPTIONS, Options, PredictionOptions, Row, TextPrediction, run_prediction
from cloze.cli.outputs import ROW_FILES, VECTOR_FILES, check_file, check_folder, write_vectors
from cloze.errors import ConfigError
from cloze.models import SENTENCE_MODEL
from cloze.options import LongTexts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from cloze.predict import Model

logger = logging.getLogger("cloze")


@dataclass(frozen=True)
class EmbedOptions(PredictionOptions):
    """Options of ``cloze embed``, which writes vectors."""

    model: str = SENTENCE_MODEL
    """A model folder or run, or a model or hub name; by default, the shipped model for sentence vectors."""
    output: Path | None = None
    """Where to write the vectors: .npy, .jsonl or .parquet. Re-running an interrupted command resumes it."""

    def load(self) -> "Model":
        """Load the model, with a note if it is the default; a mistake in the flags is reported before, on its own."""
        if self.model == SENTENCE_MODEL:
            logger.warning("model: %s, the default for vectors; --model selects another", SENTENCE_MODEL)
        return super().load()


@dataclass(frozen=True)
class Analysis:
    """The tasks of ``cloze embed`` other than embedding texts: whitening a model, or a report."""

    whiten: Path | None = None
    """A file with one text per line to fit whitening on; the whitened model is written to
    --out, or used by --report."""
    dimensions: int | None = None
    """Number of values to keep per vector, for models trained for it; with --whiten: of the whitened vectors. By
    default, all."""
    out: Path | None = None
    """The folder for the whitened model."""
    report: bool = False
    """Compare poolings, layers and whitening on texts, or on --input pairs with scores (--pair and --label)."""
    label: str = "label"
    """For --report: the column with the scores."""

    def __post_init__(self) -> None:
        if self.out is not None and self.whiten is None:
            raise ConfigError(
                "--out only applies to the whitened model; add --whiten FILE, or use --output for vectors"
            )
        if self.whiten is not None and self.out is None and not self.report:
            raise ConfigError("--whiten needs --out FOLDER for the whitened model, or --report to try it")
        if self.report and self.out is not None:
            raise ConfigError("--out writes the whitened model, --report tries it; use one of the two")
        if self.report and self.dimensions is not None:
            raise ConfigError("--dimensions has no effect with --report; leave out one of the two")


ANALYSIS = Analysis()


@dataclass(frozen=True)
class Embed(TextPrediction["NDArray[np.float32]"]):
    """One vector per text, or with ``word`` the vector of that word in each text."""

    output_formats: ClassVar[tuple[str, ...]] = VECTOR_FILES

    pooling: str | None = None
    layer: str = "-1"
    long_texts: LongTexts = "cut"
    word: str | None = None
    prompt: str | None = None
    dimensions: int | None = None

    @property
    def layers(self) -> int | tuple[int, ...]:
        """Return the layers as numbers."""
        return read_layers(self.layer)

    def predict(self, model: "Model", part: Inputs) -> "NDArray[np.float32]":  # type: ignore[override]
        """Return the vectors, (N, H)."""
        if self.word is None:
            options = {"prompt": self.prompt, "dimensions": self.dimensions}
            return model.embed(part.texts, part.pairs, self.pooling, self.layers, self.long_texts, **options)
        import numpy as np

        return np.stack([model.word(self.word, text, layer=self.layers) for text in part.texts])

    def to_row(self, result: "NDArray[np.float32]") -> Row:
        """Return the vector as a list."""
        return {"vector": result.tolist()}

    def write(
        self, path: Path, part: Inputs, results: "Sequence[NDArray[np.float32]]", survey: Survey | None = None
    ) -> None:
        """Write the vectors."""
        write_vectors(path, part, results, survey)  # type: ignore[arg-type]

    def counts(self, results: "Sequence[NDArray[np.float32]]") -> Mapping[str, int]:
        """Return the size of a vector."""
        return {"size": results.shape[1]}  # type: ignore[attr-defined]

    def combine_counts(self, counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
        """Return the size of a vector, which all parts share."""
        return {name: value for part_counts in counts for name, value in part_counts.items()}

    def print_written(self, output: Path, rows: int, counts: Mapping[str, int], json: bool) -> None:
        """Report the number of vectors and their size."""
        size = counts.get("size")
        if json:
            print_json({"file": str(output), "vectors": rows, "size": size})
        else:
            print(f"{output}: {rows:,} vectors" + (f" of {size}" if size else ""))

    def print_table(self, model: "Model", part: Inputs, results: "Sequence[NDArray[np.float32]]") -> None:  # noqa: ARG002
        """Print the first values of each vector."""
        rows = [
            (shorten(text), len(vector), " ".join(f"{x:+.3f}" for x in vector[:6]))
            for text, vector in zip(part.texts, results, strict=True)
        ]
        print_table(("text", "size", "first values (--json or --output for all)"), rows)


def embed(
    texts: Texts = None,
    /,
    *,
    text: str = TEXT_COLUMN,
    pair: str | None = None,
    pooling: str | None = Embed.pooling,
    layer: Annotated[str, Parameter(allow_leading_hyphen=True)] = Embed.layer,
    long_texts: LongTexts = Embed.long_texts,
    word: str | None = Embed.word,
    prompt: str | None = Embed.prompt,
    analysis: Annotated[Analysis, Parameter(name="*")] = ANALYSIS,
    options: Annotated[EmbedOptions, Parameter(name="*")] = EmbedOptions(),
) -> None:
    """Embed texts as vectors; whiten a model's vectors, or report on them.

    Args:
        texts: Texts to embed; by default, the lines of standard input.
        text: The column with the texts.
        pair: The column with the second texts of pairs; with texts as arguments, the second text itself.
        pooling: cls, mean, max, mean_max, mean_words or pooler; by default, the model's own.
        layer: The layer to pool: 0 for the embeddings, -1 for the last; several, separated by commas, are averaged.
        long_texts: Truncate long texts (cut), keep both ends (head-tail), or average over windows (windows).
        word: Embed this word in the context of each text, instead of the whole text.
        prompt: query or document: put the model's prefix for such texts before each text, if it has one.
    """
    read_layers(layer)
    dimensions = analysis.dimensions if analysis.whiten is None else None
    command = Embed(text, pair, pooling, layer, long_texts, word, prompt, dimensions)
    _check_flags(command, analysis, texts, options)
    if analysis.out is not None:
        check_folder(analysis.out)
        _whiten(options.load(), analysis, pooling, options.json)
        return
    if analysis.report:
        _report(analysis, command, texts, options)
        return
    arguments = with_pair(read_arguments(texts, options.input), pair)
    run_prediction(command if arguments is None else replace(command, pair=None), arguments, options)


def _check_flags(command: Embed, analysis: Analysis, texts: Sequence[str] | None, options: EmbedOptions) -> None:
    """Reject flags that would have no effect."""
    if options.output is not None:
        check_file(options.output, VECTOR_FILES)
    columns = {"text", "pair"} if options.input is not None else set()
    modes = (
        ("--word", command.word is not None, {"word", "layer", "text"}),
        ("--out", analysis.out is not None, {"pooling"}),
        ("--report", analysis.report, columns),
    )
    for mode, active, settings in modes:
        for field in fields(command) if active else ():
            if field.name not in settings and getattr(command, field.name) != field.default:
                flag = f"--{field.name.replace('_', '-')}"
                raise ConfigError(f"{flag} has no effect with {mode}; leave out one of the two")
    if analysis.out is not None and (texts or options.input is not None or options.output is not None):
        raise ConfigError(
            f"--out writes the whitened model but no vectors; to embed texts with it, use --model {analysis.out} "
            f"afterwards"
        )
    if analysis.report and options.output is not None:
        raise ConfigError("--report prints a table instead of vectors; leave out --output")
    if analysis.label != ANALYSIS.label and not (analysis.report and command.pair is not None):
        raise ConfigError(
            f"--label {analysis.label} only applies to --report on pairs; add --report, --input and --pair"
        )


def read_layers(layer: str) -> int | tuple[int, ...]:
    """Parse ``--layer``: one layer, or several separated by commas."""
    try:
        layers = tuple(int(number) for number in layer.split(","))
    except ValueError as error:
        raise ConfigError(f"--layer {layer!r}: expected a number, or several separated by commas") from error
    return layers if len(layers) > 1 else layers[0]


def _whiten(model: "Model", analysis: Analysis, pooling: str | None, json: bool) -> None:
    """Fit whitening on a text and write the model with it."""
    assert analysis.whiten is not None
    assert analysis.out is not None
    texts = gather_texts(None, analysis.whiten).texts
    whitened = model.whiten(texts, analysis.dimensions, pooling)  # type: ignore[arg-type]
    whitened.save(analysis.out)
    size = len(whitened.embedding.projections[-1].bias)
    if json:
        print_json({"folder": str(analysis.out), "texts": len(texts), "size": size})
    else:
        print(f"{analysis.out}: vectors of {size} dimensions, whitened on {len(texts):,} texts")


def _report(analysis: Analysis, command: Embed, texts: Sequence[str] | None, options: EmbedOptions) -> None:
    """Compare embedding methods on texts, or on pairs with scores."""
    from cloze.predict.embeddings.vector_quality import report_embeddings

    firsts, seconds, scores = _read_report_texts(analysis, command, texts, options.input)
    fit_on = [] if analysis.whiten is None else gather_texts(None, analysis.whiten).texts
    report = report_embeddings(options.load(), firsts, seconds, scores, fit_on)
    rows = [method.row() for method in report.methods]
    if options.json:
        print_json({"ways": rows, "advice": report.advice})
        return
    header = [name for name in rows[0] if scores or name != "spearman"]
    print_table(
        header, [[f"{row[name]:.3f}" if isinstance(row[name], float) else row[name] for name in header] for row in rows]
    )
    print(report.advice)


def _read_report_texts(
    analysis: Analysis, command: Embed, texts: Sequence[str] | None, path: Path | None
) -> tuple[list[str], list[str], list[float]]:
    """Return first texts, second texts and scores; the last two are empty for single texts."""
    if path is None or command.pair is None:
        return gather_texts(texts, path, text=command.text).texts, [], []
    if texts:
        raise ConfigError("texts were given both as arguments and by --input; use one of the two")
    from cloze.tasks.rows import RowSettings
    from cloze.tasks.similarity.kind import read_scored_pairs

    pairs = read_scored_pairs(path, RowSettings(command.text, command.pair, analysis.label))
    return pairs.firsts, pairs.seconds, pairs.scores


@dataclass(frozen=True)
class Rerank(TextPrediction[float]):
    """The relevance of each document of a file to the query in its row."""

    def predict(self, model: "Model", part: Inputs) -> list[float]:
        """Score each pair."""
        return list(map(float, model.rerank_scores(part.texts, part.pairs or [])))

    def to_row(self, result: float) -> Row:
        """Return the score."""
        return {"score": result}

    def print_table(self, model: "Model", part: Inputs, results: Sequence[float]) -> None:  # noqa: ARG002
        """Print the score of each pair."""
        pairs = zip(part.texts, part.pairs or [], results, strict=True)
        rows = [(f"{score:.4f}", shorten(query), shorten(document)) for query, document, score in pairs]
        print_table(("score", "query", "document"), rows)


@dataclass(frozen=True)
class ScoreTrainingRows(TextPrediction["list[float]"]):
    """A cross-encoder's scores of the positive and the negatives in each row, for distillation into a retriever."""

    negatives: tuple[str, ...] = ()

    @classmethod
    def of(cls, path: Path, text: str) -> "ScoreTrainingRows":
        """Find the columns of a file with training rows."""
        from cloze.tasks.retrieval.examples import find_pair_columns, retrieval_source
        from cloze.tasks.rows import RowSettings

        columns = find_pair_columns(retrieval_source(path, rows=RowSettings(text)), path)
        if not columns.negatives:
            raise ConfigError(
                f"{path} has no column with negatives, such as negatives; name the column with the documents with "
                "--pair, or add negatives with cloze mine"
            )
        return cls(columns.query, columns.positive, columns.negatives)

    def predict(self, model: "Model", part: Inputs) -> "list[list[float]]":
        """Score the texts of each row: the positive, then the negatives."""
        if not model.is_cross_encoder:
            raise ConfigError("the scores of training rows are those of a cross-encoder; make one with finetune rerank")
        groups = [
            [positive, *self._negatives(row)] for positive, row in zip(part.pairs or [], part.fields, strict=True)
        ]
        queries = [query for query, group in zip(part.texts, groups, strict=True) for _ in group]
        scores = model.logits(queries, [text for group in groups for text in group])[:, 0].tolist()
        ends = [0, *accumulate(map(len, groups))]
        return [scores[start:stop] for start, stop in pairwise(ends)]

    def _negatives(self, row: Mapping[str, object]) -> list[str]:
        cells = [row.get(name) for name in self.negatives]
        texts = [text for cell in cells for text in (cell if isinstance(cell, list) else [cell])]
        return [text for text in texts if isinstance(text, str) and text.strip()]

    def to_row(self, result: "list[float]") -> Row:
        """Return the scores."""
        return {"positive_score": result[0], "negative_scores": result[1:]}

    def print_table(self, model: "Model", part: Inputs, results: "Sequence[list[float]]") -> None:  # noqa: ARG002
        """Print the score of each positive and of its best negative."""
        rows = [
            (f"{one[0]:.2f}", f"{max(one[1:], default=float('nan')):.2f}", shorten(query))
            for query, one in zip(part.texts, results, strict=True)
        ]
        print_table(("positive", "best negative", "query"), rows)


def rerank(
    query: Annotated[str | None, Parameter(help="The query; without it, each row of --input has its own.")] = None,
    documents: Annotated[list[str] | None, Parameter(help="The documents; or those of --input.")] = None,
    /,
    *,
    top: int | None = None,
    text: Annotated[
        str, Parameter(help="The column with the documents; without QUERY, with the queries.")
    ] = TEXT_COLUMN,
    pair: Annotated[str | None, Parameter(help="Without QUERY: the column with the documents.")] = None,
    options: Options = OPTIONS,
) -> None:
    """Sort documents by their relevance to a query, or score the query and the document in each row of a file.

    The score is the output of a cross-encoder (see finetune rerank), or else the cosine of the two vectors. Without
    QUERY and --pair, --input is a file of training rows with negatives: each row gets the scores that 'finetune
    retrieval --objective margin-mse' learns.

    Args:
        top: With QUERY: number of documents to show; by default, all.
    """
    if options.output is not None:
        check_file(options.output, ROW_FILES)
    if query is None or not query.strip():
        if options.input is None:
            raise ConfigError(
                "expected a query and documents: cloze rerank QUERY DOCUMENT DOCUMENT; or --input FILE with columns "
                "for queries (--text) and documents (--pair)"
            )
        if documents:
            raise ConfigError("documents were given without a query; the first argument is the query, then documents")
        if top is not None:
            raise ConfigError(f"--top {top} only applies to the documents of one query; give QUERY, or leave it out")
        if pair is None:
            run_prediction(ScoreTrainingRows.of(options.input, text), None, options)
        else:
            run_prediction(Rerank(text, pair), None, options)
        return
    if pair is not None or options.output is not None:
        flag = f"--pair {pair}" if pair is not None else f"--output {options.output}"
        raise ConfigError(f"{flag} only applies to a file with queries and documents; leave out QUERY, or the flag")
    if text != TEXT_COLUMN and options.input is None:
        raise ConfigError(f"--text {text} names a column of --input; leave it out, or give --input FILE")
    texts = gather_texts(documents, options.input, text=text).texts  # before the model: a mistake takes no time
    ranked = options.load().rerank(query, texts, top)
    if options.json:
        for document in ranked:
            print_json(vars(document))
    else:
        rows = [(number, f"{one.score:.4f}", shorten(one.document)) for number, one in enumerate(ranked, start=1)]
        print_table(("rank", "score", "document"), rows)
