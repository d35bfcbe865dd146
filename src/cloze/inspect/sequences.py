"""Documents -> the sequences of a survey: pairs of neighbouring sentences, as in pre-training, or single ones."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from cloze.errors import DataError
from cloze.inspect.settings import FEWEST_SEQUENCES
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
