"""Compare PyTorch's fused attention kernel with explicit attention weights in training.

    python benchmarks/attention.py [--threads N]

Prints the milliseconds of a forward and backward pass, the best of twelve alternating rounds, without dropout (the
fused CPU kernel does not support it). The encoder's choice between the two is based on these figures.
"""

import argparse
import time
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional

from cloze.hardware import keep_freed_memory
from cloze.model.encoder import attention_weights

# (sequences, heads, tokens, head size) of mini, MiniLM and base at common lengths.
SHAPES = ((16, 4, 128, 64), (32, 12, 48, 32), (8, 12, 128, 64), (4, 12, 512, 64))


def fused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Compute attention with the fused kernel."""
    return functional.scaled_dot_product_attention(query, key, value)


def written_out(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Compute attention with explicit weights, as the encoder does, with the softmax in float32."""
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=value.dtype == torch.bfloat16):
        return attention_weights(query, key, None) @ value


def measure(shape: tuple[int, int, int, int], kind: torch.dtype) -> list[float]:
    """Return the milliseconds of both variants."""
    rows, heads, length, size = shape
    projected = torch.randn(rows, length, 3, heads, size, dtype=kind, requires_grad=True)
    gradient = torch.randn(rows, heads, length, size, dtype=kind)
    best = {fused: float("inf"), written_out: float("inf")}
    for _ in range(12):
        for variant in best:
            projected.grad = None
            start = time.perf_counter()
            variant(*projected.permute(2, 0, 3, 1, 4)).backward(gradient)  # type: ignore[no-untyped-call]
            best[variant] = min(best[variant], time.perf_counter() - start)
    return [1000 * seconds for seconds in best.values()]


def main() -> None:
    """Print one row per shape and data type."""
    parser = argparse.ArgumentParser(description="Compare fused and explicit attention in training.")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    torch.set_num_threads(parser.parse_args().threads)
    keep_freed_memory()
    print(f"{'sequences, heads, tokens, size':<32} {'':<9} {'fused ms':>9} {'explicit':>12}  ratio")
    for shape, kind in product(SHAPES, (torch.float32, torch.bfloat16)):
        one, other = measure(shape, kind)
        print(f"{shape!s:<32} {str(kind).removeprefix('torch.'):<9} {one:9.2f} {other:12.2f}  {one / other:5.2f}")


if __name__ == "__main__":
    main()
