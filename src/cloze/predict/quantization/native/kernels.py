"""Int8 layers as few calls: the compiled kernels (``int8.c``), or TorchScript on machines without them.

The library exists if it was compiled (``hatch_build.py``) and is used if the processor has VNNI. ``NativeLinear`` runs
one layer: it rounds, multiplies and scales rows while they are in the cache. ``NativeLayers`` runs a whole encoder.

``ScriptedLayers`` runs all layers as one TorchScript call. TorchScript is deprecated in PyTorch, and only the last
section of this file uses it; to remove it, delete that section and its use in ``precision.py``. It is useful because,
for a short text, calling the forty operations of a layer from Python takes longer than computing them. CPU time of
eager layers relative to these, in two runs of ``benchmarks/eager_layers.py`` (all-MiniLM-L6-v2, one thread, a shared
machine): 1.65 and 1.85 for one short text, 1.16 and 1.19 for many short texts, 1.06 and 1.20 for paragraphs.
TorchScript also releases the interpreter lock, so a service can accept requests in the meantime. The operations and
their order are the same as in the plain int8 layers, so results are bit-identical.

Dimensions: M rows (tokens) or requested positions, K input features, N output features or tokens of all sequences,
H hidden size, A heads, D head size, L layers.
"""

import ctypes
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cloze.checkpoint.quantized_file import Int8Weight
from cloze.model.encoder import Encoder, Layer
from cloze.predict.quantization.linear import Fbgemm, FrozenLinear, Int8Linear, gathered, layers_of, linears_of, spread

PATH = Path(__file__).with_name("libint8.so")
Pointer = ctypes.c_void_p
Count = ctypes.c_int64
_VERSION = 1  # version of the interface declared here
LANES = 16  # 32-bit numbers per register
_BYTES = 4  # bytes multiplied at once in each lane
_SPREAD = 8  # bytes that int8.c stores per row: its step and its lowest value
_LARGEST_HEAD = 64
_GELU, _GELU_BY_TANH, _RELU = 1, 2, 3  # numbers of the activations in int8.c


class ProductFields(ctypes.Structure):
    """The structure ``Product`` of int8.c."""

    _fields_ = (
        *((name, Count) for name in ("in_features", "out_features")),
        *((name, Pointer) for name in ("weight", "scales", "sums", "bias", "shares")),
        ("row_steps", Count),
    )


class NormFields(ctypes.Structure):
    """The structure ``Norm`` of int8.c."""

    _fields_ = (("weight", Pointer), ("bias", Pointer), ("epsilon", ctypes.c_float))


class LayerFields(ctypes.Structure):
    """The structure ``Layer`` of int8.c."""

    _fields_ = (
        *((name, ProductFields) for name in ("query_key_value", "output", "expand", "contract")),
        *((name, NormFields) for name in ("attention_norm", "feedforward_norm")),
        *((name, Count) for name in ("heads", "activation")),
    )


class SequenceFields(ctypes.Structure):
    """The structure ``Sequences`` of int8.c."""

    _fields_ = (("count", Count), ("length", Count))


@cache
def library() -> ctypes.CDLL | None:
    """Return the functions of int8.c, or None if they are not available on this machine."""
    if not (PATH.is_file() and torch.cpu._is_vnni_supported()):
        return None
    try:
        # Shares PyTorch's OpenMP threads, because its runtime is already loaded under the same name.
        found = ctypes.CDLL(str(PATH))
        found.cloze_version.restype = Count
        if found.cloze_version() != _VERSION:
            return None
    except (OSError, AttributeError):  # compiled on another system or for an older version
        return None
    found.cloze_room.restype = Count
    found.cloze_room.argtypes = (Pointer, Count, Count, Count)
    found.cloze_layers.restype = None
    found.cloze_layers.argtypes = (
        *(Pointer, Count, Count, Pointer, Count, Pointer, Count),
        *(Pointer, Count, Count, Pointer, Pointer, Count, Count),
    )
    found.cloze_product.restype = None
    found.cloze_product.argtypes = (Pointer, Pointer, Count, Pointer, Pointer, Pointer, Count)
    return found


