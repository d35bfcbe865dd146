"""The batching thread: every job gets its own results, whatever happens to others (T19 and T20 in short)."""

import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from typing import Any

import pytest

from cloze.errors import RequestError
from cloze.serve.batcher import FIRST_GUESS, AbandonedError, Batcher, Check
from cloze.serve.outcomes import Metrics, ModelFailedError, OverloadedError
from cloze.serve.queue import BatchKey, Job

KIND = BatchKey("embed")


class PanicError(BaseException):
    """Stands for a panic in a native library, which is not a subclass of ``Exception``."""


class Machine:
    """A model that squares numbers; some numbers make it fail. It can be paused, so that batches form."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go = threading.Event()
        self.go.set()
        self.ill = False
        self.probed = 0

    def compute(self, key: BatchKey, inputs: Sequence[Any], check: Check) -> list[Any]:
        self.go.wait(10)
        self.batches.append(list(inputs))
        for value, error in ((13, ValueError("unlucky")), (14, PanicError("panic")), (15, RequestError("too odd"))):
            if value in inputs:
                raise error
        return [ModelFailedError("no number") if value == 16 else value**2 for value in inputs]

    def probe(self) -> None:
        self.probed += 1
        if self.ill:
            raise ValueError("ill")


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def batcher(machine: Machine, metrics: Metrics) -> Iterator[Batcher]:
    made = Batcher("made", machine.compute, machine.probe, metrics, bound=1000, budget=100)
    made.start()
    yield made
    machine.go.set()
    made.drain(10)


def job(*values: int, seconds: float = 30) -> Job:
    return Job(KIND, values, [1] * len(values), time.monotonic() + seconds)


def failures(metrics: Metrics) -> float:
    return metrics.registry.get_sample_value("cloze_batch_failures_total", {"model": "made"}) or 0.0


def submit_together(batcher: Batcher, machine: Machine, jobs: list[Job]) -> None:
    """Submit jobs while the model is busy, so that they form one batch."""
    machine.go.clear()
    before = job(0)
    batcher.submit(before)
    while batcher.queue.tokens:
        time.sleep(0.001)
    for one in jobs:
        batcher.submit(one)
    machine.go.set()
    before.future.result(10)


def submit_all(batcher: Batcher, jobs: list[Job]) -> None:
    for one in jobs:
        batcher.submit(one)


def test_jobs_that_wait_are_computed_together(batcher: Batcher, machine: Machine) -> None:
    jobs = [job(1, 2), job(3), job(4, 5, 6)]
    submit_together(batcher, machine, jobs)
    assert [one.future.result(10) for one in jobs] == [[1, 4], [9], [16, 25, 36]]
    assert list(map(sorted, machine.batches)) == [[0], [1, 2, 3, 4, 5, 6]]


def test_answers_are_never_swapped(batcher: Batcher) -> None:
    chance = random.Random(3)
    jobs = [job(*(chance.randrange(17, 10**6) for _ in range(chance.randrange(1, 6)))) for _ in range(300)]
    threads = [threading.Thread(target=submit_all, args=(batcher, part)) for part in (jobs[::2], jobs[1::2])]
    for thread in threads:
        thread.start()
    assert all(one.future.result(10) == [value**2 for value in one.inputs] for one in jobs)


@pytest.mark.parametrize(
    ("value", "error", "counted"),
    [(13, ModelFailedError, 2), (14, ModelFailedError, 2), (15, RequestError, 0), (16, ModelFailedError, 1)],
    ids=["exception", "panic", "request", "not a number"],
)
def test_only_the_failing_job_gets_an_error(
    value: int, error: type[Exception], counted: int, batcher: Batcher, machine: Machine, metrics: Metrics
) -> None:
    jobs = [job(1, 2), job(3, value), job(4)]
    submit_together(batcher, machine, jobs)
    assert jobs[0].future.result(10) == [1, 4]
    assert jobs[2].future.result(10) == [16]
    with pytest.raises(error):
        jobs[1].future.result(10)
    assert failures(metrics) == counted  # once in the batch and once alone
    again = job(7)
    batcher.submit(again)
    assert again.future.result(10) == [49]


def test_cancelled_jobs_are_not_computed(batcher: Batcher, machine: Machine) -> None:
    machine.go.clear()
    jobs = [job(1), job(2), job(3)]
    batcher.submit(jobs[0])
    while batcher.queue.tokens:
        time.sleep(0.001)
    batcher.submit(jobs[1])
    batcher.submit(jobs[2])
    batcher.cancel(jobs[1])
    machine.go.set()
    assert jobs[2].future.result(10) == [9]
    with pytest.raises(CancelledError):
        jobs[1].future.result(10)
    assert machine.batches == [[1], [3]]


def test_overload_is_reported_with_a_retry_time(batcher: Batcher, machine: Machine) -> None:
    machine.go.clear()
    batcher.submit(job(1))
    while batcher.queue.tokens:
        time.sleep(0.001)
    batcher.submit(job(*range(20, 1020)))
    with pytest.raises(
        OverloadedError, match="1000 tokens wait for model 'made', but at most 1000 are allowed; try again in"
    ) as refusal:
        batcher.submit(job(1))
    assert refusal.value.retry_after is not None
    assert refusal.value.retry_after >= 1


def test_jobs_that_would_finish_late_are_rejected_immediately(machine: Machine, metrics: Metrics) -> None:
    soon = 10 / FIRST_GUESS  # ten tokens at the assumed initial speed
    batcher = Batcher("made", machine.compute, machine.probe, metrics, bound=1000, budget=100, within=soon)
    batcher.submit(job(*range(20, 60)))  # accepted regardless of its size, since nothing waits before it
    with pytest.raises(OverloadedError, match="40 tokens wait"):
        batcher.submit(job(1))
    batcher.start()
    batcher.drain(10)


def test_jobs_that_would_wait_too_long_are_rejected_immediately(machine: Machine, metrics: Metrics) -> None:
    patience = 10 / FIRST_GUESS
    batcher = Batcher("made", machine.compute, machine.probe, metrics, bound=1000, budget=100, patience=patience)
    batcher.submit(job(1, 2, 3, 4, 5))
    batcher.submit(job(*range(20, 60)))  # a job's own size is irrelevant: only five tokens wait before it
    with pytest.raises(
        OverloadedError, match=r"^45 tokens wait for model 'made', but at most 10 are allowed; try again in 1 s$"
    ):
        batcher.submit(job(1))
    batcher.start()
    batcher.drain(10)


def test_a_running_long_job_counts_as_one_turn(machine: Machine, metrics: Metrics) -> None:
    patience = 10 / FIRST_GUESS
    batcher = Batcher("made", machine.compute, machine.probe, metrics, bound=10**6, budget=100, patience=patience)
    machine.go.clear()
    batcher.start()
    for length, ahead in ((100, 0), (10**6, 200)):  # a batch of the usual size is finished soon
        long = Job(KIND, [1], [length], time.monotonic() + 30)
        batcher.submit(long)
        while not batcher._at_work:
            time.sleep(0.001)
        assert batcher.ahead() == ahead  # one turn is two batches
        assert batcher.ahead("another", 7) == min(ahead, 7)
        if ahead:
            with pytest.raises(
                OverloadedError, match=r"^201 tokens wait for model 'made', but at most \d+ are allowed; try again"
            ):
                batcher.submit(job(1))
        machine.go.set()
        long.future.result(10)
        while batcher._at_work:
            time.sleep(0.001)
        machine.go.clear()
    assert batcher.ahead() == 0
    batcher.submit(job(1))
    machine.go.set()
    assert batcher.drain(10)


class LongMachine(Machine):
    """A model that computes the number 1000 in many passes, until it is stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.at_work, self.stop = threading.Event(), threading.Event()
        self.passes = 0

    def compute(self, key: BatchKey, inputs: Sequence[Any], check: Check) -> list[Any]:
        end = time.monotonic() + 30
        while 1000 in inputs and not self.stop.is_set() and time.monotonic() < end:
            check()
            self.passes += 1
            self.at_work.set()
            time.sleep(0.002)
        return super().compute(key, inputs, check)


