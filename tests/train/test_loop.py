import errno
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cloze.checkpoint import StateStore, TrainingState
from cloze.corpus.batches import PretrainingBatch
from cloze.errors import CheckpointError, ClozeError, ConfigError, DataError
from cloze.progress import Interrupted
from cloze.train.distributed import ProcessGroup
from cloze.train.loop import ObjectiveOutput, TrainerOptions, train
from cloze.train.optimization import Precision
from cloze.train.pretraining.objectives.masked import PretrainingObjective
from cloze.train.run import Run
from cloze.train.settings import Parallel
from tests.train.made import LOOP, Disturbed, Listener, Training, fingerprint, make_bert


class CrashError(Exception):
    """Stands for any failure that ends a process."""


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
    with pytest.raises(Interrupted, match="stopped and saved at step 5; run the same command to resume") as caught:
        training.go(Disturbed(training.source, 4, lambda: os.kill(os.getpid(), number)))
    assert caught.value.exit_code == code
    assert signal.getsignal(number) is before
    assert {path.name for path in training.run.store.folder.iterdir()} == {"lock", "step-00000003", "step-00000005"}
    assert (fingerprint(training.go()), training.losses()) == uninterrupted
    assert training.listener.said == ["resuming at step 5"]


@pytest.mark.parametrize(("forward", "step"), [(2, 0), (14, 3), (18, 4)])
def test_signal_between_the_parts_of_a_batch_leaves_the_step_undone(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forward: int, step: int
) -> None:
    settings = replace(LOOP, accumulate=4)
    whole = Training(data, tmp_path / "whole", settings)
    expected = fingerprint(whole.go()), whole.losses()
    done = interrupt_in_forward(forward, monkeypatch)
    training = Training(data, tmp_path / "run", settings)
    with pytest.raises(Interrupted, match=f"stopped and saved at step {step}; run the same command to resume"):
        training.go()
    assert len(done) == forward  # none of the later parts of the step ran
    monkeypatch.undo()
    assert (fingerprint(training.go()), training.losses()) == expected
    assert training.listener.said == ([f"resuming at step {step}"] if step else [])


