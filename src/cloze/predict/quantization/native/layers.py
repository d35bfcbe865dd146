"""All layers of an encoder as one call of compiled code.

Dimensions: N tokens of all sequences, M that somebody will read, H hidden size, L layers.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cloze.model.encoder import Encoder, Layer
from cloze.predict.quantization.fused_layers import layers_of, linears_of
from cloze.predict.quantization.native.linear import (
    LANES,
    LayerFields,
    NativeLinear,
    NativeProduct,
    NormFields,
    SequenceFields,
    library,
)

_LARGEST_HEAD = 64
_GELU, _GELU_BY_TANH, _RELU = 1, 2, 3  # as int8.c numbers them


class NativeLayers:
    """The layers, laid out for int8.c, with what it holds pointers to."""

    def __init__(self, layers: Sequence[Layer], depth: int) -> None:
        self._depth, self._width = depth, layers[0].attention.output.in_features
        # A parameter or product that is exchanged for another must not leave a pointer to nothing behind.
        norms = [norm for layer in layers for norm in _norms(layer)]
        self._held = (
            [parameter.detach() for norm in norms for parameter in norm.parameters()],
            [_products(layer) for layer in layers],
        )
        self._layers = (LayerFields * len(layers))(*map(_fields, layers))

    @classmethod
    def of(cls, encoder: Encoder) -> "NativeLayers | None":
        """One for these layers, where their products are of this kind."""
        layers = layers_of(encoder)
        is_native = all(product is not None for layer in layers for product in _products(layer).values())
        return cls(layers, encoder.depth) if is_native else None

    def __call__(
        self, hidden: Tensor, lengths: Sequence[tuple[int, int]], needed: Tensor | None, keep: bool
    ) -> list[Tensor]:
        """(N, H) -> (N, H), or (M, H) of what is needed; all states before it, or none.

        ``lengths`` tell how many sequences of which length stand in the row, one after the other.
        """
        found = library()
        assert found is not None
        hidden, count = hidden.contiguous(), len(hidden)
        states = torch.empty(self._depth if keep else 1, count, self._width)
        parts = (SequenceFields * len(lengths))(*(SequenceFields(*shape) for shape in lengths))
        longest, threads = max((length for _, length in lengths), default=0), torch.get_num_threads()
        room = torch.empty(found.cloze_room(self._layers, count, longest, threads), dtype=torch.uint8)
        places = (None, 0) if needed is None else (needed.data_ptr(), len(needed))
        found.cloze_layers(
            *(self._layers, len(self._layers), self._depth, hidden.data_ptr(), count, parts, len(lengths)),
            *(*places, keep, states.data_ptr(), room.data_ptr(), longest, threads),
        )
        last = states[-1] if needed is None else states[-1, : len(needed)]
        return [hidden, *states[:-1], last] if keep else [last]


def are_native(encoder: Encoder) -> bool:
    """Whether int8.c is here and has all that these layers do."""
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
