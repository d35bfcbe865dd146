"""The shared training driver and early stopping."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cloze.errors import CheckpointError
from cloze.train import driver
from cloze.train.driver import EarlyStopping, TrainingParts, run_training
from cloze.train.finetuning.settings import ResolvedSettings
from cloze.train.optimization import Precision
from cloze.train.run import Run
from tests.train.made import Listener


class StubModel:
    """The only attribute of a model that the driver uses."""

    def __init__(self) -> None:
        self.bert = nn.Linear(1, 1).train()


def make_parts(calls: list[str]) -> TrainingParts:
    model: Any = StubModel()

    def record(name: str, result: Any = None) -> Any:
        calls.append(name)
        return result

    def finish(run: Run, settings: ResolvedSettings) -> None:
        calls.append(f"finish in {settings.precision}, {'train' if model.bert.training else 'eval'} mode")
        run.model_folder.mkdir()

    return TrainingParts(
        recorded={"command": "finetune"},
        settings=ResolvedSettings(),
        model=model,
        batches=lambda: record("batches"),
        objective=lambda: record("objective", nn.Identity()),
        metric="accuracy",
        score=dict,
        finish=finish,
    )


def test_driver_builds_trains_and_finishes_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def train(*_: Any) -> Precision:
        assert (tmp_path / "run" / "run.json").is_file(), "the run is opened first"
        calls.append("train")
        return Precision.choose("fp32", torch.device("cpu"))

    monkeypatch.setattr(driver, "train_with_evaluation", train)
    monkeypatch.setattr(driver, "require_step_memory", lambda *_: calls.append("memory"))
    listener = Listener()
    for _ in range(2):  # the second call finds a finished run
        assert run_training(make_parts(calls), tmp_path / "run", fresh=False, progress=listener) == tmp_path / "run"
    assert calls == ["batches", "objective", "memory", "train", "finish in fp32, eval mode"]
    assert len(listener.said) == 1
    assert "already finished" in listener.said[0]


def test_early_stopping_keeps_the_best_weights_and_stops_after_its_patience(tmp_path: Path) -> None:
    run = Run.open(tmp_path / "run", {"command": "finetune"})
    model = nn.Linear(1, 1, bias=False)
    stopping = EarlyStopping(run, model, "accuracy", patience=2)
    assert not stopping.should_stop()
    stops = []
    for step, score in enumerate((0.5, 0.75, 0.75, 0.625), start=1):
        nn.init.constant_(model.weight, float(step))
        stopping.update(score)
        run.log(step, dev_accuracy=score)
        # A new object reads the same state from the run, as after a restart.
        stops.append(EarlyStopping(run, model, "accuracy", patience=2).should_stop())
    assert stops == [False, False, False, True]
    stopping.restore_best()
    assert model.weight.item() == 2.0, "an equal score is no improvement"


def test_best_weights_that_were_changed_are_refused(tmp_path: Path) -> None:
    model, run = nn.Linear(3, 2), Run.open(tmp_path / "run", {})
    stopping = EarlyStopping(run, model, "accuracy", patience=1)
    stopping.update(0.5)
    weights = model.weight.detach().clone()
    nn.init.zeros_(model.weight)
    stopping.restore_best()
    assert torch.equal(model.weight, weights)
    content = bytearray(stopping.path.read_bytes())
    content[-1] ^= 1
    stopping.path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"best.safetensors: has changed since it was written"):
        stopping.restore_best()
