"""Pre-training batches, built during training: shards -> sampling -> masking -> **batch**.

Every epoch has new sequences and masks; with ``static``, epochs cycle through a fixed number of variants. Each row of a
batch is a pure function of (seed, epoch, step, row): a resumed run gets the same batches as an uninterrupted one, each
process of a distributed run can build its own rows, and any step can be reproduced in isolation.

Dimensions: B sequences, T tokens, M selected tokens of the batch.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cloze.corpus.masking import STREAMS, Fates, Masker, change_copies, plan_copies
from cloze.corpus.sampling import (
    EpochPlan,
    Ids,
    Sequences,
    assemble,
    plan_full_sentences,
    plan_next_sentences,
    plan_relations,
    plan_sentence_order,
)
from cloze.corpus.settings import ExampleSettings, MaskSettings, Objective, check_seed
from cloze.corpus.shards import Corpus
from cloze.corpus.word_tables import Draws, WordTables
from cloze.errors import ConfigError, DataError
from cloze.text import Tokenizer

# Names of independent streams of random numbers.
_PLANS, _ORDERS, _MASKS, _COPIES = 1, 2, 3, 4
_PLANNERS: dict[Objective, Callable[[Corpus, ExampleSettings, np.random.Generator], EpochPlan]] = {
    "nsp": plan_next_sentences,
    "sop": plan_sentence_order,
    "relation": plan_relations,
    "copy": plan_copies,
    "none": plan_full_sentences,
}
_NO_TABLES = WordTables()


@dataclass(frozen=True)
class PretrainingBatch:
    """The arrays of one step, as NumPy arrays, so that building them does not require torch."""

    ids: Ids  # (B, T) input of the model
    segments: Ids  # (B, T)
    lengths: Ids  # (B,) number of real tokens; the rest is padding
    positions: Ids  # (M,) flat positions of the selected tokens in (B, T)
    targets: Ids  # (M,) original ids; for a left-to-right model, the ids after these positions
    labels: Ids  # (B,) as in ``EpochPlan``; (0,) without pairs
    boundaries: Ids | None  # (M, 3) for spans: flat positions before and after the span, index within it
    fates: Fates  # (M,) 0 hidden (correction: similar word), 1 replaced, 2 kept, 3 no similar word known
    units: Ids  # (M, 2) flat position at which the token's unit starts, words drawn for it
    objective: Objective = "none"  # how the sequences were sampled

    @property
    def token_count(self) -> int:
        """Number of tokens, not counting padding."""
        return int(self.lengths.sum())

    @property
    def counts(self) -> dict[str, int]:
        """Number of terms in the mean of each loss."""
        return {"masked_tokens": len(self.targets), "pairs": len(self.labels), "tokens": self.token_count}


@dataclass(frozen=True)
class Examples:
    """The planned examples of a batch, or of a part of its rows."""

    plan: EpochPlan
    numbers: Ids  # (B,) indices into the plan
    counters: Ids  # (B, 3) counter of the random number generator for each row
    width: int  # T


class PretrainingBatches:
    """The batches of a corpus, accessed by step."""

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: Tokenizer,
        *,
        batch_size: int,
        examples: ExampleSettings,
        masks: MaskSettings,
        seed: int,
        static: int = 0,
        tables: WordTables = _NO_TABLES,
    ) -> None:
        """Open the batches of a corpus.

        Args:
            corpus: One split of a prepared corpus.
            tokenizer: The tokenizer that the corpus was prepared with.
            batch_size: Sequences per step.
            examples: How sequences are sampled.
            masks: How tokens are masked.
            seed: Seed of all random numbers.
            static: Number of variants of examples and masks that epochs cycle through, like ``dupe_factor`` of the
                original code, which wrote examples before training. Their order changes in every epoch. With 0, every
                epoch has new examples and masks.
            tables: Word tables for entity and correction masking.
        """
        if batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size}; expected at least 1")
        if static < 0:
            raise ConfigError(f"static is {static}; expected a number of variants, or 0 for new ones each epoch")
        check_seed(seed)
        self.corpus, self.tokenizer = corpus, tokenizer
        self.batch_size, self.examples, self.masks, self.seed, self.static = batch_size, examples, masks, seed, static
        self.masker = Masker.of(tokenizer, masks, tables)
        self._key = np.random.SeedSequence([seed, _MASKS]).generate_state(2, np.uint64)
        self._epoch, self._variant = -1, -1
        self._plan: EpochPlan
        self._order: Ids
        self._sizes: list[int] = []  # batches in each epoch planned so far

    def at(self, step: int, part: int = 0, parts: int = 1) -> PretrainingBatch:
        """Return the batch of a step (from 0), or one of ``parts`` equal parts of its rows."""
        examples = self.examples_at(step, part, parts)
        sequences = self.read(examples)
        masked = self.masker(sequences, self._draw(examples))
        return PretrainingBatch(
            ids=masked.ids,
            segments=sequences.segments,
            lengths=sequences.lengths,
            positions=masked.positions,
            targets=masked.targets,
            labels=examples.plan.labels[examples.numbers] if len(examples.plan.labels) else examples.plan.labels,
            boundaries=masked.boundaries,
            fates=masked.fates,
            units=masked.units,
            objective=self.examples.objective,
        )

    def epoch_at(self, step: int) -> int:
        """Return the epoch that a step belongs to."""
        return self._locate(step)[0]

    def steps_in(self, epoch: int) -> int:
        """Return the number of batches in an epoch; an incomplete last batch is dropped."""
        while len(self._sizes) <= epoch:
            self._sizes.append(self._count(len(self._sizes)))
        return self._sizes[epoch]

    def examples_at(self, step: int, part: int = 0, parts: int = 1) -> Examples:
        """Return the planned examples of a step, or of a part of its rows."""
        if not 0 <= part < parts <= self.batch_size:
            raise ConfigError(
                f"part {part} of {parts} of a batch of {self.batch_size}; expected parts of at least one sequence"
            )
        epoch, place = self._locate(step)
        self._prepare(epoch)
        start = place * self.batch_size
        whole = self._order[start : start + self.batch_size]
        # All parts are as wide as the whole batch, so that they can be concatenated.
        width = int(self._plan.lengths[whole].max())
        rows = np.arange(part * self.batch_size // parts, (part + 1) * self.batch_size // parts)
        counters = np.zeros((len(rows), 3), np.int64)
        # With static masks, the random numbers depend on the example; otherwise, on the step and the row.
        columns = (whole[rows], self._variant, 1) if self.static else (rows, step, 0)
        counters[:, 0], counters[:, 1], counters[:, 2] = columns
        return Examples(self._plan, whole[rows], counters, width)

    def read(self, examples: Examples) -> Sequences:
        """Read the sequences before masking; copy pairs with their words dropped and moved."""
        copies = self.examples.objective == "copy"
        words = self.masker.needs_words or copies
        sequences = assemble(
            self.corpus, self.tokenizer, examples.plan, examples.numbers, width=examples.width, words=words
        )
        if not copies:
            return sequences
        generators = (np.random.default_rng([self.seed, _COPIES, *row]) for row in examples.counters.tolist())
        return change_copies(sequences, generators, self.examples, self.tokenizer.pad_id)

    def _draw(self, examples: Examples) -> Draws:
        """Draw random numbers, (B, STREAMS, T). The numbers of a row do not depend on the width of the batch.

        Philox computes its numbers from a key and a counter, so a row's numbers depend only on the row's counter.
        """
        bits = np.random.Philox(key=self._key)
        generator, state = np.random.Generator(bits), bits.state
        # Philox yields four numbers per counter value, so the length is rounded up to a multiple of four.
        draws = np.empty((len(examples.numbers), STREAMS, -(-self.examples.max_length // 4) * 4))
        fours = draws[0].size // 4
        # Rows with consecutive counters are drawn at once.
        for rows in np.split(np.arange(len(draws)), np.flatnonzero(np.diff(examples.counters[:, 0]) != 1) + 1):
            row, *others = examples.counters[rows[0]]
            state["state"]["counter"] = np.array([row * fours, *others, 0], np.uint64)
            bits.state = state
            generator.random(out=draws[rows[0] : rows[-1] + 1])
        return draws[:, :, : examples.width]

    def _locate(self, step: int) -> tuple[int, int]:
        """Return the epoch of a step and the index of its batch within the epoch."""
        epoch = 0
        while step >= self.steps_in(epoch):
            step -= self.steps_in(epoch)
            epoch += 1
        return epoch, step

    def _count(self, epoch: int) -> int:
        self._prepare(epoch)
        count = self._plan.count // self.batch_size
        if count == 0:
            raise DataError(
                f"the corpus gives {self._plan.count} sequences of {self.examples.max_length} tokens, fewer than one "
                f"batch of {self.batch_size}; use more text, a smaller --batch-size or a smaller --max-length"
            )
        return count

    def _prepare(self, epoch: int) -> None:
        """Plan an epoch unless it was the last one to be planned."""
        variant = epoch % self.static if self.static else epoch
        if variant != self._variant:
            generator = np.random.default_rng([self.seed, _PLANS, variant])
            self._plan = _PLANNERS[self.examples.objective](self.corpus, self.examples, generator)
            self._variant, self._epoch = variant, -1
        if epoch != self._epoch:
            self._order = np.random.default_rng([self.seed, _ORDERS, epoch]).permutation(self._plan.count)
            self._epoch = epoch
