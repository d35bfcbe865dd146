"""What the model sees of chosen tokens, compared with the text and with what is said to have become of them.

A part of ``cloze audit``. Whether a token was changed is seen in the text alone. A random word may by chance be the one
that stood there; how often that should happen follows from how many words there are to draw from.

Dimensions: M chosen tokens of the batch, V vocabulary.
"""

from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

from cloze.corpus.batches import PretrainingBatch, PretrainingBatches
from cloze.corpus.masking import HIDDEN, KEPT, NO_SIMILAR, REPLACED
from cloze.corpus.sampling import Ids, Sequences
from cloze.corpus.word_tables import WordTables
from cloze.text.vocabulary import CONTINUATION

Chances = NDArray[np.float64]


@dataclass
class SeenCounts:
    """What is added up, batch by batch."""

    wrong_targets: int = 0
    wrong_words: int = 0
    unlike_fate: int = 0
    wrong_similar: int = 0
    unchanged: int = 0  # random words that are what stood there
    by_chance: float = 0.0  # how many of them there should be


def chances_of_no_change(batches: PretrainingBatches) -> Chances:
    """How likely a random word is the very piece that it replaces, by piece: (V,)."""
    ordinary, pieces = batches.masker.ordinary, batches.tokenizer.pieces
    kinds = [ordinary]
    if batches.masks.masking == "correction":  # which has a piece that goes on with a word where one went on
        continues = np.asarray([pieces[number].startswith(CONTINUATION) for number in ordinary.tolist()])
        kinds = [ordinary[~continues], ordinary[continues]]
    chances = np.zeros(batches.tokenizer.size)
    for kind in kinds:
        chances[kind] = 1 / max(1, len(kind))
    return chances


def is_chance(count: int, expected: float, rarest: float) -> bool:
    """Whether so many rare things, or more, happen by chance at least that often.

    By Chernoff's bound, which holds however small and different the chances are that add up to what is expected; where
    less than one thing is expected, the normal distribution would call one of them impossible.
    """
    if count <= expected:
        return True
    return expected > 0 and count * log(count / expected) - count + expected <= -log(rarest)


def count_seen(
    counts: SeenCounts,
    batches: PretrainingBatches,
    batch: PretrainingBatch,
    sequences: Sequences,
    chances: Chances,
) -> None:
    """Compare the tokens of a batch with those of the text."""
    originals = sequences.ids.reshape(-1)[batch.positions]
    seen = batch.ids.reshape(-1)[batch.positions]
    counts.wrong_targets += int((batch.targets != originals).sum())
    is_random = (batch.fates == REPLACED) | (batch.fates == NO_SIMILAR)
    counts.wrong_words += int((~np.isin(seen[is_random], batches.masker.ordinary)).sum())
    changed = seen != originals
    counts.unchanged += int((is_random & ~changed).sum())
    counts.by_chance += float(chances[originals[is_random]].sum())
    correction = batches.masks.masking == "correction"
    is_mask = seen == batches.tokenizer.mask_id
    hidden = (batch.fates == HIDDEN) & (not correction)
    others = batch.ids != sequences.ids
    others.reshape(-1)[batch.positions] = False
    counts.unlike_fate += int(((is_mask != hidden) | ((batch.fates == KEPT) & changed)).sum() + others.sum())
    if correction:
        counts.wrong_similar += _wrong_similar(batches.masker.tables, batch, sequences, originals, seen)


def _wrong_similar(tables: WordTables, batch: PretrainingBatch, sequences: Sequences, originals: Ids, seen: Ids) -> int:
    """How many words, that should have become similar ones, have not, though the tables know some."""
    words = (np.cumsum(sequences.starts.reshape(-1)) - 1)[batch.positions]
    firsts = np.flatnonzero(np.diff(words, prepend=-1) != 0)
    lasts = np.append(firsts[1:], len(words))
    to_be_similar = np.isin(batch.fates[firsts], (HIDDEN, NO_SIMILAR))
    wrong = 0
    for first, last in zip(firsts[to_be_similar].tolist(), lasts[to_be_similar].tolist(), strict=True):
        word, other = tuple(originals[first:last].tolist()), tuple(seen[first:last].tolist())
        if batch.fates[first] == NO_SIMILAR:
            wrong += word in tables.similar or any(piece in tables.characters for piece in word)
        else:
            wrong += not is_similar_word(word, other, tables)
    return wrong


def is_similar_word(word: tuple[int, ...], other: tuple[int, ...], tables: WordTables) -> bool:
    """Whether the other is one of those similar to the word, or the word with one character mistaken; never itself."""
    known = tables.similar.get(word)
    if known is not None:
        return other != word and other in known
    changed = [(before, after) for before, after in zip(word, other, strict=True) if before != after]
    if len(changed) != 1:
        return False
    before, after = changed[0]
    return before in tables.characters and (after,) in tables.similar[(before,)]