@pytest.mark.parametrize("client", ["modest", "greedy"])
def test_a_long_job_yields_to_others(client: str, metrics: Metrics) -> None:
    """A long job yields to small jobs of any client, resumes afterwards, and gets its result."""
    machine = LongMachine()
    batcher = Batcher("made", machine.compute, machine.probe, metrics, bound=10**6, budget=100, within=10.0)
    batcher.start()
    long = Job(KIND, [1000], [50_000], time.monotonic() + 60, "greedy")
    batcher.submit(long)
    assert machine.at_work.wait(10)
    for value in range(20, 30):
        small = Job(KIND, [value], [1], time.monotonic() + 30, client)
        batcher.submit(small)
        assert small.future.result(10) == [value**2]
        assert not long.future.done()
    before = machine.passes
    while machine.passes < before + 3:  # the long job makes progress as well
        time.sleep(0.001)
    too_long = Job(KIND, [31], [200], time.monotonic() + 30, client)  # would delay the first job indefinitely
    batcher.submit(too_long)
    while machine.passes < before + 6:
        time.sleep(0.001)
    assert not too_long.future.done()
    machine.stop.set()
    assert long.future.result(10) == [10**6]
    assert too_long.future.result(10) == [31**2]
    assert failures(metrics) == 0
    assert batcher.drain(10)


