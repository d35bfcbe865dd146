"""Which of several ways to compute is the fastest, asked on a machine that others may be using, too."""

import time
from collections.abc import Callable, Sequence

import torch

ROUNDS = 5


@torch.inference_mode()
def best_seconds(calls: Sequence[Callable[[], object]]) -> list[float]:
    """The best time of each call, of a few in turns, so that all of them meet the same neighbours.

    With one thread. Where another process has a core, two threads wait for each other at the end of every operation,
    and what is measured is the waiting: bfloat16 with twice the speed of float32 then looked slower, time after time.
    """
    best = [float("inf")] * len(calls)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(ROUNDS):
            for number, call in enumerate(calls):
                start = time.perf_counter()
                call()
                best[number] = min(best[number], time.perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
    return best
