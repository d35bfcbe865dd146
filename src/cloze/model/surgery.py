"""Models from models: the same encoder under other heads, or with more words, positions or segments.

Attention heads taken away: for a while by gates, or for good by zeros.

A layer's attention adds up what its heads bring, each through its own columns of the output matrix. A gate multiplies
what one head brings before that matrix; zeros in its columns remove it, and leave every shape and every name as it is,
so that a pruned model is saved and loaded, here and elsewhere, like any other.

Dimensions: B sequences, T tokens, H hidden size, A heads, D head size, L layers.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from cloze.errors import ConfigError
from cloze.model.backbone import Backbone
from cloze.model.bert import Bert, require_bert
from cloze.model.config import BertConfig
from cloze.model.encoder import SelfAttention
from cloze.model.heads import HeadName

# Where the vector of a new word starts: at the mean of its pieces' vectors, or anywhere.
WordStart = Literal["pieces", "random"]
# Where the vector of a new position or segment starts: as a copy of an old one, or anywhere.
RowStart = Literal["copies", "random"]


def with_heads(
    model: Backbone,
    heads: Collection[HeadName],
    *,
    labels: int = 2,
    keep: bool,
    seed: int,
    dropout: float | None = None,
) -> Backbone:
    """The same encoder and pooler with these heads; what is not there yet starts at random.

    ``keep`` takes over the heads that are there already, for training that goes on; without it all of them start anew,
    for training on another task.
    """
    config = model.config if dropout is None else replace(model.config, dropout=dropout, attention_dropout=dropout)
    changed = type(model).fresh(config, heads, labels=labels, pooler=model.pooler is not None, seed=seed)
    state = changed.state_dict()
    known = {
        name: tensor
        for name, tensor in model.state_dict().items()
        if name in state and (keep or not name.startswith("heads."))
    }
    changed.load_state_dict(state | known)
    return changed


def missing_heads(model: Backbone, heads: Collection[HeadName]) -> list[HeadName]:
    """Which of these heads a model lacks."""
    return [name for name in heads if name not in model.heads]


def with_words(
    model: Backbone, pieces: Mapping[int, Sequence[int]], *, start: WordStart = "pieces", seed: int = 0
) -> Bert:
    """The same model with new words.

    ``pieces`` gives each new row of the table, and each new bias of the masked-word head, the old rows whose mean it
    starts from. The table grows where it must; all other rows stay what they are.
    """
    model = require_bert(model, "adding words")
    size = max([model.config.vocab_size, *(row + 1 for row in pieces)])
    generator = torch.Generator().manual_seed(seed)
    state = model.state_dict()
    # The masked-word heads decode with the embedding itself, so that their output vectors start likewise.
    for name in ("encoder.embeddings.token.weight", "heads.mlm.bias", "heads.sbo.bias"):
        if name in state:
            deviation = model.config.initial_deviation if name.endswith("weight") else 0.0
            fresh = None if start == "pieces" else (deviation, generator)
            state[name] = _with_rows(state[name], size, pieces, fresh)
    return _rebuilt(model, replace(model.config, vocab_size=size), state)


def with_positions(model: Backbone, positions: int, *, start: RowStart = "copies", seed: int = 0) -> Bert:
    """The same model for longer texts; on those that it could read before, nothing changes.

    New position i starts as position i modulo the old number (as Longformer's do, Beltagy et al., 2020). Attention has
    learned from the differences between neighbours, and a copy in order keeps them everywhere but at the seams.
    """
    model = require_bert(model, "adding positions")
    _check_growth("positions", model.config.positions, positions)
    config = replace(model.config, positions=positions)  # which refuses what is too long, before a list is made of it
    rows = [place % model.config.positions for place in range(model.config.positions, positions)]
    return _with_copies(model, config, "position", rows, start, seed)


def with_segments(model: Backbone, segments: int, *, start: RowStart = "copies", seed: int = 0) -> Bert:
    """The same model for more texts at once; new segments start as the last old one.

    Segment 0 is also that of ``[CLS]`` and of every text that stands alone. What the last one has learned to say,
    "another text", is what is true of those behind it.
    """
    model = require_bert(model, "adding segments")
    _check_growth("segments", model.config.segments, segments)
    config = replace(model.config, segments=segments)
    rows = [model.config.segments - 1] * (segments - model.config.segments)
    return _with_copies(model, config, "segment", rows, start, seed)


def _check_growth(name: str, old: int, new: int) -> None:
    if new < old:
        raise ConfigError(f"{name} is {new}, but the model has {old} already; they can be added, not taken away")


def _with_copies(model: Bert, config: BertConfig, table: str, rows: list[int], start: RowStart, seed: int) -> Bert:
    """Add copies of these rows to one of the tables, or as many random ones."""
    state = model.state_dict()
    name = f"encoder.embeddings.{table}.weight"
    new = state[name][rows]
    if start == "random":
        new = model.config.initial_deviation * torch.randn(new.shape, generator=torch.Generator().manual_seed(seed))
    state[name] = torch.cat([state[name], new])
    return _rebuilt(model, config, state)


def _rebuilt(model: Bert, config: BertConfig, state: Mapping[str, Tensor]) -> Bert:
    """A model like this one but for its sizes, with these parameters."""
    changed = type(model)(config, model.head_names, labels=model.labels, pooler=model.pooler is not None)
    changed.load_state_dict(state)
    return changed.train(model.training)


def _with_rows(
    table: Tensor, size: int, pieces: Mapping[int, Sequence[int]], fresh: tuple[float, torch.Generator] | None
) -> Tensor:
    """Grow a table of (V, ...) to ``size`` rows and set those of new words."""
    grown = torch.cat([table, table.new_zeros(size - len(table), *table.shape[1:])])
    for row, old in pieces.items():
        if fresh is None:
            grown[row] = table[list(old)].mean(0)
        else:
            deviation, generator = fresh
            grown[row] = deviation * torch.randn(table.shape[1:], generator=generator)
    return grown


Head = tuple[int, int]  # layer and head, from 0 as in EncoderOutput.attentions


@contextmanager
def gated_heads(bert: Backbone, gates: Tensor) -> Iterator[None]:
    """Multiply what each head brings by its gate, (L, A), or (B, L, A) for a gate of its own in every sequence.

    Gates of one change nothing; those that require a gradient get one (Michel et al., 2019). For use without
    checkpointing, which would go through the layers a second time.
    """
    bert = require_bert(bert, "gating attention heads")
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
def without_heads(bert: Backbone, heads: Collection[Head]) -> Iterator[None]:
    """Leave some heads out for as long as the block lasts."""
    check_heads(bert.config, heads)
    weight = bert.token_table.weight
    gates = torch.ones(bert.config.layers, bert.config.heads, device=weight.device, dtype=weight.dtype)
    for layer, head in heads:
        gates[layer, head] = 0.0
    with gated_heads(bert, gates):
        yield


@torch.no_grad()
def prune_heads(bert: Backbone, heads: Collection[Head]) -> None:
    """Remove heads for good: zeros in their columns of the output matrix."""
    check_heads(bert.config, heads)
    bert = require_bert(bert, "pruning attention heads")
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
