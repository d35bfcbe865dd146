"""Evaluate retrieval: rank the documents for each query with a model's vectors, with BM25, or with a reranker.

The search is exact: every query is compared with every document. BM25 is always in the table, because a model whose
vectors do not beat it is not needed. Two systems are compared on the same queries: by a paired bootstrap interval of
the difference, and by Fisher's randomization test.

Dimensions: Q queries, N documents, D vector size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from cloze.checkpoint.pooling_files import DOCUMENT, QUERY
from cloze.errors import ConfigError
from cloze.files import replace_json_lines
from cloze.predict.model import Model
from cloze.progress import Progress, Silent
from cloze.tasks.baselines import Baseline, compare
from cloze.tasks.intervals import MeanRows, bootstrap_intervals, paired_difference
from cloze.tasks.reports import Evaluation, Table, headline, label_table, score_table, summary_lines
from cloze.tasks.retrieval.judgements import parse_metric, randomization_test, rank, score_run, write_run
from cloze.tasks.retrieval.kind import RETRIEVAL, RetrievalData, Run
from cloze.tasks.retrieval.ranking import Bm25, Hits, search_vectors, unit_vectors

BM25 = "BM25"
# Results per query of metrics without a cutoff, as usual for trec_eval.
_DEPTH = 1000
_TEXTS_AT_ONCE = 4096
_QUERIES_AT_ONCE = 64
# Largest p-value of a difference that is called beyond noise.
_SIGNIFICANT = 0.05
# Results of each query in the per-query file.
_SHOWN = 10
QUERIES_FILE = "queries.jsonl"


@dataclass(frozen=True)
class System:
    """The results of one search system on the same queries."""

    name: str
    run: Run
    rows: MeanRows

    @property
    def metrics(self) -> dict[str, float]:
        """The mean of each metric over the queries."""
        return {name: float(np.mean(values)) for name, values in self.rows.values.items()}


@dataclass(frozen=True)
class RetrievalEvaluation(Evaluation):
    """The scores of a model's rankings, and those of BM25 and other systems on the same queries.

    Attributes:
        data: The queries, documents and judgements.
        systems: The evaluated system first, then those that it is compared with.
    """

    data: RetrievalData = field(default_factory=lambda: RetrievalData({}, {}, {}))
    systems: tuple[System, ...] = ()

    @cached_property
    def comparisons(self) -> list[dict[str, Any]]:
        """For each other system, its scores with intervals, and by how much the first system is ahead of it."""
        first, *others = self.systems
        return [
            {
                "name": other.name,
                **other.metrics,
                "interval": bootstrap_intervals(other.rows),
                "differences": {metric: _difference(first.rows, other.rows, metric) for metric in first.rows.values},
            }
            for other in others
        ]

    def results(self) -> dict[str, Any]:
        """Return the contents of ``eval_results.json``."""
        counts: dict[str, Any] = {"documents": len(self.data.documents), "split": self.data.split}
        counts |= {"unanswerable": self.data.unanswerable}
        kept = {name: value for name, value in counts.items() if value}
        return super().results() | kept | {"comparisons": self.comparisons}

    @property
    def notes(self) -> Sequence[str]:
        """Lines about the data and the comparisons, for the report."""
        split = f" of the split {self.data.split}" if self.data.split else ""
        lines = [f"{len(self.data.answerable):,} queries{split}, {len(self.data.documents):,} documents"]
        if self.data.unanswerable:
            lines.append(f"{self.data.unanswerable:,} queries have no relevant document and no score")
        return [*lines, *map(describe_comparison, self.comparisons)]

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *self.notes])

    def query_rows(self) -> list[dict[str, Any]]:
        """Return each query with its relevant documents, and the scores and first results of every system."""
        return [self._query_row(index, query) for index, query in enumerate(self.data.answerable)]

    def _query_row(self, index: int, query: str) -> dict[str, Any]:
        relevant = {document: self.data.qrels[query][document] for document in self.data.relevant(query)}
        systems = {
            system.name: {
                **{metric: values[index] for metric, values in system.rows.values.items()},
                "first": _first_rank(system.run.get(query, {}), relevant),
                "results": rank(system.run.get(query, {}))[:_SHOWN],
            }
            for system in self.systems
        }
        return {"query": query, "text": self.data.queries[query], "relevant": relevant, "systems": systems}

    def write_more(self, folder: Path) -> None:
        """Write the scores and results of each query, and the run of each system in the format of TREC."""
        replace_json_lines(folder / QUERIES_FILE, self.query_rows())
        for number, system in enumerate(self.systems):
            name = "bm25" if system.name == BM25 else "model" if number == 0 else f"other{number}"
            write_run(folder / f"{name}.trec", system.run, system.name)


def _difference(first: MeanRows, second: MeanRows, metric: str) -> dict[str, float]:
    found = paired_difference(first, second, metric)
    p_value = randomization_test(first.values[metric], second.values[metric])
    return {"value": found.value, "low": found.low, "high": found.high, "p": p_value}


def describe_comparison(comparison: Mapping[str, Any]) -> str:
    """Return one line about the difference from another system in the first metric."""
    metric, found = next(iter(comparison["differences"].items()))
    value, low, high = (100 * found[name] for name in ("value", "low", "high"))
    # With few queries, the bootstrap interval is too narrow, but the randomization test stays exact.
    verdict = "beyond noise" if (low > 0 or high < 0) and found["p"] < _SIGNIFICANT else "within noise"
    return (
        f"against {comparison['name']}: {value:+.1f} points of {metric}, 95 % interval {low:+.1f} to {high:+.1f}, "
        f"p = {found['p']:.4f} (randomization test): {verdict}"
    )


def _first_rank(scores: Mapping[str, float], relevant: Mapping[str, int]) -> int | None:
    """Return the rank of the first relevant document, from 1; None if none was found."""
    return next((place for place, document in enumerate(rank(scores), start=1) if document in relevant), None)


def report_tables(evaluation: Evaluation) -> tuple[list[Table], list[str]]:
    """Return the tables of a report on any evaluation, and the lines below them."""
    results = evaluation.results()
    tables = [score_table(results), label_table(results)]
    lines = [*filter(None, [headline(results)]), *summary_lines(results), *evaluation.notes]
    return [table for table in tables if table is not None], lines


# -- systems -----------------------------------------------------------------------------------------------------------


def depth_of(metrics: Sequence[str]) -> int:
    """Return the number of results per query that metrics need; 1,000 if one of them has no cutoff."""
    return max(parse_metric(name)[1] or _DEPTH for name in metrics)


def search_run(
    model: Model,
    data: RetrievalData,
    top: int = 100,
    *,
    query_prompt: str = QUERY,
    document_prompt: str = DOCUMENT,
    progress: Progress | None = None,
) -> Run:
    """Rank the documents for each answerable query by the cosine of the vectors, exactly.

    Args:
        model: The model.
        data: Queries and documents.
        top: Number of results per query.
        query_prompt: The prompt of queries: its name in the model's folder, or the text itself.
        document_prompt: The prompt of documents.
        progress: Receives the number of embedded texts.
    """
    documents = embed_unit(model, list(data.documents.values()), document_prompt, "documents", progress)
    texts = [data.queries[query] for query in data.answerable]
    queries = embed_unit(model, texts, query_prompt, "queries", progress)
    return _as_run(data, search_vectors(queries, documents, top))


def bm25_run(data: RetrievalData, top: int = 100) -> Run:
    """Rank the documents that share a word with a query, for each answerable query, by BM25."""
    texts = [data.queries[query] for query in data.answerable]
    return _as_run(data, Bm25.build(data.documents.values()).search(texts, top))


def _as_run(data: RetrievalData, found: Sequence[Hits]) -> Run:
    ids = list(data.documents)
    return {
        query: {ids[index]: score for index, score in zip(hits.indices.tolist(), hits.scores.tolist(), strict=True)}
        for query, hits in zip(data.answerable, found, strict=True)
    }


def rerank_run(model: Model, run: Run, data: RetrievalData, top: int = 20, *, progress: Progress | None = None) -> Run:
    """Sort the first results of each query by a reranker; the others keep their order below them.

    Args:
        model: A cross-encoder, or a model of text vectors.
        run: The results to sort.
        data: Queries and documents.
        top: Number of results per query to sort.
        progress: Receives the number of finished queries.
    """
    listener, queries = progress or Silent(), list(run)
    sorted_run: Run = {}
    for start in range(0, len(queries), _QUERIES_AT_ONCE):
        part = queries[start : start + _QUERIES_AT_ONCE]
        ranked = {query: rank(run[query]) for query in part}
        pairs = [(query, document) for query in part for document in ranked[query][:top]]
        scores = iter(
            model.rerank_scores(
                [data.queries[query] for query, _ in pairs], [data.documents[document] for _, document in pairs]
            ).tolist()
        )
        for query in part:
            sorted_run[query] = {document: next(scores) for document in ranked[query][:top]}
            # Scores are at least -1: cosines, or probabilities.
            sorted_run[query] |= {document: -2.0 - place for place, document in enumerate(ranked[query][top:])}
        listener.advance("rerank", start + len(part), len(queries))
    return sorted_run


def embed_unit(
    model: Model, texts: Sequence[str], prompt: str | None, stage: str, progress: Progress | None = None
) -> Any:
    """Return the vectors of texts, scaled to length 1, (N, D); equal texts are embedded once."""
    rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    different, parts = list(rows), []
    for start in range(0, len(different), _TEXTS_AT_ONCE):
        part = different[start : start + _TEXTS_AT_ONCE]
        parts.append(unit_vectors(model.embed(part, prompt=prompt)))
        (progress or Silent()).advance(stage, start + len(part), len(different))
    vectors = np.concatenate(parts)
    return vectors if len(different) == len(texts) else vectors[[rows[text] for text in texts]]


# -- evaluation --------------------------------------------------------------------------------------------------------


def evaluate_run(
    run: Run,
    data: RetrievalData,
    baseline: Run | None = None,
    *,
    metrics: Sequence[str] = RETRIEVAL.metrics,
    name: str = "model",
    others: Mapping[str, Run] | None = None,
) -> RetrievalEvaluation:
    """Evaluate a run, and compare it with BM25 and other runs on the same queries.

    Args:
        run: The results of the system to evaluate.
        data: Queries, documents and judgements.
        baseline: The results of BM25, to compare with.
        metrics: Names such as ``ndcg@10``; the first one is the main metric.
        name: The name of the system.
        others: More runs to compare with, by name.

    Raises:
        ConfigError: If two systems have the same name.
    """
    twice = [key for key in (name, *(others or {})) if key == BM25 or [name, *(others or {})].count(key) > 1]
    if twice:
        raise ConfigError(f"two systems are named {twice[0]!r}; give each its own name")
    runs = {name: run, **(others or {}), **({} if baseline is None else {BM25: baseline})}
    systems = [System(key, found, score_run(found, data, metrics)) for key, found in runs.items()]
    best = [next(iter(rank(run.get(query, {}))), "") for query in data.answerable]
    right = [
        document if document in relevant else relevant[0]
        for document, relevant in zip(best, map(data.relevant, data.answerable), strict=True)
    ]
    evaluation = RetrievalEvaluation(
        systems[0].metrics,
        best,
        data.answerable,
        right,
        [{"text": data.queries[query]} for query in data.answerable],
        skipped=data.skipped,
        rows=systems[0].rows,
        data=data,
        systems=tuple(systems),
    )
    if len(systems) == 1:
        return evaluation
    known = [Baseline(system.name, system.rows) for system in systems[1:]]
    known.sort(key=lambda one: one.name != BM25)  # the first one is the baseline of the verdict
    return replace(evaluation, baseline=compare(evaluation, known))


def evaluate_retrieval(
    model: Model,
    data: RetrievalData,
    *,
    compare_with: Mapping[str, Model | Run] | None = None,
    reranker: Model | None = None,
    rerank_top: int = 20,
    metrics: Sequence[str] = RETRIEVAL.metrics,
    query_prompt: str = QUERY,
    document_prompt: str = DOCUMENT,
    name: str = "model",
    progress: Progress | None = None,
) -> RetrievalEvaluation:
    """Evaluate a model's rankings and compare them with BM25.

    Args:
        model: The model.
        data: Queries, documents and judgements.
        compare_with: More systems to compare with, by name: models, or runs of other search engines.
        reranker: A cross-encoder that sorts the first results of the model; the model alone is compared with it.
        rerank_top: Number of results per query that it sorts.
        metrics: Names such as ``ndcg@10``; the first one is the main metric.
        query_prompt: The prompt of queries: its name in the model's folder, or the text itself.
        document_prompt: The prompt of documents.
        name: The name of the model in the table.
        progress: Receives the number of embedded texts.

    Raises:
        ConfigError: If a metric is unknown.
    """
    if not metrics:
        raise ConfigError("metrics is empty; expected names such as ndcg@10")
    top = depth_of(metrics)
    prompts = {"query_prompt": query_prompt, "document_prompt": document_prompt}
    run = search_run(model, data, top, **prompts, progress=progress)
    others = {
        key: search_run(other, data, top, **prompts, progress=progress) if isinstance(other, Model) else other
        for key, other in (compare_with or {}).items()
    }
    if reranker is not None:
        others, name = {name: run, **others}, f"{name}, reranked"
        run = rerank_run(reranker, run, data, rerank_top, progress=progress)
    return evaluate_run(run, data, bm25_run(data, top), metrics=metrics, name=name, others=others)
