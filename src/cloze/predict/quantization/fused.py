"""The layers of a model as one call, for prediction: as long as they are what the call was made of.

Dimensions: N tokens of all sequences, M that somebody will read, H hidden size.

The layers of a model in int8 as one call of TorchScript, where there is no compiled code for them.

Of a short text, the forty operations of a layer take longer to call from Python than to compute. TorchScript calls them
without Python, in half of the time, and without Python's lock, so that a service takes requests meanwhile. They are the
same operations in the same order as those of the layers themselves, and give the same bits.

Dimensions: N tokens of all sequences, M that somebody will read, H hidden size, A heads, D head size.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cloze.model.encoder import Encoder, Layer, Visible
from cloze.predict.quantization.linear import Fbgemm, Int8Linear, gathered, spread

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
    """Return the distinct layers, which must be exactly the class that the fused code implements."""
    layers = [layer for layer in encoder.layers if isinstance(layer, Layer)]
    assert len(layers) == len(encoder.layers), "a layer of another class would be skipped"
    assert all(type(layer) is Layer for layer in layers), "a subclass computes something else"
    return layers


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


class ScriptedLayers:
    """The layers as TorchScript has them."""

    def __init__(self, encoder: Encoder) -> None:
        with warnings.catch_warnings():
            # TorchScript is to leave PyTorch one day. Until then it is by far the fastest of what needs no compiler.
            warnings.simplefilter("ignore")
            self._call: Any = torch.jit.script(_ScriptedLayers(encoder))

    @classmethod
    def of(cls, encoder: Encoder) -> "ScriptedLayers | None":
        """One for these layers, where their products are of the kind that TorchScript can call."""
        products = [product for layer in layers_of(encoder) for product in linears_of(layer).values()]
        fits = all(isinstance(one, Int8Linear) and isinstance(one.product, Fbgemm) for one in products)
        return cls(encoder) if fits and hasattr(torch.jit, "script") else None

    def __call__(
        self, hidden: Tensor, lengths: Sequence[tuple[int, int]], needed: Tensor | None, keep: bool
    ) -> list[Tensor]:
        """(N, H) -> (N, H), or (M, H) of what is needed; all states before it, or none."""
        # To optimise so many operations would take a tenth of a second at first, and gains nothing.
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            return self._call(hidden, lengths, needed, keep)  # type: ignore[no-any-return]


class _ScriptedProduct(nn.Module):
    """What Int8Linear computes."""

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
    """What Layer computes, of sequences in one row."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.heads, self.head_size = layer.attention.heads, layer.attention.head_size
        self.query_key_value = _ScriptedProduct(layer.attention.query_key_value)
        self.output = _ScriptedProduct(layer.attention.output)
        self.expand, self.contract = _ScriptedProduct(layer.expand), _ScriptedProduct(layer.contract)
        self.attention_norm, self.feedforward_norm = layer.attention_norm, layer.feedforward_norm
        self.activation = layer.activation

    def forward(self, hidden: Tensor, lengths: list[tuple[int, int]], needed: Tensor | None) -> Tensor:
        """(N, H) -> (N, H), or (M, H)."""
        context = self.attend(self.query_key_value(hidden), lengths)
        if needed is not None:
            context = context.index_select(0, needed)
            hidden = hidden.index_select(0, needed)
        hidden = self.attention_norm(hidden + self.output(context))
        transformed = self.contract(self.activation(self.expand(hidden)))
        normed: Tensor = self.feedforward_norm(hidden + transformed)
        return normed

    def attend(self, fused: Tensor, lengths: list[tuple[int, int]]) -> Tensor:
        """(N, 3 H) -> (N, H), sequences of one length together."""
        contexts: list[Tensor] = []
        start = 0
        for count, length in lengths:
            part = fused[start : start + count * length]
            start += count * length
            parted = part.view(count, length, 3, self.heads, self.head_size).permute(2, 0, 3, 1, 4)
            context = functional.scaled_dot_product_attention(parted[0], parted[1], parted[2])
            contexts.append(context.transpose(1, 2).reshape(count * length, self.heads * self.head_size))
        return contexts[0] if len(contexts) == 1 else torch.cat(contexts)


class _ScriptedLayers(nn.Module):
    """All layers, one after the other; where they are one, again and again."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        distinct = [_ScriptedLayer(layer) for layer in layers_of(encoder)]
        self.layers = nn.ModuleList(distinct[number % len(distinct)] for number in range(encoder.depth))
        self.last = encoder.depth - 1

    def forward(
        self, hidden: Tensor, lengths: list[tuple[int, int]], needed: Tensor | None, keep: bool
    ) -> list[Tensor]:
        """(N, H) -> (N, H), or (M, H); all states before it, or none."""
        states = [hidden]
        for number, layer in enumerate(self.layers):
            hidden = layer(hidden, lengths, needed if number == self.last else None)
            if not keep:
                states.clear()
            states.append(hidden)
        return states
