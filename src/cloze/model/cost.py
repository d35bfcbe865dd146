"""Estimate the cost of training from the configuration alone: parameters, FLOPs and memory.

The formulas follow the steps of the encoder; the tests compare them with real models.

Memory means tensors. The Linux allocator does not return all freed memory to the system, so the process may take a
third more, or three times as much with checkpointing. MALLOC_MMAP_THRESHOLD_=65536 in the environment prevents this.

Dimensions: B sequences, T tokens, H hidden size, E table width, F feed-forward size, A heads, L layers, V vocabulary,
M chosen positions.
"""

from collections.abc import Collection
from dataclasses import dataclass

from cloze.errors import ConfigError
from cloze.model.config import BertConfig
from cloze.model.heads import POOLED_HEADS, SPAN_PLACE_SIZE, SPAN_PLACES, HeadName, comparison_width

_FLOAT = 4  # bytes; weights, states and gradients are float32


@dataclass(frozen=True)
class Estimate:
    """Cost of training a model in float32 on batches of one shape."""

    parameters: int
    flops_per_token: float  # forward and backward, and a second forward pass of checkpointed layers
    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int  # AdamW's two moments
    activation_bytes: int  # peak within a step

    @property
    def total_bytes(self) -> int:
        """Sum of all parts, slightly above the real peak because activations are freed as gradients are computed."""
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
    parameters: int | None = None,
) -> Estimate:
    """Estimate the cost of a training step.

    Args:
        config: The model.
        heads: The heads to train.
        batch: Sequences per batch.
        length: Tokens per sequence.
        labels: Outputs of a sequence or token head.
        chosen: Fraction of tokens that the masked-LM or LM head predicts.
        explicit: Whether attention weights are stored instead of using fused attention. The encoder stores them on a
            CPU if attention has dropout or runs in bfloat16. Default: true if attention has dropout.
        checkpointing: Whether the activations inside layers are recomputed in the backward pass.
        parameters: Number of parameters, for architectures other than BERT.

    Raises:
        ConfigError: If the batch is empty or the sequences are too long for the model.
    """
    if batch < 1 or not 1 <= length <= config.positions:
        raise ConfigError(
            f"batch {batch} and length {length}; expected at least one sequence of 1 to {config.positions} tokens"
        )
    if explicit is None:
        explicit = config.attention_dropout > 0
    explicit = explicit or config.distance_products > 0
    parameters = count_parameters(config, heads, labels=labels) if parameters is None else parameters
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
    """Return the number of parameters; equals ``Bert.parameter_count`` of the instantiated model."""
    hidden, width = config.hidden_size, config.table_width
    tables = width * (config.vocab_size + config.positions + config.segments) + 2 * width
    if config.embedding_size is not None:
        tables += width * hidden + hidden
    on_top = {
        "mlm": hidden * width + 3 * width + config.vocab_size,
        "lm": hidden * width + 3 * width + config.vocab_size,
        "sbo": SPAN_PLACES * SPAN_PLACE_SIZE
        + (2 * hidden + SPAN_PLACE_SIZE) * hidden
        + 3 * hidden
        + hidden * width
        + 3 * width
        + config.vocab_size,
        "rtd": hidden * hidden + 2 * hidden + 1,
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
    """Return the floating-point operations per token of a training step, counting only matrix products.

    A product of (n, m) and (m, p) takes 2nmp operations. The backward pass has two products of the same size: one for
    the gradient of the input and one for the gradient of the weights. Everything else is negligible.
    """
    hidden, width = config.hidden_size, config.table_width
    # Query, key and value projections, and the two products of attention with T tokens each.
    attention = 6 * hidden * hidden + 4 * length * hidden
    # Products of the tokens with the vectors of 2 T distances; their projections, once per batch, are negligible.
    attention += 4 * length * hidden * config.distance_products
    # The output projection and the two feed-forward products; the last layer skips them for tokens that no head reads.
    after_attention = 2 * (hidden * hidden + 2 * hidden * config.feedforward_size)
    full_layers = config.layers - 1 + _last_layer_share(heads, length, chosen)
    layers = config.layers * attention + full_layers * after_attention
    if config.two_streams and "mlm" in heads:
        # The last layer of the content stream has only keys and values; the query stream has no keys and values.
        layers = (config.layers - 1) * (attention + after_attention) + 4 * hidden * hidden
        layers += chosen * config.layers * (attention + after_attention - 4 * hidden * hidden)
    rest = 2.0 * width * hidden if config.embedding_size is not None else 0.0
    if {"mlm", "lm"} & set(heads):
        rest += chosen * 2 * (hidden * width + width * config.vocab_size)
    if "sbo" in heads:
        inside = (2 * hidden + SPAN_PLACE_SIZE) * hidden + hidden * width + width * config.vocab_size
        rest += chosen * 2 * inside
    if any(name in POOLED_HEADS for name in heads):
        rest += 2 * hidden * hidden / length
    return 3 * (layers + rest) + (layers if checkpointing else 0)


def _last_layer_share(heads: Collection[HeadName], length: int, chosen: float) -> float:
    """Return the fraction of the last layer's states that the heads read."""
    if not heads or any(name in ("sbo", "rtd", "token", "span") for name in heads):
        return 1.0
    firsts = 1 / length if any(name in POOLED_HEADS for name in heads) else 0.0
    return min(1.0, firsts + (chosen if {"mlm", "lm"} & set(heads) else 0.0))


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
    """Return the peak activation bytes of a step: the maximum over four moments of the backward pass.

    - In the word heads: the activations of all layers, the logits and their gradients.
    - In the last layer: the logits are freed, but the embedding gradient from the tied output matrix is held until the
      lookup adds its own. A checkpointed layer is recomputed here.
    - In the layer before it: the same, and this layer processes all tokens.
    - In the embeddings: only the gradients of the embedding table.
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
        # The gradient of shared weights accumulates until the backward pass reaches the first application of the layer.
        waiting = _FLOAT * _layer_parameters(config) if config.shared_layers else 0
        moments.append(below + again + waiting + _layer_gradients(config, batch, length, explicit))
    table = _FLOAT * config.vocab_size * config.table_width
    if not any(name in ("mlm", "lm", "sbo") for name in heads):
        return max(*moments, table)
    # The logits and their gradient.
    logits = round(chosen * tokens) * (_word_head_activations(config, heads) + _FLOAT * config.vocab_size)
    return max(kept + logits + table, max(moments) + table, 3 * table)


def _layer_activations(config: BertConfig, length: int, explicit: bool, share: float = 1.0) -> float:
    """Return the bytes per token that a layer stores for the backward pass.

    ``share`` is the fraction of tokens that also pass through the part after attention. Stored tensors of width H: the
    input, query, key and value; then the context, the inputs of both LayerNorms and the output of the first. Of width
    F: the input and output of the activation.
    """
    hidden = config.hidden_size
    dropped = 2 * _FLOAT * hidden if config.dropout > 0 else 0
    after_attention = share * (_FLOAT * (4 * hidden + 2 * config.feedforward_size) + dropped)
    if not explicit:
        # The fused kernel stores one number per head and its output. The output is the context counted above, unless
        # only a part of the context is used.
        return 4 * _FLOAT * hidden + after_attention + _FLOAT * (config.heads + (hidden if share < 1 else 0))
    # Explicit attention stores the scaled query and the softmax; dropout adds its factors and its output.
    weights = 3 * _FLOAT if config.attention_dropout > 0 else _FLOAT
    return 5 * _FLOAT * hidden + after_attention + weights * config.heads * length


def _embedding_activations(config: BertConfig) -> int:
    """Return the bytes per token that the embeddings store: inputs of LayerNorm and projection, and dropout factors."""
    width = config.table_width
    mapped = _FLOAT * width if config.embedding_size is not None else 0
    return _FLOAT * width + mapped + (_FLOAT * width if config.dropout > 0 else 0)


def _word_head_activations(config: BertConfig, heads: Collection[HeadName]) -> int:
    """Return the bytes per target. The logits and their softmax (width V) dominate."""
    hidden, width = config.hidden_size, config.table_width
    transform = _FLOAT * (hidden + 3 * width)
    logits = 2 * _FLOAT * config.vocab_size
    boundary = _FLOAT * (2 * hidden + SPAN_PLACE_SIZE + 3 * hidden + 3 * width)
    return (transform + logits if {"mlm", "lm"} & set(heads) else 0) + (boundary + logits if "sbo" in heads else 0)


def _layer_gradients(config: BertConfig, batch: int, length: int, explicit: bool, share: float = 1.0) -> int:
    """Return the peak gradient bytes inside a layer: of the feed-forward part or, later, of attention."""
    inner = round(share * 2 * _FLOAT * batch * length * config.feedforward_size)
    square = _FLOAT * batch * config.heads * length * length if explicit else 0
    return max(inner, 2 * square - inner)
