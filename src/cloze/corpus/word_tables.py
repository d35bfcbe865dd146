"""Word tables for two masking strategies: entities and similar words.

Entity masking (Sun et al. 2019, section 3.3) selects entities from a dictionary as a whole, before other words.

Correction masking (Cui et al. 2020, section 3.1) inserts a similar word instead of ``[MASK]``, which never occurs in
tasks. Similar words come from a file or are learned from the corpus: words that occur in the same contexts
(co-occurrence counts, positive pointwise mutual information and a singular value decomposition; Levy and Goldberg
2014). This takes seconds and works in any language. A word and its similar words have the same number of pieces, so
that sequences keep their length.

Dimensions: B sequences, T tokens, M selected tokens of the batch, W frequent words, D vector components.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloze.corpus.sampling import Flags, Ids, Sequences
from cloze.corpus.settings import Masking
from cloze.corpus.shards import Corpus
from cloze.errors import DataError
from cloze.files import Lines, open_file
from cloze.text import Tokenizer
from cloze.text.boundaries import is_ideograph
from cloze.text.encoding import Mark
from cloze.text.oov.extension import read_entities, read_word_list
from cloze.text.oov.resolver import Phrase, PhraseMatcher

Draws = NDArray[np.float64]
Entities = tuple[tuple[int, ...], ...]
SimilarWords = tuple[tuple[int, ...], ...]
SimilarTable = Mapping[tuple[int, ...], SimilarWords]
Characters = frozenset[int]

_ENTITY = Mark("entity")
_SIMILAR, _RANDOM = 0, 1  # fates, as in masking.py

# Settings for learning similar words.
_SAMPLE = 2_000_000  # tokens
_BLOCK = 20_000  # consecutive tokens per sampled block, so that words keep their contexts
_WORDS = 4_000  # maximum number of words, the most frequent ones
_RAREST = 20  # minimum frequency; rarer words have too few contexts
_LONGEST = 4  # maximum pieces per word
_WINDOW = 4  # words on either side
_DIMENSIONS = 64
_NEIGHBOURS = 10
_LEAST_COSINE = 0.5


@dataclass(frozen=True)
class WordTables:
    """Word lists for masking: ``entities`` for entity masking, the others for correction masking."""

    entities: Entities = ()
    similar: SimilarTable = field(default_factory=dict)
    characters: frozenset[int] = frozenset()  # ids of single characters that may also be replaced inside words


def open_word_tables(
    data: Path, tokenizer: Tokenizer, masking: Masking, entities: Path | None, similar: Path | None, seed: int
) -> WordTables:
    """Return the tables that a masking strategy needs; similar words are learned if no file is given."""
    if masking == "entity" and entities is not None:
        return WordTables(entities=read_entity_table(entities, tokenizer))
    if masking == "correction":
        if similar is not None:
            table = read_similar_table(similar, tokenizer)
            return WordTables(similar=table, characters=_characters(table, tokenizer))
        return WordTables(similar=learn_similar_table(Corpus.open(data), tokenizer, seed))
    return WordTables()


def _characters(table: SimilarTable, tokenizer: Tokenizer) -> frozenset[int]:
    """Return the ids of Chinese characters in a table from a file.

    Learned tables are not used, because they hold related words, not likely mistakes.
    """
    singles = ((word[0], tokenizer.pieces[word[0]]) for word in table if len(word) == 1)
    return frozenset(number for number, piece in singles if len(piece) == 1 and is_ideograph(piece))


class EntityFinder:
    """Finds entities in sequences at word starts, from left to right, longest match first."""

    def __init__(self, entities: Entities) -> None:
        self._phrases = PhraseMatcher(Phrase(ids, ids, _ENTITY) for ids in entities)

    def join(self, sequences: Sequences, budget: Ids) -> tuple[Flags, Flags]:
        """Join the words of each entity into one; return the first tokens of words and of entities: (B, T), (B, T).

        An entity larger than the budget of its sequence could never be selected, so its words stay separate.
        """
        starts, entities = sequences.starts.copy(), np.zeros_like(sequences.starts)
        rows: list[list[int]] = sequences.ids.tolist()
        for row, places in enumerate(self._phrases.candidate_starts(rows)):
            flags = sequences.starts[row]
            for match in self._phrases.find(rows[row], places, flags.__getitem__, _no_words) if places else ():
                if match.stop - match.start <= budget[row]:
                    starts[row, match.start + 1 : match.stop] = False
                    entities[row, match.start] = True
        return starts, entities


def _no_words(_start: int, _stop: int) -> None:
    return None


def read_entity_table(path: Path, tokenizer: Tokenizer) -> Entities:
    """Read entities as tuples of ids.

    The file has one entity per line, in its first column, or is JSONL with the key ``surface``. Entities that contain
    unknown tokens are dropped.
    """
    if ".jsonl" in path.suffixes:
        surfaces: Sequence[str] = [row.entity.surface for row in read_entities(path)]
    else:
        surfaces = [row.word for row in read_word_list(path)]
    known = {tuple(ids) for ids in tokenizer.encode_ids(surfaces) if ids and tokenizer.unknown_id not in ids}
    if not known:
        raise DataError(f"{path}: the vocabulary can encode none of its {len(surfaces)} entities; use other entities")
    return tuple(sorted(known))


def replace_with_similar(
    targets: Ids,
    heads: Ids,
    fates: NDArray[np.uint8],
    draws: Draws,
    similar: SimilarTable,
    characters: Characters,
    random_pieces: Ids,
) -> tuple[Ids, Flags]:
    """Return the model's input at the selected positions, and which tokens have no similar word: (M,), (M,).

    A word is replaced by a similar word with the same number of pieces. If the table lacks a Chinese word but has some
    of its characters, one of them is replaced, like a typing error. Otherwise, the word is replaced with random pieces.

    Args:
        targets: Original ids, (M,).
        heads: Position of the first token of each token's word, (M,). Tokens of a word are adjacent.
        fates: 0 similar, 1 random, 2 kept, (M,).
        draws: Random numbers in [0, 1), (M,).
        similar: Similar words of each word.
        characters: Ids of characters that may be replaced inside words.
        random_pieces: A random replacement for each token, (M,).
    """
    seen = np.where(fates == _RANDOM, random_pieces, targets)
    missing = np.zeros(len(targets), bool)
    firsts = np.flatnonzero(np.diff(heads, prepend=-1) != 0)
    lasts = np.append(firsts[1:], len(targets))
    wanted = fates[firsts] == _SIMILAR
    pieces = targets.tolist()
    for first, last in zip(firsts[wanted].tolist(), lasts[wanted].tolist(), strict=True):
        known = similar.get(tuple(pieces[first:last]))
        if known is not None:
            seen[first:last] = known[int(draws[first] * len(known))]
            continue
        replaced = _replace_character(pieces[first:last], draws[first:last], similar, characters)
        missing[first:last] = replaced is None
        seen[first:last] = random_pieces[first:last] if replaced is None else replaced
    return seen, missing


def _replace_character(
    word: list[int], draws: Draws, similar: SimilarTable, characters: Characters
) -> Sequence[int] | None:
    """Return the word with one character replaced with a similar one, or None if no character has a similar one."""
    places = [place for place, piece in enumerate(word) if piece in characters]
    if not places:
        return None
    place = places[int(draws[0] * len(places))]
    others = similar[(word[place],)]
    (other,) = others[int(draws[-1] * len(others))]
    return [*word[:place], other, *word[place + 1 :]]


def read_similar_table(path: Path, tokenizer: Tokenizer) -> SimilarTable:
    """Read similar words: a word, a tab, and its similar words separated by spaces on each line.

    Similar words with a different number of pieces are dropped.
    """
    rows: list[tuple[str, list[str]]] = []
    with open_file(path) as stream:
        lines = Lines(path, stream)
        for line in lines:
            word, _, similar = line.partition("\t")
            if not line.strip():
                continue
            if not word.strip() or not similar.strip():
                raise DataError(f"{lines.place}: {line[:50]!r}; expected a word, a tab, and words separated by spaces")
            rows.append((word.strip(), similar.split()))
    words = [word for row in rows for word in (row[0], *row[1])]
    known = dict(zip(words, map(tuple, tokenizer.encode_ids(words)), strict=True))
    table: dict[tuple[int, ...], dict[tuple[int, ...], None]] = {}  # dicts as ordered sets
    for word, similar_words in rows:
        for other in (known[name] for name in similar_words):
            if _is_similar(known[word], other, tokenizer.unknown_id):
                table.setdefault(known[word], {})[other] = None
    if not table:
        raise DataError(
            f"{path}: none of its {len(rows)} words has a similar word with the same number of pieces in this "
            "vocabulary; list similar words of equal length"
        )
    return {word: tuple(others) for word, others in table.items()}


def _is_similar(word: tuple[int, ...], other: tuple[int, ...], unknown: int) -> bool:
    return len(word) == len(other) > 0 and word != other and unknown not in word + other


def learn_similar_table(corpus: Corpus, tokenizer: Tokenizer, seed: int) -> SimilarTable:
    """Learn which words occur in the same contexts; the same corpus and seed give the same table."""
    tokens, starts = _sample(corpus, np.random.default_rng(seed))
    text, words = _frequent_words(tokens, starts, tokenizer)
    if len(words) < 3:
        raise DataError(
            f"the corpus has {len(words)} words that occur {_RAREST} times, too few to learn similar words; use more "
            f"text, or give a file with --similar"
        )
    nearest = _nearest(_vectors(_cooccurrence(text, len(words))), np.array([len(word) for word in words]))
    table = {word: tuple(words[other] for other in others) for word, others in zip(words, nearest, strict=True)}
    table = {word: others for word, others in table.items() if others}
    if not table:
        raise DataError(
            f"none of the {len(words)} frequent words of the corpus occurs in the same contexts as another; use more "
            f"text, or give a file of similar words with --similar"
        )
    return table


def _sample(corpus: Corpus, generator: np.random.Generator) -> tuple[Ids, NDArray[np.bool_]]:
    """Return the tokens and word starts of random blocks of the corpus, or of the whole corpus if it is small."""
    blocks = np.arange(0, int(corpus.sentences[-1]), _BLOCK)
    if len(blocks) > _SAMPLE // _BLOCK:
        blocks = np.sort(generator.choice(blocks, _SAMPLE // _BLOCK, replace=False))
    ranges = [(start, min(start + _BLOCK, int(corpus.sentences[-1]))) for start in blocks.tolist()]
    tokens = [np.asarray(corpus.read(start, stop), np.int64) for start, stop in ranges]
    starts = [corpus.word_starts(start, stop) for start, stop in ranges]
    for flags in starts:
        flags[0] = True  # even if the block starts inside a word
    return np.concatenate(tokens or [np.zeros(0, np.int64)]), np.concatenate(starts or [np.zeros(0, bool)])


def _frequent_words(tokens: Ids, starts: NDArray[np.bool_], tokenizer: Tokenizer) -> tuple[Ids, list[tuple[int, ...]]]:
    """Return the text as indices of frequent words (-1 for other words), (N,), and the pieces of these words."""
    firsts = np.flatnonzero(starts)
    sizes = np.diff(np.append(firsts, len(tokens)))
    longest = min(_LONGEST, int(62 / np.log2(tokenizer.size)))  # the pieces of a word must fit into one 64-bit key
    keys = np.zeros(len(firsts), np.int64)
    ordinary = np.zeros(tokenizer.size, bool)
    ordinary[tokenizer.ordinary_ids] = True
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


def _cooccurrence(text: Ids, count: int) -> Any:
    """Return the positive pointwise mutual information of words within a window, a sparse (W, W) matrix."""
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
    # Context counts are raised to the power 0.75, as the same authors advise, to reduce the weight of rare contexts.
    smooth = totals**0.75
    information = np.log(counts.data * smooth.sum() / (totals[rows] * smooth[columns]))
    positive = information > 0
    return coo_array((information[positive], (rows[positive], columns[positive])), shape=(count, count)).tocsr()


def _vectors(information: Any) -> NDArray[np.float64]:
    """Return a unit vector for each word: (W, D)."""
    from scipy.sparse.linalg import svds

    count = information.shape[0]
    left, values, _ = svds(information, k=min(_DIMENSIONS, count - 1), v0=np.ones(count))
    vectors: NDArray[np.float64] = left * np.sqrt(np.maximum(values, 0))
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return vectors


def _nearest(vectors: NDArray[np.float64], sizes: Ids) -> Sequence[list[int]]:
    """Return the nearest words of each word among those with the same number of pieces."""
    nearest: list[list[int]] = []
    for start in range(0, len(vectors), 512):
        cosines = vectors[start : start + 512] @ vectors.T
        cosines[sizes[start : start + 512, None] != sizes] = -1
        cosines[np.arange(len(cosines)), np.arange(start, start + len(cosines))] = -1  # a word is not its own neighbour
        best = np.argsort(-cosines, axis=1, kind="stable")[:, :_NEIGHBOURS]
        nearest += [row[cosines[line, row] > _LEAST_COSINE].tolist() for line, row in enumerate(best)]
    return nearest
