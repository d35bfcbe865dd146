"""The precision of a service: int8 if it is accurate enough, from the cache if it was measured before."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load as read_tensors
from torture.services import Running, process

from cloze.checkpoint import EmbeddingSettings, load_folder, save_folder
from cloze.predict import load
from cloze.predict.quantization import precision as precision_module
from cloze.predict.quantization import quantize as quantize_module
from cloze.predict.quantization.quantize import cache_folder, load_for_service, quantize
from cloze.serve.models import load_models
from cloze.serve.outcomes import Metrics
from cloze.serve.service import Service
from cloze.serve.settings import ServiceSettings
from cloze.tasks.similarity.kind import cosines
from tests.checkpoint.test_adapter_folder import HOULSBY, LORA, make_adapter, make_base
from tests.model.made import model_folder, saved

TEXTS = ["the cat sat on a mat.", "a dog ran", "猫坐", "word7 word8 the mat"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and int8 that is always reported as faster: with such small models, timing is random."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(precision_module, "_is_faster", lambda *_: True)
    monkeypatch.setattr(precision_module, "has_fast_bf16", lambda _: False)
    return tmp_path / "cache" / "cloze" / "int8"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return saved(model_folder(["mlm", "nsp"]), tmp_path / "model")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The minimum cosine of each measurement."""
    found: list[float] = []
    measure = quantize_module._measure

    def counted(*given: Any) -> float:
        found.append(measure(*given))
        return found[-1]

    monkeypatch.setattr(quantize_module, "_measure", counted)
    return found


def paragraphs() -> Sequence[str]:
    return TEXTS * 3


