"""Blanks and likelihoods against direct computations, and scores of grouped items by hand."""

import numpy as np
import pytest
import torch

from cloze.checkpoint import ModelFolder
from cloze.comparison.yardsticks import (
    GroupedRows,
    MinimalPair,
    choose_blanks,
    count_tokens,
    log_likelihoods,
    predict_blanks,
    score_blanks,
    score_frequencies,
    score_pairs,
)
from cloze.corpus.shards import Corpus
from cloze.errors import DataError, RequestError
from cloze.model import Backbone, Bert, BertConfig, Gpt, HeadName
from cloze.model.backbone import find_backbone
from cloze.predict import Model
from cloze.text import Tokenizer, learn_pieces
from cloze.text.vocabulary import CONTINUATION
from tests.corpus.texts import make_documents

DOCUMENTS = make_documents(30)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    pieces = learn_pieces([sentence for document in DOCUMENTS for sentence in document], 150)
    return Tokenizer.from_vocabulary(pieces, lowercase=True).with_max_length(24)


@pytest.fixture(scope="module")
def corpus(tokenizer: Tokenizer) -> Corpus:
    ids = [[list(tokenizer.encode_ids([sentence])[0]) for sentence in document] for document in DOCUMENTS]
    flat = [number for document in ids for sentence in document for number in sentence]
    return Corpus.from_documents(ids, tokenizer.word_starts(flat))


def model_of(kind: type[Backbone], tokenizer: Tokenizer) -> Model:
    config = BertConfig(
        vocab_size=tokenizer.size, hidden_size=32, layers=2, heads=2, feedforward_size=64, positions=64,
        initial_deviation=0.3,
    )  # fmt: skip
    head: HeadName = "mlm" if kind is Bert else "lm"
    return Model(ModelFolder(kind.fresh(config, (head,)), tokenizer), device="cpu")


def test_blanks_are_whole_words_of_letters(corpus: Corpus, tokenizer: Tokenizer) -> None:
    blanks = choose_blanks(corpus, tokenizer, 24, 100, seed=3)
    assert len(blanks) == 100
    assert blanks == choose_blanks(corpus, tokenizer, 24, 100, seed=3)
    assert blanks != choose_blanks(corpus, tokenizer, 24, 100, seed=4)
    for blank in blanks:
        assert len(blank.ids) <= 24
        assert (blank.ids[0], blank.ids[-1]) == (tokenizer.cls_id, tokenizer.sep_id)
        assert tokenizer.piece(blank.target).isalpha()
        assert not tokenizer.piece(blank.ids[blank.place + 1]).startswith(CONTINUATION)
    windows = [(blank.document, blank.ids) for blank in blanks]
    assert max(windows.count(window) for window in windows) <= 3
    assert len({blank.document for blank in blanks}) > 10


def test_text_without_words_is_refused(tokenizer: Tokenizer) -> None:
    commas = Corpus.from_documents([[[tokenizer.unknown_id] * 40]])
    with pytest.raises(DataError, match="the 1 test documents have no stretch of 8 tokens with a whole word"):
        choose_blanks(commas, tokenizer, 24, 10)


def test_masked_model_sees_both_sides(corpus: Corpus, tokenizer: Tokenizer) -> None:
    model, blanks = model_of(Bert, tokenizer), choose_blanks(corpus, tokenizer, 24, 12)
    for blank, logs in zip(blanks, predict_blanks(model, blanks), strict=True):
        ids = torch.tensor([blank.ids])
        ids[0, blank.place] = tokenizer.mask_id
        with torch.no_grad():
            expected = model.bert.heads["mlm"](model.bert(ids, torch.zeros_like(ids)).last)[0, blank.place]
        np.testing.assert_allclose(logs, expected.log_softmax(-1).numpy(), atol=1e-5)


