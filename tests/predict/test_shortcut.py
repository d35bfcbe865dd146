"""Layers as one call: the same bits as the layers themselves, and never in the way of who changes them."""

import copy
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch

from cloze.model.head_masks import without_heads
from cloze.predict import Model, load
from cloze.predict.quantized import choose_kernel
from cloze.predict.scripted import Shortcut
from tests.model.made import ATTACHED, SMALL, model_folder
from tests.predict.test_adapters import ADAPTERS, base  # noqa: F401 (a fixture)

pytestmark = pytest.mark.skipif(choose_kernel() != "fbgemm", reason="TorchScript calls the products of fbgemm alone")

TEXTS = ["the cat sat", "", "dogs ran on a mat, word7 word8.", "猫", "the cat sat", "a " * 20, "[SEP] cat", "a cat"]


def shortcut(model: Model) -> list[torch.Tensor] | None:
    """What the shortcut of a model says to some states; None if it leaves that to the layers."""
    encoder = model.bert.encoder
    assert isinstance(encoder.shortcut, Shortcut)
    with torch.inference_mode():
        return encoder.shortcut(encoder, torch.ones(2, 3, 16), None, None, False)


def without_shortcut(model: Model) -> Model:
    assert model.bert.encoder.shortcut is not None
    model.bert.encoder.shortcut = None
    return model


def test_the_same_bits() -> None:
    fast, plain = (Model(model_folder(["mlm", "nsp"]), precision="int8") for _ in range(2))
    without_shortcut(plain)
    for texts in (TEXTS, TEXTS[:1], TEXTS[1:3]):
        numpy.testing.assert_array_equal(fast.embed(texts), plain.embed(texts))
    numpy.testing.assert_array_equal(fast.embed(TEXTS, TEXTS[::-1], layer=1), plain.embed(TEXTS, TEXTS[::-1], layer=1))
    numpy.testing.assert_array_equal(fast.hidden("the cat", layer=None), plain.hidden("the cat", layer=None))
    # Heads read some of the last states alone.
    assert fast.fill("the [MASK] sat on a [MASK]") == plain.fill("the [MASK] sat on a [MASK]")
    assert fast.follows("the cat", "sat") == plain.follows("the cat", "sat")


def test_published_weights_have_the_same_bits(minilm_folder: Path) -> None:
    fast, plain = (load(minilm_folder, precision="int8") for _ in range(2))
    numpy.testing.assert_array_equal(fast.embed(TEXTS), without_shortcut(plain).embed(TEXTS))


@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_are_heard(name: str, base: Path) -> None:  # noqa: F811
    fast, plain = (load(base, precision="int8") for _ in range(2))
    without_shortcut(plain)
    before = fast.embed(TEXTS)
    for model in (fast, plain):
        model.attach(name, base.parent / name)
        model.use(name)
    numpy.testing.assert_array_equal(fast.logits(TEXTS), plain.logits(TEXTS))
    changes_layers = name in ATTACHED
    assert (shortcut(fast) is None) == changes_layers
    fast.use(None)
    assert shortcut(fast) is not None
    numpy.testing.assert_array_equal(fast.embed(TEXTS), before)


def test_heads_can_be_left_out() -> None:
    fast, plain = (Model(model_folder(), precision="int8") for _ in range(2))
    without_shortcut(plain)
    whole = fast.embed(TEXTS)
    with without_heads(fast.bert, [(1, 0)]), without_heads(plain.bert, [(1, 0)]):
        gated = fast.embed(TEXTS)
        numpy.testing.assert_array_equal(gated, plain.embed(TEXTS))
    assert not numpy.array_equal(gated, whole)
    numpy.testing.assert_array_equal(fast.embed(TEXTS), whole)


def test_who_trains_looks_or_copies_has_the_layers_themselves() -> None:
    model = Model(model_folder(), precision="int8")
    encoder = model.bert.encoder
    assert shortcut(model) is not None
    encoder.layers[2].train()
    assert shortcut(model) is None
    encoder.eval()
    assert isinstance(encoder.shortcut, Shortcut)
    assert encoder.shortcut(encoder, torch.ones(2, 3, 16), None, None, False) is None  # gradients are asked for
    assert model.attend("the cat").weights.shape[0] == 3
    assert copy.deepcopy(encoder).shortcut is None
    assert not any("shortcut" in name for name in model.bert.state_dict())


def test_one_layer_gone_through_again_and_again() -> None:
    fast, plain = (
        Model(model_folder(config=replace(SMALL, shared_layers=True, embedding_size=8)), precision="int8")
        for _ in range(2)
    )
    without_shortcut(plain)
    numpy.testing.assert_array_equal(fast.embed(TEXTS), plain.embed(TEXTS))
    numpy.testing.assert_array_equal(fast.hidden("the cat", layer=None), plain.hidden("the cat", layer=None))


def test_only_rounded_layers_have_one() -> None:
    contents = model_folder()
    assert Model(contents, precision="int8").bert.encoder.shortcut is not None
    assert Model(contents, precision="fp32").bert.encoder.shortcut is None
