"""Choose the number of threads per operation on machines that may be running other processes.

The threads of an operation wait for each other at its end. If another process occupies a core, one thread has to wait
for that core, and two threads can take several times as long as one (docs/experiments/09-choosing-threads.md).

- Training measures the fastest number at its start and then keeps it (``training_threads``): the last digits of its
  results depend on it, so a resumed training must use the same number.
- Prediction measures its batches and changes the number while it runs (``AdaptiveThreads``).

``--threads`` and ``OMP_NUM_THREADS`` fix the number. The value of ``torch.set_num_threads`` is the upper bound. This
module does not import torch.
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
    """The input of a step: token ids, (B, T), and any other tensors."""

    @property
    def ids(self) -> "Tensor":
        """Token ids."""


Result = TypeVar("Result")
BatchT = TypeVar("BatchT", bound=Batch)
Clock = Callable[[], float]  # returns seconds

# Number of spins before a waiting thread sleeps; the default of libgomp is 300,000.
SPIN_COUNT = "1000"
# Rounds of the trial before training, and the multiple of the best time up to which more threads are preferred.
ROUNDS, PREFERENCE = 7, 1.05
# A number of threads is dropped if it takes this multiple of the best time after a few rounds.
FEW_ROUNDS, HOPELESS = 3, 1.5
# The trial: matrix products as in a small model, with an elementwise operation after each.
TRIAL_ROWS, TRIAL_WIDTH, TRIAL_PRODUCTS = 512, 384, 16

# Seconds of computation before another number of threads is tried: initial and maximum. The interval doubles after each
# failed trial, and is at least this multiple of the duration of the trial.
FIRST_WAIT, LONGEST_WAIT, WAIT_PER_TRIAL = 0.2, 8.0, 10
# A trial succeeds if its cost per token is at most this fraction of the current cost, over this number of batches and
# seconds.
WINS, TRIAL_BATCHES, TRIAL_SECONDS = 0.9, 3, 0.2
# A trial is aborted if a single batch costs this multiple of the current cost.
GIVES_UP = 3.0
# The load is considered to have changed after this number of consecutive batches at this multiple of the cost.
SLOW_BATCHES, SLOWER = 2, 2.0
RECENT = 5  # number of batches whose median is the current cost


class _Decision:
    """Records whether the number of threads is fixed by the user or by a running training."""

    by_user = False
    by_training = False


def request_threads(count: int | None) -> None:
    """Fix the number of threads from now on; None allows choosing it."""
    _Decision.by_user = count is not None
    if count is not None:
        import torch

        torch.set_num_threads(count)


def may_choose() -> bool:
    """Return whether the number of threads can be chosen: it is not fixed, and there are several cores."""
    import torch

    is_decided = _Decision.by_user or _Decision.by_training or os.environ.get("OMP_NUM_THREADS")
    # In distributed runs, the processes already share the cores.
    return not is_decided and os.environ.get("WORLD_SIZE", "1") == "1" and torch.get_num_threads() > 1


def thread_counts(most: int) -> list[int]:
    """Return the candidate numbers of threads: the powers of two below ``most``, and ``most``."""
    return [*(2**power for power in range(most.bit_length()) if 2**power < most), most]


def fastest_threads(most: int, trial: Callable[[int], float]) -> int:
    """Return the fastest number of threads.

    Args:
        most: The maximum number.
        trial: Returns the duration in seconds of a sample of work with a given number of threads. The candidates
            alternate, so that all of them see the same load.

    Returns:
        The number with the best median, or a larger one that is at most 5 % slower.
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
    """Return the duration of a chain of matrix products with this number of threads; restores the number afterwards."""
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
        recorded: The number with which the training was started, if it is being resumed.
        trial: See ``fastest_threads``.

    Yields:
        A note for the user, or an empty string.
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
                f"{count} of {most} threads, as at the start of this run; {fastest} would be faster now, with slightly "
                f"different numbers: --threads {fastest}"
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
    """Runs prediction batches with the number of threads that was fastest recently.

    Batches are compared per token with others of the same kind and similar size. From time to time, a few batches are
    run with half or twice the number of threads.
    """

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._choices: dict[tuple[str, int, int], _Choice] = {}
        self._latest: int | None = None  # result of the last successful trial

    def run(self, step: Callable[[BatchT], Result], batch: BatchT) -> Result:
        """Run a batch in the calling thread; its number of threads is restored afterwards.

        Args:
            step: Computes a batch. Only batches of the same step are compared.
            batch: The batch. On an accelerator, the number of threads is not changed.
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
        self._recent = deque[float](maxlen=RECENT)  # recent costs with the current number, in seconds per token
        self._slow: list[float] = []  # the newest costs, set aside while they are far above the usual ones
        self._seconds, self._wait = 0.0, FIRST_WAIT  # seconds of computation since the last trial and until the next
        self._trial: int | None = None
        self._trial_costs: list[float] = []
        self._trial_seconds = 0.0

    @property
    def next_count(self) -> int:
        """The number of threads for the next batch."""
        return self._trial or self.count

    def add(self, seconds: float, cost: float) -> bool:
        """Record a batch that was run with ``next_count``; return whether the number of threads has changed."""
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
    """Make waiting threads sleep sooner; effective only before torch is loaded.

    By default, the threads of libgomp spin for milliseconds on cores that other processes may need. Existing settings
    of the user are not changed.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
