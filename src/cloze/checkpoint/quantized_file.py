"""``int8.safetensors``: the weights of the layers as whole numbers, beside the model that they were rounded from.

    encoder.layers.0.expand.values   int8, (N, K)
    encoder.layers.0.expand.scales   float32, (N,): what one step of each row is worth
    encoder.layers.0.expand.factors  float32, (K,): what each feature is divided by before it is rounded, and its column
                                     multiplied with; only of products behind a LayerNorm (see rounding.py)

Others ignore the file. It names the weights that it was made of by their SHA-256, so that one which a newer model has
left behind is refused, and says how alike the model's vectors are in int8 and in float32.

A processor without VNNI adds two products of 8 bits in 16, and two large ones overflow: 254 * 127 * 2 does not fit. So
weights and activations share the room: where the weights have ``steps`` steps to either side, the activations have
``row_steps``, and the sum always fits. Which of the two needs them more was measured. The same file gives the same
numbers on every processor.

Dimensions: N features out, K features in.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from cloze.checkpoint.adapter_folder import weights_fingerprint
from cloze.checkpoint.folder import ModelFolder, find_model
from cloze.checkpoint.weights import read_safetensors_facts, write_safetensors
from cloze.errors import CheckpointError, ConfigError
from cloze.files import replaced_file
from cloze.model import Backbone, Bert

INT8 = "int8.safetensors"
# A row of zeros has no scale of its own; whatever it is divided by, it stays zero.
SMALLEST = 1e-30
_FORMAT = "cloze int8 2"
# The matrix products of a layer, and the steps of their weights. Factors share what is large between the weights and
# the activations, and steps are shared alike; the activations of the other two are even, and it is their weights that
# rounding costs most.
_PRODUCTS = {"attention.query_key_value": 90, "attention.output": 96, "expand": 90, "contract": 107}
_EVENED = ("attention.query_key_value", "expand")
_LARGEST_SUM = 2**15 - 1


@dataclass(frozen=True)
class Int8Weight:
    """A weight as whole numbers, (N, K), and what one step of each of its rows is worth, (N,)."""

    values: Tensor
    scales: Tensor
    steps: int  # no value is larger
    factors: Tensor | None = None  # what the features that are multiplied with it are divided by before, (K,)

    @property
    def row_steps(self) -> int:
        """How many steps to either side of their middle this leaves to the rows that are multiplied with it."""
        return min(127, _LARGEST_SUM // (4 * self.steps))

    @classmethod
    def of(cls, weight: Tensor, steps: int, factors: Tensor | None = None) -> "Int8Weight":
        """Round a weight, (N, K), for features that are divided by these factors, (K,)."""
        weight = weight.detach().float()
        if factors is not None:
            weight = weight * factors
        scales = weight.abs().amax(1).clamp(min=SMALLEST) / steps
        return cls((weight / scales[:, None]).round().to(torch.int8), scales, steps, factors)

    def tensors(self, name: str) -> dict[str, Tensor]:
        """What the file holds of it."""
        found = {f"{name}.values": self.values, f"{name}.scales": self.scales}
        return found if self.factors is None else found | {f"{name}.factors": self.factors}


@dataclass(frozen=True)
class QuantizedFile:
    """The rounded weights by their places in the model, and the least cosine that was seen of a text's vectors."""

    weights: Mapping[str, Int8Weight]
    least_cosine: float


def require_fused_kernels(model: Backbone, feature: str) -> Bert:
    """Return the model if it declares ``fused_kernels``; rounded products and fused layers are written for its layers.

    Raises:
        ConfigError: If the architecture does not declare them.
    """
    if not (model.capabilities.fused_kernels and isinstance(model, Bert)):
        raise ConfigError(
            f"{feature} is not implemented for models of type {model.model_type!r}; use fp32, or auto, which takes it"
        )
    return model


def layer_products(model: Backbone) -> Iterator[tuple[str, nn.Linear]]:
    """Yield the matrix products of the layers, the ones that are rounded, by their names in the model."""
    bert = require_fused_kernels(model, "computing in fewer bits")
    for number, layer in enumerate(bert.encoder.layers):
        for name in _PRODUCTS:
            linear = layer.get_submodule(name)
            assert isinstance(linear, nn.Linear)
            yield f"encoder.layers.{number}.{name}", linear


def steps_of(place: str) -> int:
    """The steps of a product's weight, which its place in the model tells."""
    return next(steps for name, steps in _PRODUCTS.items() if place.endswith(f".{name}"))


def is_evened(place: str) -> bool:
    """Whether the features that come into a product are divided by factors: where they come from a LayerNorm."""
    return place.endswith(_EVENED)


def write_quantized(place: Path, weights: Mapping[str, Int8Weight], least_cosine: float) -> Path:
    """Write a model's rounded weights into the file beside it and return its path."""
    path = _folder(place) / INT8
    tensors: dict[str, Tensor] = {}
    for name, weight in weights.items():
        tensors |= weight.tensors(name)
    facts = {"kind": _FORMAT, "weights": weights_fingerprint(place), "least_cosine": f"{least_cosine:.6f}"}
    with replaced_file(path) as temporary:
        write_safetensors(temporary, tensors, facts)
    return path


def read_quantized(contents: ModelFolder) -> QuantizedFile | None:
    """What lies beside a model, None where nothing does; what belongs to other weights is refused."""
    if contents.place is None or contents.adapter is not None or find_model(contents.place) is None:
        return None
    path = _folder(contents.place) / INT8
    if not path.is_file():
        return None
    tensors, facts = read_safetensors_facts(path)
    if facts.get("kind") != _FORMAT:
        raise CheckpointError(
            f"{path}: not a file of this version's 'cloze quantize' ({_FORMAT!r} was expected); "
            "run it again, or delete the file"
        )
    if facts.get("weights") != weights_fingerprint(contents.place):
        raise CheckpointError(
            f"{path}: rounded from other weights than the model's; run 'cloze quantize' again, or delete the file"
        )
    weights = {name: _read(tensors, name, linear, path) for name, linear in layer_products(contents.model)}
    return QuantizedFile(weights, _share(facts.get("least_cosine", ""), path))


def _folder(place: Path) -> Path:
    found = find_model(place)
    assert found is not None, "it was loaded from there"
    return found[0]


def _read(tensors: Mapping[str, Tensor], name: str, linear: nn.Linear, path: Path) -> Int8Weight:
    values, scales, factors = (tensors.get(f"{name}.{part}") for part in ("values", "scales", "factors"))
    steps = steps_of(name)
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
        or (factors is None) == is_evened(name)
        or not _are_factors(factors, linear)
    ):
        raise CheckpointError(f"{path}: {name} does not fit the model's; run 'cloze quantize' again")
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
        raise CheckpointError(f"{path}: least_cosine is {text!r}; a number from -1 to 1 was expected; quantize again")
    return share
