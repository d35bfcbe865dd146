"""What training really gets: examples are made and counted, and compared with what was asked for.

``cloze audit`` prints it. What was done to the text is not taken on trust from the code that makes examples: what was
chosen, what is seen there and what is to be named are compared with the text as it was before, word by word, and
segments with the documents that they are from. Taken as told are the text as it was read, where its words and entities
start, which words are ordinary and which similar, how many words each run was to have, and which pairs chance decided.
"""

import time
from dataclasses import dataclass, field
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from cloze.corpus.audit_masks import SeenCounts, chances_of_no_change, count_seen, is_chance
from cloze.corpus.batches import Examples, PretrainingBatch, PretrainingBatches
from cloze.corpus.masking import HIDDEN, KEPT, NO_SIMILAR, REPLACED
from cloze.corpus.sampling import Ids, Sequences
from cloze.errors import ConfigError

# Bounds shown hold 95 times in 100. With a dozen of them, one would fail every other time: what is called wrong lies
# where chance gets once in 100,000 times.
_SHOWN, _JUDGED, _RAREST = 1.96, 4.42, 1e-5
# Whole words need not fill the budget; a mean share further below it than this does harm.
_LEAST_FILLED = 0.95


@dataclass(frozen=True)
class Check:
    """One figure: what it is, what it should be, and whether that is so; ``ok`` is None where nothing is expected."""

    name: str
    measured: float
    low: float | None = None  # 95 % bounds
    high: float | None = None
    expected: float | None = None
    ok: bool | None = None


@dataclass(frozen=True)
class Audit:
    """All figures of some examples."""

    sequences: int
    tokens: int
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return all(check.ok is not False for check in self.checks)


@dataclass
class _Counts:
    """What is added up, batch by batch."""

    sequences: int = 0
    tokens: int = 0
    cells: int = 0  # padding included
    short: int = 0
    seconds: float = 0.0
    budget: int = 0
    chosen: int = 0
    fullest: float = 0.0
    over_budget: int = 0
    underfilled: int = 0
    special: int = 0
    split: int = 0
    seen: SeenCounts = field(default_factory=SeenCounts)
    fates: NDArray[np.int64] = field(default_factory=lambda: np.zeros(4, np.int64))
    runs: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    words: int = 0
    entities: int = 0
    chosen_entities: int = 0
    pairs: int = 0
    tossed: int = 0
    tossed_wrong: int = 0
    wrong: int = 0
    mislabelled: int = 0


def audit(batches: PretrainingBatches, tokens: int) -> Audit:
    """Make examples until there are so many tokens, or all variants have been seen, and check them."""
    if tokens < 1:
        raise ConfigError(f"tokens is {tokens}; at least 1 was expected")
    counts, step, chances = _Counts(), 0, chances_of_no_change(batches)
    batches.steps_in(0)  # planning is not part of making
    while counts.tokens < tokens and not (batches.static and batches.epoch_at(step) >= batches.static):
        start = time.perf_counter()
        batch = batches.at(step)
        counts.seconds += time.perf_counter() - start
        examples = batches.examples_at(step)
        _count_lengths(counts, batches, batch)
        sequences = batches.read(examples)
        _count_masks(counts, batches, batch, sequences)
        count_seen(counts.seen, batches, batch, sequences, chances)
        if batches.examples.objective != "none":
            _count_pairs(counts, batches, batch, examples)
        step += 1
    return Audit(counts.sequences, counts.tokens, tuple(_checks(counts, batches)))


def _count_lengths(counts: _Counts, batches: PretrainingBatches, batch: PretrainingBatch) -> None:
    counts.sequences += len(batch.ids)
    counts.tokens += batch.token_count
    counts.cells += batch.ids.size
    counts.short += int((batch.lengths < batches.examples.max_length).sum())


def _count_masks(counts: _Counts, batches: PretrainingBatches, batch: PretrainingBatch, sequences: Sequences) -> None:
    chosen = np.zeros(batch.ids.shape, bool)
    chosen.reshape(-1)[batch.positions] = True
    # Worked out here, not asked of who is looked at.
    budget = np.maximum(1, np.rint(batch.lengths * batches.masks.rate)).astype(np.int64)
    used = chosen.sum(axis=1)
    counts.budget += int(budget.sum())
    counts.chosen += int(used.sum())
    counts.fullest = max(counts.fullest, float((used / budget).max()))
    counts.over_budget += int((used > budget).sum())
    counts.special += int((chosen & ~sequences.free).sum())
    _count_words(counts, batches, batch, sequences, chosen, budget - used)


