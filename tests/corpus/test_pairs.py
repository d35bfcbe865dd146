import random
from math import sqrt

import numpy as np
import pytest
from scipy.stats import ks_2samp

from cloze.corpus import sampling as module
from cloze.corpus.sampling import EpochPlan, Ids, plan_next_sentences, plan_sentence_order
from cloze.corpus.settings import ExampleSettings
from cloze.corpus.shards import Corpus
from cloze.errors import ConfigError, DataError
from tests.corpus.made_corpora import make_corpus
from tests.corpus.reference import create_instances, truncate

LENGTH = 64
ROOM = LENGTH - 3


A_START, A_STOP, B_START, B_STOP, IS_RANDOM = range(5)


def table(plan: EpochPlan) -> Ids:
    """Return both segments and the label of each example: (E, 5)."""
    assert plan.chunks[:, 2].tolist() == [0, 1] * plan.count
    assert plan.rows.tolist() == list(range(0, 2 * plan.count + 1, 2))
    return np.column_stack([plan.chunks[:, :2].reshape(-1, 4), plan.labels])


def plan_pairs(corpus: Corpus, settings: ExampleSettings, generator: np.random.Generator) -> Ids:
    return table(plan_next_sentences(corpus, settings, generator))


def document_of(corpus: Corpus, tokens: Ids) -> Ids:
    return np.searchsorted(corpus.sentences[corpus.documents], tokens, side="right") - 1


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    draw = random.Random(3)
    return make_corpus([draw.randint(1, 20) for _ in range(1500)], (1, 40))


@pytest.fixture(scope="module")
def plan(corpus: Corpus) -> Ids:
    return plan_pairs(corpus, ExampleSettings(max_length=LENGTH, short_share=0), np.random.default_rng(0))


