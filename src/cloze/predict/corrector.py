"""Text correction with a masked language model: propose candidates for each word and rerank them in context.

This is a noisy-channel model (Kernighan et al. 1990): a written word is either correct or a misspelling of another one.
The language model gives the probability of each candidate in its context, and the channel gives the probability of the
mistake; their product gives the confidence. Chinese is corrected character by character; candidates are all other
characters, or those in a confusion list. Alphabetic words are corrected to vocabulary words at a Damerau-Levenshtein
distance of 1 or 2. A model trained to correct (Cui et al. 2020) has learned the channel and reads the text unmasked.

Dimensions: T tokens, V vocabulary, W vocabulary words, C candidates.
"""

import logging
import re
from collections.abc import Collection, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cloze.errors import RequestError
from cloze.predict.embeddings.pooling import word_pattern
from cloze.predict.fill_mask import Floats, TokenWindow, blank_logs, seen_logs, token_windows, with_ids
from cloze.predict.model import Model
from cloze.predict.results import Corrected, Correction
from cloze.tasks.correction.examples import Similar, cased_like, read_confusions
from cloze.tasks.correction.kind import CorrectionSettings
from cloze.tasks.correction.metrics import Changes
from cloze.text import Encoding, Tokenizer
from cloze.text.boundaries import is_ideograph
from cloze.text.encoding import Word
from cloze.text.oov.extension import read_word_list
from cloze.text.vocabulary import CONTINUATION, UNKNOWN

logger = logging.getLogger("cloze")

Ids = NDArray[np.int64]

# Maximum numbers of texts and characters that are corrected at once; the candidates of one word take a kilobyte or
# more.
_BLOCK_TEXTS, _BLOCK_CHARACTERS = 256, 2**16
# Letters are counted by code point modulo this number; a collision only means an unnecessary exact comparison.
_LETTER_BUCKETS = 32
# Words of at least this many letters may have two mistakes.
_TWO_MISTAKES_LENGTH = 5
# Shorter words are not corrected, because too many other words are similar to them.
_SHORTEST_WORD = 3
# Probability of a second mistake in a word, relative to the first.
_SECOND_MISTAKE = 0.1
# Characters that may precede the first word of a sentence; other capitalized words are assumed to be names.
_SENTENCE_ENDS = frozenset(".!?:;\"'“”‘’«([-—。！？：；")


# -- candidates --------------------------------------------------------------------------------------------------------


