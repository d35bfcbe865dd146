"""Runs report a baseline next to the model's scores, without affecting the model."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from sklearn.base import clone

import cloze
from cloze.cli import main
from cloze.cli.finetuning import print_search
from cloze.progress import Interrupted
from cloze.sklearn import TextClassifier
from cloze.tasks import baselines as baselines_module
from cloze.tasks.baselines import Baseline
from cloze.tasks.registry import TaskData
from cloze.tasks.reports import prediction_rows, read_predictions
from cloze.tasks.rows import Source
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.search import search
from cloze.train.finetuning.settings import FinetuneSettings, SearchSettings
from cloze.train.run import Run
from tests.train.finetuning.test_finetune import make_rows, write
from tests.train.made import Listener, interrupted_at
from tests.train.pretraining.test_pretrain import weights

# The learning rate is nearly zero, so the model learns nothing.
IDLE = FinetuneSettings(epochs=1, batch_size=8, max_length=16, learning_rate=1e-9)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    train, dev = write(tmp_path / "train.csv", make_rows(80)), write(tmp_path / "dev.csv", make_rows(40, 1))
    return Source("classify", train, dev)


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[TaskData]:
    """Record the data of every fit of the baselines."""
    fitted: list[TaskData] = []
    fit: Callable[[TaskData], list[Baseline]] = baselines_module.fit_baselines

    def recording(data: TaskData) -> list[Baseline]:
        fitted.append(data)
        return fit(data)

    for module in ("finetune", "search"):
        monkeypatch.setattr(f"cloze.train.finetuning.{module}.fit_baselines", recording)
    return fitted


def test_an_untrained_model_is_behind_the_baseline(base: Path, source: Source, tmp_path: Path) -> None:
    folder = run_finetuning(source, base, tmp_path / "run", settings=IDLE)
    results = Run(folder).results()
    baseline = results["baseline"]
    assert baseline["name"] == "TF-IDF + logistic regression"
    assert baseline["accuracy"] > 0.9
    assert baseline["difference"]["value"] == pytest.approx(results["accuracy"] - baseline["accuracy"])
    assert baseline["difference"]["high"] < 0
    assert [one["name"] for one in baseline["others"]] == ["majority label (winter)"] or baseline["others"][0][
        "accuracy"
    ] == 0.5
    card = (folder / "model" / "README.md").read_text("utf-8")
    low, high = results["intervals"]["accuracy"]
    assert f"- accuracy: {results['accuracy']:.4f} (95 % interval {low:.4f} to {high:.4f})" in card
    assert "- behind TF-IDF + logistic regression by " in card


def test_command_prints_it_first(
    base: Path, source: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [str(source.data), "--dev", str(source.dev)]
    settings = ["--epochs", "1", "--max-length", "16", "--learning-rate", "1e-9"]
    outputs = []
    for flags in ([], ["--no-baseline"]):
        out = tmp_path / f"run{len(flags)}"
        with pytest.raises(SystemExit):
            main(["finetune", "classify", *rows, "--model", str(base), "--out", str(out), *settings, *flags])
        outputs.append(capsys.readouterr().out.splitlines())
    with_baseline, without = outputs
    assert with_baseline[0].startswith("behind TF-IDF + logistic regression by ")
    assert with_baseline[1].startswith("metric\tvalue\t95 % interval\tTF-IDF + logistic regression\tmajority label (")
    assert without[0] == "metric\tvalue\t95 % interval"
    assert without[1].split("\t")[:2] == with_baseline[2].split("\t")[:2]
    assert "40 rows" in without
    assert without[-4] == "label\tprecision\trecall\tf1\tsupport"
    assert not any("TF-IDF" in line for line in without)


def test_it_changes_no_weights_and_no_resuming(base: Path, source: Source, tmp_path: Path) -> None:
    settings = replace(IDLE, learning_rate=1e-3, save_every=1)
    expected = weights(run_finetuning(source, base, tmp_path / "without", settings=replace(settings, baseline=False)))
    assert weights(run_finetuning(source, base, tmp_path / "with", settings=settings)) == expected
    with pytest.raises(Interrupted), interrupted_at(5):
        run_finetuning(source, base, tmp_path / "stopped", settings=settings)
    resumed = run_finetuning(source, base, tmp_path / "stopped", settings=replace(settings, baseline=False))
    assert weights(resumed) == expected
    assert "baseline" not in Run(resumed).results()


def test_runs_of_earlier_versions_are_resumed(base: Path, source: Source, tmp_path: Path) -> None:
    with pytest.raises(Interrupted), interrupted_at(5):
        run_finetuning(source, base, tmp_path / "run", settings=replace(IDLE, save_every=1))
    path = tmp_path / "run" / "run.json"
    recorded = json.loads(path.read_text("utf-8"))
    del recorded["baseline"]
    path.write_text(json.dumps(recorded), encoding="utf-8")
    run = run_finetuning(source, base, tmp_path / "run", settings=replace(IDLE, save_every=1))
    assert "baseline" in Run(run).results()


def test_a_baseline_that_fails_loses_no_model(
    base: Path, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Sequence[Any]:
        raise MemoryError("no memory\nleft")

    monkeypatch.setattr("cloze.train.finetuning.finetune.fit_baselines", fail)
    listener = Listener()
    run = run_finetuning(source, base, tmp_path / "run", settings=IDLE, progress=listener)
    assert Run(run).finished
    assert "baseline" not in Run(run).results()
    assert "no baseline: fitting it failed (MemoryError: no memory left); the model is unaffected" in listener.said


def test_a_search_fits_it_once(base: Path, source: Source, tmp_path: Path, fits: list[TaskData]) -> None:
    folder = search(source, base, tmp_path / "run", settings=IDLE, search_settings=SearchSettings(seeds=3))
    assert len(fits) == 1
    cells = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("cells/*/eval_results.json"))]
    assert [cell["baseline"]["accuracy"] for cell in cells] == [cells[0]["baseline"]["accuracy"]] * 3
    results = Run(folder).results()
    assert results["best_results"]["baseline"] in [cell["baseline"] for cell in cells]
    assert len(read_predictions(folder / "predictions.tsv")) == 40
    best = folder / "cells" / results["kept"] / "predictions.tsv"
    assert (folder / "predictions.tsv").read_bytes() == best.read_bytes()


def test_folds_and_estimators_fit_none(base: Path, source: Source, tmp_path: Path, fits: list[TaskData]) -> None:
    folds = replace(source, dev=None)
    folder = search(folds, base, tmp_path / "folds", settings=IDLE, search_settings=SearchSettings(folds=2))
    assert not list(folder.glob("predictions.tsv"))  # the final model is trained on all rows
    rows = make_rows(24)
    estimator = TextClassifier(str(base), epochs=1, max_length=16, learning_rate=1e-3)
    clone(estimator).fit([row["text"] for row in rows], [row["label"] for row in rows])
    assert fits == []


def test_predictions_are_recorded(base: Path, tmp_path: Path) -> None:
    rows = [{"text": f'{row["text"]}\tand\n"so" on', "label": row["label"]} for row in make_rows(40)]
    run = cloze.finetune("classify", rows, rows[:12], model=base, out=tmp_path / "run", baseline=False, **FAST)
    assert run.baseline is None
    recorded = read_predictions(run / "predictions.tsv")
    assert [row["text"] for row in recorded] == [row["text"] for row in rows[:12]]
    assert len((run / "predictions.tsv").read_text("utf-8").splitlines()) == 13
    assert run.predictions == [row | {"probability": float(row["probability"])} for row in recorded]
    again = prediction_rows(cloze.evaluate("classify", rows[:12], model=run))
    unplaced = [[{**row, "row": ""} for row in found] for found in (again, recorded)]
    assert unplaced[0] == unplaced[1]


FAST: dict[str, Any] = {"epochs": 1, "batch_size": 8, "max_length": 16, "learning_rate": 1e-3}


def test_evaluation_compares_with_the_rows_themselves(base: Path, source: Source, tmp_path: Path) -> None:
    run = run_finetuning(source, base, tmp_path / "run", settings=replace(IDLE, baseline=False))
    found = cloze.evaluate(run, replace(source, data=write(tmp_path / "odd.csv", make_rows(41, 2)), dev=None))
    assert found.baseline is not None
    assert found.baseline["name"] == "majority label (winter) of these rows"
    assert found.baseline["accuracy"] == pytest.approx(21 / 41)
    assert found.results()["baseline"] == found.baseline


def test_setting_is_recorded_but_not_compared() -> None:
    assert asdict(IDLE)["baseline"] is True


def test_search_compares_its_best_run(
    base: Path, source: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report of a search begins by stating that its best run is worse than the TF-IDF baseline."""
    run = search(source, base, tmp_path / "run", settings=IDLE, search_settings=SearchSettings(seeds=2))
    print_search(run, json=False)
    best = Run(run).results()["best"]
    assert capsys.readouterr().out.startswith(f"{best}: behind TF-IDF + logistic regression by ")
    baseline = cloze.FinetuneRun(run).baseline
    assert baseline is not None
    assert baseline["name"] == "TF-IDF + logistic regression"


def test_training_for_similarity_has_a_baseline(base: Path) -> None:
    rows = [{"text": row["text"], "pair": row["text"], "label": number % 2} for number, row in enumerate(make_rows(20))]
    common: dict[str, Any] = {"model": base, "pair": "pair", "epochs": 1, "max_length": 16, "progress": False}
    with cloze.finetune("similarity", rows, rows, **common) as run:
        assert run.baseline is not None
        assert run.baseline["name"] == "TF-IDF cosine"
        assert "TF-IDF cosine" in str(run)
    with cloze.finetune("similarity", rows, rows, baseline=False, **common) as run:
        assert run.baseline is None
