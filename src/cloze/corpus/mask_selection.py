"""Which tokens the model is to name: alone, or as whole words, several in a row.

A sequence has a budget, round(n * rate) of its n tokens, special ones included, and at least one, as in the original;
no way of choosing exceeds it. Words come in a random order; one that no longer fits is passed over for the next, as in
the original's whole-word code, so that the budget is filled as far as whole words can fill it.

Dimensions: B sequences, T tokens, W words.

Entities and phrases of a dictionary, chosen as a whole and before words (Sun et al. 2019, section 3.3).

Masking as correction (Cui et al. 2020, section 3.1): similar words instead of ``[MASK]``, which no task ever shows.

A word is replaced by one of as many pieces, so that the sequence keeps its length. Where a list of mistakes knows the
characters of a Chinese word but not the word, one of them is mistaken, as people do it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cloze.corpus.sampling import Flags, Ids, Sequences
from cloze.errors import DataError
from cloze.text import Tokenizer
from cloze.text.encoding import Mark
from cloze.text.oov.extension import read_entities, read_word_list
from cloze.text.oov.phrases import Phrase, Phrases

Draws = NDArray[np.float64]


@dataclass(frozen=True)
class Choice:
    """The chosen tokens, and what was chosen at once: a token, a word or a run of words."""

    chosen: Flags  # (B, T)
    units: Ids  # (B, T) where in its row the run starts that a chosen token belongs to
    wanted: Ids  # (B, T) how many words that run was to have, before the budget, a neighbour or the end cut it short


def budgets(lengths: Ids, rate: float) -> Ids:
    """How many tokens of each sequence may be chosen: (B,) -> (B,)."""
    counts: Ids = np.maximum(1, np.rint(lengths * rate)).astype(np.int64)
    return counts


def choose_tokens(free: Flags, budget: Ids, order: Draws) -> Choice:
    """Choose the free tokens with the smallest draws."""
    draw = np.where(free, order, 2.0)
    places = draw.argsort(axis=1, kind="stable")
    chosen = np.zeros(free.shape, bool)
    np.put_along_axis(chosen, places, np.arange(free.shape[1]) < budget[:, None], axis=1)
    chosen &= free
    return Choice(chosen, np.broadcast_to(np.arange(free.shape[1]), free.shape), np.ones(free.shape, np.int64))


def draw_counts(draws: Draws, shares: tuple[float, ...]) -> Ids:
    """Numbers from 1 on, each as often as its share says."""
    return np.minimum(np.searchsorted(np.cumsum(shares), draws, side="right") + 1, len(shares))


def choose_words(starts: Flags, free: Flags, budget: Ids, order: Draws, counts: Ids) -> Choice:
    """Choose runs of whole words, those with the smallest draw at their first token first.

    ``counts`` at the first token of a word says how many words are wanted from there on. A run ends early before a
    word that is chosen already, before a special token, and where the budget ends.
    """
    words: Ids = np.cumsum(starts, axis=1) - 1  # (B, T) the word of each token
    rows, columns = np.nonzero(starts)
    places = rows, words[rows, columns]
    shape = len(starts), int(words.max() + 1 + counts.max())  # so that no run leads outside
    first = np.zeros(shape, np.int64)
    first[places] = columns
    sizes = np.bincount((np.arange(len(starts))[:, None] * shape[1] + words).ravel(), minlength=shape[0] * shape[1])
    taken = np.ones(shape, bool)
    taken[places] = ~free[rows, columns]
    keys = np.full(shape, 2.0)
    keys[places] = np.where(free[rows, columns], order[rows, columns], 2.0)
    wanted = np.ones(shape, np.int64)
    wanted[places] = counts[rows, columns]
    units = _take(sizes.reshape(shape), taken, keys.argsort(axis=1, kind="stable"), budget, wanted)
    unit = np.take_along_axis(units, words, axis=1)  # (B, T)
    chosen = unit >= 0
    origin = np.where(chosen, unit, 0)
    return Choice(chosen, np.take_along_axis(first, origin, axis=1), np.take_along_axis(wanted, origin, axis=1))


def _take(sizes: Ids, taken: Flags, trials: Ids, budget: Ids, wanted: Ids) -> Ids:
    """Try words in their order, one of every row at a time: (B, W) the word that each one's run starts with, or -1."""
    units = np.full(sizes.shape, -1)
    left = budget.copy()
    smallest = np.where(taken, budget.max() + 1, sizes).min(axis=1)
    steps = np.arange(wanted.max())
    for trial in trials[:, : int((~taken).sum(axis=1).max())].T:
        rows = np.flatnonzero(left >= smallest)
        if len(rows) == 0:
            break
        here = trial[rows]
        run = rows[:, None], here[:, None] + steps
        cost = np.cumsum(sizes[run], axis=1)
        fits = ~taken[run] & (cost <= left[rows, None]) & (steps < wanted[rows, here][:, None])
        fits = np.logical_and.accumulate(fits, axis=1)
        taken[run] |= fits
        units[run] = np.where(fits, here[:, None], units[run])
        left[rows] -= (cost * fits).max(axis=1)
    return units


