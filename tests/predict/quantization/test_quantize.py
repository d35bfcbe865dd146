"""The quantization report and its cost; operations on a quantized model."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

from cloze.errors import RequestError
from cloze.predict import Model, load
from cloze.predict.quantization import linear as quantized
from cloze.predict.quantization.linear import KERNELS, Int8Linear, is_right, round_product
from cloze.predict.quantization.precision import odd_texts
from cloze.predict.quantization.quantize import QuantizeReport, quantize
from cloze.tasks.rows import Source
from cloze.tasks.similarity.kind import cosines
from tests.model.made import assert_close, model_folder, saved

TEXTS = [f"the cat sat on a mat{' the dog ran' * (number % 3)} word{number % 30}" for number in range(200)]


@pytest.fixture
def embedded_texts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each text was embedded."""
    found: Counter[str] = Counter()
    embed = Model.embed

    def counted(self: Model, texts: Sequence[str], **how: object) -> object:
        found.update(texts)
        return embed(self, texts, **how)

    monkeypatch.setattr(Model, "embed", counted)
    return found


def test_every_text_is_read_once_by_either(embedded_texts: Counter[str], tmp_path: Path) -> None:
    folder = saved(model_folder(), tmp_path / "model")
    report = quantize(folder, TEXTS)
    assert embedded_texts == Counter(TEXTS + TEXTS)
    assert report.texts == 200
    assert 0 < report.least_cosine <= report.mean_cosine <= 1.000001
    assert report.speedup > 0
    exact, small = (load(folder, precision=name).embed(TEXTS, pooling="mean") for name in ("fp32", "int8"))
    lengths = numpy.linalg.norm(exact, axis=1) * numpy.linalg.norm(small, axis=1)
    assert report.least_cosine == pytest.approx(float(((exact * small).sum(1) / lengths).min()), abs=1e-5)


def test_one_text_is_timed_a_few_times(embedded_texts: Counter[str], tmp_path: Path) -> None:
    assert quantize(saved(model_folder(), tmp_path / "model"), TEXTS[:1]).texts == 1
    assert embedded_texts == {TEXTS[0]: 10}


def test_a_task_that_does_not_fit_is_known_before_the_work(embedded_texts: Counter[str], tmp_path: Path) -> None:
    folder = saved(model_folder(["mlm"]), tmp_path / "model")
    message = r"^the model: classify needs a model fine-tuned to classify; this one has the heads: mlm; train one"
    with pytest.raises(RequestError, match=message):
        quantize(folder, TEXTS, task=Source("classify", tmp_path / "rows.tsv"))
    assert not embedded_texts
    assert not (folder / "int8.safetensors").exists()


@pytest.mark.parametrize("precision", ["int8", "bf16"])
def test_heads_are_pruned_from_rounded_layers_too(precision: str) -> None:
    model = Model(model_folder(), precision=precision)  # type: ignore[arg-type]
    heads = [(0, 1), (2, 0)]
    whole = model.embed(TEXTS[:3])
    with model.without_heads(heads):
        expected = model.embed(TEXTS[:3])
    model.prune_heads(heads)
    assert model.precision == precision
    found = model.embed(TEXTS[:3])
    near = numpy.abs(found - expected).max()
    assert near < 0.2 * numpy.abs(whole - expected).max()  # quantized a second time, so not bit-identical


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("biased", [True, False])
def test_a_row_is_the_same_alone_to_the_bit(biased: bool, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_right(KERNELS[kernel]):
        pytest.skip(f"{kernel} gives wrong results on this machine")
    monkeypatch.setattr(quantized, "choose_kernel", lambda: kernel)
    torch.manual_seed(4)
    linear = nn.Linear(96, 40, bias=biased)
    place = "encoder.layers.0.expand"
    for largest in (None, torch.rand(96) + 0.5):
        small = Int8Linear(linear, round_product(place, linear, largest))
        states = torch.randn(33, 96) * torch.logspace(-4, 4, 33)[:, None]
        states[5], states[6] = 0.0, 2.5  # rows with constant values
        with torch.inference_mode():
            together, exact = small(states), linear(states)
            for number in range(len(states)):
                assert torch.equal(small(states[number : number + 1])[0], together[number])
            assert_close(small(torch.zeros(0, 96)), torch.zeros(0, 40))
        error = (together - exact).norm(dim=-1) / exact.norm(dim=-1).clamp(min=1e-9)
        assert float(error.max()) < 0.03


def test_vectors_are_compared_as_the_folder_makes_them(tmp_path: Path) -> None:
    Model(model_folder()).whiten(TEXTS[:60], 5, "cls").save(tmp_path / "model")
    report = quantize(tmp_path / "model", TEXTS)
    exact, small = (load(tmp_path / "model", precision=name).embed(TEXTS) for name in ("fp32", "int8"))
    lengths = numpy.linalg.norm(exact, axis=1) * numpy.linalg.norm(small, axis=1)
    assert report.least_cosine == pytest.approx(float(((exact * small).sum(1) / lengths).min()), abs=1e-5)


def test_odd_texts_are_reported_but_do_not_decide(embedded_texts: Counter[str], tmp_path: Path) -> None:
    folder = saved(model_folder(), tmp_path / "model")
    report = quantize(folder, TEXTS[:40], with_odd=True)
    assert list(report.kinds) == ["paragraphs", "single words", "Chinese characters", "numbers", "signs"]
    assert {"cat", "猫", "3.14", "?"} <= embedded_texts.keys()
    odd = [text for texts in odd_texts(load(folder).tokenizer).values() for text in texts]
    assert report.texts == 40 + len(odd)
    for kind, texts in (("paragraphs", TEXTS[:40]), ("Chinese characters", ["猫", "坐"])):
        exact, small = (load(folder, precision=name).embed(texts) for name in ("fp32", "int8"))
        assert report.kinds[kind] == pytest.approx(float(cosines(exact, small).min()), abs=1e-5)
    assert report.least_cosine == report.kinds["paragraphs"]
    assert report.least_of_all == min(report.kinds.values())
    assert report.facts()["kinds"] == report.kinds
    assert quantize(folder, TEXTS[:3]).kinds == {}


def test_odd_texts_that_are_far() -> None:
    kinds = {"paragraphs": 0.995, "signs": 0.97, "numbers": float("nan")}
    report = QuantizeReport("f", 1, 4, 9, 2.0, 0.995, 0.999, {}, kinds)
    assert (report.near, list(report.far)) == (True, ["signs", "numbers"])
