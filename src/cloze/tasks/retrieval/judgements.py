"""Folders in the layout of BEIR or TREC, relevance judgements (qrels), runs of other search engines, and metrics.

    corpus.jsonl      {"_id": "d1", "title": "...", "text": "..."}    or a table with columns for ids and texts
    queries.jsonl     {"_id": "q1", "text": "..."}
    qrels/test.tsv    query-id, corpus-id, score, separated by tabs; or TREC: query, 0, document, relevance

BEIR: Thakur et al. 2021. The files of TREC are separated by whitespace and have no header: judgements have four columns
(query, iteration, document, relevance), runs have six (query, Q0, document, rank, score, name of the system).

The metrics equal those of ``trec_eval``: documents are ranked by score in single precision, and equal scores by
descending id. A document without a judgement is not relevant. Gains are the relevance itself, discounted by log2(rank +
1) (Jarvelin and Kekalainen 2002). Queries without a relevant document have no score, unlike in trec_eval.

Dimensions: Q queries, S resamples.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cloze.errors import ConfigError, DataError
from cloze.files import Lines, RowError, open_file, replaced_file
from cloze.tasks.in_memory import TableSource
from cloze.tasks.intervals import MeanRows
from cloze.tasks.retrieval.kind import Qrels, RetrievalData, Run
from cloze.tasks.rows import OnBadRow
from cloze.tasks.tables import Record, Table, open_table

_IDS = ("_id", "id", "docid", "doc_id", "pid", "qid", "query_id", "query-id", "corpus-id")
_TEXTS = ("text", "contents", "passage", "query", "question", "document")
_TITLE = "title"
_NAMES = {"documents": ("corpus", "collection", "documents"), "queries": ("queries", "topics")}
_ENDINGS = (".jsonl", ".tsv", ".csv", ".parquet", ".jsonl.gz", ".tsv.gz", ".csv.gz")
_QRELS_ENDINGS = (".tsv", ".txt", ".qrels", ".tsv.gz", ".txt.gz")
_BEIR_HEADER = ("query-id", "corpus-id", "score")
_LIST_OF = {"documents": "corpus.jsonl", "queries": "queries.jsonl"}


def read_folder(folder: Path, split: str, on_bad_row: OnBadRow = "stop") -> RetrievalData:
    """Read a folder in the layout of BEIR or TREC.

    Args:
        folder: The folder.
        split: The judgements to read. ``dev`` takes those of ``dev``, or else of ``test``, or else the only ones.
        on_bad_row: Whether a bad row, or a judgement of an unknown query or document, stops reading, or is skipped and
            counted.
    """
    documents, bad_documents = read_texts(_find_texts(folder, "documents"), "document", on_bad_row)
    queries, bad_queries = read_texts(_find_texts(folder, "queries"), "query", on_bad_row)
    path, name = find_qrels(folder, split)
    qrels, bad = read_qrels(path, queries, documents, on_bad_row)
    # Queries of other splits are no queries of this one.
    own = {query: text for query, text in queries.items() if query in qrels} if name is not None else queries
    return RetrievalData(own, documents, qrels, bad_documents + bad_queries + bad, name)


def _find_texts(folder: Path, noun: str) -> Path:
    found = [path for stem in _NAMES[noun] for ending in _ENDINGS if (path := folder / f"{stem}{ending}").is_file()]
    if not found:
        raise DataError(f"{folder}: no file of {noun}; expected {_LIST_OF[noun]}, or a table with ids and texts")
    return found[0]


def find_qrels(folder: Path, split: str) -> tuple[Path, str | None]:
    """Return the judgements of a split and its name, or ``qrels.tsv`` and None for a folder without splits."""
    alone = [path for ending in _QRELS_ENDINGS if (path := folder / f"qrels{ending}").is_file()]
    splits = {
        path.name.partition(".")[0]: path
        for path in sorted((folder / "qrels").glob("*"))
        if path.name.endswith(_QRELS_ENDINGS)
    }
    if split == "dev" and "dev" not in splits:
        split = "test" if "test" in splits else next(iter(splits)) if len(splits) == 1 else split
    if split in splits:
        return splits[split], split
    if alone:
        return alone[0], None
    if not splits:
        raise DataError(f"{folder}: no relevance judgements; expected qrels/{split}.tsv, or qrels.tsv")
    raise ConfigError(f"{folder}: no judgements for the split {split!r}; it has: {', '.join(splits)}")


# -- texts by id -------------------------------------------------------------------------------------------------------


def read_texts(path: TableSource, noun: str, on_bad_row: OnBadRow = "stop") -> tuple[dict[str, str], int]:
    """Read a table with ids and texts: the text of each id, with its title in front, and the number of bad rows."""
    texts: dict[str, str] = {}
    places: dict[str, str] = {}
    bad = 0
    with closing(_open_texts(path)) as table:
        while True:
            try:
                record = next(table)
                key, text = _text_by_id(record, noun)
                if key in texts:
                    raise RowError(
                        f"{record.place}: the {noun} {key!r} is already at {places[key]}; give every {noun} its own id"
                    )
                texts[key], places[key] = text, record.place
            except StopIteration:
                return texts, bad
            except RowError:
                if on_bad_row == "stop":
                    raise
                bad += 1


def _open_texts(path: TableSource) -> Table:
    table = open_table(path)
    if table.columns is not None and len(table.columns) == 2 and not set(table.columns) & set(_IDS):
        table.close()
        return open_table(path, ("id", "text"))  # two columns without a header, as in MS MARCO
    return table


def _text_by_id(record: Record, noun: str) -> tuple[str, str]:
    cells = record.cells
    names = [next((name for name in known if name in cells), None) for known in (_IDS, _TEXTS)]
    if None in names:
        missing = ("id", "text")[names.index(None)]
        raise RowError(f"{record.place}: no {missing}; it has: {', '.join(cells)}; expected '_id' and 'text'")
    key, text = (cells[str(name)] for name in names)
    if isinstance(key, bool) or not isinstance(key, str | int) or not str(key).strip():
        raise RowError(f"{record.place}: the id is {key!r:.40}; expected text or a whole number")
    title = cells.get(_TITLE) or ""
    for value in (title, text):
        if not isinstance(value, str):
            raise RowError(f"{record.place}: the text of {noun} {key!r} is {value!r:.40}; expected text in quotes")
    whole = f"{title} {text}".strip()
    if not whole:
        raise RowError(f"{record.place}: the text of {noun} {key!r} is empty; fill it in, or pass --on-bad-row skip")
    return str(key).strip(), whole


# -- judgements and runs -----------------------------------------------------------------------------------------------


def read_qrels(
    path: Path, queries: Sequence[str] | dict[str, str], documents: dict[str, str], on_bad_row: OnBadRow = "stop"
) -> tuple[Qrels, int]:
    """Read relevance judgements of known queries and documents, in the format of BEIR or TREC.

    Returns:
        The judgements, and the number of lines that were skipped.
    """
    qrels: Qrels = {}
    bad = 0
    for place, cells in _lines(path):
        try:
            if tuple(cells) == _BEIR_HEADER:
                continue
            if len(cells) not in (3, 4):
                raise RowError(
                    f"{place}: {len(cells)} columns; expected query, document and relevance, or TREC's four columns"
                )
            query, document, grade = cells[0], cells[-2], cells[-1]
            try:
                relevance = int(grade)
            except ValueError:
                raise RowError(f"{place}: the relevance is {grade!r:.40}; expected a whole number") from None
            for noun, key, known in (("query", query, queries), ("document", document, documents)):
                if key not in known:
                    raise RowError(f"{place}: {noun} {key!r} is unknown; add its text, or pass --on-bad-row skip")
            if document in qrels.setdefault(query, {}):
                raise RowError(f"{place}: document {document!r} is judged twice for query {query!r}; keep one line")
            qrels[query][document] = relevance
        except RowError:
            if on_bad_row == "stop":
                raise
            bad += 1
    if not qrels:
        raise DataError(f"{path} has no judgements; expected query, document and relevance in each line")
    return qrels, bad


def read_run(path: Path, data: RetrievalData) -> Run:
    """Read the results of a search in the format of TREC; queries and documents that ``data`` lacks are an error."""
    run: Run = {}
    for place, cells in _lines(path):
        if len(cells) != 6:
            raise DataError(f"{place}: {len(cells)} columns; expected query, Q0, document, rank, score and name")
        query, _, document, _, score, _ = cells
        try:
            value = float(score)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise DataError(f"{place}: the score is {score!r:.40}; expected a number")
        if document not in data.documents:
            raise DataError(f"{place}: document {document!r} is not in the corpus; evaluate the run on its own data")
        if document in run.setdefault(query, {}):
            raise DataError(f"{place}: document {document!r} is listed twice for query {query!r}; keep one line")
        run[query][document] = value
    if not set(run) & set(data.queries):
        raise DataError(f"{path}: none of its {len(run)} queries is among the data's; evaluate the run on its own data")
    return run


def write_run(path: Path, run: Run, name: str) -> None:
    """Write the results of a search in the format of TREC, atomically; tabs separate ids, which may have spaces."""
    name = "_".join(name.split()) or "cloze"
    with replaced_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for query, scores in run.items():
            ranked = sorted(scores, key=lambda document: -scores[document])
            for rank, document in enumerate(ranked, start=1):
                file.write(f"{query}\tQ0\t{document}\t{rank}\t{scores[document]!r}\t{name}\n")


def _lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the location and the cells of each line that is not empty; ids may contain spaces if tabs separate them."""
    with closing(open_file(path)) as stream:
        lines = Lines(path, stream)
        for line in lines:
            if line.strip():
                yield lines.place, [cell.strip() for cell in line.split("\t")] if "\t" in line else line.split()


