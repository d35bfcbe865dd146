"""All layers of an int8 model as one call, used only while the layers are exactly the ones it was built from.

``FusedLayers`` guards the call: adapters, head gates, training and gradients take the plain layers. Two calls exist,
the compiled C kernels (``native/kernels.py``) and, for machines without them, ``scripted_layers.py``.

Dimensions: N tokens of all sequences, M positions that are read, H hidden size.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cloze.model.encoder import Encoder, Layer, Visibility

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
