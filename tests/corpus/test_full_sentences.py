import numpy as np
import pytest

from cloze.corpus.sampling import EpochPlan, Ids, plan_full_sentences
from cloze.corpus.settings import ExampleSettings
from cloze.corpus.shards import Corpus
from tests.corpus.made_corpora import make_corpus

SETTINGS = ExampleSettings("none", max_length=64)


def make_plan(corpus: Corpus, seed: int = 0) -> EpochPlan:
    return plan_full_sentences(corpus, SETTINGS, np.random.default_rng(seed))


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    generator = np.random.default_rng(4)
    return make_corpus(generator.integers(1, 20, 400).tolist(), (1, 40))


def tokens_of(plan: EpochPlan) -> Ids:
    return np.concatenate([np.arange(start, stop) for start, stop, _ in plan.chunks.tolist()])


@pytest.mark.parametrize("sentence_size", [(1, 40), (1, 200), (62, 62), (63, 63), (500, 900)])
def test_every_token_is_used_exactly_once(sentence_size: tuple[int, int]) -> None:
    corpus = make_corpus([1, 7, 30, 2, 1, 60], sentence_size)
    plan = make_plan(corpus)
    assert sorted(tokens_of(plan).tolist()) == list(range(corpus.sentences[-1]))
    assert plan.lengths.max() <= 64
    assert (plan.chunks[:, 1] > plan.chunks[:, 0]).all()
    assert (np.diff(plan.rows) > 0).all()
    assert plan.rows[-1] == len(plan.chunks)


def test_chunks_are_whole_sentences_of_one_document(corpus: Corpus) -> None:
    plan = make_plan(corpus)
    assert np.isin(plan.chunks[:, :2], corpus.sentences).all()
    begins = corpus.sentences[corpus.documents]
    documents = [np.searchsorted(begins, plan.chunks[:, 0], side="right")]
    documents.append(np.searchsorted(begins, plan.chunks[:, 1] - 1, side="right"))
    assert (documents[0] == documents[1]).all()
    # If a sequence has two chunks, they come from two documents.
    inner = np.setdiff1d(np.arange(1, len(plan.chunks)), plan.rows)
    assert len(inner) > 100
    assert (documents[0][inner] != documents[0][inner - 1]).all()


def test_sequences_are_as_full_as_whole_sentences_make_them(corpus: Corpus) -> None:
    plan = make_plan(corpus)
    following = plan.chunks[plan.rows[1:-1]][:, 0]  # the start of the next sequence
    sentence = np.searchsorted(corpus.sentences, following)
    needed = corpus.sentences[sentence + 1] - corpus.sentences[sentence]
    last = plan.chunks[plan.rows[1:-1] - 1]
    goes_on = last[:, 1] == following  # the same document continues, or the next one starts after another [SEP]
    assert (plan.lengths[:-1] + needed + ~goes_on > 64).all()
    assert plan.lengths.max() == 64


def test_long_sentence_is_cut_into_full_sequences() -> None:
    plan = make_plan(make_corpus([1], (200, 200)))
    assert plan.chunks[:, :2].tolist() == [[0, 62], [62, 124], [124, 186], [186, 200]]
    assert plan.lengths.tolist() == [64, 64, 64, 16]


def test_there_is_one_segment_and_no_label(corpus: Corpus) -> None:
    plan = make_plan(corpus)
    assert not plan.chunks[:, 2].any()
    assert len(plan.labels) == len(plan.tossed) == 0


def test_documents_come_in_a_new_order_each_time(corpus: Corpus) -> None:
    first, again, other = (make_plan(corpus, seed).chunks[:, 0].tolist() for seed in (0, 0, 1))
    assert first == again
    assert first[:20] != other[:20]


def test_one_document_is_enough() -> None:
    plan = make_plan(make_corpus([500], (3, 40)))
    assert plan.count > 100
    assert (np.diff(plan.rows) == 1).all()


def test_empty_corpus_gives_no_examples() -> None:
    assert make_plan(make_corpus([], (1, 2))).count == 0
