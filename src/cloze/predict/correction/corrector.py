"""Mistakes in texts: what a model of masked words finds unlikely, and what it would rather read there.

A noisy channel (Kernighan et al. 1990): what stands in a text is what was meant, or something that is mistaken for it.
The model says how likely each reading is in its place, and the channel how likely the mistake; both together are the
confidence. Chinese is corrected by characters: to any other, or to those of a list of similar ones. Words of letters
are corrected to words of the vocabulary that one or two mistakes make of them. A model that was pre-trained to correct
(Cui et al. 2020) has learned the channel, and is asked about the text as it stands.

Dimensions: T tokens, V vocabulary, C candidates.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np

from cloze.errors import RequestError
from cloze.predict.correction.candidates import Ids, Proposals
from cloze.predict.embeddings.pooling import word_pattern
from cloze.predict.fill_mask import Floats, TokenWindow, blank_logs, seen_logs, token_windows, with_ids
from cloze.predict.model import Model
from cloze.predict.results import Corrected, Correction
from cloze.tasks.correction.metrics import Changes
from cloze.tasks.correction.settings import CorrectionSettings
from cloze.tasks.text_edits import Similar, cased_like, read_synonyms
from cloze.text import Encoding
from cloze.text.encoding import Word
from cloze.text.oov.extension import read_word_list

# Texts, and characters of them, of which all that may be wrong is listed at once: a kilobyte and more for each word.
_LISTED_TEXTS, _LISTED_CHARACTERS = 256, 2**16


@dataclass(frozen=True)
class _Unit:
    """A character or word that may be wrong, and what may have been meant."""

    word: Word
    window: TokenWindow
    candidates: Ids  # (C,), pieces
    costs: Floats  # (C,), logarithms of how likely each is mistaken for what stands there

    def hidden(self, mask_id: int) -> Iterator[Encoding]:
        """The text with one blank in its place; then, of a word in pieces, with blanks for those from each on."""
        encoding, first, size = self.window.encoding, self.word.first, len(self.word.ids)
        if size == 1:
            yield with_ids(encoding, {first: mask_id})
            return
        whole, rest = slice(None, first), slice(first + size, None)
        yield replace(
            encoding,
            ids=[*encoding.ids[whole], mask_id, *encoding.ids[rest]],
            segments=encoding.segments[: 1 - size],
        )
        for place in range(first, first + size):
            yield with_ids(encoding, dict.fromkeys(range(place, first + size), mask_id))


class Corrector:
    """Corrects texts with one model and one set of settings."""

    def __init__(
        self,
        model: Model,
        settings: CorrectionSettings | None = None,
        *,
        similar: Similar | None = None,
        protected: Collection[str] = (),
    ) -> None:
        """``similar`` and ``protected`` stand for the files of the settings, or beside them."""
        self._model, self._settings = model, (settings or CorrectionSettings()).completed(model.correcting)
        path, self._words = self._settings.similar, set(protected)
        table = dict(similar or {}) | (read_synonyms(path) if path is not None else {})
        if self._settings.protect is not None:
            self._words |= {row.word for row in read_word_list(self._settings.protect)}
        self._protected = _any_of(self._words)
        self._proposals = Proposals(model.tokenizer, table, self._settings)

    def varied(self, threshold: float | None = None, protected: Collection[str] = ()) -> "Corrector":
        """The same with another threshold, and with more words that are never changed, for some texts only.

        What each word of the vocabulary is near to, which takes long to list, is shared.
        """
        other = copy(self)
        if threshold is not None:
            other._settings = replace(self._settings, threshold=threshold)
        if protected:
            other._words = self._words | set(protected)
            other._protected = _any_of(other._words)
        return other

    def correct(self, texts: Sequence[str]) -> list[Corrected]:
        """Each text, corrected; nothing else of it changes."""
        if isinstance(texts, str):
            raise RequestError("one text was given where a list of texts was expected; put it into a list")
        return [corrected for block in _blocks(texts) for corrected in self._correct_block(block)]

    def _correct_block(self, texts: Sequence[str]) -> list[Corrected]:
        """Each of a few texts, corrected."""
        found: list[list[Correction]] = [[] for _ in texts]
        units = [
            (number, unit)
            for number, windows in enumerate(token_windows(self._model.tokenizer, texts))
            for window in windows
            for unit in self._units(texts[number], window)
        ]
        for (number, unit), (own, logs) in self._asked(units):
            correction = self._decide(unit, own, logs)
            if correction is not None:
                found[number].append(correction)
        return [_applied(text, own) for text, own in zip(texts, found, strict=True)]

    def _units(self, text: str, window: TokenWindow) -> Iterator[_Unit]:
        """What may be wrong in a window."""
        kept = [found.span() for found in self._protected.finditer(text)] if self._protected else []
        for word in self._model.tokenizer.words(window.encoding, text):
            if word.first not in window.places or any(word.start < end and word.end > start for start, end in kept):
                continue
            candidates, costs = self._proposals.of(word, text)
            if len(candidates):
                yield _Unit(word, window, candidates, costs)

    def _asked(self, units: Sequence[tuple[int, _Unit]]) -> Iterator[tuple[tuple[int, _Unit], tuple[float, Floats]]]:
        """Each unit with the log-probability of what stands there, and those of all pieces, (V,)."""
        seen = self._settings.reading == "seen"
        at_once = [entry for entry in units if seen and len(entry[1].word.ids) == 1]
        windows = {id(unit.window): unit.window for _, unit in at_once}
        answers = seen_logs(self._model, (window.encoding for window in windows.values()))
        by_window: dict[int, list[tuple[int, _Unit]]] = {key: [] for key in windows}
        for entry in at_once:
            by_window[id(entry[1].window)].append(entry)
        for entries, logs in zip(by_window.values(), answers, strict=True):
            for entry in entries:
                row = logs[entry[1].word.first]
                yield entry, (float(row[entry[1].word.ids[0]]), row)
        # A word in pieces has to be hidden in any case: whatever it was meant to be has another number of them.
        in_turn = [entry for entry in units if not seen or len(entry[1].word.ids) > 1]
        mask_id = self._model.tokenizer.mask_id
        blanks = blank_logs(self._model, (text for _, unit in in_turn for text in unit.hidden(mask_id)))
        for entry in in_turn:
            whole, ids = next(blanks)[0], entry[1].word.ids
            yield entry, (float(whole[ids[0]] if len(ids) == 1 else sum(next(blanks)[0][one] for one in ids)), whole)

    def _decide(self, unit: _Unit, own: float, logs: Floats) -> Correction | None:
        """The best candidate, if it is likely enough beside what stands there and all others."""
        piece, confidence = best_reading(unit.word, own, logs, unit.candidates, unit.costs)
        assert self._settings.threshold is not None, "it was completed"
        if not confidence >= self._settings.threshold:  # of numbers that are none, nothing follows
            return None
        right = cased_like(unit.word.text, self._model.tokenizer.piece(piece))
        if right == unit.word.text:
            return None
        return Correction(unit.word.text, right, unit.word.start, confidence)


def proposed_changes(
    model: Model, texts: Sequence[str], settings: CorrectionSettings, similar: Similar | None = None
) -> Changes:
    """What would be changed, however unsure: what a threshold is chosen by."""
    corrector = Corrector(model, replace(settings, threshold=0.0), similar=similar)
    return [
        [(one.position, one.wrong, one.right, one.confidence) for one in text.corrections]
        for text in corrector.correct(texts)
    ]


def best_reading(word: Word, own: float, logs: Floats, candidates: Ids, costs: Floats) -> tuple[int, float]:
    """The likeliest candidate, and how likely it is beside what stands there and all others."""
    scores = logs[candidates] + costs
    if len(word.ids) == 1:
        scores[candidates == word.ids[0]] = -np.inf
    best = int(scores.argmax())
    confidence = float(np.exp(scores[best] - np.logaddexp(own, np.logaddexp.reduce(scores))))
    return int(candidates[best]), confidence


def _blocks(texts: Sequence[str]) -> Iterator[list[str]]:
    """Neighbours, as many as are listed at once; a text that is longer by itself."""
    block: list[str] = []
    characters = 0
    for text in texts:
        characters += len(text)
        if block and (len(block) == _LISTED_TEXTS or characters > _LISTED_CHARACTERS):
            yield block
            block, characters = [], len(text)
        block.append(text)
    if block:
        yield block


def _any_of(words: Collection[str]) -> re.Pattern[str] | None:
    """Any of these words, the longest first."""
    ordered = sorted(filter(str.strip, words), key=lambda word: (-len(word), word))
    return re.compile("|".join(map(word_pattern, ordered)), re.IGNORECASE) if ordered else None


def _applied(text: str, corrections: Sequence[Correction]) -> Corrected:
    ordered = tuple(sorted(corrections, key=lambda one: one.position))
    target = text
    for one in reversed(ordered):  # from the end, so that the places of the others stay what they are
        target = target[: one.position] + one.right + target[one.position + len(one.wrong) :]
    return Corrected(text, target, ordered)
