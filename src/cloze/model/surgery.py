"""Model surgery: replace heads, add words, positions or segments, and prune attention heads.

Attention heads are removed temporarily by gates, or permanently by zeros. The output of an attention layer is the sum
of its heads' contributions, each through its own columns of the output matrix. A gate scales one contribution before
that matrix. Zeros in the columns remove it without changing any shape or name, so a pruned model is saved and loaded
like any other.

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
from cloze.model.building_blocks import SinusoidalTable
from cloze.model.config import BertConfig
from cloze.model.encoder import SelfAttention
from cloze.model.heads import HeadName
from cloze.options import HeadPooling

# How to initialise the vector of a new word: with the mean of the vectors of its pieces, or randomly.
WordStart = Literal["pieces", "random"]
# How to initialise the vector of a new position or segment: as a copy of an existing one, or randomly.
RowStart = Literal["copies", "random"]
Head = tuple[int, int]  # (layer, head), both from 0, as in EncoderOutput.attentions


def with_heads(
    model: Backbone,
    heads: Collection[HeadName],
    *,
    labels: int = 2,
    keep: bool,
    seed: int,
    dropout: float | None = None,
    pooling: HeadPooling = "cls",
) -> Backbone:
    """Return a model with the same backbone and pooler but other heads; new modules are initialised randomly.

    Args:
        model: The model to start from. It is not modified.
        heads: The heads of the new model.
        labels: Outputs of a sequence or token head.
        keep: Copy the weights of heads that both models have (to continue training); otherwise initialise all heads
            (to train another task).
        seed: Seed of the random initialisation.
        dropout: Replaces both dropout probabilities of the configuration, if given.
        pooling: Input of a sequence or choice head; without ``cls``, the new model has no pooler.
    """
    config = replace(model.config, head_pooling=pooling)
    if dropout is not None:
        config = replace(config, dropout=dropout, attention_dropout=dropout)
    pooler = model.pooler is not None and pooling == "cls"
    changed = type(model).fresh(config, heads, labels=labels, pooler=pooler, seed=seed)
    state = changed.state_dict()
    kept = {
        name: tensor
        for name, tensor in model.state_dict().items()
        if name in state and (keep or not name.startswith("heads."))
    }
    changed.load_state_dict(state | kept)
    return changed


def missing_heads(model: Backbone, heads: Collection[HeadName]) -> list[HeadName]:
    """Return the heads in ``heads`` that the model does not have."""
    return [name for name in heads if name not in model.heads]


def with_words(
    model: Backbone, pieces: Mapping[int, Sequence[int]], *, start: WordStart = "pieces", seed: int = 0
) -> Bert:
    """Return a model with new words.

    ``pieces`` maps each new row of the embedding table and of the masked-LM heads' biases to the existing rows whose
    mean initialises it. The table grows as needed; all other rows stay unchanged.
    """
    model = require_bert(model, "adding words")
    size = max([model.config.vocab_size, *(row + 1 for row in pieces)])
    generator = torch.Generator().manual_seed(seed)
    state = model.state_dict()
    # The output matrix of the masked-LM heads is the embedding table itself, so only their biases need new rows.
    for name in ("encoder.embeddings.token.weight", "heads.mlm.bias", "heads.lm.bias", "heads.sbo.bias"):
        if name in state:
            deviation = model.config.initial_deviation if name.endswith("weight") else 0.0
            fresh = None if start == "pieces" else (deviation, generator)
            state[name] = _with_rows(state[name], size, pieces, fresh)
    return _rebuilt(model, replace(model.config, vocab_size=size), state)


def with_positions(model: Backbone, positions: int, *, start: RowStart = "copies", seed: int = 0) -> Bert:
    """Return a model with more positions. Results for texts up to the old maximum length do not change.

    New position i is initialised as a copy of position i modulo the old number (Longformer, Beltagy et al., 2020).
    Attention relies on the differences between neighbouring positions. The copies preserve them except where one
    sequence of copies ends and the next begins.
    """
    model = require_bert(model, "adding positions")
    if model.config.has_distances:
        raise ConfigError("adding positions is not possible: this model has a vector for each distance instead")
    _check_growth("positions", model.config.positions, positions)
    config = replace(model.config, positions=positions)  # checks the size before a list of this size is created
    rows = [place % model.config.positions for place in range(model.config.positions, positions)]
    return _with_copies(model, config, "position", rows, start, seed)


def with_segments(model: Backbone, segments: int, *, start: RowStart = "copies", seed: int = 0) -> Bert:
    """Return a model with more segments, initialised as copies of the last one.

    Segment 0 also marks ``[CLS]`` and single texts. The last segment has learned to mean "another text", which fits the
    new segments too.
    """
    model = require_bert(model, "adding segments")
    _check_growth("segments", model.config.segments, segments)
    config = replace(model.config, segments=segments)
    rows = [model.config.segments - 1] * (segments - model.config.segments)
    return _with_copies(model, config, "segment", rows, start, seed)


def _check_growth(name: str, old: int, new: int) -> None:
    if new < old:
        raise ConfigError(f"{name} is {new}, but the model already has {old}; they can only be added, not removed")


def _with_copies(model: Bert, config: BertConfig, table: str, rows: list[int], start: RowStart, seed: int) -> Bert:
    """Append copies of the given rows, or the same number of random rows, to one of the embedding tables."""
    state = model.state_dict()
    name = f"encoder.embeddings.{table}.weight"
    new = state[name][rows]
    if table == "position" and config.position_kind == "sinusoidal":  # the table continues by its formula
        new = SinusoidalTable(config.positions, config.table_width, config.initial_deviation).weight[len(state[name]) :]
    if start == "random":
        new = model.config.initial_deviation * torch.randn(new.shape, generator=torch.Generator().manual_seed(seed))
    state[name] = torch.cat([state[name], new])
    return _rebuilt(model, config, state)


def _rebuilt(model: Bert, config: BertConfig, state: Mapping[str, Tensor]) -> Bert:
    """Return a model of the same class and heads with another configuration and these parameters."""
    changed = type(model)(config, model.head_names, labels=model.labels, pooler=model.pooler is not None)
    changed.load_state_dict(state)
    return changed.train(model.training)


def _with_rows(
    table: Tensor, size: int, pieces: Mapping[int, Sequence[int]], fresh: tuple[float, torch.Generator] | None
) -> Tensor:
    """Grow a table (V, ...) to ``size`` rows and set the rows of new words."""
    grown = torch.cat([table, table.new_zeros(size - len(table), *table.shape[1:])])
    for row, old in pieces.items():
        if fresh is None:
            grown[row] = table[list(old)].mean(0)
        else:
            deviation, generator = fresh
            grown[row] = deviation * torch.randn(table.shape[1:], generator=generator)
    return grown


@contextmanager
def gated_heads(bert: Backbone, gates: Tensor) -> Iterator[None]:
    """Scale the contribution of each attention head by a gate within a ``with`` block.

    Not compatible with checkpointing, which runs each layer twice.

    Args:
        bert: The model.
        gates: Factors, (L, A), or (B, L, A) for different factors per sequence. A gate of 1 changes nothing. Gates that
            require a gradient receive one, which measures the importance of the head (Michel et al., 2019).
    """
    bert = require_bert(bert, "gating attention heads")
    config, encoder = bert.config, bert.encoder
    assert gates.shape[-2:] == (config.layers, config.heads)
    depth = 0

    def start(_module: nn.Module, _arguments: object) -> None:
        nonlocal depth
        depth = 0

    def gate(_module: nn.Module, arguments: tuple[Tensor]) -> Tensor:
        nonlocal depth  # a counter, because a shared layer runs L times
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
    """Disable some attention heads within a ``with`` block."""
    check_heads(bert.config, heads)
    weight = bert.token_table.weight
    gates = torch.ones(bert.config.layers, bert.config.heads, device=weight.device, dtype=weight.dtype)
    for layer, head in heads:
        gates[layer, head] = 0.0
    with gated_heads(bert, gates):
        yield


@torch.no_grad()
def prune_heads(bert: Backbone, heads: Collection[Head]) -> None:
    """Remove attention heads permanently by setting their columns of the output matrix to zero."""
    check_heads(bert.config, heads)
    bert = require_bert(bert, "pruning attention heads")
    if bert.config.shared_layers and heads:
        raise ConfigError(
            "the layers of this model share their weights, so a head cannot be pruned from a single layer"
        )
    size, outputs = bert.config.head_size, _outputs(bert)
    for layer, head in heads:
        outputs[layer].weight[:, head * size : (head + 1) * size] = 0.0


def check_heads(config: BertConfig, heads: Collection[Head]) -> None:
    """Raise ``ConfigError`` if the model does not have one of these attention heads."""
    for layer, head in heads:
        if not (0 <= layer < config.layers and 0 <= head < config.heads):
            raise ConfigError(
                f"layer {layer}, head {head}: this model has layers 0 to {config.layers - 1} "
                f"with heads 0 to {config.heads - 1}"
            )


def _outputs(bert: Bert) -> list[nn.Linear]:
    """Return the attention output projection of each distinct layer."""
    return [part.output for part in bert.encoder.modules() if isinstance(part, SelfAttention)]
