"""Compare PyTorch's bfloat16 softmax of attention scores with one computed in float32.

    python benchmarks/softmax.py [--threads N] [--rounds 30]

The scores have the shape of eight sequences with MiniLM's twelve heads, for several numbers of tokens. The encoder uses
float32 if this number is not a multiple of 32. Prints the median milliseconds over alternating rounds.
"""

import argparse
import time
from collections.abc import Callable, Mapping
from statistics import median

import torch

from cloze.hardware import keep_freed_memory

LENGTHS = (45, 51, 60, 64, 80, 96, 128)


def medians(variants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median milliseconds of each variant."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, variant in variants.items():
            start = time.perf_counter()
            variant()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: median(some) for name, some in times.items()}


def softmax_ways(length: int) -> dict[str, Callable[[], object]]:
    """Return the two variants that convert scores to weights."""
    scores = torch.randn(8, 12, length, length).bfloat16()
    return {"PyTorch": lambda: scores.softmax(-1), "by float32": lambda: scores.float().softmax(-1).bfloat16()}


def main() -> None:
    """Parse the arguments and print one line per length."""
    parser = argparse.ArgumentParser(description="Compare bfloat16 softmax variants.")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    for length in LENGTHS:
        theirs, ours = medians(softmax_ways(length), arguments.rounds).values()
        print(
            f"{length:>4} tokens: PyTorch {theirs:.3f} ms, in float32 {ours:.3f} ms, {theirs / ours:.2f} x", flush=True
        )


if __name__ == "__main__":
    main()
