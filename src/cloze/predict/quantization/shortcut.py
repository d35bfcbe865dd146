"""The layers of a model as one call, for prediction: as long as they are what the call was made of.

Dimensions: N tokens of all sequences, M that somebody will read, H hidden size.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cloze.model.encoder import Encoder, Layer, Visible

# States in one row, (N, H); how many sequences of which length they are; the places that are needed, (M,); whether all
# states are to be kept -> the last, (N, H) or (M, H), or all, those that came in first.
Call = Callable[[Tensor, Sequence[tuple[int, int]], Tensor | None, bool], list[Tensor]]


class Shortcut:
    """Stands for layers for as long as they are what it was made of: adapters, gates and training go around it."""

    def __init__(self, encoder: Encoder, call: Call) -> None:
        self.call, self._parts = call, _parts(encoder)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Who copies an encoder wants to change it."""

    def __call__(
        self, encoder: Encoder, hidden: Tensor, visible: Visible, needed: Tensor | None, keep: bool
    ) -> list[Tensor] | None:
        """(B, T, H) -> (B, T, H), or (M, H) of what is needed; with ``keep``, all before it, too."""
        if isinstance(visible, Tensor) or torch.is_grad_enabled() or not self._fits(encoder):
            return None
        # Nothing is padded here: without gradients, the sequences of a part have one length.
        lengths: list[Any] = [hidden.shape[:2]] if visible is None else [part.shape for part in visible]
        *states, last = self.call(hidden.flatten(0, 1), lengths, needed, keep)
        return [*(state.view_as(hidden) for state in states), last.view_as(hidden) if needed is None else last]

    def _fits(self, encoder: Encoder) -> bool:
        if _parts(encoder) != self._parts:
            return False
        return not any(layer.training or layer.attention.output._forward_pre_hooks for layer in layers_of(encoder))


def layers_of(encoder: Encoder) -> list[Layer]:
    """The layers that differ."""
    return [layer for layer in encoder.layers if isinstance(layer, Layer)]


def linears_of(layer: Layer) -> dict[str, nn.Linear]:
    """The matrix products of a layer, by name."""
    attention = layer.attention
    return {
        "query_key_value": attention.query_key_value,
        "output": attention.output,
        "expand": layer.expand,
        "contract": layer.contract,
    }


def _parts(encoder: Encoder) -> list[nn.Module]:
    """All that others may add, take away or exchange; modules are equal only to themselves."""
    # From where modules keep them: asking for each by name would take a third of what the shortcut saves.
    return [
        part
        for layer in layers_of(encoder)
        for module in (layer, layer.attention)
        for part in module._modules.values()
        if part is not None
    ]
