from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloze import hardware
from cloze.checkpoint import load_folder
from cloze.errors import ConfigError, DataError
from cloze.hardware import AvailableMemory
from cloze.model.cost import count_flops
from cloze.progress import Silent
from cloze.train.pretraining import plan as module
from cloze.train.pretraining.phases import flops_per_token
from cloze.train.pretraining.plan import expected_loss, plan, recorded_runs
from cloze.train.pretraining.pretrain import pretrain
from cloze.train.settings import PretrainSettings

RUNS = [
    {"name": "small one", "parameters": 1_000, "points": [[100, 6.0], [10_000, 4.0]]},
    {"name": "large one", "parameters": 1_000_000, "points": [[100, 5.0], [10_000, 3.0]]},
]
SETTINGS = PretrainSettings(preset="tiny", batch_size=4, max_length=24, steps=1000)


def test_expected_loss_is_that_of_the_nearest_size_for_the_same_text() -> None:
    cases = [(2_000, 1_000, 5.0, "small one"), (500_000, 10_000, 3.0, "large one"), (500_000, 10**9, 3.0, "large one")]
    for parameters, tokens, loss, name in cases:
        found = expected_loss(parameters, tokens, RUNS)
        assert found is not None
        assert found.loss == pytest.approx(loss)
        assert (found.like, found.bound) == (name, "upper" if tokens > 10_000 else None)
    assert expected_loss(500_000, 10**9, []) is None


def test_less_text_than_was_recorded_gives_a_bound_from_below() -> None:
    for tokens, bound in ((1, "lower"), (99, "lower"), (100, None), (10_000, None), (10_001, "upper")):
        found = expected_loss(2_000, tokens, RUNS)
        assert found is not None
        assert (found.loss, found.bound) == (4.0 if tokens >= 10_000 else 6.0, bound)


def test_expected_loss_never_rises_with_more_text() -> None:
    """The expected loss never rises with more text, although recorded losses do after the learning rate is raised."""
    for run in recorded_runs():
        tokens = range(run["points"][0][0], run["points"][-1][0], 50_000)
        found = [expected_loss(run["parameters"], seen, [run]) for seen in tokens]
        losses = [one.loss for one in found if one is not None]
        assert losses == sorted(losses, reverse=True)


def test_recorded_runs_fall_and_are_in_order() -> None:
    for run in recorded_runs():
        tokens, losses = zip(*run["points"], strict=True)
        assert list(tokens) == sorted(set(tokens))
        assert losses[0] > losses[-1]


def test_broken_record_is_reported(tmp_path: Path) -> None:
    (tmp_path / "runs.json").write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match=r"runs.json: cannot be read .*; reinstall cloze"):
        recorded_runs(tmp_path / "runs.json")


def test_plan_adds_up(data: Path, tmp_path: Path) -> None:
    planned = plan(data, settings=SETTINGS)
    assert planned.steps == 1000
    assert planned.hours == pytest.approx(1000 * planned.seconds_per_step / 3600)
    assert 4 * 12 < planned.tokens_per_step <= 4 * 24
    assert planned.tokens == 1000 * planned.tokens_per_step
    assert planned.epochs > 1
    assert 0 < planned.share_of_peak < 1.5
    assert planned.estimate.weight_bytes == 4 * planned.estimate.parameters
    # The peak includes the interpreter and libraries (a few hundred MB).
    assert planned.estimate.total_bytes < planned.peak_bytes < planned.estimate.total_bytes + 8 * 2**30
    assert not list(tmp_path.iterdir())


def test_hours_become_steps(data: Path) -> None:
    planned = plan(data, settings=PretrainSettings(preset="tiny", batch_size=4, max_length=24, hours=0.01))
    assert planned.hours == pytest.approx(0.01, rel=0.1)
    assert planned.steps == round(36 / planned.seconds_per_step)


def test_a_second_phase_is_timed_too(data: Path) -> None:
    settings = PretrainSettings(preset="tiny", batch_size=8, max_length=16, long_length=32, long_share=0.5, steps=10)
    planned = plan(data, settings=settings)
    assert (
        planned.estimate.activation_bytes
        > plan(data, settings=PretrainSettings(preset="tiny", batch_size=4, max_length=16)).estimate.activation_bytes
    )
    assert planned.hours == pytest.approx(10 * planned.seconds_per_step / 3600)


