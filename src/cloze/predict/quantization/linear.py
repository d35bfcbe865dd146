"""Linear layers in int8 with one scale per row, and in bfloat16; int8 weights from float32 ones; the fused path.

An int8 matrix product needs scales on both sides. The weights have one per output feature, computed once. The
activations have one per token, computed on the fly: one scale per batch, as dynamic quantization usually has it, would
let the largest token of a batch decide how coarsely all others are rounded, and a text's result would depend on its
neighbours in the batch. Rows are rounded around the middle of their range, not around zero, because the output of GELU
has little below zero. Several kernels compute the product; ``choose_kernel`` measures which one is fastest.

``round_products`` smooths the input features before rounding (SmoothQuant, Xiao et al., 2023). Behind a LayerNorm a few
features are about ten times as large as the others in every token; they determine the step of the row, and the others
are lost between two steps. Each feature is divided by a factor and its weight column multiplied by it, which
changes nothing but the rounding: the geometric mean of the largest state and the largest weight balances the two. How
large features become depends on the model rather than on the texts, and random tokens show it: no text is needed, and a
model quantized while loading equals one quantized before. Other products gain little and are left as they are.

``FusedLayers`` runs all layers in one call, by the C kernels (``native/kernels.py``) or ``scripted_layers.py``, as long
as the layers are exactly those it was built from: adapters, head gates, training and gradients take the plain layers.

Dimensions: B sequences, T tokens, M rows (tokens of all sequences) or positions that are read, H hidden size, K
features in, N features out.
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

ROUNDS = 5  # of a measurement


@torch.inference_mode()
def best_seconds(calls: Sequence[Callable[[], object]]) -> list[float]:
    """Return the best time of each call over a few rounds; the calls take turns, so that all see the same load.

    Measured with one thread: where another process occupies a core, two threads wait for each other after every
    operation, and the waiting dominates (bfloat16 at twice the speed of float32 then looked slower).
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


# Rows in steps within +-row_steps, (M, K) -> their product with the packed weight, (M, N).
Product = Callable[[Tensor], Tensor]


class Fbgemm:
    """Round, multiply and scale in one call; by far the fastest for few rows."""

    def __init__(self, weight: Int8Weight) -> None:
        scales, zeros = weight.scales, torch.zeros(len(weight.scales), dtype=torch.long)
        with warnings.catch_warnings():
            # Quantized tensors are deprecated in PyTorch; without them, the next kernel takes over.
            warnings.simplefilter("ignore")
            whole = torch._make_per_channel_quantized_tensor(weight.values, scales, zeros, 0)
        before, torch.backends.quantized.engine = torch.backends.quantized.engine, "fbgemm"
        try:
            self.packed = torch.ops.quantized.linear_prepack(whole, None)
        finally:
            torch.backends.quantized.engine = before
        self.middle = weight.row_steps
        called = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
        # The inner function, if available: its wrapper checks for tracing objects on every call.
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
    """Compute the same numbers in float32, for machines with neither library."""
    # Whole numbers are summed exactly in any order; scaled ones would differ from batch to batch.
    values = weight.values.t().float().contiguous()
    return lambda rows: (rows.round() @ values).mul_(weight.scales)


KERNELS: dict[str, Callable[[Int8Weight], Product]] = {"fbgemm": Fbgemm, "onednn": _onednn, "floats": _floats}


@cache
def choose_kernel() -> str:
    """Return the fastest int8 kernel that is exact on this machine; measured once per process, in milliseconds."""
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
    """Return whether a kernel is available, and exact where its sums are largest, which is where overflows show."""
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

    With gradients enabled the parameter is used. A deep copy is a plain layer, because copies are made to be changed.
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
        """(..., K) -> (..., N)."""
        return super().forward(states) if torch.is_grad_enabled() else self.rounded(states)

    def rounded(self, states: Tensor) -> Tensor:
        """Compute with the rounded copy."""
        raise NotImplementedError


class Int8Linear(FrozenLinear):
    """Int8 on both sides: one scale per input row and one per output feature.

    Uses PyTorch's kernels, on any machine; ``native/kernels.py`` has the same in compiled code.
    """

    def __init__(self, linear: nn.Linear, weight: Int8Weight) -> None:
        super().__init__(linear)
        self.product = KERNELS[choose_kernel()](weight)
        self.step = 0.5 / weight.row_steps  # of a row's spread
        self.smallest = torch.tensor(SMALLEST)
        self.shares = None if weight.factors is None else weight.factors.reciprocal()  # (K,)
        # What each unit of twice the row's middle adds to each output feature: (N,).
        self.sums = 0.5 * weight.values.sum(1, dtype=torch.float32) * weight.scales
        # The parameter's values as a plain attribute, which is faster to access.
        self.own_bias = None if linear.bias is None else linear.bias.detach()

    def rounded(self, states: Tensor) -> Tensor:
        """(..., K) -> (..., N)."""
        rows, scales, middles = spread(states.reshape(-1, self.in_features), self.shares, self.smallest, self.step)
        product = gathered(self.product(rows), scales, middles, self.sums, self.own_bias)
        return product.view(*states.shape[:-1], self.out_features)


