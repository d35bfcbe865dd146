"""Linear layers in fewer bits: int8 with a scale for every row, and bfloat16.

A matrix product in int8 needs a scale on either side. That of the weights is one an output feature, found once. That
of the activations is one a token, found as the token passes: a scale for the whole batch, as dynamic quantisation
usually has it, would let the largest token of a batch decide how coarsely all others are rounded, and a text's result
would depend on its neighbours. Rows are rounded around their middle, not around zero: what comes out of GELU has
little below it.

Dimensions: M rows (tokens), K features in, N features out.

Which of several ways to compute is the fastest, asked on a machine that others may be using, too.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cloze.checkpoint.quantized_file import SMALLEST, Int8Weight

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


# Rows within +-row_steps, (M, K) -> their product with the weight that was packed, (M, N).
Product = Callable[[Tensor], Tensor]


class Fbgemm:
    """Rounds, multiplies and scales in one call, fastest by far where there are few rows."""

    def __init__(self, weight: Int8Weight) -> None:
        scales, zeros = weight.scales, torch.zeros(len(weight.scales), dtype=torch.long)
        with warnings.catch_warnings():
            # The type of the tensor is to leave PyTorch one day; the next kernel takes over when it does.
            warnings.simplefilter("ignore")
            whole = torch._make_per_channel_quantized_tensor(weight.values, scales, zeros, 0)
        before, torch.backends.quantized.engine = torch.backends.quantized.engine, "fbgemm"
        try:
            self.packed = torch.ops.quantized.linear_prepack(whole, None)
        finally:
            torch.backends.quantized.engine = before
        self.middle = weight.row_steps
        called = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
        # The function itself, where it is to be had: around it, each call looks for objects that only tracing makes.
        self._multiply = getattr(called, "_op", called)

    def __call__(self, rows: Tensor) -> Tensor:
        """Multiply."""
        return self._multiply(rows, 1.0, self.middle, self.packed)  # type: ignore[no-any-return]


def _onednn(weight: Int8Weight) -> Product:
    packed = torch.ops.onednn.qlinear_prepack(weight.values, None)
    scales, zeros = weight.scales, torch.zeros(len(weight.scales), dtype=torch.int32)
    multiply, middle = torch.ops.onednn.qlinear_pointwise, weight.row_steps

    def product(rows: Tensor) -> Tensor:
        whole = rows.round().add_(middle).to(torch.uint8)
        return multiply(  # type: ignore[no-any-return]
            whole, 1.0, middle, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )

    return product


def _floats(weight: Int8Weight) -> Product:
    """The same numbers without any integer instruction, for machines that have neither library."""
    # Whole numbers are summed without rounding, in whatever order; scaled ones would differ from batch to batch.
    values = weight.values.t().float().contiguous()
    return lambda rows: (rows.round() @ values).mul_(weight.scales)


KERNELS: dict[str, Callable[[Int8Weight], Product]] = {"fbgemm": Fbgemm, "onednn": _onednn, "floats": _floats}


@cache
def choose_kernel() -> str:
    """The faster kernel of integers that is right on this machine; measured once a process, in some milliseconds."""
    weight = Int8Weight.of(torch.linspace(-1, 1, 384 * 384).reshape(384, 384), 90)
    times = {}
    for name, pack in KERNELS.items():
        if name == "floats" or not is_right(pack):
            continue
        product = pack(weight)
        few, many = best_seconds([partial(product, torch.full((count, 384), 10.0)) for count in (8, 256)])
        times[name] = few / 8 + many / 256
    return min(times, key=lambda name: times[name], default="floats")


def is_right(pack: Callable[[Int8Weight], Product]) -> bool:
    """Whether a kernel is there and exact where its sums are largest, which is where overflows show."""
    for steps in (90, 96, 107):
        values = torch.full((64, 64), steps, dtype=torch.int8)
        values[::3] *= -1
        weight = Int8Weight(values, torch.ones(64), steps)
        rows = torch.full((3, 64), float(weight.row_steps))
        rows[1] = -rows[1]
        rows[2, ::2] = 1.0
        try:
            found = pack(weight)(rows)
        except (RuntimeError, AttributeError, NotImplementedError):
            return False
        if not torch.equal(found, rows @ values.t().float()):
            return False
    return True


class FrozenLinear(nn.Linear):
    """A linear layer that answers by a rounded copy of its weight, which it keeps for saving.

    The copy is not the parameter: where gradients are asked for, the parameter is used, and a deep copy of the layer,
    as somebody makes who wants to change it, is a plain one.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
        self.weight, self.bias = linear.weight, linear.bias

    def plain(self) -> nn.Linear:
        """The layer as it was, with the very same parameters."""
        linear = nn.Linear(self.in_features, self.out_features, self.bias is not None, device="meta")
        linear.weight, linear.bias = self.weight, self.bias
        return linear

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Linear:
        return deepcopy(self.plain(), memo)

    def forward(self, states: Tensor) -> Tensor:
        """(..., K) -> (..., N)."""
        return super().forward(states) if torch.is_grad_enabled() else self.rounded(states)

    def rounded(self, states: Tensor) -> Tensor:
        """By the copy."""
        raise NotImplementedError


