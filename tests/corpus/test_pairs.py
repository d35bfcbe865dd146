import random
from math import sqrt

import numpy as np
import pytest
from scipy.stats import ks_2samp

from cloze.corpus import pairs as module
from cloze.corpus.masking import Ids
from cloze.corpus.pairs import A_START, A_STOP, B_START, B_STOP, IS_RANDOM, Plan, plan_pairs
from cloze.corpus.settings import PairSettings
from cloze.corpus.shards import Corpus
from cloze.errors import ConfigError, DataError
from tests.corpus.reference import create_instances, truncate

LENGTH = 64
ROOM = LENGTH - 3


def make_corpus(document_sizes: list[int], sentence_size: tuple[int, int], seed: int = 0) -> Corpus:
    """Each token is its own place in the corpus, so that a segment tells where it is from."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(sentence_size[0], sentence_size[1] + 1, sum(document_sizes))
    sentences = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    documents = np.concatenate([[0], np.cumsum(document_sizes)]).astype(np.int64)
    return Corpus(np.arange(sentences[-1]), sentences, documents)


def document_of(corpus: Corpus, tokens: Ids) -> Ids:
    return np.searchsorted(corpus.sentences[corpus.documents], tokens, side="right") - 1


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    draw = random.Random(3)
    return make_corpus([draw.randint(1, 20) for _ in range(1500)], (1, 40))


@pytest.fixture(scope="module")
def plan(corpus: Corpus) -> Plan:
    return plan_pairs(corpus, PairSettings(LENGTH, short_share=0), np.random.default_rng(0))


@pytest.fixture
def whole_plan(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """The same with the truncation taken out, so that whole segments can be seen."""
    monkeypatch.setattr(module._Planner, "_truncate", lambda _self, a, b, _room: (a, b))
    return plan_pairs(corpus, PairSettings(LENGTH, short_share=0), np.random.default_rng(0))


def within_binomial_bounds(count: int, total: int, share: float) -> bool:
    return abs(count - total * share) < 4 * sqrt(total * share * (1 - share))


def test_examples_fill_the_room_and_no_more(plan: Plan) -> None:
    lengths = plan[:, A_STOP] - plan[:, A_START] + plan[:, B_STOP] - plan[:, B_START]
    assert lengths.max() == ROOM
    assert (plan[:, A_STOP] > plan[:, A_START]).all()
    assert (plan[:, B_STOP] > plan[:, B_START]).all()


def test_segments_are_whole_sentences_before_truncation(corpus: Corpus, whole_plan: Plan) -> None:
    assert len(whole_plan) > 5000
    assert np.isin(whole_plan[:, :IS_RANDOM], corpus.sentences).all()
    for start, stop in ((A_START, A_STOP), (B_START, B_STOP)):
        last = document_of(corpus, whole_plan[:, stop] - 1)
        assert (document_of(corpus, whole_plan[:, start]) == last).all()


def test_real_second_segment_follows_at_once(whole_plan: Plan) -> None:
    real = whole_plan[whole_plan[:, IS_RANDOM] == 0]
    assert len(real) > 2000
    assert (real[:, B_START] == real[:, A_STOP]).all()


def test_random_second_segment_is_from_elsewhere(corpus: Corpus, plan: Plan) -> None:
    chosen = plan[plan[:, IS_RANDOM] == 1]
    assert (document_of(corpus, chosen[:, A_START]) != document_of(corpus, chosen[:, B_START])).all()
    # With two documents, the other one is the only choice.
    two = make_corpus([50, 50], (1, 40))
    both = plan_pairs(two, PairSettings(LENGTH), np.random.default_rng(0))
    both = both[both[:, IS_RANDOM] == 1]
    assert (document_of(two, both[:, A_START]) + document_of(two, both[:, B_START]) == 1).all()


def test_first_and_real_second_segments_cover_the_corpus_once(corpus: Corpus, whole_plan: Plan) -> None:
    real = whole_plan[whole_plan[:, IS_RANDOM] == 0]
    ranges = np.concatenate([whole_plan[:, [A_START, A_STOP]], real[:, [B_START, B_STOP]]])
    ranges = ranges[ranges[:, 0].argsort()]
    assert ranges[0, 0] == 0
    assert ranges[-1, 1] == corpus.sentences[-1]
    assert (ranges[1:, 0] == ranges[:-1, 1]).all()


def test_half_of_what_could_be_real_is_random(corpus: Corpus, whole_plan: Plan) -> None:
    first_sentence = np.searchsorted(corpus.sentences, whole_plan[:, A_START])
    last_sentence = np.searchsorted(corpus.sentences, whole_plan[:, A_STOP])
    ends_document = np.isin(last_sentence, corpus.documents)
    fills_room = whole_plan[:, A_STOP] - whole_plan[:, A_START] >= ROOM
    # A lone sentence has nothing to be followed by, so that its partner can only be random.
    alone = (last_sentence - first_sentence == 1) & (ends_document | fills_room)
    assert whole_plan[alone, IS_RANDOM].all()
    coins = whole_plan[~alone, IS_RANDOM]
    assert len(coins) > 4000
    assert within_binomial_bounds(int(coins.sum()), len(coins), 0.5)


def test_one_in_ten_examples_is_short() -> None:
    # Sentences of one token are gathered to the very length that was wanted.
    corpus = make_corpus([3000] * 40, (1, 1))
    plan = plan_pairs(corpus, PairSettings(32), np.random.default_rng(0))
    ends = corpus.sentences[corpus.documents]
    whole = plan[(plan[:, IS_RANDOM] == 0) & ~np.isin(plan[:, B_STOP], ends)]
    short = whole[:, B_STOP] - whole[:, A_START] < 29
    # From 2 to 29 tokens, of which 29 is not short.
    assert len(short) > 2000
    assert within_binomial_bounds(int(short.sum()), len(short), 0.1 * 27 / 28)


def test_examples_are_those_of_the_original_in_distribution(corpus: Corpus, plan: Plan) -> None:
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
            # What truncation took away between the two, or where a random one came from.
            ([one.second[0] - one.first[-1] for one in same], ours[:, B_START] - ours[:, A_STOP] + 1),
        ]
        for reference, measured in samples:
            assert ks_2samp(reference, measured).pvalue > 0.01


def test_distribution_test_notices_a_truncation_that_favours_an_end(
    corpus: Corpus, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module._Planner, "_cut", lambda _self, segment, kept: (segment[0], segment[0] + kept))
    cut_behind = plan_pairs(corpus, PairSettings(LENGTH, short_share=0), np.random.default_rng(0))
    real = [rows[rows[:, IS_RANDOM] == 0] for rows in (plan, cut_behind)]
    gaps = [rows[:, B_START] - rows[:, A_STOP] for rows in real]
    assert ks_2samp(*gaps).pvalue < 1e-6


def test_two_segments_share_the_room_as_the_original_has_it() -> None:
    draw = random.Random(0)
    for first in range(1, 41):
        for second in range(1, 41):
            for room in range(2, first + second):
                a, b = [0] * first, [0] * second
                truncate(a, b, room, draw)
                assert module._shared([first, second], room) == (len(a), len(b))


def test_plan_follows_from_the_generator(corpus: Corpus, plan: Plan) -> None:
    again = plan_pairs(corpus, PairSettings(LENGTH, short_share=0), np.random.default_rng(0))
    other = plan_pairs(corpus, PairSettings(LENGTH, short_share=0), np.random.default_rng(1))
    assert (again == plan).all()
    assert other.shape != plan.shape or (other != plan).any()


def test_one_document_is_too_few() -> None:
    with pytest.raises(DataError, match=r"has 1 document; .*at least two are needed: put a blank line between"):
        plan_pairs(make_corpus([10], (3, 9)), PairSettings(LENGTH), np.random.default_rng(0))


def test_length_without_room_for_a_pair_is_refused() -> None:
    with pytest.raises(ConfigError, match="length is 7; a pair of segments needs at least 8 tokens"):
        PairSettings(7)
