"""Audit of pre-training examples: build batches, measure them, and compare with the settings (``cloze audit``).

The audit does not trust the code that builds the examples: it compares selected positions, input ids and targets with
the original text word by word, and segments with the documents they come from. It does not verify the original ids,
word and entity starts, the sets of ordinary and similar words, the drawn lengths of n-grams and spans, and which pair
labels were drawn at random.

Dimensions: B sequences, M selected tokens of the batch, V vocabulary.
"""

import time
from dataclasses import dataclass, field
from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

from cloze.corpus.batches import Examples, PretrainingBatch, PretrainingBatches
from cloze.corpus.masking import HIDDEN, KEPT, NO_SIMILAR, REPLACED
from cloze.corpus.sampling import RELATION_SHARE, Ids, Sequences
from cloze.corpus.word_tables import WordTables
from cloze.errors import ConfigError
from cloze.text.vocabulary import CONTINUATION

# Half-widths of intervals, in standard deviations. The report shows 95 % intervals. With a dozen checks, about one in
# two runs has a figure outside its 95 % interval, so a check fails only at a probability of 1e-5 or less.
_SHOWN, _JUDGED, _RAREST = 1.96, 4.42, 1e-5
# Whole words need not fill the masking budget exactly; a mean below this fraction of it weakens training.
_LEAST_FILLED = 0.95

_Probabilities = NDArray[np.float64]


@dataclass(frozen=True)
class Check:
    """One measured figure and its expected value; ``ok`` is None if there is no expected value."""

    name: str
    measured: float
    low: float | None = None  # 95 % confidence interval
    high: float | None = None
    expected: float | None = None
    ok: bool | None = None


