"""int8.safetensors: its content, that other libraries ignore it, and what is rejected."""

from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import BertModel

from cloze.checkpoint import load_folder
from cloze.checkpoint.quantized_file import INT8, layer_products, read_quantized, write_quantized
from cloze.errors import CheckpointError
from cloze.predict import load
from cloze.predict.quantization import precision as precision_module
from cloze.predict.quantization.linear import round_products
from tests.model.made import assert_close, model_folder, saved


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = saved(model_folder(), tmp_path / "model")
    write_quantized(place, round_products(load_folder(place).model), 0.995)
    return place


def changed(folder: Path, **facts: str) -> None:
    path = folder / INT8
    with safe_open(path, framework="pt") as file:
        before = file.metadata()
    save_file(load_file(path), path, metadata=before | facts)


def test_contents_of_the_file(folder: Path) -> None:
    contents = load_folder(folder)
    found = read_quantized(contents)
    assert found is not None
    assert found.least_cosine == 0.995
    for name, linear in layer_products(contents.model):
        weight = found.weights[name]
        assert (weight.factors is not None) == name.endswith(("query_key_value", "expand"))
        exact = linear.weight if weight.factors is None else linear.weight * weight.factors
        step = exact.abs().amax(1) / weight.steps
        error = (weight.values * weight.scales[:, None] - exact).abs().amax(1)
        assert bool((error <= 0.5001 * step).all())
    assert (folder / INT8).stat().st_mode & 0o777 == 0o644


def test_saved_weights_equal_fresh_quantization(folder: Path, tmp_path: Path) -> None:
    bare = saved(model_folder(), tmp_path / "bare")
    texts = ["the cat sat", "a dog"]
    numpy.testing.assert_array_equal(
        load(folder, precision="int8").embed(texts), load(bare, precision="int8").embed(texts)
    )


def test_others_ignore_it(folder: Path) -> None:
    ours = load(folder).hidden("the cat sat")
    theirs = BertModel.from_pretrained(str(folder), dtype=torch.float32).eval()  # type: ignore[no-untyped-call]
    ids = torch.tensor([load(folder).tokenizer("the cat sat").ids])
    with torch.no_grad():
        assert_close(ours, theirs(ids).last_hidden_state[0])


@pytest.mark.parametrize(
    ("cosine", "faster", "expected"), [(0.995, True, "int8"), (0.98, True, "fp32"), (1, False, "fp32")]
)
def test_auto_selects_accurate_and_faster_int8(
    cosine: float, faster: bool, expected: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_quantized(folder, round_products(load_folder(folder).model), cosine)
    monkeypatch.setattr(precision_module, "has_fast_bf16", lambda _: False)
    monkeypatch.setattr(precision_module, "_is_faster", lambda *_: faster)
    assert load(folder, precision="auto").precision == expected


@pytest.fixture
def stale(folder: Path) -> Path:
    """A folder whose int8 file belongs to an earlier model."""
    contents = load_folder(folder)
    other = replace(contents, model=model_folder().model)
    with torch.no_grad():
        other.model.encoder.layers[0].expand.weight += 0.5
    kept = (folder / INT8).read_bytes()
    saved(other, folder)
    (folder / INT8).write_bytes(kept)
    return folder


OTHER_WEIGHTS = "quantized from weights other than the model's; run 'cloze quantize' again, or delete the file"


def test_a_file_of_other_weights_is_refused(stale: Path) -> None:
    with pytest.raises(CheckpointError, match=f"{OTHER_WEIGHTS}$"):
        load(stale, precision="int8")
    assert load(stale).precision == "fp32"  # without a request for int8, the stale file is ignored


def test_auto_ignores_a_file_of_other_weights(
    stale: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(precision_module, "has_fast_bf16", lambda _: False)
    monkeypatch.setattr(precision_module, "_is_faster", lambda *_: True)
    assert load(stale, precision="auto").precision == "fp32"
    expected = f"{stale / INT8}: {OTHER_WEIGHTS}; auto does not use int8 until then"
    assert [record.getMessage() for record in caplog.records if "int8" in record.getMessage()] == [expected]


def test_saving_leaves_no_stale_file(folder: Path) -> None:
    load(folder).save(folder)
    assert not (folder / INT8).exists()


def test_a_file_of_somebody_else(folder: Path) -> None:
    changed(folder, kind="other")
    with pytest.raises(
        CheckpointError,
        match=r"not written by this version of 'cloze quantize' \(expected 'cloze int8 2'\); "
        "run it again, or delete the file$",
    ):
        load(folder, precision="int8")


@pytest.mark.parametrize("text", ["", "nan", "2", "much"])
def test_a_cosine_that_is_none(text: str, folder: Path) -> None:
    changed(folder, least_cosine=text)
    message = f"least_cosine is '{text}'; expected a number from -1 to 1; quantize again$"
    with pytest.raises(CheckpointError, match=message):
        load(folder, precision="int8")


NAME = "encoder.layers.1.expand"
HARMED_FACTORS = ("no factors", "zero factor", "too many factors", "infinite factor")


def _harm_factors(harm: str, tensors: dict[str, torch.Tensor]) -> None:
    factors = tensors.pop(f"{NAME}.factors")
    if harm == "too many factors":
        tensors[f"{NAME}.factors"] = torch.cat([factors, factors])
    elif harm != "no factors":
        factors[0] = 0.0 if harm == "zero factor" else float("inf")
        tensors[f"{NAME}.factors"] = factors


@pytest.mark.parametrize("harm", ["missing", "shape", "type", "large", "infinite", *HARMED_FACTORS])
def test_damaged_tensors(harm: str, folder: Path) -> None:
    path = folder / INT8
    with safe_open(path, framework="pt") as file:
        facts = file.metadata()
    tensors = load_file(path)
    values = tensors[f"{NAME}.values"]
    if harm == "missing":
        del tensors[f"{NAME}.scales"]
    elif harm in HARMED_FACTORS:
        _harm_factors(harm, tensors)
    elif harm == "infinite":
        tensors[f"{NAME}.scales"][0] = float("inf")
    else:
        harmed = {"shape": values[:-1], "type": values.float(), "large": values.clone()}[harm].contiguous()
        if harm == "large":
            harmed[0, 0] = -128
        tensors[f"{NAME}.values"] = harmed
    save_file(tensors, path, metadata=facts)
    with pytest.raises(CheckpointError, match=f"{NAME} does not fit the model; run 'cloze quantize' again$"):
        load(folder, precision="int8")
