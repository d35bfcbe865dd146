"""``int8.c`` as this machine can call it, where it was compiled (``hatch_build.py``) and the processor has VNNI.

A linear layer in int8 as one call of compiled code: rows are rounded, multiplied and scaled while they are at hand.

Dimensions: M rows (tokens), K features in, N features out.
"""

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from cloze.checkpoint.quantized_file import Int8Weight
from cloze.predict.quantization.linear import FrozenLinear

PATH = Path(__file__).with_name("libint8.so")
Pointer = ctypes.c_void_p
Count = ctypes.c_int64
_VERSION = 1  # of what is declared here


class ProductFields(ctypes.Structure):
    """``Product`` of int8.c."""

    _fields_ = (
        *((name, Count) for name in ("in_features", "out_features")),
        *((name, Pointer) for name in ("weight", "scales", "sums", "bias", "shares")),
        ("row_steps", Count),
    )


class NormFields(ctypes.Structure):
    """``Norm`` of int8.c."""

    _fields_ = (("weight", Pointer), ("bias", Pointer), ("epsilon", ctypes.c_float))


class LayerFields(ctypes.Structure):
    """``Layer`` of int8.c."""

    _fields_ = (
        *((name, ProductFields) for name in ("query_key_value", "output", "expand", "contract")),
        *((name, NormFields) for name in ("attention_norm", "feedforward_norm")),
        *((name, Count) for name in ("heads", "activation")),
    )


class SequenceFields(ctypes.Structure):
    """``Sequences`` of int8.c."""

    _fields_ = (("count", Count), ("length", Count))


@cache
def library() -> ctypes.CDLL | None:
    """The functions of int8.c, None where they are not to be had."""
    if not (PATH.is_file() and torch.cpu._is_vnni_supported()):
        return None
    try:
        # PyTorch's threads are used, not others beside them: its OpenMP is loaded already, under the same name.
        found = ctypes.CDLL(str(PATH))
        found.cloze_version.restype = Count
        if found.cloze_version() != _VERSION:
            return None
    except (OSError, AttributeError):  # compiled on another system, or long ago
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


LANES = 16  # numbers of 32 bits in a register
_BYTES = 4  # that one lane multiplies at once
_SPREAD = 8  # bytes of what int8.c notes of a row: its step and its lowest


class NativeProduct:
    """A weight, laid out for int8.c, with what it holds pointers to."""

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
        """(..., K) -> (..., N)."""
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
    """A linear layer that answers by such a product."""

    def __init__(self, linear: nn.Linear, weight: Int8Weight) -> None:
        super().__init__(linear)
        self.product = NativeProduct(weight, linear.bias)

    def rounded(self, states: Tensor) -> Tensor:
        """(..., K) -> (..., N)."""
        return self.product(states)


def packed(values: Tensor) -> Tensor:
    """(N, K) -> (N / 16, K / 4, 16, 4): the bytes that are multiplied together lie together."""
    features, width = values.shape
    return values.view(features // LANES, LANES, width // _BYTES, _BYTES).transpose(1, 2).contiguous()
