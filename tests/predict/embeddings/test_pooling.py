"""The vector of a word in its context, and several layers at once."""

import numpy
import pytest

from cloze.errors import RequestError
from cloze.predict import Model
from cloze.predict.embeddings.pooling import find_word
from tests.model.made import assert_close


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
def test_where_a_word_stands(word: str, text: str, places: list[tuple[int, int]]) -> None:
    assert find_word(word, text, lowercase=True) == places


def test_what_is_refused(pretrained: Model) -> None:
    with pytest.raises(RequestError, match=r"^no word 'dog' in 'the cat'; give it as the text has it$"):
        pretrained.word("dog", "the cat")
    with pytest.raises(RequestError, match=r"^occurrence 2 of 'cat', which the text has 1 times; count from 1$"):
        pretrained.word("cat", "the cat", 2)
    with pytest.raises(RequestError, match=r"^'cat' lies beyond the 32 tokens that this model reads$"):
        pretrained.word("cat", "the " * 40 + "cat")


def test_mean_of_several_layers(pretrained: Model) -> None:
    texts = ["the cat sat", "dogs ran on a mat"]
    expected = (pretrained.embed(texts, layer=1) + pretrained.embed(texts, layer=-1)) / 2
    assert_close(pretrained.embed(texts, layer=(1, -1)), expected)
    assert_close(pretrained.embed(texts, pooling="cls", layer=[2]), pretrained.embed(texts, pooling="cls", layer=2))


def test_layers_that_are_not_there(pretrained: Model) -> None:
    with pytest.raises(RequestError, match=r"^no layer was named; -1 is the last, and several are averaged$"):
        pretrained.embed(["a"], layer=())
    with pytest.raises(RequestError, match=r"^layer 4 of a model with 3; 0 \(embeddings\) to 3, or -1 for the last$"):
        pretrained.embed(["a"], layer=(1, 4))
