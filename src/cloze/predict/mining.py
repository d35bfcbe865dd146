"""Mine hard negatives: passages that are near to a query but do not answer it.

The candidates of a query are its nearest passages, by the vectors of a model; a reranker may score them again. Data
sets name only some of the answers, so the best candidates are often answers too: false negatives, which spoil the
training. A candidate is left out if it is labelled as a positive of the query, or if its score is not clearly below
that of the positive: by a margin, or by a fraction of the positive's score (Moreira et al. 2024, "NV-Retriever", where
5 % is best). Of several positives, the one with the lowest score counts.

Dimensions: Q queries, N documents, D vector size.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloze.checkpoint.pooling_files import QUERY
from cloze.errors import DataError
from cloze.predict.model import Model
from cloze.predict.retrieval import embed_unit
from cloze.tasks.retrieval.kind import MiningSettings, TrainingPairs
from cloze.tasks.retrieval.ranking import search_vectors


@dataclass(frozen=True)
class Candidate:
    """A passage that was left out because its score is too near to that of the positive."""

    query: str
    positive: str
    text: str
    positive_score: float
    score: float


@dataclass(frozen=True)
class MinedQuery:
    """The rows of one query with their negatives, best first, and the candidates that were left out."""

    rows: list[dict[str, Any]]
    candidates: int = 0  # candidates that are not positives
    left_out: int = 0  # candidates within the margin
    example: Candidate | None = None  # the best of them

    @property
    def lead(self) -> float:
        """By how much the positive is ahead of the best passage that was left out; infinite if there is none."""
        return float("inf") if self.example is None else self.example.positive_score - self.example.score


@dataclass(frozen=True)
class MiningReport:
    """Counts over all queries, and examples of passages that were left out as probable false negatives."""

    rows: int = 0
    without: int = 0  # rows without any negative
    candidates: int = 0
    left_out: int = 0
    examples: tuple[Candidate, ...] = ()


@dataclass(frozen=True)
class Miner:
    """Mines the negatives of queries.

    Attributes:
        model: The model of the vectors.
        pairs: The queries with their positives.
        documents: Distinct passages; all positives are among them.
        vectors: Their vectors, of length 1, (N, D).
        settings: The settings.
        reranker: Scores the candidates instead of the vectors, if given.
    """

    model: Model
    pairs: TrainingPairs
    documents: Sequence[str]
    vectors: NDArray[np.float32]
    settings: MiningSettings = field(default_factory=MiningSettings)
    reranker: Model | None = None

    @cached_property
    def positives(self) -> dict[str, list[int]]:
        """The indices of each query's positives among the passages, in the order of the rows."""
        numbers = {text: number for number, text in enumerate(self.documents)}
        found: dict[str, dict[int, None]] = {}
        for query, positive in zip(self.pairs.queries, self.pairs.positives, strict=True):
            found.setdefault(query, {})[numbers[positive]] = None
        return {query: list(own) for query, own in found.items()}

    def mine(self, queries: Sequence[str]) -> list[MinedQuery]:
        """Return the rows of some queries with their negatives."""
        positives = [self.positives[query] for query in queries]
        most = max(map(len, positives))
        vectors = embed_unit(self.model, queries, QUERY, "queries")
        found = search_vectors(vectors, self.vectors, self.settings.depth + most)
        mined = []
        for query, vector, own, hits in zip(queries, vectors, positives, found, strict=True):
            others = [index for index in hits.indices.tolist() if index not in own][: self.settings.depth]
            scores = self._scores(query, vector, [*own, *others])
            mined.append(self._select(query, own, scores[: len(own)], others, scores[len(own) :]))
        return mined

    def _scores(self, query: str, vector: NDArray[np.float32], numbers: list[int]) -> NDArray[np.float64]:
        if self.reranker is None:
            return np.asarray(self.vectors[numbers] @ vector, np.float64)
        return np.asarray(
            self.reranker.rerank_scores([query] * len(numbers), [self.documents[one] for one in numbers]), np.float64
        )

    def _select(
        self,
        query: str,
        own: list[int],
        own_scores: NDArray[np.float64],
        others: list[int],
        scores: NDArray[np.float64],
    ) -> MinedQuery:
        """Return the rows of a query: its negatives are the same for all of its positives."""
        settings = self.settings
        lowest = float(own_scores.min())
        limit = min(lowest - settings.margin, lowest - abs(lowest) * settings.relative_margin)
        order = np.argsort(-scores, kind="stable")
        kept = [int(place) for place in order if scores[place] <= limit][settings.skip :]
        near = [int(place) for place in order if scores[place] > limit]
        if settings.sampling == "random" and len(kept) > settings.negatives:
            draw = random.Random(f"{settings.seed} {query}")  # does not depend on the other queries
            kept = sorted(draw.sample(kept, settings.negatives), key=kept.index)
        kept = kept[: settings.negatives]
        negatives = [self.documents[others[place]] for place in kept]
        found = [round(float(scores[place]), 6) for place in kept]
        # Only the scores of a reranker are useful to distil from; the names of the others are not read by training.
        names = ("positive_score", "negative_scores") if self.reranker else ("positive_cosine", "negative_cosines")
        rows = [
            {
                "query": query,
                "positive": self.documents[number],
                "negatives": negatives,
                names[0]: round(float(score), 6),
                names[1]: found,
            }
            for number, score in zip(own, own_scores, strict=True)
        ]
        example = None
        if near:
            positive = self.documents[own[int(own_scores.argmin())]]
            example = Candidate(query, positive, self.documents[others[near[0]]], lowest, float(scores[near[0]]))
        return MinedQuery(rows, len(others), len(near), example)


