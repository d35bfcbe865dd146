"""Estimate the cost of training from the configuration alone: parameters, FLOPs and memory.

Dimensions: B sequences, T tokens, H hidden size, E table width, F feed-forward size, A heads, L layers, V vocabulary,
M chosen positions. Numbers are counted from the encoder's own steps; the tests hold them against real models.

Memory is that of tensors. The allocator of Linux keeps some of what was freed, and may take a third more, or with
checkpointing three times as much; MALLOC_MMAP_THRESHOLD_=65536 in the environment makes it give memory back.
"""

from collections.abc import Collection
from dataclasses import dataclass

from cloze.errors import ConfigError
from cloze.model.config import BertConfig
from cloze.model.heads import POOLED_HEADS, SPAN_PLACE_SIZE, SPAN_PLACES, HeadName, comparison_width

_FLOAT = 4  # bytes; weights, states and gradients are float32


@dataclass(frozen=True)
class Estimate:
    """Training cost of a model for batches of one shape, in float32."""

    parameters: int
    flops_per_token: float  # forward and backward, and forward once more where layers are checkpointed
    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int  # AdamW's two moments
    activation_bytes: int  # peak within a step

    @property
    def total_bytes(self) -> int:
        """Sum of all parts: slightly above the real peak, since activations are freed as gradients are computed."""
        return self.weight_bytes + self.gradient_bytes + self.optimizer_bytes + self.activation_bytes


def estimate(
    config: BertConfig,
    heads: Collection[HeadName],
    *,
    batch: int,
    length: int,
    labels: int = 2,
    chosen: float = 0.15,
    explicit: bool | None = None,
    checkpointing: bool = False,
) -> Estimate:
    """Estimate the cost of a training step.

    ``chosen`` is the share of tokens that the masked-word head reads. ``explicit`` says whether attention weights are
    written out; they are on a CPU, wherever they have dropout or are bfloat16, and the first is assumed if it is left.
    """
    if batch < 1 or not 1 <= length <= config.positions:
        raise ConfigError(
            f"batch {batch} and length {length}; at least one sequence of 1 to {config.positions} tokens was expected"
        )
    if explicit is None:
        explicit = config.attention_dropout > 0
    parameters = count_parameters(config, heads, labels=labels)
    return Estimate(
        parameters=parameters,
        flops_per_token=count_flops(config, heads, length, chosen=chosen, checkpointing=checkpointing),
        weight_bytes=_FLOAT * parameters,
        gradient_bytes=_FLOAT * parameters,
        optimizer_bytes=2 * _FLOAT * parameters,
        activation_bytes=count_activations(
            config, heads, batch, length, chosen=chosen, explicit=explicit, checkpointing=checkpointing
        ),
    )


def count_parameters(
    config: BertConfig, heads: Collection[HeadName] = (), *, labels: int = 2, pooler: bool | None = None
) -> int:
    """Return the number of parameters, equal to ``Bert.parameter_count`` of the built model."""
    hidden, width = config.hidden_size, config.table_width
    tables = width * (config.vocab_size + config.positions + config.segments) + 2 * width
    if config.embedding_size is not None:
        tables += width * hidden + hidden
    on_top = {
        "mlm": hidden * width + 3 * width + config.vocab_size,
        "sbo": SPAN_PLACES * SPAN_PLACE_SIZE
        + (2 * hidden + SPAN_PLACE_SIZE) * hidden
        + 3 * hidden
        + hidden * width
        + 3 * width
        + config.vocab_size,
        "nsp": 2 * hidden + 2,
        "sop": 2 * hidden + 2,
        "relation": 3 * hidden + 3,
        "sequence": labels * ((comparison_width(hidden) if config.head_pooling == "separate" else hidden) + 1),
        "token": labels * (hidden + 1),
        "span": 2 * hidden + 2,
        "choice": hidden + 1,
    }
    needs_pooler = pooler or (config.head_pooling == "cls" and any(name in POOLED_HEADS for name in heads))
    pooled = hidden * hidden + hidden if needs_pooler else 0
    layers = config.distinct_layers * _layer_parameters(config)
    return tables + layers + pooled + sum(on_top[name] for name in heads)


def _layer_parameters(config: BertConfig) -> int:
    hidden, inner = config.hidden_size, config.feedforward_size
    attention = 4 * (hidden * hidden + hidden) + 2 * hidden
    return attention + 2 * hidden * inner + inner + hidden + 2 * hidden


def count_flops(
    config: BertConfig,
    heads: Collection[HeadName],
    length: int,
    *,
    chosen: float = 0.15,
    checkpointing: bool = False,
) -> float:
    """Floating-point operations that a token costs in a training step; matrix products alone, which are nearly all.

    A product of (n, m) and (m, p) is 2nmp. On the way back there are two of the same size: one for the gradient of the
    input, one for that of the weights.
    """
    hidden, width = config.hidden_size, config.table_width
    # Three projections and the two products of attention with T tokens each; then one projection, and two products of
    # the feed-forward network, which the last layer does for those tokens alone that somebody reads.
    attention = 6 * hidden * hidden + 4 * length * hidden
    behind = 2 * (hidden * hidden + 2 * hidden * config.feedforward_size)
    layers = config.layers * attention + (config.layers - 1 + _last_layer_share(heads, length, chosen)) * behind
    rest = 2.0 * width * hidden if config.embedding_size is not None else 0.0
    if "mlm" in heads:
        rest += chosen * 2 * (hidden * width + width * config.vocab_size)
    if "sbo" in heads:
        inside = (2 * hidden + SPAN_PLACE_SIZE) * hidden + hidden * width + width * config.vocab_size
        rest += chosen * 2 * inside
    if any(name in POOLED_HEADS for name in heads):
        rest += 2 * hidden * hidden / length
    return 3 * (layers + rest) + (layers if checkpointing else 0)


