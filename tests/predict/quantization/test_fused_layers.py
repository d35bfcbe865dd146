"""Fused layers: the same results as the separate layers, and replaced whenever the layers are modified."""

import copy
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch
from numpy.typing import NDArray

from cloze.model import BertConfig
from cloze.model.surgery import without_heads
from cloze.predict import Model, load
from cloze.predict.quantization.linear import FusedLayers, choose_kernel
from cloze.predict.quantization.native import kernels
from cloze.predict.quantization.native.kernels import NativeLayers, ScriptedLayers, library
from tests.checkpoint.test_adapter_folder import make_adapter, make_base
from tests.model.made import ATTACHED, SMALL, model_folder
from tests.predict.test_adapters import ADAPTERS

TEXTS = ["the cat sat", "", "dogs ran on a mat, word7 word8.", "猫", "the cat sat", "a " * 20, "[SEP] cat", "a cat"]
# Compiled code processes sixteen numbers at once; SMALL has smaller heads, and therefore uses TorchScript.
CONFIGS = {"scripted": SMALL, "native": replace(SMALL, hidden_size=32, feedforward_size=48)}
CALLS = {"scripted": ScriptedLayers, "native": NativeLayers}


@pytest.fixture(params=CONFIGS)
def way(request: pytest.FixtureRequest) -> str:
    if request.param == "native" and library() is None:
        pytest.skip("int8.c was not compiled, or this processor has no VNNI")
    if request.param == "scripted" and choose_kernel() != "fbgemm":
        pytest.skip("TorchScript only supports fbgemm products")
    return str(request.param)


@pytest.fixture
def config(way: str) -> BertConfig:
    return CONFIGS[way]


def run_fused(model: Model) -> list[torch.Tensor] | None:
    """Return the output of a model's fused layers for some states, or None if they are not used."""
    encoder = model.bert.encoder
    assert isinstance(encoder.fused_layers, FusedLayers)
    with torch.inference_mode():
        return encoder.fused_layers(encoder, torch.ones(2, 3, model.bert.config.hidden_size), None, None, False)


def without_fused_layers(model: Model) -> Model:
    assert model.bert.encoder.fused_layers is not None
    model.bert.encoder.fused_layers = None
    return model


def fused_and_plain(config: BertConfig) -> tuple[Model, Model]:
    """Return a model with fused layers and one without."""
    fast, plain = (Model(model_folder(["mlm", "nsp"], config=config), precision="int8") for _ in range(2))
    return fast, without_fused_layers(plain)


def assert_same(found: NDArray[numpy.float32], expected: NDArray[numpy.float32], way: str) -> None:
    """Compare exactly for TorchScript, and with a tolerance for compiled code, whose sums may round differently."""
    if way == "scripted":
        numpy.testing.assert_array_equal(found, expected)
    else:
        numpy.testing.assert_allclose(found, expected, rtol=0, atol=0.02 * numpy.abs(expected).max())


def test_the_same_answers(way: str, config: BertConfig) -> None:
    fast, plain = fused_and_plain(config)
    assert isinstance(fast.bert.encoder.fused_layers, FusedLayers)
    assert type(fast.bert.encoder.fused_layers.call) is CALLS[way]
    for texts in (TEXTS, TEXTS[:1], TEXTS[1:3]):
        assert_same(fast.embed(texts), plain.embed(texts), way)
    assert_same(fast.embed(TEXTS, TEXTS[::-1], layer=1), plain.embed(TEXTS, TEXTS[::-1], layer=1), way)
    assert_same(fast.hidden("the cat", layer=None), plain.hidden("the cat", layer=None), way)
    # These heads need only some of the last states.
    (filled,), (expected,) = (model.fill("the [MASK] sat") for model in (fast, plain))
    assert filled[0].token == expected[0].token
    assert filled[0].probability == pytest.approx(expected[0].probability, rel=0.05)
    assert fast.follows("the cat", "sat") == pytest.approx(plain.follows("the cat", "sat"), abs=0.05)


