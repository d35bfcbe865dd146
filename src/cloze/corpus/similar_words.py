"""Which words are similar, for masking as correction: from a file, or learned from the corpus itself.

Learned: words that keep the same company (counts within a few words, positive pointwise mutual information, a singular
value decomposition; Levy and Goldberg 2014). That takes seconds, needs nothing from elsewhere and speaks the language
of the text. Whichever it is, a word and those similar to it have equally many pieces.

The words that entity and correction masking need, from files or from the corpus itself.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloze.corpus.mask_selection import SimilarWords, read_entity_table
from cloze.corpus.masking import WordTables, ordinary_ids
from cloze.corpus.sampling import Ids
from cloze.corpus.settings import Masking
from cloze.corpus.shards import Corpus
from cloze.errors import DataError
from cloze.lines import Lines, open_file
from cloze.text import Tokenizer
from cloze.text.characters import is_ideograph

SimilarTable = dict[tuple[int, ...], SimilarWords]

_SAMPLE = 2_000_000  # tokens
_BLOCK = 20_000  # tokens in a row, so that company is seen
_WORDS = 4_000  # the most frequent ones
_RAREST = 20  # a word seen less often has not shown its company
_LONGEST = 4  # pieces
_WINDOW = 4  # words on either side
_DIMENSIONS = 64
_NEIGHBOURS = 10
_LEAST_COSINE = 0.5


def read_similar_table(path: Path, tokenizer: Tokenizer) -> SimilarTable:
    """Read a word, a tab and similar words with spaces between a line; those of other sizes are left out."""
    rows: list[tuple[str, list[str]]] = []
    with open_file(path) as stream:
        lines = Lines(path, stream)
        for line in lines:
            word, _, similar = line.partition("\t")
            if not line.strip():
                continue
            if not word.strip() or not similar.strip():
                raise DataError(f"{lines.place}: {line[:50]!r}; expected a word, a tab, and words with spaces between")
            rows.append((word.strip(), similar.split()))
    words = [word for row in rows for word in (row[0], *row[1])]
    known = dict(zip(words, map(tuple, tokenizer.encode_ids(words)), strict=True))
    found: dict[tuple[int, ...], dict[tuple[int, ...], None]] = {}  # a dict for its order
    for word, similar_words in rows:
        for other in (known[name] for name in similar_words):
            if _is_similar(known[word], other, tokenizer.unknown_id):
                found.setdefault(known[word], {})[other] = None
    if not found:
        raise DataError(
            f"{path}: none of its {len(rows)} words has a similar one that the vocabulary gives as many pieces; "
            "give words of equal size"
        )
    return {word: tuple(others) for word, others in found.items()}


def _is_similar(word: tuple[int, ...], other: tuple[int, ...], unknown: int) -> bool:
    return len(word) == len(other) > 0 and word != other and unknown not in word + other


def learn_similar_table(corpus: Corpus, tokenizer: Tokenizer, seed: int) -> SimilarTable:
    """Find words that stand where others stand: the same corpus and seed give the same table."""
    tokens, starts = _sample(corpus, np.random.default_rng(seed))
    text, words = _frequent_words(tokens, starts, tokenizer)
    if len(words) < 3:
        raise DataError(
            f"the corpus has {len(words)} words that come {_RAREST} times; that is too few to learn which are similar: "
            "use more text, or name a file with --similar"
        )
    nearest = _nearest(_vectors(_company(text, len(words))), np.array([len(word) for word in words]))
    table = {word: tuple(words[other] for other in others) for word, others in zip(words, nearest, strict=True)}
    found = {word: others for word, others in table.items() if others}
    if not found:
        raise DataError(
            f"none of the {len(words)} frequent words of the corpus keeps the same company as another; "
            "use more text, or name a file of similar words with --similar"
        )
    return found


def _sample(corpus: Corpus, generator: np.random.Generator) -> tuple[Ids, NDArray[np.bool_]]:
    """Tokens and word starts of blocks all over the corpus, or of all of it where it is small."""
    blocks = np.arange(0, int(corpus.sentences[-1]), _BLOCK)
    if len(blocks) > _SAMPLE // _BLOCK:
        blocks = np.sort(generator.choice(blocks, _SAMPLE // _BLOCK, replace=False))
    ranges = [(start, min(start + _BLOCK, int(corpus.sentences[-1]))) for start in blocks.tolist()]
    tokens = [np.asarray(corpus.read(start, stop), np.int64) for start, stop in ranges]
    starts = [corpus.word_starts(start, stop) for start, stop in ranges]
    for flags in starts:
        flags[0] = True  # whatever the block has cut
    return np.concatenate(tokens or [np.zeros(0, np.int64)]), np.concatenate(starts or [np.zeros(0, bool)])


def _frequent_words(tokens: Ids, starts: NDArray[np.bool_], tokenizer: Tokenizer) -> tuple[Ids, list[tuple[int, ...]]]:
    """The text as numbers of its frequent words, -1 where it has another, and the words: (N,) and their pieces."""
    firsts = np.flatnonzero(starts)
    sizes = np.diff(np.append(firsts, len(tokens)))
    longest = min(_LONGEST, int(62 / np.log2(tokenizer.size)))  # a word's pieces are to fit into one number
    keys = np.zeros(len(firsts), np.int64)
    ordinary = np.zeros(tokenizer.size, bool)
    ordinary[ordinary_ids(tokenizer)] = True
    usable = sizes <= longest
    for place in range(longest):
        has = usable & (sizes > place)
        pieces = tokens[firsts[has] + place]
        keys[has] = keys[has] * tokenizer.size + pieces + 1
        usable[has] &= ordinary[pieces]
    kinds, first_seen, numbers, counts = np.unique(
        np.where(usable, keys, -1), return_index=True, return_inverse=True, return_counts=True
    )
    counts[kinds == -1] = 0
    kept = np.argsort(-counts, kind="stable")[:_WORDS]
    kept = kept[counts[kept] >= _RAREST]
    renumbered = np.full(len(kinds), -1)
    renumbered[kept] = np.arange(len(kept))
    places = [(int(firsts[index]), int(sizes[index])) for index in first_seen[kept]]
    return renumbered[numbers], [tuple(tokens[place : place + size].tolist()) for place, size in places]


def _company(text: Ids, count: int) -> Any:
    """How much more often than by chance two words stand near each other: a sparse (W, W)."""
    from scipy.sparse import coo_array

    counts = coo_array((count, count))
    for distance in range(1, _WINDOW + 1):
        left, right = text[:-distance], text[distance:]
        both = (left >= 0) & (right >= 0)
        ones = np.ones(int(both.sum()))
        counts = (counts + coo_array((ones, (left[both], right[both])), shape=(count, count))).tocsr()
    counts = (counts + counts.T).tocoo()
    totals = np.asarray(counts.sum(axis=0)).ravel()
    rows, columns = counts.coords
    # Contexts are smoothed by the power 0.75, as the same authors advise: rare ones would seem to say too much.
    smooth = totals**0.75
    information = np.log(counts.data * smooth.sum() / (totals[rows] * smooth[columns]))
    positive = information > 0
    return coo_array((information[positive], (rows[positive], columns[positive])), shape=(count, count)).tocsr()


def _vectors(company: Any) -> NDArray[np.float64]:
    """Words as unit vectors: (W, D)."""
    from scipy.sparse.linalg import svds

    count = company.shape[0]
    left, values, _ = svds(company, k=min(_DIMENSIONS, count - 1), v0=np.ones(count))
    vectors: NDArray[np.float64] = left * np.sqrt(np.maximum(values, 0))
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return vectors


def _nearest(vectors: NDArray[np.float64], sizes: Ids) -> Sequence[list[int]]:
    """The nearest words of each word, among those of as many pieces."""
    found = []
    for start in range(0, len(vectors), 512):
        cosines = vectors[start : start + 512] @ vectors.T
        cosines[sizes[start : start + 512, None] != sizes] = -1
        cosines[np.arange(len(cosines)), np.arange(start, start + len(cosines))] = -1  # itself
        best = np.argsort(-cosines, axis=1, kind="stable")[:, :_NEIGHBOURS]
        found += [row[cosines[line, row] > _LEAST_COSINE].tolist() for line, row in enumerate(best)]
    return found


def open_word_tables(
    data: Path, tokenizer: Tokenizer, masking: Masking, entities: Path | None, similar: Path | None, seed: int
) -> WordTables:
    """Those of one way of masking; similar words are learned if no file has them."""
    if masking == "entity" and entities is not None:
        return WordTables(entities=read_entity_table(entities, tokenizer))
    if masking == "correction":
        if similar is not None:
            table = read_similar_table(similar, tokenizer)
            return WordTables(similar=table, characters=_characters(table, tokenizer))
        return WordTables(similar=learn_similar_table(Corpus.open(data), tokenizer, seed))
    return WordTables()


def _characters(table: SimilarTable, tokenizer: Tokenizer) -> frozenset[int]:
    """Chinese characters of a list; learned tables are of words that mean alike, and tell of no mistakes."""
    singles = ((word[0], tokenizer.pieces[word[0]]) for word in table if len(word) == 1)
    return frozenset(number for number, piece in singles if len(piece) == 1 and is_ideograph(piece))
