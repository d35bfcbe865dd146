"""Blanks of texts: where they are, and what a model says of them.

Dimensions: M blanks of a sequence, T tokens, V vocabulary.

The best words for blanks, each blank on its own (Devlin et al. 2019, section 3.1).

Dimensions: M blanks of a batch, V vocabulary.

Several blanks, filled together.

BERT says what fits each blank as if the others were not filled, so that the best words of two blanks may never go
together ("new angeles"). Here the most certain blank is filled first and the model is asked again, with what stands
there, about the others; the best few ways are kept on the way (a beam). Then each blank is asked once more, now that
all of the others are known.

Dimensions: M blanks, V vocabulary.

How likely a text is: pseudo-log-likelihood (Salazar et al. 2020, "Masked language model scoring").

A model that sees both sides has no chain rule. Each token is hidden in turn and its probability read off, given all of
the others; the sum ranks texts as a likelihood would. A long text is read in windows.
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

from cloze.errors import RequestError
from cloze.model.batch import Batch
from cloze.predict.results import Filled, FilledTogether, Score
from cloze.text import MASK, Encoding, Tokenizer, window_places
from cloze.text.vocabulary import CONTINUATION

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


# Ways that are kept at the least: with one alone, the first word could never be wrong.
_LEAST_WAYS = 5


@dataclass(frozen=True)
class _Way:
    """Blanks that are filled so far, in the order in which they were, and how likely that is."""

    words: Mapping[int, int] = field(default_factory=dict)  # place -> id
    log_probability: float = 0.0

    def key(self) -> tuple[tuple[int, int], ...]:
        """What tells it from others, whatever the order."""
        return tuple(sorted(self.words.items()))


def most_passes(blanks: int, top: int, rounds: int) -> int:
    """How often a text with so many blanks is read at the most."""
    # In each way, each blank is filled; and in each round, hidden again and found how likely it is.
    return max(top, _LEAST_WAYS) * blanks * (1 + 2 * rounds)


def fill_together(model: "Model", text: str, top: int, rounds: int) -> list[FilledTogether]:
    """The best ways to fill all blanks; ``rounds`` is how often each blank is asked again."""
    if rounds < 0:
        raise RequestError(f"rounds is {rounds}; a number was expected, or 0 to ask no blank again")
    encoding, blanks = find_blanks(model.tokenizer, text, top)
    model.tell_cut([encoding])
    width = max(top, _LEAST_WAYS)
    ways = [_Way()]
    for _ in blanks:
        ways = _fill_one_more(model, encoding, blanks, ways, width)
    for _ in range(rounds):
        asked_again = _ask_again(model, encoding, ways)
        if {way.key() for way in asked_again} == {way.key() for way in ways}:
            break
        ways = sorted(_distinct([*ways, *asked_again]), key=lambda way: -way.log_probability)[:width]
    return [_told(model, text, blanks, way) for way in ways[:top]]


def _fill_one_more(
    model: "Model", encoding: Encoding, blanks: Sequence[int], ways: Sequence[_Way], width: int
) -> list[_Way]:
    """Fill the most certain of each way's open blanks with each of the likeliest words, and keep the best ways."""
    grown = []
    mask_id = model.tokenizer.mask_id
    answers = blank_logs(model, iter([with_ids(encoding, way.words) for way in ways]))
    for way, logs in zip(ways, answers, strict=True):
        open_blanks = [place for place in blanks if place not in way.words]
        logs[:, mask_id] = -np.inf  # a blank that is filled with a blank is none the less open
        row = int(logs.max(-1).argmax())
        # A small vocabulary may have fewer words than are wanted.
        for number in (one for one in _best_assignments(logs[row], width) if not np.isneginf(logs[row, one])):
            words = {**way.words, open_blanks[row]: number}
            grown.append(_Way(words, way.log_probability + float(logs[row, number])))
    return sorted(_distinct(grown), key=lambda way: -way.log_probability)[:width]


def _ask_again(model: "Model", encoding: Encoding, ways: Sequence[_Way]) -> list[_Way]:
    """Hide each blank of each way once more, one after the other, and take the likeliest word."""
    current = [dict(way.words) for way in ways]
    for number in range(len(current[0])):
        places = [list(words)[number] for words in current]
        hidden = [
            with_ids(encoding, {**words, place: model.tokenizer.mask_id})
            for words, place in zip(current, places, strict=True)
        ]
        for words, place, logs in zip(current, places, blank_logs(model, iter(hidden)), strict=True):
            logs[0, model.tokenizer.mask_id] = -np.inf
            words[place] = int(logs[0].argmax())
    return [_Way(words, _chain(model, encoding, words)) for words in current]


def _chain(model: "Model", encoding: Encoding, words: Mapping[int, int]) -> float:
    """How likely these words are, each given those that were filled before it."""
    order = list(words)
    steps = [with_ids(encoding, {place: words[place] for place in order[:count]}) for count in range(len(order))]
    total = 0.0
    for count, logs in enumerate(blank_logs(model, iter(steps))):
        row = sorted(order[count:]).index(order[count])
        total += float(logs[row, words[order[count]]])
    return total


def _best_assignments(logs: Floats, count: int) -> list[int]:
    chosen: list[int] = np.argsort(-logs, kind="stable")[:count].tolist()
    return chosen


def _distinct(ways: Sequence[_Way]) -> list[_Way]:
    """Each way once, as the likelier of its orders has it."""
    found: dict[tuple[tuple[int, int], ...], _Way] = {}
    for way in ways:
        known = found.get(way.key())
        if known is None or way.log_probability > known.log_probability:
            found[way.key()] = way
    return list(found.values())


def _told(model: "Model", text: str, blanks: Sequence[int], way: _Way) -> FilledTogether:
    tokens = tuple(model.tokenizer.piece(way.words[place]) for place in blanks)
    first, *rest = text.split(MASK)
    for token, gap in zip(tokens, rest, strict=True):
        # The end of a word joins what stands before it.
        first = first.rstrip() + token.removeprefix(CONTINUATION) if token.startswith(CONTINUATION) else first + token
        first += gap
    return FilledTogether(tokens, way.log_probability, first)


def score_texts(model: "Model", texts: Sequence[str]) -> list[Score]:
    """Hide every token of every text once."""
    windows = token_windows(model.tokenizer, texts)
    mask_id = model.tokenizer.mask_id

    def hidden() -> Iterator[Encoding]:
        for text in windows:
            for window in text:
                for place in window.places:
                    yield with_ids(window.encoding, {place: mask_id})

    logs = blank_logs(model, hidden())
    scores = []
    for text, own in zip(texts, windows, strict=True):
        asked = [(window.encoding, place) for window in own for place in window.places]
        values = [float(next(logs)[0, encoding.ids[place]]) for encoding, place in asked]
        scores.append(Score(text, tuple(encoding.tokens[place] for encoding, place in asked), tuple(values)))
    return scores