class Int8Linear(FrozenLinear):
    """Int8 on both sides: a scale for every row that comes in, and one for every feature that goes out.

    By what PyTorch has, on any machine; ``native/product.py`` has the same in compiled code.
    """

    def __init__(self, linear: nn.Linear, weight: Int8Weight) -> None:
        super().__init__(linear)
        self.product = KERNELS[choose_kernel()](weight)
        self.step = 0.5 / weight.row_steps  # of a row's spread
        self.smallest = torch.tensor(SMALLEST)
        self.shares = None if weight.factors is None else weight.factors.reciprocal()  # (K,)
        # What one of twice a row's middle adds to each feature: (N,).
        self.sums = 0.5 * weight.values.sum(1, dtype=torch.float32) * weight.scales
        # The same numbers as the parameter, which a module finds more slowly than what is its own.
        self.own_bias = None if linear.bias is None else linear.bias.detach()

    def rounded(self, states: Tensor) -> Tensor:
        """(..., K) -> (..., N)."""
        rows, scales, middles = spread(states.reshape(-1, self.in_features), self.shares, self.smallest, self.step)
        product = gathered(self.product(rows), scales, middles, self.sums, self.own_bias)
        return product.view(*states.shape[:-1], self.out_features)


# Of a short text, each operation costs as much to call as to compute: hence few in what follows, with constants folded
# in. TorchScript reads both functions, too (predict/quantization/scripted_layers.py).


def spread(rows: Tensor, shares: Tensor | None, smallest: Tensor, step: float) -> tuple[Tensor, Tensor, Tensor]:
    """Rows (M, K) -> the same in steps from their middle, (M, K); what a step is worth, (M, 1); twice the middle."""
    if shares is not None:
        rows = rows * shares
    # Not aminmax, which is several times slower along rows.
    low, high = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
    scales = torch.add(smallest, high - low, alpha=step)
    middles = high + low
    return torch.sub(rows, middles, alpha=0.5).div_(scales), scales, middles


def gathered(product: Tensor, scales: Tensor, middles: Tensor, sums: Tensor, bias: Tensor | None) -> Tensor:
    """A product of steps -> that of the rows themselves, (M, N)."""
    # Element by element: a matrix product would sum few rows in another order than many.
    product = product.mul_(scales) if bias is None else torch.addcmul(bias, product, scales, out=product)
    return product.addcmul_(middles, sums)


class Bf16Linear(FrozenLinear):
    """A product of bfloat16 that stays so until it meets float32: sums along the layers keep their digits."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear)
        self._weight = linear.weight.detach().bfloat16()
        self._bias = None if linear.bias is None else linear.bias.detach().bfloat16()

    def rounded(self, states: Tensor) -> Tensor:
        """(..., K) -> (..., N), of bfloat16."""
        return functional.linear(states.bfloat16(), self._weight, self._bias)
