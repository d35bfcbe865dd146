"""``Dense`` modules of ``sentence-transformers``: a linear map of pooled vectors, such as whitening.

Dimensions: D numbers in, K numbers out.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from cloze.checkpoint.weights import read_weights, write_safetensors
from cloze.errors import CheckpointError
from cloze.files import read_json, write_json

Activation = Literal["identity", "tanh"]
_CLASSES: dict[Activation, str] = {
    "identity": "torch.nn.modules.linear.Identity",
    "tanh": "torch.nn.modules.activation.Tanh",
}
# What the module reads and writes; others than these are not one vector a text.
_VECTOR = "sentence_embedding"


@dataclass(frozen=True, eq=False)  # tensors have no one answer to whether they are equal
class Projection:
    """``activation(weight @ vector + bias)``."""

    weight: Tensor  # (K, D)
    bias: Tensor  # (K,)
    activation: Activation = "identity"

    def __call__(self, vectors: Tensor) -> Tensor:
        """Map vectors: (N, D) -> (N, K)."""
        mapped = torch.nn.functional.linear(vectors, self.weight.to(vectors), self.bias.to(vectors))
        return mapped.tanh() if self.activation == "tanh" else mapped


def read_projection(folder: Path) -> Projection | str:
    """Read a ``Dense`` module, or return what it does that cloze does not."""
    path = folder / "config.json"
    values = read_json(path)
    named = str(values.get("activation_function", _CLASSES["tanh"]))  # the default of those who write it
    activations = [name for name in get_args(Activation) if named.lower().endswith(f".{name}")]
    if not activations:
        return f"ends in {named}"
    if values.get("use_residual"):
        return "adds its input to its output"
    names = [values.get(key) or _VECTOR for key in ("module_input_name", "module_output_name")]
    if names != [_VECTOR, _VECTOR]:
        return f"reads {names[0]!r} and writes {names[1]!r}"
    tensors = read_weights(folder)
    weight = tensors.get("linear.weight")
    if weight is None or weight.ndim != 2:
        raise CheckpointError(f"{folder}: linear.weight of two dimensions was expected; fetch or save it again")
    bias = tensors.get("linear.bias", torch.zeros(len(weight)))
    if bias.shape != weight.shape[:1]:
        raise CheckpointError(
            f"{folder}: linear.bias has {tuple(bias.shape)}, but linear.weight {tuple(weight.shape)}; "
            "fetch or save it again"
        )
    return Projection(weight.float(), bias.float(), activations[0])


def write_projection(folder: Path, projection: Projection) -> None:
    """Write a ``Dense`` module."""
    outputs, inputs = projection.weight.shape
    write_json(
        folder / "config.json",
        {
            "in_features": inputs,
            "out_features": outputs,
            "bias": True,
            "activation_function": _CLASSES[projection.activation],
        },
    )
    write_safetensors(
        folder / "model.safetensors", {"linear.weight": projection.weight, "linear.bias": projection.bias}
    )
