"""The queue of requests, shared fairly among clients and bounded in tokens. It knows neither HTTP nor models.

A request is a ``Job``. Its inputs wait as ``Item`` objects until they are taken in batches. ``take`` answers three
questions:

1. **Which client?** The one with the least computing time so far, as in fair queueing (Demers et al. 1989, "Analysis
   and simulation of a fair queueing algorithm"). A client that sends a lot delays only itself. ``charge`` adds the
   seconds of each computed batch to the ``tag`` of its clients, in proportion to their tokens. A new client starts at
   the fair share of everybody (``_shared``), not at 0, or it would have priority for a long time.
2. **Which of its jobs?** The one with the fewest waiting tokens, so that short requests do not wait for long ones. To
   keep long ones from starving, jobs have turns: after ``turn`` tokens, a job yields to the client's other jobs.
3. **Which items?** Those with the same ``BatchKey`` as the first one and the most similar lengths, because all
   sequences of a batch are padded to the longest. Other clients whose tags are nearly as low share the batch.

Two rules protect interactive clients, which wait for a response before they send their next request:

- While several clients are active, none gets more than its equal part of a batch.
- A client that is far ahead pauses for some milliseconds if one that is behind was answered just now, because its next
request is probably on its way ("Anticipatory scheduling", Iyer and Druschel 2001). Without this rule,
  a client with a long backlog would get every second batch.
"""

import math
import threading
import time
from collections.abc import Collection, Hashable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

# Number of waiting items among which those with the most similar lengths are chosen.
LOOK_AHEAD = 1024
LEAD = 0.05  # seconds of computing time by which a client may be ahead of others before it pauses for them
PAUSE = 0.02  # seconds for which it pauses
ACTIVE_FOR = 1.0  # seconds after its last response during which a client counts as active
FORGOTTEN_AFTER = 10.0  # seconds after its last response for which a client's lead is remembered


@dataclass(frozen=True)
class BatchKey:
    """The operation, adapter and options, which must be equal for inputs to share a batch."""

    operation: str
    adapter: str | None = None
    options: tuple[tuple[str, Hashable], ...] = ()


@dataclass(eq=False)
class Job:
    """One request: its inputs, the number of tokens of each, its deadline and its client."""

    key: BatchKey
    inputs: Sequence[Any]
    lengths: Sequence[int]
    deadline: float
    client: str = ""
    future: "Future[list[Any]]" = field(default_factory=Future)
    results: dict[int, Any] = field(default_factory=dict)
    items: "list[Item]" = field(default_factory=list)  # those still in the queue
    waiting: int = 0  # tokens in the queue
    # Progress among the jobs of its client: starts at the client's ``shared`` and grows by its computed tokens.
    tag: float = 0.0

    @property
    def tokens(self) -> int:
        """Return the total number of tokens of all inputs."""
        return sum(self.lengths)


@dataclass(eq=False, slots=True)
class Item:
    """One input of a job, in the queue or in a batch."""

    job: Job
    index: int
    length: int
    number: int
    queued: float

    @property
    def value(self) -> Any:
        """Return the input."""
        return self.job.inputs[self.index]


class QueueFullError(Exception):
    """The queue has no room for a job."""


class FairShare:
    """A bounded resource that several clients share, such as the tokens in a queue or the memory of request bodies.

    If the bound is reached, a client may still use up to an equal share of it, so that clients that came first cannot
    lock it out. The total never exceeds twice the bound.
    """

    def __init__(self, bound: int) -> None:
        self.bound, self.total = bound, 0
        self._amounts: dict[str, int] = {}

    def has_room(self, client: str, amount: int) -> bool:
        """Return whether a client may use ``amount`` more."""
        if self.total + amount <= self.bound:
            return True
        others = len(self._amounts) - (client in self._amounts)
        share = self.bound // (others + 1)
        own = self._amounts.get(client, 0) + amount
        return others > 0 and own <= share and self.total + amount <= 2 * self.bound

    def add(self, client: str, amount: int) -> None:
        """Add to the amount that a client uses; a negative amount releases it."""
        self.total += amount
        self._amounts[client] = self._amounts.get(client, 0) + amount
        if not self._amounts[client]:
            del self._amounts[client]


@dataclass(eq=False)
class _Client:
    """A client: its jobs in order of arrival, and its computing time."""

    # Virtual time: starts at the queue's ``_shared`` and grows by the client's computing time in seconds. The client
    # with the lowest tag is next.
    tag: float
    jobs: dict[Job, None] = field(default_factory=dict)
    tokens: int = 0  # waiting
    shared: float = 0.0  # tokens per job if all its jobs had always been served equally; the start of a new job's tag
    answered: float = -math.inf  # when its last batch was done
    at_work: int = 0  # number of items that are being computed

    def is_present(self, now: float, longest: float) -> bool:
        """Return whether it has waiting or running jobs, or was answered at most ``longest`` seconds ago."""
        return bool(self.jobs) or self.at_work > 0 or now - self.answered < longest


