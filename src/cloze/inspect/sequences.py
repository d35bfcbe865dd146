"""Documents -> the sequences of a survey: pairs of neighbouring sentences, as in pre-training, or single ones.

The sequences that show a head's label best, and in each the token that does.

Dimensions: K heads of all layers, P patterns, S sequences, T tokens.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from cloze.errors import DataError
from cloze.inspect.patterns import PATTERNS, Layout, targets
from cloze.inspect.scoring import Scores, Tally
from cloze.inspect.settings import FEWEST_SEQUENCES
from cloze.predict.results import row_entropy
from cloze.text import Encoding, Tokenizer, split_sentences
from cloze.text.encoding import Word

# Of so many times the sequences that are asked for, some are drawn: the first page of a book is not the book.
_DRAWN_FROM = 20
# Two sentences of fewer ordinary tokens hardly leave a head a choice.
_FEWEST_TOKENS = 6


@dataclass(frozen=True)
class Sample:
    """One sequence with its words; ``text`` and ``pair`` are what it was made of."""

    text: str
    pair: str | None
    encoding: Encoding
    words: Sequence[Word]


def draw_samples(
    documents: Iterable[Sequence[str]], tokenizer: Tokenizer, *, count: int, length: int, paired: bool, seed: int
) -> list[Sample]:
    """Draw sequences from documents, which are lists of paragraphs; pairs, unless the model or the text has none.

    Within the first documents every sequence has the same chance; the same seed draws the same.
    """
    sentences = [
        [sentence for paragraph in document for sentence in split_sentences(paragraph)]
        for document in _enough(documents, count)
    ]
    pairs: list[tuple[str, str | None]] = [
        (document[place], document[place + 1]) for document in sentences for place in range(0, len(document) - 1, 2)
    ]
    if not paired or len(pairs) < FEWEST_SEQUENCES:
        pairs = [(sentence, None) for document in sentences for sentence in document]
    length = min(length, tokenizer.max_length)
    found: list[Sample] = []
    for index in np.random.default_rng(seed).permutation(len(pairs)):
        text, pair = pairs[index]
        encoding = tokenizer(text, pair, max_length=length)
        if sum(source is not None for source in encoding.sources) >= _FEWEST_TOKENS:
            found.append(Sample(text, pair, encoding, tokenizer.words(encoding, text, pair)))
        if len(found) == count:
            break
    if len(found) < FEWEST_SEQUENCES:
        raise DataError(
            f"{len(found)} sequences of {_FEWEST_TOKENS} tokens or more in the text; "
            f"at least {FEWEST_SEQUENCES} were expected, and hundreds are better: give more text"
        )
    return found


def _enough(documents: Iterable[Sequence[str]], count: int) -> Iterator[Sequence[str]]:
    """The documents up to where there are more than enough paragraphs, one of them never more than its share."""
    left = count * _DRAWN_FROM
    for document in documents:
        paragraphs = list(islice(document, left))
        yield paragraphs
        left -= len(paragraphs)
        if left <= 0:
            return


# A sequence with one target that is hit shows less than one with ten of which nine are.
_DOUBT = 2.0


@dataclass(frozen=True)
class Example:
    """A token of a sequence and where one head's attention from it goes."""

    pattern: str  # the label that it shows; of a head that has none, the nearest
    tokens: tuple[str, ...]
    segments: tuple[int, ...]
    origin: int  # the token that attends
    weights: tuple[float, ...]  # to each of the tokens
    targets: tuple[int, ...]  # those that the pattern names; none for broad attention
    share: float  # of the weights that lies on them


def shown_names(labels: Sequence[tuple[str, ...]], scores: Scores) -> list[tuple[str, ...]]:
    """What each head is shown by: all of its labels, or the pattern that is nearest to one."""
    nearest = np.nan_to_num(scores.strength, nan=-np.inf).argmax(0)
    return [names or (PATTERNS[nearest[head]],) for head, names in enumerate(labels)]


def best_sequences(tally: Tally, head: int, name: str, count: int) -> list[int]:
    """The sequences that show a label of a head best, the best first."""
    if name in PATTERNS:
        pattern = PATTERNS.index(name)
        masses, counts = tally.masses[:, pattern, head], tally.counts[:, pattern]
    else:
        masses, counts = tally.evenness[:, head], tally.tokens
    order = np.argsort(-masses / (counts + _DOUBT), kind="stable")[:count]
    return [int(index) for index in order if counts[index] > 0]


def make_example(weights: NDArray[np.float32], sample: Sample, layout: Layout, name: str) -> Example:
    """The token of a sequence that shows a label best; ``weights`` are one head's, (T, T)."""
    has_targets = name in PATTERNS
    wanted = targets(layout)[PATTERNS.index(name)] if has_targets else np.zeros_like(layout.related)
    shares = (weights * wanted).sum(-1)
    worth = shares if has_targets else row_entropy(weights)
    origin = int(np.where(layout.ordinary, worth, -1.0).argmax())
    return Example(
        pattern=name,
        tokens=tuple(sample.encoding.tokens),
        segments=tuple(sample.encoding.segments),
        origin=origin,
        weights=tuple(round(float(weight), 4) for weight in weights[origin]),
        targets=tuple(int(place) for place in np.flatnonzero(wanted[origin])),
        share=round(float(shares[origin]), 4),
    )
