"""One thread that computes: it takes batches from the queue and gives each job its results.

Knows neither HTTP nor models: it is handed a function from inputs of one kind to results, one for each. What fails in
company is tried alone, so that nobody's request fails because of a neighbour's.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from cloze.errors import RequestError
from cloze.serve.errors import Failed, Overloaded
from cloze.serve.metrics import Metrics
from cloze.serve.queue import Item, Job, Kind, QueueFullError, TokenQueue

logger = logging.getLogger("cloze.serve")

Check = Callable[[], None]
# The check is to be called now and then: it ends work that nobody waits for any more.
Compute = Callable[[Kind, Sequence[Any], Check], Sequence[Any]]

# An idle worker tries itself so often, and one that has not succeeded for so long is not ready (seconds).
PROBE_EVERY = 10.0
STALE_AFTER = 60.0
# Until it has been measured; what waiting is reckoned with.
FIRST_GUESS = 2000.0  # tokens a second
# How much of what was measured still counts after one more batch.
KEPT = 0.9


class AbandonedError(Exception):
    """Nobody waits for any result of this batch."""


class Batcher:
    """A queue and the thread that empties it. A result that is an exception fails the job that it belongs to."""

    def __init__(
        self,
        name: str,
        compute: Compute,
        probe: Callable[[], object],
        metrics: Metrics,
        *,
        bound: int,
        budget: int,
        padding: float = math.inf,
        patience: float = math.inf,
        within: float = math.inf,
    ) -> None:
        """A batch has at most ``budget`` tokens, and so much ``padding`` beside them.

        No job is let in that would wait longer than ``patience`` seconds for its turn, or not be done ``within`` some.
        """
        self.name, self._compute, self._probe, self._metrics = name, compute, probe, metrics
        self._budget, self._padding, self.queue = budget, padding, TokenQueue(bound)
        self._patience, self._within = patience, within
        self.succeeded: float | None = None  # when a forward pass last did
        self._tried = 0.0  # when it last tried itself
        self._work_began, self._at_work = 0.0, 0  # since when, and how many tokens
        self._done, self._spent = FIRST_GUESS, 1.0  # tokens and seconds of late, the later the more they count
        self._thread = threading.Thread(target=self._work, name=f"batcher {name}", daemon=True)
        metrics.queue_tokens.labels(name).set_function(lambda: self.queue.tokens)
        # Looked up once: a label's lookup takes longer than what it counts.
        self._waited, self._tokens = metrics.queue_seconds.labels(name), metrics.tokens.labels(name)
        self._sizes, self._failures = metrics.batch_tokens.labels(name), metrics.failures.labels(name)

    def start(self) -> None:
        """Begin to compute; the first thing is a trial, after which ``ready``."""
        self._thread.start()

    @property
    def ready(self) -> bool:
        """Whether a forward pass has succeeded lately."""
        return self.succeeded is not None and time.monotonic() - self.succeeded < STALE_AFTER

    @property
    def rate(self) -> float:
        """Tokens a second, of late."""
        return self._done / self._spent

    @property
    def most_waiting(self) -> int:
        """Tokens that may wait: as many as the queue holds, or as few as are done before patience ends."""
        return int(min(self.queue.bound, self._patience * self.rate))

    @property
    def ahead(self) -> int:
        """Tokens before one that comes now: those that wait, and of what is at work, all that is more than a batch.

        One text to correct may be as much as a full queue, and whoever is let in after it may wait for it in vain.
        """
        done = (time.monotonic() - self._work_began) * self.rate
        return self.queue.tokens + max(0, int(self._at_work - done) - self._budget)

    @property
    def retry_after(self) -> int:
        """Seconds until what is ahead now will be done."""
        return max(1, min(60, round(self.ahead / self.rate)))

    def submit(self, job: Job) -> None:
        """Let a job wait for its turn, or raise ``Overloaded``: now, rather than when its time is over."""
        waiting = self.ahead
        # What is measured on small batches is less than large ones will do, so that an empty queue takes anything.
        too_late = waiting > 0 and waiting + job.tokens > self._within * self.rate
        if too_late or waiting > self.most_waiting:
            raise self.overloaded()
        try:
            self.queue.put(job)
        except QueueFullError as error:
            raise self.overloaded() from error

    def overloaded(self) -> Overloaded:
        """The refusal for a queue without room."""
        return Overloaded(
            f"{self.ahead} tokens wait for model {self.name!r}, of at most {self.most_waiting}; "
            f"try again in {self.retry_after} s",
            retry_after=self.retry_after,
        )

    def cancel(self, job: Job) -> None:
        """Nobody wants this job's results any more."""
        job.future.cancel()
        self.queue.discard(job)

    def drain(self, longest: float) -> bool:
        """Take no more jobs, finish those that wait, and end the thread; whether it has ended."""
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
            # By the clock alone: a trial costs a forward pass, so that none follows a batch that has succeeded; and of
            # requests that the model refuses nothing follows for its health, however many they are.
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
        kind, tokens = batch[0].job.kind, sum(item.length for item in batch)
        self._work_began, self._at_work = start, tokens
        results = self._results(kind, batch)
        seconds, self._at_work = time.monotonic() - start, 0
        self._metrics.inference_seconds.labels(self.name, kind.operation).observe(seconds)
        self._sizes.observe(tokens)
        self._tokens.inc(tokens)
        for item, result in zip(batch, results, strict=True):
            _give(item, result)
        # Sums, not rates: of a lone text's batch and a full one, the full one tells how fast a queue empties.
        self._done = KEPT * self._done + tokens
        self._spent = KEPT * self._spent + time.monotonic() - start

    def _results(self, kind: Kind, batch: list[Item]) -> list[Any]:
        """A result for each item, computed together, or where that fails, job by job."""
        try:
            return self._together(kind, batch)
        except AbandonedError as error:
            return [error] * len(batch)
        except RequestError as error:
            jobs = _by_job(batch)
            if len(jobs) == 1:
                return [error] * len(batch)
        # Whatever else: a bug, no memory, or a panic of a library, which is no Exception. The thread must live.
        except BaseException as error:
            self._failures.inc()
            logger.exception("%s: a batch of %d failed (%s)", self.name, len(batch), kind.operation)
            jobs = _by_job(batch)
            if len(jobs) == 1:
                return [Failed(f"the model failed on this ({type(error).__name__}); the log tells more")] * len(batch)
        found: dict[int, Any] = {}
        for items in jobs:
            found |= dict(zip(map(id, items), self._results(kind, items), strict=True))
        return [found[id(item)] for item in batch]

    def _together(self, kind: Kind, batch: list[Item]) -> list[Any]:
        results = list(self._compute(kind, [item.value for item in batch], lambda: _check_wanted(batch)))
        if len(results) != len(batch):
            raise RuntimeError(f"{len(results)} results for {len(batch)} inputs")
        if any(isinstance(result, Failed) for result in results):
            self._failures.inc()
        if not all(isinstance(result, Exception) for result in results):
            self.succeeded = time.monotonic()
        return results


def _check_wanted(batch: Sequence[Item]) -> None:
    """Raise if all who asked have left, or their time is over."""
    now = time.monotonic()
    if all(item.job.future.done() or now >= item.job.deadline for item in batch):
        raise AbandonedError("nobody waits for this any more")


def _by_job(batch: list[Item]) -> list[list[Item]]:
    groups: dict[int, list[Item]] = {}
    for item in batch:
        groups.setdefault(id(item.job), []).append(item)
    return list(groups.values())


def _give(item: Item, result: Any) -> None:
    """Put a result into its job, and the job's into its future when they are complete."""
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
