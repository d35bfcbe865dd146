"""A model -> the int8 weights of its layers, with the input features smoothed before they are rounded.

Behind a LayerNorm a few features are some ten times as large as the others, in every token. They determine the step of
the row, and the others are lost between two steps. So each feature is divided by a factor and its column of the weight
multiplied by it, which changes nothing but the rounding: the geometric mean of the largest state and the largest
weight shares the difference between both (SmoothQuant, Xiao et al., 2023). How large features become is a property of
the model rather than of the texts, and random tokens show it: no text is needed, and a model quantized while loading
equals one quantized before. Products that do not follow a LayerNorm gain little and are left as they are.

Dimensions: B sequences, T tokens, K features in, N features out.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from cloze.checkpoint.quantized_file import Int8Weight, is_smoothed, layer_products, weight_steps
from cloze.model import Backbone

SEQUENCES, LENGTH = 32, 16  # of the random tokens
# Lower bound of a feature's size, as a part of the largest: random tokens may never have activated it.
SMALLEST_PART = 1e-3


def round_products(bert: Backbone) -> dict[str, Int8Weight]:
    """Return the rounded weights of a float32 model by their names."""
    largest = largest_features(bert)
    return {place: round_product(place, linear, largest.get(place)) for place, linear in layer_products(bert)}


def round_product(place: str, linear: nn.Linear, largest: Tensor | None = None) -> Int8Weight:
    """Round one weight, (N, K); ``largest`` is the largest size of each input feature, (K,)."""
    weight = linear.weight.detach().float()
    if largest is None:
        return Int8Weight.quantize(weight, weight_steps(place))
    return Int8Weight.quantize(weight, weight_steps(place), (_floored(largest) / _floored(weight.abs().amax(0))).sqrt())


def _floored(sizes: Tensor) -> Tensor:
    return sizes.clamp(min=max(float(sizes.max()) * SMALLEST_PART, 1e-12))


def largest_features(bert: Backbone) -> dict[str, Tensor]:
    """Return the largest size of each input feature, (K,), of the products behind a LayerNorm, on random tokens."""
    config, largest = bert.config, dict[str, Tensor]()
    shape = SEQUENCES, min(LENGTH, config.positions)
    ids = torch.randint(config.vocab_size, shape, generator=torch.Generator().manual_seed(0))
    with _recorded(bert, largest), torch.no_grad():
        bert.encode(ids, torch.zeros_like(ids))
    return largest


@contextmanager
def _recorded(bert: Backbone, largest: dict[str, Tensor]) -> Iterator[None]:
    """Record the largest inputs of the products in ``largest`` while the block runs, without dropout."""

    def record(place: str, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        sizes = inputs[0].abs().flatten(0, -2).amax(0)  # (B, T, K) -> (K,)
        # The maximum, because a shared layer runs several times.
        largest[place] = torch.maximum(largest.get(place, sizes), sizes)

    training = bert.training
    hooks = [
        linear.register_forward_pre_hook(partial(record, place))
        for place, linear in layer_products(bert)
        if is_smoothed(place)
    ]
    try:
        bert.eval()
        yield
    finally:
        bert.train(training)
        for hook in hooks:
            hook.remove()
