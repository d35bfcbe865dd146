"""Rank documents for queries: BM25 over their words, and exact search over their vectors.

BM25 is the baseline of every retrieval: the library ``bm25s`` (Lu 2024), in Lucene's variant with k1 = 1.5, b = 0.75.
Words are split as its tokenizer does for English: lower-case, at least two characters, without its English stop words.
Chinese, Japanese and Korean, of which the first two have no spaces, become pairs of neighbouring characters, as in
Lucene's CJKAnalyzer.

Dimensions: Q queries, N documents, D vector size, k results.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cloze.errors import DataError

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af\U00020000-\U0003134f"
_CHARACTERS = re.compile(f"[{_CJK}]{{2,}}")
_TOKEN = re.compile(rf"[{_CJK}]+|[^\W{_CJK}]{{2,}}")
_SCORES_AT_ONCE = 1 << 24  # similarities in memory at the same time, 64 MB


class Hits(NamedTuple):
    """The results of one query, best first: equal scores in the order of the documents."""

    indices: NDArray[np.int64]  # (k,)
    scores: NDArray[np.float32]  # (k,)


def top_k(scores: NDArray[Any], k: int) -> NDArray[np.int64]:
    """Return the indices of the k largest scores, best first; the first documents among equal ones: (N,) -> (k,)."""
    if k < len(scores):
        lowest = np.partition(scores, -k)[-k]
        above = np.flatnonzero(scores > lowest)
        chosen = np.concatenate([above, np.flatnonzero(scores == lowest)[: k - len(above)]])
    else:
        chosen = np.arange(len(scores))
    return chosen[np.lexsort((chosen, -scores[chosen]))]


def unit_vectors(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale vectors to length 1, so that inner products are cosines: (N, D) -> (N, D)."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), np.float32)


def search_vectors(queries: NDArray[np.float32], documents: NDArray[np.float32], k: int) -> list[Hits]:
    """Return the k documents with the largest inner products for each query, exactly.

    Args:
        queries: Vectors of the queries, (Q, D); of length 1 for cosines.
        documents: Vectors of the documents, (N, D).
        k: Number of results per query, at most N are returned.
    """
    at_once = max(1, _SCORES_AT_ONCE // max(1, len(documents)))
    hits = []
    for start in range(0, len(queries), at_once):
        for row in queries[start : start + at_once] @ documents.T:
            found = top_k(row, k)
            hits.append(Hits(found, row[found]))
    return hits


def split_words(text: str) -> Iterator[str]:
    """Yield the words of a text that BM25 counts, stop words included."""
    for match in _TOKEN.finditer(text.lower()):
        token = match.group()
        if _CHARACTERS.fullmatch(token):
            yield from map("".join, pairwise(token))
        else:
            yield token


class Bm25:
    """BM25 over a list of texts.

    Example:
        >>> index = Bm25.build(["A ship at sea.", "A cat on a mat."])
        >>> index.search(["the sea"], k=1)[0].indices
        array([0])
    """

    def __init__(self, index: Any) -> None:
        self._index = index

    @classmethod
    def build(cls, texts: Iterable[str]) -> "Bm25":
        """Count the words of the texts."""
        import bm25s

        ids: dict[str, int] = {}
        stop_words = frozenset(bm25s.stopwords.STOPWORDS_EN)
        # Ids of the same word are one object, so that a million texts fit into memory.
        rows = [
            [ids.setdefault(word, len(ids)) for word in split_words(text) if word not in stop_words] for text in texts
        ]
        if not ids:
            raise DataError("BM25 found no words in any document; expected texts with words of two letters or more")
        index = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
        index.index((rows, ids), show_progress=False, create_empty_token=False)
        return cls(index)

    def __len__(self) -> int:
        return int(self._index.scores["num_docs"])

    def scores(self, query: str) -> NDArray[np.float32]:
        """Return the score of every document, (N,); 0 for documents that share no word with the query."""
        known = [word for word in split_words(query) if word in self._index.vocab_dict]
        if not known:
            return np.zeros(len(self), np.float32)
        scores: NDArray[np.float32] = self._index.get_scores(known)
        return scores

    def search(self, queries: Sequence[str], k: int) -> list[Hits]:
        """Return up to k documents for each query: those that share a word with it."""
        hits = []
        for query in queries:
            scores = self.scores(query)
            found = top_k(scores, k)
            found = found[scores[found] > 0]
            hits.append(Hits(found, scores[found]))
        return hits

    def save(self, folder: Path) -> None:
        """Write the index into a folder, not atomically: for a temporary folder."""
        self._index.save(folder, show_progress=False)

    @classmethod
    def load(cls, folder: Path, *, memory_map: bool = True) -> "Bm25":
        """Load an index; its arrays are memory-mapped, so that they occupy no memory until they are used."""
        import bm25s

        return cls(bm25s.BM25.load(folder, mmap=memory_map, show_progress=False))
