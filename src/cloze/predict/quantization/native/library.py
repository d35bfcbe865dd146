"""``int8.c`` as this machine can call it, where it was compiled (``hatch_build.py``) and the processor has VNNI."""

import ctypes
from functools import cache
from pathlib import Path

import torch

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
