"""Pseudo-log-likelihood compared with a plain loop over ``transformers``; long texts in windows."""

import math
from pathlib import Path

import pytest
import torch
from transformers import BertForMaskedLM

from cloze.errors import RequestError
from cloze.predict import Model, Score
from cloze.predict.fill_mask import token_windows
from tests.model.made import assert_close, model_folder

TEXTS = ["the cat sat on a mat.", "dogs ran", "猫坐", "", "[MASK] the cat"]


def test_same_as_a_plain_loop(pretrained: Model, pretrained_folder: Path) -> None:
    theirs = BertForMaskedLM.from_pretrained(pretrained_folder)
    scores = pretrained.score(TEXTS)
    assert [score.text for score in scores] == TEXTS
    for text, score in zip(TEXTS, scores, strict=True):
        ids = pretrained.tokenizer(text).ids
        expected = []
        for place in range(1, len(ids) - 1):
            hidden = torch.tensor([ids])
            hidden[0, place] = pretrained.tokenizer.mask_id
            with torch.inference_mode():
                logits = theirs(input_ids=hidden).logits[0, place]
            expected.append(float(logits.log_softmax(-1)[ids[place]]))
        assert_close(score.log_probabilities, expected)
        assert score.total == pytest.approx(sum(expected), abs=1e-4)
        if expected:
            assert score.perplexity == pytest.approx(math.exp(-sum(expected) / len(expected)), rel=1e-4)
        else:
            assert score.perplexity is None


def test_the_batch_does_not_matter(pretrained: Model) -> None:
    alone = [pretrained.score([text])[0] for text in TEXTS]
    for together, single in zip(pretrained.score(TEXTS), alone, strict=True):
        assert together.tokens == single.tokens
        assert_close(together.log_probabilities, single.log_probabilities)


def test_every_token_of_a_long_text_is_scored_once(pretrained: Model) -> None:
    words = [f"word{number % 30}" for number in range(100)]  # more than three times the model's maximum length
    (score,) = pretrained.score([" ".join(words)])
    assert list(score.tokens) == words
    (windows,) = token_windows(pretrained.tokenizer, [" ".join(words)])
    assert len(windows) > 4
    room = pretrained.tokenizer.content_length(1)
    for window in windows[1:-1]:  # inner windows have context on both sides
        assert window.places[0] - 1 >= room // 4 - 1
        assert room - window.places[-1] >= room // 4 - 1


def test_nothing_to_score(pretrained: Model) -> None:
    assert pretrained.score([]) == []
    assert Score("", (), ()).perplexity is None


def test_invalid_input_is_rejected(pretrained: Model) -> None:
    with pytest.raises(RequestError, match=r"^expected a list of texts, got a single text"):
        pretrained.score("the cat")
    with pytest.raises(RequestError, match="no 'mlm' head"):
        Model(model_folder()).score(["the cat"])


def test_losses_per_word_and_character_by_hand() -> None:
    score = Score("The cats' mat, 猫坐 x_y", ("the", "cat"), (-2.0, -3.0))
    # The, cats, ', mat, the comma, 猫, 坐, x, _, y.
    assert score.loss_per_word == 5 / 10
    assert score.loss_per_character == 5 / 17
    empty = Score(" ", (), ())
    assert (empty.loss_per_word, empty.loss_per_character, empty.perplexity) == (None, None, None)


def test_texts_without_tokens_are_warned_of(pretrained: Model, caplog: pytest.LogCaptureFixture) -> None:
    pretrained.score(["the cat"])
    assert not caplog.records
    empty, blank, _ = pretrained.score(["", " ", "the cat"])
    assert (empty.total, empty.perplexity, empty.tokens) == (0.0, None, ()) == (blank.total, blank.perplexity, ())
    assert isinstance(empty.total, float)
    assert "2 of 3 texts contain no tokens, so their perplexity is null" in caplog.text
