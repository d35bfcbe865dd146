"""Linear layers in int8 and bfloat16, quantization of float32 weights, and the fused path through all layers.

An int8 matrix product needs scales for both operands. Weights have one scale per output feature, computed once.
Activations have one scale per token, computed on the fly. Dynamic quantization usually has one scale per batch, but
then the largest token of a batch would determine the rounding of all others, and the result for a text would depend on
the other texts of its batch. Rows are rounded around the middle of their range instead of zero, because GELU has few
negative outputs. Several kernels compute the product; ``choose_kernel`` measures which is the fastest.

``round_products`` smooths the input features before rounding (SmoothQuant, Xiao et al., 2023). After a LayerNorm, a few
features are about ten times as large as the others in every token. They determine the step of the row, so the others
lose most of their precision. Therefore each feature is divided by a factor and its weight column is multiplied by it,
which changes only the rounding. The factor is the square root of the largest state divided by the largest weight, which
balances the two. The size of features depends on the model rather than on the texts, so random tokens suffice: no text
is needed, and quantizing while loading gives the same weights as quantizing before. Other products gain little.

``FusedLayers`` runs all layers in one call to the C kernels or TorchScript (``native/kernels.py``), provided
that the layers are exactly those it was built from. Adapters, head gates, training and gradients use the plain layers.

Dimensions: B sequences, T tokens, M rows (tokens of all sequences) or requested positions, H hidden size, K input
features, N output features.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cloze.checkpoint.quantized_file import SMALLEST, Int8Weight, is_smoothed, layer_products, weight_steps
from cloze.model import Backbone
from cloze.model.encoder import Encoder, Layer, Visibility

ROUNDS = 5  # rounds per measurement


@torch.inference_mode()
def best_seconds(calls: Sequence[Callable[[], object]]) -> list[float]:
    """Return the best time of each call over a few rounds. The calls alternate, so that all see the same load.

    Measured with one thread: if another process occupies a core, two threads wait for each other after every operation,
    and the waiting time dominates (bfloat16 then seemed slower than float32 although it was twice as fast).
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


# Rows in steps from -row_steps to row_steps, (M, K) -> their product with the packed weight, (M, N).
Product = Callable[[Tensor], Tensor]


class Fbgemm:
    """PyTorch's fbgemm kernel: rounds, multiplies and scales in one call; by far the fastest for few rows."""

    def __init__(self, weight: Int8Weight) -> None:
        scales, zeros = weight.scales, torch.zeros(len(weight.scales), dtype=torch.long)
        with warnings.catch_warnings():
            # Quantized tensors are deprecated in PyTorch; if they are removed, the next kernel is used.
            warnings.simplefilter("ignore")
            whole = torch._make_per_channel_quantized_tensor(weight.values, scales, zeros, 0)
        before, torch.backends.quantized.engine = torch.backends.quantized.engine, "fbgemm"
        try:
            self.packed = torch.ops.quantized.linear_prepack(whole, None)
        finally:
            torch.backends.quantized.engine = before
        self.middle = weight.row_steps
        called = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
        # Use the inner function if available: its wrapper checks for tracing on every call.
        self._multiply = getattr(called, "_op", called)

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the product with the packed weight."""
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
    """Return a float32 product with the same results, for machines without the libraries of the other kernels."""
    # Sums of integers are exact in any order; sums of scaled numbers would differ between batches.
    values = weight.values.t().float().contiguous()
    return lambda rows: (rows.round() @ values).mul_(weight.scales)


KERNELS: dict[str, Callable[[Int8Weight], Product]] = {"fbgemm": Fbgemm, "onednn": _onednn, "floats": _floats}


@cache
def choose_kernel() -> str:
    """Return the fastest int8 kernel that is exact on this machine; measured once per process (a few ms)."""
    weight = Int8Weight.quantize(torch.linspace(-1, 1, 384 * 384).reshape(384, 384), 90)
    times = {}
    for name, pack in KERNELS.items():
        if name == "floats" or not is_right(pack):
            continue
        product = pack(weight)
        few, many = best_seconds([partial(product, torch.full((count, 384), 10.0)) for count in (8, 256)])
        times[name] = few / 8 + many / 256
    return min(times, key=lambda name: times[name], default="floats")


def is_right(pack: Callable[[Int8Weight], Product]) -> bool:
    """Return whether a kernel is available and exact for the largest possible sums, where overflows would appear."""
    for steps in (90, 96, 107):
        values = torch.full((64, 64), steps, dtype=torch.int8)
        values[::3] *= -1
        weight = Int8Weight(values, torch.ones(64), steps)
        rows = torch.full((3, 64), float(weight.row_steps))
        rows[1] = -rows[1]
        rows[2, ::2] = 1.0
        try:
            product = pack(weight)(rows)
        except (RuntimeError, AttributeError, NotImplementedError):
            return False
        if not torch.equal(product, rows @ values.t().float()):
            return False
    return True


class FrozenLinear(nn.Linear):
    """A linear layer that computes with a rounded copy of its weight and keeps the float32 parameter.

    With gradients enabled, the parameter is used. A deep copy is a plain layer, because copies are usually modified.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
        self.weight, self.bias = linear.weight, linear.bias

    def plain(self) -> nn.Linear:
        """Return the plain layer with the same parameters."""
        linear = nn.Linear(self.in_features, self.out_features, self.bias is not None, device="meta")
        linear.weight, linear.bias = self.weight, self.bias
        return linear

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Linear:
        return deepcopy(self.plain(), memo)

    def forward(self, states: Tensor) -> Tensor:
        """Apply the layer: (..., K) -> (..., N)."""
        return super().forward(states) if torch.is_grad_enabled() else self.rounded(states)

    def rounded(self, states: Tensor) -> Tensor:
        """Apply the layer with the rounded weight."""
        raise NotImplementedError