# For a short text, each operation costs as much to call as to compute: hence few operations, with constants folded
# in. TorchScript compiles both functions, too (predict/quantization/scripted_layers.py).


def spread(rows: Tensor, shares: Tensor | None, smallest: Tensor, step: float) -> tuple[Tensor, Tensor, Tensor]:
    """Rows (M, K) -> in steps from their middle, (M, K); the size of a step, (M, 1); twice the middle, (M, 1)."""
    if shares is not None:
        rows = rows * shares
    # Not aminmax, which is several times slower along rows.
    low, high = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
    scales = torch.add(smallest, high - low, alpha=step)
    middles = high + low
    return torch.sub(rows, middles, alpha=0.5).div_(scales), scales, middles


def gathered(product: Tensor, scales: Tensor, middles: Tensor, sums: Tensor, bias: Tensor | None) -> Tensor:
    """Convert the product of steps to the product of the rows themselves, (M, N)."""
    # Element by element: a matrix product would sum few rows in another order than many.
    product = product.mul_(scales) if bias is None else torch.addcmul(bias, product, scales, out=product)
    return product.addcmul_(middles, sums)


class Bf16Linear(FrozenLinear):
    """A bfloat16 product; the residual sums it is added to stay float32."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear)
        self._weight = linear.weight.detach().bfloat16()
        self._bias = None if linear.bias is None else linear.bias.detach().bfloat16()

    def rounded(self, states: Tensor) -> Tensor:
        """(..., K) -> (..., N), of bfloat16."""
        return functional.linear(states.bfloat16(), self._weight, self._bias)


SEQUENCES, LENGTH = 32, 16  # of the random tokens
# Lower bound of a feature's size, as a part of the largest: random tokens may never have activated it.
SMALLEST_PART = 1e-3


def round_products(bert: Backbone) -> dict[str, Int8Weight]:
    """Return the rounded weights of a float32 model by their names."""
    largest = largest_features(bert)
    return {place: round_product(place, linear, largest.get(place)) for place, linear in layer_products(bert)}


def round_product(place: str, linear: nn.Linear, largest: Tensor | None = None) -> Int8Weight:
    """Round one weight, (N, K); ``largest`` is the largest size of each input feature, (K,)."""
    weight = linear.weight.detach().float()
    if largest is None:
        return Int8Weight.quantize(weight, weight_steps(place))
    return Int8Weight.quantize(weight, weight_steps(place), (_floored(largest) / _floored(weight.abs().amax(0))).sqrt())


def _floored(sizes: Tensor) -> Tensor:
    return sizes.clamp(min=max(float(sizes.max()) * SMALLEST_PART, 1e-12))


def largest_features(bert: Backbone) -> dict[str, Tensor]:
    """Return the largest size of each input feature, (K,), of the products behind a LayerNorm, on random tokens."""
    config, largest = bert.config, dict[str, Tensor]()
    shape = SEQUENCES, min(LENGTH, config.positions)
    ids = torch.randint(config.vocab_size, shape, generator=torch.Generator().manual_seed(0))
    with _recorded(bert, largest), torch.no_grad():
        bert.encode(ids, torch.zeros_like(ids))
    return largest


@contextmanager
def _recorded(bert: Backbone, largest: dict[str, Tensor]) -> Iterator[None]:
    """Record the largest inputs of the products in ``largest`` while the block runs, without dropout."""

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
    """Run all layers in one call, as long as they are the ones that the call was built from."""

    def __init__(self, encoder: Encoder, call: Call) -> None:
        self.call, self._modules = call, _modules(encoder)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Copy as None: an encoder is copied in order to be changed."""

    def __call__(
        self, encoder: Encoder, hidden: Tensor, visible: Visibility, needed: Tensor | None, keep_states: bool
    ) -> list[Tensor] | None:
        """(B, T, H) -> [(B, T, H)], or [(M, H)] of the needed positions; with ``keep_states`` all states before it.

        Return None if the plain layers must be used.
        """
        if isinstance(visible, Tensor) or torch.is_grad_enabled() or not self._applies_to(encoder):
            return None
        # Nothing is padded here: without gradients, the sequences of a group have one length.
        lengths: list[Any] = [hidden.shape[:2]] if visible is None else [group.shape for group in visible]
        *states, last = self.call(hidden.flatten(0, 1), lengths, needed, keep_states)
        return [*(state.view_as(hidden) for state in states), last.view_as(hidden) if needed is None else last]

    def _applies_to(self, encoder: Encoder) -> bool:
        if _modules(encoder) != self._modules:
            return False
        return not any(layer.training or layer.attention.output._forward_pre_hooks for layer in layers_of(encoder))


def layers_of(encoder: Encoder) -> list[Layer]:
    """Return the distinct layers, which must be exactly the class that the fused code implements."""
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
    """Return every module that can be added, removed or replaced; a module equals only itself."""
    # Read from nn.Module's own dictionary: attribute access would take a third of the time that fusing saves.
    return [
        child
        for layer in layers_of(encoder)
        for module in (layer, layer.attention)
        for child in module._modules.values()
        if child is not None
    ]
