"""A model that abstains: the threshold of cloze evaluate, the folder, predictions, the service, and messages."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import cloze
from cloze.checkpoint import TaskLabels
from cloze.errors import CheckpointError, ConfigError, DataError
from cloze.files import read_json
from cloze.predict import Model
from tests.cli.conftest import Cloze, quiet_neighbours, run
from tests.model.made import SMALL, WORDS, model_folder, saved

__all__ = ["quiet_neighbours", "run"]  # fixtures

TASK = TaskLabels("classify", ("good", "bad", "mixed"))
TEXTS = [f"the {one} {other} on a mat" for one in WORDS[:8] for other in WORDS[:8] for _ in range(4)]


def made(folder: Path, task: TaskLabels = TASK) -> Path:
    return saved(model_folder(["sequence"], task=task, labels=3, config=replace(SMALL, head_pooling="mean")), folder)


def rows_of(model: Model, wrong: int) -> list[dict[str, str]]:
    """Rows with the labels that the model predicts, except the least probable ones."""
    labels = model.classify(TEXTS, abstain=False)
    order = sorted(range(len(TEXTS)), key=lambda row: labels[row].probability)
    rows = [{"text": text, "label": str(label.label)} for text, label in zip(TEXTS, labels, strict=True)]
    for row in order[:wrong]:
        rows[row]["label"] = next(name for name in TASK.names if name != rows[row]["label"])
    return rows


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made(tmp_path / "model")


def test_threshold_is_stored_and_applied(folder: Path) -> None:
    rows = rows_of(cloze.load(folder), wrong=80)
    weights = (folder / "model.safetensors").stat().st_mtime_ns
    evaluation = cloze.evaluate("classify", rows, model=folder, abstain_at=0.1)
    found = evaluation.abstention
    assert found is not None
    assert found["risk"] <= found["bound"] <= 0.1
    assert 0 < found["coverage"] < 1
    assert found["area"] >= found["best_area"]
    assert read_json(folder / "config.json")["cloze_task"] == {"abstain_below": found["below"], "abstain_rate": 0.1}
    assert (folder / "model.safetensors").stat().st_mtime_ns == weights
    model = cloze.load(folder)
    labels, all_labels = model.classify(TEXTS), model.classify(TEXTS, abstain=False)
    assert {label.label is None for label in labels} == {True, False}
    for label, other in zip(labels, all_labels, strict=True):
        assert label.probabilities == other.probabilities
        if label.probability >= found["below"]:
            assert label == other
        else:
            assert label.label is None
            assert label.reason == (
                f"probability {label.probability:.4f} of {other.label!r} is below {found['below']:.4f}"
            )
    shown = str(evaluation)
    assert "abstains below a probability of " in shown
    assert "; on new rows at most " in shown
    again = cloze.evaluate("classify", rows, model=folder)
    assert again.abstention == {name: pytest.approx(found[name]) for name in ("below", "coverage", "risk")}
    assert again.metrics == evaluation.metrics
    assert set(again.predictions) <= set(TASK.names)


def test_threshold_of_a_loaded_model_is_saved_with_it(folder: Path, tmp_path: Path) -> None:
    model = cloze.load(folder)
    before = model.fingerprint
    cloze.evaluate("classify", rows_of(model, wrong=60), model=model, abstain_at=0.2)
    assert model.task is not None
    assert model.task.abstain_below is not None
    assert model.fingerprint != before
    assert cloze.load(folder).task == TASK  # the folder is unchanged
    model.save(tmp_path / "copy")
    assert cloze.load(tmp_path / "copy").task == model.task


def test_service_answers_with_null_and_a_reason(folder: Path) -> None:
    plain = cloze.load(folder).predict_rows(TEXTS[:2])
    assert all(set(row) == {"label", "probability", "probabilities"} for row in plain)
    cautious = Model(replace(cloze.load(folder)._folder, task=replace(TASK, abstain_below=0.999)))
    rows = cautious.predict_rows(TEXTS[:2])
    assert [row["label"] for row in rows] == [None, None]
    assert all(row["reason"].endswith("is below 0.9990") for row in rows)
    forced = cautious.predict_rows(TEXTS[:2], abstain=False)
    assert [row["label"] for row in forced] == [row["label"] for row in plain]
    assert [row["reason"] for row in forced] == [None, None]


def test_commands(run: Cloze, folder: Path, tmp_path: Path) -> None:
    rows = rows_of(cloze.load(folder), wrong=80)
    table = tmp_path / "rows.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    scores = tmp_path / "scores"
    result = run("evaluate", "classify", table, "--model", folder, "--abstain-at", 0.1, "--out", scores)
    assert result.code == 0
    assert any(line.startswith("abstains below a probability of ") for line in result.out.splitlines())
    assert (scores / "risk_coverage.png").read_bytes().startswith(b"\x89PNG")
    curve = read_json(scores / "risk_coverage.json")
    assert len(curve["coverage"]) == len(curve["risk"])
    found = read_json(scores / "eval_results.json")["abstention"]
    least = min(cloze.load(folder).classify(TEXTS, abstain=False), key=lambda label: label.probability)
    text = (
        TEXTS[0]
        if least.probability >= found["below"]
        else next(
            text for text, label in zip(TEXTS, cloze.load(folder).classify(TEXTS), strict=True) if label.label is None
        )
    )
    shown = run("classify", text, "--model", folder, "--json")
    assert json.loads(shown.out)["label"] is None
    assert "is below" in json.loads(shown.out)["reason"]
    printed = run("classify", text, "--model", folder)
    assert printed.out.splitlines()[0] == "label\tprobability\treason\ttext"
    assert printed.out.splitlines()[1].startswith("\t")
    forced = run("classify", text, "--model", folder, "--no-abstain", "--json")
    assert json.loads(forced.out)["label"] in TASK.names
    output = tmp_path / "labels.csv"
    assert run("classify", "--input", table, "--model", folder, "--output", output).code == 0
    assert output.read_text(encoding="utf-8").splitlines()[0] == "text,label,predicted_label,probability,reason"


def test_mistakes(folder: Path, tmp_path: Path) -> None:
    rows = rows_of(cloze.load(folder), wrong=80)
    with pytest.raises(
        ConfigError, match=r"abstain_at is 0.1, which only applies to classify; leave it out for regress"
    ):
        cloze.evaluate("regress", rows, model=folder, abstain_at=0.1)
    with pytest.raises(ConfigError, match=r"abstain_at is 5; expected an error rate above 0 and below 1, such as 0.05"):
        cloze.evaluate("classify", rows, model=folder, abstain_at=5)
    with pytest.raises(ConfigError, match=r"cloze-mini: abstain_at changes the model's folder, but this is a name"):
        cloze.evaluate("classify", rows, model="cloze-mini", abstain_at=0.1)
    with pytest.raises(DataError, match=r"20 rows do not show that the error rate can be kept below 0.05"):
        cloze.evaluate("classify", rows[:20], model=folder, abstain_at=0.05)
    assert "cloze_task" not in read_json(folder / "config.json")
    config = read_json(folder / "config.json")
    (folder / "config.json").write_text(
        json.dumps(config | {"cloze_task": {"abstain_below": "high"}}), encoding="utf-8"
    )
    with pytest.raises(CheckpointError, match=r"cloze_task.abstain_below is 'high'; expected a positive number"):
        cloze.load(folder)