def _count_words(
    counts: _Counts,
    batches: PretrainingBatches,
    batch: PretrainingBatch,
    sequences: Sequences,
    chosen: NDArray[np.bool_],
    room: Ids,
) -> None:
    """Words that were parted, sequences with room for another, what was chosen at once and what decided its fate."""
    starts, entities = batches.masker.words(sequences)
    words = np.cumsum(starts.reshape(-1)) - 1  # rows start with [CLS], which is one of its own
    sizes = np.bincount(words)
    taken = np.bincount(words, weights=chosen.reshape(-1)).astype(np.int64)
    counts.split += int(((taken > 0) & (taken < sizes)).sum())
    firsts = np.flatnonzero(starts)
    rows = firsts // chosen.shape[1]
    fits = sequences.free.reshape(-1)[firsts] & (taken == 0) & (sizes <= room[rows])
    counts.underfilled += len(np.unique(rows[fits]))
    counts.words += int((taken > 0).sum())
    is_entity = entities.reshape(-1)[firsts]
    counts.entities += int(is_entity.sum())
    counts.chosen_entities += int((is_entity & (taken > 0)).sum())
    wanted = batch.units[batch.units[:, 0] == batch.positions, 1]
    counts.runs = _add(counts.runs, np.bincount(wanted))
    counts.fates = _add(counts.fates, np.bincount(batch.fates[_deciding(batches, batch, sequences)], minlength=4))


def _deciding(batches: PretrainingBatches, batch: PretrainingBatch, sequences: Sequences) -> NDArray[np.bool_]:
    """Which chosen tokens stand for a fate: all of them, or the first of each span or word that shares one."""
    if batch.boundaries is not None:
        firsts: NDArray[np.bool_] = batch.boundaries[:, 2] == 0
        return firsts
    if batches.masks.masking == "correction":
        return sequences.starts.reshape(-1)[batch.positions]
    return np.ones(len(batch.positions), bool)


def _count_pairs(counts: _Counts, batches: PretrainingBatches, batch: PretrainingBatch, examples: Examples) -> None:
    chunks = examples.plan.chunks[examples.plan.rows[examples.numbers][:, None] + np.arange(2)]  # (B, 2, 3)
    begins = batches.corpus.sentences[batches.corpus.documents]
    documents = np.searchsorted(begins, chunks[:, :, 0], side="right")
    same = documents[:, 0] == documents[:, 1]
    follows = same & (chunks[:, 1, 0] >= chunks[:, 0, 1])
    precedes = same & (chunks[:, 1, 1] <= chunks[:, 0, 0])
    wrong = ~same if batches.examples.objective == "nsp" else precedes
    counts.mislabelled += int(np.where(batch.labels == 1, ~wrong, ~follows).sum())
    tossed = examples.plan.tossed[examples.numbers]
    counts.pairs += len(batch.labels)
    counts.wrong += int(batch.labels.sum())
    counts.tossed += int(tossed.sum())
    counts.tossed_wrong += int(batch.labels[tossed].sum())


def _checks(counts: _Counts, batches: PretrainingBatches) -> list[Check]:
    return [
        *_budget_checks(counts, batches),
        *_fate_checks(counts, batches),
        *_word_checks(counts, batches),
        *_pair_checks(counts, batches),
        Check("sequences shorter than the length", counts.short / counts.sequences),
        Check("mean length", counts.tokens / counts.sequences),
        Check("padding", 1 - counts.tokens / counts.cells),
        Check("tokens made a second", counts.tokens / counts.seconds),
    ]


def _budget_checks(counts: _Counts, batches: PretrainingBatches) -> list[Check]:
    low, high = wilson(counts.chosen, counts.tokens, _SHOWN)
    share = counts.budget / counts.tokens
    # Nothing else is to be had where no word would fit any more.
    filled = counts.chosen >= _LEAST_FILLED * counts.budget or counts.underfilled == 0
    exact = batches.masks.masking != "token" or counts.underfilled == 0
    filled = filled and exact and counts.chosen <= counts.budget
    return [
        Check("chosen", counts.chosen / counts.tokens, low, high, share, filled),
        Check("largest part of a budget", counts.fullest, expected=1, ok=counts.fullest <= 1),
        _none("sequences over their budget", counts.over_budget),
        _none("sequences with room for another word", counts.underfilled),
        _none("special tokens chosen", counts.special),
    ]


