"""Rank documents for queries: BM25 over their words, and exact search over their vectors.

BM25 is the baseline of every retrieval: the library ``bm25s`` (Lu 2024), in Lucene's variant with k1 = 1.5, b = 0.75.
Words are split as its tokenizer does for English: lower-case, at least two characters, without its English stop words.
Chinese, Japanese and Korean, of which the first two have no spaces, become pairs of neighbouring characters, as in
Lucene's CJKAnalyzer.

Dimensions: Q queries, N documents, D vector size, k results.

``Postings`` is an inverted index on disk with the same scores. The library stores finished scores and has to be built
again for every added document; here, frequencies are stored, and added up over all parts of an index at query time. All
files are memory-mapped: a query reads only the postings of its own terms.

    terms.bin, terms.npy        all terms in order of their bytes, and where each starts
    starts.npy                  where the postings of each term start
    postings.npy, counts.npy    passages that contain the term, and how often (at most 255)
    lengths.npy                 number of terms of each passage
"""

import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cloze.errors import DataError

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af\U00020000-\U0003134f"
_FIRST_CJK = "\u3040"
_CHARACTERS = re.compile(f"[{_CJK}]{{2,}}")
_TOKEN = re.compile(rf"[{_CJK}]+|[^\W{_CJK}]{{2,}}")
K1, B = 1.5, 0.75
POSTING_FILES = ("terms.bin", "terms.npy", "starts.npy", "postings.npy", "counts.npy", "lengths.npy")
_LONGEST_TERM = 64
_MOST_COUNTED = 255
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
    for token in _TOKEN.findall(text.lower()):
        if token[0] < _FIRST_CJK or not _CHARACTERS.fullmatch(token):
            yield token
        else:
            yield from map("".join, pairwise(token))


def word_places(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield the words that ``split_words`` finds, with their start and end in the text."""
    for match in _TOKEN.finditer(text):
        token, start = match.group(), match.start()
        if _CHARACTERS.fullmatch(token):
            yield from ((token[place : place + 2], start + place, start + place + 2) for place in range(len(token) - 1))
        else:
            yield token.lower(), start, match.end()


@cache
def stop_words() -> frozenset[str]:
    """Return the English words that BM25 does not count, because they occur in almost every text."""
    import bm25s

    return frozenset(bm25s.stopwords.STOPWORDS_EN)


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
        left_out = stop_words()
        # Ids of the same word are one object, so that a million texts fit into memory.
        rows = [
            [ids.setdefault(word, len(ids)) for word in split_words(text) if word not in left_out] for text in texts
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


# -- postings on disk -------------------------------------------------------------------------------------------------


def terms_of(text: str) -> list[str]:
    """Return the terms of a text in order: its words without English stop words."""
    left_out = stop_words()
    return [word[:_LONGEST_TERM] for word in split_words(text) if word not in left_out]


def matches(text: str, terms: set[str]) -> list[tuple[int, int]]:
    """Return the places of a text that match one of the terms, joined where they touch or overlap."""
    places: list[tuple[int, int]] = []
    for word, start, end in word_places(text):
        if word[:_LONGEST_TERM] not in terms:
            continue
        if places and start <= places[-1][1]:
            places[-1] = (places[-1][0], max(end, places[-1][1]))
        else:
            places.append((start, end))
    return places


class PostingsWriter:
    """Collects the terms of passages and writes the files of an inverted index."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._terms, self._passages, self._counts = array("i"), array("i"), array("B")
        self._lengths = array("i")

    def add(self, texts: Iterable[str]) -> None:
        """Add passages after those added before."""
        ids = self._ids
        for text in texts:
            terms = terms_of(text)
            counted = Counter(terms)
            self._terms.extend([ids.setdefault(term, len(ids)) for term in counted])
            self._passages.extend([len(self._lengths)] * len(counted))
            self._counts.extend([min(count, _MOST_COUNTED) for count in counted.values()])
            self._lengths.append(len(terms))

    def write(self, folder: Path) -> None:
        """Write the files into a folder."""
        terms = sorted((term.encode("utf-8", "replace"), number) for term, number in self._ids.items())
        rank = np.empty(len(terms), np.int32)
        rank[[number for _, number in terms]] = np.arange(len(terms), dtype=np.int32)
        ranked = rank[np.frombuffer(self._terms, np.int32)] if self._terms else np.zeros(0, np.int32)
        order = np.argsort(ranked, kind="stable")  # keeps the passages of a term in ascending order
        (folder / "terms.bin").write_bytes(b"".join(term for term, _ in terms))
        np.save(folder / "terms.npy", np.cumsum([0, *(len(term) for term, _ in terms)], dtype=np.int64))
        np.save(folder / "starts.npy", np.cumsum([0, *np.bincount(ranked, minlength=len(terms))], dtype=np.int64))
        np.save(folder / "postings.npy", np.frombuffer(self._passages, np.int32)[order])
        np.save(folder / "counts.npy", np.frombuffer(self._counts, np.uint8)[order])
        np.save(folder / "lengths.npy", np.frombuffer(self._lengths, np.int32))


class _TermTable(Sequence[bytes]):
    """The sorted terms, read from the file one by one."""

    def __init__(self, places: NDArray[np.int64], content: NDArray[np.uint8]) -> None:
        self._places, self._content = places, content

    def __len__(self) -> int:
        return len(self._places) - 1

    def __getitem__(self, number: int) -> bytes:  # type: ignore[override]
        return self._content[self._places[number] : self._places[number + 1]].tobytes()


class Postings:
    """The memory-mapped inverted index of one segment."""

    def __init__(self, folder: Path) -> None:
        places, self._starts, self._postings, self._counts, self.lengths = (
            np.asarray(np.load(folder / name, mmap_mode="r")) for name in POSTING_FILES[1:]
        )
        content: NDArray[np.uint8] = np.zeros(0, np.uint8)
        if (folder / "terms.bin").stat().st_size:  # an empty file cannot be mapped
            content = np.asarray(np.memmap(folder / "terms.bin", np.uint8, "r"))
        self._terms = _TermTable(places, content)
        self.total = int(self.lengths.sum(dtype=np.int64))

    def find(self, term: str) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        """Return the passages that contain a term, in order, and how often each contains it."""
        wanted = term.encode("utf-8", "replace")
        number = bisect_left(self._terms, wanted)
        if number == len(self._terms) or self._terms[number] != wanted:
            return self._postings[:0], self._counts[:0]
        start, stop = self._starts[number], self._starts[number + 1]
        return self._postings[start:stop], self._counts[start:stop]


def bm25_scores(segments: Sequence[Postings], query: str) -> list[NDArray[np.float32]]:
    """Return the BM25 score of every passage of each segment for a query; 0 where no term occurs."""
    passages = sum(len(segment.lengths) for segment in segments)
    mean_length = max(1.0, sum(segment.total for segment in segments) / max(1, passages))
    scores = [np.zeros(len(segment.lengths), np.float32) for segment in segments]
    for term, times in Counter(terms_of(query)).items():
        found = [segment.find(term) for segment in segments]
        frequency = sum(len(places) for places, _ in found)
        weight = times * np.log1p((passages - frequency + 0.5) / (frequency + 0.5))
        for segment, own, (places, counts) in zip(segments, scores, found, strict=True):
            if len(places):
                norm = K1 * (1 - B + B * segment.lengths[places].astype(np.float32) / mean_length)
                counted = counts.astype(np.float32)
                own[places] += np.float32(weight) * counted / (counted + norm)
    return scores
