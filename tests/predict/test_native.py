"""Int8 in compiled code: exact integer products, independent rows, and the operations around the products."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch
from torch import Tensor

from cloze.checkpoint.quantized_file import Int8Weight, layer_products
from cloze.model import BertConfig
from cloze.model.encoder import Encoder
from cloze.predict.quantization import precision as precision_module
from cloze.predict.quantization.linear import Int8Linear, round_products
from cloze.predict.quantization.native import kernels
from cloze.predict.quantization.native.kernels import NativeLayers, NativeLinear, NativeProduct, are_native, packed
from tests.model.made import random_bert

CONFIG = BertConfig(vocab_size=60, hidden_size=64, layers=2, heads=4, feedforward_size=112, positions=600)
needs_library = pytest.mark.skipif(
    kernels.library() is None, reason="int8.c was not compiled, or this processor has no VNNI"
)


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def whole_numbers(rows: int, width: int, features: int, steps: int) -> tuple[Int8Weight, Tensor]:
    """Return a weight with scale one and rows that use their full range, so that nothing is rounded."""
    source = numpy.random.default_rng(rows + width)
    values = source.integers(-steps, steps + 1, (features, width))
    weight = Int8Weight(torch.from_numpy(values.astype(numpy.int8)), torch.ones(features), steps)
    left = source.integers(-weight.row_steps, weight.row_steps + 1, (rows, width))
    left[:, 0], left[:, 1] = weight.row_steps, -weight.row_steps
    left[0, 2:] = weight.row_steps * numpy.sign(values[0, 2:])  # the largest possible sum
    return weight, torch.from_numpy(left.astype(numpy.float32))


@needs_library
@pytest.mark.parametrize("steps", [90, 107])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 6, 7, 50, 151])
@pytest.mark.parametrize(("width", "features"), [(16, 16), (64, 80), (768, 208)])
def test_products_are_those_of_whole_numbers(threads: int, rows: int, width: int, features: int, steps: int) -> None:
    weight, left = whole_numbers(rows, width, features, steps)
    bias = torch.arange(float(features))
    expected = left.double() @ weight.values.double().t() + bias
    torch.testing.assert_close(NativeProduct(weight, bias)(left).double(), expected, rtol=0, atol=0)
    torch.testing.assert_close(NativeProduct(weight, None)(left).double(), expected - bias, rtol=0, atol=0)


@needs_library
def test_rows_are_rounded_as_everywhere() -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(96, 48)
    weight = Int8Weight.quantize(linear.weight, 90, torch.rand(96) + 0.5)
    compiled, plain = NativeLinear(linear, weight), Int8Linear(linear, weight)
    states = torch.randn(5, 33, 96) * torch.logspace(-4, 4, 33)[:, None]
    states[0, 5], states[0, 6] = 0.0, 2.5  # rows with constant values
    with torch.inference_mode():
        found, expected, exact = compiled(states), plain(states), linear(states)
        sizes = exact.abs().amax(-1, keepdim=True)
        # A value halfway between two steps may round either way; most values are not halfway.
        assert float(((found - expected) / sizes).abs().median()) < 1e-6
        assert float(((found - exact) / sizes).abs().max()) < 0.03
        for number in range(33):
            assert torch.equal(compiled(states[0, number]), found[0, number])
        assert compiled(states[:0]).shape == (0, 33, 48)


def layers(config: BertConfig, *, native: bool) -> tuple[Encoder, NativeLayers | None]:
    bert = random_bert(config)
    weights = round_products(bert)
    for place, linear in list(layer_products(bert)):
        precision_module._put(bert, place, (NativeLinear if native else Int8Linear)(linear, weights[place]))
    return bert.encoder, NativeLayers.of(bert.encoder)


def by_torch(encoder: Encoder, states: Tensor, count: int, length: int) -> Tensor:
    """Return the last states of sequences of one length, computed by the PyTorch layers: (N, H)."""
    hidden = states.view(count, length, -1)
    for layer in encoder.layers:
        hidden, _ = layer(hidden, None, False)
    return hidden.flatten(0, 1)


@needs_library
@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
@pytest.mark.parametrize("length", [1, 3, 15, 16, 17, 64, 65, 130])
def test_a_layer_equals_that_of_torch(activation: str, length: int, threads: int) -> None:
    torch.manual_seed(length)
    config = replace(CONFIG, activation=activation, layers=1)
    encoder, call = layers(config, native=True)
    assert call is not None
    states = torch.randn(3 * length, config.hidden_size)
    with torch.inference_mode():
        (found,) = call(states, [(3, length)], None, False)
        expected = by_torch(encoder, states, 3, length)
    difference = (found - expected).abs()
    # Another summation order changes the last digit; a value halfway between two steps then rounds differently.
    assert float(difference.median()) < 2e-6
    assert float(difference.max()) < 0.05


@needs_library
@pytest.mark.parametrize("heads", [1, 2, 4])  # head sizes 64, 32 and 16; 48 below
def test_heads_of_other_sizes(heads: int) -> None:
    for config in (replace(CONFIG, heads=heads, layers=1), replace(CONFIG, hidden_size=48, heads=1, layers=1)):
        encoder, call = layers(config, native=True)
        assert call is not None
        states = torch.randn(20, config.hidden_size)
        with torch.inference_mode():
            difference = call(states, [(2, 10)], None, False)[0] - by_torch(encoder, states, 2, 10)
        assert float(difference.abs().median()) < 2e-6


@needs_library
def test_sequences_have_the_same_bits_alone_and_together(threads: int) -> None:
    _, call = layers(CONFIG, native=True)
    assert call is not None
    torch.manual_seed(3)
    shapes = [(3, 7), (1, 33), (2, 1), (1, 512), (4, 16)]
    states = torch.randn(sum(count * length for count, length in shapes), CONFIG.hidden_size)
    with torch.inference_mode():
        (together,) = call(states, shapes, None, False)
        start = 0
        for count, length in shapes:
            for _ in range(count):
                (alone,) = call(states[start : start + length], [(1, length)], None, False)
                assert torch.equal(alone, together[start : start + length])
                start += length


@needs_library
def test_states_that_are_needed_or_kept(threads: int) -> None:
    _, call = layers(CONFIG, native=True)
    assert call is not None
    states, shapes = torch.randn(25, CONFIG.hidden_size), [(2, 5), (1, 15)]
    before = states.clone()
    with torch.inference_mode():
        (last,) = call(states, shapes, None, False)
        places = torch.tensor([24, 0, 7])
        (some,) = call(states, shapes, places, False)
        kept = call(states, shapes, None, True)
        few = call(states, shapes, places, True)
        (none,) = call(states, shapes, places[:0], False)
    assert torch.equal(some, last[places])
    assert len(kept) == CONFIG.layers + 1
    assert torch.equal(kept[0], before)
    assert torch.equal(kept[-1], last)
    assert torch.equal(few[1], kept[1])
    assert torch.equal(few[-1], some)
    assert none.shape == (0, CONFIG.hidden_size)
    assert torch.equal(states, before)


@needs_library
@pytest.mark.parametrize("places", [[3] * 26, [25], [-1]])
def test_positions_that_would_write_beyond_the_states_are_refused(places: list[int]) -> None:
    _, call = layers(CONFIG, native=True)
    assert call is not None
    states = torch.randn(25, CONFIG.hidden_size)
    with torch.inference_mode(), pytest.raises(ValueError, match="expected unique positions below 25"):
        call(states, [(5, 5)], torch.tensor(places), False)


@needs_library
def test_numbers_that_are_none_stay_so() -> None:
    _, call = layers(CONFIG, native=True)
    assert call is not None
    states = torch.randn(10, CONFIG.hidden_size)
    states[3, 5] = float("nan")
    with torch.inference_mode():
        (found,) = call(states, [(2, 5)], None, False)
        (clean,) = call(states[5:], [(1, 5)], None, False)
    assert found[3].isnan().all()
    assert torch.equal(found[5:], clean)  # the other sequence is unaffected


@pytest.mark.parametrize(
    "config",
    [replace(CONFIG, heads=8), replace(CONFIG, feedforward_size=100), replace(CONFIG, hidden_size=256, heads=2)],
    ids=["heads of 8", "100 features", "heads of 128"],
)
def test_shapes_that_are_left_to_torch(config: BertConfig) -> None:
    assert are_native(random_bert(CONFIG).encoder) == (kernels.library() is not None)
    assert not are_native(random_bert(config).encoder)
    encoder, call = layers(CONFIG, native=False)
    assert call is None
    assert not any(isinstance(linear, NativeLinear) for linear in encoder.modules())


def test_without_the_library_nothing_is_native(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    find = kernels.library.__wrapped__
    monkeypatch.setattr(kernels, "PATH", tmp_path / "libint8.so")
    assert find() is None
    (tmp_path / "libint8.so").write_bytes(b"\x7fELF, but of another kind")
    assert find() is None
    monkeypatch.setattr(kernels, "library", lambda: None)
    assert not are_native(random_bert(CONFIG).encoder)


def test_packed_bytes_lie_as_they_are_multiplied() -> None:
    values = torch.arange(32 * 8).view(32, 8).to(torch.int8)
    found = packed(values)
    assert found.shape == (2, 2, 16, 4)
    assert found[1, 0, 3].tolist() == values[16 + 3, 0:4].tolist()
    assert found[0, 1, 15].tolist() == values[15, 4:8].tolist()
