"""Generation and scores of a left-to-right model, against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.generation.logits_process import TopKLogitsWarper, TopPLogitsWarper

import cloze
from cloze.checkpoint import ModelFolder, save_folder
from cloze.errors import RequestError
from cloze.model import Bert, BertConfig, Gpt
from cloze.predict.language_model import Sampling
from cloze.text import Tokenizer

WORDS = ("winter", "garden", "house", "river", "stone", "cloud", "bread", "night", "##s")
TOKENIZER = Tokenizer.from_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS], lowercase=True)
CONFIG = BertConfig(
    vocab_size=TOKENIZER.size, hidden_size=16, layers=2, heads=2, feedforward_size=32, positions=24,
    initial_deviation=0.5,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gpt") / "model"
    save_folder(ModelFolder(Gpt.fresh(CONFIG, ["lm"], seed=3), TOKENIZER.with_max_length(24)), path)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> cloze.Model:
    return cloze.load(folder)


def test_greedy_continuations_equal_those_of_transformers(folder: Path, model: cloze.Model) -> None:
    theirs: Any = AutoModelForCausalLM.from_pretrained(folder)
    special = [TOKENIZER.pad_id, TOKENIZER.unknown_id, TOKENIZER.cls_id, TOKENIZER.mask_id]
    texts = ["winter", "garden house river", "", "night stone cloud bread winter"]
    for text, [found] in zip(texts, model.generate_all(texts, tokens=8, temperature=0), strict=True):
        ids = torch.tensor([[TOKENIZER.cls_id, *TOKENIZER.encode_ids([text])[0]]])
        expected = theirs.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False, suppress_tokens=special,
            eos_token_id=TOKENIZER.sep_id, pad_token_id=TOKENIZER.pad_id,
        )[0, ids.shape[1] :].tolist()  # fmt: skip
        assert found.ended == (expected[-1] == TOKENIZER.sep_id)
        assert [TOKENIZER.id(token) for token in found.tokens] == [i for i in expected if i != TOKENIZER.sep_id]
        assert found.text == TOKENIZER.decode([*ids[0, 1:].tolist(), *expected[: len(found.tokens)]])


@pytest.mark.parametrize("seed", range(3))
def test_distributions_equal_those_of_transformers(seed: int) -> None:
    logits = torch.randn(4, 20, generator=torch.Generator().manual_seed(seed)) * 2
    ids = torch.zeros(4, 1, dtype=torch.long)
    top_k = TopKLogitsWarper(3)(ids, logits / 0.7).softmax(-1)
    torch.testing.assert_close(Sampling(0.7, top_k=3).probabilities(logits), top_k)
    top_p = TopPLogitsWarper(0.8)(ids, logits).softmax(-1)
    torch.testing.assert_close(Sampling(top_p=0.8).probabilities(logits), top_p)
    both = TopPLogitsWarper(0.8)(ids, TopKLogitsWarper(5)(ids, logits)).softmax(-1)
    torch.testing.assert_close(Sampling(top_k=5, top_p=0.8).probabilities(logits), both)
    assert torch.equal(Sampling(0).probabilities(logits).argmax(-1), logits.argmax(-1))


def test_samples_depend_only_on_text_seed_and_number(model: cloze.Model) -> None:
    texts = ["winter house", "garden", "river stone cloud"]
    together = model.generate_all(texts, tokens=6, samples=3, seed=5)
    for text, ours in zip(texts, together, strict=True):
        alone = model.generate(text, tokens=6, samples=3, seed=5)
        assert [one.tokens for one in alone] == [one.tokens for one in ours]
        assert [one.log_probability for one in alone] == pytest.approx([one.log_probability for one in ours])
    assert together != model.generate_all(texts, tokens=6, samples=3, seed=6)
    assert len({one.continuation for one in together[0]}) > 1
    for one in together[0]:
        assert one.text.startswith("winter house")
        assert not {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"} & set(one.tokens)


def test_the_log_probability_of_a_continuation_is_that_of_the_score(model: cloze.Model) -> None:
    for one in model.generate("winter house", tokens=5, samples=4, seed=1):
        ids = torch.tensor([[TOKENIZER.cls_id, *TOKENIZER.encode_ids(["winter house"])[0],
                             *[TOKENIZER.id(token) or 0 for token in one.tokens],
                             *([TOKENIZER.sep_id] if one.ended else [])]])  # fmt: skip
        positions = torch.arange(2, ids.shape[1] - 1)
        logs = model.bert.next_logits(ids, torch.zeros_like(ids), None, positions).log_softmax(-1)
        allowed = [*TOKENIZER.ordinary_ids, TOKENIZER.sep_id]
        logs = logs - logs[:, allowed].logsumexp(-1, keepdim=True)
        total = logs[torch.arange(len(positions)), ids[0, 3:]].sum()
        assert one.log_probability == pytest.approx(total.item(), abs=1e-4)


def test_texts_longer_than_the_model_continue_from_their_end(model: cloze.Model) -> None:
    [found] = model.generate("winter garden " * 20, tokens=4, temperature=0)
    [short] = model.generate("garden " + "winter garden " * 11, tokens=1, temperature=0)  # 23 tokens after [CLS]
    assert found.tokens[:1] == short.tokens


def test_scores_are_the_log_likelihood(folder: Path, model: cloze.Model) -> None:
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    texts = ["winter houses", "garden river stone cloud bread night", ""]
    scores = model.score(texts)
    for text, score in zip(texts[:2], scores, strict=False):
        ids = torch.tensor([[TOKENIZER.cls_id, *TOKENIZER.encode_ids([text])[0]]])
        with torch.inference_mode():
            logs = theirs(input_ids=ids).logits[0, :-1].log_softmax(-1)
        expected = logs[torch.arange(ids.shape[1] - 1), ids[0, 1:]]
        torch.testing.assert_close(torch.tensor(score.log_probabilities), expected, atol=1e-5, rtol=1e-5)
        assert score.tokens == tuple(TOKENIZER.piece(number) for number in ids[0, 1:].tolist())
    assert scores[2].perplexity is None
    assert scores == [model.score([text])[0] for text in texts]


def test_every_token_of_a_long_text_is_scored_once(model: cloze.Model) -> None:
    text = "winter garden house river stone " * 12
    [score] = model.score([text])
    assert score.tokens == tuple(text.split())
    assert score.total < 0


def test_methods_that_need_another_head_say_so(model: cloze.Model) -> None:
    with pytest.raises(RequestError, match=r"no 'mlm' head \(its heads: lm\); it predicts the next word .* generate"):
        model.fill("winter [MASK]")
    masked = cloze.Model(ModelFolder(Bert.fresh(CONFIG, ["mlm"]), TOKENIZER))
    with pytest.raises(RequestError, match=r"no 'lm' head .* --recipe gpt trains, or predict words for \[MASK\]"):
        masked.generate("winter")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": -1.0}, "temperature is -1.0; expected at least 0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": 0}, "top_k is 0; expected at least 1"),
        ({"top_p": 1.5}, "top_p is 1.5; expected a probability above 0 and at most 1"),
        ({"tokens": 0}, "tokens is 0; expected at least 1"),
        ({"samples": 0}, "samples is 0; expected at least 1"),
    ],
)
def test_wrong_values_are_refused(wrong: dict[str, Any], message: str, model: cloze.Model) -> None:
    with pytest.raises(RequestError, match=message):
        model.generate("winter", **wrong)
    with pytest.raises(RequestError, match="expected a list of texts"):
        model.generate_all("winter")


def test_attention_of_a_left_to_right_model_is_triangular(model: cloze.Model) -> None:
    weights = torch.from_numpy(model.attend("winter house").weights)
    assert torch.equal(weights, weights.tril())
