"""What a character or word may have been meant to be, and how likely the mistake is.

Dimensions: C candidates.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cloze.predict.correction.near_words import NearWords
from cloze.tasks.correction.settings import CorrectionSettings
from cloze.tasks.text_edits import Similar
from cloze.text import Tokenizer
from cloze.text.characters import is_ideograph
from cloze.text.encoding import Word
from cloze.text.vocabulary import CONTINUATION, UNKNOWN

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