@dataclass(frozen=True)
class Audit:
    """The result of an audit: the amount of data and all checks."""

    sequences: int
    tokens: int
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether all checks passed."""
        return all(check.ok is not False for check in self.checks)


@dataclass
class _ReplacementCounts:
    """Totals over all batches of comparisons between selected tokens and the original text."""

    wrong_targets: int = 0
    wrong_words: int = 0
    unlike_fate: int = 0
    wrong_similar: int = 0
    unchanged: int = 0  # random replacements equal to the original token
    by_chance: float = 0.0  # number of such replacements expected by chance


@dataclass
class _Counts:
    """Totals over all batches."""

    sequences: int = 0
    tokens: int = 0
    cells: int = 0  # tokens including padding
    short: int = 0
    seconds: float = 0.0
    budget: int = 0
    chosen: int = 0
    fullest: float = 0.0
    over_budget: int = 0
    underfilled: int = 0
    special: int = 0
    split: int = 0
    replacements: _ReplacementCounts = field(default_factory=_ReplacementCounts)
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
    """Build and check examples: at least ``tokens`` tokens, or all variants if masking is static."""
    if tokens < 1:
        raise ConfigError(f"tokens is {tokens}; expected at least 1")
    counts, step, probabilities = _Counts(), 0, _unchanged_probabilities(batches)
    batches.steps_in(0)  # plan the epoch first, to exclude it from the measured time
    while counts.tokens < tokens and not (batches.static and batches.epoch_at(step) >= batches.static):
        start = time.perf_counter()
        batch = batches.at(step)
        counts.seconds += time.perf_counter() - start
        examples = batches.examples_at(step)
        _count_lengths(counts, batches, batch)
        sequences = batches.read(examples)
        _count_masks(counts, batches, batch, sequences)
        _count_replacements(counts.replacements, batches, batch, sequences, probabilities)
        if len(batch.labels):
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
    # Computed independently of the code under audit.
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
    """Count partially selected words, sequences with budget left for another word, drawn lengths and fates."""
    starts, entities = batches.masker.words(sequences)
    words = np.cumsum(starts.reshape(-1)) - 1  # [CLS], at the start of each row, is a separate word
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
    counts.runs = _add_counts(counts.runs, np.bincount(wanted))
    counts.fates = _add_counts(
        counts.fates, np.bincount(batch.fates[_independent_fates(batches, batch, sequences)], minlength=4)
    )


def _independent_fates(batches: PretrainingBatches, batch: PretrainingBatch, sequences: Sequences) -> NDArray[np.bool_]:
    """Return which selected tokens drew their own fate: all, or only the first of each span or word that shares one."""
    if batch.boundaries is not None:
        return np.asarray(batch.boundaries[:, 2] == 0)
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
    wrong = precedes if batches.examples.objective == "sop" else ~same
    elsewhere = precedes | (same & (chunks[:, 1, 0] > chunks[:, 0, 1]))
    counts.mislabelled += int((~np.choose(batch.labels, [follows, wrong, elsewhere])).sum())
    tossed = examples.plan.tossed[examples.numbers]
    counts.pairs += len(batch.labels)
    counts.wrong += int((batch.labels > 0).sum())
    counts.tossed += int(tossed.sum())
    counts.tossed_wrong += int((batch.labels[tossed] > 0).sum())


def _unchanged_probabilities(batches: PretrainingBatches) -> _Probabilities:
    """Return, for each piece, the probability that a random replacement equals it: (V,)."""
    ordinary, pieces = batches.masker.ordinary, batches.tokenizer.pieces
    groups = [ordinary]
    if batches.masks.masking == "correction":  # word starts are replaced with word starts, ## pieces with ## pieces
        continues = np.asarray([pieces[number].startswith(CONTINUATION) for number in ordinary.tolist()])
        groups = [ordinary[~continues], ordinary[continues]]
    probabilities = np.zeros(batches.tokenizer.size)
    for group in groups:
        probabilities[group] = 1 / max(1, len(group))
    return probabilities


def _count_replacements(
    counts: _ReplacementCounts,
    batches: PretrainingBatches,
    batch: PretrainingBatch,
    sequences: Sequences,
    probabilities: _Probabilities,
) -> None:
    """Compare the input ids and targets of a batch with the original text."""
    originals = sequences.ids.reshape(-1)[batch.positions]
    seen = batch.ids.reshape(-1)[batch.positions]
    counts.wrong_targets += int((batch.targets != originals).sum())
    is_random = (batch.fates == REPLACED) | (batch.fates == NO_SIMILAR)
    counts.wrong_words += int((~np.isin(seen[is_random], batches.masker.ordinary)).sum())
    changed = seen != originals
    counts.unchanged += int((is_random & ~changed).sum())
    counts.by_chance += float(probabilities[originals[is_random]].sum())
    correction = batches.masks.masking == "correction"
    is_mask = seen == batches.tokenizer.mask_id
    hidden = (batch.fates == HIDDEN) & (not correction)
    others = batch.ids != sequences.ids
    others.reshape(-1)[batch.positions] = False
    counts.unlike_fate += int(((is_mask != hidden) | ((batch.fates == KEPT) & changed)).sum() + others.sum())
    if correction:
        counts.wrong_similar += _count_wrong_similar(batches.masker.tables, batch, sequences, originals, seen)


def _count_wrong_similar(
    tables: WordTables, batch: PretrainingBatch, sequences: Sequences, originals: Ids, seen: Ids
) -> int:
    """Count the words that were not replaced with a similar word although the tables have one."""
    words = (np.cumsum(sequences.starts.reshape(-1)) - 1)[batch.positions]
    firsts = np.flatnonzero(np.diff(words, prepend=-1) != 0)
    lasts = np.append(firsts[1:], len(words))
    to_be_similar = np.isin(batch.fates[firsts], (HIDDEN, NO_SIMILAR))
    wrong = 0
    for first, last in zip(firsts[to_be_similar].tolist(), lasts[to_be_similar].tolist(), strict=True):
        word, other = tuple(originals[first:last].tolist()), tuple(seen[first:last].tolist())
        if batch.fates[first] == NO_SIMILAR:
            wrong += word in tables.similar or any(piece in tables.characters for piece in word)
        else:
            wrong += not is_similar_word(word, other, tables)
    return wrong


def is_similar_word(word: tuple[int, ...], other: tuple[int, ...], tables: WordTables) -> bool:
    """Return whether ``other`` is a listed similar word, or differs from ``word`` in one similar character."""
    known = tables.similar.get(word)
    if known is not None:
        return other != word and other in known
    changed = [(before, after) for before, after in zip(word, other, strict=True) if before != after]
    if len(changed) != 1:
        return False
    before, after = changed[0]
    return before in tables.characters and (after,) in tables.similar[(before,)]


def _checks(counts: _Counts, batches: PretrainingBatches) -> list[Check]:
    return [
        *_budget_checks(counts, batches),
        *_fate_checks(counts, batches),
        *_word_checks(counts, batches),
        *_pair_checks(counts, batches),
        Check("sequences shorter than the length", counts.short / counts.sequences),
        Check("mean length", counts.tokens / counts.sequences),
        Check("padding", 1 - counts.tokens / counts.cells),
        Check("tokens built per second", counts.tokens / counts.seconds),
    ]


def _budget_checks(counts: _Counts, batches: PretrainingBatches) -> list[Check]:
    low, high = wilson_interval(counts.chosen, counts.tokens, _SHOWN)
    share = counts.budget / counts.tokens
    # A budget is also filled if no remaining word fits into it.
    filled = counts.chosen >= _LEAST_FILLED * counts.budget or counts.underfilled == 0
    exact = batches.masks.masking != "token" or counts.underfilled == 0
    filled = filled and exact and counts.chosen <= counts.budget
    return [
        Check("chosen", counts.chosen / counts.tokens, low, high, share, filled),
        Check("largest used fraction of a budget", counts.fullest, expected=1, ok=counts.fullest <= 1),
        _zero_check("sequences over their budget", counts.over_budget),
        _zero_check("sequences with room for another word", counts.underfilled),
        _zero_check("special tokens chosen", counts.special),
    ]


def _fate_checks(counts: _Counts, batches: PretrainingBatches) -> list[Check]:
    total, (first, second, third) = int(counts.fates.sum()), batches.masks.mix
    correction = batches.masks.masking == "correction"
    hidden = int(counts.fates[HIDDEN] + counts.fates[NO_SIMILAR])
    checks = [
        _share_check("similar word" if correction else "hidden", hidden, total, first),
        _share_check("replaced", int(counts.fates[REPLACED]), total, second),
        _share_check("kept", int(counts.fates[KEPT]), total, third),
        *_replacement_checks(counts.replacements),
    ]
    if correction:
        checks.append(_zero_check("words not replaced by a known similar word", counts.replacements.wrong_similar))
        checks.append(Check("random for lack of a similar word", int(counts.fates[NO_SIMILAR]) / max(1, hidden)))
    return checks


def _replacement_checks(counts: _ReplacementCounts) -> list[Check]:
    plausible = is_plausible(counts.unchanged, counts.by_chance, _RAREST)
    return [
        _zero_check("targets that differ from the text", counts.wrong_targets),
        _zero_check("random words outside the ordinary ones", counts.wrong_words),
        Check("random words equal to the original", counts.unchanged, expected=counts.by_chance, ok=plausible),
        _zero_check("tokens that contradict their fate", counts.unlike_fate),
    ]


def _word_checks(counts: _Counts, batches: PretrainingBatches) -> list[Check]:
    checks = [_zero_check("words split", counts.split)] if batches.masker.needs_words else []
    shares = batches.masks.run_shares
    if len(shares) > 1:
        total = int(counts.runs.sum())
        for number, share in enumerate(shares, start=1):
            count = int(counts.runs[number]) if number < len(counts.runs) else 0
            checks.append(_share_check(f"runs drawn of {number} word{'s' if number > 1 else ''}", count, total, share))
        drawn = float((counts.runs * np.arange(len(counts.runs))).sum() / max(1, total))
        checks.append(_mean_check("words per run as drawn", drawn, total, shares))
        checks.append(Check("words per run as chosen", counts.words / max(1, total)))
    if batches.masks.masking == "entity":
        checks.append(Check("entities found per sequence", counts.entities / counts.sequences))
        checks.append(Check("entities chosen", counts.chosen_entities / max(1, counts.entities)))
    return checks


def _pair_checks(counts: _Counts, batches: PretrainingBatches) -> list[Check]:
    objective, share = batches.examples.objective, batches.examples.random_share
    kind = {"nsp": "random", "sop": "swapped", "relation": "unrelated"}.get(objective)
    if kind is None:
        return []
    share = RELATION_SHARE if objective == "relation" else share
    return [
        _share_check(f"{kind} pairs among unforced pairs", counts.tossed_wrong, counts.tossed, share),
        Check(
            f"{kind} pairs overall", counts.wrong / counts.pairs, *wilson_interval(counts.wrong, counts.pairs, _SHOWN)
        ),
        _zero_check("pairs with a wrong label", counts.mislabelled),
    ]


def _zero_check(name: str, count: int) -> Check:
    return Check(name, count, expected=0, ok=count == 0)


def _share_check(name: str, count: int, total: int, expected: float) -> Check:
    if total == 0:
        return Check(name, 0, expected=expected)
    low, high = wilson_interval(count, total, _JUDGED)
    # The tolerance covers rounding of the bounds at shares of 0 and 1.
    ok = low - 1e-9 <= expected <= high + 1e-9
    return Check(name, count / total, *wilson_interval(count, total, _SHOWN), expected, ok)


def _mean_check(name: str, measured: float, total: int, shares: tuple[float, ...]) -> Check:
    """Check the mean of ``total`` draws of 1, 2, ... with these probabilities."""
    numbers = np.arange(1, len(shares) + 1)
    expected = float((numbers * shares).sum())
    error = sqrt(float(((numbers - expected) ** 2 * shares).sum()) / max(1, total))
    ok = total == 0 or abs(measured - expected) <= _JUDGED * error + 1e-9
    return Check(name, measured, measured - _SHOWN * error, measured + _SHOWN * error, expected, ok)


def wilson_interval(count: int, total: int, deviations: float) -> tuple[float, float]:
    """Return the Wilson score interval of ``count / total`` (Wilson 1927)."""
    share, square = count / total, deviations**2
    middle = share + square / (2 * total)
    spread = deviations * sqrt(share * (1 - share) / total + square / (4 * total**2))
    return (middle - spread) / (1 + square / total), (middle + spread) / (1 + square / total)


def is_plausible(count: int, expected: float, rarest: float) -> bool:
    """Return whether chance alone produces at least this count of rare events with probability ``rarest`` or more.

    Uses Chernoff's bound, which holds for sums of independent events with different, small probabilities. The normal
    approximation would reject even a single event if the expected number is small.
    """
    if count <= expected:
        return True
    return expected > 0 and count * log(count / expected) - count + expected <= -log(rarest)


def _add_counts(left: Ids, right: Ids) -> Ids:
    """Add two arrays of counts that may differ in length."""
    total = np.zeros(max(len(left), len(right)), np.int64)
    total[: len(left)] += left
    total[: len(right)] += right
    return total