def test_published_weights(way: str, minilm_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "scripted":
        monkeypatch.setattr(kernels, "library", lambda: None)
    fast, plain = (load(minilm_folder, precision="int8") for _ in range(2))
    assert isinstance(fast.bert.encoder.fused_layers, FusedLayers)
    assert type(fast.bert.encoder.fused_layers.call) is CALLS[way]
    found, expected = fast.embed(TEXTS), without_fused_layers(plain).embed(TEXTS)
    if way == "scripted":
        numpy.testing.assert_array_equal(found, expected)
    # A value that rounds differently is equally accurate, but it affects the rounding of later layers.
    exact = load(minilm_folder).embed(TEXTS)
    assert float((found * exact).sum(1).min()) > 0.99
    assert float((found * expected).sum(1).min()) > 0.998


@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_take_effect(name: str, way: str, config: BertConfig, tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", config)
    make_adapter(base, tmp_path / name / "model", ADAPTERS[name])
    fast, plain = (load(base, precision="int8") for _ in range(2))
    without_fused_layers(plain)
    before = fast.embed(TEXTS)
    for model in (fast, plain):
        model.attach(name, tmp_path / name)
        model.use(name)
    assert_same(fast.logits(TEXTS), plain.logits(TEXTS), way)
    changes_layers = name in ATTACHED
    assert (run_fused(fast) is None) == changes_layers
    fast.use(None)
    assert run_fused(fast) is not None
    numpy.testing.assert_array_equal(fast.embed(TEXTS), before)


def test_heads_can_be_left_out(way: str, config: BertConfig) -> None:
    fast, plain = fused_and_plain(config)
    whole = fast.embed(TEXTS)
    with without_heads(fast.bert, [(1, 0)]), without_heads(plain.bert, [(1, 0)]):
        gated = fast.embed(TEXTS)
        assert_same(gated, plain.embed(TEXTS), way)
    assert float(numpy.abs(gated - whole).max()) > 0.1 * float(numpy.abs(whole).max())
    numpy.testing.assert_array_equal(fast.embed(TEXTS), whole)


def test_pruned_heads_are_removed(way: str, config: BertConfig) -> None:
    model = Model(model_folder(config=config), precision="int8")
    before = model.embed(TEXTS)
    with model.without_heads([(1, 0)]):
        expected = model.embed(TEXTS)
    model.prune_heads([(1, 0)])
    # The remaining weights are quantized again with other scales; the rounding depends on the processor.
    tolerance = 0.04 * numpy.abs(expected).max()
    numpy.testing.assert_allclose(model.embed(TEXTS), expected, rtol=0, atol=tolerance)
    assert numpy.abs(before - expected).max() > 2 * tolerance, "the head matters"


def test_training_hooks_and_copies_use_the_separate_layers(config: BertConfig) -> None:
    model = Model(model_folder(config=config), precision="int8")
    encoder = model.bert.encoder
    assert run_fused(model) is not None
    encoder.layers[2].train()
    assert run_fused(model) is None
    encoder.eval()
    assert isinstance(encoder.fused_layers, FusedLayers)
    states = torch.ones(2, 3, config.hidden_size)
    assert encoder.fused_layers(encoder, states, None, None, False) is None  # because gradients are required
    assert model.attend("the cat").weights.shape[0] == 3
    assert copy.deepcopy(encoder).fused_layers is None
    assert not any("fused_layers" in name for name in model.bert.state_dict())


def test_one_shared_layer_is_fused(way: str, config: BertConfig) -> None:
    fast, plain = fused_and_plain(replace(config, shared_layers=True, embedding_size=8))
    assert_same(fast.embed(TEXTS), plain.embed(TEXTS), way)
    assert_same(fast.hidden("the cat", layer=None), plain.hidden("the cat", layer=None), way)


def test_only_rounded_layers_have_one(config: BertConfig) -> None:
    contents = model_folder(config=config)
    assert Model(contents, precision="int8").bert.encoder.fused_layers is not None
    assert Model(contents, precision="fp32").bert.encoder.fused_layers is None