@pytest.fixture
def whole_plan(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> Ids:
    """Return a plan without truncation, so that whole segments are visible."""
    monkeypatch.setattr(module, "_truncate", lambda first, second, _room, _generator: (first, second))
    return plan_pairs(corpus, ExampleSettings(max_length=LENGTH, short_share=0), np.random.default_rng(0))


def within_binomial_bounds(count: int, total: int, share: float) -> bool:
    return abs(count - total * share) < 4 * sqrt(total * share * (1 - share))


def test_examples_fill_the_room_and_no_more(plan: Ids) -> None:
    lengths = plan[:, A_STOP] - plan[:, A_START] + plan[:, B_STOP] - plan[:, B_START]
    assert lengths.max() == ROOM
    assert (plan[:, A_STOP] > plan[:, A_START]).all()
    assert (plan[:, B_STOP] > plan[:, B_START]).all()


def test_segments_are_whole_sentences_before_truncation(corpus: Corpus, whole_plan: Ids) -> None:
    assert len(whole_plan) > 5000
    assert np.isin(whole_plan[:, :IS_RANDOM], corpus.sentences).all()
    for start, stop in ((A_START, A_STOP), (B_START, B_STOP)):
        last = document_of(corpus, whole_plan[:, stop] - 1)
        assert (document_of(corpus, whole_plan[:, start]) == last).all()


def test_real_second_segment_follows_at_once(whole_plan: Ids) -> None:
    real = whole_plan[whole_plan[:, IS_RANDOM] == 0]
    assert len(real) > 2000
    assert (real[:, B_START] == real[:, A_STOP]).all()


def test_random_second_segment_is_from_elsewhere(corpus: Corpus, plan: Ids) -> None:
    chosen = plan[plan[:, IS_RANDOM] == 1]
    assert (document_of(corpus, chosen[:, A_START]) != document_of(corpus, chosen[:, B_START])).all()
    # With two documents, the random segment can only come from the other one.
    two = make_corpus([50, 50], (1, 40))
    both = plan_pairs(two, ExampleSettings(max_length=LENGTH), np.random.default_rng(0))
    both = both[both[:, IS_RANDOM] == 1]
    assert (document_of(two, both[:, A_START]) + document_of(two, both[:, B_START]) == 1).all()


def test_first_and_real_second_segments_cover_the_corpus_once(corpus: Corpus, whole_plan: Ids) -> None:
    real = whole_plan[whole_plan[:, IS_RANDOM] == 0]
    ranges = np.concatenate([whole_plan[:, [A_START, A_STOP]], real[:, [B_START, B_STOP]]])
    ranges = ranges[ranges[:, 0].argsort()]
    assert ranges[0, 0] == 0
    assert ranges[-1, 1] == corpus.sentences[-1]
    assert (ranges[1:, 0] == ranges[:-1, 1]).all()


def test_half_of_the_possible_pairs_are_random(corpus: Corpus, whole_plan: Ids) -> None:
    first_sentence = np.searchsorted(corpus.sentences, whole_plan[:, A_START])
    last_sentence = np.searchsorted(corpus.sentences, whole_plan[:, A_STOP])
    ends_document = np.isin(last_sentence, corpus.documents)
    fills_room = whole_plan[:, A_STOP] - whole_plan[:, A_START] >= ROOM
    # A lone sentence has no next sentence, so its partner can only be random.
    alone = (last_sentence - first_sentence == 1) & (ends_document | fills_room)
    assert whole_plan[alone, IS_RANDOM].all()
    coins = whole_plan[~alone, IS_RANDOM]
    assert len(coins) > 4000
    assert within_binomial_bounds(int(coins.sum()), len(coins), 0.5)


def test_one_in_ten_examples_is_short() -> None:
    # With sentences of one token, segments have exactly the target length.
    corpus = make_corpus([3000] * 40, (1, 1))
    plan = plan_pairs(corpus, ExampleSettings(max_length=32), np.random.default_rng(0))
    ends = corpus.sentences[corpus.documents]
    whole = plan[(plan[:, IS_RANDOM] == 0) & ~np.isin(plan[:, B_STOP], ends)]
    short = whole[:, B_STOP] - whole[:, A_START] < 29
    # Target lengths range from 2 to 29 tokens; 29 is not short.
    assert len(short) > 2000
    assert within_binomial_bounds(int(short.sum()), len(short), 0.1 * 27 / 28)


def test_examples_are_those_of_the_original_in_distribution(corpus: Corpus, plan: Ids) -> None:
    documents = [
        [
            corpus.tokens[corpus.sentences[sentence] : corpus.sentences[sentence + 1]].tolist()
            for sentence in range(corpus.documents[index], corpus.documents[index + 1])
        ]
        for index in range(corpus.document_count)
    ]
    draw = random.Random(0)
    theirs = [one for index in range(len(documents)) for one in create_instances(documents, index, LENGTH, draw)]
    assert abs(len(theirs) - len(plan)) < 0.03 * len(plan)
    for is_random in (False, True):
        ours = plan[plan[:, IS_RANDOM] == is_random]
        same = [one for one in theirs if one.is_random == is_random]
        assert abs(len(same) - len(ours)) < 0.05 * len(ours)
        samples = [
            ([len(one.first) for one in same], ours[:, A_STOP] - ours[:, A_START]),
            ([len(one.second) for one in same], ours[:, B_STOP] - ours[:, B_START]),
            ([one.first[0] for one in same], ours[:, A_START]),
            ([one.second[0] for one in same], ours[:, B_START]),
            # The gap between the segments after truncation, or the position of a random second segment.
            ([one.second[0] - one.first[-1] for one in same], ours[:, B_START] - ours[:, A_STOP] + 1),
        ]
        for reference, measured in samples:
            assert ks_2samp(reference, measured).pvalue > 0.01


def test_distribution_test_notices_a_truncation_that_favours_an_end(
    corpus: Corpus, plan: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        module, "cut", lambda segments, kept, _generator: np.stack([segments[:, 0], segments[:, 0] + kept], axis=1)
    )
    cut_behind = plan_pairs(corpus, ExampleSettings(max_length=LENGTH, short_share=0), np.random.default_rng(0))
    real = [rows[rows[:, IS_RANDOM] == 0] for rows in (plan, cut_behind)]
    gaps = [rows[:, B_START] - rows[:, A_STOP] for rows in real]
    assert ks_2samp(*gaps).pvalue < 1e-6


def test_two_segments_share_the_room_as_the_original_has_it() -> None:
    draw = random.Random(0)
    sizes = np.array([(first, second) for first in range(1, 41) for second in range(1, 41)])
    for room in range(2, 80):
        kept = np.stack(module._shared(sizes[:, 0], sizes[:, 1], room), axis=1)
        for (first, second), ours in zip(sizes.tolist(), kept.tolist(), strict=True):
            a, b = [0] * first, [0] * second
            truncate(a, b, room, draw)
            assert ours == [len(a), len(b)]


def test_plan_follows_from_the_generator(corpus: Corpus, plan: Ids) -> None:
    again = plan_pairs(corpus, ExampleSettings(max_length=LENGTH, short_share=0), np.random.default_rng(0))
    other = plan_pairs(corpus, ExampleSettings(max_length=LENGTH, short_share=0), np.random.default_rng(1))
    assert (again == plan).all()
    assert other.shape != plan.shape or (other != plan).any()


def test_one_document_is_rejected() -> None:
    with pytest.raises(
        DataError, match=r"has 1 document; .* put a blank line between documents, or use --objective sop"
    ):
        plan_pairs(make_corpus([10], (3, 9)), ExampleSettings(max_length=LENGTH), np.random.default_rng(0))


def test_length_without_room_for_a_pair_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_length is 7; a pair of segments needs at least 8 tokens"):
        ExampleSettings(max_length=7)


@pytest.mark.parametrize("name", ["short_share", "random_share"])
def test_share_of_examples_out_of_bounds_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name} is 1\.5; expected a fraction from 0 to 1"):
        ExampleSettings(**{name: 1.5})  # type: ignore[arg-type]


