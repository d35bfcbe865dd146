"""Int8 and bfloat16 layers: exact products, approximate outputs, and independent texts."""

import copy
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from cloze.checkpoint import EmbeddingSettings
from cloze.checkpoint.quantized_file import Int8Weight, layer_products
from cloze.errors import ConfigError
from cloze.model.batch import Batch, collate
from cloze.predict import Model, load
from cloze.predict.quantization import linear as quantized
from cloze.predict.quantization import precision as precision_module
from cloze.predict.quantization.linear import (
    KERNELS,
    Bf16Linear,
    Int8Linear,
    Product,
    choose_kernel,
    is_right,
    round_product,
)
from cloze.predict.quantization.native.kernels import NativeLinear
from cloze.predict.quantization.precision import FEW_TEXTS, PRECISIONS
from tests.model.made import assert_close, model_folder, saved
from tests.predict.test_minilm import texts as minilm_texts

TEXTS = ["the cat sat", "", "dogs ran on a mat, word7 word8.", "猫", "the cat sat", "a " * 50, "[SEP] cat", "a cat"]


@pytest.mark.parametrize("steps", [90, 96, 107])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("rows", "width", "features"), [(1, 16, 8), (3, 64, 33), (40, 768, 96)])
def test_products_are_those_of_whole_numbers(kernel: str, rows: int, width: int, features: int, steps: int) -> None:
    if not is_right(KERNELS[kernel]):
        pytest.skip(f"this processor has no {kernel}")
    source = numpy.random.default_rng(rows + width)
    values = source.integers(-steps, steps + 1, (features, width))
    weight = Int8Weight(torch.from_numpy(values.astype(numpy.int8)), torch.ones(features), steps)
    left = source.integers(-weight.row_steps, weight.row_steps + 1, (rows, width))
    left[0] = weight.row_steps * numpy.sign(values[0])  # the largest possible sum
    expected = left.astype(numpy.int64) @ values.T
    found = KERNELS[kernel](weight)(torch.from_numpy(left.astype(numpy.float32)))
    numpy.testing.assert_array_equal(found.numpy().astype(numpy.int64), expected)


def test_a_kernel_that_overflows_is_not_right() -> None:
    def overflowing(weight: Int8Weight) -> Product:
        right = KERNELS["floats"](weight)
        return lambda rows: right(rows).clamp(-32768, 32767)

    assert not is_right(overflowing)
    assert is_right(KERNELS["floats"])


def test_floats_are_for_machines_without_a_kernel_of_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    # Float kernels are excluded regardless of timing: they read four times as many bytes of weights, and other load on
    # this machine may be temporary.
    monkeypatch.setattr(
        quantized, "best_seconds", lambda calls: [0.0 if "floats" in repr(call) else 1.0 for call in calls]
    )
    choose = choose_kernel.__wrapped__
    assert choose() != "floats" or not any(is_right(KERNELS[name]) for name in ("fbgemm", "onednn"))
    monkeypatch.setattr(quantized, "is_right", lambda pack: pack is KERNELS["floats"])
    assert choose() == "floats"


def test_room_for_two_products_in_sixteen_bits() -> None:
    for steps in range(1, 128):
        weight = Int8Weight(torch.zeros(1, 1, dtype=torch.int8), torch.ones(1), steps)
        assert 2 * (2 * weight.row_steps) * steps <= 32767
        assert 1 <= weight.row_steps <= 127


def test_a_rounded_layer_is_near_and_keeps_its_parameters() -> None:
    torch.manual_seed(1)
    linear = nn.Linear(96, 40)
    small = Int8Linear(linear, round_product("encoder.layers.0.expand", linear))
    states = torch.randn(3, 7, 96) * torch.logspace(-3, 3, 7)[:, None]  # rows of very different magnitude
    states[0, 0] = 0.0
    with torch.inference_mode():
        exact, found = linear(states), small(states)
    error = (found - exact).norm(dim=-1) / exact.norm(dim=-1)
    assert float(error.max()) < 0.02  # the error is relative to each row, however small its values
    assert_close(found[0, 0], linear.bias)
    assert small.state_dict().keys() == linear.state_dict().keys()
    assert small.weight is linear.weight
    assert torch.equal(small(states), linear(states))  # if gradients are required, the float parameter is used
    assert type(copy.deepcopy(small)) is nn.Linear


@pytest.fixture(scope="module")
def minilm(minilm_folder: Path) -> dict[str, Model]:
    return {name: load(minilm_folder, precision=name) for name in ("fp32", "bf16", "int8")}


@pytest.fixture(scope="module")
def minilm_sample() -> list[str]:
    return [text for text in minilm_texts()[:90] if len(text) < 160][:44]


@pytest.mark.parametrize(("precision", "least", "mean"), [("bf16", 0.9995, 0.9999), ("int8", 0.99, 0.997)])
def test_published_weights(
    precision: str, least: float, mean: float, minilm: dict[str, Model], minilm_sample: list[str]
) -> None:
    cosines = (minilm[precision].embed(minilm_sample) * minilm["fp32"].embed(minilm_sample)).sum(1)
    assert minilm[precision].precision == precision
    assert float(cosines.min()) > least
    assert float(cosines.mean()) > mean