class Pair(ProcessGroup):
    """The main rank of a process group of two, without a second process."""

    def __init__(self) -> None:
        super().__init__(0, 2)

    def barrier(self) -> None:
        """Do nothing; there is no other process."""

    def all_reduce(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def wrap(
        self, module: nn.Module, layers: Sequence[nn.Module], parallel: Parallel, *, unused: bool = False
    ) -> nn.Module:
        return module


def test_in_a_team_a_step_is_done_to_its_end(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = interrupt_in_forward(9, monkeypatch)
    training, options = Training(data, tmp_path / "run", replace(LOOP, accumulate=2)), TrainerOptions(group=Pair())
    objective = PretrainingObjective(make_bert(data), ("mlm", "nsp"), torch.device("cpu"))
    with pytest.raises(Interrupted, match="stopped and saved at step 5"):
        train(objective, training.source, training.settings, training.run, training.listener, options=options)
    assert len(done) == 10


def interrupt_in_forward(number: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Send SIGTERM in the n-th forward pass; return a list that grows with every pass."""
    forward, done = PretrainingObjective.forward, list[int]()

    def disturbed(
        objective: PretrainingObjective, batch: PretrainingBatch, totals: Mapping[str, int]
    ) -> ObjectiveOutput:
        done.append(len(done))
        if len(done) == number:
            os.kill(os.getpid(), signal.SIGTERM)
        return forward(objective, batch, totals)

    monkeypatch.setattr(PretrainingObjective, "forward", disturbed)
    return done


class Clock:
    """A clock that only advances on request."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def go_on(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(
    ("seconds", "saving", "every", "expected"),
    [
        (400.0, 0.0, 50, [3, 6, 9, 12]),
        (299.0, 0.0, 50, [4, 8, 12]),
        (400.0, 5000.0, 50, [3, 6, 9, 12]),  # the duration of a save does not bring the next one forward
        (400.0, 0.0, 2, [2, 4, 6, 8, 10, 12]),
        (50.0, 0.0, 50, [12]),
    ],
)
def test_slow_steps_are_saved_by_the_clock(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    uninterrupted: tuple[str, list[tuple[float, ...]]],
    seconds: float,
    saving: float,
    every: int,
    expected: list[int],
) -> None:
    clock, save, saved = Clock(), StateStore.save, list[int]()

    def slow(store: StateStore, state: TrainingState) -> None:
        clock.go_on(saving)
        saved.append(state.step)
        save(store, state)

    monkeypatch.setattr(StateStore, "save", slow)
    monkeypatch.setattr("cloze.train.loop.time", clock)
    training = Training(data, tmp_path / "run", replace(LOOP, save_every=every))
    source = training.source
    for step in range(12):
        source = Disturbed(source, step, partial(clock.go_on, seconds))
    assert (fingerprint(training.go(source)), training.losses()) == uninterrupted
    assert saved == expected


class Watching(Listener):
    """A listener that records the progress."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, int | None, bool]] = []

    def advance(self, stage: str, done: int, total: int | None, **figures: float) -> None:
        assert stage == "training"
        self.seen.append((done, total, "loss" in figures))


def test_the_bar_moves_with_every_step(
    data: Path, tmp_path: Path, uninterrupted: tuple[str, list[tuple[float, ...]]]
) -> None:
    training = Training(data, tmp_path / "run")
    training.listener = listener = Watching()
    training.go()
    assert listener.seen == [(step, 12, True) for step in range(1, 13)]
    assert training.losses() == uninterrupted[1]


def test_signal_in_the_last_step_changes_nothing(
    data: Path, tmp_path: Path, uninterrupted: tuple[str, list[tuple[float, ...]]]
) -> None:
    training = Training(data, tmp_path / "run")
    objective = training.go(Disturbed(training.source, 11, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    assert (fingerprint(objective), training.losses()) == uninterrupted


def test_signal_in_the_last_save_changes_nothing(
    data: Path,
    tmp_path: Path,
    uninterrupted: tuple[str, list[tuple[float, ...]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save = StateStore.save

    def disturbed(store: StateStore, state: TrainingState) -> None:
        if state.step == 12:
            os.kill(os.getpid(), signal.SIGINT)
        save(store, state)

    monkeypatch.setattr(StateStore, "save", disturbed)
    training = Training(data, tmp_path / "run")
    assert (fingerprint(training.go()), training.losses()) == uninterrupted
    assert {path.name for path in training.run.store.folder.iterdir()} == {"lock", "step-00000009", "step-00000012"}


def test_damaged_checkpoint_costs_steps_and_no_more(
    data: Path, tmp_path: Path, uninterrupted: tuple[str, list[tuple[float, ...]]]
) -> None:
    training = Training(data, tmp_path / "run")
    with pytest.raises(CrashError):
        training.go(Disturbed(training.source, 8, crash))
    weights = training.run.store.folder / "step-00000006" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert (fingerprint(training.go()), training.losses()) == uninterrupted
    damage, resumed = training.listener.said
    assert damage == f"{weights}: does not match its manifest; falling back to the checkpoint before it"
    assert resumed == "resuming at step 3"


def test_with_every_checkpoint_damaged_nothing_is_begun_anew_unasked(
    data: Path, tmp_path: Path, uninterrupted: tuple[str, list[tuple[float, ...]]]
) -> None:
    training = Training(data, tmp_path / "run")
    with pytest.raises(CrashError):
        training.go(Disturbed(training.source, 8, crash))
    folders = sorted(training.run.store.folder.glob("step-*"))
    for folder in folders:
        (folder / "state.json").write_bytes(b"")
    losses = training.losses()
    with pytest.raises(
        CheckpointError, match=r"step-00000006/.*step-00000003/.* intact: .* start over with fresh=True"
    ):
        training.go()
    assert (sorted(training.run.store.folder.glob("step-*")), training.losses()) == (folders, losses)
    assert training.listener.said == []
    Run.open(training.folder, {"like": "this"}, fresh=True)
    assert (fingerprint(training.go()), training.losses()) == uninterrupted


class Poisoned(nn.Module):
    """A single weight with a finite loss, unless a batch makes it invalid."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[2.0]]))

    def forward(self, batch: "Number", totals: Mapping[str, int]) -> ObjectiveOutput:
        return ObjectiveOutput((self.weight * batch.value).sqrt().sum() / totals["numbers"])


@dataclass(frozen=True)
class Number:
    """A batch that consists of one number."""

    value: Tensor
    counts: Mapping[str, int] = field(default_factory=lambda: {"numbers": 1})
    token_count: int = 1


class Numbers:
    """Batches of one number, with a different number at some steps."""

    def __init__(self, poison: float, steps: range) -> None:
        self.poison, self.steps = poison, steps

    def at(self, step: int, part: int = 0, parts: int = 1, progress: float = 0.0) -> Number:
        return Number(torch.tensor(self.poison if step in self.steps else 1.0))


# The root of -2 is NaN; the root of 0 is finite, but its gradient is infinite.
@pytest.mark.parametrize(("poison", "message"), [(-1.0, "the loss is nan"), (0.0, "the gradient's norm is (inf|nan)")])
def test_nothing_that_is_not_finite_is_kept(tmp_path: Path, poison: float, message: str) -> None:
    run = Run.open(tmp_path / "run", {})
    settings = replace(LOOP, save_every=1, steps=30)
    for _ in range(2):  # the same command ends in the same way, from the same checkpoint
        with pytest.raises(DataError, match=f"step 12: {message}, for the 5th time in a row; the last checkpoint is"):
            train(Poisoned(), Numbers(poison, range(7, 30)), settings, run, Listener())
        state = run.store.newest()
        assert state is not None
        assert state.step == 7
        assert torch.isfinite(state.model["weight"]).all()


@pytest.mark.parametrize("poison", [-1.0, 0.0, 1e4])
def test_a_bad_batch_costs_its_own_step_and_nothing_more(tmp_path: Path, poison: float) -> None:
    run, listener, objective = Run.open(tmp_path / "run", {}), Listener(), Poisoned()
    settings = replace(LOOP, save_every=1, steps=30, log_every=1, learning_rate=1e-6)
    train(objective, Numbers(poison, range(25, 27)), settings, run, listener)
    assert [line.partition(":")[0] for line in listener.said] == ["step 26", "step 27"]
    assert all(line.endswith("batch skipped, weights unchanged") for line in listener.said)
    assert float(objective.weight.detach()) == pytest.approx(2.0, abs=1e-3)
    assert run.metrics()[-1]["tokens_seen"] == 28


def test_evaluation_sees_the_model_at_rest_and_leaves_no_trace(
    data: Path, tmp_path: Path, uninterrupted: tuple[str, list[tuple[float, ...]]]
) -> None:
    training = Training(data, tmp_path / "run", replace(LOOP, evaluate_every=4))
    objective = PretrainingObjective(make_bert(data), ("mlm", "nsp"), torch.device("cpu"))
    modes: list[bool] = []

    def evaluate(pause: Callable[[], None]) -> dict[str, float]:
        pause()
        modes.append(objective.training)
        torch.rand(3)  # evaluation may draw random numbers without affecting training
        return {"held_out_loss": float(len(modes))}

    train(objective, training.source, training.settings, training.run, training.listener, evaluate)
    assert modes == [False, False, False]
    assert fingerprint(objective) == uninterrupted[0]
    measured = [(row["step"], row["held_out_loss"]) for row in training.run.metrics() if "held_out_loss" in row]
    assert measured == [(4, 1.0), (8, 2.0), (12, 3.0)]


def test_signal_in_an_evaluation_leaves_it_for_the_next_time(
    data: Path, tmp_path: Path, uninterrupted: tuple[str, list[tuple[float, ...]]]
) -> None:
    training = Training(data, tmp_path / "run", replace(LOOP, evaluate_every=4))
    evaluations: list[int] = []

    def evaluate(pause: Callable[[], None]) -> dict[str, float]:
        evaluations.append(1)
        if len(evaluations) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        pause()
        return {"held_out_loss": 0.5}

    def go() -> nn.Module:
        objective = PretrainingObjective(make_bert(data), ("mlm", "nsp"), torch.device("cpu"))
        train(objective, training.source, training.settings, training.run, training.listener, evaluate)
        return objective

    with pytest.raises(Interrupted, match="stopped and saved at step 4; run the same command to resume") as caught:
        go()
    assert caught.value.exit_code == 143
    objective = go()
    assert fingerprint(objective) == uninterrupted[0]
    measured = [row["step"] for row in training.run.metrics() if "held_out_loss" in row]
    assert measured == [4, 8, 12]


def test_hours_end_a_run_properly(data: Path, tmp_path: Path) -> None:
    training = Training(data, tmp_path / "run", replace(LOOP, steps=None, hours=3 / 3600, log_every=1))
    training.go()
    rows = training.run.metrics()
    assert rows[-1]["seconds"] >= 3
    assert 0 < rows[-1]["learning_rate"] < 0.5 * max(row["learning_rate"] for row in rows)
    state = training.run.store.newest()
    assert state is not None
    assert state.step == rows[-1]["step"]


def test_measurements_that_cannot_be_written_are_told(tmp_path: Path) -> None:
    run = Run.open(tmp_path / "run", {})
    (run.folder / "metrics.jsonl").mkdir()
    message = (
        r"metrics\.jsonl: cannot be written \(Is a directory\); free some space and run the same command to resume$"
    )
    with pytest.raises(ClozeError, match=message):
        run.log(1, loss=2.0)


def test_measurements_outlive_a_rewind_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.open(tmp_path / "run", {})
    for step in (1, 2, 3):
        run.log(step, loss=2.0)

    def fail(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("cloze.files.flush", fail)
    with pytest.raises(ClozeError, match=r"metrics\.jsonl: cannot be written \(No space left on device\)"):
        run.rewind(2)
    assert [row["step"] for row in run.metrics()] == [1, 2, 3]
    monkeypatch.undo()
    run.rewind(2)
    assert [row["step"] for row in run.metrics()] == [1, 2]


def test_a_run_killed_at_its_very_start_is_begun_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / f".run.json.{'0' * 16}.cloze-tmp").write_text("{", encoding="utf-8")
    assert Run.open(folder, {"like": "this"}).folder == folder
    assert sorted(path.name for path in folder.iterdir()) == ["run.json"]
    (tmp_path / "others").mkdir()
    for name in (f".run.json.{'0' * 16}.cloze-tmp", "run.json.tmp"):
        (tmp_path / "others" / name).touch()
    with pytest.raises(ConfigError, match="exists but is not a run; choose another out"):
        Run.open(tmp_path / "others", {}, fresh=True)


def test_a_deletion_that_is_cut_off_leaves_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.open(tmp_path / "run", {"like": "this"})
    run.log(1, loss=2.0)
    run.store.folder.mkdir()

    def fail(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("cloze.train.run.shutil.rmtree", fail)
    with pytest.raises(ConfigError, match=r"run: cannot be written \(Input/output error\); choose another out"):
        Run.open(tmp_path / "run", {"like": "that"}, fresh=True)
    monkeypatch.undo()
    Run.open(tmp_path / "run", {"like": "that"}, fresh=True)
    assert [path.name for path in run.folder.iterdir()] == ["run.json"]


def test_a_stop_after_a_bad_batch_loses_nothing(tmp_path: Path) -> None:
    run, source = Run.open(tmp_path / "run", {}), Numbers(-1.0, range(7, 9))
    settings = replace(LOOP, save_every=50, steps=30)
    disturbed = Disturbed(source, 7, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted, match="stopped and saved at step 8; run the same command to resume"):
        train(Poisoned(), disturbed, settings, run, Listener())
    state = run.store.newest()
    assert state is not None
    assert (state.step, state.figures["guard"]["bad"]) == (8, 1)
    whole, resumed = Poisoned(), Poisoned()
    train(resumed, source, settings, run, Listener())
    train(whole, source, settings, Run.open(tmp_path / "whole", {}), Listener())
    assert torch.equal(whole.weight, resumed.weight)


def test_a_checkpoint_that_was_due_at_a_bad_batch_comes_after_it(tmp_path: Path) -> None:
    run = Run.open(tmp_path / "run", {})

    def look(step: int) -> None:
        state = run.store.newest()
        steps.append((step, state.step if state else 0))

    steps: list[tuple[int, int]] = []
    source = Numbers(-1.0, range(9, 11))
    for step in (11, 12):
        source = Disturbed(source, step, partial(look, step))  # type: ignore[assignment]
    train(Poisoned(), source, replace(LOOP, save_every=10, steps=30), run, Listener())
    assert steps == [(11, 0), (12, 12)]


def test_a_resumed_run_keeps_precision_and_threads(tmp_path: Path) -> None:
    """A resumed run uses the recorded precision and threads, even if new timings would choose others."""
    run = Run.open(tmp_path / "run", {})
    calls = []

    class Watched(Poisoned):
        def forward(self, batch: Number, totals: Mapping[str, int]) -> ObjectiveOutput:
            calls.append(torch.is_autocast_enabled("cpu"))
            return super().forward(batch, totals)

    source = Disturbed(Numbers(1.0, range(0)), 3, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted):
        train(
            Watched(),
            source,
            replace(LOOP, steps=6),
            run,
            Listener(),
            options=TrainerOptions(precision=Precision(bf16=True)),
        )
    train(
        Watched(),
        source,
        replace(LOOP, steps=6),
        run,
        Listener(),
        options=TrainerOptions(precision=Precision(bf16=False)),
    )
    assert calls == [True] * 6