def test_objective_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"objective is 'nps'; did you mean 'nsp'\?"):
        ExampleSettings("nps")  # type: ignore[arg-type]


def walked(corpus: Corpus, monkeypatch: pytest.MonkeyPatch, many: int) -> Ids:
    """Return a plan created in vectorized waves for all documents, or for none."""
    monkeypatch.setattr(module, "_MANY", many)
    return plan_pairs(corpus, ExampleSettings(max_length=LENGTH), np.random.default_rng(5))


def test_walking_alone_is_walking_in_waves(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    waves, alone = walked(corpus, monkeypatch, 1), walked(corpus, monkeypatch, 10**9)
    assert abs(len(waves) - len(alone)) < 0.03 * len(waves)
    for label in (0, 1):
        one, other = (rows[rows[:, IS_RANDOM] == label] for rows in (waves, alone))
        for column in (A_START, B_START):
            assert ks_2samp(one[:, column], other[:, column]).pvalue > 0.01
        for start, stop in ((A_START, A_STOP), (B_START, B_STOP)):
            assert ks_2samp(one[:, stop] - one[:, start], other[:, stop] - other[:, start]).pvalue > 0.01


@pytest.mark.parametrize("many", [1, 10**9])
def test_walk_without_chance_is_known(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each example has exactly two sentences of ten tokens: A and B have one sentence each, and none is random.
    monkeypatch.setattr(module, "_MANY", many)
    settings = ExampleSettings(max_length=23, short_share=0, random_share=0)
    plan = plan_next_sentences(make_corpus([5, 4], (10, 10)), settings, np.random.default_rng(0))
    rows = sorted(
        module.walk_documents(
            make_corpus([5, 4], (10, 10)), settings, np.random.default_rng(0), returns_rest=True
        ).tolist()
    )
    assert rows == [
        [0, 0, 10, 20, 20, 0],
        [0, 20, 30, 40, 20, 0],
        [0, 40, 50, 50, 20, 1],
        [1, 50, 60, 70, 20, 0],
        [1, 70, 80, 90, 20, 0],
    ]
    assert sorted(plan.labels.tolist()) == [0, 0, 0, 0, 1]
    assert plan.tossed.tolist() == (plan.labels == 0).tolist()


@pytest.fixture
def order_plan(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> Ids:
    """Return a plan for sentence order, without truncation."""
    monkeypatch.setattr(module, "_truncate", lambda first, second, _room, _generator: (first, second))
    return table(plan_sentence_order(corpus, ExampleSettings("sop", LENGTH), np.random.default_rng(0)))


def test_segments_are_consecutive_or_swapped(corpus: Corpus, order_plan: Ids) -> None:
    swapped = order_plan[:, IS_RANDOM] == 1
    assert (order_plan[~swapped, B_START] == order_plan[~swapped, A_STOP]).all()
    assert (order_plan[swapped, A_START] == order_plan[swapped, B_STOP]).all()
    assert (document_of(corpus, order_plan[:, A_START]) == document_of(corpus, order_plan[:, B_START])).all()
    assert len(swapped) > 3000
    assert within_binomial_bounds(int(swapped.sum()), len(swapped), 0.5)


def test_sentence_order_uses_every_sentence_once(corpus: Corpus, order_plan: Ids) -> None:
    starts, stops = order_plan[:, :4:2].min(1), order_plan[:, 1:4:2].max(1)
    gaps = np.delete(np.arange(corpus.sentences[-1]), np.concatenate(list(map(np.arange, starts, stops))))
    # Only lone sentences of one token at the end of a document are left out.
    ends = corpus.sentences[corpus.documents[1:]]
    assert np.isin(gaps + 1, ends).all()
    assert len(gaps) < 0.002 * corpus.sentences[-1]
    assert stops.max() == corpus.sentences[-1]


def test_lone_sentence_is_split_in_two() -> None:
    corpus = make_corpus([1] * 500, (30, 30))
    rows = table(plan_sentence_order(corpus, ExampleSettings("sop", LENGTH), np.random.default_rng(0)))
    assert len(rows) == 500
    first = np.where(rows[:, IS_RANDOM] == 1, rows[:, B_STOP] - rows[:, B_START], rows[:, A_STOP] - rows[:, A_START])
    assert set(first.tolist()) <= set(range(1, 30))
    assert len(set(first.tolist())) > 20
    assert within_binomial_bounds(int(rows[:, IS_RANDOM].sum()), 500, 0.5)


def test_one_document_is_enough_for_sentence_order() -> None:
    plan = plan_sentence_order(make_corpus([2000], (3, 40)), ExampleSettings("sop", LENGTH), np.random.default_rng(0))
    assert plan.count > 500
    assert plan.lengths.max() == LENGTH
    assert plan.tossed.all()
