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
    ids[:, 0] = tokenizer.cls_id
    for row, example in enumerate(examples.tolist()):
        place = 1
        for start, stop, segment in plan.example(example):
            end = place + stop - start
            ids[row, place:end] = corpus.read(start, stop)
            ids[row, end] = tokenizer.sep_id
            segments[row, place : end + 1] = segment
            free[row, place:end] = True
            if words:
                starts[row, place + 1 : end] = corpus.word_starts(start + 1, stop)
            place = end + 1
    return Sequences(ids, segments, plan.lengths[examples], free, starts)
