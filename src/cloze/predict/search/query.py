"""Search the segments of an index: vectors, BM25, or both, with conditions on the fields of documents.

Each method ranks passages; a document ranks as its best passage. ``hybrid`` adds the reciprocal ranks of a document in
both lists, 1 / (60 + rank) (Cormack et al. 2009). Small segments, and those where few documents meet the conditions,
are searched exactly. In others, a graph proposes candidates, which are scored again with the stored vectors.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as arrow
from numpy.typing import NDArray
from pyarrow import compute

from cloze.errors import ConfigError, RequestError, did_you_mean
from cloze.options import SearchMode
from cloze.predict.search.segments import EXACT_BELOW, FIELD, Floats, Segment
from cloze.tasks.retrieval.ranking import bm25_scores, matches, terms_of, top_k

# Passages that each method ranks, at least, and the constant of reciprocal-rank fusion.
DEPTH, FUSION = 100, 60
# Passages that a cross-encoder scores.
RERANKED = 50
MODES: tuple[SearchMode, ...] = ("hybrid", "vectors", "bm25")
_CONDITION = re.compile(r"\s*([^=<>!]+?)\s*(>=|<=|!=|=|<|>)(.*)", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_NUMBER_PATTERN = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"
_COMPARE: dict[str, Callable[..., Any]] = {
    "=": compute.equal,
    "!=": compute.not_equal,
    ">=": compute.greater_equal,
    "<=": compute.less_equal,
    ">": compute.greater,
    "<": compute.less,
}

Mask = NDArray[np.bool_] | None
Rerank = Callable[[str, Sequence[str]], Sequence[float]]


@dataclass(frozen=True)
class Hit:
    """A document that was found, and its best passage.

    Attributes:
        id: The id of the document.
        score: The score by which the results are ordered: fused ranks, a cosine, BM25, or the reranker's score.
        passage: The text of the best passage.
        start: Where the passage starts in the document, in characters.
        end: Where it ends.
        highlights: Start and end, in the passage, of words of the query.
        fields: The other columns of the document.
        cosine: Cosine similarity of the passage to the query; None if only BM25 was used.
        bm25: BM25 score of the passage; None if only vectors were used.

    Example:
        >>> cloze.open_index("boats").search("sailing", top=1)[0].id
        '1'
    """

    id: str
    score: float
    passage: str
    start: int
    end: int
    highlights: tuple[tuple[int, int], ...]
    fields: Mapping[str, object]
    cosine: float | None = None
    bm25: float | None = None


class Condition(NamedTuple):
    """A condition on a field of documents, such as year >= 2020."""

    field: str
    operator: str
    value: str


def parse_conditions(where: Sequence[str] | Mapping[str, object] | None, fields: Sequence[str]) -> list[Condition]:
    """Return conditions given as ``["year>=2020", "lang=en"]`` or ``{"lang": "en"}``.

    Raises:
        RequestError: A condition is malformed, or names no field of the documents.
    """
    if isinstance(where, str):
        where = [where]
    if isinstance(where, Mapping):
        where = [f"{name}={_spelled(value)}" for name, value in where.items()]
    conditions = []
    for word in where or ():
        found = _CONDITION.fullmatch(word)
        if found is None:
            raise RequestError(f"where is {word[:60]!r}; expected a condition such as year>=2020 or lang=en")
        if found[1] not in fields:
            hint = did_you_mean(found[1][:60], fields) if fields else "; the documents of this index have none"
            raise RequestError(f"where is {word[:60]!r}, but the documents have no field {found[1][:60]!r}{hint}")
        conditions.append(Condition(found[1], found[2], found[3].strip()))
    return conditions


def _spelled(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def passages_that_meet(segment: Segment, conditions: Sequence[Condition]) -> Mask:
    """Return which passages belong to documents that exist and meet all conditions; None for all passages."""
    if not conditions:
        return segment.live_passages()
    documents = np.ones(len(segment.documents), bool) if segment.alive is None else segment.alive.copy()
    for condition in conditions:
        documents &= _documents_that_meet(segment, condition)
    return documents[segment.passages[:, 0]]


def _documents_that_meet(segment: Segment, condition: Condition) -> NDArray[np.bool_]:
    """Compare a column as numbers if the value is one, otherwise as text; a missing value only meets !=."""
    name = FIELD + condition.field
    if name not in segment.documents.column_names:
        return np.full(len(segment.documents), condition.operator == "!=")
    column, value = segment.documents.column(name), condition.value
    test = _COMPARE[condition.operator]
    if arrow.types.is_boolean(column.type):
        column = compute.cast(column, arrow.large_string())
    is_text = arrow.types.is_large_string(column.type)
    if _NUMBER.fullmatch(value):
        if is_text:
            numeric = compute.match_substring_regex(column, _NUMBER_PATTERN)
            blank = arrow.scalar(None, arrow.large_string())
            column = compute.cast(
                compute.utf8_trim_whitespace(compute.if_else(numeric, column, blank)), arrow.float64()
            )
        met = test(column, arrow.scalar(float(value)))
    else:
        met = test(
            column if is_text else compute.cast(column, arrow.large_string()), arrow.scalar(value, arrow.large_string())
        )
    return np.asarray(compute.fill_null(met, condition.operator == "!="))


class _Found(NamedTuple):
    """A passage that was found: its segment and row, and its score."""

    segment: int
    row: int
    score: float


@dataclass(frozen=True)
class Search:
    """One search over a snapshot of an index: the segments, which of their passages qualify, and the settings."""

    segments: Sequence[Segment]
    masks: Sequence[Mask]
    top: int
    mode: SearchMode
    exact: bool = False
    rerank: Rerank | None = None

    def run(self, query: str, vector: Floats | None) -> list[Hit]:
        """Return the best documents for a query; ``vector`` has unit length, and is None for BM25 alone."""
        wanted = max(self.top, RERANKED) if self.rerank else self.top
        passages = sum(len(segment.passages) for segment in self.segments)
        by_word = self._bm25(query) if self.mode != "vectors" else None
        depth = max(DEPTH, 3 * wanted)
        while True:
            lists = []
            if self.mode != "bm25":
                assert vector is not None
                lists.append(self._nearest(vector, depth))
            if by_word is not None:
                lists.append(self._best(by_word, depth))
            ranked = self._rank(lists)
            # Many passages of few documents: look deeper until there are enough documents, or no more passages.
            if len(ranked) >= wanted or depth >= passages or all(len(found) < depth for found in lists):
                break
            depth *= 4
        hits = [self._hit(found, query, vector, by_word) for found in ranked[:wanted]]
        return self._reranked(query, hits)[: self.top]

    def _nearest(self, vector: Floats, depth: int) -> list[_Found]:
        found: list[_Found] = []
        for number, (segment, mask) in enumerate(zip(self.segments, self.masks, strict=True)):
            rows = self._candidates(segment, mask, vector, depth)
            scores = (segment.vectors if rows is None else segment.vectors[rows]) @ vector
            if rows is None and mask is not None:
                scores = np.where(mask, scores, -np.inf)
            for place in top_k(scores, depth):
                if scores[place] > -np.inf:
                    row = place if rows is None else rows[place]
                    found.append(_Found(number, int(row), float(scores[place])))
        return sorted(found, key=lambda one: (-one.score, one.segment, one.row))[:depth]

    def _candidates(self, segment: Segment, mask: Mask, vector: Floats, depth: int) -> NDArray[np.int64] | None:
        """Return the rows to score in a segment; None for all."""
        passages = len(segment.passages)
        allowed = passages if mask is None else int(mask.sum())
        if mask is not None and allowed < passages // 4:
            few = np.flatnonzero(mask)
            if self.exact or segment.graph is None or allowed < EXACT_BELOW:
                return few
        if self.exact or segment.graph is None:
            return None
        # Twice as many as needed on average, since the passages that qualify may lie far from the query.
        count = min(passages, depth if mask is None else 2 * depth * passages // max(1, allowed))
        rows = np.sort(segment.graph.search(vector, count).keys.astype(np.int64))
        return rows if mask is None else rows[mask[rows]]

    def _bm25(self, query: str) -> list[Floats]:
        scores = bm25_scores([segment.postings for segment in self.segments], query)
        for own, mask in zip(scores, self.masks, strict=True):
            if mask is not None:
                own[~mask] = 0
        return scores

    def _best(self, scores: Sequence[Floats], depth: int) -> list[_Found]:
        found = [
            _Found(number, int(row), float(own[row]))
            for number, own in enumerate(scores)
            for row in top_k(own, depth)
            if own[row] > 0
        ]
        return sorted(found, key=lambda one: (-one.score, one.segment, one.row))[:depth]

    def _rank(self, lists: Sequence[Sequence[_Found]]) -> list[_Found]:
        """Return the best passage of each document with the score of the document, best first."""
        fused: dict[tuple[int, int], float] = {}
        best: dict[tuple[int, int], tuple[int, _Found]] = {}
        for found in lists:
            seen: set[tuple[int, int]] = set()
            for one in found:
                document = one.segment, int(self.segments[one.segment].passages[one.row, 0])
                if document in seen:
                    continue
                seen.add(document)
                rank = len(seen)
                fused[document] = fused.get(document, 0.0) + (1 / (FUSION + rank) if len(lists) > 1 else one.score)
                if document not in best or rank < best[document][0]:
                    best[document] = rank, one
        order = sorted(fused, key=lambda document: (-fused[document], document))
        return [best[document][1]._replace(score=fused[document]) for document in order]

    def _hit(self, found: _Found, query: str, vector: Floats | None, by_word: Sequence[Floats] | None) -> Hit:
        segment = self.segments[found.segment]
        row, start, end = (int(value) for value in segment.passages[found.row])
        cells = segment.documents.slice(row, 1).to_pylist()[0]
        passage = cells["text"][start:end]
        fields = {name.removeprefix(FIELD): value for name, value in cells.items() if name.startswith(FIELD)}
        return Hit(
            cells["id"],
            found.score,
            passage,
            start,
            end,
            tuple(matches(passage, set(terms_of(query)))),
            {name: value for name, value in fields.items() if value is not None},
            None if vector is None else float(segment.vectors[found.row] @ vector),
            None if by_word is None else float(by_word[found.segment][found.row]),
        )

    def _reranked(self, query: str, hits: list[Hit]) -> list[Hit]:
        if self.rerank is None or not hits:
            return hits
        scores = self.rerank(query, [hit.passage for hit in hits])
        order = sorted(range(len(hits)), key=lambda place: (-scores[place], place))
        return [Hit(**{**vars(hits[place]), "score": float(scores[place])}) for place in order]


def check_search(top: int, mode: str) -> None:
    """Refuse a search with settings out of range."""
    if top < 1:
        raise ConfigError(f"top is {top}; expected at least 1")
    if mode not in MODES:
        raise ConfigError(f"mode is {mode!r}{did_you_mean(mode, MODES)}")
