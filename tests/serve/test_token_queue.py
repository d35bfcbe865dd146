"""The queue: bounded in tokens, fair, with batches of similar lengths."""

import threading
import time
from concurrent.futures import CancelledError
from typing import Any

import pytest

from cloze.serve.queue import BatchKey, Job, QueueFullError, TokenQueue

EMBED, FILL = BatchKey("embed"), BatchKey("fill")


def job(*lengths: int, kind: BatchKey = EMBED, seconds: float = 60, client: str = "") -> Job:
    texts = [f"text {index}" for index in range(len(lengths))]
    return Job(kind, texts, lengths, time.monotonic() + seconds, client)


def taken_lengths(queue: TokenQueue, budget: int = 100) -> list[int]:
    return [item.length for item in queue.take(budget, wait=0)]


def test_bound_is_in_tokens_and_jobs_are_whole() -> None:
    queue = TokenQueue(bound=20)
    queue.put(job(8, 8))
    with pytest.raises(QueueFullError):
        queue.put(job(3, 2))
    queue.put(job(4))
    assert queue.tokens == 20
    assert sorted(taken_lengths(queue)) == [4, 8, 8]
    assert (queue.tokens, taken_lengths(queue)) == (0, [])


def test_batches_are_of_like_lengths_within_the_budget() -> None:
    queue = TokenQueue(bound=1000)
    queue.put(job(10, 90, 11, 50, 9, 12))
    assert taken_lengths(queue, budget=40) == [10, 11, 9]  # a fourth would make them 42
    assert taken_lengths(queue, budget=40) == [90]  # the oldest job, although it is too long for any budget
    assert taken_lengths(queue, budget=60) == [50]
    assert taken_lengths(queue, budget=60) == [12]


def test_padding_is_bounded() -> None:
    queue = TokenQueue(bound=1000)
    queue.put(job(10, 13, 10, 11, 9, 10))
    batches = [[item.length for item in queue.take(100, wait=0, padding=2)] for _ in range(3)]
    assert batches == [[10, 10, 10], [13, 11], [9]]  # 11 with three items of 10 would add 3 padding tokens


def test_the_smallest_job_is_first_regardless_of_kind() -> None:
    queue = TokenQueue(bound=1000)
    jobs = [job(5, 90), job(5, kind=FILL), job(5)]
    for one in jobs:
        queue.put(one)
    batches = [[(jobs.index(item.job), item.length) for item in queue.take(20, wait=0)] for _ in range(3)]
    assert batches == [[(1, 5)], [(2, 5), (0, 5)], [(0, 90)]]


def test_kinds_do_not_mix() -> None:
    queue = TokenQueue(bound=1000)
    kinds = [EMBED, BatchKey("embed", "adapter"), BatchKey("embed", None, (("layer", 1),)), EMBED]
    for kind in kinds:
        queue.put(job(5, kind=kind))
    batches = [[item.job.key for item in queue.take(100, wait=0)] for _ in range(3)]
    assert batches == [[kinds[0], kinds[0]], [kinds[1]], [kinds[2]]]


def test_discarded_jobs_free_space_immediately() -> None:
    queue = TokenQueue(bound=20)
    gone, kept = job(10, 5), job(5)
    queue.put(gone)
    queue.put(kept)
    queue.discard(gone)
    assert queue.tokens == 5
    queue.discard(gone)
    assert queue.tokens == 5
    assert [item.job for item in queue.take(100, wait=0)] == [kept]


def test_partly_taken_jobs_can_be_discarded() -> None:
    queue = TokenQueue(bound=100)
    half = job(10, 50)
    queue.put(half)
    assert taken_lengths(queue, budget=20) == [10]
    queue.discard(half)
    assert (queue.tokens, taken_lengths(queue)) == (0, [])


def test_asking_and_leaving_does_not_grow_the_queue() -> None:
    queue = TokenQueue(bound=20)
    for number in range(500):
        one = job(20, client=f"10.0.0.{number}")
        queue.put(one)
        queue.discard(one)
    before, last = job(5), job(5, client="10.0.0.1")
    for one in (before, last):
        queue.put(one)
        queue.charge(queue.take(100, wait=0), 0.0, done=True)
    assert not queue._share._amounts
    assert not any(client.jobs for client in queue._clients.values())
    assert len(queue._clients) == 2  # the clients that were served most recently


def test_late_jobs_are_dropped() -> None:
    queue = TokenQueue(bound=100)
    late, good = job(10, 10, seconds=-1), job(10)
    queue.put(late)
    queue.put(good)
    assert [item.job for item in queue.take(100, wait=0)] == [good]
    assert queue.tokens == 0
    with pytest.raises(CancelledError):
        late.future.result(timeout=0)


def test_a_closed_queue_rejects_jobs_and_drains() -> None:
    queue = TokenQueue(bound=100)
    queue.put(job(10))
    queue.close()
    with pytest.raises(QueueFullError):
        queue.put(job(10))
    assert taken_lengths(queue) == [10]
    assert taken_lengths(queue) == []


def test_cancelled_futures_are_removed() -> None:
    queue = TokenQueue(bound=100)
    leaving, staying = job(5), job(6, kind=FILL)
    queue.put(leaving)
    queue.put(staying)
    leaving.future.cancel()  # as a client's task does, without notifying the queue
    assert [item.job for item in queue.take(100, wait=0)] == [staying]
    assert taken_lengths(queue) == []