def test_a_failing_job_does_not_affect_the_interrupted_one(metrics: Metrics) -> None:
    machine = LongMachine()
    batcher = Batcher("made", machine.compute, machine.probe, metrics, bound=10**6, budget=100)
    batcher.start()
    long, small = Job(KIND, [1000], [50_000], time.monotonic() + 60, "greedy"), job(14)
    batcher.submit(long)
    assert machine.at_work.wait(10)
    batcher.submit(small)
    with pytest.raises(ModelFailedError):
        small.future.result(10)
    assert not long.future.done()
    machine.stop.set()
    assert long.future.result(10) == [10**6]
    assert batcher.drain(10)


def test_speed_is_measured_in_tokens_not_batches(
    machine: Machine, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The speed estimate is close to that of a full batch (5000 tokens per second), not of single texts (100)."""
    now = 0.0
    monkeypatch.setattr("cloze.serve.batcher.time.monotonic", lambda: now)

    def compute(key: BatchKey, inputs: Sequence[Any], check: Check) -> Sequence[Any]:
        nonlocal now
        now += 0.01 if len(inputs) == 1 else 0.02
        return inputs

    batcher = Batcher("made", compute, machine.probe, metrics, bound=1000, budget=100)
    assert batcher.rate == FIRST_GUESS
    for one in [job(1) for _ in range(200)]:
        batcher.submit(one)
        batcher._run(batcher.queue.take(100, wait=0))
    assert batcher.rate == pytest.approx(100, rel=0.01)
    batcher.submit(job(*range(100)))
    batcher._run(batcher.queue.take(100, wait=0))
    assert batcher.rate == pytest.approx(109 / 0.11, rel=0.01)


def test_readiness_is_a_recent_success(machine: Machine, metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloze.serve.batcher.PROBE_EVERY", 0.01)
    machine.ill = True
    batcher = Batcher("made", machine.compute, machine.probe, metrics, bound=1000, budget=100)
    assert not batcher.ready
    batcher.start()
    time.sleep(0.05)
    assert not batcher.ready
    assert failures(metrics) > 0
    machine.ill = False
    end = time.monotonic() + 10
    while not batcher.ready and time.monotonic() < end:
        time.sleep(0.01)
    assert batcher.ready
    monkeypatch.setattr("cloze.serve.batcher.STALE_AFTER", -1.0)
    assert not batcher.ready
    batcher.drain(10)


def test_answers_are_not_followed_by_trials(batcher: Batcher, machine: Machine) -> None:
    for value in range(20, 40):
        one = job(value)
        batcher.submit(one)
        assert one.future.result(10) == [value**2]
    assert machine.probed == 1  # at start-up


def test_invalid_requests_do_not_make_it_unready(
    machine: Machine, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloze.serve.batcher.PROBE_EVERY", 0.3)
    batcher = Batcher("made", machine.compute, machine.probe, metrics, bound=1000, budget=100)
    batcher.start()
    end = time.monotonic() + 10
    while machine.probed < 3 and time.monotonic() < end:
        bad = job(15)
        batcher.submit(bad)
        with pytest.raises(RequestError):
            bad.future.result(10)
        time.sleep(0.01)
    assert machine.probed >= 3  # probed although it was never idle
    batcher.drain(10)


def test_draining_finishes_waiting_jobs(machine: Machine, metrics: Metrics) -> None:
    batcher = Batcher("made", machine.compute, machine.probe, metrics, bound=1000, budget=1)
    jobs = [job(number) for number in range(50, 90)]
    for one in jobs:
        batcher.submit(one)
    batcher.start()
    batcher.drain(10)
    assert [one.future.result(0) for one in jobs] == [[number**2] for number in range(50, 90)]
    with pytest.raises(OverloadedError):
        batcher.submit(job(1))


def test_abandoned_work_ends(machine: Machine, metrics: Metrics) -> None:
    started = threading.Event()

    def compute(key: BatchKey, inputs: Sequence[Any], check: Check) -> Sequence[Any]:
        end = time.monotonic() + 30
        while 7 in inputs and time.monotonic() < end:  # simulates many forward passes
            started.set()
            check()
            time.sleep(0.001)
        return inputs

    batcher = Batcher("made", compute, machine.probe, metrics, bound=1000, budget=1)
    batcher.start()
    for abandon in (True, False):
        started.clear()
        long, next_one = job(7, seconds=30 if abandon else 0.05), job(1)
        batcher.submit(long)
        batcher.submit(next_one)
        assert started.wait(10)
        if abandon:
            batcher.cancel(long)
        assert next_one.future.result(10) == [1]
        with pytest.raises((CancelledError, AbandonedError)):
            long.future.result(10)
    assert failures(metrics) == 0
    assert batcher.drain(10)


def test_a_hanging_thread_is_reported(machine: Machine, metrics: Metrics) -> None:
    batcher = Batcher("made", machine.compute, machine.probe, metrics, bound=1000, budget=1)
    machine.go.clear()
    batcher.submit(job(1))
    batcher.start()
    assert not batcher.drain(0.05)
    machine.go.set()
    assert batcher.drain(10)