def test_measured_at_the_first_start_and_cached(folder: Path, cache: Path, measured: list[float]) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    model, chosen = load_for_service(str(folder), paragraphs=paragraphs)
    assert (model.precision, chosen.name, chosen.cache_error) == ("int8", "int8", None)
    exact = load(folder).embed(TEXTS)
    assert chosen.least_cosine == pytest.approx(float(cosines(exact, model.embed(TEXTS)).min()), abs=1e-5)
    text = f"int8, least cosine {chosen.least_cosine:.4f} to fp32 (measured now); --precision fp32 for exact numbers"
    assert str(chosen) == text
    again, second = load_for_service(str(folder), paragraphs=paragraphs)
    assert str(second) == text.replace("measured now", "cached")
    assert second.least_cosine == pytest.approx(chosen.least_cosine, abs=1e-6)
    assert len(measured) == 1
    np.testing.assert_array_equal(again.embed(TEXTS), model.embed(TEXTS))
    np.testing.assert_array_equal(again.embed(TEXTS), load(folder, precision="int8").embed(TEXTS))
    assert [path.suffix for path in cache.iterdir()] == [".safetensors"]
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("change", ["weights", "vocabulary", "pooling", "format"])
def test_changed_model_is_measured_anew(
    change: str, folder: Path, cache: Path, measured: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    load_for_service(str(folder), paragraphs=paragraphs)
    contents = load_folder(folder)
    if change == "weights":
        with torch.no_grad():
            contents.model.encoder.layers[1].expand.weight[0, 0] += 1e-4
    elif change == "vocabulary":
        lowered = replace(contents.tokenizer.settings, strip_accents=False)
        contents = replace(contents, tokenizer=type(contents.tokenizer)(lowered))
    elif change == "pooling":
        contents = replace(contents, embedding=EmbeddingSettings("max", normalize=True))
    else:
        monkeypatch.setattr(quantize_module, "INT8_FORMAT", "cloze int8 3")
    save_folder(contents, folder)
    model, _ = load_for_service(str(folder), paragraphs=paragraphs)
    assert len(measured) == len(list(cache.iterdir())) == 2
    np.testing.assert_array_equal(model.embed(TEXTS), load(folder, precision="int8").embed(TEXTS))


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "text", "other weights"])
def test_damaged_cache_is_made_again(
    damage: str, folder: Path, cache: Path, measured: list[float], tmp_path: Path
) -> None:
    expected = load_for_service(str(folder), paragraphs=paragraphs)[0].embed(TEXTS)
    (path,) = cache.iterdir()
    whole = path.read_bytes()
    tensors = read_tensors(whole)
    flipped = bytearray(whole)
    flipped[-100] ^= 1
    other = saved(model_folder(["mlm"], config=replace(load_folder(folder).model.config, layers=2)), tmp_path / "other")
    load_for_service(str(other), paragraphs=paragraphs)
    others = next(one for one in cache.glob("*.safetensors") if one != path).read_bytes()
    damages = {"truncated": whole[: len(whole) // 2], "empty": b"", "flipped": bytes(flipped), "text": b"{}" * 99}
    path.write_bytes(damages.get(damage, others))
    model, chosen = load_for_service(str(folder), paragraphs=paragraphs)
    assert "(measured now)" in chosen.reason
    np.testing.assert_array_equal(model.embed(TEXTS), expected)
    assert len(measured) == 3
    again = read_tensors(path.read_bytes())
    assert again.keys() == tensors.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in tensors.items())
    assert "(cached)" in load_for_service(str(folder), paragraphs=paragraphs)[1].reason


def test_cache_that_cannot_be_written(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # the superuser may write to any folder
    other = saved(model_folder(["mlm"]), tmp_path / "other")
    messages: list[str] = []
    settings = ServiceSettings({"one": str(folder), "two": str(other)})
    registry = load_models(settings, Metrics(), paragraphs=paragraphs, say=messages.append)
    assert {model.description["precision"] for model in registry.served.values()} == {"int8"}
    assert [line.partition(",")[0] for line in messages[:2]] == ["one: int8", "two: int8"]
    (note,) = messages[2:]  # printed once for all models
    place = re.escape(str(tmp_path / "file"))
    assert re.fullmatch(
        rf"int8 weights cannot be cached: {place}/cloze/int8/[0-9a-f]+\.safetensors: cannot be written \(.+\); .+; "
        r"set XDG_CACHE_HOME to a writable folder, or every start repeats the measurement",
        note,
    )
    assert (tmp_path / "file").read_text(encoding="utf-8") == ""


@pytest.mark.parametrize(("given", "expected"), [(None, "~"), ("", "~"), ("relative", "~"), ("/some/where", "given")])
def test_place_of_the_cache(given: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    if given is None:
        monkeypatch.delenv("XDG_CACHE_HOME")
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", given)
    home = tmp_path / ".cache" if expected == "~" else Path("/some/where")
    assert cache_folder() == home / "cloze" / "int8"


def test_user_without_a_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    model, chosen = load_for_service(str(folder), paragraphs=paragraphs)
    assert (model.precision, chosen.cache_error) == ("int8", "this user has no home folder")


@pytest.mark.parametrize("bf16", [False, True])
def test_model_that_int8_changes_too_much(
    bf16: bool, folder: Path, measured: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantize_module, "LEAST_COSINE", 0.9999999)
    monkeypatch.setattr(precision_module, "has_fast_bf16", lambda _: bf16)
    expected = load(folder).embed(TEXTS)
    for origin in ("measured now", "cached"):
        model, chosen = load_for_service(str(folder), paragraphs=paragraphs)
        assert model.precision == chosen.name == ("bf16" if bf16 else "fp32")
        assert chosen.reason == (
            f"as int8 changes the vectors too much: least cosine {chosen.least_cosine:.4f} to fp32, "
            f"expected at least 0.9999999 ({origin}); --precision int8 selects it anyway"
        )
        if not bf16:
            np.testing.assert_array_equal(model.embed(TEXTS), expected)
    assert len(measured) == 1


def test_vectors_that_are_no_numbers_are_not_near(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantize_module, "cosines", lambda *_: np.array([1.0, np.nan]))
    model, chosen = load_for_service(str(folder), paragraphs=paragraphs)
    assert (model.precision, chosen.least_cosine) == ("fp32", -1.0)
    assert "(cached)" in load_for_service(str(folder), paragraphs=paragraphs)[1].reason


def test_weights_beside_the_model_are_taken(folder: Path, cache: Path, measured: list[float]) -> None:
    report = quantize(folder, TEXTS)
    _, chosen = load_for_service(str(folder), paragraphs=paragraphs)
    assert str(chosen) == (
        f"int8, least cosine {report.least_cosine:.4f} to fp32 (measured by cloze quantize); "
        "--precision fp32 for exact numbers"
    )
    assert not measured
    assert not cache.exists()
    (folder / "int8.safetensors").write_bytes(b"damaged")
    assert "(measured now)" in load_for_service(str(folder), paragraphs=paragraphs)[1].reason


def test_machine_where_int8_is_not_faster(folder: Path, measured: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision_module, "_is_faster", lambda *_: False)
    model, chosen = load_for_service(str(folder), paragraphs=paragraphs)
    assert (model.precision, str(chosen)) == ("fp32", "fp32, as int8 is not faster on this machine")
    assert not measured


def test_texts_are_of_the_model_if_there_are_no_paragraphs(folder: Path) -> None:
    assert load_for_service(str(folder))[1].least_cosine is not None


@pytest.mark.parametrize("kind", ["houlsby", "lora"])
def test_adapters_on_a_base_in_int8(kind: str, tmp_path: Path, measured: list[float]) -> None:
    base = make_base(tmp_path / "base")
    make_adapter(base, tmp_path / "adapter" / "model", {"houlsby": HOULSBY, "lora": LORA}[kind])
    settings = ServiceSettings({"base": str(base)}, {"own": str(tmp_path / "adapter")})
    metrics = Metrics()
    service = Service(settings, load_models(settings, metrics, paragraphs=paragraphs), metrics)
    service.models.start()
    try:
        running = Running(service)
        body = {"texts": TEXTS, "model": "own"}
        labels = running.post("/classify", body).json()["results"]
        vectors = running.post("/embed", {"texts": TEXTS, "model": "base"}).json()["vectors"]
        listed = {model["name"]: model for model in running.get("/info").json()["models"]}
    finally:
        service.models.drain(10)
        service.tokenizer_pool.close()
    exact = load(tmp_path / "adapter").classify(TEXTS)
    for ours, theirs in zip(labels, exact, strict=True):
        np.testing.assert_allclose(list(ours["probabilities"].values()), list(theirs.probabilities.values()), atol=0.1)
    assert cosines(np.array(vectors, np.float32), load(base).embed(TEXTS)).min() > 0.99
    assert {model["precision"] for model in listed.values()} == {"int8"}
    assert listed["own"]["least_cosine"] == listed["base"]["least_cosine"] == pytest.approx(measured[0])
    assert listed["own"]["precision_reason"] == listed["base"]["precision_reason"]
    # The folder of an adapter is also served on its own.
    model, chosen = load_for_service(str(tmp_path / "adapter"), paragraphs=paragraphs)
    near = chosen.least_cosine is not None and chosen.least_cosine >= precision_module.LEAST_COSINE
    assert model.precision == chosen.name == ("int8" if near else "fp32")


def test_precision_that_was_asked_for_is_taken(folder: Path, measured: list[float]) -> None:
    for precision in ("fp32", "bf16", "int8"):
        registry = load_models(
            ServiceSettings({"model": str(folder)}), Metrics(), precision=precision, paragraphs=paragraphs
        )
        description = registry.served["model"].description
        assert (description["precision"], description["precision_reason"]) == (precision, None)
    assert not measured


PROGRAM = """
import sys
from cloze.predict.quantization import precision
from cloze.predict.quantization.quantize import load_for_service

precision._is_faster = lambda *_: True
print("ready", flush=True)
sys.stdin.readline()
for _ in range(3):
    model, chosen = load_for_service(sys.argv[1], paragraphs=lambda: ["the cat sat on a mat.", "a dog ran"])
    assert chosen.name == "int8" and chosen.cache_error is None, chosen
print(model.embed(["the cat sat"]).tolist())
"""


def test_services_that_start_at_once(folder: Path, cache: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = [subprocess.Popen(command, text=True, env=dict(os.environ), **pipes) for _ in range(2)]  # type: ignore[call-overload]
    for one in started:
        assert one.stdout.readline() == "ready\n"
    for one in started:
        one.stdin.write("\n")
        one.stdin.flush()
    answers = [one.communicate(timeout=120) for one in started]
    assert [one.returncode for one in started] == [0, 0], answers
    assert answers[0][0] == answers[1][0]
    (path,) = cache.iterdir()  # no temporary files or locks remain
    assert read_tensors(path.read_bytes())
    assert "(cached)" in load_for_service(str(folder), paragraphs=paragraphs)[1].reason


def test_command_says_what_it_computes_in(folder: Path, tmp_path: Path) -> None:
    """The command prints the precision; for a small model, also the note that int8 is not faster."""
    with process([str(folder)], "--threads", "1", "--precision", "auto") as service:
        pass
    code, messages = service.stop()
    assert code == 0
    lines = [line for line in messages.splitlines() if line.startswith(f"cloze: {folder.parent.name}: ")]
    pattern = (
        r"cloze: \S+: (int8, least cosine [01]\.\d{4} to fp32 \(measured now\); --precision fp32 for exact numbers|"
    )
    assert len(lines) == 1
    assert re.fullmatch(
        pattern + r"(fp32|bf16), as int8 (is not faster on this machine|changes the vectors .*))", lines[0]
    )


@pytest.mark.parametrize(("device", "expected"), [("cpu", "int8"), ("meta", "fp32")])
def test_default_is_auto_on_a_cpu_alone(
    device: str, expected: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloze.serve.models.choose_device", lambda _: torch.device(device))
    registry = load_models(ServiceSettings({"model": str(folder)}), Metrics(), device="cpu", paragraphs=paragraphs)
    assert registry.served["model"].description["precision"] == expected
