"""Attention in training: PyTorch's fused kernel, and its weights written out, as the encoder chooses between them.

    python benchmarks/attention.py [--threads N]

Forward and back, milliseconds, the best of twelve in turns; without dropout, which the fused kernel of a CPU lacks.
"""

import argparse
import time
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional

from cloze.model.encoder import attention_weights
from cloze.train.memory import keep_freed_memory

# Sequences, heads, tokens, head size: mini, MiniLM and base on usual lengths.
SHAPES = ((16, 4, 128, 64), (32, 12, 48, 32), (8, 12, 128, 64), (4, 12, 512, 64))


def fused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """One call."""
    return functional.scaled_dot_product_attention(query, key, value)


def written_out(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """As the encoder does it, which has the softmax in float32."""
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=value.dtype == torch.bfloat16):
        return attention_weights(query, key, None) @ value


def measure(shape: tuple[int, int, int, int], kind: torch.dtype) -> list[float]:
    """Milliseconds of each way."""
    rows, heads, length, size = shape
    projected = torch.randn(rows, length, 3, heads, size, dtype=kind, requires_grad=True)
    gradient = torch.randn(rows, heads, length, size, dtype=kind)
    best = {fused: float("inf"), written_out: float("inf")}
    for _ in range(12):
        for way in best:
            projected.grad = None
            start = time.perf_counter()
            way(*projected.permute(2, 0, 3, 1, 4)).backward(gradient)  # type: ignore[no-untyped-call]
            best[way] = min(best[way], time.perf_counter() - start)
    return [1000 * seconds for seconds in best.values()]


def main() -> None:
    """Print a row for every shape and kind of number."""
    parser = argparse.ArgumentParser(description="Attention in training, fused and written out.")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    torch.set_num_threads(parser.parse_args().threads)
    keep_freed_memory()
    print(f"{'sequences, heads, tokens, size':<32} {'':<9} {'fused ms':>9} {'written out':>12}  ratio")
    for shape, kind in product(SHAPES, (torch.float32, torch.bfloat16)):
        one, other = measure(shape, kind)
        print(f"{shape!s:<32} {str(kind).removeprefix('torch.'):<9} {one:9.2f} {other:12.2f}  {one / other:5.2f}")


if __name__ == "__main__":
    main()