def test_left_to_right_model_sees_the_left_side(corpus: Corpus, tokenizer: Tokenizer) -> None:
    model, blanks = model_of(Gpt, tokenizer), choose_blanks(corpus, tokenizer, 24, 12)
    for blank, logs in zip(blanks, predict_blanks(model, blanks), strict=True):
        ids = torch.tensor([blank.ids])
        with torch.no_grad():
            expected = model.bert.heads["lm"](model.bert(ids, torch.zeros_like(ids)).last)[0, blank.place - 1]
        np.testing.assert_allclose(logs, expected.log_softmax(-1).numpy(), atol=1e-5)


def test_likelihood_of_a_left_to_right_model_is_exact(tokenizer: Tokenizer) -> None:
    model = model_of(Gpt, tokenizer)
    sentences = [DOCUMENTS[0][0], DOCUMENTS[1][0] + " " + DOCUMENTS[1][1]]
    for sentence, total in zip(sentences, log_likelihoods(model, sentences), strict=True):
        ids = torch.tensor([tokenizer(sentence).ids])
        with torch.no_grad():
            logs = model.bert.heads["lm"](model.bert(ids, torch.zeros_like(ids)).last).log_softmax(-1)[0]
        expected = sum(float(logs[place - 1, ids[0, place]]) for place in range(1, ids.shape[1] - 1))
        assert total == pytest.approx(expected, abs=1e-3)


def test_likelihood_of_a_masked_model_is_its_score(tokenizer: Tokenizer) -> None:
    model = model_of(Bert, tokenizer)
    assert log_likelihoods(model, [DOCUMENTS[0][0]]) == [model.score([DOCUMENTS[0][0]])[0].total]


def test_scores_of_blanks(corpus: Corpus, tokenizer: Tokenizer) -> None:
    model, blanks = model_of(Bert, tokenizer), choose_blanks(corpus, tokenizer, 24, 30)
    rows = score_blanks(model, blanks)
    assert len(rows) == len({blank.document for blank in blanks})
    scores = rows.scores(np.ones((1, len(rows))))
    logs = [logs[blank.target] for logs, blank in zip(predict_blanks(model, blanks), blanks, strict=True)]
    assert scores["likelihood"][0] == pytest.approx(np.exp(np.mean(logs)), rel=1e-4)
    assert 0 <= scores["accuracy"][0] <= 1


def test_frequencies_predict_the_most_frequent_word(corpus: Corpus, tokenizer: Tokenizer) -> None:
    blanks, counts = choose_blanks(corpus, tokenizer, 24, 60), count_tokens(corpus, tokenizer.size)
    assert counts.sum() == corpus.token_count
    words = [number for number, piece in enumerate(tokenizer.pieces) if piece.isalpha()]
    best = max(words, key=lambda number: int(counts[number]))
    scores = score_frequencies(counts, tokenizer, blanks).scores(np.ones((1, len({one.document for one in blanks}))))
    assert scores["accuracy"][0] == pytest.approx(sum(blank.target == best for blank in blanks) / 60)


def test_grouped_means_by_hand() -> None:
    values = {"accuracy": [1.0, 0.0, 1.0], "likelihood": [-1.0, -3.0, -5.0]}
    rows = GroupedRows.of([7, 7, 9], values, frozenset({"likelihood"}))
    # Every group once; only the first group; the second group twice.
    scores = rows.scores(np.array([[1.0, 1.0], [1.0, 0.0], [0.0, 2.0]]))
    assert scores["accuracy"].tolist() == pytest.approx([2 / 3, 0.5, 1.0])
    assert scores["likelihood"].tolist() == pytest.approx(np.exp([-3.0, -2.0, -5.0]))
    assert rows.by_label() == {}


def test_equal_likelihoods_count_half(tokenizer: Tokenizer) -> None:
    sentence = DOCUMENTS[0][0]
    pairs = [MinimalPair("one", sentence, sentence), MinimalPair("two", sentence, sentence)]
    rows, phenomena = score_pairs(model_of(Bert, tokenizer), pairs)
    assert phenomena == {"one": 0.5, "two": 0.5}
    assert len(rows) == 1


