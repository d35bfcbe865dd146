import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cloze.errors import DataError
from cloze.train.interrupts import Interrupted
from cloze.train.loop import Outcome, train
from cloze.train.pretrain import PretrainingObjective
from cloze.train.run import Run
from tests.train.made import LOOP, Disturbed, Listener, Training, fingerprint, make_bert


class CrashError(Exception):
    """Stands for whatever ends a process."""


def crash() -> None:
    raise CrashError


@pytest.fixture(scope="module")
def uninterrupted(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[tuple[float, ...]]]:
    training = Training(data, tmp_path_factory.mktemp("whole") / "run")
    weights = fingerprint(training.go())
    assert [row[0] for row in training.losses()] == [5, 10, 12]
    return weights, training.losses()


@pytest.mark.parametrize("steps", [(1,), (3,), (4,), (7, 10), (11, 11, 11)])
def test_resumed_equals_uninterrupted(
    data: Path, tmp_path: Path, uninterrupted: tuple[str, list[tuple[float, ...]]], steps: tuple[int, ...]
) -> None:
    training = Training(data, tmp_path / "run")
    for step in steps:
        with pytest.raises(CrashError):
            training.go(Disturbed(training.source, step, crash))
    assert (fingerprint(training.go()), training.losses()) == uninterrupted
    last = steps[-1] // 3 * 3
    assert training.listener.said[-1:] == ([f"resuming at step {last}"] if last else [])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_saves_and_stops(
    data: Path,
    tmp_path: Path,
    uninterrupted: tuple[str, list[tuple[float, ...]]],
    number: signal.Signals,
    code: int,
) -> None:
    training = Training(data, tmp_path / "run")
    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match="stopped and saved at step 5; the same command goes on") as caught:
        training.go(Disturbed(training.source, 4, lambda: os.kill(os.getpid(), number)))
    assert caught.value.exit_code == code
    assert signal.getsignal(number) is before
    assert [path.name for path in training.run.store.folder.iterdir()] == ["step-00000005"]
    assert (fingerprint(training.go()), training.losses()) == uninterrupted
    assert training.listener.said == ["resuming at step 5"]


def test_signal_in_the_last_step_changes_nothing(
    data: Path, tmp_path: Path, uninterrupted: tuple[str, list[tuple[float, ...]]]
) -> None:
    training = Training(data, tmp_path / "run")
    objective = training.go(Disturbed(training.source, 11, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    assert (fingerprint(objective), training.losses()) == uninterrupted


def test_damaged_checkpoint_costs_steps_and_no_more(
    data: Path, tmp_path: Path, uninterrupted: tuple[str, list[tuple[float, ...]]]
) -> None:
    training = Training(data, tmp_path / "run")
    with pytest.raises(CrashError):
        training.go(Disturbed(training.source, 8, crash))
    weights = training.run.store.folder / "step-00000006" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert (fingerprint(training.go()), training.losses()) == uninterrupted
    assert "does not match its manifest" in training.listener.said[0]


class Poisoned(nn.Module):
    """One weight, and a loss that is fine until a batch says otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[2.0]]))

    def forward(self, batch: Tensor) -> Outcome:
        return Outcome((self.weight * batch).sqrt().sum(), tokens=1)


class Numbers:
    """One number, and another from a step on."""

    def __init__(self, poison: float) -> None:
        self.poison = poison

    def at(self, step: int) -> Tensor:
        return torch.tensor(self.poison if step >= 7 else 1.0)


# The root of -2 is not a number; that of 0 is, but its slope is infinite.
@pytest.mark.parametrize(("poison", "message"), [(-1.0, "the loss is nan"), (0.0, "the gradient's norm is (inf|nan)")])
def test_nothing_that_is_not_finite_is_kept(tmp_path: Path, poison: float, message: str) -> None:
    run = Run.open(tmp_path / "run", {})
    settings = replace(LOOP, save_every=1)
    for _ in range(2):  # the same command ends the same way, from the same checkpoint
        with pytest.raises(DataError, match=f"step 8: {message}; the last checkpoint is from before it: lower --rate"):
            train(Poisoned(), Numbers(poison), settings, run, Listener())
        state = run.store.newest()
        assert state is not None
        assert state.step == 7
        assert torch.isfinite(state.model["weight"]).all()


def test_evaluation_sees_the_model_at_rest_and_leaves_no_trace(
    data: Path, tmp_path: Path, uninterrupted: tuple[str, list[tuple[float, ...]]]
) -> None:
    training = Training(data, tmp_path / "run", replace(LOOP, evaluate_every=4))
    objective = PretrainingObjective(make_bert(data), torch.device("cpu"))
    modes: list[bool] = []

    def evaluate() -> dict[str, float]:
        modes.append(objective.training)
        torch.rand(3)  # it may draw random numbers without disturbing the training
        return {"held_out_loss": float(len(modes))}

    train(objective, training.source, training.settings, training.run, training.listener, evaluate)
    assert modes == [False, False, False]
    assert fingerprint(objective) == uninterrupted[0]
    measured = [(row["step"], row["held_out_loss"]) for row in training.run.metrics() if "held_out_loss" in row]
    assert measured == [(4, 1.0), (8, 2.0), (12, 3.0)]