class NativeProduct:
    """A weight in the layout of int8.c; keeps alive the tensors it points to."""

    def __init__(self, weight: Int8Weight, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.values.shape
        scales = weight.scales.float().contiguous()
        self._held = {
            "weight": packed(weight.values),
            "scales": scales,
            "sums": weight.values.sum(1, dtype=torch.float32) * scales,
            "bias": torch.zeros_like(scales) if bias is None else bias.detach().float().contiguous(),
            "shares": None if weight.factors is None else weight.factors.float().reciprocal(),
        }
        pointers = {name: None if held is None else held.data_ptr() for name, held in self._held.items()}
        self.fields = ProductFields(self.in_features, self.out_features, row_steps=weight.row_steps, **pointers)

    def __call__(self, states: Tensor) -> Tensor:
        """Compute the product: (..., K) -> (..., N)."""
        found = library()
        assert found is not None
        rows = states.detach().float().reshape(-1, self.in_features).contiguous()
        out = torch.empty(len(rows), self.out_features)
        steps = torch.empty(len(rows), self.in_features, dtype=torch.uint8)
        spreads = torch.empty(len(rows), _SPREAD, dtype=torch.uint8)
        given = (rows.data_ptr(), len(rows), out.data_ptr(), steps.data_ptr(), spreads.data_ptr())
        found.cloze_product(ctypes.byref(self.fields), *given, torch.get_num_threads())
        return out.view(*states.shape[:-1], self.out_features)


class NativeLinear(FrozenLinear):
    """A linear layer computed by int8.c."""

    def __init__(self, linear: nn.Linear, weight: Int8Weight) -> None:
        super().__init__(linear)
        self.product = NativeProduct(weight, linear.bias)

    def rounded(self, states: Tensor) -> Tensor:
        """Apply the int8 layer: (..., K) -> (..., N)."""
        return self.product(states)


def packed(values: Tensor) -> Tensor:
    """Reorder a weight so that bytes multiplied together are adjacent: (N, K) -> (N / 16, K / 4, 16, 4)."""
    features, width = values.shape
    return values.view(features // LANES, LANES, width // _BYTES, _BYTES).transpose(1, 2).contiguous()


class NativeLayers:
    """All layers in the layout of int8.c; keeps alive the tensors it points to."""

    def __init__(self, layers: Sequence[Layer], depth: int) -> None:
        self._depth, self._width = depth, layers[0].attention.output.in_features
        # Keep references, so that replacing a parameter or product never leaves a dangling pointer.
        norms = [norm for layer in layers for norm in _norms(layer)]
        self._held = (
            [parameter.detach() for norm in norms for parameter in norm.parameters()],
            [_products(layer) for layer in layers],
        )
        self._layers = (LayerFields * len(layers))(*map(_fields, layers))

    @classmethod
    def of(cls, encoder: Encoder) -> "NativeLayers | None":
        """Return the native layers if all products are native, otherwise None."""
        layers = layers_of(encoder)
        is_native = all(product is not None for layer in layers for product in _products(layer).values())
        return cls(layers, encoder.depth) if is_native else None

    def __call__(
        self, hidden: Tensor, lengths: Sequence[tuple[int, int]], needed: Tensor | None, keep_states: bool
    ) -> list[Tensor]:
        """Return the last state, (N, H), or (M, H) for ``needed``; with ``keep_states``, after the earlier ones.

        ``lengths`` has the (count, length) of each run of sequences in the packed row.
        """
        found = library()
        assert found is not None
        hidden, count = hidden.contiguous(), len(hidden)
        needed = None if needed is None else _checked(needed, count)
        states = torch.empty(self._depth if keep_states else 1, count, self._width)
        parts = (SequenceFields * len(lengths))(*(SequenceFields(*shape) for shape in lengths))
        longest, threads = max((length for _, length in lengths), default=0), torch.get_num_threads()
        room = torch.empty(found.cloze_room(self._layers, count, longest, threads), dtype=torch.uint8)
        places = (None, 0) if needed is None else (needed.data_ptr(), len(needed))
        found.cloze_layers(
            *(self._layers, len(self._layers), self._depth, hidden.data_ptr(), count, parts, len(lengths)),
            *(*places, keep_states, states.data_ptr(), room.data_ptr(), longest, threads),
        )
        last = states[-1] if needed is None else states[-1, : len(needed)]
        return [hidden, *states[:-1], last] if keep_states else [last]


def _checked(needed: Tensor, count: int) -> Tensor:
    """Return the needed positions in the form that the kernel expects, after checking them: it has no bounds checks."""
    needed = needed.to(torch.int64).contiguous()
    if len(needed) > count or (len(needed) > 0 and (int(needed.min()) < 0 or int(needed.max()) >= count)):
        raise ValueError(f"needed has {len(needed)} positions; expected unique positions below {count}")
    return needed


def are_native(encoder: Encoder) -> bool:
    """Return whether int8.c is available and implements these layers."""
    return library() is not None and all(map(_fits, layers_of(encoder)))


def _fits(layer: Layer) -> bool:
    attention = layer.attention
    widths = [size for linear in linears_of(layer).values() for size in linear.weight.shape]
    return (
        all(size % LANES == 0 for size in (*widths, attention.head_size))
        and attention.head_size <= _LARGEST_HEAD
        and attention.output.in_features == attention.output.out_features  # no head was pruned
        and all(norm.weight.dtype is torch.float32 for norm in _norms(layer))
        and _activation(layer) is not None
    )


def _norms(layer: Layer) -> tuple[nn.LayerNorm, nn.LayerNorm]:
    return layer.attention_norm, layer.feedforward_norm


def _products(layer: Layer) -> dict[str, NativeProduct | None]:
    return {name: one.product if isinstance(one, NativeLinear) else None for name, one in linears_of(layer).items()}


def _activation(layer: Layer) -> int | None:
    found = layer.activation
    if isinstance(found, nn.GELU):
        return _GELU if found.approximate == "none" else _GELU_BY_TANH
    return _RELU if isinstance(found, nn.ReLU) else None


def _fields(layer: Layer) -> LayerFields:
    products = {name: product.fields for name, product in _products(layer).items() if product is not None}
    norms = [NormFields(norm.weight.data_ptr(), norm.bias.data_ptr(), norm.eps) for norm in _norms(layer)]
    return LayerFields(
        **products,
        attention_norm=norms[0],
        feedforward_norm=norms[1],
        heads=layer.attention.heads,
        activation=_activation(layer),
    )


# -- TorchScript -------------------------------------------------------------------------------------------------------


class ScriptedLayers:
    """The layers compiled by TorchScript."""

    def __init__(self, encoder: Encoder) -> None:
        with warnings.catch_warnings():
            # Deprecated in PyTorch; the module docstring explains why it is used.
            warnings.simplefilter("ignore")
            self._call: Any = torch.jit.script(_ScriptedLayers(encoder))

    @classmethod
    def of(cls, encoder: Encoder) -> "ScriptedLayers | None":
        """Return the scripted layers, or None if their products do not use fbgemm, which TorchScript can call."""
        linears = [linear for layer in layers_of(encoder) for linear in linears_of(layer).values()]
        callable_products = all(isinstance(one, Int8Linear) and isinstance(one.product, Fbgemm) for one in linears)
        return cls(encoder) if callable_products and hasattr(torch.jit, "script") else None

    def __call__(
        self, hidden: Tensor, lengths: Sequence[tuple[int, int]], needed: Tensor | None, keep_states: bool
    ) -> list[Tensor]:
        """Return the last state, (N, H), or (M, H) for ``needed``; with ``keep_states``, after the earlier ones."""
        # Optimizing the graph would take a tenth of a second on the first call without a benefit.
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            return self._call(hidden, lengths, needed, keep_states)  # type: ignore[no-any-return]


class _ScriptedProduct(nn.Module):
    """The computation of ``Int8Linear``."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        assert isinstance(linear, Int8Linear)
        assert isinstance(linear.product, Fbgemm)
        self.packed, self.middle = linear.product.packed, linear.product.middle
        self.shares, self.smallest, self.step = linear.shares, linear.smallest, linear.step
        self.sums, self.own_bias = linear.sums, linear.own_bias

    def forward(self, states: Tensor) -> Tensor:
        rows, scales, middles = spread(states, self.shares, self.smallest, self.step)
        product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(rows, 1.0, self.middle, self.packed)
        return gathered(product, scales, middles, self.sums, self.own_bias)


class _ScriptedLayer(nn.Module):
    """The computation of ``Layer`` on packed sequences."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.heads, self.head_size = layer.attention.heads, layer.attention.head_size
        self.query_key_value = _ScriptedProduct(layer.attention.query_key_value)
        self.output = _ScriptedProduct(layer.attention.output)
        self.expand, self.contract = _ScriptedProduct(layer.expand), _ScriptedProduct(layer.contract)
        self.attention_norm, self.feedforward_norm = layer.attention_norm, layer.feedforward_norm
        self.activation = layer.activation

    def forward(self, hidden: Tensor, lengths: list[tuple[int, int]], needed: Tensor | None) -> Tensor:
        """Apply the layer: (N, H) -> (N, H), or (M, H) for ``needed``."""
        context = self.attend(self.query_key_value(hidden), lengths)
        if needed is not None:
            context = context.index_select(0, needed)
            hidden = hidden.index_select(0, needed)
        hidden = self.attention_norm(hidden + self.output(context))
        transformed = self.contract(self.activation(self.expand(hidden)))
        normed: Tensor = self.feedforward_norm(hidden + transformed)
        return normed

    def attend(self, fused: Tensor, lengths: list[tuple[int, int]]) -> Tensor:
        """Attend with one call per run of sequences of equal length: (N, 3 H) -> (N, H)."""
        contexts: list[Tensor] = []
        start = 0
        for count, length in lengths:
            part = fused[start : start + count * length]
            start += count * length
            by_head = part.view(count, length, 3, self.heads, self.head_size).permute(2, 0, 3, 1, 4)  # (3, B, A, T, D)
            context = functional.scaled_dot_product_attention(by_head[0], by_head[1], by_head[2])
            contexts.append(context.transpose(1, 2).reshape(count * length, self.heads * self.head_size))
        return contexts[0] if len(contexts) == 1 else torch.cat(contexts)


class _ScriptedLayers(nn.Module):
    """All layers in order; a shared layer is repeated."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        distinct = [_ScriptedLayer(layer) for layer in layers_of(encoder)]
        self.layers = nn.ModuleList(distinct[number % len(distinct)] for number in range(encoder.depth))
        self.last = encoder.depth - 1

    def forward(
        self, hidden: Tensor, lengths: list[tuple[int, int]], needed: Tensor | None, keep_states: bool
    ) -> list[Tensor]:
        """Return the last state, (N, H), or (M, H) for ``needed``; with ``keep_states``, after the earlier ones."""
        states = [hidden]
        for number, layer in enumerate(self.layers):
            hidden = layer(hidden, lengths, needed if number == self.last else None)
            if not keep_states:
                states.clear()
            states.append(hidden)
        return states
