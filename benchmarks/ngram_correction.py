"""Correction by n-gram counts: similar words, scored by a Kneser-Ney model of both contexts.

It proposes the same candidates as cloze and decides in the same way; only the probabilities come from n-grams. Given
pairs of misspelled and correct texts, it also estimates how often one character is written for another.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from cloze.predict.corrector import CandidateGenerator, best_candidate
from cloze.tasks.correction.examples import Corrections, Similar, cased_like
from cloze.tasks.correction.kind import CorrectionSettings
from cloze.text import Tokenizer
from cloze.text.encoding import Word
from kneser_ney import Floats, Ints, KneserNey  # module in benchmarks/

# Words that are split into pieces share one entry; its probability is divided among this many words.
_UNKNOWN_WORDS = 100_000
# Weight of the prior on misspelling a character, in occurrences of that character.
_BEFOREHAND = 100


class Mistaken:
    """Counts of confused characters, from pairs of misspelled and correct texts of equal length."""

    def __init__(self, rows: Corrections, mistakes: float) -> None:
        self._mistakes = mistakes
        even = [(one, other) for one, other in zip(rows.sources, rows.targets, strict=True) if len(one) == len(other)]
        written = Counter((own, right) for one, other in even for own, right in zip(one, other, strict=True))
        self._meant = Counter(right for _, other in even for right in other)
        self._written = Counter({pair: count for pair, count in written.items() if pair[0] != pair[1]})

    def pairs(self) -> dict[str, list[str]]:
        """Return the misspelled characters, each with the intended ones."""
        found: dict[str, list[str]] = {}
        for own, right in self._written:
            found.setdefault(own, []).append(right)
        return found

    def cost(self, own: str, right: str) -> float:
        """Return the log probability that one character is written for the other."""
        count = self._written[own, right] + self._mistakes * _BEFOREHAND
        return float(np.log(count / (self._meant[right] + _BEFOREHAND)))


class NgramCorrector:
    """A corrector that scores candidates with n-gram counts."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        texts: Sequence[str],
        settings: CorrectionSettings,
        similar: Similar,
        rows: Corrections | None = None,
        order: int = 3,
    ) -> None:
        self._tokenizer, self._order = tokenizer, order
        self._mistaken = None if rows is None else Mistaken(rows, settings.mistakes)
        known = dict(similar)
        for own, rights in {} if self._mistaken is None else self._mistaken.pairs().items():
            known[own] = [*known.get(own, ()), *rights]
        self._proposals = CandidateGenerator(tokenizer, known, settings)
        stream = chain.from_iterable(self._ids(self._words(text)) for text in texts)
        self._counts = KneserNey(np.fromiter(stream, np.int64), tokenizer.size, order)

    def scored(self, text: str) -> Iterator[tuple[Word, str, float]]:
        """Yield each word with its best replacement and its confidence, regardless of the threshold."""
        words = self._words(text)
        ids = np.array(self._ids(words))
        for place, word in enumerate(words):
            candidates, costs = self._proposals.candidates(word, text)
            if not len(candidates):
                continue
            if self._mistaken is not None:
                read = (self._tokenizer.piece(int(one)) for one in candidates)
                costs = np.array([self._mistaken.cost(word.text, one) for one in read], np.float32)
            logs = self._logs(ids, place).astype(np.float32)
            own = float(logs[ids[place]]) - (np.log(_UNKNOWN_WORDS) if len(word.ids) > 1 else 0.0)
            piece, confidence = best_candidate(word, own, logs, candidates, costs)
            yield word, cased_like(word.text, self._tokenizer.piece(piece)), confidence

    def _words(self, text: str) -> list[Word]:
        encoding = self._tokenizer(text, max_length=100_000)
        return self._tokenizer.words(encoding, text)

    def _ids(self, words: Sequence[Word]) -> list[int]:
        return [word.ids[0] if len(word.ids) == 1 else self._tokenizer.unknown_id for word in words]

    def _logs(self, ids: Ints, place: int) -> Floats:
        """Return the log probability of each token at a position given both contexts: (V,), up to a constant."""
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
