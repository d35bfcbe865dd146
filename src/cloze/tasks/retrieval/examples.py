"""Read retrieval data: a table of pairs, rows in memory, or a folder in the layout of BEIR or TREC (``judgements``).

A table (CSV, TSV, JSONL, Parquet) has one row per pair: a query, a passage that answers it, and optionally negatives,
scores of a teacher, or a label. The columns are found by the names that sentence-transformers and FlagEmbedding use:

    query      positive             negative or negative_1, negative_2, ...
    query      pos: [...]           neg: [...], pos_scores: [...], neg_scores: [...]
    query      passage              label: 0 if the passage does not answer the query, above 0 if it does

Imports nothing heavy.
"""

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from cloze.errors import DataError, did_you_mean, format_option
from cloze.files import RowError
from cloze.tasks.in_memory import TableSource, as_table_source
from cloze.tasks.retrieval.judgements import read_folder
from cloze.tasks.retrieval.kind import RETRIEVAL_NAME, Qrels, RetrievalData, TrainingPairs, check_retrieval
from cloze.tasks.rows import OnBadRow, Row, RowFile, RowSettings, Source, read_rows
from cloze.tasks.tables import open_table

# Column names, in order of preference.
QUERY_COLUMNS = ("query", "question", "anchor")
PASSAGE_COLUMNS = ("positive", "passage", "pos", "document", "answer", "context")
LABEL_COLUMNS = ("label", "relevance")
_NEGATIVE = re.compile(r"(negatives?|neg)([_-]?\d+)?")
_POSITIVE_SCORES = ("positive_score", "pos_score", "pos_scores")
_NEGATIVE_SCORES = ("negative_score", "negative_scores", "neg_score", "neg_scores")

# -- any source --------------------------------------------------------------------------------------------------------


def retrieval_source(data: Any, dev: Any = None, rows: RowSettings | None = None) -> Source:
    """Return the source of retrieval data in any form; the tuples ``(queries, passages)`` are accepted as well."""
    settings = rows or RowSettings()
    query = settings.text if settings.text != RowSettings.text else QUERY_COLUMNS[0]
    passage = settings.pair or PASSAGE_COLUMNS[1]
    tables = [
        None if given is None else as_table_source(given, role, text=query, pair=None, label=passage)
        for role, given in (("train", data), ("dev", dev))
    ]
    return settings.source(RETRIEVAL_NAME, *tables)


def read_retrieval(
    data: "RetrievalData | Source | Any",
    *,
    split: str = "dev",
    documents: TableSource | None = None,
) -> RetrievalData:
    """Read queries, documents and relevance judgements to evaluate with.

    Args:
        data: A folder in the layout of BEIR or TREC, a table with one row per pair, or rows in memory; a ``Source``
            also names the columns.
        split: The judgements of a folder: ``dev`` takes those of ``dev``, or else of ``test``, or else the only ones.
        documents: A table with more documents to search, with a column ``text``.

    Returns:
        The data. Every document that is judged exists, and at least one query has a relevant document.

    Raises:
        DataError: If the data cannot be read, or no query has a relevant document.

    Example:
        >>> data = cloze.read_retrieval([{"query": "who?", "passage": "She."}, {"query": "why?", "passage": "So."}])
        >>> data.documents
        {'d1': 'She.', 'd2': 'So.'}
    """
    if isinstance(data, RetrievalData):
        return check_retrieval(data, "data")
    source = data if isinstance(data, Source) else retrieval_source(data)
    path = source.rows_of("dev")
    found = (
        read_folder(path, split, source.on_bad_row or "stop")
        if isinstance(path, Path) and path.is_dir()
        else _read_judged_pairs(source, path)
    )
    if documents is not None:
        found = _with_documents(found, documents, source.on_bad_row or "stop")
    return check_retrieval(found, path)


