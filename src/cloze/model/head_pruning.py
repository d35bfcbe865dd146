"""Attention heads taken away: for a while by gates, or for good by zeros.

A layer's attention adds up what its heads bring, each through its own columns of the output matrix. A gate multiplies
what one head brings before that matrix; zeros in its columns remove it, and leave every shape and every name as it is,
so that a pruned model is saved and loaded, here and elsewhere, like any other.

Dimensions: B sequences, T tokens, H hidden size, A heads, D head size, L layers.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from cloze.errors import ConfigError
from cloze.model.bert import Bert
from cloze.model.config import BertConfig
from cloze.model.encoder import SelfAttention

Head = tuple[int, int]  # layer and head, from 0 as in EncoderOutput.attentions


@contextmanager
def gated_heads(bert: Bert, gates: Tensor) -> Iterator[None]:
    """Multiply what each head brings by its gate, (L, A), or (B, L, A) for a gate of its own in every sequence.

    Gates of one change nothing; those that require a gradient get one (Michel et al., 2019). For use without
    checkpointing, which would go through the layers a second time.
    """
    config, encoder = bert.config, bert.encoder
    assert gates.shape[-2:] == (config.layers, config.heads)
    depth = 0

    def start(_module: nn.Module, _arguments: object) -> None:
        nonlocal depth
        depth = 0

    def gate(_module: nn.Module, arguments: tuple[Tensor]) -> Tensor:
        nonlocal depth  # counted, as a layer that is shared is gone through L times
        wide = gates[..., depth, :].repeat_interleave(config.head_size, dim=-1)  # (H,) or (B, H)
        depth += 1
        return arguments[0] * (wide if wide.dim() == 1 else wide[:, None])

    handles = [encoder.register_forward_pre_hook(start)]
    handles += [output.register_forward_pre_hook(gate) for output in _outputs(bert)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def without_heads(bert: Bert, heads: Collection[Head]) -> Iterator[None]:
    """Leave some heads out for as long as the block lasts."""
    check_heads(bert.config, heads)
    weight = bert.encoder.embeddings.token.weight
    gates = torch.ones(bert.config.layers, bert.config.heads, device=weight.device, dtype=weight.dtype)
    for layer, head in heads:
        gates[layer, head] = 0.0
    with gated_heads(bert, gates):
        yield


@torch.no_grad()
def prune_heads(bert: Bert, heads: Collection[Head]) -> None:
    """Remove heads for good: zeros in their columns of the output matrix."""
    check_heads(bert.config, heads)
    if bert.config.shared_layers and heads:
        raise ConfigError("the layers of this model are one and the same: a head cannot be pruned from one of them")
    size, outputs = bert.config.head_size, _outputs(bert)
    for layer, head in heads:
        outputs[layer].weight[:, head * size : (head + 1) * size] = 0.0


def check_heads(config: BertConfig, heads: Collection[Head]) -> None:
    """Refuse heads that the model does not have."""
    for layer, head in heads:
        if not (0 <= layer < config.layers and 0 <= head < config.heads):
            raise ConfigError(
                f"layer {layer}, head {head}: this model has layers 0 to {config.layers - 1} "
                f"with heads 0 to {config.heads - 1}"
            )


def _outputs(bert: Bert) -> list[nn.Linear]:
    """The output matrix of each distinct layer's attention."""
    return [part.output for part in bert.encoder.modules() if isinstance(part, SelfAttention)]