Entities = tuple[tuple[int, ...], ...]

_ENTITY = Mark("entity")


class EntityFinder:
    """Looks for entities in sequences: at word starts, from the left, the longest that there is."""

    def __init__(self, entities: Entities) -> None:
        self._phrases = Phrases(Phrase(ids, ids, _ENTITY) for ids in entities)

    def join(self, sequences: Sequences, budget: Ids) -> tuple[Flags, Flags]:
        """Make each entity one word: (B, T) where words start then, and where entities do.

        One that is larger than the budget of its sequence could never be chosen; its words stay words.
        """
        starts, entities = sequences.starts.copy(), np.zeros_like(sequences.starts)
        rows: list[list[int]] = sequences.ids.tolist()
        for row, places in enumerate(self._phrases.places(rows)):
            flags = sequences.starts[row]
            for match in self._phrases.find(rows[row], places, flags.__getitem__, _no_words) if places else ():
                if match.stop - match.start <= budget[row]:
                    starts[row, match.start + 1 : match.stop] = False
                    entities[row, match.start] = True
        return starts, entities


def _no_words(_start: int, _stop: int) -> None:
    return None


def read_entity_table(path: Path, tokenizer: Tokenizer) -> Entities:
    """Read an entity a line, of a table the first column, or JSONL with a key ``surface``, as sequences of ids.

    Those that the vocabulary cannot read are left out.
    """
    if ".jsonl" in path.suffixes:
        surfaces: Sequence[str] = [row.entity.surface for row in read_entities(path)]
    else:
        surfaces = [row.word for row in read_word_list(path)]
    known = {tuple(ids) for ids in tokenizer.encode_ids(surfaces) if ids and tokenizer.unknown_id not in ids}
    if not known:
        raise DataError(f"{path}: the vocabulary can read none of its {len(surfaces)} entities; give others")
    return tuple(sorted(known))


SimilarWords = tuple[tuple[int, ...], ...]
SimilarTable = Mapping[tuple[int, ...], SimilarWords]
Characters = frozenset[int]

_SIMILAR, _RANDOM = 0, 1  # fates


def write_words(
    targets: Ids,
    heads: Ids,
    fates: NDArray[np.uint8],
    draws: Draws,
    similar: SimilarTable,
    characters: Characters,
    random_pieces: Ids,
) -> tuple[Ids, Flags]:
    """What the model sees of the chosen tokens, and which of them have no similar word: (M,), (M,).

    ``heads`` tells tokens of one word by the place of its first. For want of a similar word one of its ``characters``
    is another, and for want of those it is a random word.
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
        mistaken = _mistake(pieces[first:last], draws[first:last], similar, characters)
        missing[first:last] = mistaken is None
        seen[first:last] = random_pieces[first:last] if mistaken is None else mistaken
    return seen, missing


def _mistake(word: list[int], draws: Draws, similar: SimilarTable, characters: Characters) -> Sequence[int] | None:
    """The word with one of its characters mistaken for another, if any of them is in the list."""
    places = [place for place, piece in enumerate(word) if piece in characters]
    if not places:
        return None
    place = places[int(draws[0] * len(places))]
    others = similar[(word[place],)]
    (other,) = others[int(draws[-1] * len(others))]
    return [*word[:place], other, *word[place + 1 :]]
