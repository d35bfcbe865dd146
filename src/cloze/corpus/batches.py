"""Examples for pre-training, made while training: pairs and masks are new in every epoch.

The batch of a step is a pure function of (seed, step), so that a resumed run sees what the interrupted one would have
seen, and any step can be looked at on its own.

Dimensions: B sequences, T tokens, M chosen tokens of the batch.
"""

from dataclasses import dataclass, field

import numpy as np

from cloze.corpus.masking import Ids, choose, hide
from cloze.corpus.pairs import A_START, A_STOP, B_START, B_STOP, IS_RANDOM, Plan, plan_pairs
from cloze.corpus.settings import MaskSettings, PairSettings
from cloze.corpus.shards import Corpus
from cloze.errors import DataError
from cloze.text import Tokenizer

# Streams of random numbers that must not share their numbers.
_PAIRS, _MASKS = 1, 2


@dataclass(frozen=True)
class PretrainingBatch:
    """Arrays of one step; still NumPy, so that making them needs no torch."""

    ids: Ids  # (B, T) as the model sees them
    segments: Ids  # (B, T)
    lengths: Ids  # (B,) real tokens of each sequence; the rest is padding
    positions: Ids  # (M,) of the chosen tokens, in the flattened (B * T)
    targets: Ids  # (M,) what stood there
    is_random: Ids  # (B,) 1 where B is a random segment

    @property
    def token_count(self) -> int:
        """Real tokens, padding not counted."""
        return int(self.lengths.sum())


@dataclass
class PretrainingBatches:
    """The batches of a corpus, by step."""

    corpus: Corpus
    tokenizer: Tokenizer
    batch: int
    pairs: PairSettings
    masks: MaskSettings
    seed: int
    _epoch: int = field(default=-1, init=False)
    _plan: Plan = field(init=False)
    _sizes: list[int] = field(default_factory=list, init=False)  # batches in each epoch planned so far

    def __post_init__(self) -> None:
        special = self.tokenizer.special_ids
        self._ordinary = np.asarray([index for index in range(self.tokenizer.size) if index not in special])

    def at(self, step: int) -> PretrainingBatch:
        """The batch of a step, counted from 0."""
        epoch, start = self._locate(step)
        rows = self._rows(epoch)[start : start + self.batch]
        return self._make(rows, np.random.default_rng([self.seed, _MASKS, step]))

    def epoch_at(self, step: int) -> int:
        """Which pass over the corpus a step belongs to."""
        return self._locate(step)[0]

    def _locate(self, step: int) -> tuple[int, int]:
        """The epoch of a step and the row of its plan where the batch starts; a last, smaller batch is left out."""
        epoch = 0
        while True:
            if epoch == len(self._sizes):
                self._sizes.append(self._count(epoch))
            if step < self._sizes[epoch]:
                return epoch, step * self.batch
            step -= self._sizes[epoch]
            epoch += 1

    def _count(self, epoch: int) -> int:
        count = len(self._rows(epoch)) // self.batch
        if count == 0:
            raise DataError(
                f"the corpus gives {len(self._rows(epoch))} sequences of {self.pairs.length} tokens, fewer than one "
                f"batch of {self.batch}; use more text, a smaller --batch or a smaller --length"
            )
        return count

    def _rows(self, epoch: int) -> Plan:
        if epoch != self._epoch:
            self._plan = plan_pairs(self.corpus, self.pairs, np.random.default_rng([self.seed, _PAIRS, epoch]))
            self._epoch = epoch
        return self._plan

    def _make(self, rows: Plan, generator: np.random.Generator) -> PretrainingBatch:
        ids, segments, lengths = self._assemble(rows)
        filled = np.arange(ids.shape[1]) < lengths[:, None]
        special = (ids == self.tokenizer.cls_id) | (ids == self.tokenizer.sep_id)
        chosen = choose(filled & ~special, lengths, self.masks.rate, generator)
        return PretrainingBatch(
            ids=hide(ids, chosen, self.tokenizer.mask_id, self._ordinary, self.masks, generator),
            segments=segments,
            lengths=lengths,
            positions=np.flatnonzero(chosen),
            targets=ids[chosen],
            is_random=rows[:, IS_RANDOM],
        )

    def _assemble(self, rows: Plan) -> tuple[Ids, Ids, Ids]:
        """``[CLS] A [SEP] B [SEP]``, padded to the longest of the batch."""
        a_lengths, b_lengths = rows[:, A_STOP] - rows[:, A_START], rows[:, B_STOP] - rows[:, B_START]
        lengths = a_lengths + b_lengths + 3
        ids = np.full((len(rows), int(lengths.max())), self.tokenizer.pad_id, dtype=np.int64)
        segments = np.zeros_like(ids)
        ids[:, 0] = self.tokenizer.cls_id
        for row, (example, a, b) in enumerate(zip(rows, a_lengths, b_lengths, strict=True)):
            ids[row, 1 : a + 1] = self.corpus.tokens[example[A_START] : example[A_STOP]]
            ids[row, a + 1] = self.tokenizer.sep_id
            ids[row, a + 2 : a + b + 2] = self.corpus.tokens[example[B_START] : example[B_STOP]]
            ids[row, a + b + 2] = self.tokenizer.sep_id
            segments[row, a + 2 : a + b + 3] = 1
        return ids, segments, lengths
