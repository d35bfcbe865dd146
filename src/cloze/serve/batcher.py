"""The queue of requests and the thread that computes them in batches. Knows neither HTTP nor models.

A request is a ``Job``; its inputs wait in a ``TokenQueue``, which is bounded in tokens. Inputs that may share a forward
pass (the same ``BatchKey``) wait in the same lane. A batch starts with the oldest input of all lanes, so that none
starves, and takes the inputs of its lane that are nearest in length, so that there is little padding.

A ``Batcher`` owns a queue and a thread, and is given the function that computes. If a batch fails, its jobs are
computed separately, so that no request fails because of another one in its batch.
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from cloze.errors import RequestError
from cloze.serve.errors import ModelFailedError, OverloadedError
from cloze.serve.metrics import Metrics

logger = logging.getLogger("cloze.serve")

# Number of inputs of a lane among which those of the nearest lengths are chosen.
LOOK_AHEAD = 1024
PROBE_EVERY = 10.0  # seconds between the probes of an idle model
STALE_AFTER = 60.0  # seconds without success after which a model is not ready
FIRST_GUESS = 2000.0  # throughput in tokens per second that is assumed until it has been measured
KEPT = 0.9  # decay per batch of the measured tokens and seconds

Check = Callable[[], None]


@dataclass(frozen=True)
class BatchKey:
    """What inputs must have in common to share a batch."""

    operation: str
    adapter: str | None = None
    options: tuple[tuple[str, Hashable], ...] = ()


# Maps inputs with one key to results. It must call the check regularly, which raises if no client waits any more.
ComputeBatch = Callable[[BatchKey, Sequence[Any], Check], Sequence[Any]]


@dataclass(eq=False)
class Job:
    """One request: its inputs, the tokens of each, and its deadline."""

    key: BatchKey
    inputs: Sequence[Any]
    lengths: Sequence[int]
    deadline: float
    future: "Future[list[Any]]" = field(default_factory=Future)
    results: dict[int, Any] = field(default_factory=dict)
    waiting: int = 0  # tokens in the queue

    @property
    def tokens(self) -> int:
        """Return the tokens of all inputs."""
        return sum(self.lengths)


@dataclass(eq=False, slots=True)
class Item:
    """One input of a job."""

    job: Job
    index: int
    length: int
    number: int
    queued: float
    taken: bool = False

    @property
    def value(self) -> Any:
        """Return the input."""
        return self.job.inputs[self.index]


class QueueFullError(Exception):
    """The queue has no room for a job."""


class TokenQueue:
    """A queue of jobs, bounded in tokens. Any thread may put and discard; one thread takes batches."""

    def __init__(self, bound: int) -> None:
        self.bound, self.tokens = bound, 0
        self.closed = False
        self._lanes: dict[BatchKey, deque[Item]] = {}
        self._number = self._stale = 0
        self._changed = threading.Condition()

    def has_room(self, tokens: int) -> bool:
        """Return whether this many more tokens fit."""
        return self.tokens + tokens <= self.bound

    def put(self, job: Job) -> None:
        """Queue all inputs of a job, or raise ``QueueFullError``."""
        now = time.monotonic()
        with self._changed:
            if self.closed or not self.has_room(job.tokens):
                raise QueueFullError
            lane = self._lanes.setdefault(job.key, deque())
            for index, length in enumerate(job.lengths):
                self._number += 1
                lane.append(Item(job, index, length, self._number, now))
            job.waiting = job.tokens
            self.tokens += job.waiting
            self._changed.notify()

    def discard(self, job: Job) -> None:
        """Remove the waiting inputs of a job; their room is free at once."""
        with self._changed:
            self._release(job)
            # Its items stay in their lanes until they reach the front; the lanes must not grow without bound.
            if self._stale > self.bound:
                self._sweep()

    def take(self, budget: int, wait: float, padding: float = math.inf) -> list[Item]:
        """Take the next batch: one item, or several with at most ``budget`` tokens and ``padding`` padding tokens.

        Returns ``[]`` if nothing arrives within ``wait`` seconds.
        """
        with self._changed:
            items = self._next()
            if not items and not self.closed:
                self._changed.wait(wait)
                items = self._next()
            batch = _choose(items, budget, padding) if items else []
            for item in batch:
                item.taken = True
                item.job.waiting -= item.length
                self.tokens -= item.length
            return batch

    def close(self) -> None:
        """Accept no more jobs; waiting ones can still be taken."""
        with self._changed:
            self.closed = True
            self._changed.notify()

    def _next(self) -> list[Item]:
        """Return the candidates for the next batch, oldest first."""
        while (lane := self._oldest()) is not None:
            # Clients may disconnect at any time, also after this lane was chosen.
            if items := list(islice((item for item in lane if _waits(item)), LOOK_AHEAD)):
                return items
        return []

    def _oldest(self) -> deque[Item] | None:
        """Return the lane whose first item has waited longest; drop items that no longer wait."""
        now = time.monotonic()
        for key, lane in list(self._lanes.items()):
            while lane and not _waits(lane[0], now):
                self._drop(lane.popleft())
            if not lane:
                del self._lanes[key]
        return min(self._lanes.values(), key=lambda lane: lane[0].number, default=None)

    def _drop(self, item: Item) -> None:
        if not item.taken and item.job.waiting:  # past the deadline: the rest of the job is not needed either
            self._release(item.job)
            item.job.future.cancel()

    def _release(self, job: Job) -> None:
        self._stale += job.waiting
        self.tokens -= job.waiting
        job.waiting = 0

    def _sweep(self) -> None:
        lanes = {key: deque(item for item in lane if _waits(item)) for key, lane in self._lanes.items()}
        self._lanes = {key: lane for key, lane in lanes.items() if lane}
        self._stale = 0


def _waits(item: Item, now: float = 0.0) -> bool:
    """Return whether an item is still to be computed."""
    return not item.taken and item.job.waiting > 0 and not item.job.future.done() and now < item.job.deadline


def _choose(items: list[Item], budget: int, padding: float) -> list[Item]:
    """Choose the first item and those nearest in length; older ones first if equally near."""
    first = items[0].length
    chosen: list[Item] = []
    longest = real = 0
    for item in sorted(items, key=lambda item: abs(item.length - first)):
        longest, real = max(longest, item.length), real + item.length
        padded = (len(chosen) + 1) * longest
        if chosen and (real > budget or padded - real > padding):
            break
        chosen.append(item)
    return chosen


class AbandonedError(Exception):
    """No client waits for any result of this batch."""


class Batcher:
    """A queue and the thread that computes its jobs. A result that is an exception fails its job.

    ``bound`` tokens may wait; a batch has at most ``budget`` tokens and ``padding`` padding tokens. A job is rejected
    if it would wait longer than ``patience`` seconds for its turn, or not be done ``within`` this many seconds.
    ``probe`` runs a small forward pass and raises if the model does not work.
    """

    def __init__(
        self,
        name: str,
        compute_batch: ComputeBatch,
        probe: Callable[[], object],
        metrics: Metrics,
        *,
        bound: int,
        budget: int,
        padding: float = math.inf,
        patience: float = math.inf,
        within: float = math.inf,
    ) -> None:
        self.name, self._compute_batch, self._probe, self._metrics = name, compute_batch, probe, metrics
        self._budget, self._padding, self.queue = budget, padding, TokenQueue(bound)
        self._patience, self._within = patience, within
        self.succeeded: float | None = None  # time of the last successful forward pass
        self._tried = 0.0  # time of the last probe
        self._work_began, self._at_work = 0.0, 0  # start and tokens of the current batch
        self._done, self._spent = FIRST_GUESS, 1.0  # decayed sums of tokens and seconds
        self._thread = threading.Thread(target=self._work, name=f"batcher {name}", daemon=True)
        metrics.queue_tokens.labels(name).set_function(lambda: self.queue.tokens)
        # Looked up once: looking up a label takes longer than counting.
        self._waited, self._tokens = metrics.queue_seconds.labels(name), metrics.tokens.labels(name)
        self._sizes, self._failures = metrics.batch_tokens.labels(name), metrics.failures.labels(name)

    def start(self) -> None:
        """Start the thread; it is ready after a first probe."""
        self._thread.start()

    @property
    def ready(self) -> bool:
        """Return whether a forward pass has succeeded lately."""
        return self.succeeded is not None and time.monotonic() - self.succeeded < STALE_AFTER

    @property
    def rate(self) -> float:
        """Return the recent throughput in tokens per second."""
        return self._done / self._spent

    @property
    def most_waiting(self) -> int:
        """Return the tokens that may wait: the size of the queue, or what is computed within ``patience``."""
        return int(min(self.queue.bound, self._patience * self.rate))

    @property
    def ahead(self) -> int:
        """Return the tokens ahead of a new job: those waiting, and the rest of the current batch beyond one budget.

        A single text to correct may take as long as a full queue; jobs behind it could miss their deadlines.
        """
        done = (time.monotonic() - self._work_began) * self.rate
        return self.queue.tokens + max(0, int(self._at_work - done) - self._budget)

    @property
    def retry_after(self) -> int:
        """Return the seconds until the tokens ahead are computed."""
        return max(1, min(60, round(self.ahead / self.rate)))

    def submit(self, job: Job) -> None:
        """Queue a job, or raise ``OverloadedError`` at once if it would miss its deadline."""
        waiting = self.ahead
        # An empty queue accepts any job: throughput measured on small batches underestimates large ones.
        too_late = waiting > 0 and waiting + job.tokens > self._within * self.rate
        if too_late or waiting > self.most_waiting:
            raise self.overloaded()
        try:
            self.queue.put(job)
        except QueueFullError as error:
            raise self.overloaded() from error

    def overloaded(self) -> OverloadedError:
        """Return the error for a full queue."""
        seconds = self.retry_after
        waiting = f"{self.ahead} tokens wait for model {self.name!r}, of at most {self.most_waiting}"
        return OverloadedError(f"{waiting}; try again in {seconds} s", retry_after=seconds)

    def cancel(self, job: Job) -> None:
        """Cancel a job whose results are no longer needed."""
        job.future.cancel()
        self.queue.discard(job)

    def drain(self, longest: float) -> bool:
        """Accept no more jobs, finish waiting ones, end the thread; return whether it ended within ``longest`` s."""
        self.queue.close()
        self._thread.join(longest)
        return not self._thread.is_alive()

    def _work(self) -> None:
        self._try_out()
        while True:
            batch = self.queue.take(self._budget, PROBE_EVERY, self._padding)
            if batch:
                self._run(batch)
            elif self.queue.closed:
                return
            # By time alone: a probe costs a forward pass, so a successful batch replaces it; and requests that the
            # model rejects say nothing about its health, however many they are.
            if time.monotonic() - max(self._tried, self.succeeded or 0.0) >= PROBE_EVERY:
                self._try_out()

    def _try_out(self) -> None:
        self._tried = time.monotonic()
        try:
            self._probe()
            self.succeeded = time.monotonic()
        except BaseException:
            self._failures.inc()
            logger.exception("%s: the trial failed", self.name)

    def _run(self, batch: list[Item]) -> None:
        start = time.monotonic()
        for item in batch:
            self._waited.observe(start - item.queued)
        key, tokens = batch[0].job.key, sum(item.length for item in batch)
        self._work_began, self._at_work = start, tokens
        results = self._compute_results(key, batch)
        seconds, self._at_work = time.monotonic() - start, 0
        self._metrics.inference_seconds.labels(self.name, key.operation).observe(seconds)
        self._sizes.observe(tokens)
        self._tokens.inc(tokens)
        for item, result in zip(batch, results, strict=True):
            _deliver(item, result)
        # Sums, not rates: a full batch says more about how fast the queue empties than a batch of one text.
        self._done = KEPT * self._done + tokens
        self._spent = KEPT * self._spent + time.monotonic() - start

    def _compute_results(self, key: BatchKey, batch: list[Item]) -> list[Any]:
        """Compute a result for each item, together, or job by job if that fails."""
        try:
            return self._compute_together(key, batch)
        except AbandonedError as error:
            return [error] * len(batch)
        except RequestError as error:
            jobs = _by_job(batch)
            if len(jobs) == 1:
                return [error] * len(batch)
        # Anything else: a bug, no memory, or a panic of a Rust library, which is no Exception. The thread must survive.
        except BaseException as error:
            self._failures.inc()
            logger.exception("%s: a batch of %d failed (%s)", self.name, len(batch), key.operation)
            jobs = _by_job(batch)
            if len(jobs) == 1:
                message = f"the model failed on this ({type(error).__name__}); the log tells more"
                return [ModelFailedError(message)] * len(batch)
        results: dict[int, Any] = {}
        for items in jobs:
            results |= dict(zip(map(id, items), self._compute_results(key, items), strict=True))
        return [results[id(item)] for item in batch]

    def _compute_together(self, key: BatchKey, batch: list[Item]) -> list[Any]:
        results = list(self._compute_batch(key, [item.value for item in batch], lambda: _check_wanted(batch)))
        if len(results) != len(batch):
            raise RuntimeError(f"{len(results)} results for {len(batch)} inputs")
        if any(isinstance(result, ModelFailedError) for result in results):
            self._failures.inc()
        if not all(isinstance(result, Exception) for result in results):
            self.succeeded = time.monotonic()
        return results


def _check_wanted(batch: Sequence[Item]) -> None:
    """Raise ``AbandonedError`` if every client has disconnected or every deadline has passed."""
    now = time.monotonic()
    if all(item.job.future.done() or now >= item.job.deadline for item in batch):
        raise AbandonedError("nobody waits for this any more")


def _by_job(batch: list[Item]) -> list[list[Item]]:
    groups: dict[int, list[Item]] = {}
    for item in batch:
        groups.setdefault(id(item.job), []).append(item)
    return list(groups.values())


def _deliver(item: Item, result: Any) -> None:
    """Add a result to its job; complete the job's future with the last one."""
    job = item.job
    if job.future.done():
        return
    if isinstance(result, Exception):
        if job.future.set_running_or_notify_cancel():
            job.future.set_exception(result)
        return
    job.results[item.index] = result
    if len(job.results) == len(job.inputs) and job.future.set_running_or_notify_cancel():
        job.future.set_result([job.results[index] for index in range(len(job.inputs))])