def test_work_of_both_phases_counts_by_their_tokens(base: Path) -> None:
    bert = load_folder(base).model
    settings = PretrainSettings(batch_size=8, max_length=16, long_length=32)
    short, long = (count_flops(bert.config, bert.head_names, length) for length in (16, 32))
    assert short < long
    assert flops_per_token(bert, PretrainSettings(max_length=16)) == short
    assert flops_per_token(bert, PretrainSettings(max_length=32)) == long
    assert flops_per_token(bert, replace(settings, long_share=0.25)) == pytest.approx(0.75 * short + 0.25 * long)
    # Half of the steps have three quarters of the tokens.
    grown = PretrainSettings(phases="16x8:0.5,32x12:0.5")
    assert flops_per_token(bert, grown) == pytest.approx(0.25 * short + 0.75 * long)


def test_share_of_the_peak_is_that_of_both_phases(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        module, "_phase", lambda *arguments: (2.0, 100.0) if arguments[4].max_length < 32 else (4.0, 300.0)
    )
    monkeypatch.setattr(module, "measure_peak", lambda _: 1e9)
    monkeypatch.setattr(module, "flops_per_token", lambda *_: 1e6)
    settings = PretrainSettings(preset="tiny", batch_size=8, max_length=16, long_length=32, long_share=0.5, steps=10)
    planned = plan(data, settings=settings)
    assert (planned.seconds_per_step, planned.tokens_per_step) == (3.0, 200)
    assert planned.share_of_peak == pytest.approx(200 / 3 * 1e6 / 1e9)


def test_further_training_has_no_expected_loss(data: Path, base: Path) -> None:
    assert plan(data, model=base, settings=SETTINGS).expected is None


LARGE = PretrainSettings(preset="tiny", batch_size=64, max_length=24, steps=10)


def test_a_large_step_is_worked_out_from_a_part_of_it(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    compute = module._compute_gradients

    def counted(objective: Any, optimizer: Any, parts: Any, precision: Any) -> None:
        rows.append(sum(len(part.ids) for part in parts))
        compute(objective, optimizer, parts, precision)

    monkeypatch.setattr(module, "_compute_gradients", counted)
    monkeypatch.setattr(module, "TIMED_TOKENS", 100)
    planned = plan(data, settings=LARGE)
    accumulated = plan(data, settings=replace(LARGE, accumulate=32))
    assert 0 < max(rows) <= 5
    monkeypatch.setattr(module, "TIMED_TOKENS", 10_000)
    whole = plan(data, settings=LARGE)
    assert rows[-1] == 64
    for worked_out in (planned, accumulated):
        assert worked_out.tokens_per_step == pytest.approx(whole.tokens_per_step, rel=0.2)
        assert worked_out.seconds_per_step > whole.seconds_per_step / 10
    assert planned.estimate == whole.estimate
    # The peak includes memory that the process used before, so only the remaining part can be compared.
    assert planned.peak_bytes > planned.estimate.activation_bytes


def test_excess_memory_is_reported_by_plan_and_rejected_by_pretrain(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = AvailableMemory(30 * 2**20, "a made limit")
    for place in (module, hardware):
        monkeypatch.setattr(place, "available_memory", lambda: there)
    monkeypatch.setattr(module, "resident_memory", lambda: 0)
    monkeypatch.setattr(module, "TIMED_TOKENS", 100)
    messages: list[str] = []
    progress = Silent()
    monkeypatch.setattr(progress, "say", messages.append)
    plan(data, settings=LARGE, progress=progress)
    assert any("but 30 MB is available here (a made limit); reduce it with --accumulate" in line for line in messages)
    message = (
        r"a step of 64 sequences of 24 tokens in 1 parts \(parameters and moments \d+ MB, states \d+ MB\) needs "
        r"about \d+ MB of memory, but 30 MB is available \(a made limit\); use a smaller --batch-size, more parts "
    )
    with pytest.raises(ConfigError, match=message):
        pretrain(data, tmp_path / "run", settings=LARGE)
    assert not (tmp_path / "run").exists()
    pretrain(data, tmp_path / "run", settings=replace(LARGE, accumulate=32, steps=1))
    with pytest.raises(ConfigError, match="but 30 MB is available"):
        plan(data, settings=replace(LARGE, preset="small"))
