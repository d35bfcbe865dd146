"""The sequences of a survey: draw them from documents, and choose those that illustrate a head's label.

Sequences are pairs of neighbouring sentences, as in pre-training, or single sentences for models with one segment.

Dimensions: K heads of all layers, P patterns, S sequences, T tokens.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from cloze.errors import DataError
from cloze.inspect.patterns import PATTERNS, Layout, targets
from cloze.inspect.scoring import ScoreAccumulator, Scores
from cloze.inspect.settings import FEWEST_SEQUENCES
from cloze.predict.results import row_entropy
from cloze.text import Encoding, Tokenizer, split_sentences
from cloze.text.encoding import Word

# Draw from this many paragraphs per requested sequence: the first page of a book does not represent the book.
_PARAGRAPHS_PER_SEQUENCE = 20
# With fewer ordinary tokens, a head has hardly any choice of where to attend.
_FEWEST_TOKENS = 6
# Added to the number of targets when ranking examples: one target that is hit shows less than nine of ten.
_SMOOTHING = 2.0


@dataclass(frozen=True)
class Sample:
    """One encoded sequence, its words, and the texts it was made of."""

    text: str
    pair: str | None
    encoding: Encoding
    words: Sequence[Word]


def draw_samples(
    documents: Iterable[Sequence[str]], tokenizer: Tokenizer, *, count: int, length: int, paired: bool, seed: int
) -> list[Sample]:
    """Draw sequences from documents.

    Every sequence of the first documents is drawn with the same probability.

    Args:
        documents: Lists of paragraphs.
        tokenizer: The model's tokenizer.
        count: Number of sequences; fewer if the text has no more.
        length: Maximum tokens per sequence.
        paired: Draw pairs of neighbouring sentences; single sentences otherwise, or if the text has too few pairs.
        seed: Random seed.

    Raises:
        DataError: The text has fewer than ``FEWEST_SEQUENCES`` usable sequences.
    """
    sentences = [
        [sentence for paragraph in document for sentence in split_sentences(paragraph)]
        for document in _first_documents(documents, count)
    ]
    pairs: list[tuple[str, str | None]] = [
        (document[index], document[index + 1]) for document in sentences for index in range(0, len(document) - 1, 2)
    ]
    if not paired or len(pairs) < FEWEST_SEQUENCES:
        pairs = [(sentence, None) for document in sentences for sentence in document]
    length = min(length, tokenizer.max_length)
    samples: list[Sample] = []
    for index in np.random.default_rng(seed).permutation(len(pairs)):
        text, pair = pairs[index]
        encoding = tokenizer(text, pair, max_length=length)
        if sum(source is not None for source in encoding.sources) >= _FEWEST_TOKENS:
            samples.append(Sample(text, pair, encoding, tokenizer.words(encoding, text, pair)))
        if len(samples) == count:
            break
    if len(samples) < FEWEST_SEQUENCES:
        raise DataError(
            f"{len(samples)} sequences of {_FEWEST_TOKENS} tokens or more in the text; "
            f"at least {FEWEST_SEQUENCES} were expected, and hundreds are better: give more text"
        )
    return samples


def _first_documents(documents: Iterable[Sequence[str]], count: int) -> Iterator[Sequence[str]]:
    """Yield documents until they have enough paragraphs; truncate the last one."""
    remaining = count * _PARAGRAPHS_PER_SEQUENCE
    for document in documents:
        paragraphs = list(islice(document, remaining))
        yield paragraphs
        remaining -= len(paragraphs)
        if remaining <= 0:
            return


@dataclass(frozen=True)
class Example:
    """One token of a sequence and the attention of one head from it."""

    pattern: str  # the label that it illustrates; for a head without labels, the pattern with the highest strength
    tokens: tuple[str, ...]
    segments: tuple[int, ...]
    origin: int  # index of the attending token
    weights: tuple[float, ...]  # attention from it to each token
    targets: tuple[int, ...]  # the pattern's targets; empty for broad attention
    share: float  # share of the attention on the targets


def example_labels(labels: Sequence[tuple[str, ...]], scores: Scores) -> list[tuple[str, ...]]:
    """Return the labels to illustrate for each head: its own, or the pattern with the highest strength."""
    nearest = np.nan_to_num(scores.strength, nan=-np.inf).argmax(0)
    return [names or (PATTERNS[nearest[head]],) for head, names in enumerate(labels)]


def best_sequences(accumulator: ScoreAccumulator, head: int, name: str, count: int) -> list[int]:
    """Return the indices of the sequences that illustrate a head's label best, best first."""
    if name in PATTERNS:
        pattern = PATTERNS.index(name)
        masses, counts = accumulator.masses[:, pattern, head], accumulator.counts[:, pattern]
    else:
        masses, counts = accumulator.evenness[:, head], accumulator.tokens
    order = np.argsort(-masses / (counts + _SMOOTHING), kind="stable")[:count]
    return [int(index) for index in order if counts[index] > 0]


def make_example(weights: NDArray[np.float32], sample: Sample, layout: Layout, name: str) -> Example:
    """Build an example from the token that illustrates a label best.

    Args:
        weights: The attention of one head, (T, T).
        sample: The sequence.
        layout: Its layout.
        name: The label.
    """
    has_targets = name in PATTERNS
    pattern_targets = targets(layout)[PATTERNS.index(name)] if has_targets else np.zeros_like(layout.related)
    shares = (weights * pattern_targets).sum(-1)
    clarity = shares if has_targets else row_entropy(weights)
    origin = int(np.where(layout.ordinary, clarity, -1.0).argmax())
    return Example(
        pattern=name,
        tokens=tuple(sample.encoding.tokens),
        segments=tuple(sample.encoding.segments),
        origin=origin,
        weights=tuple(round(float(weight), 4) for weight in weights[origin]),
        targets=tuple(int(index) for index in np.flatnonzero(pattern_targets[origin])),
        share=round(float(shares[origin]), 4),
    )
