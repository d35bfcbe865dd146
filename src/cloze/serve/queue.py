"""The queue of requests, shared fairly by clients and bounded in tokens. Knows neither HTTP nor models.

A request is a ``Job``; its inputs wait until they are taken in batches. The next batch is that of the client that has
had the least computing time, as in fair queueing (Demers et al. 1989, "Analysis and simulation of a fair queueing
algorithm"): a client that sends much waits for itself, not the others for it. Of one client's jobs, the one with the
fewest tokens left comes first, but none has more than a turn more than the others. A batch has inputs of one
``BatchKey``, of nearly equal lengths, so that there is little padding; clients whose turn is near share it.

Two rules protect clients that wait for an answer before they send their next request. While several clients are
active, none fills more than its part of a batch. And a client that is far ahead pauses for some milliseconds where one
that is behind has just been answered, since its next request is likely on its way (anticipation, as in Iyer and
Druschel 2001, "Anticipatory scheduling").
"""

import math
import threading
import time
from collections.abc import Collection, Hashable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

# Number of waiting inputs among which those of the nearest lengths are chosen.
LOOK_AHEAD = 1024
# Seconds of computing by which a client may be ahead of others before it pauses for them, and for which it pauses.
LEAD = 0.05
PAUSE = 0.02
ACTIVE_FOR = 1.0  # seconds after its last answer during which a client counts as active
FORGOTTEN_AFTER = 10.0  # seconds after its last answer in which a client's lead is remembered


@dataclass(frozen=True)
class BatchKey:
    """What inputs must have in common to share a batch."""

    operation: str
    adapter: str | None = None
    options: tuple[tuple[str, Hashable], ...] = ()


@dataclass(eq=False)
class Job:
    """One request: its inputs, the tokens of each, its deadline and its client."""

    key: BatchKey
    inputs: Sequence[Any]
    lengths: Sequence[int]
    deadline: float
    client: str = ""
    future: "Future[list[Any]]" = field(default_factory=Future)
    results: dict[int, Any] = field(default_factory=dict)
    items: "list[Item]" = field(default_factory=list)  # in the queue
    waiting: int = 0  # tokens in the queue
    tag: float = 0.0  # tokens that its client's jobs have had when it came, and its own since

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

    @property
    def value(self) -> Any:
        """Return the input."""
        return self.job.inputs[self.index]


class QueueFullError(Exception):
    """The queue has no room for a job."""


class FairShare:
    """A bounded amount, used by several clients.

    Beyond the bound, a client still has room up to an equal share of it, so that others who came first cannot lock it
    out. All together never use more than twice the bound.
    """

    def __init__(self, bound: int) -> None:
        self.bound, self.total = bound, 0
        self._amounts: dict[str, int] = {}

    def has_room(self, client: str, amount: int) -> bool:
        """Return whether a client may use this much more."""
        if self.total + amount <= self.bound:
            return True
        others = len(self._amounts) - (client in self._amounts)
        share = self.bound // (others + 1)
        own = self._amounts.get(client, 0) + amount
        return others > 0 and own <= share and self.total + amount <= 2 * self.bound

    def add(self, client: str, amount: int) -> None:
        """Add to what a client uses, or subtract from it."""
        self.total += amount
        self._amounts[client] = self._amounts.get(client, 0) + amount
        if not self._amounts[client]:
            del self._amounts[client]


@dataclass(eq=False)
class _Client:
    """A client's jobs in order of arrival, and its computing time."""

    tag: float  # seconds that every client has had when it came, and its own since
    jobs: dict[Job, None] = field(default_factory=dict)
    tokens: int = 0  # that wait
    shared: float = 0.0  # tokens that each of its jobs would have had, had all of them always been served equally
    answered: float = -math.inf  # when its last batch was done
    at_work: int = 0  # items that are being computed

    def is_present(self, now: float, longest: float) -> bool:
        """Return whether it waits, is being computed for, or has been answered so many seconds ago at most."""
        return bool(self.jobs) or self.at_work > 0 or now - self.answered < longest


