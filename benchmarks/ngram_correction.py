"""Correction by counting: look-alikes and near words, weighed by a Kneser-Ney model of both sides.

It proposes what cloze proposes and decides as cloze decides; only the probabilities are those of n-grams.
"""

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from cloze.predict.correction import best_reading
from cloze.predict.proposals import Proposals
from cloze.tasks.correction_settings import CorrectionSettings
from cloze.tasks.edits import Similar, cased_like
from cloze.text import Tokenizer
from cloze.text.pieces import Word
from kneser_ney import Floats, Ints, KneserNey  # beside this file

# Words that the vocabulary has in pieces are one kind; the probability of the kind is shared by so many of them.
_UNKNOWN_WORDS = 100_000


class NgramCorrector:
    """Corrects texts with the counts of others."""

    def __init__(
        self, tokenizer: Tokenizer, texts: Sequence[str], settings: CorrectionSettings, similar: Similar, order: int = 3
    ) -> None:
        self._tokenizer, self._settings, self._order = tokenizer, settings, order
        self._proposals = Proposals(tokenizer, similar, settings)
        stream = chain.from_iterable(self._ids(self._words(text)) for text in texts)
        self._counts = KneserNey(np.fromiter(stream, np.int64), tokenizer.size, order)

    def scored(self, text: str) -> Iterator[tuple[Word, str, float]]:
        """Each word that has a better reading, that reading, and how sure it is, whatever the threshold."""
        words = self._words(text)
        ids = np.array(self._ids(words))
        for place, word in enumerate(words):
            candidates, costs = self._proposals.of(word, text)
            if not len(candidates):
                continue
            logs = self._logs(ids, place).astype(np.float32)
            own = float(logs[ids[place]]) - (np.log(_UNKNOWN_WORDS) if len(word.ids) > 1 else 0.0)
            piece, confidence = best_reading(word, own, logs, candidates, costs)
            yield word, cased_like(word.text, self._tokenizer.piece(piece)), confidence

    def _words(self, text: str) -> list[Word]:
        encoding = self._tokenizer(text, max_length=100_000)
        return self._tokenizer.words(encoding, text)

    def _ids(self, words: Sequence[Word]) -> list[int]:
        return [word.ids[0] if len(word.ids) == 1 else self._tokenizer.unknown_id for word in words]

    def _logs(self, ids: Ints, place: int) -> Floats:
        """How likely each token is here, by those before it and those that follow it: (V,), up to a constant."""
        reach = self._order - 1
        before = ids[max(0, place - reach) : place]
        logs = np.log(self._counts.after(before))
        for following in range(place + 1, min(place + reach, len(ids) - 1) + 1):
            kept = (
                before[max(0, len(before) - (reach - (following - place))) :]
                if reach > following - place
                else before[:0]
            )
            logs += np.log(self._counts.with_each(kept, ids[place + 1 : following], int(ids[following])))
        return logs
