"""Advice after fine-tuning: each advice for a matching history, and none after a good run."""

import json
from pathlib import Path
from typing import Any

import pytest

from cloze.tasks.reports import Confusion, Evaluation
from cloze.tasks.rows import Source
from cloze.train.finetuning.defaults import TrainingDefaults, advise
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.settings import FinetuneSettings, ResolvedSettings
from tests.train.finetuning.test_finetune import LEARNING, make_rows, write
from tests.train.made import Listener

DEFAULTS = TrainingDefaults(learning_rate=1e-4, epochs=3, batch_size=32)
SETTINGS = ResolvedSettings(learning_rate=1e-4)
CONVERGED = [0.7, 0.6, 0.4, 0.35, 0.31, 0.3, 0.3, 0.29]
FALLING = [0.7, 0.69, 0.65, 0.64, 0.55, 0.54, 0.41, 0.4]


def advice(losses: list[float], predictions: str = "abababab", targets: str = "abababab", **settings: Any) -> list[str]:
    history = [{"step": 10 * number, "loss": loss} for number, loss in enumerate(losses, 1)]
    evaluation = Evaluation({"accuracy": 0.5}, list(predictions), [], list(targets), confusion=Confusion((), []))
    return advise(history, evaluation, ResolvedSettings(**({"learning_rate": 1e-4} | settings)), DEFAULTS, "accuracy")


def test_silent_after_a_good_run() -> None:
    assert advice(CONVERGED) == []
    # The score falls at the end, but the rows are learned.
    assert advice([0.7, 0.6, 0.4, 0.3, 0.12, 0.11, 0.02, 0.01]) == []
    # The difference is within the noise between batches.
    assert advice([0.7, 0.7, 0.65, 0.6, 0.4, 0.8, 0.75, 0.35]) == []


def test_too_short_a_history_tells_nothing() -> None:
    assert advice(FALLING[1:]) == []
    assert advice([]) == []


def test_loss_that_is_still_falling() -> None:
    expected = (
        "the training loss was still falling at the end (from 0.545 to 0.405 in the last quarter): "
        "try epochs=6 (--epochs 6), or learning_rate=0.0002 (--learning-rate 0.0002)"
    )
    assert advice(FALLING) == [expected]


def test_no_more_epochs_if_the_dev_score_is_past_its_best() -> None:
    history = [{"step": number, "loss": loss} for number, loss in enumerate(FALLING)]
    scores = [{"step": 3, "dev_accuracy": 0.8}, {"step": 6, "dev_accuracy": 0.7}]
    assert advise([*history, *scores], None, SETTINGS, DEFAULTS, "accuracy") == []
    assert advise([*history, *scores[::-1]], None, SETTINGS, DEFAULTS, "accuracy") != []


@pytest.mark.parametrize(("rate", "lower"), [(1e-3, "0.0001"), (1.5e-4, "5e-05")])
def test_loss_that_rose(rate: float, lower: str) -> None:
    remedy = f"learning_rate={lower} (--learning-rate {lower})"
    expected = f"the training loss rose from 0.7 to 2.05, so the training diverged: try {remedy}"
    assert advice([0.7, 0.7, 0.9, 0.9, 1.5, 1.6, 2.0, 2.1], learning_rate=rate) == [expected]
    assert "rose from 0.7 to nan" in advice([0.7] * 7 + [float("nan")])[0]


@pytest.mark.parametrize(
    ("settings", "targets", "remedy"),
    [
        ({}, "abababab", "epochs=6 (--epochs 6), or learning_rate=5e-05 (--learning-rate 5e-05)"),
        ({"learning_rate": 1e-3}, "abababab", "learning_rate=0.0001 (--learning-rate 0.0001)"),
        ({"learning_rate": 1e-5}, "abababab", "learning_rate=0.0001 (--learning-rate 0.0001)"),
        ({}, "aaaaaaab", "class_weights='balanced' (--class-weights balanced)"),
        (
            {"class_weights": "balanced"},
            "aaaaaaab",
            "epochs=6 (--epochs 6), or learning_rate=5e-05 (--learning-rate 5e-05)",
        ),
    ],
)
def test_one_label_for_all_rows(settings: dict[str, Any], targets: str, remedy: str) -> None:
    expected = f"the model predicts 'a' for 8 of 8 dev rows: try {remedy}"
    assert advice(FALLING, "aaaaaaaa", targets, **settings) == [expected]


def test_one_label_for_nearly_all_rows() -> None:
    assert "'a' for 39 of 40 dev rows" in advice(CONVERGED, "a" * 39 + "b", "ab" * 20)[0]
    # The labels of the rows have the same distribution as the predictions.
    assert advice(CONVERGED, "a" * 39 + "b", "a" * 39 + "b") == []
    assert advice(CONVERGED, "a" * 8, "a" * 8) == []
    # There are too few rows for advice.
    assert advice(CONVERGED, "a" * 7, "a" * 4 + "b" * 3) == []


def test_reported_and_kept_with_the_scores(base: Path, tmp_path: Path) -> None:
    source = Source("classify", write(tmp_path / "train.csv", make_rows(40)), write(tmp_path / "dev.csv", make_rows(8)))
    listener = Listener()
    settings = FinetuneSettings(epochs=1, batch_size=8, max_length=16, learning_rate=1e-9)
    run = run_finetuning(source, base, tmp_path / "run", settings=settings, progress=listener)
    results = json.loads((run / "eval_results.json").read_text(encoding="utf-8"))
    assert "for 8 of 8 dev rows: try learning_rate=0.001 (--learning-rate 0.001)" in results["advice"][0]
    assert results["advice"][0] in listener.said


def test_nothing_is_kept_of_a_good_run(base: Path, tmp_path: Path) -> None:
    source = Source(
        "classify", write(tmp_path / "train.csv", make_rows(160)), write(tmp_path / "dev.csv", make_rows(8))
    )
    run = run_finetuning(source, base, tmp_path / "run", settings=LEARNING)
    assert "advice" not in json.loads((run / "eval_results.json").read_text(encoding="utf-8"))