def elmo_of(tokenizer: Tokenizer) -> Model:
    kind = find_backbone("elmo")
    if kind is None:
        pytest.skip("ELMo is not registered")
    config = kind.config_type(vocab_size=tokenizer.size, hidden_size=32, layers=2, heads=2, feedforward_size=64)
    head: HeadName = "lm"
    return Model(ModelFolder(kind.fresh(config, (head,), seed=3), tokenizer), device="cpu")


def test_two_directions_never_see_the_word(corpus: Corpus, tokenizer: Tokenizer) -> None:
    model, blanks = elmo_of(tokenizer), choose_blanks(corpus, tokenizer, 24, 12)
    head = model.bert.heads["lm"]
    for blank, logs in zip(blanks, predict_blanks(model, blanks), strict=True):
        with torch.no_grad():
            sides = []
            for ids, place, half in ((blank.ids[: blank.place], -1, 0), (blank.ids[blank.place + 1 :], 0, 1)):
                part = torch.tensor([ids])  # only the one side, so that the word cannot leak
                sides.append(head(model.bert(part, torch.zeros_like(part)).last.chunk(2, -1)[half][0, place]))
        expected = (sides[0].log_softmax(-1) + sides[1].log_softmax(-1)).log_softmax(-1)
        np.testing.assert_allclose(logs, expected.numpy(), atol=1e-5)


def test_likelihood_of_two_directions_is_their_mean(tokenizer: Tokenizer) -> None:
    model, sentence = elmo_of(tokenizer), DOCUMENTS[0][0]
    ids = torch.tensor([tokenizer(sentence).ids])
    with torch.no_grad():
        halves = model.bert(ids, torch.zeros_like(ids)).last[0].chunk(2, -1)
        forwards, backwards = (model.bert.heads["lm"](half).log_softmax(-1) for half in halves)
    inside = range(1, ids.shape[1] - 1)
    expected = (
        sum(float(forwards[place - 1, ids[0, place]] + backwards[place + 1, ids[0, place]]) for place in inside) / 2
    )
    longer = DOCUMENTS[1][0] + " " + DOCUMENTS[2][0]  # in one batch: padding must not change the result
    assert log_likelihoods(model, [sentence, longer])[0] == pytest.approx(expected, abs=1e-3)


def test_a_model_that_predicts_no_words_is_refused(corpus: Corpus, tokenizer: Tokenizer) -> None:
    config = BertConfig(vocab_size=tokenizer.size, hidden_size=32, layers=1, heads=2, feedforward_size=64, positions=64)
    nsp: HeadName = "nsp"
    model = Model(ModelFolder(Bert.fresh(config, (nsp,)), tokenizer), device="cpu")
    with pytest.raises(RequestError, match="a model of type 'bert' does not predict words"):
        list(predict_blanks(model, choose_blanks(corpus, tokenizer, 24, 3)))
    with pytest.raises(RequestError, match="a model of type 'bert' does not predict words"):
        log_likelihoods(model, ["a text"])


def test_replaced_tokens_score_a_sentence_by_the_probability_that_all_are_original(tokenizer: Tokenizer) -> None:
    head: HeadName = "rtd"
    config = BertConfig(vocab_size=tokenizer.size, hidden_size=32, layers=1, heads=2, feedforward_size=64, positions=64)
    model, sentence = Model(ModelFolder(Bert.fresh(config, (head,)), tokenizer), device="cpu"), DOCUMENTS[0][0]
    ids = torch.tensor([tokenizer(sentence).ids])
    with torch.no_grad():
        logits = model.bert.heads["rtd"](model.bert(ids, torch.zeros_like(ids)).last)[0, 1:-1]
    expected = float((1 - logits.sigmoid()).log().sum())
    assert log_likelihoods(model, [sentence, DOCUMENTS[1][0] * 2])[0] == pytest.approx(expected, abs=1e-3)
