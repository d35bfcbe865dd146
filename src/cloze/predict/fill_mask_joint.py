"""Several blanks, filled together.

BERT says what fits each blank as if the others were not filled, so that the best words of two blanks may never go
together ("new angeles"). Here the most certain blank is filled first and the model is asked again, with what stands
there, about the others; the best few ways are kept on the way (a beam). Then each blank is asked once more, now that
all of the others are known.

Dimensions: M blanks, V vocabulary.

How likely a text is: pseudo-log-likelihood (Salazar et al. 2020, "Masked language model scoring").

A model that sees both sides has no chain rule. Each token is hidden in turn and its probability read off, given all of
the others; the sum ranks texts as a likelihood would. A long text is read in windows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from cloze.errors import RequestError
from cloze.predict.fill_mask import Floats, blank_logs, find_blanks, token_windows, with_ids
from cloze.predict.model import Model
from cloze.predict.results import FilledTogether, Score
from cloze.text import MASK, Encoding
from cloze.text.vocabulary import CONTINUATION

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


def fill_together(model: Model, text: str, top: int, rounds: int) -> list[FilledTogether]:
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
    model: Model, encoding: Encoding, blanks: Sequence[int], ways: Sequence[_Way], width: int
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
        for number in (one for one in _best(logs[row], width) if not np.isneginf(logs[row, one])):
            words = {**way.words, open_blanks[row]: number}
            grown.append(_Way(words, way.log_probability + float(logs[row, number])))
    return sorted(_distinct(grown), key=lambda way: -way.log_probability)[:width]


def _ask_again(model: Model, encoding: Encoding, ways: Sequence[_Way]) -> list[_Way]:
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


def _chain(model: Model, encoding: Encoding, words: Mapping[int, int]) -> float:
    """How likely these words are, each given those that were filled before it."""
    order = list(words)
    steps = [with_ids(encoding, {place: words[place] for place in order[:count]}) for count in range(len(order))]
    total = 0.0
    for count, logs in enumerate(blank_logs(model, iter(steps))):
        row = sorted(order[count:]).index(order[count])
        total += float(logs[row, words[order[count]]])
    return total


def _best(logs: Floats, count: int) -> list[int]:
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


def _told(model: Model, text: str, blanks: Sequence[int], way: _Way) -> FilledTogether:
    tokens = tuple(model.tokenizer.piece(way.words[place]) for place in blanks)
    first, *rest = text.split(MASK)
    for token, gap in zip(tokens, rest, strict=True):
        # The end of a word joins what stands before it.
        first = first.rstrip() + token.removeprefix(CONTINUATION) if token.startswith(CONTINUATION) else first + token
        first += gap
    return FilledTogether(tokens, way.log_probability, first)


def score_texts(model: Model, texts: Sequence[str]) -> list[Score]:
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
