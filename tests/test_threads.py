"""The number of threads, with simulated clocks and a simulated machine load."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from cloze.threads import (
    LONGEST_WAIT,
    AdaptiveThreads,
    fastest_threads,
    may_choose,
    request_threads,
    thread_counts,
    time_products,
    training_threads,
)

IDLE = {1: 1.0, 2: 0.55}  # seconds per token, by the number of threads
BUSY = {1: 1.0, 2: 8.0}


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Simulate two cores without a requested number of threads."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    before = torch.get_num_threads()
    request_threads(None)
    torch.set_num_threads(2)
    yield
    request_threads(None)
    torch.set_num_threads(before)


@dataclass
class Machine:
    """A clock, and a step whose duration depends only on the number of threads."""

    costs: dict[int, float]
    now: float = 0.0
    counts: list[int] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def step(self, batch: "Tokens") -> int:
        self.counts.append(torch.get_num_threads())
        self.now += batch.ids.numel() * self.costs[self.counts[-1]]
        return len(self.counts)

    def trial(self, count: int) -> float:
        self.counts.append(count)
        return self.costs[count]

    def run(self, threads: AdaptiveThreads, batches: int, tokens: int = 1) -> float:
        """Compute batches, and return their duration in seconds."""
        start = self.now
        for _ in range(batches):
            threads.run(self.step, Tokens(torch.zeros(1, tokens)))
        return self.now - start


@dataclass(frozen=True)
class Tokens:
    ids: Tensor


def test_counts_to_choose_from() -> None:
    assert [thread_counts(most) for most in (1, 2, 3, 4, 6, 8)] == [
        [1],
        [1, 2],
        [1, 2, 3],
        [1, 2, 4],
        [1, 2, 4, 6],
        [1, 2, 4, 8],
    ]


@pytest.mark.parametrize(
    ("costs", "fastest"),
    [
        (IDLE, 2),
        (BUSY, 1),
        ({1: 1.0, 2: 1.04}, 2),  # within 5 %, more threads are preferred, because the other load may end
        ({1: 1.0, 2: 1.06}, 1),
        ({1: 1.0, 2: 0.6, 4: 0.9}, 2),
    ],
)
def test_the_fastest_count_is_chosen_and_more_threads_within_five_percent(
    costs: dict[int, float], fastest: int
) -> None:
    assert fastest_threads(max(costs), Machine(costs).trial) == fastest


def test_counts_alternate_and_one_interruption_does_not_matter() -> None:
    machine = Machine(IDLE)

    def interrupted(count: int) -> float:
        return machine.trial(count) + (50.0 if len(machine.counts) in (2, 10) else 0.0)

    assert fastest_threads(2, interrupted) == 2
    assert machine.counts[:6] == [1, 2, 1, 2, 1, 2]


def test_a_hopeless_count_is_tried_no_more() -> None:
    machine = Machine(BUSY)
    assert fastest_threads(2, machine.trial) == 1
    assert machine.counts == [1, 2, 1, 2, 1, 2, 1, 1, 1, 1]


def test_a_trial_leaves_the_number_of_threads() -> None:
    ticks = iter([10.0, 12.5])
    assert time_products(1, lambda: next(ticks)) == 2.5
    assert torch.get_num_threads() == 2


def test_a_training_has_the_fastest_number_until_it_ends() -> None:
    with training_threads(trial=Machine(BUSY).trial) as note:
        assert torch.get_num_threads() == 1
        # A nested training run, such as a cell of a grid search, uses the same number.
        with training_threads(trial=Machine(IDLE).trial) as inner:
            assert (torch.get_num_threads(), inner) == (1, "")
        assert not may_choose()
    assert note == "other processes use this machine: 1 of 2 threads are fastest now; --threads overrides"
    assert (torch.get_num_threads(), may_choose()) == (2, True)


def test_no_note_on_an_idle_machine() -> None:
    with training_threads(trial=Machine(IDLE).trial) as note:
        assert (torch.get_num_threads(), note) == (2, "")


@pytest.mark.parametrize(("recorded", "costs", "now"), [(1, IDLE, 2), (2, BUSY, 1)])
def test_a_resumed_training_keeps_its_number(recorded: int, costs: dict[int, float], now: int) -> None:
    with training_threads(recorded, Machine(costs).trial) as note:
        assert torch.get_num_threads() == recorded
    assert note == (
        f"{recorded} of 2 threads, as at the start of this run; {now} would be faster now, with slightly different "
        f"numbers: --threads {now}"
    )
    with training_threads(recorded, Machine({recorded: 1.0, now: 2.0}).trial) as note:
        assert note == ""


def test_resumption_does_not_exceed_the_cores() -> None:
    with training_threads(16, Machine(BUSY).trial):
        assert torch.get_num_threads() == 1


def test_a_requested_number_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(BUSY)

    def nothing_is_tried() -> None:
        with training_threads(1, machine.trial) as note:
            assert (torch.get_num_threads(), note) == (2, "")
        threads = AdaptiveThreads(machine.clock)
        machine.run(threads, 20)
        assert machine.counts == [2] * 20
        machine.counts.clear()

    request_threads(2)
    nothing_is_tried()
    request_threads(None)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    nothing_is_tried()
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setenv("WORLD_SIZE", "2")
    nothing_is_tried()
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert may_choose()


def test_the_maximum_is_that_of_torch() -> None:
    torch.set_num_threads(1)
    machine = Machine(IDLE)
    machine.run(AdaptiveThreads(machine.clock), 20)
    assert machine.counts == [1] * 20


@pytest.mark.parametrize(("costs", "best"), [(IDLE, 2), (BUSY, 1)])
@pytest.mark.parametrize("seconds", [0.002, 0.05, 1.0])
def test_predictions_settle_on_the_fastest_number(costs: dict[int, float], best: int, seconds: float) -> None:
    machine = Machine({count: seconds * cost for count, cost in costs.items()})
    threads = AdaptiveThreads(machine.clock)
    machine.run(threads, round(3 / seconds) + 5)
    batches = round(60 / seconds)
    taken = machine.run(threads, batches)
    assert taken <= 1.15 * batches * machine.costs[best]
    assert machine.counts[-batches:].count(best) >= 0.9 * batches
    assert torch.get_num_threads() == 2


def test_predictions_follow_the_load() -> None:
    machine = Machine({count: 0.05 * cost for count, cost in IDLE.items()})
    threads = AdaptiveThreads(machine.clock)
    machine.run(threads, 200)
    assert machine.counts[-1] == 2
    machine.costs = {count: 0.05 * cost for count, cost in BUSY.items()}
    # Two slow batches show that the load has changed; a few more show that one thread is faster.
    machine.run(threads, 10)
    assert machine.counts[-10:].count(1) >= 7
    machine.costs = {count: 0.05 * cost for count, cost in IDLE.items()}
    start = machine.now
    while machine.counts[-5:] != [2] * 5:
        machine.run(threads, 1)
    assert machine.now - start < LONGEST_WAIT + 1


def test_one_slow_batch_is_ignored() -> None:
    machine = Machine({1: 0.1, 2: 0.05})
    threads = AdaptiveThreads(machine.clock)
    machine.run(threads, 3)
    machine.costs = {1: 0.1, 2: 1.0}
    machine.run(threads, 1)
    machine.costs = {1: 0.1, 2: 0.05}
    assert machine.counts == [2] * 4


def test_sizes_are_compared_among_themselves() -> None:
    machine = Machine({1: 0.001, 2: 0.001 * 0.55})
    threads = AdaptiveThreads(machine.clock)
    for _ in range(200):
        machine.run(threads, 1, tokens=1000)
        # Short batches cost more per token, and do not benefit from threads.
        machine.costs = {1: 0.02, 2: 0.03}
        machine.run(threads, 1, tokens=3)
        machine.costs = {1: 0.001, 2: 0.001 * 0.55}
    assert machine.counts[-100::2].count(2) >= 45
    assert machine.counts[-99::2].count(1) >= 45


def test_four_threads_are_halved_and_doubled() -> None:
    torch.set_num_threads(4)
    machine = Machine({1: 0.1, 2: 0.06, 4: 0.3})
    threads = AdaptiveThreads(machine.clock)
    machine.run(threads, 300)
    assert machine.counts[-100:].count(2) >= 90
    machine.costs = {1: 0.1, 2: 0.06, 4: 0.035}
    machine.run(threads, 600)
    assert machine.counts[-100:].count(4) >= 90


def test_a_batch_that_fails_leaves_the_number_of_threads() -> None:
    machine = Machine({count: 0.05 * cost for count, cost in BUSY.items()})
    threads = AdaptiveThreads(machine.clock)
    machine.run(threads, 30)
    assert machine.counts[-1] == 1

    def fail(_: Tokens) -> None:
        assert torch.get_num_threads() == 1
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        threads.run(fail, Tokens(torch.zeros(1, 1)))
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
)
def test_commands_shorten_the_spinning_before_torch_is_loaded(given: dict[str, str], spins: str) -> None:
    code = (
        "import os, sys, atexit\nfrom cloze.cli import main\n"
        "def tell(*_):\n    print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)\n    return True\n"
        "import cloze.cli\ncloze.cli.build = lambda *_: tell() and sys.exit()\nmain(['models'])"
    )
    clean = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", code], env=clean | given, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [spins, "False"]