def names(queue: TokenQueue, budget: int = 100, **how: Any) -> list[str]:
    """Return the clients of the next batch, which takes one second per ten tokens."""
    batch = queue.take(budget, wait=0, **how)
    queue.charge(batch, sum(item.length for item in batch) / 10, done=True)
    return [item.job.client for item in batch]


def contended(greedy: int) -> TokenQueue:
    """Return a queue in which a greedy client has used ten times the time of a modest one."""
    queue = TokenQueue(bound=10_000)
    queue.put(job(*[20] * greedy, client="greedy"))
    queue.put(job(10, kind=FILL, client="modest"))
    assert names(queue) == ["greedy"] * 2  # it arrived first, but its share is half of a batch
    assert names(queue) == ["modest"]
    return queue


def test_clients_take_turns_by_the_time_they_have_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloze.serve.queue.PAUSE", 0.0)
    queue = TokenQueue(bound=1000)
    for _ in range(6):
        queue.put(job(60, client="greedy"))
        queue.put(job(20, client="modest"))
    served = [names(queue, budget=60)[0] for _ in range(6)]
    assert served.count("modest") >= 4  # 20 tokens at a time
    queue.put(job(60, client="later"))  # a new client gets no credit for the time before it arrived
    order = [names(queue, budget=60)[0] for _ in range(4)]
    assert order.count("later") == 1
    assert "greedy" in order


def test_no_client_exceeds_its_share_of_a_batch() -> None:
    queue = TokenQueue(bound=1000)
    queue.put(job(*[10] * 30, client="greedy"))
    assert names(queue) == ["greedy"] * 10  # it is the only client
    queue.put(job(10, client="modest"))
    assert sorted(names(queue)) == [*["greedy"] * 5, "modest"]
    queue.closed = True  # a closed queue does not pause
    assert names(queue) == ["greedy"] * 5  # another client has been active recently


def test_clients_ahead_pause_for_recently_served_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloze.serve.queue.PAUSE", 5.0)
    queue = contended(30)
    found: list[str] = []
    taking = threading.Thread(target=lambda: found.extend(names(queue)))
    taking.start()
    taking.join(0.2)
    assert taking.is_alive()
    queue.put(job(10, client="modest"))  # its next request arrives
    taking.join(10)
    assert found == ["modest"]


def test_a_pause_is_charged_to_those_it_was_made_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloze.serve.queue.PAUSE", 0.05)
    queue = contended(30)
    before = queue._clients["modest"].tag
    assert names(queue) == ["greedy"] * 2
    assert queue._clients["modest"].tag - before == pytest.approx(0.05, abs=0.04)


def test_others_get_a_turn_during_a_running_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloze.serve.queue.PAUSE", 0.0)
    queue = TokenQueue(bound=10_000)
    queue.put(job(1000, client="greedy"))
    long = queue.take(100, wait=0)
    queue.charge(long, 1.0, done=False)
    queue.put(job(10, client="greedy"))
    queue.put(job(1000, client="other"))  # too long for a batch that interrupts another one
    assert names(queue, beside={"greedy"}) == []
    queue.put(job(10, client="modest"))
    assert names(queue, beside={"greedy"}) == ["modest"]
    queue.charge(long, 1.0, done=False)
    assert names(queue, beside={"greedy"}) == []
    assert names(queue, beside={"greedy"}, own=True) == ["greedy"]
    queue.charge(long, 1.0, done=True)
    assert {name for _ in range(2) for name in names(queue)} == {"other"}


def test_a_large_job_yields_after_a_turn() -> None:
    queue = TokenQueue(bound=10_000, turn=200)
    large = job(*[10] * 100)
    queue.put(large)
    sizes: list[int] = []
    for _ in range(12):
        queue.put(job(10))
        batch = queue.take(100, wait=0)
        sizes.append(sum(item.job is large for item in batch))
        queue.charge(batch, 0.1, done=True)
    assert all(size < 10 for size in sizes)  # the small job is in every batch
    assert sum(sizes) >= 50


def test_a_large_job_is_not_starved_by_small_ones() -> None:
    queue = TokenQueue(bound=10**6, turn=200)
    large = job(100, 100, 100)
    queue.put(large)
    batches = 0
    while large.items and batches < 100:
        while queue.tokens - large.waiting < 400:  # there are always ten others
            queue.put(job(*[10] * 4))
        queue.charge(queue.take(100, wait=0), 0.1, done=True)
        batches += 1
    assert batches < 100


def test_a_full_queue_has_space_for_small_clients() -> None:
    queue = TokenQueue(bound=100)
    queue.put(job(100, client="greedy"))
    for client, size, fits in (("greedy", 1, False), ("modest", 51, False), ("modest", 50, True), ("modest", 1, False)):
        assert queue.has_room(size, client) is fits
        if fits:
            queue.put(job(size, client=client))
    others = [f"client {number}" for number in range(100)]
    for other in others:
        if queue.has_room(1, other):
            queue.put(job(1, client=other))
    assert queue.tokens <= 200  # twice the bound, for any number of clients


def test_tokens_ahead_of_a_job() -> None:
    queue = TokenQueue(bound=10_000, turn=200)
    queue.put(job(1000, client="greedy"))
    queue.put(job(20, client="modest"))
    assert queue.ahead("new", 10) == 10 + 10  # the same amount from each of the other clients, in turn
    assert queue.ahead("modest", 50) == 20 + 70
    assert queue.ahead("greedy", 50) == (50 + 200) + 20  # one turn of its own large job
    assert queue.ahead("greedy", 5000) == 1000 + 20
    assert queue.ahead("new", 10, [("greedy", 500), ("new", 30)]) == 30 + 40 + 20