def _last_layer_share(heads: Collection[HeadName], length: int, chosen: float) -> float:
    """Return the share of the last layer's states that the heads read."""
    if not heads or any(name in ("sbo", "token", "span") for name in heads):
        return 1.0
    firsts = 1 / length if any(name in POOLED_HEADS for name in heads) else 0.0
    return min(1.0, firsts + (chosen if "mlm" in heads else 0.0))


def count_activations(
    config: BertConfig,
    heads: Collection[HeadName],
    batch: int,
    length: int,
    *,
    chosen: float = 0.15,
    explicit: bool = True,
    checkpointing: bool = False,
) -> int:
    """Bytes at the height of a step, which is one of four moments of the way back.

    In the word heads, all layers still keep what they need, and logits and their gradients are there. In the last
    layer and in the one before, which does more, the logits are gone, but the gradient of the table that made them
    waits for that of the look-up; here a checkpointed layer is computed again. In the embeddings, there are nothing
    but the table's gradients.
    """
    tokens, share = batch * length, _last_layer_share(heads, length, chosen)
    layer = round(tokens * _layer_activations(config, length, explicit))
    last = round(tokens * _layer_activations(config, length, explicit, share))
    between = tokens * _FLOAT * config.hidden_size
    below = tokens * _embedding_activations(config) + (config.layers - 1) * (between if checkpointing else layer)
    kept = below + (between if checkpointing else last)
    moments = [kept + (last if checkpointing else 0) + _layer_gradients(config, batch, length, explicit, share)]
    if config.layers > 1:
        again = layer if checkpointing else 0
        # The gradient of a shared layer's weights grows until its first pass has been gone through.
        waiting = _FLOAT * _layer_parameters(config) if config.shared_layers else 0
        moments.append(below + again + waiting + _layer_gradients(config, batch, length, explicit))
    table = _FLOAT * config.vocab_size * config.table_width
    if not any(name in ("mlm", "sbo") for name in heads):
        return max(*moments, table)
    # Logits, and a gradient of theirs.
    logits = round(chosen * tokens) * (_word_head_activations(config, heads) + _FLOAT * config.vocab_size)
    return max(kept + logits + table, max(moments) + table, 3 * table)


def _layer_activations(config: BertConfig, length: int, explicit: bool, share: float = 1.0) -> float:
    """Bytes a token, of which a share goes through the whole layer.

    H-wide: the input; query, key, value; then context, inputs of both LayerNorms, output of the first. F-wide: before
    and after the activation.
    """
    hidden = config.hidden_size
    dropped = 2 * _FLOAT * hidden if config.dropout > 0 else 0
    behind = share * (_FLOAT * (4 * hidden + 2 * config.feedforward_size) + dropped)
    if not explicit:
        # The kernel keeps one number a row, and what it made, which is the context itself where nothing is left out.
        return 4 * _FLOAT * hidden + behind + _FLOAT * (config.heads + (hidden if share < 1 else 0))
    # Written out: the scaled query; the softmax; and with dropout, the factors, and what came of it.
    weights = 3 * _FLOAT if config.attention_dropout > 0 else _FLOAT
    return 5 * _FLOAT * hidden + behind + weights * config.heads * length


def _embedding_activations(config: BertConfig) -> int:
    """Bytes a token: the sum before LayerNorm, and where there is a map behind it, what goes into that."""
    width = config.table_width
    mapped = _FLOAT * width if config.embedding_size is not None else 0
    return _FLOAT * width + mapped + (_FLOAT * width if config.dropout > 0 else 0)


def _word_head_activations(config: BertConfig, heads: Collection[HeadName]) -> int:
    """Bytes a target. Logits are V wide, and so is their softmax; the rest hardly counts."""
    hidden, width = config.hidden_size, config.table_width
    transform = _FLOAT * (hidden + 3 * width)
    logits = 2 * _FLOAT * config.vocab_size
    boundary = _FLOAT * (2 * hidden + SPAN_PLACE_SIZE + 3 * hidden + 3 * width)
    return (transform + logits if "mlm" in heads else 0) + (boundary + logits if "sbo" in heads else 0)


def _layer_gradients(config: BertConfig, batch: int, length: int, explicit: bool, share: float = 1.0) -> int:
    """Return the peak bytes of gradients inside a layer: in the feed-forward part or, once that is freed, attention."""
    inner = round(share * 2 * _FLOAT * batch * length * config.feedforward_size)
    square = _FLOAT * batch * config.heads * length * length if explicit else 0
    return max(inner, 2 * square - inner)
