"""Requests -> batches: a queue that is bounded in tokens and hands out what goes well together.

Items wait in lanes of those that may share a forward pass. A batch starts with the oldest item of all, so that nothing
waits for ever, and takes from the same lane those that are nearest to it in length, so that little is padding.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

# How far back in a lane items of a better length are looked for.
LOOK_AHEAD = 1024


@dataclass(frozen=True)
class Kind:
    """What must be the same for items to be computed together."""

    operation: str
    adapter: str | None = None
    options: tuple[tuple[str, Hashable], ...] = ()


@dataclass(eq=False)
class Job:
    """One request: its inputs, how many tokens each has, and until when an answer is worth anything."""

    kind: Kind
    inputs: Sequence[Any]
    lengths: Sequence[int]
    deadline: float
    future: "Future[list[Any]]" = field(default_factory=Future)
    results: dict[int, Any] = field(default_factory=dict)
    waiting: int = 0  # tokens that are in the queue

    @property
    def tokens(self) -> int:
        """Of all inputs."""
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
        """The input itself."""
        return self.job.inputs[self.index]


class QueueFullError(Exception):
    """There is no room for a job now."""


class TokenQueue:
    """Jobs in, batches of items out; any thread may put and discard, one takes."""

    def __init__(self, bound: int) -> None:
        self.bound, self.tokens = bound, 0
        self.closed = False
        self._lanes: dict[Kind, deque[Item]] = {}
        self._number = self._stale = 0
        self._changed = threading.Condition()

    def has_room(self, tokens: int) -> bool:
        """Whether so many more would fit."""
        return self.tokens + tokens <= self.bound

    def put(self, job: Job) -> None:
        """Let a job wait, whole or not at all."""
        now = time.monotonic()
        with self._changed:
            if self.closed or not self.has_room(job.tokens):
                raise QueueFullError
            lane = self._lanes.setdefault(job.kind, deque())
            for index, length in enumerate(job.lengths):
                self._number += 1
                lane.append(Item(job, index, length, self._number, now))
            job.waiting = job.tokens
            self.tokens += job.waiting
            self._changed.notify()

    def discard(self, job: Job) -> None:
        """Forget what of a job still waits: its room is free at once."""
        with self._changed:
            self._release(job)
            # Its items stay in their lanes until they are met. Whoever asks and leaves again and again must not make
            # these grow without an end.
            if self._stale > self.bound:
                self._sweep()

    def take(self, budget: int, wait: float, padding: float = math.inf) -> list[Item]:
        """The next batch: one item, or more with at most ``budget`` tokens and so much ``padding`` beside them.

        None after ``wait`` seconds.
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
        """Take no more jobs; what waits can still be taken."""
        with self._changed:
            self.closed = True
            self._changed.notify()

    def _next(self) -> list[Item]:
        """What may be computed next, the oldest first; none if nothing waits."""
        while (lane := self._oldest()) is not None:
            # Whoever asked may leave at any time, also since this lane was chosen.
            if items := list(islice((item for item in lane if _waits(item)), LOOK_AHEAD)):
                return items
        return []

    def _oldest(self) -> deque[Item] | None:
        """The lane whose first item waits longest; what is not waiting any more is dropped on the way."""
        now = time.monotonic()
        for kind, lane in list(self._lanes.items()):
            while lane and not _waits(lane[0], now):
                self._drop(lane.popleft())
            if not lane:
                del self._lanes[kind]
        return min(self._lanes.values(), key=lambda lane: lane[0].number, default=None)

    def _drop(self, item: Item) -> None:
        if not item.taken and item.job.waiting:  # past its deadline: nobody waits for the rest of it either
            self._release(item.job)
            item.job.future.cancel()

    def _release(self, job: Job) -> None:
        self._stale += job.waiting
        self.tokens -= job.waiting
        job.waiting = 0

    def _sweep(self) -> None:
        lanes = {kind: deque(item for item in lane if _waits(item)) for kind, lane in self._lanes.items()}
        self._lanes = {kind: lane for kind, lane in lanes.items() if lane}
        self._stale = 0


def _waits(item: Item, now: float = 0.0) -> bool:
    """Whether an item is still to be computed."""
    return not item.taken and item.job.waiting > 0 and not item.job.future.done() and now < item.job.deadline


def _choose(items: list[Item], budget: int, padding: float) -> list[Item]:
    """The first item and those nearest in length; of equally near ones, the older."""
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
