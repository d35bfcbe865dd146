"""Predictions of a model compared with ``transformers`` on the same weights, and rejected inputs."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import transformers

from cloze.checkpoint import ModelFolder, TaskLabels
from cloze.errors import ConfigError, RequestError
from cloze.model import Bert, HeadName
from cloze.predict import Filled, Model, load
from cloze.text import Tokenizer
from tests.model.made import SMALL, assert_close, model_folder, saved

ORACLE: Any = transformers  # transformers is only partly typed
TEXT, PAIR = "the cats sat on a mat.", "dogs ran, 猫坐"
LONG = "the cat sat on a mat. " * 10


class Oracle:
    """The same folder loaded by ``transformers``."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = ORACLE.AutoTokenizer.from_pretrained(folder)
        self.model = ORACLE.BertForPreTraining.from_pretrained(folder, attn_implementation="eager").eval()

    @torch.no_grad()
    def __call__(self, text: str, pair: str | None = None) -> Any:
        inputs = self.tokenizer(text, pair, truncation=True, return_tensors="pt")
        return self.model(**inputs, output_hidden_states=True, output_attentions=True)


@pytest.fixture(scope="module")
def oracle(pretrained_folder: Path) -> Oracle:
    return Oracle(pretrained_folder)


# fill


def test_fill_equals_transformers(pretrained: Model, oracle: Oracle) -> None:
    text = "the [MASK] sat on[MASK]a mat."
    blanks = [2, 5]
    expected = oracle(text).prediction_logits[0, blanks].softmax(-1).topk(7)
    answers = pretrained.fill(text, top=7)
    assert len(answers) == 2
    for answer, values, pieces in zip(answers, expected.values, expected.indices, strict=True):
        assert [filled.token for filled in answer] == oracle.tokenizer.convert_ids_to_tokens(pieces.tolist())
        assert_close([filled.probability for filled in answer], values)


