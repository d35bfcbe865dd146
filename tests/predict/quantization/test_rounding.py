"""Smoothing before quantization: outputs are preserved, and large features no longer dominate the scales."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from cloze.checkpoint.quantized_file import is_smoothed, layer_products
from cloze.model import Backbone
from cloze.predict import load
from cloze.predict.quantization.linear import Int8Linear, largest_features, round_product, round_products
from tests.model.made import SMALL, model_folder
from tests.predict.test_minilm import texts as minilm_texts

PLACE = "encoder.layers.0.expand"


@pytest.fixture
def bert() -> Backbone:
    return model_folder().model


def test_smoothing_factors_cancel() -> None:
    """Quantized weights divided by their factors equal the weights, for any factors."""
    torch.manual_seed(2)
    linear = nn.Linear(48, 20)
    weight = round_product(PLACE, linear, torch.logspace(-2, 2, 48))
    assert weight.factors is not None
    back = weight.values * weight.scales[:, None] / weight.factors
    step = weight.scales[:, None] / weight.factors
    assert bool(((back - linear.weight).abs() <= 0.5001 * step).all())


def test_a_large_feature_no_longer_drowns_the_others() -> None:
    torch.manual_seed(3)
    linear = nn.Linear(96, 40)
    states = torch.randn(64, 96)
    states[:, 7] *= 40.0
    with torch.inference_mode():
        exact = linear(states)
        plain, evened = (
            (Int8Linear(linear, round_product(PLACE, linear, largest))(states) - exact).norm()
            for largest in (None, states.abs().amax(0))
        )
    assert float(evened) < 0.5 * float(plain)


def test_features_that_random_tokens_never_stirred() -> None:
    linear = nn.Linear(16, 8)
    for largest in (torch.zeros(16), torch.eye(16)[3]):
        weight = round_product(PLACE, linear, largest)
        assert weight.factors is not None
        assert bool(weight.factors.isfinite().all())
        assert float(weight.factors.min()) > 0


def test_large_features_are_those_of_the_input(bert: Backbone) -> None:
    """The largest input features of the first product equal those of the embeddings, computed without a hook."""
    found = largest_features(bert)
    assert set(found) == {place for place, _ in layer_products(bert) if is_smoothed(place)}
    ids = torch.randint(bert.config.vocab_size, (32, 16), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = bert.eval().encoder.embeddings(ids, torch.zeros_like(ids)).abs().amax((0, 1))
    torch.testing.assert_close(found["encoder.layers.0.attention.query_key_value"], expected)


def test_looking_leaves_the_model_as_it_was(bert: Backbone) -> None:
    bert.train()
    first, second = round_products(bert), round_products(bert)
    assert bert.training  # still in training mode, but without dropout: both results are equal
    for place, weight in first.items():
        assert torch.equal(weight.values, second[place].values)
    assert not any(linear._forward_pre_hooks for _, linear in layer_products(bert))


def test_one_shared_layer_is_smoothed_for_all_passes() -> None:
    config = replace(SMALL, shared_layers=True, embedding_size=SMALL.hidden_size)
    bert = model_folder(config=config).model
    assert set(largest_features(bert)) == {"encoder.layers.0.attention.query_key_value", PLACE}


def test_every_short_text_of_a_published_model_is_accurate(minilm_folder: Path) -> None:
    """Every single word and symbol, the hardest cases for rounding, is as close to fp32 as ``auto`` requires."""
    some = [text for text in minilm_texts() if len(text) < 24]
    exact, small = (load(minilm_folder, precision=name).embed(some) for name in ("fp32", "int8"))
    assert len(some) > 60
    assert float((exact * small).sum(1).min()) > 0.99
