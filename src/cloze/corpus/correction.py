"""Masking as correction (Cui et al. 2020, section 3.1): similar words instead of ``[MASK]``, which no task ever shows.

A word is replaced by one of as many pieces, so that the sequence keeps its length. Where a list of mistakes knows the
characters of a Chinese word but not the word, one of them is mistaken, as people do it.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from cloze.corpus.choosing import Draws
from cloze.corpus.plans import Flags, Ids

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