# -- metrics -----------------------------------------------------------------------------------------------------------


_PERMUTATIONS = 10_000
_AT_ONCE = 2_000_000  # signs in memory at the same time
_SEED = 0
_NAME = re.compile(r"(?P<name>ndcg|mrr|recall|precision|map)(@(?P<cutoff>[1-9]\d*))?")

Relevances = Sequence[int]
"""The relevance of each ranked document, best rank first; 0 for documents without a judgement."""


def rank(scores: Mapping[str, float]) -> list[str]:
    """Return the documents in the order of trec_eval: by score in single precision, then by id, descending."""
    values = np.fromiter(scores.values(), np.float32, len(scores)).tolist()
    order = sorted(zip(values, scores, strict=True), reverse=True)
    return [document for _, document in order]


def _ndcg(found: Relevances, grades: Relevances) -> float:
    best = sorted((grade for grade in grades if grade > 0), reverse=True)[: len(found)]
    return _gain(found) / _gain(best)


def _gain(relevances: Relevances) -> float:
    return sum(grade / math.log2(place + 1) for place, grade in enumerate(relevances, start=1) if grade > 0)


def _mrr(found: Relevances, grades: Relevances) -> float:  # noqa: ARG001 (the metrics share one signature)
    return next((1 / place for place, grade in enumerate(found, start=1) if grade > 0), 0.0)