def _fate_checks(counts: _Counts, batches: PretrainingBatches) -> list[Check]:
    total, (first, second, third) = int(counts.fates.sum()), batches.masks.mix
    correction = batches.masks.masking == "correction"
    hidden = int(counts.fates[HIDDEN] + counts.fates[NO_SIMILAR])
    checks = [
        _share("to be a similar word" if correction else "hidden", hidden, total, first),
        _share("replaced", int(counts.fates[REPLACED]), total, second),
        _share("kept", int(counts.fates[KEPT]), total, third),
        *_seen_checks(counts.seen),
    ]
    if correction:
        checks.append(_none("words that are not the similar ones that are known", counts.seen.wrong_similar))
        checks.append(Check("without a similar word, and so random", int(counts.fates[NO_SIMILAR]) / max(1, hidden)))
    return checks


def _seen_checks(seen: SeenCounts) -> list[Check]:
    stayed = is_chance(seen.unchanged, seen.by_chance, _RAREST)
    return [
        _none("targets that are not what stood there", seen.wrong_targets),
        _none("random words that are no ordinary ones", seen.wrong_words),
        Check("random words that are what stood there", seen.unchanged, expected=seen.by_chance, ok=stayed),
        _none("tokens that are not what their fate says", seen.unlike_fate),
    ]


def _word_checks(counts: _Counts, batches: PretrainingBatches) -> list[Check]:
    checks = [_none("words split", counts.split)] if batches.masker.needs_words else []
    shares = batches.masks.run_shares
    if len(shares) > 1:
        total = int(counts.runs.sum())
        for number, share in enumerate(shares, start=1):
            count = int(counts.runs[number]) if number < len(counts.runs) else 0
            checks.append(_share(f"runs drawn of {number} word{'s' if number > 1 else ''}", count, total, share))
        drawn = float((counts.runs * np.arange(len(counts.runs))).sum() / max(1, total))
        checks.append(_mean("words of a run as drawn", drawn, total, shares))
        checks.append(Check("words of a run as chosen", counts.words / max(1, total)))
    if batches.masks.masking == "entity":
        checks.append(Check("entities found a sequence", counts.entities / counts.sequences))
        checks.append(Check("entities chosen", counts.chosen_entities / max(1, counts.entities)))
    return checks


def _pair_checks(counts: _Counts, batches: PretrainingBatches) -> list[Check]:
    objective, share = batches.examples.objective, batches.examples.random_share
    if objective == "none":
        return []
    kind = "random" if objective == "nsp" else "swapped"
    return [
        _share(f"pairs {kind} where chance decides", counts.tossed_wrong, counts.tossed, share),
        Check(f"pairs {kind} in all", counts.wrong / counts.pairs, *wilson(counts.wrong, counts.pairs, _SHOWN)),
        _none("pairs whose label is not so", counts.mislabelled),
    ]


def _none(name: str, count: int) -> Check:
    return Check(name, count, expected=0, ok=count == 0)


def _share(name: str, count: int, total: int, expected: float) -> Check:
    if total == 0:
        return Check(name, 0, expected=expected)
    low, high = wilson(count, total, _JUDGED)
    # Shares of 0 and 1 are bounds that rounding may miss.
    ok = low - 1e-9 <= expected <= high + 1e-9
    return Check(name, count / total, *wilson(count, total, _SHOWN), expected, ok)


def _mean(name: str, measured: float, total: int, shares: tuple[float, ...]) -> Check:
    """The mean of so many draws of 1, 2 and so on."""
    numbers = np.arange(1, len(shares) + 1)
    expected = float((numbers * shares).sum())
    error = sqrt(float(((numbers - expected) ** 2 * shares).sum()) / max(1, total))
    ok = total == 0 or abs(measured - expected) <= _JUDGED * error + 1e-9
    return Check(name, measured, measured - _SHOWN * error, measured + _SHOWN * error, expected, ok)


def wilson(count: int, total: int, deviations: float) -> tuple[float, float]:
    """The bounds of a share within so many standard deviations (Wilson 1927)."""
    share, square = count / total, deviations**2
    middle = share + square / (2 * total)
    spread = deviations * sqrt(share * (1 - share) / total + square / (4 * total**2))
    return (middle - spread) / (1 + square / total), (middle + spread) / (1 + square / total)


def _add(one: Ids, other: Ids) -> Ids:
    """Add two counts of different lengths."""
    total = np.zeros(max(len(one), len(other)), np.int64)
    total[: len(one)] += one
    total[: len(other)] += other
    return total