class Int8Linear(FrozenLinear):
    """A linear layer with int8 weights and activations: one scale per input row and one per output feature.

    Uses PyTorch's kernels and works on any machine; ``native/kernels.py`` is the compiled equivalent.
    """

    def __init__(self, linear: nn.Linear, weight: Int8Weight) -> None:
        super().__init__(linear)
        self.product = KERNELS[choose_kernel()](weight)
        self.step = 0.5 / weight.row_steps  # size of a step as a fraction of a row's range
        self.smallest = torch.tensor(SMALLEST)
        self.shares = None if weight.factors is None else weight.factors.reciprocal()  # (K,)
        # Contribution of the row's middle to each output feature, per unit of twice the middle: (N,).
        self.sums = 0.5 * weight.values.sum(1, dtype=torch.float32) * weight.scales
        # The bias as a plain attribute, which is faster to access than a parameter.
        self.own_bias = None if linear.bias is None else linear.bias.detach()

    def rounded(self, states: Tensor) -> Tensor:
        """Apply the int8 layer: (..., K) -> (..., N)."""
        rows, scales, middles = spread(states.reshape(-1, self.in_features), self.shares, self.smallest, self.step)
        product = gathered(self.product(rows), scales, middles, self.sums, self.own_bias)
        return product.view(*states.shape[:-1], self.out_features)


# For a short text, calling an operation costs as much as computing it, so there are few operations with folded
# constants. TorchScript also compiles both functions (predict/quantization/native/kernels.py).


def spread(rows: Tensor, shares: Tensor | None, smallest: Tensor, step: float) -> tuple[Tensor, Tensor, Tensor]:
    """Express rows, (M, K), in steps from their middle.

    Returns:
        The rows in steps, (M, K); the size of a step, (M, 1); and twice the middle, (M, 1).
    """
    if shares is not None:
        rows = rows * shares
    # aminmax would be several times slower along rows.
    low, high = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
    scales = torch.add(smallest, high - low, alpha=step)
    middles = high + low
    return torch.sub(rows, middles, alpha=0.5).div_(scales), scales, middles


def gathered(product: Tensor, scales: Tensor, middles: Tensor, sums: Tensor, bias: Tensor | None) -> Tensor:
    """Convert the product of rows in steps to the product of the original rows, (M, N), and add the bias."""
    # Elementwise, because the order of summation in a matrix product would depend on the number of rows.
    product = product.mul_(scales) if bias is None else torch.addcmul(bias, product, scales, out=product)
    return product.addcmul_(middles, sums)