class TokenQueue:
    """A queue of jobs. Any thread may put and discard jobs; a single thread takes batches and charges for them.

    Args:
        bound: Maximum number of waiting tokens.
        turn: Number of tokens after which a job yields to the other jobs of its client, whatever their sizes.
    """

    def __init__(self, bound: int, turn: int = 2048) -> None:
        self.bound, self._turn, self.closed = bound, turn, False
        self._share = FairShare(bound)
        self._clients: dict[str, _Client] = {}
        self._shared = 0.0  # seconds per client if all had always been served equally; the start of a new client's tag
        self._number = 0
        self._changed = threading.Condition()

    @property
    def tokens(self) -> int:
        """Return the number of waiting tokens."""
        return self._share.total

    def has_room(self, tokens: int, client: str = "") -> bool:
        """Return whether this many more tokens of a client fit into the queue."""
        return self._share.has_room(client, tokens)

    def ahead(self, client: str, tokens: int, at_work: Iterable[tuple[str, int]] = ()) -> int:
        """Return how many tokens of other jobs would be computed before a new job is done.

        Since clients are served equally, each other client gets at most as much in this time as this one needs.

        Args:
            client: The client of the job.
            tokens: The number of tokens of the job.
            at_work: Clients with running batches, and the tokens of them that are not computed yet.
        """
        with self._changed:
            waiting = {name: other.tokens for name, other in self._clients.items()}
            own = self._clients.get(client)
            jobs = [job.waiting for job in own.jobs] if own is not None else []
            for name, rest in at_work:
                waiting[name] = waiting.get(name, 0) + rest
                jobs += [rest] if name == client else []
            before = sum(min(rest, tokens) for rest in jobs)
            before += min(sum(jobs) - before, self._turn)  # larger jobs of the client may have their turn first
            return before + sum(min(rest, before + tokens) for name, rest in waiting.items() if name != client)

    def put(self, job: Job) -> None:
        """Queue all inputs of a job, or raise ``QueueFullError`` if there is no room or the queue is closed."""
        now = time.monotonic()
        with self._changed:
            if self.closed or not self.has_room(job.tokens, job.client):
                raise QueueFullError
            client = self._clients.setdefault(job.client, _Client(self._shared))
            if not client.is_present(now, PAUSE):  # a client earns no priority while it is away
                client.tag = max(client.tag, self._shared)
            job.tag, job.waiting = client.shared, job.tokens
            for index, length in enumerate(job.lengths):
                self._number += 1
                job.items.append(Item(job, index, length, self._number, now))
            client.jobs[job] = None
            client.tokens += job.waiting
            self._share.add(job.client, job.waiting)
            self._changed.notify()

    def discard(self, job: Job) -> None:
        """Remove the waiting inputs of a job, which frees their room at once."""
        with self._changed:
            self._remove(job)

    def take(
        self,
        budget: int,
        wait: float,
        padding: float = math.inf,
        beside: Collection[str] = (),
        *,
        own: bool = False,
    ) -> list[Item]:
        """Take the next batch: a single item of any length, or several items within the limits.

        Args:
            budget: Maximum number of tokens of several items.
            wait: Seconds to wait for a job.
            padding: Maximum number of padding tokens.
            beside: The clients of a running batch that is interrupted for this one. If it is their turn, nothing is
                taken; nor are items that exceed the budget on their own.
            own: Whether other jobs of the clients in ``beside`` may be taken.

        Returns:
            The items; ``[]`` if there is no job within ``wait`` seconds, or the interrupted batch should resume.
        """
        end = time.monotonic() + wait
        with self._changed:
            while True:
                now = time.monotonic()
                name, items = self._next(now, budget if beside else None, () if own else beside)
                due = self._due(beside, name) if beside else name
                pause = 0.0 if due is None or self.closed else self._pause_before(self._clients[due], now)
                if pause <= 0 and due is not None:
                    return self._take(items, budget, padding, now) if due == name else []
                if due is None and (self.closed or now >= end):
                    return []
                self._changed.wait(pause if due is not None else end - now)
                if due is not None:
                    self._charge_absent(self._clients[due], time.monotonic() - now, now)

    def charge(self, batch: Sequence[Item], seconds: float, *, done: bool) -> None:
        """Charge computing time of a batch to its clients, in proportion to their tokens.

        Args:
            batch: The items.
            seconds: The computing time since the batch was last charged for.
            done: Whether the batch is complete; if not, it has been interrupted.
        """
        now = time.monotonic()
        total = sum(item.length for item in batch) or 1
        with self._changed:
            for item in batch:
                client = self._clients[item.job.client]
                client.tag += seconds * item.length / total
                client.at_work -= done
                client.answered = now if done else client.answered
            present = sum(client.is_present(now, PAUSE) for client in self._clients.values())
            self._shared += seconds / max(1, present)
            self._forget(now)

    def close(self) -> None:
        """Accept no more jobs; the waiting ones can still be taken."""
        with self._changed:
            self.closed = True
            self._changed.notify()

    # -- choosing a batch --------------------------------------------------------------------------------------------

    def _next(self, now: float, longest: int | None, without: Collection[str]) -> tuple[str | None, list[Item]]:
        """Return the client whose turn it is and the candidates for its batch; skip items longer than ``longest``."""
        self._drop_late(now)
        clients = [(name, client) for name, client in self._clients.items() if client.jobs and name not in without]
        order = sorted((client.tag, name) for name, client in clients)
        for tag, name in order:
            items = self._items_of(self._clients[name], None, longest)
            if not items:
                continue
            key = items[0].job.key
            for other_tag, other in order:
                if other != name and tag <= other_tag <= tag + LEAD and len(items) < LOOK_AHEAD:
                    items += self._items_of(self._clients[other], key, longest)
            return name, items[:LOOK_AHEAD]
        return None, []

    def _items_of(self, client: _Client, key: BatchKey | None, longest: int | None) -> list[Item]:
        """Return a client's items with this key, or with the key of its first item if None.

        Jobs are ordered by the number of turns they have had, and then by their waiting tokens.
        """
        found: list[Item] = []
        for job in sorted(client.jobs, key=lambda job: (job.tag // self._turn, job.waiting)):
            if key is not None and job.key != key:
                continue
            items = (item for item in job.items if longest is None or item.length <= longest)
            found += islice(items, LOOK_AHEAD - len(found))
            if found:
                key = found[0].job.key
            if len(found) == LOOK_AHEAD:
                break
        return found

    def _due(self, beside: Collection[str], name: str | None) -> str | None:
        """Return whose turn it is: a client of the interrupted batch, or the waiting client ``name``."""
        first = min(beside, key=lambda client: self._clients[client].tag)
        if name is None or self._clients[first].tag < self._clients[name].tag:
            return first
        return name

    def _pause_before(self, client: _Client, now: float) -> float:
        """Return the seconds for which ``client`` pauses, in favour of clients far behind it; 0 if there are none."""
        return max((other.answered + PAUSE - now for other in self._absent(client, now)), default=0.0)

    def _absent(self, client: _Client, now: float) -> list[_Client]:
        """Return the clients far behind ``client`` that were answered just now and have not sent a request since."""
        return [
            other
            for other in self._clients.values()
            if not other.jobs and not other.at_work and now - other.answered < PAUSE and client.tag - other.tag > LEAD
        ]

    def _charge_absent(self, client: _Client, seconds: float, then: float) -> None:
        """Charge a pause to the clients it was made for, so that clients that never use it get no further pause."""
        absent = self._absent(client, then)
        for other in absent:
            other.tag += seconds / len(absent)
        self._shared += seconds / max(1, len(self._clients))

    def _take(self, items: list[Item], budget: int, padding: float, now: float) -> list[Item]:
        """Choose a batch among the candidates, and remove its items from the queue."""
        active = sum(client.is_present(now, ACTIVE_FOR) for client in self._clients.values())
        batch = _choose(items, budget, padding, budget // active)
        for item in batch:
            job, client = item.job, self._clients[item.job.client]
            client.shared += item.length / len(client.jobs)
            job.tag += item.length
            job.waiting -= item.length
            client.tokens -= item.length
            client.at_work += 1
            self._share.add(job.client, -item.length)
        taken = set(map(id, batch))
        for job in {item.job for item in batch}:
            job.items = [item for item in job.items if id(item) not in taken]
            if not job.items:
                self._remove(job)
        return batch

    # -- removing jobs and clients -----------------------------------------------------------------------------------

    def _drop_late(self, now: float) -> None:
        """Remove the jobs whose deadline has passed or whose client has disconnected."""
        jobs = [job for client in self._clients.values() for job in client.jobs]
        for job in jobs:
            if now >= job.deadline:
                job.future.cancel()
            if job.future.done():
                self._remove(job)

    def _remove(self, job: Job) -> None:
        """Remove a job with its waiting items, if it is still in the queue."""
        client = self._clients.get(job.client)
        if client is None or job not in client.jobs:
            return
        del client.jobs[job]
        client.tokens -= job.waiting
        self._share.add(job.client, -job.waiting)
        job.waiting, job.items = 0, []

    def _forget(self, now: float) -> None:
        """Forget clients that are gone; those ahead of others are remembered longer, so that they keep their lead."""
        for name, client in list(self._clients.items()):
            patience = ACTIVE_FOR if client.tag <= self._shared else FORGOTTEN_AFTER
            if not client.is_present(now, patience):
                del self._clients[name]


def _choose(items: list[Item], budget: int, padding: float, most: int) -> list[Item]:
    """Choose the first item and those with the most similar lengths, within the limits of ``TokenQueue.take``.

    Each client gets at most ``most`` tokens; items of equal similarity are chosen in order of priority.
    """
    first = items[0].length
    chosen: list[Item] = []
    used: dict[str, int] = {}
    longest = real = 0  # tokens of the longest item; tokens of all chosen items, without padding
    for item in sorted(items, key=lambda item: abs(item.length - first)):
        own = used.get(item.job.client, 0) + item.length
        if chosen and own > most:
            continue
        longest, real = max(longest, item.length), real + item.length
        padded = (len(chosen) + 1) * longest
        if chosen and (real > budget or padded - real > padding):
            break
        used[item.job.client] = own
        chosen.append(item)
    return chosen
