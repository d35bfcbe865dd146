import pytest

from cloze.train.optimization import Schedule


def rates(schedule: Schedule, steps: int, seconds: float = 0.0) -> list[float]:
    return [schedule.rate(step, seconds) for step in range(steps)]


def test_rate_rises_then_falls() -> None:
    schedule = Schedule(steps=10, hours=None, warmup=0.4, peak=1.0)
    assert rates(schedule, 11) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0.0])


def test_rate_without_warmup_starts_at_the_peak() -> None:
    assert rates(Schedule(4, None, 0.0, 0.8), 4) == pytest.approx([0.8, 0.6, 0.4, 0.2])


def test_hours_end_the_schedule_whatever_the_step() -> None:
    schedule = Schedule(steps=None, hours=0.5, warmup=0.1, peak=1.0)
    assert schedule.progress(7, 900.0) == pytest.approx(0.5)
    assert schedule.progress(7, 1800.0) >= 1
    assert schedule.rate(7, 90.0) == pytest.approx(0.5, abs=0.02)
    assert schedule.rate(7, 180.0) == pytest.approx(1.0)
    assert schedule.rate(7, 990.0) == pytest.approx(0.5)
    assert schedule.rate(7, 2000.0) == 0.0


def test_the_first_step_by_the_clock_moves() -> None:
    assert Schedule(None, 1.0, 0.1, 1.0).rate(0, 0.0) > 0


@pytest.mark.parametrize(("step", "seconds", "progress"), [(5, 0.0, 0.5), (5, 1800.0, 0.5), (2, 2700.0, 0.75)])
def test_whichever_ends_first_counts(step: int, seconds: float, progress: float) -> None:
    assert Schedule(10, 1.0, 0.1, 1.0).progress(step, seconds) == pytest.approx(progress)


def test_expected_steps() -> None:
    assert Schedule(10, None, 0.1, 1.0).expected_steps(3, 50.0) == 10
    assert Schedule(None, 1.0, 0.1, 1.0).expected_steps(0, 0.0) is None
    assert Schedule(None, 1.0, 0.1, 1.0).expected_steps(100, 360.0) == 1000
    assert Schedule(5000, 1.0, 0.1, 1.0).expected_steps(100, 360.0) == 1000
    assert Schedule(500, 1.0, 0.1, 1.0).expected_steps(100, 360.0) == 500
