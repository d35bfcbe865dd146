"""What an epoch consists of: examples as ranges of the corpus, before any token is read.

Sentences lie one after the other in the corpus, so that several whole ones are a range of tokens, here called a chunk.
Whatever the objective, an example is ``[CLS]`` and its chunks, each followed by ``[SEP]``: two for sentence pairs, one
and more for full sentences.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, repeat

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Flags = NDArray[np.bool_]

_BLOCK = 4096


@dataclass(frozen=True)
class Plan:
    """The examples of an epoch, in the order of the corpus."""

    chunks: Ids  # (C, 3): the first token, the one after the last, and the segment
    rows: Ids  # (E + 1,): the chunk that each example starts with, and the end
    labels: Ids  # (E,): 1 where the second segment is random, or the two are swapped; (0,) where nothing is asked
    tossed: Flags  # (E,) or (0,): whether chance decided the label, and not that there was nothing to follow

    @property
    def count(self) -> int:
        """How many examples there are."""
        return len(self.rows) - 1

    @cached_property
    def lengths(self) -> Ids:
        """Tokens of each example, the special ones included: (E,)."""
        sizes = self.chunks[:, 1] - self.chunks[:, 0] + 1  # and its [SEP]
        ends = np.concatenate([[0], np.cumsum(sizes)])
        lengths: Ids = ends[self.rows[1:]] - ends[self.rows[:-1]] + 1  # and [CLS]
        return lengths

    def chunks_of(self, examples: Ids) -> tuple[Ids, Ids]:
        """The chunks of some examples one after the other (N, 3), and how many each example has (B,)."""
        firsts = self.rows[examples]
        counts = self.rows[examples + 1] - firsts
        numbers = np.arange(counts.sum()) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)
        return self.chunks[numbers], counts


def drawing(generator: np.random.Generator) -> Callable[[], float]:
    """A function that returns one number from 0 up to 1 after the other, drawn in blocks: a call costs next to nothing.

    It is for walks where what is drawn next depends on what came before, and arrays are of no use.
    """
    blocks = (generator.random(_BLOCK).tolist() for _ in repeat(None))
    return chain.from_iterable(blocks).__next__
