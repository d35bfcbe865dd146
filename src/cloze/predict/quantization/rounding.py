"""A model -> the int8 weights of its layers, with the features that come in made alike before they are rounded.

Behind a LayerNorm a few features are some ten times as large as the others, in every token; they decide the step of the
row, and what the others say is lost between two steps. So each feature is divided by a factor and its column of the
weight multiplied with it, which changes nothing but the rounding: the geometric mean of what is large in the states and
what is small in the weight shares the difference between both ("SmoothQuant", Xiao et al., 2023). How large features
become is a property of the model rather than of the texts, and random tokens show it: no text is needed, and a model
rounded while loading is the same as one rounded before. Where there is no LayerNorm before it, it was measured to help
little.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from cloze.checkpoint.quantized_file import Int8Weight, is_evened, layer_products, steps_of
from cloze.model import Bert

SEQUENCES, LENGTH = 32, 16
# No feature is taken for smaller than this part of the largest: random tokens may never have stirred it.
SMALLEST_PART = 1e-3


def round_products(bert: Bert) -> dict[str, Int8Weight]:
    """The rounded weights by their places in the model, whose products must be plain ones."""
    largest = largest_features(bert)
    return {place: round_product(place, linear, largest.get(place)) for place, linear in layer_products(bert)}


def round_product(place: str, linear: nn.Linear, largest: Tensor | None = None) -> Int8Weight:
    """One of them, (N, K), by its place and by how large each feature that comes in becomes, (K,)."""
    weight = linear.weight.detach().float()
    if largest is None:
        return Int8Weight.of(weight, steps_of(place))
    return Int8Weight.of(weight, steps_of(place), (_floored(largest) / _floored(weight.abs().amax(0))).sqrt())


def _floored(sizes: Tensor) -> Tensor:
    return sizes.clamp(min=max(float(sizes.max()) * SMALLEST_PART, 1e-12))


def largest_features(bert: Bert) -> dict[str, Tensor]:
    """The largest size of each feature, (K,), that comes into the products behind a LayerNorm, on random tokens."""
    config, found = bert.config, dict[str, Tensor]()
    shape = SEQUENCES, min(LENGTH, config.positions)
    ids = torch.randint(config.vocab_size, shape, generator=torch.Generator().manual_seed(0))
    with _watched(bert, found), torch.no_grad():
        bert.encoder(ids, torch.zeros_like(ids))
    return found


@contextmanager
def _watched(bert: Bert, found: dict[str, Tensor]) -> Iterator[None]:
    """While it lasts, the model drops nothing and ``found`` learns what comes into its products."""

    def watch(place: str, _: nn.Module, given: tuple[Tensor, ...]) -> None:
        sizes = given[0].abs().flatten(0, -2).amax(0)  # (B, T, K) -> (K,)
        # A layer that is gone through many times has its largest of all.
        found[place] = torch.maximum(found.get(place, sizes), sizes)

    training = bert.training
    hooks = [
        linear.register_forward_pre_hook(partial(watch, place))
        for place, linear in layer_products(bert)
        if is_evened(place)
    ]
    try:
        bert.eval()
        yield
    finally:
        bert.train(training)
        for hook in hooks:
            hook.remove()
