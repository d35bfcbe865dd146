"""Planned examples -> tokens: ``[CLS]``, and each chunk followed by ``[SEP]``.

Dimensions: B sequences, T tokens.
"""

from dataclasses import dataclass

import numpy as np

from cloze.corpus.plans import Flags, Ids, Plan
from cloze.corpus.shards import Corpus
from cloze.text import Tokenizer


@dataclass(frozen=True)
class Sequences:
    """Sequences before anything is hidden."""

    ids: Ids  # (B, T)
    segments: Ids  # (B, T)
    lengths: Ids  # (B,) real tokens of each sequence; the rest is padding
    free: Flags  # (B, T) tokens of the text, which may be chosen; what was put around them may not
    starts: Flags  # (B, T) first tokens of words; true also wherever it is not free


def assemble(corpus: Corpus, tokenizer: Tokenizer, plan: Plan, examples: Ids, *, width: int, words: bool) -> Sequences:
    """Read some examples of a plan; without ``words``, every token is a word of its own.

    What is left of a word that was cut by truncation is a word.
    """
    shape = len(examples), width
    ids = np.full(shape, tokenizer.pad_id, dtype=np.int64)
    segments = np.zeros(shape, np.int64)
    free, starts = np.zeros(shape, bool), np.ones(shape, bool)
    chunks, counts = plan.chunks_of(examples)
    begins, stops, numbers = chunks.T
    sizes = stops - begins
    places = _places(sizes + 1, counts, width)
    ends = places + sizes
    tokens = np.arange(sizes.sum()) + np.repeat(places - (np.cumsum(sizes) - sizes), sizes)
    ranges = list(zip(begins.tolist(), stops.tolist(), strict=True))
    ids[:, 0] = tokenizer.cls_id
    ids.reshape(-1)[tokens] = np.concatenate([corpus.read(*one) for one in ranges])
    ids.reshape(-1)[ends] = tokenizer.sep_id
    segments.reshape(-1)[tokens] = np.repeat(numbers, sizes)
    segments.reshape(-1)[ends] = numbers
    free.reshape(-1)[tokens] = True
    if words:
        starts.reshape(-1)[tokens] = np.concatenate([corpus.word_starts(*one) for one in ranges])
        starts.reshape(-1)[places] = True
    return Sequences(ids, segments, plan.lengths[examples], free, starts)


def _places(sizes: Ids, counts: Ids, width: int) -> Ids:
    """Where each chunk starts in the flattened (B * T): the first of a row behind its ``[CLS]``, others in turn."""
    before = np.cumsum(sizes) - sizes
    firsts = np.cumsum(counts) - counts
    places: Ids = before + np.repeat(np.arange(len(counts)) * width + 1 - before[firsts], counts)
    return places
