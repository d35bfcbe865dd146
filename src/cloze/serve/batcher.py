"""The thread that computes queued requests in batches. It knows neither HTTP nor models.

A ``Batcher`` owns a ``TokenQueue`` and one thread, and is given the function that computes a batch. The thread repeats
three steps: take the next batch from the queue, compute it, deliver the results to the futures of its jobs. Four rules
make this robust:

- **Rejection instead of late answers.** From the measured throughput, ``submit`` estimates when a new job would be
  done, and rejects it at once if that is too late. The client gets status 429 and can try elsewhere.
- **Isolation of failures.** If a batch fails, its jobs are computed separately, so that no request fails because of
  another one in its batch.
- **Interruption.** A batch may need many forward passes (correcting a text takes one per token). Between two passes,
  the batcher computes the small batches of other clients whose turn it is. These nested batches run in the same thread,
  as ordinary function calls on top of the interrupted one.
- **Probes.** If no batch has succeeded for a while, a small forward pass shows whether the model still works.

All times are seconds; all sizes are tokens, since the time of a forward pass is roughly proportional to its tokens.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cloze.errors import RequestError
from cloze.serve.outcomes import Metrics, ModelFailedError, OverloadedError
from cloze.serve.queue import BatchKey, Item, Job, QueueFullError, TokenQueue

logger = logging.getLogger("cloze.serve")

PROBE_EVERY = 10.0  # seconds between the probes of an idle model
STALE_AFTER = 60.0  # seconds without a success after which a model is not ready
FIRST_GUESS = 2000.0  # assumed throughput in tokens per second until it has been measured
KEPT = 0.9  # decay per batch of the sums of measured tokens and seconds
BATCHES_PER_TURN = 2  # batches of one job before its client's other jobs have their turn
# Seconds for which a batch cannot be interrupted. Most batches are done by then.
UNINTERRUPTED = 0.05

Check = Callable[[], None]

# Maps the inputs of a batch to results. It must call the check before each forward pass. The check raises
# ``AbandonedError`` if no client is waiting for the batch, and it may compute another batch in a nested call.
ComputeBatch = Callable[[BatchKey, Sequence[Any], Check], Sequence[Any]]


@dataclass(eq=False)
class _Run:
    """A batch that is being computed, and the time it has taken."""

    batch: list[Item]
    nested: bool  # whether it runs while another batch is interrupted
    started: float = field(default_factory=lambda: time.monotonic())
    charged: float = 0.0  # seconds charged to its clients so far
    lent: float = 0.0  # seconds in which it was interrupted
    lent_to_own: float = 0.0  # the part of ``lent`` used for other jobs of its own clients

    @property
    def seconds(self) -> float:
        """Return the computing time so far in seconds, without interruptions."""
        return time.monotonic() - self.started - self.lent

    @property
    def clients(self) -> set[str]:
        """Return the clients of its jobs."""
        return {item.job.client for item in self.batch}

    @property
    def tokens(self) -> int:
        """Return the total number of tokens of its items."""
        return sum(item.length for item in self.batch)


class AbandonedError(Exception):
    """No client is waiting for any result of this batch."""


class Batcher:
    """A queue and the thread that computes its jobs.

    Args:
        name: The name of the model, for the thread, metrics and messages.
        compute_batch: Computes one result per input. A result that is an exception fails only its job.
        probe: Runs a small forward pass and raises if the model does not work.
        metrics: Receives waiting times, batch sizes and failures.
        bound: Maximum number of waiting tokens.
        budget: Maximum number of tokens per batch.
        padding: Maximum number of padding tokens per batch.
        patience: A job that would wait longer than this many seconds for its turn is rejected.
        within: A job that would not be done within this many seconds is rejected.
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
        self._budget, self._padding = budget, padding
        self.queue = TokenQueue(bound, BATCHES_PER_TURN * budget)
        self._patience, self._within = patience, within
        self.succeeded: float | None = None  # time of the last successful forward pass
        self._tried = 0.0  # time of the last probe
        self._at_work: _Run | None = None
        self._done, self._spent = FIRST_GUESS, 1.0  # decayed sums of tokens and seconds
        self._thread = threading.Thread(target=self._work, name=f"batcher {name}", daemon=True)
        metrics.queue_tokens.labels(name).set_function(lambda: self.queue.tokens)
        # Looked up only once, because looking up a label takes longer than incrementing the counter.
        self._waited, self._tokens = metrics.queue_seconds.labels(name), metrics.tokens.labels(name)
        self._sizes, self._failures = metrics.batch_tokens.labels(name), metrics.failures.labels(name)

    def start(self) -> None:
        """Start the thread, which first runs a probe; the model is ready when it has succeeded."""
        self._thread.start()

    @property
    def ready(self) -> bool:
        """Return whether a forward pass has succeeded within the last ``STALE_AFTER`` seconds."""
        return self.succeeded is not None and time.monotonic() - self.succeeded < STALE_AFTER

    @property
    def rate(self) -> float:
        """Return the recent throughput in tokens per second."""
        return self._done / self._spent

    @property
    def most_waiting(self) -> int:
        """Return the maximum number of waiting tokens: ``bound``, or what is computed within ``patience`` if less."""
        return int(min(self.queue.bound, self._patience * self.rate))

    def ahead(self, client: str = "", tokens: int = 0) -> int:
        """Return how many tokens of other jobs would be computed before a new job of this client and size is done.

        Includes what remains of the current batch, since a single text to correct may take as long as a full queue. One
        budget of it is ignored: a batch of usual size is nearly done by the time the job would be taken.
        """
        run, rests = self._at_work, []
        if run is not None:
            rest = run.tokens - int(run.seconds * self.rate) - self._budget
            rests = [(client, rest // len(run.clients)) for client in run.clients] if rest > 0 else []
        return self.queue.ahead(client, tokens, rests)

    def submit(self, job: Job) -> None:
        """Queue a job, or raise ``OverloadedError`` at once if it would miss its deadline."""
        waiting = self.ahead(job.client, job.tokens)
        # An empty queue accepts any job, because small batches underestimate the throughput of large ones.
        too_late = waiting > 0 and waiting + job.tokens > self._within * self.rate
        if too_late or waiting > self.most_waiting:
            raise self.overloaded(waiting)
        try:
            self.queue.put(job)
        except QueueFullError as error:
            raise self.overloaded(self.queue.tokens) from error

    def refusal(self, client: str, tokens: int) -> OverloadedError | None:
        """Return the error for a job of about this size that cannot be queued; None if it may fit.

        A queue that is less than half full refuses nothing here, because the size is only an estimate.
        """
        waiting, queue = self.ahead(client, tokens), self.queue
        if waiting > self.most_waiting:
            return self.overloaded(waiting)
        is_full = 2 * queue.tokens > queue.bound and not queue.has_room(tokens, client)
        return self.overloaded(queue.tokens) if is_full else None

    def overloaded(self, waiting: int) -> OverloadedError:
        """Return the error for a job that would have to wait for this many tokens, with a time to try again."""
        seconds = max(1, min(60, round(waiting / self.rate)))
        message = f"{waiting} tokens wait for model {self.name!r}, but at most {self.most_waiting} are allowed"
        return OverloadedError(f"{message}; try again in {seconds} s", retry_after=seconds)

    def cancel(self, job: Job) -> None:
        """Cancel a job whose results are no longer needed."""
        job.future.cancel()
        self.queue.discard(job)

    def drain(self, longest: float) -> bool:
        """Accept no more jobs, finish the waiting ones and end the thread.

        Returns:
            Whether the thread ended within ``longest`` seconds.
        """
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
            # A successful batch replaces a probe, which costs a forward pass. Requests that the model rejects do not
            # replace it, because they do not show whether the model works.
            if time.monotonic() - max(self._tried, self.succeeded or 0.0) >= PROBE_EVERY:
                self._try_out()

    def _try_out(self) -> None:
        self._tried = time.monotonic()
        try:
            self._probe()
            self.succeeded = time.monotonic()
        except BaseException:
            self._failures.inc()
            logger.exception("%s: the probe failed", self.name)

    def _run(self, batch: list[Item]) -> None:
        outer = self._at_work
        run = _Run(batch, nested=outer is not None)
        for item in batch:
            self._waited.observe(run.started - item.queued)
        key, tokens = batch[0].job.key, run.tokens
        self._at_work = run
        results = self._compute_results(key, run)
        seconds, self._at_work = run.seconds, outer
        self._metrics.inference_seconds.labels(self.name, key.operation).observe(seconds)
        self._sizes.observe(tokens)
        self._tokens.inc(tokens)
        for item, result in zip(batch, results, strict=True):
            _deliver(item, result)
        self.queue.charge(batch, run.seconds - run.charged, done=True)
        # Decayed sums rather than a mean of rates, so that full batches count more than batches of one text: they
        # show how fast a full queue empties.
        self._done = KEPT * self._done + tokens
        self._spent = KEPT * self._spent + run.seconds

    def _let_others_in(self, run: _Run) -> None:
        """Between two forward passes of a batch, compute other batches whose turn it is, in nested calls.

        Nested batches are within the budget and are not interrupted themselves, so the interrupted batch resumes soon.
        Other jobs of the same clients get at most as much time as the batch itself.
        """
        seconds, clients = run.seconds, run.clients
        if run.nested or seconds < UNINTERRUPTED:
            return
        # Charge the time so far first: the queue compares clients by the time that they have been charged.
        self.queue.charge(run.batch, seconds - run.charged, done=False)
        run.charged = seconds
        start = time.monotonic()
        while batch := self.queue.take(self._budget, 0.0, self._padding, clients, own=run.lent_to_own < seconds):
            began = time.monotonic()
            self._run(batch)
            if clients & {item.job.client for item in batch}:
                run.lent_to_own += time.monotonic() - began
        run.lent += time.monotonic() - start

    def _compute_results(self, key: BatchKey, run: _Run, part: list[Item] | None = None) -> list[Any]:
        """Compute one result per item: all together, or job by job if that fails."""
        batch = run.batch if part is None else part
        try:
            return self._compute_together(key, run, batch)
        except AbandonedError as error:
            return [error] * len(batch)
        except RequestError as error:
            jobs = _by_job(batch)
            if len(jobs) == 1:
                return [error] * len(batch)
        # Anything else is a bug, a lack of memory, or a panic of a Rust library, which is not an Exception. The thread
        # must survive all of them.
        except BaseException as error:
            self._failures.inc()
            logger.exception("%s: a batch of %d failed (%s)", self.name, len(batch), key.operation)
            jobs = _by_job(batch)
            if len(jobs) == 1:
                message = f"the model failed on this ({type(error).__name__}); see the log of the service"
                return [ModelFailedError(message)] * len(batch)
        results: dict[int, Any] = {}
        for items in jobs:
            results |= dict(zip(map(id, items), self._compute_results(key, run, items), strict=True))
        return [results[id(item)] for item in batch]

    def _compute_together(self, key: BatchKey, run: _Run, batch: list[Item]) -> list[Any]:
        def check() -> None:
            _check_wanted(batch)
            self._let_others_in(run)

        results = list(self._compute_batch(key, [item.value for item in batch], check))
        if len(results) != len(batch):
            raise RuntimeError(f"{len(results)} results for {len(batch)} inputs")
        if any(isinstance(result, ModelFailedError) for result in results):
            self._failures.inc()
        if not all(isinstance(result, Exception) for result in results):
            self.succeeded = time.monotonic()
        return results


def _check_wanted(batch: Sequence[Item]) -> None:
    """Raise ``AbandonedError`` if for every item the client has disconnected or the deadline has passed."""
    now = time.monotonic()
    if all(item.job.future.done() or now >= item.job.deadline for item in batch):
        raise AbandonedError("no client is waiting for this batch")


def _by_job(batch: list[Item]) -> list[list[Item]]:
    """Group the items of a batch by job."""
    groups: dict[int, list[Item]] = {}
    for item in batch:
        groups.setdefault(id(item.job), []).append(item)
    return list(groups.values())


def _deliver(item: Item, result: Any) -> None:
    """Add a result to its job; the last result completes the job's future, and an exception fails it."""
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
