"""One vector per text: every pooling compared with an explicit computation, any layer, any batch."""

from dataclasses import replace

import numpy
import pytest
import torch

from cloze.checkpoint import POOLINGS, EmbeddingSettings, Pooling
from cloze.errors import RequestError
from cloze.model.batch import BATCH_COST, batches
from cloze.predict import Model
from cloze.predict.preprocessing import read_texts
from tests.model.made import SMALL, assert_close, model_folder

TEXTS = ["the cat sat", "", "dogs ran on a mat, word7 word8.", "猫", "the cat sat", "a " * 50, "[SEP] cat"]


@pytest.mark.parametrize("layer", [-1, 0, 2])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_poolings_by_hand(pooling: Pooling, layer: int, pretrained: Model) -> None:
    pooler = pretrained.bert.pooler
    assert pooler is not None
    if pooling == "pooler" and layer != -1:
        with pytest.raises(
            RequestError, match=r"^pooling 'pooler' only applies to the last layer, for which the pooler was tr"
        ):
            pretrained.embed(TEXTS, pooling=pooling, layer=layer)
        return
    vectors = pretrained.embed(TEXTS, pooling=pooling, layer=layer)
    for text, vector in zip(TEXTS, vectors, strict=True):
        states = pretrained.hidden(text, layer=layer)  # alone, and therefore without padding: (T, H)
        mean, largest = states.mean(0), states.max(0)
        expected = {"cls": states[0], "mean": mean, "max": largest, "mean_max": numpy.concatenate([largest, mean])}
        expected["mean_words"] = states[1:-1].mean(0) if len(states) > 2 else mean
        expected["pooler"] = pooler(torch.from_numpy(states[0])).detach().numpy()
        assert_close(vector, expected[pooling])


def test_the_folder_chooses() -> None:
    contents = model_folder()
    plain = Model(contents).embed(TEXTS)
    numpy.testing.assert_array_equal(plain, Model(contents).embed(TEXTS, pooling="mean"))
    other = Model(replace(contents, embedding=EmbeddingSettings("max", normalize=True)))
    largest = Model(contents).embed(TEXTS, pooling="max")
    lengths = numpy.linalg.norm(largest, axis=1, keepdims=True)
    assert_close(other.embed(TEXTS), largest / lengths)
    assert_close(numpy.linalg.norm(other.embed(TEXTS), axis=1), numpy.ones(len(TEXTS)))


def test_pairs(pretrained: Model) -> None:
    vectors = pretrained.embed(["the cat", "a"], ["sat", "dog ran"], pooling="cls")
    assert_close(vectors[0], pretrained.hidden("the cat", "sat")[0])
    assert_close(vectors[1], pretrained.hidden("a", "dog ran")[0])
    assert numpy.abs(vectors[0] - pretrained.embed(["the cat"], pooling="cls")[0]).max() > 0.01


@pytest.mark.parametrize("pooling", POOLINGS)
def test_nothing_to_embed(pooling: Pooling, pretrained: Model) -> None:
    vectors = pretrained.embed([], pooling=pooling)
    assert vectors.shape == (0, SMALL.hidden_size * (2 if pooling == "mean_max" else 1))
    assert vectors.dtype == numpy.float32


def test_texts_that_were_read_before(pretrained: Model) -> None:
    for how in ("cut", "windows"):
        windows = read_texts(pretrained.tokenizer, TEXTS, TEXTS[::-1], how)
        expected = pretrained.embed(TEXTS, TEXTS[::-1], "max", 1, how)
        numpy.testing.assert_array_equal(pretrained.embed_encoded(windows, "max", 1), expected)
    assert pretrained.embed_encoded([]).shape == (0, SMALL.hidden_size)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_neighbours_change_nothing(pooling: Pooling, pretrained: Model) -> None:
    alone = numpy.concatenate([pretrained.embed([text], pooling=pooling) for text in TEXTS])
    assert_close(pretrained.embed(TEXTS, pooling=pooling), alone)
    backwards = pretrained.embed(TEXTS[::-1], pooling=pooling)[::-1].copy()
    assert_close(backwards, alone)


def test_invalid_input_is_rejected(pretrained: Model) -> None:
    one = "^expected a list of texts, got a single text; put it into a list$"
    with pytest.raises(RequestError, match=one):
        pretrained.embed("the cat")
    with pytest.raises(RequestError, match=one):
        pretrained.embed(["the cat"], "sat")
    with pytest.raises(RequestError, match=r"^2 texts, but 1 pairs; expected one for each$"):
        pretrained.embed(["a", "b"], ["c"])
    with pytest.raises(RequestError, match=r"^unknown pooling 'maen'; did you mean 'mean'\?$"):
        pretrained.embed(["a"], pooling="maen")


def test_a_pooling_that_we_do_not_have() -> None:
    contents = replace(model_folder(), embedding=EmbeddingSettings(unsupported="modules.json pools by lasttoken"))
    message = "^modules.json pools by lasttoken, which cloze does not support; pass pooling= to choose another$"
    with pytest.raises(RequestError, match=message):
        Model(contents).embed(["a"])
    expected = Model(model_folder()).embed(["a"], pooling="cls")
    numpy.testing.assert_array_equal(Model(contents).embed(["a"], pooling="cls"), expected)


@pytest.mark.parametrize("lengths", [[], [5], [3000], [9, 1, 8, 2, 7], [500] * 9, [1, 2047, 1, 2049, 64] * 30])
def test_batches_hold_each_text_once_within_the_budget(lengths: list[int]) -> None:
    found = list(batches(lengths, budget=2048))
    assert sorted(index for batch in found for index in batch) == list(range(len(lengths)))
    for batch in found:
        own = [lengths[index] for index in batch]
        assert len(batch) == 1 or (sum(own) <= 2048 and len(own) * max(own) - sum(own) <= BATCH_COST)


def test_names_of_layers_are_no_pooling(pretrained: Model) -> None:
    hint = (
        "the pooling is one of cls, mean, max, mean_max, mean_words, pooler; "
        "for the mean of the last four layers, use layer -4,-3,-2,-1"
    )
    with pytest.raises(RequestError, match=f"^unknown pooling 'last4'; {hint}$"):
        pretrained.embed(["a cat"], pooling="last4")
    states = [pretrained.hidden("a cat", layer=layer).mean(0) for layer in (-3, -2, -1)]
    assert_close(pretrained.embed(["a cat"], layer=(-3, -2, -1))[0], sum(states) / 3)