def _recall(found: Relevances, grades: Relevances) -> float:
    return _count(found) / _count(grades)


def _precision(found: Relevances, grades: Relevances) -> float:  # noqa: ARG001
    return _count(found) / len(found)


def _map(found: Relevances, grades: Relevances) -> float:
    """Return the mean over the relevant documents of the precision at their ranks; 0 for those that are not found."""
    right, total = 0, 0.0
    for place, grade in enumerate(found, start=1):
        if grade > 0:
            right += 1
            total += right / place
    return total / _count(grades)


def _count(relevances: Relevances) -> int:
    return sum(grade > 0 for grade in relevances)


# Relevances of the ranked documents, cut or padded to the cutoff, and all judgements of the query -> score.
METRICS: dict[str, Callable[[Relevances, Relevances], float]] = {
    "ndcg": _ndcg,
    "mrr": _mrr,
    "recall": _recall,
    "precision": _precision,
    "map": _map,
}


def parse_metric(name: str) -> tuple[str, int | None]:
    """Split ``ndcg@10`` into its name and its cutoff; without a cutoff, all results count."""
    found = _NAME.fullmatch(name)
    if found is None or (found["name"] == "precision" and found["cutoff"] is None):
        known = ", ".join(f"{metric}@k" for metric in METRICS)
        raise ConfigError(f"unknown metric {name!r}; expected {known} with a number for k, such as ndcg@10, or map")
    return found["name"], None if found["cutoff"] is None else int(found["cutoff"])


def score_query(ranked: Sequence[str], grades: Mapping[str, int], metrics: Sequence[str]) -> dict[str, float]:
    """Return the metrics of one query.

    Args:
        ranked: The ids of the documents found, best first.
        grades: The relevance of each judged document; at least one must be relevant.
        metrics: Names such as ``ndcg@10`` or ``map``.
    """
    found, judged = [grades.get(document, 0) for document in ranked], list(grades.values())
    scores = {}
    for metric in metrics:
        name, cutoff = parse_metric(metric)
        # Padding matters to precision@k, which divides by k, and to the ideal ranking of nDCG@k.
        length = max(len(found), len(judged)) if cutoff is None else cutoff
        scores[metric] = METRICS[name]([*found[:length], *[0] * (length - len(found))], judged)
    return scores


def score_run(run: Run, data: RetrievalData, metrics: Sequence[str]) -> MeanRows:
    """Return the metrics of every answerable query, in the order of ``data.answerable``; 0 for one without results."""
    rows = [score_query(rank(run.get(query, {})), data.qrels[query], metrics) for query in data.answerable]
    return MeanRows({metric: [row[metric] for row in rows] for metric in metrics})


def randomization_test(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the two-sided p-value of a difference of means by Fisher's randomization test (Smucker et al. 2007).

    If two systems are equally good, the sign of the difference on each query is arbitrary: the p-value is the fraction
    of 10,000 random assignments of signs (and the observed one) whose mean difference is at least as large.

    Args:
        first: A score per query of one system, (Q,).
        second: A score per query of the other, in the same order, (Q,).
    """
    differences = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    differences = differences[differences != 0]
    if not len(differences):
        return 1.0
    # Sums of the same numbers in another order may differ by rounding.
    observed = abs(differences.sum()) - 1e-9 * np.abs(differences).sum()
    generator = np.random.default_rng(_SEED)
    extreme, left = 1, _PERMUTATIONS
    while left:
        size = min(left, max(1, _AT_ONCE // len(differences)))
        signs: NDArray[np.int8] = generator.integers(0, 2, (size, len(differences)), np.int8)
        extreme += int((np.abs((2.0 * signs - 1.0) @ differences) >= observed).sum())
        left -= size
    return extreme / (_PERMUTATIONS + 1)