def read_training_pairs(source: "Source | Any", split: str = "train") -> TrainingPairs:
    """Read pairs to train on: a table with one row per pair, rows in memory, or a folder in the layout of BEIR.

    Args:
        source: The rows; a ``Source`` also names the columns.
        split: ``train`` or ``dev``.

    Returns:
        The pairs, at least one.

    Raises:
        DataError: If the rows cannot be read.

    Example:
        >>> pairs = cloze.read_training_pairs([{"query": "who?", "positive": "She.", "negative": "There."}])
        >>> pairs.negatives
        [('There.',)]
    """
    source = source if isinstance(source, Source) else retrieval_source(source)
    path = source.rows_of(split)
    if isinstance(path, Path) and path.is_dir():
        return check_retrieval(read_folder(path, split, source.on_bad_row or "stop"), path).pairs()
    return _read_pairs(source, path)


# -- tables of pairs ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PairColumns:
    """The columns of a table of pairs."""

    query: str
    positive: str
    negatives: tuple[str, ...] = ()
    label: str | None = None
    positive_score: str | None = None
    negative_score: str | None = None


@dataclass(frozen=True)
class _PairRow:
    place: str
    query: str
    positives: list[str]
    negatives: list[str]
    grade: int = 1
    scores: tuple[list[float], list[float]] | None = None  # of the positives, and of the negatives


def find_pair_columns(source: Source, path: TableSource) -> PairColumns:
    """Find the columns of a table of pairs by their usual names; those that the source names come first."""
    with closing(open_table(path, source.header(path))) as table:
        columns = table.columns
        if columns is None:
            first = next(table, None)
            columns = () if first is None else tuple(first.cells)
    if not columns:
        raise DataError(f"{path} has no rows; expected at least one")
    named = source.columns_named()
    negatives = tuple(name for name in columns if _NEGATIVE.fullmatch(name))
    return PairColumns(
        _column(path, "query", columns, named.get("text"), QUERY_COLUMNS, "text"),
        _column(path, "passage", columns, source.pair, PASSAGE_COLUMNS, "pair"),
        negatives,
        _column(path, "label", columns, named.get("label"), LABEL_COLUMNS, None),
        _first(_POSITIVE_SCORES, columns),
        _first(_NEGATIVE_SCORES, columns),
    )


def _column(
    path: TableSource, role: str, columns: Sequence[str], named: str | None, usual: Sequence[str], option: str | None
) -> Any:
    found = named if named is not None else _first(usual, columns)
    if found is not None and found not in columns:
        raise DataError(f"{path} has no column {found!r}{did_you_mean(found, columns)}")
    if found is None and option is not None:
        raise DataError(
            f"{path} has no column for the {role}: it has {', '.join(columns)}; expected one of {', '.join(usual)}, or "
            f"name it with {format_option(option)}"
        )
    return found


def _first(names: Sequence[str], columns: Sequence[str]) -> str | None:
    return next((name for name in names if name in columns), None)


class _PairReader:
    """The rows of a table of pairs; ``skipped`` counts the bad ones."""

    def __init__(self, rows: RowFile, columns: PairColumns, on_bad_row: OnBadRow) -> None:
        self._rows, self._columns, self._on_bad_row = rows, columns, on_bad_row
        self._bad = 0

    @classmethod
    def open(cls, source: Source, path: TableSource) -> Self:
        columns, on_bad_row = find_pair_columns(source, path), source.on_bad_row or "stop"
        rows = read_rows(path, text=columns.query, on_bad_row=on_bad_row, header=source.header(path))
        return cls(rows, columns, on_bad_row)

    @property
    def skipped(self) -> int:
        return self._rows.skipped + self._bad

    def __iter__(self) -> Iterator[_PairRow]:
        for row in self._rows:
            try:
                yield self._parse(row)
            except RowError:
                if self._on_bad_row == "stop":
                    raise
                self._bad += 1

    def _parse(self, row: Row) -> _PairRow:
        columns = self._columns
        positives = _texts(row, columns.positive)
        if not positives:
            raise RowError(f"{row.place}: {columns.positive!r} is empty; fill it in, or remove the row")
        negatives = [text for name in columns.negatives for text in _texts(row, name)]
        grade = 1 if columns.label is None else _grade(row, columns.label)
        return _PairRow(row.place, row.text, positives, negatives, grade, self._scores(row, positives, negatives))

    def _scores(
        self, row: Row, positives: Sequence[str], negatives: Sequence[str]
    ) -> tuple[list[float], list[float]] | None:
        found = []
        for name, texts in ((self._columns.positive_score, positives), (self._columns.negative_score, negatives)):
            if name is None:
                return None
            values = _numbers(row, name)
            if len(values) != len(texts):
                raise RowError(f"{row.place}: {name!r} has {len(values)} scores for {len(texts)} passages")
            found.append(values)
        return found[0], found[1]