def mining_documents(pairs: TrainingPairs, more: Sequence[str] = ()) -> list[str]:
    """Return the distinct passages to search: those of the pairs, and more.

    Raises:
        DataError: If there are fewer than two, so that there is nothing to choose from.
    """
    texts = (text for texts in ([*pairs.positives], *pairs.negatives, more) for text in texts)
    documents = list(dict.fromkeys(texts))
    if len(documents) < 2:
        raise DataError(f"there are {len(documents)} different passages; expected at least 2 to choose negatives from")
    return documents


def summarise(mined: Sequence[MinedQuery], examples: int = 3) -> MiningReport:
    """Return the counts over some queries, with the candidates that were left out by the largest lead."""
    rows = [row for one in mined for row in one.rows]
    found = [one.example for one in sorted(mined, key=lambda one: one.lead) if one.example is not None]
    return MiningReport(
        len(rows),
        sum(not row["negatives"] for row in rows),
        sum(one.candidates for one in mined),
        sum(one.left_out for one in mined),
        tuple(found[:examples]),
    )


def mine_negatives(
    model: Model,
    pairs: TrainingPairs,
    documents: Sequence[str] = (),
    settings: MiningSettings | None = None,
    reranker: Model | None = None,
) -> TrainingPairs:
    """Return training pairs with hard negatives that a model finds.

    Args:
        model: The model whose vectors rank the passages.
        pairs: The queries with their positives; their own negatives are only candidates.
        documents: More passages to search.
        settings: Number of negatives, margins and sampling.
        reranker: A cross-encoder that scores the candidates, and whose scores are returned.

    Returns:
        One row per query and positive.

    Raises:
        DataError: If there are fewer than two different passages.

    Example:
        >>> pairs = cloze.TrainingPairs(["a ship?", "a cat?"], ["A boat at sea.", "The cat sat."], [(), ()])
        >>> mined = cloze.mine_negatives(cloze.load(), pairs, ["A dog ran."])
    """
    passages = mining_documents(pairs, documents)
    vectors = embed_unit(model, passages, "document", "documents")
    miner = Miner(model, pairs, passages, vectors, settings or MiningSettings(), reranker)
    rows = [row for one in miner.mine(list(miner.positives)) for row in one.rows]
    scores = [(row["positive_score"], *row["negative_scores"]) for row in rows] if reranker is not None else None
    return TrainingPairs(
        [row["query"] for row in rows],
        [row["positive"] for row in rows],
        [tuple(row["negatives"]) for row in rows],
        scores,
        [row["query"] for row in rows],
    )
