"""Sentence pairs for next-sentence prediction, by the algorithm of the original ``create_pretraining_data``.

Sentences of a document lie one after the other in the corpus, so that a segment, several whole sentences, is a range
of tokens, and an example is five numbers. A whole epoch of them is planned at once and costs next to nothing.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cloze.corpus.settings import PairSettings
from cloze.corpus.shards import Corpus
from cloze.errors import DataError

SPECIAL_TOKENS = 3  # [CLS] A [SEP] B [SEP]

# Columns of a plan.
A_START, A_STOP, B_START, B_STOP, IS_RANDOM = range(5)
Plan = NDArray[np.int64]  # (examples, 5)


def plan_pairs(corpus: Corpus, settings: PairSettings, generator: np.random.Generator) -> Plan:
    """Plan one epoch: every sentence is used once as A or as the true B, in a new order each time."""
    if corpus.document_count < 2:
        raise DataError(
            f"the corpus has {corpus.document_count} document; next-sentence prediction takes its wrong answers from "
            "other documents, so at least two are needed: put a blank line between documents"
        )
    planner = _Planner(corpus, settings, generator)
    examples = [example for document in range(corpus.document_count) for example in planner.document(document)]
    plan = np.asarray(examples, dtype=np.int64).reshape(-1, 5)
    generator.shuffle(plan)
    return plan


@dataclass(frozen=True)
class _Planner:
    corpus: Corpus
    settings: PairSettings
    generator: np.random.Generator

    def document(self, document: int) -> list[tuple[int, int, int, int, int]]:
        """The examples of one document."""
        sentences, generator = self.corpus.sentences, self.generator
        room = self.settings.length - SPECIAL_TOKENS
        first, last = int(self.corpus.documents[document]), int(self.corpus.documents[document + 1])
        examples = []
        target = self._target(room)
        start = stop = first  # the sentences gathered so far
        while stop < last:
            stop += 1
            if stop < last and sentences[stop] - sentences[start] < target:
                continue
            middle = stop if stop - start == 1 else int(generator.integers(start + 1, stop))
            a = (int(sentences[start]), int(sentences[middle]))
            is_random = middle == stop or generator.random() < self.settings.random_share
            if is_random:
                b = self._random_segment(document, target - (a[1] - a[0]))
                stop = middle  # the sentences that were put aside are not lost: they start the next example
            else:
                b = (int(sentences[middle]), int(sentences[stop]))
            a, b = self._truncate(a, b, room)
            examples.append((*a, *b, int(is_random)))
            start, target = stop, self._target(room)
        return examples

    def _target(self, room: int) -> int:
        """How long this example wants to be.

        The original draws this once a document, whose share of short examples then grows with its length; here it is
        drawn for every example, so that the share is the one that was asked for.
        """
        if self.generator.random() < self.settings.short_share:
            return int(self.generator.integers(2, room + 1))
        return room

    def _random_segment(self, document: int, wanted: int) -> tuple[int, int]:
        """Sentences of another document, from a random one on, until there are ``wanted`` tokens or it ends."""
        other = int(self.generator.integers(self.corpus.document_count - 1))
        other += other >= document  # never the same document
        first, last = int(self.corpus.documents[other]), int(self.corpus.documents[other + 1])
        start = int(self.generator.integers(first, last))
        begin = int(self.corpus.sentences[start])
        # The first sentence end at or beyond what is wanted, at least one sentence on.
        ends = self.corpus.sentences[start + 1 : last + 1]
        index = min(int(np.searchsorted(ends, begin + max(1, wanted))), len(ends) - 1)
        return begin, int(ends[index])

    def _truncate(self, a: tuple[int, int], b: tuple[int, int], room: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Cut the longer segment, token by token, at either end by chance, so that neither end is favoured."""
        lengths = [a[1] - a[0], b[1] - b[0]]
        excess = sum(lengths) - room
        if excess <= 0:
            return a, b
        kept = _shared(lengths, room)
        return self._cut(a, kept[0]), self._cut(b, kept[1])

    def _cut(self, segment: tuple[int, int], kept: int) -> tuple[int, int]:
        surplus = segment[1] - segment[0] - kept
        front = int(self.generator.binomial(surplus, 0.5))
        return segment[0] + front, segment[0] + front + kept


def _shared(lengths: list[int], room: int) -> tuple[int, int]:
    """What two segments keep when the longer always gives first: (long, long), 125 -> (63, 62), as the original."""
    a, b = lengths
    # Ties take from B, as in the original, so that of an odd room A keeps the odd token.
    half_a, half_b = room - room // 2, room // 2
    if a <= half_a:
        return a, min(b, room - a)
    if b <= half_b:
        return room - b, b
    return half_a, half_b