def test_fill_all_fills_each(pretrained: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["the [MASK] sat on[MASK]a mat.", "[MASK]", "[MASK] [MASK] [MASK]", "a dog ran on the mat, [MASK]"]
    alone = [pretrained.fill(text, top=3) for text in texts]
    monkeypatch.setattr("cloze.predict.fill_mask._HELD", 2)  # small enough to split the three blanks of one text
    together = pretrained.fill_all(texts, top=3)
    assert [len(blanks) for blanks in together] == [2, 1, 3, 1]
    for ours, theirs in zip(together, alone, strict=True):
        assert [[one.token for one in blank] for blank in ours] == [[one.token for one in blank] for blank in theirs]
        assert_close([[one.probability for one in blank] for blank in ours], [[one[1] for one in b] for b in theirs])
    assert pretrained.fill_all([]) == []
    with pytest.raises(RequestError, match=r"^expected a list of texts, got a single text; put it into"):
        pretrained.fill_all("[MASK]")


def test_fill_is_sorted_and_covers_the_vocabulary(pretrained: Model) -> None:
    (answer,) = pretrained.fill("[MASK]", top=10_000)
    assert {filled.token for filled in answer} == set(pretrained.tokenizer.pieces)
    probabilities = [filled.probability for filled in answer]
    assert probabilities == sorted(probabilities, reverse=True)
    assert sum(probabilities) == pytest.approx(1, abs=1e-5)
    assert pretrained.fill("[MASK]") == [answer[:5]]
    assert isinstance(answer[0], Filled)


def test_fill_creates_no_other_special_token(pretrained: Model, oracle: Oracle) -> None:
    """``[SEP]`` in a text is ordinary text, whereas in ``transformers`` it ends the segment."""
    pieces = ["[CLS]", "the", "[MASK]", "[", "sep", "]", "cat", "[SEP]"]
    ids = torch.tensor([pretrained.tokenizer.id(piece) for piece in pieces])
    with torch.no_grad():
        expected = oracle.model(ids[None]).prediction_logits[0, 2].softmax(-1)
    (answer,) = pretrained.fill("the [MASK] [SEP] cat", top=1)
    assert_close(answer[0].probability, expected.max())


@pytest.mark.parametrize(
    ("text", "top", "message"),
    [
        ("the cat", 5, "no [MASK] in 'the cat'; write [MASK] in place of the missing word"),
        ("", 5, "no [MASK] in ''; write [MASK] in place of the missing word"),
        ("the [mask]", 5, "no [MASK] in 'the [mask]'; write [MASK] in place of the missing word"),
        (LONG + "[MASK]", 5, "a [MASK] lies beyond the 32 tokens that this model accepts"),
        ("[MASK]" + LONG + "[MASK]", 5, "a [MASK] lies beyond the 32 tokens that this model accepts"),
        ("[MASK]", 0, "top is 0; expected at least 1"),
    ],
)
def test_fill_refuses(text: str, top: int, message: str, pretrained: Model) -> None:
    with pytest.raises(RequestError) as caught:
        pretrained.fill(text, top)
    assert str(caught.value) == message


def test_fill_offers_no_piece_that_only_pads_the_table() -> None:
    contents = model_folder(["mlm"])
    fewer = Tokenizer.from_vocabulary(contents.tokenizer.pieces[:57], lowercase=True)
    (answer,) = Model(replace(contents, tokenizer=fewer)).fill("[MASK]", top=60)
    assert len(answer) == 57


# follows


def test_follows_equals_transformers(pretrained: Model, oracle: Oracle) -> None:
    for first, second in [(TEXT, PAIR), (PAIR, TEXT), ("", "cat"), (LONG, TEXT)]:
        probability = pretrained.follows(first, second)
        assert 0 < probability < 1
        if first != LONG:  # transformers truncates pairs differently
            assert_close(probability, oracle(first, second).seq_relationship_logits.softmax(-1)[0, 0])


def test_a_sentence_order_model_predicts_order(pretrained: Model) -> None:
    config = pretrained.bert.config
    ordered = Model(ModelFolder(Bert.fresh(config, ("mlm", "sop")), pretrained.tokenizer))
    assert 0 < ordered.in_order(TEXT, PAIR) < 1
    with pytest.raises(
        RequestError,
        match=r"whether two segments are in order \(sop\).*no command supports order prediction, but model\.in_order",
    ):
        ordered.follows(TEXT, PAIR)
    with pytest.raises(RequestError, match="no 'sop' head"):
        pretrained.in_order(TEXT, PAIR)


# hidden, attend


@pytest.mark.parametrize(
    "texts", [(TEXT, None), (TEXT, PAIR), ("", None), (LONG, None)], ids=["one", "pair", "empty", "long"]
)
def test_hidden_equals_transformers(texts: tuple[str, str | None], pretrained: Model, oracle: Oracle) -> None:
    expected = torch.cat(oracle(*texts).hidden_states)
    states = pretrained.hidden(*texts, layer=None)
    assert states.shape == (SMALL.layers + 1, expected.shape[1], SMALL.hidden_size)
    assert_close(states, expected)
    for layer in range(-SMALL.layers - 1, SMALL.layers + 1):
        assert_close(pretrained.hidden(*texts, layer=layer), expected[layer])
    assert_close(pretrained.hidden(*texts), expected[-1])


@pytest.mark.parametrize("layer", [4, -5])
def test_layers_that_are_not_there(layer: int, pretrained: Model) -> None:
    message = rf"^no layer {layer}; expected 0 \(embeddings\) to 3, or -1 for the last$"
    with pytest.raises(RequestError, match=message):
        pretrained.hidden(TEXT, layer=layer)
    with pytest.raises(RequestError, match=message):
        pretrained.embed([TEXT], layer=layer)


def test_attend_equals_transformers(pretrained: Model, oracle: Oracle) -> None:
    attention = pretrained.attend("the cats", "a dog")
    assert attention.tokens == ["[CLS]", "the", "cat", "##s", "[SEP]", "a", "dog", "[SEP]"]
    assert attention.segments == [0, 0, 0, 0, 0, 1, 1, 1]
    assert_close(attention.weights, torch.cat(oracle("the cats", "a dog").attentions))
    assert_close(attention.weights.sum(-1), numpy.ones((SMALL.layers, SMALL.heads, 8)))


# Rejected inputs


def test_missing_heads_name_those_that_are_there(pretrained: Model) -> None:
    bare = Model(model_folder())
    with pytest.raises(RequestError, match=r"^this model has no 'mlm' head \(its heads: none\); load a folder that"):
        bare.fill("[MASK]")
    with pytest.raises(RequestError, match=r"^this model has no 'nsp' head \(its heads: none\)"):
        bare.follows("a", "b")
    for method in (pretrained.classify, pretrained.regress, pretrained.logits):
        with pytest.raises(RequestError, match=r"^this model has no 'sequence' head \(its heads: mlm, nsp\)"):
            method([TEXT])


@pytest.mark.parametrize("device", ["banana", "", "cuda:99", "meta", "hpu"])
def test_unknown_devices(device: str, pretrained_folder: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=rf"^device '{device}' is not available on this machine; use 'cpu', or omit device \(--device\)$",
    ):
        load(pretrained_folder, device=device)


def test_pairs_need_two_segments() -> None:
    model = Model(model_folder(["nsp"], config=replace(SMALL, segments=1)))
    assert model.embed([TEXT]).shape == (1, 16)
    message = r"^this model has only one segment type and does not support pairs of texts; give single texts$"
    for ask in (model.follows, model.hidden, model.attend):
        with pytest.raises(RequestError, match=message):
            ask(TEXT, PAIR)
    with pytest.raises(RequestError, match=message):
        model.embed([TEXT], [PAIR])


def test_notes_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = saved(model_folder(["mlm"]), tmp_path / "model")
    with caplog.at_level(logging.WARNING, logger="cloze"):
        load(folder, device="cpu")
    assert caplog.messages == [f"{folder}: no pooler in the weights: the state of [CLS] is used without one"]


def test_cut_texts_are_logged(pretrained: Model, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="cloze"):
        pretrained.embed([LONG, TEXT, LONG])
        pretrained.hidden(LONG)
    assert caplog.messages == [
        "2 of 3 texts are longer than 32 tokens and were cut",
        "1 of 1 texts are longer than 32 tokens and were cut",
    ]


def test_cut_texts_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    model = Model(model_folder(["mlm"]))
    with caplog.at_level(logging.WARNING, logger="cloze"):
        for _ in range(3):
            model.embed([LONG, TEXT])
            model.embed([TEXT])
        model.embed([LONG, TEXT, TEXT])  # different texts, so the warning is repeated
        model.embed(["dog " + LONG, TEXT, TEXT])
        Model(model_folder(["mlm"])).embed(["dog " + LONG, TEXT, TEXT])
    assert caplog.messages == ["1 of 2 texts are longer than 32 tokens and were cut"] + 3 * [
        "1 of 3 texts are longer than 32 tokens and were cut"
    ]


UNFIT = "☃ ☂ ☁ the cat"


def unknown_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "of the tokens are [UNK]" in record.getMessage()]


