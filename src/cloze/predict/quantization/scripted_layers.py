"""The layers of an int8 model as one TorchScript call, for machines without the compiled C kernels.

TorchScript is deprecated in PyTorch, and only this file uses it; to remove it, delete this file and its use in
``precision.py``. It is useful because, for a short text, calling the forty operations of a layer from Python takes
longer than computing them. CPU time of eager layers relative to these, in two runs of ``benchmarks/eager_layers.py``
(all-MiniLM-L6-v2, one thread, a shared machine): 1.65 and 1.85 for one short text, 1.16 and 1.19 for many short texts,
1.06 and 1.20 for paragraphs. TorchScript also releases the interpreter lock, so a service can accept requests in the
meantime. The operations and their order are the same as in the plain int8 layers, so results are bit-identical.

Dimensions: N tokens of all sequences, M requested positions, H hidden size, A heads, D head size.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cloze.model.encoder import Encoder, Layer
from cloze.predict.quantization.linear import Fbgemm, Int8Linear, gathered, layers_of, linears_of, spread


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
