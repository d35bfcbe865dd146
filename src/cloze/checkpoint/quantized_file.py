"""``int8.safetensors``: the int8 weights of the encoder layers, stored next to the model they were quantized from.

    encoder.layers.0.expand.values   int8, (N, K)
    encoder.layers.0.expand.scales   float32, (N,): scale of each row
    encoder.layers.0.expand.factors  float32, (K,): smoothing factors: each input feature is divided by its factor, and
                                     its weight column is multiplied by it; only for inputs from a LayerNorm
                                     (predict/quantization/linear.py)

Other libraries ignore the file. It records the SHA-256 of the float32 weights, so that a stale file is rejected, and
the lowest cosine similarity measured between the model's vectors in int8 and in float32.

A CPU without VNNI adds two 8-bit products in 16 bits, which can overflow: 254 * 127 * 2 does not fit. The range is
therefore divided between weights and activations: weights use ``steps`` levels on either side of zero, activations
``row_steps``, and the sum always fits. Measurements determined which of the two gets more levels. Because these limits
apply on every CPU, the same file gives the same results everywhere.

Dimensions: N output features, K input features.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from cloze.checkpoint.folder import ModelFolder, find_model, weights_fingerprint
from cloze.checkpoint.weights import read_safetensors_with_metadata, write_safetensors
from cloze.errors import CheckpointError, ConfigError
from cloze.files import replaced_file
from cloze.model import Backbone, Bert

INT8 = "int8.safetensors"
# Smallest scale; it avoids a division by zero for rows of zeros.
SMALLEST = 1e-30
INT8_FORMAT = "cloze int8 2"
# The matrix products of a layer, and the quantization levels of their weights. In two of them, smoothing factors
# balance the ranges of weights and activations, so both get similar numbers of levels. The activations of the other two
# have no outliers, so there the weights get more levels.
_PRODUCTS = {"attention.query_key_value": 90, "attention.output": 96, "expand": 90, "contract": 107}
_EVENED = ("attention.query_key_value", "expand")
_LARGEST_SUM = 2**15 - 1


@dataclass(frozen=True)
class Int8Weight:
    """A quantized weight: int8 values, (N, K), and a scale per row, (N,)."""

    values: Tensor
    scales: Tensor
    steps: int  # largest absolute value
    factors: Tensor | None = None  # smoothing factors, by which the input features are divided, (K,)

    @property
    def row_steps(self) -> int:
        """The number of quantization levels on either side of zero that remain for the activations."""
        return min(127, _LARGEST_SUM // (4 * self.steps))

    @classmethod
    def quantize(cls, weight: Tensor, steps: int, factors: Tensor | None = None) -> "Int8Weight":
        """Quantize a weight, (N, K), whose input features are divided by the smoothing ``factors``, (K,)."""
        weight = weight.detach().float()
        if factors is not None:
            weight = weight * factors
        scales = weight.abs().amax(1).clamp(min=SMALLEST) / steps
        return cls((weight / scales[:, None]).round().to(torch.int8), scales, steps, factors)

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Return the tensors to store by name."""
        found = {f"{name}.values": self.values, f"{name}.scales": self.scales}
        return found if self.factors is None else found | {f"{name}.factors": self.factors}


@dataclass(frozen=True)
class QuantizedFile:
    """Quantized weights by module name, and the lowest cosine similarity measured between int8 and float32 vectors."""

    weights: Mapping[str, Int8Weight]
    least_cosine: float


def require_fused_kernels(model: Backbone, feature: str) -> Bert:
    """Return the model if it declares ``fused_kernels``: the kernels implement exactly the layers of BERT.

    Raises:
        ConfigError: If the architecture does not declare them.
    """
    if not (model.fused_kernels and isinstance(model, Bert)):
        kind = f"models of type {model.model_type!r}"
        if model.config.has_distances:
            kind += f" with position_kind {model.config.position_kind!r}"
        raise ConfigError(f"{feature} is not implemented for {kind}; use fp32 or auto")
    return model


def layer_products(model: Backbone) -> Iterator[tuple[str, nn.Linear]]:
    """Yield the linear layers that are quantized, with their module names."""
    bert = require_fused_kernels(model, "reduced precision")
    for number, layer in enumerate(bert.encoder.layers):
        for name in _PRODUCTS:
            linear = layer.get_submodule(name)
            assert isinstance(linear, nn.Linear)
            yield f"encoder.layers.{number}.{name}", linear