def test_unknown_words_are_warned_of(pretrained_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = load(pretrained_folder)
    model.embed([TEXT])
    assert not unknown_warnings(caplog)
    model.embed([TEXT, UNFIT])
    model.embed([TEXT, UNFIT])  # repeated texts, such as dev rows after every epoch, cause no second warning
    assert len(unknown_warnings(caplog)) == 1
    assert "cannot tell apart (☃, ☂, ☁)" in unknown_warnings(caplog)[0]
    model.embed([TEXT], [UNFIT])
    assert len(unknown_warnings(caplog)) == 1  # the same texts
    model.embed([UNFIT])
    assert len(unknown_warnings(caplog)) == 2


@pytest.mark.parametrize(
    ("heads", "task", "predict"),
    [
        (("token",), TaskLabels("tag", ("O", "B-X")), lambda model: model.tag([UNFIT])),
        (("span",), TaskLabels("answer"), lambda model: model.answer("the cat", UNFIT)),
        (("choice",), TaskLabels("choose"), lambda model: model.choose("the cat", [UNFIT, "a dog"])),
        (("sequence",), TaskLabels("classify", ("yes", "no")), lambda model: model.classify([UNFIT])),
    ],
)
def test_every_prediction_warns_of_unknown_words(
    heads: tuple[HeadName, ...], task: TaskLabels, predict: Callable[[Model], object], caplog: pytest.LogCaptureFixture
) -> None:
    predict(Model(model_folder(heads, task=task)))
    assert len(unknown_warnings(caplog)) == 1


def test_missing_values_are_rejected_with_their_number(pretrained: Model) -> None:
    with pytest.raises(RequestError, match=r"^text 2 is None \(NoneType\); expected a str: leave out missing values$"):
        pretrained.embed(["the cat", None])
