"""The number of threads per operation, on a machine that may have other work.

The threads of an operation wait for each other at its end. Where another process occupies a core, one of them has to
queue for it, and two threads can take several times as long as one (docs/experiments/09-choosing-threads.md).

- A training measures at its start which number is fastest, and keeps it (``training_threads``): the last digits of its
  numbers depend on it, and a resumed training must continue with the same.
- Predictions measure their batches and change the number while they run (``AdaptiveThreads``).

``--threads`` and ``OMP_NUM_THREADS`` fix the number; what ``torch.set_num_threads`` says is the most that is used.
Light to import, without torch.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median, median_low
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from torch import Tensor


class Batch(Protocol):
    """What a step computes: (B, T) token ids, and whatever else it needs."""

    @property
    def ids(self) -> "Tensor":
        """Token ids."""


Result = TypeVar("Result")
BatchT = TypeVar("BatchT", bound=Batch)
Clock = Callable[[], float]  # returns seconds

# How often a waiting thread looks before it sleeps; libgomp's default is 300,000.
SPIN_COUNT = "1000"
# Rounds of the trial before a training, and the multiple of the best time up to which more threads are preferred.
ROUNDS, PREFERENCE = 7, 1.05
# A number whose time is this multiple of the best after a few rounds is tried no more.
FEW_ROUNDS, HOPELESS = 3, 1.5
# The trial: products of the size of a small model's, with an operation on every number between them.
TRIAL_ROWS, TRIAL_WIDTH, TRIAL_PRODUCTS = 512, 384, 16

# Seconds of computing until another number of threads is tried: the first time, and at most; it doubles with every
# failure, and is at least this multiple of the time that the failure took.
FIRST_WAIT, LONGEST_WAIT, WAIT_PER_TRIAL = 0.2, 8.0, 10
# A trial succeeds if its batches cost at most this share per token, over this number of batches and seconds.
WINS, TRIAL_BATCHES, TRIAL_SECONDS = 0.9, 3, 0.2
# One batch of a trial at this multiple of the cost ends it at once.
GIVES_UP = 3.0
# This number of batches in succession at this multiple of the cost means that the load has changed.
SLOW_BATCHES, SLOWER = 2, 2.0
RECENT = 5  # batches whose median is the cost of a number of threads


class _Decision:
    """Whether the number of threads is fixed, by the user or by a training that is running."""

    by_user = False
    by_training = False


def request_threads(count: int | None) -> None:
    """Use exactly this number of threads from now on; with None, choose."""
    _Decision.by_user = count is not None
    if count is not None:
        import torch

        torch.set_num_threads(count)


def may_choose() -> bool:
    """Return whether the number of threads can be chosen here: it is not fixed, and there are several cores."""
    import torch

    is_decided = _Decision.by_user or _Decision.by_training or os.environ.get("OMP_NUM_THREADS")
    # The processes of a group share the cores between them.
    return not is_decided and os.environ.get("WORLD_SIZE", "1") == "1" and torch.get_num_threads() > 1


def thread_counts(most: int) -> list[int]:
    """Return the numbers of threads to choose from: the powers of two below ``most``, and ``most``."""
    return [*(2**power for power in range(most.bit_length()) if 2**power < most), most]


def fastest_threads(most: int, trial: Callable[[int], float]) -> int:
    """Return how many threads are fastest.

    Args:
        most: The largest number.
        trial: Returns the seconds that some work takes with a number of threads. The numbers take turns, so that all
            of them see the same load.

    Returns:
        The number with the best median; a larger one that is within 5 % of it.
    """
    times: dict[int, list[float]] = {count: [] for count in thread_counts(most)}
    medians: dict[int, float] = {}
    for number in range(1, ROUNDS + 1):
        for count, seconds in times.items():
            seconds.append(trial(count))
        medians = {count: median(seconds) for count, seconds in times.items()}
        if number == FEW_ROUNDS:
            times = {count: times[count] for count in times if medians[count] <= HOPELESS * min(medians.values())}
    return max(count for count, middle in medians.items() if middle <= PREFERENCE * min(medians.values()))


def time_products(count: int, clock: Clock = time.perf_counter) -> float:
    """Return the seconds of a chain of matrix products with this number of threads, which is then set back."""
    import torch

    before = torch.get_num_threads()
    weight = torch.full((TRIAL_WIDTH, TRIAL_WIDTH), 1 / TRIAL_WIDTH)
    states = torch.ones(TRIAL_ROWS, TRIAL_WIDTH)
    try:
        torch.set_num_threads(count)
        start = clock()
        with torch.inference_mode():
            for _ in range(TRIAL_PRODUCTS):
                states = torch.tanh(states @ weight)
        return clock() - start
    finally:
        torch.set_num_threads(before)


@contextmanager
def training_threads(recorded: int | None = None, trial: Callable[[int], float] = time_products) -> Iterator[str]:
    """Fix the number of threads while a training runs.

    Args:
        recorded: The number that the training was started with, if it is resumed.
        trial: As for ``fastest_threads``.

    Yields:
        A note for the user, or nothing.
    """
    import torch

    if not may_choose():
        yield ""
        return
    most = torch.get_num_threads()
    fastest = fastest_threads(most, trial)
    count, note = fastest, ""
    if recorded is not None and recorded <= most:
        count = recorded
        if count != fastest:
            note = (
                f"{count} of {most} threads, as this run was started; {fastest} would be faster now, with other last "
                f"digits: --threads {fastest}"
            )
    elif count < most:
        note = f"other processes use this machine: {count} of {most} threads are fastest now; --threads overrides"
    torch.set_num_threads(count)
    _Decision.by_training = True
    try:
        yield note
    finally:
        _Decision.by_training = False
        torch.set_num_threads(most)


class AdaptiveThreads:
    """Runs the batches of predictions with the number of threads that has been fastest lately.

    Batches are compared with others of the same kind and of similar size, per token. Now and then a batch is computed
    with another number: half or twice as many.
    """

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._choices: dict[tuple[str, int, int], _Choice] = {}
        self._latest: int | None = None  # the last number that a trial has decided on

    def run(self, step: Callable[[BatchT], Result], batch: BatchT) -> Result:
        """Compute a batch, in the calling thread; afterwards its number of threads is what it was.

        Args:
            step: Computes a batch. Only batches of one step are compared.
            batch: The batch; one on an accelerator is computed as it is.
        """
        import torch

        if not batch.ids.is_cpu or not may_choose():
            return step(batch)
        tokens, most = batch.ids.numel(), torch.get_num_threads()
        key = step.__qualname__, most, tokens.bit_length()
        if key not in self._choices:
            self._choices[key] = _Choice(most, self._latest)
        choice = self._choices[key]
        count = choice.next_count
        if count != most:
            torch.set_num_threads(count)
        start = self._clock()
        try:
            result = step(batch)
            seconds = self._clock() - start
        finally:
            if count != most:
                torch.set_num_threads(most)
        if choice.add(seconds, seconds / tokens):
            self._latest = choice.count
        return result


class _Choice:
    """The number of threads for batches of one kind and size."""

    def __init__(self, most: int, start: int | None) -> None:
        self._counts = thread_counts(most)
        self.count = start if start in self._counts else most
        self._upwards = False  # the direction of the next trial
        self._recent = deque[float](maxlen=RECENT)  # costs with this number: seconds per token
        self._slow: list[float] = []  # the last costs, if they are much above the recent ones
        self._seconds, self._wait = 0.0, FIRST_WAIT  # of computing since the last trial, and until the next
        self._trial: int | None = None
        self._trial_costs: list[float] = []
        self._trial_seconds = 0.0

    @property
    def next_count(self) -> int:
        """The number of threads for the next batch."""
        return self._trial or self.count

    def add(self, seconds: float, cost: float) -> bool:
        """Learn from a batch that was computed with ``next_count``; return whether the number has changed."""
        if self._trial is not None:
            return self._add_trial(seconds, cost)
        self._seconds += seconds
        if len(self._recent) > 1 and cost > SLOWER * median_low(self._recent):
            self._slow.append(cost)
        else:
            self._slow.clear()
            self._recent.append(cost)
        if has_slowed := len(self._slow) >= SLOW_BATCHES:
            self._recent.clear()
            self._recent.extend(self._slow)
            self._slow.clear()
        if has_slowed or (self._seconds >= self._wait and len(self._recent) > 1):
            self._start_trial()
        return False

    def _start_trial(self) -> None:
        place = self._counts.index(self.count)
        neighbours = self._counts[max(0, place - 1) : place], self._counts[place + 1 : place + 2]
        (self._trial,) = neighbours[self._upwards] or neighbours[not self._upwards]
        self._upwards = not self._upwards
        self._trial_costs, self._trial_seconds = [], 0.0

    def _add_trial(self, seconds: float, cost: float) -> bool:
        self._trial_costs.append(cost)
        self._trial_seconds += seconds
        usual, batches = median_low(self._recent), len(self._trial_costs)
        if cost > GIVES_UP * usual or (batches > 1 and median_low(self._trial_costs) > WINS * usual):
            self._wait = max(min(2 * self._wait, LONGEST_WAIT), WAIT_PER_TRIAL * self._trial_seconds)
            self._seconds, self._trial = 0.0, None
        elif batches >= TRIAL_BATCHES and self._trial_seconds >= TRIAL_SECONDS:
            assert self._trial is not None
            self.count, self._trial, self._wait, self._seconds = self._trial, None, FIRST_WAIT, 0.0
            self._recent.clear()
            self._recent.extend(self._trial_costs[-RECENT:])
            return True
        return False


def shorten_spinning() -> None:
    """Let threads that wait for each other sleep sooner; of use only before torch is loaded.

    By default, the threads of libgomp spin for milliseconds, on cores that other processes may need. Settings of the
    user are kept.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
