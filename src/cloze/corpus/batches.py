"""Examples for pre-training, made while training: sequences and masks are new in every epoch, or in every few.

Each row of a batch is a pure function of (seed, epoch, step, row): a resumed run sees what the interrupted one would
have seen, several processes can make a part of the rows each, and any step can be looked at on its own.

Dimensions: B sequences, T tokens, M chosen tokens of the batch.
"""

from dataclasses import dataclass

import numpy as np

from cloze.corpus.masking import STREAMS, Fates, Masker
from cloze.corpus.sampling import (
    Ids,
    Plan,
    Sequences,
    assemble,
    plan_full_sentences,
    plan_next_sentences,
    plan_sentence_order,
)
from cloze.corpus.settings import ExampleSettings, MaskSettings, check_seed
from cloze.corpus.shards import Corpus
from cloze.corpus.word_tables import Draws, WordTables
from cloze.errors import ConfigError, DataError
from cloze.text import Tokenizer

# Streams of random numbers that must not share their numbers.
_PLANS, _ORDERS, _MASKS = 1, 2, 3
_PLANNERS = {"nsp": plan_next_sentences, "sop": plan_sentence_order, "none": plan_full_sentences}
_NO_TABLES = WordTables()


@dataclass(frozen=True)
class PretrainingBatch:
    """Arrays of one step; still NumPy, so that making them needs no torch."""

    ids: Ids  # (B, T) as the model sees them
    segments: Ids  # (B, T)
    lengths: Ids  # (B,) real tokens of each sequence; the rest is padding
    positions: Ids  # (M,) of the chosen tokens, in the flattened (B * T)
    targets: Ids  # (M,) what stood there
    labels: Ids  # (B,) 1 where the second segment is random (nsp), or the two are swapped (sop); (0,) without pairs
    boundaries: Ids | None  # (M, 3) of spans: the positions before and behind, and the place of the token within
    fates: Fates  # (M,) 0 hidden, 1 replaced, 2 kept; of correction 0 similar, 3 random for want of a similar word
    units: Ids  # (M, 2) the position that starts what was chosen at once, and how many words were wanted there

    @property
    def token_count(self) -> int:
        """Real tokens, padding not counted."""
        return int(self.lengths.sum())

    @property
    def counts(self) -> dict[str, int]:
        """What the losses are means over."""
        return {"words": len(self.targets), "pairs": len(self.labels)}


@dataclass(frozen=True)
class Examples:
    """The planned examples of a part of a batch."""

    plan: Plan
    numbers: Ids  # (B,) examples of the plan
    counters: Ids  # (B, 3) what tells the random numbers of each row from all others
    width: int  # T


class PretrainingBatches:
    """The batches of a corpus, by step."""

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: Tokenizer,
        *,
        batch: int,
        examples: ExampleSettings,
        masks: MaskSettings,
        seed: int,
        static: int = 0,
        tables: WordTables = _NO_TABLES,
    ) -> None:
        """With ``static`` there are so many variants of examples and masks, and epochs take turns with them.

        That is the ``dupe_factor`` of the original, whose examples were made before training. Their order is new in
        every epoch all the same.
        """
        if batch < 1:
            raise ConfigError(f"batch is {batch}; at least 1 was expected")
        if static < 0:
            raise ConfigError(f"static is {static}; a number of variants was expected, or 0 for new ones each epoch")
        check_seed(seed)
        self.corpus, self.tokenizer = corpus, tokenizer
        self.batch, self.examples, self.masks, self.seed, self.static = batch, examples, masks, seed, static
        self.masker = Masker(tokenizer, masks, tables)
        self._key = np.random.SeedSequence([seed, _MASKS]).generate_state(2, np.uint64)
        self._epoch, self._variant = -1, -1
        self._plan: Plan
        self._order: Ids
        self._sizes: list[int] = []  # batches in each epoch planned so far

    def at(self, step: int, part: int = 0, parts: int = 1) -> PretrainingBatch:
        """The batch of a step, counted from 0, or a part of its rows; the parts together are the whole."""
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
        )

    def epoch_at(self, step: int) -> int:
        """Which pass over the corpus a step belongs to."""
        return self._locate(step)[0]

    def steps_in(self, epoch: int) -> int:
        """How many batches an epoch has; a last, smaller one is left out."""
        while len(self._sizes) <= epoch:
            self._sizes.append(self._count(len(self._sizes)))
        return self._sizes[epoch]

    def examples_at(self, step: int, part: int = 0, parts: int = 1) -> Examples:
        """What is planned for a step."""
        if not 0 <= part < parts <= self.batch:
            raise ConfigError(
                f"part {part} of {parts} of a batch of {self.batch}; expected parts of a sequence or more, from 0 on"
            )
        epoch, place = self._locate(step)
        self._prepare(epoch)
        start = place * self.batch
        whole = self._order[start : start + self.batch]
        # All parts are as wide as the whole, so that they can be put together.
        width = int(self._plan.lengths[whole].max())
        rows = np.arange(part * self.batch // parts, (part + 1) * self.batch // parts)
        counters = np.zeros((len(rows), 3), np.int64)
        # What is static belongs to the example, what is not to the step.
        columns = (whole[rows], self._variant, 1) if self.static else (rows, step, 0)
        counters[:, 0], counters[:, 1], counters[:, 2] = columns
        return Examples(self._plan, whole[rows], counters, width)

    def read(self, examples: Examples) -> Sequences:
        """The sequences, before anything is hidden."""
        words = self.masker.needs_words
        return assemble(self.corpus, self.tokenizer, examples.plan, examples.numbers, width=examples.width, words=words)

    def _draw(self, examples: Examples) -> Draws:
        """Random numbers: (B, STREAMS, T). However wide the batch is, a row has the same."""
        bits = np.random.Philox(key=self._key)
        generator, state = np.random.Generator(bits), bits.state
        # Numbers come in fours, each four with a count of its own: a row has whole ones.
        draws = np.empty((len(examples.numbers), STREAMS, -(-self.examples.length // 4) * 4))
        fours = draws[0].size // 4
        # Rows that follow one another are drawn at once.
        for rows in np.split(np.arange(len(draws)), np.flatnonzero(np.diff(examples.counters[:, 0]) != 1) + 1):
            row, *others = examples.counters[rows[0]]
            state["state"]["counter"] = np.array([row * fours, *others, 0], np.uint64)
            bits.state = state
            generator.random(out=draws[rows[0] : rows[-1] + 1])
        return draws[:, :, : examples.width]

    def _locate(self, step: int) -> tuple[int, int]:
        """The epoch of a step, and which of its batches it is."""
        epoch = 0
        while step >= self.steps_in(epoch):
            step -= self.steps_in(epoch)
            epoch += 1
        return epoch, step

    def _count(self, epoch: int) -> int:
        self._prepare(epoch)
        count = self._plan.count // self.batch
        if count == 0:
            raise DataError(
                f"the corpus gives {self._plan.count} sequences of {self.examples.length} tokens, fewer than one "
                f"batch of {self.batch}; use more text, a smaller --batch or a smaller --length"
            )
        return count

    def _prepare(self, epoch: int) -> None:
        """Plan an epoch, unless it is the one planned last."""
        variant = epoch % self.static if self.static else epoch
        if variant != self._variant:
            generator = np.random.default_rng([self.seed, _PLANS, variant])
            self._plan = _PLANNERS[self.examples.objective](self.corpus, self.examples, generator)
            self._variant, self._epoch = variant, -1
        if epoch != self._epoch:
            self._order = np.random.default_rng([self.seed, _ORDERS, epoch]).permutation(self._plan.count)
            self._epoch = epoch
