"""Blanks of texts: where they are, and what a model says of them.

Dimensions: M blanks of a sequence, T tokens, V vocabulary.

The best words for blanks, each blank on its own (Devlin et al. 2019, section 3.1).

Dimensions: M blanks of a batch, V vocabulary.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cloze.errors import RequestError
from cloze.predict.batching import Batch
from cloze.predict.results import Filled
from cloze.text import MASK, Encoding, Tokenizer, window_places

if TYPE_CHECKING:
    from cloze.predict.model import Model

logger = logging.getLogger("cloze")

Floats = NDArray[np.float32]

# Sequences whose answers are held at once: enough that those of like length find each other.
_HELD = 128
_HELD_WHOLE = 8  # with an answer for each of their tokens
# Numbers that are held at once, 128 MB: an answer is as long as the vocabulary, and a sequence may have hundreds.
_HELD_NUMBERS = 2**25


def find_blanks(tokenizer: Tokenizer, text: str, top: int) -> tuple[Encoding, list[int]]:
    """A text as tokens, and which of them are blanks; ``top`` words are wanted for them."""
    if top < 1:
        raise RequestError(f"top is {top}; at least 1 was expected")
    encoding = tokenizer(text, read_mask=True)
    blanks = [index for index, piece in enumerate(encoding.ids) if piece == tokenizer.mask_id]
    if len(blanks) < count_blanks(text):
        raise RequestError(f"a [MASK] lies beyond the {tokenizer.max_length} tokens that this model reads")
    if not blanks:
        raise RequestError(f"no [MASK] in {text[:60]!r}; write [MASK] where a word is to be filled in")
    return encoding, blanks


def count_blanks(text: str) -> int:
    """How many words are to be filled in."""
    return text.count(MASK)


def with_ids(encoding: Encoding, changed: Mapping[int, int]) -> Encoding:
    """The same sequence with other tokens at some places."""
    ids = list(encoding.ids)
    for place, number in changed.items():
        ids[place] = number
    return replace(encoding, ids=ids)


def blank_logs(model: "Model", encodings: Iterator[Encoding]) -> Iterator[Floats]:
    """Log-probabilities of all pieces at each ``[MASK]`` of each sequence, in order: (M, V)."""
    mask_id = model.tokenizer.mask_id
    groups = _groups(encodings, lambda one: one.ids.count(mask_id), _HELD, model.bert.config.vocab_size)
    return _logs(model, groups, lambda batch: batch.ids == mask_id)


def seen_logs(model: "Model", encodings: Iterator[Encoding]) -> Iterator[Floats]:
    """Log-probabilities of all pieces at each token of each sequence, nothing hidden, in order: (T, V)."""
    groups = _groups(encodings, lambda one: len(one.ids), _HELD_WHOLE, model.bert.config.vocab_size)
    return _logs(model, groups, lambda batch: batch.real)


def _logs(model: "Model", groups: Iterator[list[Encoding]], asked: Callable[[Batch], Tensor]) -> Iterator[Floats]:
    """Log-probabilities at the tokens that are asked about."""

    @torch.inference_mode()
    def step(batch: Batch) -> list[Floats]:
        chosen = asked(batch)
        last = model.bert(batch.ids, batch.segments, batch.mask, chosen.flatten().nonzero().flatten()).last
        logs = model.bert.heads["mlm"](last[chosen]).float().log_softmax(-1)[:, : model.tokenizer.size].cpu()
        return [part.numpy() for part in logs.split(chosen.sum(1).tolist())]

    for group in groups:
        yield from model.run(group, step)


def _groups(
    encodings: Iterator[Encoding], answers: Callable[[Encoding], int], most: int, size: int
) -> Iterator[list[Encoding]]:
    """Sequences whose answers, each of ``size`` numbers, can be held at once; at most so many, and one at least."""
    group: list[Encoding] = []
    numbers = 0
    for encoding in encodings:
        own = answers(encoding) * size
        if group and (len(group) == most or numbers + own > _HELD_NUMBERS):
            yield group
            group, numbers = [], 0
        group.append(encoding)
        numbers += own
    if group:
        yield group


@dataclass(frozen=True)
class TokenWindow:
    """A stretch of a text as the model reads it, and the places of the tokens that are asked about in it."""

    encoding: Encoding
    places: range


def token_windows(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[TokenWindow]]:
    """Each text in windows that overlap by half, so that every token is asked about once, and with company."""
    if isinstance(texts, str):
        raise RequestError("one text was given where a list of texts was expected; put it into a list")
    found = tokenizer.encode_pieces(texts)
    unread = sum(pieces.unread > 0 for pieces in found)
    if unread:
        logger.warning("%d of %d texts are longer than can be read at once; give them in parts", unread, len(texts))
    room = tokenizer.room(1)
    windows = []
    for pieces in found:
        stretches = window_places(len(pieces), room, room // 2)
        # Between two windows the border is in the middle of what both have.
        borders = [(before[1] + after[0]) // 2 for before, after in pairwise(stretches)]
        edges = [0, *borders, len(pieces)]
        windows.append(
            [
                # One on, for [CLS].
                TokenWindow(tokenizer.assemble(pieces.cut(start, stop)), range(first - start + 1, last - start + 1))
                for (start, stop), (first, last) in zip(stretches, pairwise(edges), strict=True)
            ]
        )
    return windows


@torch.inference_mode()
def fill_blanks(model: "Model", encodings: Sequence[Encoding], top: int) -> list[list[list[Filled]]]:
    """The best words for each ``[MASK]`` of each sequence."""

    def step(batch: Batch) -> list[list[list[Filled]]]:
        blanks = batch.ids == model.tokenizer.mask_id
        needed = blanks.flatten().nonzero().flatten()
        states = model.bert(batch.ids, batch.segments, batch.mask, needed).last[blanks]  # (M, H)
        words = iter([words for part in states.split(_HELD) for words in _best(model, part, top)])
        return [[next(words) for _ in range(count)] for count in blanks.sum(1).tolist()]

    return model.run(encodings, step)


def _best(model: "Model", states: Tensor, top: int) -> list[list[Filled]]:
    probabilities = model.bert.heads["mlm"](states).softmax(-1)  # (M, V)
    # The table may have more rows than there are pieces.
    best = probabilities[:, : model.tokenizer.size].topk(min(top, model.tokenizer.size))
    return [
        [Filled(model.tokenizer.piece(piece), value) for value, piece in zip(values, pieces, strict=True)]
        for values, pieces in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]