class Bf16Linear(FrozenLinear):
    """A linear layer in bfloat16; the residual sum that it is added to stays float32."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear)
        self._weight = linear.weight.detach().bfloat16()
        self._bias = None if linear.bias is None else linear.bias.detach().bfloat16()

    def rounded(self, states: Tensor) -> Tensor:
        """Apply the layer in bfloat16: (..., K) -> (..., N)."""
        return functional.linear(states.bfloat16(), self._weight, self._bias)


SEQUENCES, LENGTH = 32, 16  # number and length of the random sequences
# Lower bound for the size of a feature, as a fraction of the largest: random tokens may not have activated it.
SMALLEST_PART = 1e-3


def round_products(bert: Backbone) -> dict[str, Int8Weight]:
    """Return the int8 weights of a float32 model by module name."""
    largest = largest_features(bert)
    return {place: round_product(place, linear, largest.get(place)) for place, linear in layer_products(bert)}


def round_product(place: str, linear: nn.Linear, largest: Tensor | None = None) -> Int8Weight:
    """Quantize one weight, (N, K); ``largest`` has the maximum absolute value of each input feature, (K,)."""
    weight = linear.weight.detach().float()
    if largest is None:
        return Int8Weight.quantize(weight, weight_steps(place))
    return Int8Weight.quantize(weight, weight_steps(place), (_floored(largest) / _floored(weight.abs().amax(0))).sqrt())


def _floored(sizes: Tensor) -> Tensor:
    return sizes.clamp(min=max(float(sizes.max()) * SMALLEST_PART, 1e-12))


def largest_features(bert: Backbone) -> dict[str, Tensor]:
    """Return the maximum absolute input features, (K,), of the products after a LayerNorm, on random tokens."""
    config, largest = bert.config, dict[str, Tensor]()
    shape = SEQUENCES, min(LENGTH, config.positions)
    ids = torch.randint(config.vocab_size, shape, generator=torch.Generator().manual_seed(0))
    with _recorded(bert, largest), torch.no_grad():
        bert.encode(ids, torch.zeros_like(ids))
    return largest


@contextmanager
def _recorded(bert: Backbone, largest: dict[str, Tensor]) -> Iterator[None]:
    """Store the maximum absolute input features of linear layers in ``largest`` within a ``with`` block.

    Dropout is disabled in the block.
    """

    def record(place: str, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        sizes = inputs[0].abs().flatten(0, -2).amax(0)  # (B, T, K) -> (K,)
        # The maximum, because a shared layer runs several times.
        largest[place] = torch.maximum(largest.get(place, sizes), sizes)

    training = bert.training
    hooks = [
        linear.register_forward_pre_hook(partial(record, place))
        for place, linear in layer_products(bert)
        if is_smoothed(place)
    ]
    try:
        bert.eval()
        yield
    finally:
        bert.train(training)
        for hook in hooks:
            hook.remove()


# Packed states (N, H); (count, length) of each run of sequences; needed indices (M,); whether to keep all states
# -> the last state, (N, H) or (M, H), or all states, the input first.
Call = Callable[[Tensor, Sequence[tuple[int, int]], Tensor | None, bool], list[Tensor]]


class FusedLayers:
    """Runs all layers in one call, provided that they are the layers from which the call was built."""

    def __init__(self, encoder: Encoder, call: Call) -> None:
        self.call, self._modules = call, _modules(encoder)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Copy as None, because a copied encoder is usually modified."""

    def __call__(
        self, encoder: Encoder, hidden: Tensor, visible: Visibility, needed: Tensor | None, keep_states: bool
    ) -> list[Tensor] | None:
        """Run all layers on embeddings (B, T, H); return the last state: (B, T, H), or (M, H) for ``needed`` positions.

        With ``keep_states``, the list also holds the earlier states, in order, before the last one. Returns None if the
        plain layers must be used.
        """
        if isinstance(visible, Tensor) or torch.is_grad_enabled() or not self._applies_to(encoder):
            return None
        # There is no padding here: without gradients, the sequences of a group have the same length.
        lengths: list[Any] = [hidden.shape[:2]] if visible is None else [group.shape for group in visible]
        *states, last = self.call(hidden.flatten(0, 1), lengths, needed, keep_states)
        return [*(state.view_as(hidden) for state in states), last.view_as(hidden) if needed is None else last]

    def _applies_to(self, encoder: Encoder) -> bool:
        if _modules(encoder) != self._modules:
            return False
        return not any(layer.training or layer.attention.output._forward_pre_hooks for layer in layers_of(encoder))


def layers_of(encoder: Encoder) -> list[Layer]:
    """Return the distinct layers, which must have exactly the class that the fused code implements."""
    layers = [layer for layer in encoder.layers if isinstance(layer, Layer)]
    assert len(layers) == len(encoder.layers), "a layer of another class would be skipped"
    assert all(type(layer) is Layer for layer in layers), "a subclass computes something else"
    return layers


def linears_of(layer: Layer) -> dict[str, nn.Linear]:
    """Return the linear layers of a layer by name."""
    attention = layer.attention
    return {
        "query_key_value": attention.query_key_value,
        "output": attention.output,
        "expand": layer.expand,
        "contract": layer.contract,
    }


def _modules(encoder: Encoder) -> list[nn.Module]:
    """Return the encoder's replaceable modules; comparing them by identity shows whether any was added or replaced."""
    # Read from nn.Module's dictionary: attribute access would take a third of the time that fusing saves.
    return [
        child
        for layer in layers_of(encoder)
        for module in (layer, layer.attention)
        for child in module._modules.values()
        if child is not None
    ]
