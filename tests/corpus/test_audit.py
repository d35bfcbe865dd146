from collections.abc import Callable
from dataclasses import replace
from math import inf, sqrt
from typing import Any, get_args

import numpy as np
import pytest
from scipy.stats import binomtest, poisson

from cloze.corpus.audit import Audit, Check, audit, is_plausible, is_similar_word, wilson_interval
from cloze.corpus.batches import PretrainingBatch, PretrainingBatches
from cloze.corpus.settings import ExampleSettings, Masking, MaskSettings, Objective
from cloze.corpus.shards import Corpus
from cloze.corpus.word_tables import WordTables
from cloze.errors import ConfigError
from tests.corpus.made_corpora import FIRST_WORD, WORDS, made_tokenizer, make_word_corpus

TOKENIZER = made_tokenizer()
TABLES = WordTables(
    entities=tuple((FIRST_WORD + one, FIRST_WORD + other) for one in range(40) for other in range(40)),
    similar={(FIRST_WORD + number,): ((FIRST_WORD + number + 1,),) for number in range(WORDS // 2)},
)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return make_word_corpus(400)


def make_batches(
    corpus: Corpus, objective: Objective = "nsp", masking: Masking = "token", **more: int
) -> PretrainingBatches:
    return PretrainingBatches(
        corpus,
        TOKENIZER,
        batch_size=64,
        examples=ExampleSettings(objective),
        masks=MaskSettings(masking),
        seed=0,
        tables=TABLES,
        **more,
    )


def named(found: Audit) -> dict[str, Check]:
    return {check.name: check for check in found.checks}


def failed_checks(found: Audit) -> set[str]:
    return {check.name for check in found.checks if check.ok is False}


@pytest.mark.parametrize("masking", get_args(Masking))
def test_a_million_tokens_are_as_asked_for(corpus: Corpus, masking: Masking) -> None:
    found = audit(make_batches(corpus, masking=masking), 1_000_000)
    assert found.tokens >= 1_000_000
    assert failed_checks(found) == set()
    checks = named(found)
    assert checks["chosen"].measured == pytest.approx(0.15, rel=0.02)  # whole words fit into the budget
    assert checks["chosen"].expected is not None
    assert checks["chosen"].measured <= checks["chosen"].expected
    assert checks["replaced"].low is not None
    assert checks["replaced"].low < 0.101
    assert ("words split" in checks) == (masking != "token")
    assert ("words per run as drawn" in checks) == (masking in ("ngram", "span", "correction"))


def test_lengths_are_those_of_the_batches(corpus: Corpus) -> None:
    batches = make_batches(corpus)
    checks = named(audit(batches, 1))
    batch = batches.at(0)
    assert checks["mean length"].measured == batch.lengths.mean()
    assert checks["padding"].measured == pytest.approx((batch.ids == TOKENIZER.pad_id).mean())
    assert checks["sequences shorter than the length"].measured == (batch.lengths < 128).mean()


@pytest.mark.parametrize("objective", ["sop", "none"])
def test_other_objectives_are_as_asked_for(corpus: Corpus, objective: Objective) -> None:
    found = audit(make_batches(corpus, objective, "word"), 300_000)
    assert found.ok
    assert ("swapped pairs among unforced pairs" in named(found)) == (objective == "sop")


def test_static_examples_are_counted_once(corpus: Corpus) -> None:
    batches = make_batches(corpus, static=2)
    found = audit(batches, 10_000_000)
    assert found.sequences == 64 * (batches.steps_in(0) + batches.steps_in(1))
    assert found.ok


def test_bounds_are_those_of_wilson() -> None:
    for count, total in ((0, 10), (5, 10), (83, 1000), (1000, 1000)):
        expected = binomtest(count, total).proportion_ci(0.95, method="wilson")
        assert wilson_interval(count, total, 1.959964) == pytest.approx((expected.low, expected.high), abs=1e-6)


def choose_beside(batch: PretrainingBatch) -> PretrainingBatch:
    """Also select the token after a selected one."""
    taken = {*batch.positions.tolist()}
    place = next(one for one in batch.positions.tolist() if one + 1 not in taken)
    index = batch.positions.tolist().index(place) + 1

    def insert(values: Any, value: Any) -> Any:
        return np.insert(values, index, value, axis=0)

    return replace(
        batch,
        positions=insert(batch.positions, place + 1),
        targets=insert(batch.targets, batch.ids.reshape(-1)[place + 1]),
        fates=insert(batch.fates, 2),
        units=insert(batch.units, [place, 1]),
    )


def choose_nothing(batch: PretrainingBatch) -> PretrainingBatch:
    kept = slice(0, len(batch.positions) // 2)
    ids = batch.ids.copy().reshape(-1)
    ids[batch.positions[kept.stop :]] = batch.targets[kept.stop :]
    names = ("positions", "targets", "fates", "units")
    fields = {name: getattr(batch, name)[kept] for name in names}
    return replace(batch, ids=ids.reshape(batch.ids.shape), **fields)


def write_special(batch: PretrainingBatch) -> PretrainingBatch:
    ids = batch.ids.copy().reshape(-1)
    ids[batch.positions[batch.fates == 1]] = FIRST_WORD - 1  # the id of an unused vocabulary entry
    return replace(batch, ids=ids.reshape(batch.ids.shape))


def change_unchosen(batch: PretrainingBatch) -> PretrainingBatch:
    ids = batch.ids.copy()
    ids[0, 0] = TOKENIZER.sep_id
    return replace(batch, ids=ids)


def choose_start(batch: PretrainingBatch) -> PretrainingBatch:
    return replace(batch, positions=np.append(0, batch.positions[1:]))


def leave_some_replaced(batch: PretrainingBatch) -> PretrainingBatch:
    """Leave every tenth token unchanged among those marked as replaced."""
    some = np.flatnonzero(batch.fates == 1)[::10]
    ids = batch.ids.copy().reshape(-1)
    ids[batch.positions[some]] = batch.targets[some]
    return replace(batch, ids=ids.reshape(batch.ids.shape))


def leave_one_similar(batch: PretrainingBatch) -> PretrainingBatch:
    """Leave the first word unchanged among those marked as replaced by a similar one."""
    (place,) = np.flatnonzero(batch.fates == 0)[:1]
    ids = batch.ids.copy().reshape(-1)
    ids[batch.positions[place]] = batch.targets[place]
    return replace(batch, ids=ids.reshape(batch.ids.shape))


def write_unlike(batch: PretrainingBatch) -> PretrainingBatch:
    """Write an unrelated word in place of a similar one."""
    (place,) = np.flatnonzero(batch.fates == 0)[:1]
    ids = batch.ids.copy().reshape(-1)
    ids[batch.positions[place]] = batch.targets[place] + 2
    return replace(batch, ids=ids.reshape(batch.ids.shape))


def deny_similar(batch: PretrainingBatch) -> PretrainingBatch:
    """Mark a word as having no similar word, although it has one."""
    (place,) = np.flatnonzero(batch.fates == 0)[:1]
    fates = batch.fates.copy()
    fates[place] = 3
    return replace(batch, fates=fates)


def ask_for_another(batch: PretrainingBatch) -> PretrainingBatch:
    targets = batch.targets.copy()
    targets[0] += 1
    return replace(batch, targets=targets)


NOT_SIMILAR = "words not replaced by a known similar word"
DAMAGES: list[tuple[str, Masking, Callable[[PretrainingBatch], PretrainingBatch]]] = [
    ("sequences over their budget", "token", choose_beside),
    ("words split", "word", choose_beside),
    ("sequences with room for another word", "word", choose_nothing),
    ("chosen", "token", choose_nothing),
    ("special tokens chosen", "token", choose_start),
    ("targets that differ from the text", "token", ask_for_another),
    ("random words outside the ordinary ones", "token", write_special),
    ("random words equal to the original", "token", leave_some_replaced),
    ("random words equal to the original", "correction", leave_some_replaced),
    (NOT_SIMILAR, "correction", leave_one_similar),
    (NOT_SIMILAR, "correction", write_unlike),
    (NOT_SIMILAR, "correction", deny_similar),
    ("tokens that contradict their fate", "token", change_unchosen),
    (
        "hidden",
        "token",
        lambda batch: replace(batch, fates=np.where(batch.fates == 2, 0, batch.fates).astype(np.uint8)),
    ),
    (
        "replaced",
        "token",
        lambda batch: replace(batch, fates=np.where(batch.fates == 2, 1, batch.fates).astype(np.uint8)),
    ),
    ("runs drawn of 2 words", "ngram", lambda batch: replace(batch, units=np.minimum(batch.units, [10**9, 1]))),
    ("words per run as drawn", "span", lambda batch: replace(batch, units=np.minimum(batch.units, [10**9, 7]))),
    ("pairs with a wrong label", "token", lambda batch: replace(batch, labels=1 - batch.labels)),
    ("random pairs among unforced pairs", "token", lambda batch: replace(batch, labels=np.zeros_like(batch.labels))),
]


@pytest.mark.parametrize(("name", "masking", "damage"), DAMAGES)
def test_what_is_wrong_is_found(
    corpus: Corpus,
    name: str,
    masking: Masking,
    damage: Callable[[PretrainingBatch], PretrainingBatch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches = make_batches(corpus, masking=masking)
    assert audit(batches, 150_000).ok
    made = batches.at
    monkeypatch.setattr(batches, "at", lambda step: damage(made(step)))
    found = audit(batches, 150_000)
    assert not found.ok
    assert name in failed_checks(found)


@pytest.mark.parametrize("masking", ["token", "correction"])
def test_random_words_are_what_stood_there_as_often_as_chance_has_it(corpus: Corpus, masking: Masking) -> None:
    stayed = named(audit(make_batches(corpus, masking=masking), 1_000_000))["random words equal to the original"]
    assert stayed.expected is not None
    # About one in 900 words, or in 600 words and 300 endings: the count must be positive in a sample of this size.
    assert 10 < stayed.expected < 1_000
    assert abs(stayed.measured - stayed.expected) < 4 * sqrt(stayed.expected)


def test_what_is_rarer_than_chance_is_no_rarer_than_that() -> None:
    for expected in (1e-6, 0.001, 0.03, 0.7, 4.0, 60.0, 2_000.0):
        for count in range(3_000):
            if not is_plausible(count, expected, 1e-5):
                assert poisson.sf(count - 1, expected) < 1e-5
                break
        # The bound is narrow enough to detect errors.
        assert poisson.sf(count - 1, expected) > 1e-9
    assert is_plausible(1, 0.001, 1e-5)  # this value occurs once in a thousand cases
    assert is_plausible(0, 0.0, 1e-5)
    assert not is_plausible(1, 0.0, 1e-5)


def test_one_character_of_a_word_may_be_mistaken() -> None:
    one, two, other = FIRST_WORD, FIRST_WORD + 1, FIRST_WORD + 5
    tables = WordTables(similar={(one,): ((other,),)}, characters=frozenset({one}))
    assert is_similar_word((one, two), (other, two), tables)
    for seen in ((one, two), (one, other), (other, other)):
        assert not is_similar_word((one, two), seen, tables)


def test_long_words_that_cannot_fill_the_budget_are_no_fault() -> None:
    # Nearly every sentence is a single word.
    found = audit(make_batches(make_word_corpus(100, ends=0.97), "none", "word"), 100_000)
    chosen = named(found)["chosen"]
    assert chosen.expected is not None
    assert chosen.measured < 0.9 * chosen.expected
    assert found.ok


def test_number_of_tokens_that_makes_no_sense_is_refused(corpus: Corpus) -> None:
    with pytest.raises(ConfigError, match="tokens is 0; expected at least 1"):
        audit(make_batches(corpus), 0)
    assert named(audit(make_batches(corpus), 1))["tokens built per second"].measured < inf
