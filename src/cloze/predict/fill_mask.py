"""Predictions of the masked-LM head: fill blanks independently or jointly, and score texts.

Filling (Devlin et al. 2019, section 3.1) predicts each ``[MASK]`` independently, so that the best words of two blanks
may not fit each other ("new angeles"). ``fill_together`` therefore uses beam search: it fills the most certain blank
first, predicts the others given that word, and keeps the best few fillings. Then it predicts each blank again, given
the words of all others.

Scoring computes the pseudo-log-likelihood (Salazar et al. 2020, "Masked language model scoring"). The chain rule does
not apply to a bidirectional model, so each token is masked in turn and its log-probability given all others is summed.
It does apply to a left-to-right model, whose score is the exact log-likelihood. Long texts are split into overlapping
windows.

Dimensions: M blanks, T tokens, H hidden size, V vocabulary.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from cloze.errors import ConfigError, RequestError
from cloze.model.batch import Batch
from cloze.predict.results import Filled, FilledTogether, Score
from cloze.text import MASK, Encoding, Tokenizer, window_spans
from cloze.text.vocabulary import CONTINUATION

if TYPE_CHECKING:
    from cloze.predict.base_model import BaseModel

logger = logging.getLogger("cloze")

Floats = NDArray[np.float32]

# Maximum number of sequences whose predictions are in memory at once: enough to batch those of similar lengths.
_HELD = 128
_HELD_WHOLE = 8  # the same if every token has a prediction
# Maximum number of floats in memory at once (128 MB): a prediction has one per vocabulary piece.
_HELD_NUMBERS = 2**25
# Minimum beam width; with a beam of one, a wrong first word could never be replaced.
_LEAST_BEAM = 5


def find_blanks(tokenizer: Tokenizer, text: str, top: int) -> tuple[Encoding, list[int]]:
    """Encode a text and return the indices of its blanks; ``top``, the number of words per blank, is only checked."""
    if top < 1:
        raise RequestError(f"top is {top}; expected at least 1")
    encoding = tokenizer(text, read_mask=True)
    blanks = [index for index, piece in enumerate(encoding.ids) if piece == tokenizer.mask_id]
    if len(blanks) < count_blanks(text):
        raise RequestError(f"a [MASK] lies beyond the {tokenizer.max_length} tokens that this model accepts")
    if not blanks:
        raise RequestError(f"no [MASK] in {text[:60]!r}; write [MASK] in place of the missing word")
    return encoding, blanks


def count_blanks(text: str) -> int:
    """Return the number of ``[MASK]`` in a text."""
    return text.count(MASK)


def with_ids(encoding: Encoding, changed: Mapping[int, int]) -> Encoding:
    """Return a copy of the sequence with other tokens at some indices."""
    ids = list(encoding.ids)
    for index, token_id in changed.items():
        ids[index] = token_id
    return replace(encoding, ids=ids)


def blank_logs(model: "BaseModel", encodings: Iterator[Encoding]) -> Iterator[Floats]:
    """Yield, for each sequence, the log-probabilities of all pieces at each ``[MASK]``, (M, V)."""
    mask_id = model.tokenizer.mask_id
    groups = _groups(encodings, lambda encoding: encoding.ids.count(mask_id), _HELD, model.bert.config.vocab_size)
    return _logs(model, groups, lambda batch: batch.ids == mask_id)


def seen_logs(model: "BaseModel", encodings: Iterator[Encoding]) -> Iterator[Floats]:
    """Yield, for each sequence, the log-probabilities of all pieces at each token, (T, V)."""
    if model.bert.hides_words:
        kind = model.bert.model_type
        raise ConfigError(f"reading is 'seen', but a model of type {kind!r} predicts words unseen; use 'masked'")
    groups = _groups(encodings, lambda encoding: len(encoding.ids), _HELD_WHOLE, model.bert.config.vocab_size)
    return _logs(model, groups, lambda batch: batch.real)


def _logs(model: "BaseModel", groups: Iterator[list[Encoding]], select: Callable[[Batch], Tensor]) -> Iterator[Floats]:
    """Yield, for each sequence, the log-probabilities at the selected tokens."""

    @torch.inference_mode()
    def step(batch: Batch) -> list[Floats]:
        chosen = select(batch)  # (B, T)
        last = model.bert.word_states(batch.ids, batch.segments, batch.mask, chosen.flatten().nonzero().flatten())
        logs = model.bert.heads["mlm"](last[chosen]).float().log_softmax(-1)[:, : model.tokenizer.size].cpu()
        return [part.numpy() for part in logs.split(chosen.sum(1).tolist())]

    for group in groups:
        yield from model.run(group, step)


def _groups(
    encodings: Iterator[Encoding], predictions: Callable[[Encoding], int], most: int, size: int
) -> Iterator[list[Encoding]]:
    """Yield groups of up to ``most`` sequences whose predictions, of ``size`` floats each, fit into memory."""
    group: list[Encoding] = []
    numbers = 0
    for encoding in encodings:
        needed = predictions(encoding) * size
        if group and (len(group) == most or numbers + needed > _HELD_NUMBERS):
            yield group
            group, numbers = [], 0
        group.append(encoding)
        numbers += needed
    if group:
        yield group


@dataclass(frozen=True)
class TokenWindow:
    """A window of a text, and the indices of the tokens to predict in it."""

    encoding: Encoding
    places: range


def token_windows(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[TokenWindow]]:
    """Split each text into windows that overlap by half, so that every token is predicted once, with context."""
    if isinstance(texts, str):
        raise RequestError("expected a list of texts, got a single text; put it into a list")
    encoded = tokenizer.encode_pieces(texts)
    unread = sum(pieces.unread > 0 for pieces in encoded)
    if unread:
        logger.warning("%d of %d texts are too long to be processed completely; split them", unread, len(texts))
    room = tokenizer.content_length(1)
    windows = []
    for pieces in encoded:
        stretches = window_spans(len(pieces), room, room // 2)
        # The border between two windows is the middle of their overlap.
        borders = [(before[1] + after[0]) // 2 for before, after in pairwise(stretches)]
        edges = [0, *borders, len(pieces)]
        windows.append(
            [
                # + 1 for [CLS].
                TokenWindow(tokenizer.assemble(pieces.slice(start, stop)), range(first - start + 1, last - start + 1))
                for (start, stop), (first, last) in zip(stretches, pairwise(edges), strict=True)
            ]
        )
    return windows


@torch.inference_mode()
def fill_blanks(model: "BaseModel", encodings: Sequence[Encoding], top: int) -> list[list[list[Filled]]]:
    """Return the ``top`` most probable words for each ``[MASK]`` of each sequence."""

    def step(batch: Batch) -> list[list[list[Filled]]]:
        blanks = batch.ids == model.tokenizer.mask_id
        needed = blanks.flatten().nonzero().flatten()
        states = model.bert.word_states(batch.ids, batch.segments, batch.mask, needed)[blanks]  # (M, H)
        parts = torch.split(states, _HELD)
        words = iter([words for part in parts for words in _best(model, part, top)])
        return [[next(words) for _ in range(count)] for count in blanks.sum(1).tolist()]

    return model.run(encodings, step)


def _best(model: "BaseModel", states: Tensor, top: int) -> list[list[Filled]]:
    probabilities = model.bert.heads["mlm"](states).softmax(-1)  # (M, V)
    # The embedding table may have more rows than the vocabulary has pieces.
    best = probabilities[:, : model.tokenizer.size].topk(min(top, model.tokenizer.size))
    return [
        [Filled(model.tokenizer.piece(piece), value) for value, piece in zip(values, pieces, strict=True)]
        for values, pieces in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]


@dataclass(frozen=True)
class _Filling:
    """A partial filling (an entry of the beam): the words in the order in which they were filled."""

    words: Mapping[int, int] = field(default_factory=dict)  # token index -> id
    log_probability: float = 0.0

    def key(self) -> tuple[tuple[int, int], ...]:
        """Return an identity of the filling that does not depend on the order."""
        return tuple(sorted(self.words.items()))


def most_passes(blanks: int, top: int, rounds: int) -> int:
    """Return the maximum number of forward passes for filling this many blanks jointly."""
    # For each filling: one pass per blank, and per round one to predict the blank again and one to score it.
    return max(top, _LEAST_BEAM) * blanks * (1 + 2 * rounds)


def fill_together(model: "BaseModel", text: str, top: int, rounds: int) -> list[FilledTogether]:
    """Return the best joint fillings of all blanks; each blank is predicted again up to ``rounds`` times."""
    if rounds < 0:
        raise RequestError(f"rounds is {rounds}; expected at least 0 (0: predict no blank again)")
    encoding, blanks = find_blanks(model.tokenizer, text, top)
    model.warnings.truncated(model.tokenizer, [encoding])
    width = max(top, _LEAST_BEAM)
    fillings = [_Filling()]
    for _ in blanks:
        fillings = _extend(model, encoding, blanks, fillings, width)
    for _ in range(rounds):
        revised = _predict_again(model, encoding, fillings)
        if {filling.key() for filling in revised} == {filling.key() for filling in fillings}:
            break
        fillings = _best_fillings([*fillings, *revised], width)
    return [_as_result(model, text, blanks, filling) for filling in fillings[:top]]


def _extend(
    model: "BaseModel", encoding: Encoding, blanks: Sequence[int], fillings: Sequence[_Filling], width: int
) -> list[_Filling]:
    """Fill the most certain open blank of each filling with its most probable words, and keep the best fillings."""
    extended = []
    mask_id = model.tokenizer.mask_id
    predictions = blank_logs(model, iter([with_ids(encoding, filling.words) for filling in fillings]))
    for filling, logs in zip(fillings, predictions, strict=True):
        open_blanks = [index for index in blanks if index not in filling.words]
        logs[:, mask_id] = -np.inf  # [MASK] itself would leave the blank open
        row = int(logs.max(-1).argmax())
        # A small vocabulary may have fewer words than the width of the beam.
        for token_id in (best for best in _most_probable(logs[row], width) if not np.isneginf(logs[row, best])):
            words = {**filling.words, open_blanks[row]: token_id}
            extended.append(_Filling(words, filling.log_probability + float(logs[row, token_id])))
    return _best_fillings(extended, width)


def _predict_again(model: "BaseModel", encoding: Encoding, fillings: Sequence[_Filling]) -> list[_Filling]:
    """Mask each blank of each filling again, one at a time, and take the most probable word."""
    current = [dict(filling.words) for filling in fillings]
    for number in range(len(current[0])):
        indices = [list(words)[number] for words in current]
        masked = [
            with_ids(encoding, {**words, index: model.tokenizer.mask_id})
            for words, index in zip(current, indices, strict=True)
        ]
        for words, index, logs in zip(current, indices, blank_logs(model, iter(masked)), strict=True):
            logs[0, model.tokenizer.mask_id] = -np.inf
            words[index] = int(logs[0].argmax())
    return [_Filling(words, _log_probability(model, encoding, words)) for words in current]


def _log_probability(model: "BaseModel", encoding: Encoding, words: Mapping[int, int]) -> float:
    """Return the log-probability of these words, each given those that were filled before it."""
    order = list(words)
    steps = [with_ids(encoding, {index: words[index] for index in order[:count]}) for count in range(len(order))]
    total = 0.0
    for count, logs in enumerate(blank_logs(model, iter(steps))):
        row = sorted(order[count:]).index(order[count])
        total += float(logs[row, words[order[count]]])
    return total


def _most_probable(logs: Floats, count: int) -> list[int]:
    chosen: list[int] = np.argsort(-logs, kind="stable")[:count].tolist()
    return chosen


def _best_fillings(fillings: Sequence[_Filling], count: int) -> list[_Filling]:
    """Return the most probable distinct fillings; words filled in several orders count once, in the best order."""
    distinct: dict[tuple[tuple[int, int], ...], _Filling] = {}
    for filling in fillings:
        known = distinct.get(filling.key())
        if known is None or filling.log_probability > known.log_probability:
            distinct[filling.key()] = filling
    return sorted(distinct.values(), key=lambda filling: -filling.log_probability)[:count]


def _as_result(model: "BaseModel", text: str, blanks: Sequence[int], filling: _Filling) -> FilledTogether:
    tokens = tuple(model.tokenizer.piece(filling.words[index]) for index in blanks)
    first, *rest = text.split(MASK)
    for token, gap in zip(tokens, rest, strict=True):
        # A continuation piece is attached to the text before it.
        first = first.rstrip() + token.removeprefix(CONTINUATION) if token.startswith(CONTINUATION) else first + token
        first += gap
    return FilledTogether(tokens, filling.log_probability, first)


def score_texts(model: "BaseModel", texts: Sequence[str]) -> list[Score]:
    """Score texts by masking every token once and summing the log-probabilities."""
    windows = _windows_to_score(model, texts)
    mask_id = model.tokenizer.mask_id

    def masked() -> Iterator[Encoding]:
        for text_windows in windows:
            for window in text_windows:
                for index in window.places:
                    yield with_ids(window.encoding, {index: mask_id})

    logs = blank_logs(model, masked())
    scores = []
    for text, text_windows in zip(texts, windows, strict=True):
        scored = [(window.encoding, index) for window in text_windows for index in window.places]
        values = [float(next(logs)[0, encoding.ids[index]]) for encoding, index in scored]
        scores.append(Score(text, tuple(encoding.tokens[index] for encoding, index in scored), tuple(values)))
    return scores


def _windows_to_score(model: "BaseModel", texts: Sequence[str]) -> list[list[TokenWindow]]:
    windows = token_windows(model.tokenizer, texts)
    empty = sum(not any(window.places for window in own) for own in windows)
    if empty:
        logger.warning("%d of %d texts contain no tokens, so their perplexity is null", empty, len(texts))
    return windows


@torch.inference_mode()
def score_left_to_right(model: "BaseModel", texts: Sequence[str]) -> list[Score]:
    """Score texts with a left-to-right model: the log-probability of each token given those before it, in one pass."""
    windows = _windows_to_score(model, texts)

    def step(batch: Batch) -> list[list[float]]:
        real = batch.real[:, 1:]  # (B, T - 1): every token but [CLS] is predicted at the token before it
        positions = functional.pad(real, (0, 1)).flatten().nonzero().flatten()  # (M,)
        logits = model.bert.next_logits(batch.ids, batch.segments, batch.mask, positions)[:, : model.tokenizer.size]
        targets = batch.ids.flatten()[positions + 1]
        logs = -functional.cross_entropy(logits.float(), targets, reduction="none")  # (M,)
        return [part.tolist() for part in torch.split(logs, real.sum(1).tolist())]

    encodings = [window.encoding for text_windows in windows for window in text_windows]
    size = model.bert.config.vocab_size
    groups = _groups(iter(encodings), lambda encoding: len(encoding.ids), _HELD_WHOLE, size)
    logs = iter([values for group in groups for values in model.run(group, step)])
    scores = []
    for text, text_windows in zip(texts, windows, strict=True):
        own = [next(logs) for _ in text_windows]
        scored = [
            (window.encoding.tokens[index], values[index - 1])
            for window, values in zip(text_windows, own, strict=True)
            for index in window.places
        ]
        scores.append(Score(text, tuple(token for token, _ in scored), tuple(value for _, value in scored)))
    return scores
