"""``cloze evaluate`` for models without a task head: vectors and masked words; ``cloze mine``."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from cloze.cli.console import InferenceMachine, Machine, Reporter, print_json, print_table, shorten
from cloze.cli.inputs import split_parts
from cloze.cli.outputs import check_file, check_not_input, join_parts
from cloze.errors import ConfigError
from cloze.locks import real_target
from cloze.models import SENTENCE_MODEL
from cloze.resumable import PartCounts, ResumableJob
from cloze.tasks.retrieval.kind import RETRIEVAL_NAME, MiningSettings, RetrievalSettings, TrainingPairs
from cloze.tasks.rows import RowSettings, Source
from cloze.train.settings import MlmEvaluationSettings

if TYPE_CHECKING:
    from cloze.predict import Evaluation, Model
    from cloze.predict.mining import Candidate, MinedQuery, Miner
    from cloze.predict.retrieval import RetrievalEvaluation


def vector_tasks() -> tuple[str, ...]:
    """Return the tasks that evaluate the vectors of any model: it needs no task head."""
    from cloze.predict.clustering import CLUSTERING_NAME
    from cloze.tasks.similarity.kind import SIMILARITY

    return RETRIEVAL_NAME, CLUSTERING_NAME, SIMILARITY.name


def evaluate_vectors(
    source: Source, model: str, split: str, settings: RetrievalSettings, machine: InferenceMachine
) -> "Evaluation":
    """Evaluate the vectors of a model on queries and documents, on labelled texts, or on pairs."""
    if source.task == RETRIEVAL_NAME:
        return _evaluate_retrieval(source, model, split, settings, machine)
    from cloze.predict import evaluate

    return evaluate(machine.load(model), source, split=split)


def _evaluate_retrieval(
    source: Source, model: str, split: str, settings: RetrievalSettings, machine: InferenceMachine
) -> "RetrievalEvaluation":
    from cloze.predict.retrieval import depth_of, evaluate_retrieval
    from cloze.tasks.retrieval.examples import read_retrieval
    from cloze.tasks.retrieval.judgements import read_run

    metrics = tuple(name.strip() for name in settings.metrics.split(",") if name.strip())
    if metrics:
        depth_of(metrics)  # refuses unknown metrics before the data is read
    data = read_retrieval(source, split=split, documents=settings.documents)
    others: dict[str, Any] = {}
    if (other := settings.compare_with) is not None:
        if other == model:
            raise ConfigError(f"--compare-with {other}: is the model itself; name another one")
        others[other] = read_run(Path(other), data) if Path(other).is_file() else machine.load(other)
    reranker = None if settings.reranker is None else machine.load(settings.reranker)
    with Reporter() as reporter:
        return evaluate_retrieval(
            machine.load(model),
            data,
            compare_with=others,
            reranker=reranker,
            rerank_top=settings.rerank_top,
            metrics=metrics,
            query_prompt=settings.query_prompt,
            document_prompt=settings.document_prompt,
            name=model,
            progress=reporter,
        )


def check_precision(task: str, machine: InferenceMachine) -> None:
    """Reject --precision except for vectors, since official metrics are those of float32."""
    if machine.precision != InferenceMachine.precision and task not in (known := vector_tasks()):
        raise ConfigError(
            f"--precision is {machine.precision}, which only applies to {', '.join(known)}; leave it out for {task}"
        )


def check_report(task: str, path: Path | None) -> None:
    """Reject a page that cannot be written, or a task without one, before any work is done."""
    from cloze.tasks.correction.kind import CORRECTION_NAME

    if path is None:
        return
    if task in ("mlm", CORRECTION_NAME):
        raise ConfigError(f"--report {path}: there is no page for {task}; use --out for its results")
    check_file(path, (".html",), "--report")


def check_longest(task: str, longest: int | None) -> None:
    """Reject a maximum answer length for any task but answering."""
    from cloze.tasks.correction.kind import CORRECTION_NAME
    from cloze.tasks.registry import find_task

    if longest is not None and (
        task in ("mlm", CORRECTION_NAME, *vector_tasks()) or "longest_answer" not in find_task(task).kind.settings
    ):
        raise ConfigError(
            f"--longest-answer is {longest}, which applies only to question answering; leave it out for {task}"
        )


def write_report_page(evaluation: "Evaluation", model: str, path: Path) -> None:
    """Write a page with the scores and the worst rows or queries."""
    from cloze.inspect.views.page import write_evaluation

    write_evaluation(evaluation, model, path)


def evaluate_blanks(
    texts: list[Path],
    model: str,
    out: Path | None,
    rows: RowSettings,
    settings: MlmEvaluationSettings,
    machine: Machine,
    json: bool,
) -> None:
    """Evaluate a model on the masked words of texts, print the results and write them into a folder."""
    from cloze.corpus.settings import PrepareSettings
    from cloze.files import replace_json
    from cloze.train.pretraining.held_out import evaluate_masked_words

    with Reporter() as reporter:
        reading = PrepareSettings(text=rows.text, on_bad_row=rows.on_bad_row or "stop")
        results = evaluate_masked_words(
            texts, model, settings=settings, reading=reading, device=machine.use(), progress=reporter
        )
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        replace_json(out / "eval_results.json", results)
    if json:
        print_json(results)
    else:
        print_table(
            ("metric", "value"),
            [(name, f"{value:,.4f}" if isinstance(value, float) else f"{value:,}") for name, value in results.items()],
        )


# -- mining ------------------------------------------------------------------------------------------------------------

# Texts and queries per part: an interruption loses at most one part.
_TEXTS_PER_PART = 4096
_QUERIES_PER_PART = 512
_EXAMPLES = 3


def mine(
    data: Annotated[
        Path,
        Parameter(help="A table with queries and the passages that answer them, or a folder in the layout of BEIR."),
    ],
    /,
    *,
    model: str = SENTENCE_MODEL,
    out: Path,
    documents: Path | None = None,
    reranker: str | None = None,
    rows: Annotated[RowSettings, Parameter(name="*")] = RowSettings(),  # noqa: B008 (frozen)
    settings: Annotated[MiningSettings, Parameter(name="*")] = MiningSettings(),  # noqa: B008 (frozen)
    fresh: bool = False,
    machine: Annotated[InferenceMachine, Parameter(name="*")] = InferenceMachine(),  # noqa: B008 (frozen)
    json: bool = False,
) -> None:
    """Find hard negatives: passages near to a query that do not answer it. Re-running the same command resumes it.

    The file has one row per pair, with the negatives and their scores; cloze finetune retrieval reads it.

    Args:
        model: The model whose vectors rank the passages.
        out: The .jsonl file to write.
        documents: A table with more passages to search, with a column text.
        reranker: A cross-encoder that scores the candidates.
        fresh: Start over instead of resuming an interrupted command.
        json: Print JSON.
    """
    check_file(out, (".jsonl",), "--out")
    for source in filter(None, (data, documents)):
        check_not_input(out, source, "--out", "an input")
    pairs, passages = _read_pairs(rows.source(RETRIEVAL_NAME, data), documents)
    loaded = machine.load(model)
    scorer = None if reranker is None else machine.load(reranker)
    identity = {
        "settings": asdict(settings),
        "model": loaded.fingerprint,
        "reranker": None if scorer is None else scorer.fingerprint,
        "data": _digest([*pairs.queries, *pairs.positives, *passages]),
    }
    with Reporter() as reporter:
        vectors = _passage_vectors(loaded, passages, out, reporter, fresh)
        _mine(loaded, scorer, pairs, passages, vectors, settings, identity, out, reporter, fresh, json)
    with suppress(OSError):
        vectors.unlink()


def _read_pairs(source: Source, documents: Path | None) -> tuple[TrainingPairs, list[str]]:
    """Return the pairs, and the passages to search: those of the pairs, of the folder and of the further table."""
    from cloze.predict.mining import mining_documents
    from cloze.tasks.retrieval.examples import read_retrieval, read_training_pairs
    from cloze.tasks.rows import read_rows

    more: list[str] = []
    if documents is not None:
        more = [row.text for row in read_rows(documents, text="text", on_bad_row=source.on_bad_row or "stop")]
    if source.path.is_dir():
        data = read_retrieval(source, split="train")
        return data.pairs(), mining_documents(data.pairs(), [*data.documents.values(), *more])
    pairs = read_training_pairs(source)
    return pairs, mining_documents(pairs, more)


def _digest(texts: Sequence[str]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        digest.update(f"{len(text)} {text}".encode("utf-8", "backslashreplace"))
    return digest.hexdigest()


def _passage_vectors(model: "Model", passages: list[str], out: Path, reporter: Reporter, fresh: bool) -> Path:
    """Embed the passages into a file next to the output, which is deleted when the negatives are complete."""
    import numpy as np

    from cloze.predict.retrieval import embed_unit

    name = _digest([model.fingerprint, *passages])
    place = real_target(out)
    path = place.with_name(f"{place.name}.{name[:16]}.vectors.npy")
    if fresh:
        path.unlink(missing_ok=True)
    if path.exists():
        return path

    def write(part: list[str], target: Path) -> None:
        from cloze.files import replaced_file

        vectors = embed_unit(model, part, "document", "documents")
        with replaced_file(target) as temporary, temporary.open("wb") as file:
            np.save(file, vectors)

    job = ResumableJob[list[str]]("passages", len, write, join_parts, {"passages": name})
    job.run(iter(split_parts(passages, _TEXTS_PER_PART)), len(passages), path, reporter, fresh=fresh)
    return path


def _mine(
    model: "Model",
    reranker: "Model | None",
    pairs: TrainingPairs,
    passages: list[str],
    vectors: Path,
    settings: MiningSettings,
    identity: dict[str, Any],
    out: Path,
    reporter: Reporter,
    fresh: bool,
    json: bool,
) -> None:
    import numpy as np

    from cloze.files import replace_json_lines
    from cloze.predict.mining import Miner, summarise

    miner = Miner(model, pairs, passages, np.load(vectors, mmap_mode="r"), settings, reranker)
    counts, mined = PartCounts(out), list["MinedQuery"]()

    def write(part: list[str], path: Path) -> None:
        found = miner.mine(part)
        report = summarise(found)
        numbers = {"rows": report.rows, "without": report.without}
        counts.record(path, numbers | {"candidates": report.candidates, "left_out": report.left_out})
        mined.extend(one for one in found if one.example is not None)
        mined.sort(key=lambda one: one.lead)
        del mined[_EXAMPLES:]
        replace_json_lines(path, [row for one in found for row in one.rows])

    def join(paths: list[Path], path: Path) -> None:
        counts.load(paths)
        join_parts(paths, path)

    job = ResumableJob[list[str]]("negatives", len, write, join, identity)
    queries = job.run(_query_parts(miner), len(miner.positives), out, reporter, fresh=fresh)
    _print_mined(out, queries, counts, [one.example for one in mined if one.example is not None], settings, json)


def _query_parts(miner: "Miner") -> Iterator[list[str]]:
    return iter(split_parts(miner.positives, _QUERIES_PER_PART))


def _print_mined(
    out: Path,
    queries: int,
    counts: PartCounts,
    examples: "Sequence[Candidate]",
    settings: MiningSettings,
    json: bool,
) -> None:
    total = {name: sum(one[name] for one in counts.each) for name in ("rows", "without", "candidates", "left_out")}
    if json:
        print_json({"file": str(out), "queries": queries, **total, "examples": [asdict(one) for one in examples]})
        return
    print(f"{out}: {total['rows']:,} rows of {queries:,} queries; {total['without']:,} rows have no negative")
    print(
        f"{total['left_out']:,} of {total['candidates']:,} candidates were left out as probable false negatives: their "
        f"score is above the positive's less {_describe_margin(settings)}"
    )
    for one in examples:
        print(f"left out, {one.score:.3f} (the positive has {one.positive_score:.3f}):")
        print(*(f"  {name}: {shorten(text)}" for name, text in _texts_of(one)), sep="\n")


def _describe_margin(settings: MiningSettings) -> str:
    """Return the margin below the positive's score in words."""
    relative, absolute = f"{settings.relative_margin:.3g} of it", f"{settings.margin:g}"
    return " or ".join(filter(None, [relative, absolute if settings.margin else ""]))


def _texts_of(one: "Candidate") -> list[tuple[str, str]]:
    return [("query", one.query), ("positive", one.positive), ("left out", one.text)]