def edit_distance(first: str, second: str) -> int:
    """Return the Damerau-Levenshtein distance: insertions, deletions, substitutions and adjacent transpositions."""
    previous: list[int] = []
    row = list(range(len(second) + 1))
    for i, letter in enumerate(first, start=1):
        previous, before_previous, row = row, previous, [i]
        for j, other in enumerate(second, start=1):
            distance = min(previous[j] + 1, row[-1] + 1, previous[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == second[j - 2] and first[i - 2] == other:
                distance = min(distance, before_previous[j - 2] + 1)
            row.append(distance)
    return row[-1]


class NearWords:
    """An index that finds words within a small edit distance; results are cached."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        lengths = np.array([len(word) for word in words])
        self._by_length = {int(length): np.flatnonzero(lengths == length) for length in np.unique(lengths)}
        counts = [_count_letters(word) for word in words]
        self._letter_counts = np.stack(counts) if words else np.zeros((0, _LETTER_BUCKETS))
        self.near = lru_cache(20_000)(self._near)

    def _near(self, word: str) -> tuple[tuple[int, int], ...]:
        """Return (word index, distance) of all words at a distance of one, or up to two if the word is long."""
        max_distance = 2 if len(word) >= _TWO_MISTAKES_LENGTH else 1
        letter_counts = _count_letters(word)
        neighbours = []
        for length in range(len(word) - max_distance, len(word) + max_distance + 1):
            indices = self._by_length.get(length)
            if indices is None:
                continue
            # A substitution changes two letter counts by one, an insertion or deletion only one.
            close = np.abs(self._letter_counts[indices] - letter_counts).sum(1) <= 2 * max_distance
            for index in indices[close].tolist():
                distance = edit_distance(word, self._words[index])
                if 0 < distance <= max_distance:
                    neighbours.append((index, distance))
        return tuple(neighbours)


def _count_letters(word: str) -> NDArray[np.int8]:
    return np.bincount([ord(letter) % _LETTER_BUCKETS for letter in word], minlength=_LETTER_BUCKETS).astype(np.int8)


class CandidateGenerator:
    """Proposes corrections of a character or word, with the log-probability of each mistake.

    Args:
        tokenizer: The tokenizer, whose vocabulary pieces are the candidates.
        similar: The confusion list: words or characters that are mistaken for each other.
        settings: The reading mode and the probability of a mistake.
    """

    def __init__(self, tokenizer: Tokenizer, similar: Similar, settings: CorrectionSettings) -> None:
        self._tokenizer, self._similar = tokenizer, _symmetric(similar)
        self._seen, self._log_mistake = settings.reading == "seen", float(np.log(settings.mistakes))
        pieces = tokenizer.pieces
        self._characters = np.array(
            [id_ for id_, piece in enumerate(pieces) if len(piece) == 1 and is_ideograph(piece)]
        )
        # Shared by all characters, since a long text has 100,000 of them, each with thousands of candidates.
        self._uniform = {
            log_mistake: np.full(len(self._characters), log_mistake, np.float32)
            for log_mistake in (0.0, self._log_mistake)
        }
        self._word_ids = np.array([id_ for id_, piece in enumerate(pieces) if _is_word(piece)])
        self._near_words = NearWords([pieces[id_] for id_ in self._word_ids])

    def candidates(self, word: Word, text: str) -> tuple[Ids, Floats]:
        """Return candidate ids, (C,), and the log-probability that each was miswritten as this word, (C,).

        Both are empty for words that are not corrected: names, numbers, and very short words.
        """
        written = word.text.lower() if self._tokenizer.lowercase else word.text
        # A model that reads the text unmasked has learned the probability of mistakes.
        log_mistake = 0.0 if self._seen and len(word.ids) == 1 else self._log_mistake
        if len(written) == 1 and is_ideograph(written):
            return self._character_candidates(written, log_mistake)
        if len(written) < _SHORTEST_WORD or not written.isalpha() or _is_name(word, text):
            return _with_log_mistakes([], log_mistake)
        normalized = "".join(token.removeprefix(CONTINUATION) for token in word.tokens)
        near = self._near_words.near(written if UNKNOWN in word.tokens else normalized)
        listed = dict.fromkeys(self._listed(written), 1)
        nearby = {int(self._word_ids[index]): distance for index, distance in near}
        return _with_log_mistakes(
            [*listed.items(), *((id_, distance) for id_, distance in nearby.items() if id_ not in listed)], log_mistake
        )

    def _character_candidates(self, character: str, log_mistake: float) -> tuple[Ids, Floats]:
        if self._similar:
            return _with_log_mistakes([(id_, 1) for id_ in self._listed(character)], log_mistake)
        if self._tokenizer.id(character) is None:  # the model has no probability for an unknown character
            return _with_log_mistakes([], log_mistake)
        return self._characters, self._uniform[log_mistake]

    def _listed(self, written: str) -> list[int]:
        """Return the ids of the pieces that the confusion list has for this word."""
        ids = (self._tokenizer.id(other) for other in self._similar.get(written.lower(), ()))
        return list(dict.fromkeys(id_ for id_ in ids if id_ is not None))


def _symmetric(similar: Similar) -> dict[str, list[str]]:
    """Return the confusion list in both directions, since some lists start with the correct word and others do not."""
    table: dict[str, list[str]] = {}
    for word, others in similar.items():
        for other in others:
            table.setdefault(word.lower(), []).append(other)
            table.setdefault(other.lower(), []).append(word)
    return table


def _report_unknown(path: Path, similar: Similar, tokenizer: Tokenizer) -> None:
    """Warn about entries of a confusion list that are not in the vocabulary."""
    words = {word for one, others in similar.items() for word in (one, *others)}
    unknown = sorted(word for word in words if tokenizer.id(word) is None)
    if unknown:
        shown = ", ".join(unknown[:5]) + (", ..." if len(unknown) > 5 else "")
        logger.warning(
            "%s: %d of its %d characters and words are not in the vocabulary and are never suggested: %s",
            *(path, len(unknown), len(words), shown),
        )


def _with_log_mistakes(candidates: Sequence[tuple[int, int]], log_mistake: float) -> tuple[Ids, Floats]:
    """Convert (id, distance) pairs to ids and the log-probabilities of ``distance`` mistakes."""
    logs = [log_mistake + np.log(_SECOND_MISTAKE) * (distance - 1) for _, distance in candidates]
    return np.array([id_ for id_, _ in candidates], np.int64), np.array(logs, np.float32)


def _is_word(piece: str) -> bool:
    return len(piece) > 1 and piece.isalpha() and not any(map(is_ideograph, piece))


def _is_name(word: Word, text: str) -> bool:
    """Return whether capitals mark the word as a name or an acronym, which need not be in the vocabulary."""
    if word.text[1:] != word.text[1:].lower():
        return True
    before = text[: word.start].rstrip()[-1:]
    return word.text[0].isupper() and len(word.ids) > 1 and bool(before) and before not in _SENTENCE_ENDS


# -- correction --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Unit:
    """A character or word that may be wrong, with its candidates."""

    word: Word
    window: TokenWindow
    candidates: Ids  # (C,)
    log_mistakes: Floats  # (C,), log-probability that each was miswritten as this word

    def masked(self, mask_id: int) -> Iterator[Encoding]:
        """Yield the text with the word as one ``[MASK]``; if it has several pieces, also with each suffix masked.

        By the chain rule, the suffixes give the log-probability of the written word piece by piece.
        """
        encoding, first, size = self.window.encoding, self.word.first, len(self.word.ids)
        if size == 1:
            yield with_ids(encoding, {first: mask_id})
            return
        before, after = slice(None, first), slice(first + size, None)
        yield replace(
            encoding,
            ids=[*encoding.ids[before], mask_id, *encoding.ids[after]],
            segments=encoding.segments[: 1 - size],
        )
        for start in range(first, first + size):
            yield with_ids(encoding, dict.fromkeys(range(start, first + size), mask_id))


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
        """Prepare the candidates from a model's vocabulary.

        Args:
            model: A model with a masked-LM head.
            settings: Threshold, reading mode and files; by default, as suits the model.
            similar: A confusion list, in addition to the file in the settings.
            protected: Words that are never changed, in addition to the file in the settings.
        """
        self._model, self._settings = model, (settings or CorrectionSettings()).completed(model.correcting)
        path, self._protected_words = self._settings.similar, set(protected)
        table = dict(similar or {}) | (read_confusions(path) if path is not None else {})
        if path is not None:
            _report_unknown(path, table, model.tokenizer)
        if self._settings.protect is not None:
            self._protected_words |= {row.word for row in read_word_list(self._settings.protect)}
        self._protected = _any_of(self._protected_words)
        self._generator = CandidateGenerator(model.tokenizer, table, self._settings)

    def varied(self, threshold: float | None = None, protected: Collection[str] = ()) -> "Corrector":
        """Return a corrector with another threshold or additional protected words.

        The candidate index is shared, because it is slow to build.
        """
        other = copy(self)
        if threshold is not None:
            other._settings = replace(self._settings, threshold=threshold)
        if protected:
            other._protected_words = self._protected_words | set(protected)
            other._protected = _any_of(other._protected_words)
        return other

    def correct(self, texts: Sequence[str]) -> list[Corrected]:
        """Correct each text; all other characters, including whitespace, stay unchanged."""
        if isinstance(texts, str):
            raise RequestError("expected a list of texts, got a single text; put it into a list")
        return [corrected for block in _blocks(texts) for corrected in self._correct_block(block)]

    def _correct_block(self, texts: Sequence[str]) -> list[Corrected]:
        corrections: list[list[Correction]] = [[] for _ in texts]
        units = [
            (index, unit)
            for index, windows in enumerate(token_windows(self._model.tokenizer, texts))
            for window in windows
            for unit in self._units(texts[index], window)
        ]
        for (index, unit), (written_log, logs) in self._log_probabilities(units):
            correction = self._decide(unit, written_log, logs)
            if correction is not None:
                corrections[index].append(correction)
        return [_apply(text, changes) for text, changes in zip(texts, corrections, strict=True)]

    def _units(self, text: str, window: TokenWindow) -> Iterator[_Unit]:
        """Yield the unprotected words of a window that have candidates."""
        protected = [match.span() for match in self._protected.finditer(text)] if self._protected else []
        for word in self._model.tokenizer.words(window.encoding, text):
            overlaps = any(word.start < end and word.end > start for start, end in protected)
            if word.first not in window.places or overlaps:
                continue
            candidates, log_mistakes = self._generator.candidates(word, text)
            if len(candidates):
                yield _Unit(word, window, candidates, log_mistakes)

    def _log_probabilities(
        self, units: Sequence[tuple[int, _Unit]]
    ) -> Iterator[tuple[tuple[int, _Unit], tuple[float, Floats]]]:
        """Yield each unit with the log-probability of the written word and those of all pieces, (V,)."""
        seen = self._settings.reading == "seen"
        at_once = [entry for entry in units if seen and len(entry[1].word.ids) == 1]
        windows = {id(unit.window): unit.window for _, unit in at_once}
        window_logs = seen_logs(self._model, (window.encoding for window in windows.values()))
        by_window: dict[int, list[tuple[int, _Unit]]] = {key: [] for key in windows}
        for entry in at_once:
            by_window[id(entry[1].window)].append(entry)
        for entries, logs in zip(by_window.values(), window_logs, strict=True):  # logs: (T, V)
            for entry in entries:
                row = logs[entry[1].word.first]
                yield entry, (float(row[entry[1].word.ids[0]]), row)
        # A word of several pieces is always masked, because its candidates are single pieces.
        in_turn = [entry for entry in units if not seen or len(entry[1].word.ids) > 1]
        mask_id = self._model.tokenizer.mask_id
        blanks = blank_logs(self._model, (text for _, unit in in_turn for text in unit.masked(mask_id)))
        for entry in in_turn:
            whole, ids = next(blanks)[0], entry[1].word.ids
            yield entry, (float(whole[ids[0]] if len(ids) == 1 else sum(next(blanks)[0][id_] for id_ in ids)), whole)

    def _decide(self, unit: _Unit, written_log: float, logs: Floats) -> Correction | None:
        """Return the best candidate as a correction if its confidence reaches the threshold."""
        piece, confidence = best_candidate(unit.word, written_log, logs, unit.candidates, unit.log_mistakes)
        assert self._settings.threshold is not None, "completed() fills it in"
        if not confidence >= self._settings.threshold:  # also true of NaN
            return None
        right = cased_like(unit.word.text, self._model.tokenizer.piece(piece))
        if right == unit.word.text:
            return None
        return Correction(unit.word.text, right, unit.word.start, confidence)


def proposed_changes(
    model: Model, texts: Sequence[str], settings: CorrectionSettings, similar: Similar | None = None
) -> Changes:
    """Return all proposed changes with their confidence, regardless of the threshold, for choosing a threshold."""
    corrector = Corrector(model, replace(settings, threshold=0.0), similar=similar)
    return [
        [(change.position, change.wrong, change.right, change.confidence) for change in text.corrections]
        for text in corrector.correct(texts)
    ]


def best_candidate(
    word: Word, written_log: float, logs: Floats, candidates: Ids, log_mistakes: Floats
) -> tuple[int, float]:
    """Return the most probable candidate and its probability among all candidates and the written word.

    Args:
        word: The written word.
        written_log: Its log-probability in context.
        logs: The log-probabilities of all pieces in its place, (V,).
        candidates: The ids of the candidates, (C,).
        log_mistakes: The log-probability that each was miswritten as this word, (C,).
    """
    scores = logs[candidates] + log_mistakes
    if len(word.ids) == 1:
        scores[candidates == word.ids[0]] = -np.inf
    best = int(scores.argmax())
    confidence = float(np.exp(scores[best] - np.logaddexp(written_log, np.logaddexp.reduce(scores))))
    return int(candidates[best]), confidence


def _blocks(texts: Sequence[str]) -> Iterator[list[str]]:
    """Split the texts into blocks of consecutive texts; a text beyond the character limit forms its own block."""
    block: list[str] = []
    characters = 0
    for text in texts:
        characters += len(text)
        if block and (len(block) == _BLOCK_TEXTS or characters > _BLOCK_CHARACTERS):
            yield block
            block, characters = [], len(text)
        block.append(text)
    if block:
        yield block


def _any_of(words: Collection[str]) -> re.Pattern[str] | None:
    """Return a pattern that matches any of these words, longest first; None if there are none."""
    ordered = sorted(filter(str.strip, words), key=lambda word: (-len(word), word))
    return re.compile("|".join(map(word_pattern, ordered)), re.IGNORECASE) if ordered else None


def _apply(text: str, corrections: Sequence[Correction]) -> Corrected:
    ordered = tuple(sorted(corrections, key=lambda correction: correction.position))
    target = text
    for correction in reversed(ordered):  # backwards, so that earlier positions stay valid
        end = correction.position + len(correction.wrong)
        target = target[: correction.position] + correction.right + target[end:]
    return Corrected(text, target, ordered)