def weight_steps(place: str) -> int:
    """Return the number of quantization levels of a weight by its module name."""
    return next(steps for name, steps in _PRODUCTS.items() if place.endswith(f".{name}"))


def is_smoothed(place: str) -> bool:
    """Return whether the inputs of a linear layer are smoothed (those that come from a LayerNorm)."""
    return place.endswith(_EVENED)


def write_quantized(place: Path, weights: Mapping[str, Int8Weight], least_cosine: float) -> Path:
    """Write the quantized weights next to the model and return the path."""
    path = _folder(place) / INT8
    write_quantized_file(path, weights, least_cosine, weights_fingerprint(place))
    return path


def write_quantized_file(path: Path, weights: Mapping[str, Int8Weight], least_cosine: float, made_from: str) -> None:
    """Write quantized weights atomically; ``made_from`` is the hash of the float32 weights they belong to."""
    tensors: dict[str, Tensor] = {}
    for name, weight in weights.items():
        tensors |= weight.tensors(name)
    metadata = {"kind": INT8_FORMAT, "weights": made_from, "least_cosine": f"{least_cosine:.6f}"}
    with replaced_file(path) as temporary:
        write_safetensors(temporary, tensors, metadata | {"content": _digest(tensors)})


def read_quantized(contents: ModelFolder) -> QuantizedFile | None:
    """Read the quantized weights of a model; None if there is no file.

    Raises:
        CheckpointError: If the file belongs to other weights, or was written by another version.
    """
    if contents.place is None or contents.adapter is not None or find_model(contents.place) is None:
        return None
    path = _folder(contents.place) / INT8
    return read_quantized_file(path, contents.model, weights_fingerprint(contents.place)) if path.is_file() else None


def read_quantized_file(path: Path, model: Backbone, made_from: str) -> QuantizedFile:
    """Read the quantized weights of a model from a file.

    Raises:
        CheckpointError: If the file is damaged, belongs to other weights, or was written by another version.
    """
    tensors, metadata = read_safetensors_with_metadata(path)
    if metadata.get("kind") != INT8_FORMAT:
        raise CheckpointError(
            f"{path}: not written by this version of 'cloze quantize' (expected {INT8_FORMAT!r}); "
            "run it again, or delete the file"
        )
    if metadata.get("weights") != made_from:
        raise CheckpointError(
            f"{path}: quantized from weights other than the model's; run 'cloze quantize' again, or delete the file"
        )
    weights = {name: _read(tensors, name, linear, path) for name, linear in layer_products(model)}
    if metadata.get("content", digest := _digest(tensors)) != digest:  # files of earlier versions have none
        raise CheckpointError(
            f"{path}: damaged, its SHA-256 does not match; run 'cloze quantize' again, or delete the file"
        )
    return QuantizedFile(weights, _share(metadata.get("least_cosine", ""), path))


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of tensors and their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _folder(place: Path) -> Path:
    found = find_model(place)
    assert found is not None, "it was loaded from there"
    return found[0]


def _read(tensors: Mapping[str, Tensor], name: str, linear: nn.Linear, path: Path) -> Int8Weight:
    values, scales, factors = (tensors.get(f"{name}.{part}") for part in ("values", "scales", "factors"))
    steps = weight_steps(name)
    if (
        values is None
        or scales is None
        or values.dtype is not torch.int8
        or scales.dtype is not torch.float32
        or values.shape != linear.weight.shape
        or scales.shape != values.shape[:1]
        or values.max() > steps
        or values.min() < -steps
        or not bool(scales.isfinite().all())
        or (factors is None) == is_smoothed(name)
        or not _are_factors(factors, linear)
    ):
        raise CheckpointError(f"{path}: {name} does not fit the model; run 'cloze quantize' again")
    return Int8Weight(values, scales, steps, factors)


def _are_factors(factors: Tensor | None, linear: nn.Linear) -> bool:
    if factors is None:
        return True
    right = factors.dtype is torch.float32 and factors.shape == (linear.in_features,)
    return right and bool((factors.isfinite() & (factors > 0)).all())


def _share(text: str, path: Path) -> float:
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not -1 <= share <= 1.001:
        raise CheckpointError(f"{path}: least_cosine is {text!r}; expected a number from -1 to 1; quantize again")
    return share
