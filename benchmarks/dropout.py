"""Compare the cost of PyTorch's and cloze's dropout on a CPU, forward and backward.

    python benchmarks/dropout.py [--threads 1]

The input has the shape of a mini model's attention weights; rounds alternate. Prints the nanoseconds per element (best
and median of twenty rounds), their ratio, and the actual share of dropped elements.
"""

import argparse
import time
from statistics import median

import torch
from torch import Tensor, nn

from cloze.model.building_blocks import Dropout

SHAPE = (32, 4, 128, 128)  # 32 sequences, 4 heads, 128 x 128 tokens
ROUNDS = 20


def timed(module: nn.Module, values: Tensor) -> float:
    """Return the seconds of one forward and backward pass."""
    start = time.perf_counter()
    module(values).sum().backward()
    return time.perf_counter() - start


def main() -> None:
    """Parse the arguments and print the table."""
    parser = argparse.ArgumentParser(description="Compare the cost of dropout modules on a CPU.")
    parser.add_argument("--threads", type=int, default=1)
    torch.set_num_threads(parser.parse_args().threads)
    values = torch.rand(SHAPE, requires_grad=True)
    modules = {"torch": nn.Dropout(0.1), "cloze": Dropout(0.1)}
    times: dict[str, list[float]] = {name: [] for name in modules}
    for number in range(ROUNDS + 1):
        for name, module in modules.items():
            seconds = timed(module, values)
            if number:
                times[name].append(1e9 * seconds / values.numel())
    for name, module in modules.items():
        dropped = float((module(values.detach()) == 0).float().mean())
        best, usual = min(times[name]), median(times[name])
        print(f"{name}: {best:.2f} ns per element (best), {usual:.2f} (median); {dropped:.4%} dropped")
    print(f"ratio {median(t / c for t, c in zip(times['torch'], times['cloze'], strict=True)):.2f}")


if __name__ == "__main__":
    main()
