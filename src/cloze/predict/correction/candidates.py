"""What a character or word may have been meant to be, and how likely the mistake is.

Dimensions: C candidates.

Words that somebody may have meant: those of a vocabulary that a few letters tell from what was written.

Dimensions: W words.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cloze.tasks.correction.settings import CorrectionSettings
from cloze.tasks.text_edits import Similar
from cloze.text import Tokenizer
from cloze.text.characters import is_ideograph
from cloze.text.encoding import Word
from cloze.text.vocabulary import CONTINUATION, UNKNOWN

_BUCKETS = 32  # letters are counted by their code modulo this; a collision lets a word through to the exact check
# Longer words have room for two mistakes.
_LONG = 5


class NearWords:
    """Finds near words; what was asked before is remembered."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        lengths = np.array([len(word) for word in words])
        self._by_length = {int(length): np.flatnonzero(lengths == length) for length in np.unique(lengths)}
        self._letters = np.stack([_count_letters(word) for word in words]) if words else np.zeros((0, _BUCKETS))
        self.near = lru_cache(20_000)(self._near)

    def _near(self, word: str) -> tuple[tuple[int, int], ...]:
        """The numbers of the words that one mistake makes this one of, two if it is long, and how many it takes."""
        most = 2 if len(word) >= _LONG else 1
        own = _count_letters(word)
        found = []
        for length in range(len(word) - most, len(word) + most + 1):
            numbers = self._by_length.get(length)
            if numbers is None:
                continue
            # A changed letter is one more and one less; all else differs by one.
            close = np.abs(self._letters[numbers] - own).sum(1) <= 2 * most
            for number in numbers[close].tolist():
                distance = mistakes_between(word, self._words[number])
                if 0 < distance <= most:
                    found.append((number, distance))
        return tuple(found)


def _count_letters(word: str) -> NDArray[np.int8]:
    return np.bincount([ord(letter) % _BUCKETS for letter in word], minlength=_BUCKETS).astype(np.int8)


def mistakes_between(one: str, other: str) -> int:
    """Letters left out, put in, changed, or swapped with a neighbour (Damerau 1964), at the least."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for place, letter in enumerate(one, start=1):
        before, above, row = row, before, [place]
        for column, wanted in enumerate(other, start=1):
            least = min(before[column] + 1, row[-1] + 1, before[column - 1] + (letter != wanted))
            if place > 1 and column > 1 and letter == other[column - 2] and one[place - 2] == wanted:
                least = min(least, above[column - 2] + 1)
            row.append(least)
    return row[-1]


Ids = NDArray[np.int64]
Floats = NDArray[np.float32]

# Shorter words are near too many others.
_SHORTEST_WORD = 3
# A second mistake in one word is so much less likely than the first.
_SECOND_MISTAKE = 0.1
# What may stand before the first word of a sentence, besides nothing; any other word with a capital is a name.
_SENTENCE_ENDS = frozenset(".!?:;\"'“”‘’«([-—。！？：；")


class Proposals:
    """What each character or word may have been meant to be; ``similar`` tells what is mistaken for what."""

    def __init__(self, tokenizer: Tokenizer, similar: Similar, settings: CorrectionSettings) -> None:
        self._tokenizer, self._similar = tokenizer, _both_ways(similar)
        self._seen, self._cost = settings.reading == "seen", float(np.log(settings.mistakes))
        pieces = tokenizer.pieces
        self._characters = np.array([n for n, piece in enumerate(pieces) if len(piece) == 1 and is_ideograph(piece)])
        # One array for all: a long text has a hundred thousand characters, and each may be any of thousands.
        self._even = {cost: np.full(len(self._characters), cost, np.float32) for cost in (0.0, self._cost)}
        self._words = np.array([number for number, piece in enumerate(pieces) if _is_word(piece)])
        self._near = NearWords([pieces[number] for number in self._words])

    def of(self, word: Word, text: str) -> tuple[Ids, Floats]:
        """Pieces, and the logarithm of how likely each is mistaken for this word; none of what is not corrected."""
        own = word.text.lower() if self._tokenizer.lowercase else word.text
        # A model that is asked about what it sees has learned how likely mistakes are.
        cost = 0.0 if self._seen and len(word.ids) == 1 else self._cost
        if len(own) == 1 and is_ideograph(own):
            return self._of_character(own, cost)
        if len(own) < _SHORTEST_WORD or not own.isalpha() or _is_name(word, text):
            return _costed([], cost)
        read = "".join(token.removeprefix(CONTINUATION) for token in word.tokens)
        near = self._near.near(own if UNKNOWN in word.tokens else read)
        found = [(int(self._words[number]), distance) for number, distance in near]
        listed = [(number, 1) for number in self._known(own)]
        return _costed([*listed, *(pair for pair in found if pair[0] not in dict(listed))], cost)

    def _of_character(self, own: str, cost: float) -> tuple[Ids, Floats]:
        if self._similar:
            return _costed([(number, 1) for number in self._known(own)], cost)
        if self._tokenizer.id(own) is None:  # whatever it is, the model cannot tell how likely it was
            return _costed([], cost)
        return self._characters, self._even[cost]

    def _known(self, own: str) -> list[int]:
        """The pieces among those that a list says are similar to this."""
        found = (self._tokenizer.id(other) for other in self._similar.get(own.lower(), ()))
        return list(dict.fromkeys(number for number in found if number is not None))


def _both_ways(similar: Similar) -> dict[str, list[str]]:
    """Whatever is named together, by either: lists have what is right first, as in pre-training, or what is wrong."""
    found: dict[str, list[str]] = {}
    for one, others in similar.items():
        for other in others:
            found.setdefault(one.lower(), []).append(other)
            found.setdefault(other.lower(), []).append(one)
    return found


def _costed(found: Sequence[tuple[int, int]], cost: float) -> tuple[Ids, Floats]:
    """Pieces, each by how many mistakes it takes, with the logarithm of how likely those are."""
    costs = [cost + np.log(_SECOND_MISTAKE) * (distance - 1) for _, distance in found]
    return np.array([number for number, _ in found], np.int64), np.array(costs, np.float32)


def _is_word(piece: str) -> bool:
    return len(piece) > 1 and piece.isalpha() and not any(map(is_ideograph, piece))


def _is_name(word: Word, text: str) -> bool:
    """Whether capitals tell that this is a name, or letters for one: no vocabulary has them all."""
    if word.text[1:] != word.text[1:].lower():
        return True
    before = text[: word.start].rstrip()[-1:]
    return word.text[0].isupper() and len(word.ids) > 1 and bool(before) and before not in _SENTENCE_ENDS
