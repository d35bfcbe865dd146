"""The vector of a word in its context; pooling compared with the outputs of transformers."""

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from cloze.errors import RequestError
from cloze.predict import Model, load
from cloze.predict.embeddings.pooling import find_word
from tests.model.made import SMALL, assert_close, model_folder

TEXTS = ["the cat sat", "", "dogs ran on a mat, word7 word8.", "猫", "on the mat", "a " * 50]
PAIRS = ["a dog", "the", "sat.", "the mat", "sat on", "ran"]


def outputs(folder: Path, pairs: list[str] | None) -> tuple[Any, Any]:
    """Return the batch and the outputs of transformers for the texts."""
    batch = AutoTokenizer.from_pretrained(folder, model_max_length=32)(
        TEXTS, pairs, padding=True, truncation=True, return_tensors="pt", return_special_tokens_mask=True
    )
    special = batch.pop("special_tokens_mask")
    with torch.inference_mode():
        return batch | {"special": special}, AutoModel.from_pretrained(folder).eval()(**batch)


@pytest.mark.parametrize("pairs", [None, PAIRS])
def test_mean_of_the_words_by_transformers(pairs: list[str] | None, pretrained_folder: Path) -> None:
    batch, output = outputs(pretrained_folder, pairs)
    expected = []
    for states, special, real in zip(
        output.last_hidden_state, batch["special"], batch["attention_mask"].bool(), strict=True
    ):
        words = states[(special == 0) & real]
        expected.append((words if len(words) else states[real]).mean(0))
    model = load(pretrained_folder)
    vectors = model.embed(TEXTS, pairs, pooling="mean_words")
    assert_close(vectors, torch.stack(expected))
    alone = [model.embed([text], pairs and [pairs[index]], "mean_words")[0] for index, text in enumerate(TEXTS)]
    assert_close(vectors, numpy.stack(alone))
    assert numpy.abs(vectors - model.embed(TEXTS, pairs, "mean")).max() > 0.01


@pytest.mark.parametrize("pairs", [None, PAIRS])
def test_pooler_output_of_transformers(pairs: list[str] | None, pretrained_folder: Path) -> None:
    _, output = outputs(pretrained_folder, pairs)
    assert_close(load(pretrained_folder).embed(TEXTS, pairs, pooling="pooler"), output.pooler_output)


@pytest.mark.parametrize("pooling", ["mean_words", "pooler"])
@pytest.mark.parametrize("precision", ["int8", "bf16"])
def test_other_precisions_are_near(precision: Any, pooling: Any, pretrained_folder: Path) -> None:
    exact = load(pretrained_folder).embed(TEXTS, PAIRS, pooling)
    near = load(pretrained_folder, precision=precision).embed(TEXTS, PAIRS, pooling)
    lengths = numpy.linalg.norm(exact, axis=1) * numpy.linalg.norm(near, axis=1)
    assert ((exact * near).sum(1) / lengths).min() > 0.99


def test_windows_of_a_long_text(pretrained_folder: Path) -> None:
    model = load(pretrained_folder)
    vectors = model.embed(["the cat sat on a mat. " * 12], pooling="mean_words", long_texts="windows")
    assert vectors.shape == (1, SMALL.hidden_size)
    assert numpy.isfinite(vectors).all()


def test_model_without_a_pooler() -> None:
    message = r"^pooling 'pooler' needs a pooler, which this model does not have; use cls or mean$"
    with pytest.raises(RequestError, match=message):
        Model(model_folder(["mlm"])).embed(TEXTS, pooling="pooler")


def test_mean_of_the_pieces(pretrained: Model) -> None:
    text = "the cats sat, a cat ran"  # [CLS] the cat ##s sat , a cat ran [SEP]
    states = pretrained.hidden(text)
    assert_close(pretrained.word("cats", text), states[2:4].mean(0))
    assert_close(pretrained.word("Cat", text), states[7])
    assert_close(pretrained.word("cat", text, layer=1), pretrained.hidden(text, layer=1)[7])
    both = (pretrained.hidden(text, layer=0)[7] + pretrained.hidden(text, layer=2)[7]) / 2
    assert_close(pretrained.word("cat", text, layer=(0, 2)), both)


def test_the_same_word_elsewhere_has_another_vector(pretrained: Model) -> None:
    first = pretrained.word("cat", "the cat sat on a cat", 1)
    second = pretrained.word("cat", "the cat sat on a cat", 2)
    assert numpy.abs(first - second).max() > 0.01


@pytest.mark.parametrize(
    ("word", "text", "places"),
    [
        ("cat", "Cat concat cat-like cats", [(0, 3), (11, 14)]),
        ("猫", "小猫和大猫", [(1, 2), (4, 5)]),
        ("c++", "c c++ (c++)", [(2, 5), (7, 10)]),
        (" ", "a b", []),
        ("", "a b", []),
    ],
)
def test_word_positions(word: str, text: str, places: list[tuple[int, int]]) -> None:
    assert find_word(word, text, lowercase=True) == places


def test_invalid_input_is_rejected(pretrained: Model) -> None:
    with pytest.raises(RequestError, match=r"^'dog' does not occur in 'the cat'; spell it as in the text$"):
        pretrained.word("dog", "the cat")
    with pytest.raises(RequestError, match=r"^occurrence 2 of 'cat' was requested, but the text has 1; count from 1$"):
        pretrained.word("cat", "the cat", 2)
    with pytest.raises(RequestError, match=r"^'cat' lies beyond the 32 tokens that this model accepts$"):
        pretrained.word("cat", "the " * 40 + "cat")


def test_mean_of_several_layers(pretrained: Model) -> None:
    texts = ["the cat sat", "dogs ran on a mat"]
    expected = (pretrained.embed(texts, layer=1) + pretrained.embed(texts, layer=-1)) / 2
    assert_close(pretrained.embed(texts, layer=(1, -1)), expected)
    assert_close(pretrained.embed(texts, pooling="cls", layer=[2]), pretrained.embed(texts, pooling="cls", layer=2))


def test_layers_that_are_not_there(pretrained: Model) -> None:
    with pytest.raises(RequestError, match=r"^no layer was given; -1 is the last, and several are averaged$"):
        pretrained.embed(["a"], layer=())
    with pytest.raises(RequestError, match=r"^no layer 4; expected 0 \(embeddings\) to 3, or -1 for the last$"):
        pretrained.embed(["a"], layer=(1, 4))
