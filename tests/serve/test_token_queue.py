"""The queue: bounded in tokens, fair, and batches of like lengths."""

import time
from concurrent.futures import CancelledError

import pytest

from cloze.serve.queue import BatchKey, Job, QueueFullError, TokenQueue

EMBED, FILL = BatchKey("embed"), BatchKey("fill")


def job(*lengths: int, kind: BatchKey = EMBED, seconds: float = 60, client: str = "") -> Job:
    texts = [f"text {index}" for index in range(len(lengths))]
    return Job(kind, texts, lengths, time.monotonic() + seconds, client)


def taken(queue: TokenQueue, budget: int = 100) -> list[int]:
    return [item.length for item in queue.take(budget, wait=0)]


def test_bound_is_in_tokens_and_jobs_are_whole() -> None:
    queue = TokenQueue(bound=20)
    queue.put(job(8, 8))
    with pytest.raises(QueueFullError):
        queue.put(job(3, 2))
    queue.put(job(4))
    assert queue.tokens == 20
    assert taken(queue) == [8, 8, 4]
    assert (queue.tokens, taken(queue)) == (0, [])


def test_batches_are_of_like_lengths_within_the_budget() -> None:
    queue = TokenQueue(bound=1000)
    queue.put(job(10, 90, 11, 50, 9, 12))
    assert taken(queue, budget=40) == [10, 11, 9]  # a fourth would make them 42
    assert taken(queue, budget=40) == [90]  # the oldest, though it is too long for any budget
    assert taken(queue, budget=60) == [50]
    assert taken(queue, budget=60) == [12]


def test_no_more_is_padded_than_may_be() -> None:
    queue = TokenQueue(bound=1000)
    queue.put(job(10, 13, 10, 11, 9, 10))
    batches = [[item.length for item in queue.take(100, wait=0, padding=2)] for _ in range(3)]
    assert batches == [[10, 10, 10], [13, 11], [9]]  # 11 beside three of 10 would pad 3


def test_the_oldest_job_comes_first_whatever_its_kind() -> None:
    queue = TokenQueue(bound=1000)
    jobs = [job(5, 90), job(5, kind=FILL), job(5)]
    for one in jobs:
        queue.put(one)
    batches = [[(jobs.index(item.job), item.length) for item in queue.take(20, wait=0)] for _ in range(3)]
    assert batches == [[(0, 5), (2, 5)], [(0, 90)], [(1, 5)]]


def test_kinds_do_not_mix() -> None:
    queue = TokenQueue(bound=1000)
    kinds = [EMBED, BatchKey("embed", "adapter"), BatchKey("embed", None, (("layer", 1),)), EMBED]
    for kind in kinds:
        queue.put(job(5, kind=kind))
    batches = [[item.job.key for item in queue.take(100, wait=0)] for _ in range(3)]
    assert batches == [[kinds[0], kinds[0]], [kinds[1]], [kinds[2]]]


def test_what_is_discarded_frees_its_room_at_once() -> None:
    queue = TokenQueue(bound=20)
    gone, kept = job(10, 5), job(5)
    queue.put(gone)
    queue.put(kept)
    queue.discard(gone)
    assert queue.tokens == 5
    queue.discard(gone)
    assert queue.tokens == 5
    assert [item.job for item in queue.take(100, wait=0)] == [kept]


def test_what_was_partly_taken_can_be_discarded() -> None:
    queue = TokenQueue(bound=100)
    half = job(10, 50)
    queue.put(half)
    assert taken(queue, budget=20) == [10]
    queue.discard(half)
    assert (queue.tokens, taken(queue)) == (0, [])


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
    assert len(queue._clients) == 2  # those that were answered just now


def test_what_is_late_is_dropped() -> None:
    queue = TokenQueue(bound=100)
    late, good = job(10, 10, seconds=-1), job(10)
    queue.put(late)
    queue.put(good)
    assert [item.job for item in queue.take(100, wait=0)] == [good]
    assert queue.tokens == 0
    with pytest.raises(CancelledError):
        late.future.result(timeout=0)


def test_a_closed_queue_takes_nothing_and_gives_what_it_has() -> None:
    queue = TokenQueue(bound=100)
    queue.put(job(10))
    queue.close()
    with pytest.raises(QueueFullError):
        queue.put(job(10))
    assert taken(queue) == [10]
    assert taken(queue) == []


def test_who_leaves_without_a_word() -> None:
    queue = TokenQueue(bound=100)
    leaving, staying = job(5), job(6, kind=FILL)
    queue.put(leaving)
    queue.put(staying)
    leaving.future.cancel()  # as a client's task does, without asking the queue
    assert [item.job for item in queue.take(100, wait=0)] == [staying]
    assert taken(queue) == []
