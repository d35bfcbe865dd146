"""The compiled int8 kernels (``int8.c``): one linear layer as one call, and all layers of an encoder as one call.

The library exists if it was compiled (``hatch_build.py``) and is used if the processor has VNNI. ``NativeLinear`` runs
one layer: it rounds, multiplies and scales rows while they are in the cache. ``NativeLayers`` runs a whole encoder.

Dimensions: M rows (tokens), K input features, N output features or tokens of all sequences, H hidden size, L layers.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from cloze.checkpoint.quantized_file import Int8Weight
from cloze.model.encoder import Encoder, Layer
from cloze.predict.quantization.linear import FrozenLinear, layers_of, linears_of

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
