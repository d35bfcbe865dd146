"""Deduplication: find documents that ``cloze prepare`` drops because they duplicate an earlier one, exactly or nearly.

Workers hash the documents of each shard and write the hashes to files. Then one process compares all hashes in corpus
order and keeps the first document of each group of duplicates, so the result depends only on the text.

``exact``: documents with the same words in the same order, ignoring case and whitespace; a 16-byte BLAKE2 hash each.

``near``: MinHash (Broder 1997) over shingles of five words, 480 bytes per document. The 120 values of a signature form
20 bands of 6. Documents that agree on at least one band are candidates, and their whole signatures are compared: the
fraction of equal values estimates the Jaccard similarity of their shingles (Leskovec, Rajaraman and Ullman, "Mining of
Massive Datasets", chapter 3). Two documents with similarity 0.8 share a band with probability 0.998. Groups are
transitive: two documents that are both similar to a third one are in the same group.
"""

import hashlib
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cloze.text.boundaries import IDEOGRAPHS

BANDS, ROWS = 20, 6
SIMILARITY = 0.8
SHINGLE = 5  # words
_HASHED_AT_ONCE = 4096
# Pairs of signatures compared at once; a signature has 480 bytes.
_COMPARED_AT_ONCE = 50_000
_MOST_WORDS = 400_000
_WORD = re.compile(f"[{''.join(f'{chr(first)}-{chr(last)}' for first, last in IDEOGRAPHS)}]|\\w+")

Hashes = NDArray[np.uint64]
Signatures = NDArray[np.uint32]


class ExactHasher:
    """Computes a hash of two 64-bit numbers per document: (D, 2)."""

    def __init__(self) -> None:
        self._hashes: list[bytes] = []

    def add(self, paragraphs: Iterable[str]) -> None:
        """Hash a document."""
        digest = hashlib.blake2b(digest_size=16)
        for text in paragraphs:
            for word in text.casefold().split():
                digest.update(word.encode("utf-8", "surrogatepass"))
                digest.update(b" ")
        self._hashes.append(digest.digest())

    def finish(self) -> Hashes:
        """Return the hashes of all documents."""
        return np.frombuffer(b"".join(self._hashes), "<u8").reshape(-1, 2)


class NearHasher:
    """Computes a MinHash signature of 120 32-bit numbers per document: (D, 120)."""

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        self._factors = generator.integers(0, 2**63, (BANDS * ROWS, 1), np.uint64) * np.uint64(2) + np.uint64(1)
        self._terms = generator.integers(0, 2**63, (BANDS * ROWS, 1), np.uint64)
        self._powers = generator.integers(0, 2**63, SHINGLE, np.uint64) * np.uint64(2) + np.uint64(1)
        self._words: dict[str, int] = {}
        self._hashes: list[Signatures] = []

    def add(self, paragraphs: Iterable[str]) -> None:
        """Hash a document, a few thousand shingles at a time."""
        smallest = np.full(BANDS * ROWS, np.iinfo(np.uint32).max, np.uint32)
        pending: list[int] = []
        hashed = False
        for text in paragraphs:
            pending.extend(map(self._number, _WORD.findall(text.casefold()) or [" ".join(text.split())]))
            while len(pending) >= _HASHED_AT_ONCE + SHINGLE:
                smallest = np.minimum(smallest, self._smallest(pending[: _HASHED_AT_ONCE + SHINGLE - 1]))
                del pending[:_HASHED_AT_ONCE]
                hashed = True
        if len(pending) >= SHINGLE or not hashed:
            # A document shorter than a shingle is padded to one.
            smallest = np.minimum(smallest, self._smallest(pending + [0] * (SHINGLE - len(pending))))
        self._hashes.append(smallest)

    def _number(self, word: str) -> int:
        number = self._words.get(word)
        if number is None:
            if len(self._words) >= _MOST_WORDS:
                self._words.clear()
            digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
            number = self._words[word] = int.from_bytes(digest, "little")
        return number

    def _smallest(self, words: Sequence[int]) -> Signatures:
        numbers = np.asarray(words, np.uint64)
        count = len(numbers) - SHINGLE + 1
        runs = np.zeros(count, np.uint64)
        for place, power in enumerate(self._powers):
            runs += (numbers[place : place + count] ^ (numbers[place : place + count] >> np.uint64(29))) * power
        runs = np.unique(runs)
        # The high half of a product depends on all bits of the factors, the low half only on their low bits.
        smallest: Signatures = ((runs * self._factors + self._terms) >> np.uint64(32)).min(axis=1).astype(np.uint32)
        return smallest

    def finish(self) -> Signatures:
        """Return the signatures of all documents."""
        return np.asarray(self._hashes, np.uint32).reshape(-1, BANDS * ROWS)