def _texts(row: Row, name: str) -> list[str]:
    """Return the texts of a cell: a text or a list of texts; empty ones are left out."""
    value = row.fields.get(name)
    values = value if isinstance(value, list) else [value]
    for one in values:
        if not (one is None or isinstance(one, str) or one != one):
            raise RowError(f"{row.place}: {name!r} is {value!r:.40}; expected text in quotes, or a list of texts")
    return [one for one in values if isinstance(one, str) and one.strip()]


def _numbers(row: Row, name: str) -> list[float]:
    value: Any = row.fields.get(name)
    try:
        numbers = [float(one) for one in (value if isinstance(value, list) else [value])]
    except (TypeError, ValueError):
        numbers = [math.nan]
    if not all(map(math.isfinite, numbers)):
        raise RowError(f"{row.place}: {name!r} is {value!r:.40}; expected a number, or a list of numbers")
    return numbers


def _grade(row: Row, name: str) -> int:
    grades = _numbers(row, name)
    if len(grades) != 1 or grades[0] != int(grades[0]):
        raise RowError(f"{row.place}: {name!r} is {row.fields.get(name)!r:.40}; expected a whole number, 0 or more")
    return int(grades[0])


def _read_judged_pairs(source: Source, path: TableSource) -> RetrievalData:
    """Read a table of pairs to evaluate with: distinct queries, and all passages of the table as documents."""
    queries: dict[str, str] = {}  # text -> id
    documents: dict[str, str] = {}
    qrels: Qrels = {}
    rows = _PairReader.open(source, path)
    for row in rows:
        grades = qrels.setdefault(queries.setdefault(row.query, f"q{len(queries) + 1}"), {})
        judged = [(text, row.grade) for text in row.positives] + [(text, 0) for text in row.negatives]
        for text, grade in judged:
            document = documents.setdefault(text, f"d{len(documents) + 1}")
            grades[document] = max(grade, grades.get(document, grade))
    by_id, documents_by_id = ({key: text for text, key in texts.items()} for texts in (queries, documents))
    return RetrievalData(by_id, documents_by_id, qrels, rows.skipped)


def _read_pairs(source: Source, path: TableSource) -> TrainingPairs:
    """Read a table of pairs to train on. Passages of rows labelled 0 become negatives of their query's other rows."""
    rows = _PairReader.open(source, path)
    kept: list[tuple[_PairRow, int]] = []
    wrong: dict[str, list[str]] = {}
    for row in rows:
        if row.grade > 0:
            kept += [(row, index) for index in range(len(row.positives))]
        else:
            wrong.setdefault(row.query, []).extend(row.positives)
    if not kept:
        raise DataError(f"{path}: every label is 0, so no passage answers its query; expected labels above 0 as well")
    return TrainingPairs(
        [row.query for row, _ in kept],
        [row.positives[index] for row, index in kept],
        [(*row.negatives, *wrong.get(row.query, ())) for row, _ in kept],
        _score_column(path, kept, bool(wrong)),
        [row.place for row, _ in kept],
        rows.skipped,
    )


def _score_column(
    path: TableSource, kept: Sequence[tuple[_PairRow, int]], labelled: bool
) -> list[tuple[float, ...]] | None:
    scores = [(row.scores[0][index], *row.scores[1]) for row, index in kept if row.scores is not None]
    if scores and labelled:
        raise DataError(f"{path} has both scores and labels of 0; leave out one of the two columns")
    return scores or None


def _with_documents(data: RetrievalData, path: TableSource, on_bad_row: OnBadRow) -> RetrievalData:
    """Return the data with the texts of a table as more documents to search."""
    rows = read_rows(path, text="text", on_bad_row=on_bad_row)
    documents, known = dict(data.documents), set(data.documents.values())
    for row in rows:
        if row.text not in known:
            documents[row.place] = row.text
            known.add(row.text)
    return replace(data, documents=documents, skipped=data.skipped + rows.skipped)