@pytest.mark.parametrize(("precision", "cosine"), [("fp32", 0.999999), ("bf16", 0.9999), ("int8", 0.9999)])
def test_neighbours_change_nothing(
    precision: str, cosine: float, minilm: dict[str, Model], minilm_sample: list[str]
) -> None:
    model, source = minilm[precision], random.Random(3)
    some = source.sample(minilm_sample, 12)
    alone = numpy.concatenate([model.embed([text]) for text in some])
    for _ in range(2):
        company = source.sample(minilm_sample, 16)
        mixed = [*some, *company]
        order = source.sample(range(len(mixed)), len(mixed))
        found = model.embed([mixed[index] for index in order])
        back = numpy.empty_like(found)
        back[order] = found
        assert float((back[: len(some)] * alone).sum(1).min()) >= cosine
        if precision == "fp32":
            assert_close(back[: len(some)], alone)


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_every_method_of_a_small_model(precision: str, pretrained_folder: Path) -> None:
    model = load(pretrained_folder, precision=precision)  # type: ignore[arg-type]
    exact = load(pretrained_folder)
    assert abs(model.follows("the cat", "sat") - exact.follows("the cat", "sat")) < 0.1
    assert model.fill("the [MASK] sat", top=3)[0]
    assert model.hidden("the cat", layer=None).dtype == numpy.float32
    weights = model.attend("the cat sat").weights
    assert float(numpy.abs(weights.sum(-1) - 1).max()) < 0.01


def test_saving_gives_the_float_weights(tmp_path: Path) -> None:
    contents = model_folder()
    expected = {name: tensor.clone() for name, tensor in contents.model.state_dict().items()}
    model = Model(contents, precision="int8")
    model.save(tmp_path / "again")
    found = load(tmp_path / "again").bert.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_precision_is_taken_back() -> None:
    contents = model_folder()
    plain = Model(contents).embed(TEXTS)
    assert Model(contents, precision="int8").precision == "int8"
    assert Model(contents).precision == "int8"  # the model's own precision
    back = Model(contents, precision="fp32")
    assert back.precision == "fp32"
    numpy.testing.assert_array_equal(back.embed(TEXTS), plain)
    assert all(type(linear) is nn.Linear for _, linear in layer_products(contents.model))


def test_auto_follows_the_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision_module, "has_fast_bf16", lambda _: True)
    assert Model(model_folder(), precision="auto").precision == "bf16"
    monkeypatch.setattr(precision_module, "has_fast_bf16", lambda _: False)
    assert Model(model_folder(), precision="auto").precision == "fp32"


def test_auto_takes_no_bf16_that_is_far_from_float32(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(precision_module, "has_fast_bf16", lambda _: True)
    rounded = Bf16Linear.rounded
    monkeypatch.setattr(Bf16Linear, "rounded", lambda self, states: -rounded(self, states))
    contents = model_folder()
    expected = Model(contents, precision="fp32").embed(TEXTS)
    model = Model(contents, precision="auto")
    assert model.precision == "fp32"
    numpy.testing.assert_array_equal(model.embed(TEXTS), expected)
    (warning,) = (message for message in caplog.messages if "bf16" in message)
    assert re.fullmatch(
        r"bf16 changes this model's vectors too much \(cosine similarity to float32: -?0\.\d{4}, expected at least "
        r"0\.99\): float32 is used; precision='bf16' \(--precision bf16\) selects bf16 anyway",
        warning,
    )
    assert Model(contents, precision="bf16").precision == "bf16", "an explicit request is honoured"
    monkeypatch.setattr(Bf16Linear, "rounded", lambda self, states: rounded(self, states) * float("nan"))
    assert Model(contents, precision="auto").precision == "fp32", "NaN is not close"


def test_a_large_model_is_looked_at_with_two_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision_module, "has_fast_bf16", lambda _: True)
    sizes: list[int] = []

    def counted(texts: Any, *rest: Any) -> Batch:
        sizes.append(len(texts))
        return collate(texts, *rest)

    monkeypatch.setattr(precision_module, "collate", counted)
    for largest in (precision_module.LARGE, 0):
        monkeypatch.setattr(precision_module, "LARGE", largest)
        assert Model(model_folder(), precision="auto").precision == "bf16"
    for precision in PRECISIONS[1:]:
        Model(model_folder(), precision=precision)
    assert sizes == [len(FEW_TEXTS), 2], "an explicit precision skips the measurement"


def test_a_folder_with_unsupported_pooling_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision_module, "has_fast_bf16", lambda _: True)
    contents = replace(model_folder(["mlm"]), embedding=EmbeddingSettings(unsupported="it pools by weights"))
    assert Model(contents, precision="auto").precision == "bf16"


def test_invalid_input_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"^unknown precision 'int4'; did you mean 'int8'\?$"):
        Model(model_folder(), precision="int4")  # type: ignore[arg-type]
    message = r"^precision int8 only runs on the CPU, not on cuda; use bf16, or device='cpu' \(--device cpu\)$"
    with pytest.raises(ConfigError, match=message):
        precision_module.set_precision(model_folder(), "int8", torch.device("cuda"))
    assert PRECISIONS[0] == "auto"


def test_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen_calls: list[object] = []

    def faster(*given: object) -> bool:
        seen_calls.append(given)
        return True

    monkeypatch.setattr(precision_module, "_MEASURED", {})
    monkeypatch.setattr(precision_module, "_faster", faster)
    bert = model_folder().model
    assert precision_module._is_faster("int8", "fp32", bert)
    assert precision_module._is_faster("int8", "fp32", bert)
    assert len(seen_calls) == 1


def test_adapters_work_on_a_rounded_base(tmp_path: Path) -> None:
    """Adapters work on a quantized base, since they are added next to the layers."""
    folder = saved(model_folder(["mlm"]), tmp_path / "base")
    model = load(folder, precision="int8")
    assert isinstance(next(linear for _, linear in layer_products(model.bert)), Int8Linear | NativeLinear)
    model.use(None)
    assert model.precision == "int8"