class TokenQueue:
    """A queue of jobs, bounded in tokens. Any thread may put and discard; one thread takes batches.

    ``turn`` is the number of tokens after which a job lets its client's other jobs go first, whatever their size.
    """

    def __init__(self, bound: int, turn: int = 2048) -> None:
        self.bound, self._turn, self.closed = bound, turn, False
        self._share = FairShare(bound)
        self._clients: dict[str, _Client] = {}
        self._shared = 0.0  # seconds that each client would have had, had all of them always been served equally
        self._number = 0
        self._changed = threading.Condition()

    @property
    def tokens(self) -> int:
        """Return the tokens that wait."""
        return self._share.total

    def has_room(self, tokens: int, client: str = "") -> bool:
        """Return whether this many more tokens of a client fit."""
        return self._share.has_room(client, tokens)

    def ahead(self, client: str, tokens: int, at_work: Iterable[tuple[str, int]] = ()) -> int:
        """Return the tokens that would be computed before a new job of a client is done, without its own.

        Args:
            client: The client.
            tokens: The tokens of the job.
            at_work: Clients and the tokens that are still to be computed of batches at work.
        """
        with self._changed:
            waiting = {name: other.tokens for name, other in self._clients.items()}
            own = self._clients.get(client)
            jobs = [job.waiting for job in own.jobs] if own is not None else []
            for name, rest in at_work:
                waiting[name] = waiting.get(name, 0) + rest
                jobs += [rest] if name == client else []
            before = sum(min(rest, tokens) for rest in jobs)
            before += min(sum(jobs) - before, self._turn)  # larger jobs may have their turn first
            return before + sum(min(rest, before + tokens) for name, rest in waiting.items() if name != client)

    def put(self, job: Job) -> None:
        """Queue all inputs of a job, or raise ``QueueFullError``."""
        now = time.monotonic()
        with self._changed:
            if self.closed or not self.has_room(job.tokens, job.client):
                raise QueueFullError
            client = self._clients.setdefault(job.client, _Client(self._shared))
            if not client.is_present(now, PAUSE):  # time that passed without it is not owed to it
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
        """Remove the waiting inputs of a job; their room is free at once."""
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
        """Take the next batch: one item, or several with at most ``budget`` tokens and ``padding`` padding tokens.

        Args:
            budget: Most tokens.
            wait: Seconds to wait for a job; ``[]`` is returned if there is none.
            padding: Most padding tokens.
            beside: The clients of a batch at work that is interrupted: ``[]`` is returned if it is their turn, and
                items that alone exceed the budget are not taken.
            own: Whether other jobs of these clients may be taken.
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
        """Charge the computing time of a batch, or of a part of it, to its clients."""
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
        """Accept no more jobs; waiting ones can still be taken."""
        with self._changed:
            self.closed = True
            self._changed.notify()

    # -- choosing a batch --------------------------------------------------------------------------------------------

    def _next(self, now: float, longest: int | None, without: Collection[str]) -> tuple[str | None, list[Item]]:
        """Return the client whose turn it is and the candidates for its batch, the one that comes first in front.

        Items longer than ``longest`` are passed over.
        """
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
        """Return a client's items with a key, or with that of the first; of jobs in turn, the smallest first."""
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
        """Return which client's turn it is: that of a batch at work, or one that waits."""
        first = min(beside, key=lambda client: self._clients[client].tag)
        if name is None or self._clients[first].tag < self._clients[name].tag:
            return first
        return name

    def _pause_before(self, client: _Client, now: float) -> float:
        """Return the seconds to wait for a client that is far behind and was answered just now; 0 if there is none."""
        return max((other.answered + PAUSE - now for other in self._absent(client, now)), default=0.0)

    def _absent(self, client: _Client, now: float) -> list[_Client]:
        return [
            other
            for other in self._clients.values()
            if not other.jobs and not other.at_work and now - other.answered < PAUSE and client.tag - other.tag > LEAD
        ]

    def _charge_absent(self, client: _Client, seconds: float, then: float) -> None:
        """Charge a pause to those it was made for: who never uses it does not get another."""
        absent = self._absent(client, then)
        for other in absent:
            other.tag += seconds / len(absent)
        self._shared += seconds / max(1, len(self._clients))

    def _take(self, items: list[Item], budget: int, padding: float, now: float) -> list[Item]:
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

    # -- leaving -----------------------------------------------------------------------------------------------------

    def _drop_late(self, now: float) -> None:
        """Remove the jobs whose deadline has passed or whose client has disconnected."""
        jobs = [job for client in self._clients.values() for job in client.jobs]
        for job in jobs:
            if now >= job.deadline:
                job.future.cancel()
            if job.future.done():
                self._remove(job)

    def _remove(self, job: Job) -> None:
        client = self._clients.get(job.client)
        if client is None or job not in client.jobs:
            return
        del client.jobs[job]
        client.tokens -= job.waiting
        self._share.add(job.client, -job.waiting)
        job.waiting, job.items = 0, []

    def _forget(self, now: float) -> None:
        """Forget clients that are gone and not ahead of the others."""
        for name, client in list(self._clients.items()):
            patience = ACTIVE_FOR if client.tag <= self._shared else FORGOTTEN_AFTER
            if not client.is_present(now, patience):
                del self._clients[name]


def _choose(items: list[Item], budget: int, padding: float, most: int) -> list[Item]:
    """Choose the first item and those nearest in length, at most ``most`` tokens of a client; earlier ones first."""
    first = items[0].length
    chosen: list[Item] = []
    used: dict[str, int] = {}
    longest = real = 0
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