def keep_first(hash_files: Sequence[Path], kind: Literal["exact", "near"], scratch: Path) -> list[NDArray[np.bool_]]:
    """Return which documents to keep: the first of each group of duplicates.

    Args:
        hash_files: The hashes of each shard's documents, in corpus order.
        kind: The hasher that wrote them: ``ExactHasher`` or ``NearHasher``.
        scratch: A temporary file for all hashes; it is removed afterwards.

    Returns:
        For each shard, whether each of its documents is kept.
    """
    width = 16 if kind == "exact" else BANDS * ROWS * 4  # bytes per document
    counts = []
    with scratch.open("wb") as all_hashes:
        for path in hash_files:
            with path.open("rb") as hashes:
                shutil.copyfileobj(hashes, all_hashes)
                counts.append(hashes.tell() // width)
    if kind == "exact":
        keep = keep_exact(np.fromfile(scratch, "<u8").reshape(-1, 2))
    else:
        empty = np.zeros((0, BANDS * ROWS), np.uint32)
        keep = keep_near(np.memmap(scratch, "<u4", "r").reshape(-1, BANDS * ROWS) if sum(counts) else empty)
    scratch.unlink()
    return np.split(keep, np.cumsum(counts)[:-1])


def keep_exact(hashes: Hashes) -> NDArray[np.bool_]:
    """Return for each document whether it is the first with its hash."""
    order = np.lexsort((hashes[:, 1], hashes[:, 0]))  # stable: equal hashes stay in corpus order
    ordered = hashes[order]
    keep = np.ones(len(hashes), bool)
    keep[order[1:]] = (ordered[1:] != ordered[:-1]).any(axis=1)
    return keep


def keep_near(signatures: Signatures) -> NDArray[np.bool_]:
    """Return for each document whether it is the first of its near-duplicates; the array may be memory-mapped."""
    first = np.arange(len(signatures))  # the earliest document known to be similar to each document
    for band in range(BANDS):
        keys = _band_keys(signatures, band)
        order = np.argsort(keys, kind="stable")
        # Compare each document with the previous and with the first document that has the same key.
        is_new = np.ones(len(order), bool)
        is_new[1:] = keys[order[1:]] != keys[order[:-1]]
        heads = order[np.maximum.accumulate(np.where(is_new, np.arange(len(order)), 0))]
        later = order[~is_new]
        for earlier in (heads[~is_new], order[:-1][~is_new[1:]]):
            first = _join(first, signatures, earlier, later)
    keep: NDArray[np.bool_] = first == np.arange(len(first))
    return keep


def _band_keys(signatures: Signatures, band: int) -> Hashes:
    keys = np.zeros(len(signatures), np.uint64)
    for row in range(band * ROWS, (band + 1) * ROWS):
        keys = (keys ^ signatures[:, row]) * np.uint64(0x9E3779B97F4A7C15)
        keys ^= keys >> np.uint64(32)
    return keys


def _join(
    first: NDArray[np.int64], signatures: Signatures, earlier: NDArray[np.int64], later: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Merge the groups of those pairs (earlier, later) whose signatures are similar; return the updated ``first``."""
    new = first[earlier] != first[later]
    earlier, later = earlier[new], later[new]
    alike = np.zeros(len(earlier), bool)
    for start in range(0, len(earlier), _COMPARED_AT_ONCE):
        chosen = slice(start, start + _COMPARED_AT_ONCE)
        equal = signatures[earlier[chosen]] == signatures[later[chosen]]
        alike[chosen] = equal.mean(axis=1) >= SIMILARITY
    if not alike.any():
        return first
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    everyone = np.arange(len(first))
    left = np.concatenate([everyone, earlier[alike]])
    right = np.concatenate([first, later[alike]])
    graph = coo_array((np.ones(len(left), np.int8), (left, right)), shape=(len(first), len(first)))
    _, labels = connected_components(graph, directed=False)
    smallest = np.full(labels.max() + 1, len(first))
    np.minimum.at(smallest, labels, everyone)
    joined: NDArray[np.int64] = smallest[labels]
    return joined
