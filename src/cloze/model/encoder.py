"""The encoder: section 3 of Devlin et al. (2019), after "Attention is all you need" (Vaswani et al., 2017).

Three learned embeddings are added, and a stack of bidirectional Transformer layers follows. As in the original, and
unlike most later models, LayerNorm comes after each residual sum (post-LayerNorm), and positions are learned.

Dimensions: B sequences, T tokens, H hidden size, E table width (H in BERT), A heads, D head size (H = A * D), L layers,
V vocabulary, M places that somebody will read.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from cloze.model.config import BertConfig
from cloze.model.dropout import Dropout


@dataclass(frozen=True)
class EncoderOutput:
    """What the encoder returns; the last two only when asked for."""

    last: Tensor  # (B, T, H); zero at places that were not needed
    states: tuple[Tensor, ...] = ()  # L + 1 of (B, T, H), the embeddings first
    attentions: tuple[Tensor, ...] = ()  # L of (B, A, T, T); each row sums to one


class Embeddings(nn.Module):
    """Token + segment + position, then LayerNorm and dropout; ALBERT maps its narrower tables to the hidden size."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        # padding_idx keeps the gradient of [PAD] at zero: padding must teach nothing.
        self.token = table(config.vocab_size, config.table_width, padding_id=config.pad_id)
        self.segment = table(config.segments, config.table_width)
        self.position = table(config.positions, config.table_width)
        self.norm = nn.LayerNorm(config.table_width, eps=config.norm_epsilon)
        self.dropout = Dropout(config.dropout)
        factorised = config.embedding_size is not None
        self.to_hidden = nn.Linear(config.table_width, config.hidden_size) if factorised else None

    def forward(self, ids: Tensor, segments: Tensor) -> Tensor:
        """(B, T), (B, T) -> (B, T, H)."""
        total = self.token(ids) + self.segment(segments) + self.position.weight[: ids.shape[1]]
        narrow: Tensor = self.dropout(self.norm(total))  # (B, T, E)
        return narrow if self.to_hidden is None else self.to_hidden(narrow)


def table(rows: int, width: int, padding_id: int | None = None) -> nn.Embedding:
    """A table of zeros, to be initialised or loaded.

    PyTorch's own random start would be thrown away in either case, and takes two seconds on the meta device.
    """
    return nn.Embedding(rows, width, padding_idx=padding_id, _weight=torch.zeros(rows, width))


class SelfAttention(nn.Module):
    """Multi-head attention of every token to every token of its sequence."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.heads, self.head_size = config.heads, config.head_size
        # One matrix instead of three: the same numbers, one larger and so faster product.
        self.query_key_value = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.output = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = Dropout(config.attention_dropout)
        self.low_rank: nn.Module | None = None  # model/lora.py

    def forward(
        self, hidden: Tensor, mask: Tensor | None, explicit: bool, needed: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """(B, T, H), mask (B, 1, 1, T) -> (B, T, H), or (M, H), and the weights (B, A, T, T) if they are explicit."""
        batch, length, width = hidden.shape
        fused = self.query_key_value(hidden)  # (B, T, 3 H)
        if self.low_rank is not None:
            fused = fused + self.low_rank(hidden)
        projected = fused.view(batch, length, 3, self.heads, self.head_size)
        query, key, value = projected.permute(2, 0, 3, 1, 4)  # each (B, A, T, D)
        weights = None
        # Dropout needs the weights one by one, and the fused kernel of a CPU has none: then it falls back to the same
        # steps as these, with a slower dropout.
        if explicit or self._drops_on_cpu(hidden):
            weights = attention_weights(query, key, mask)
            context = self.dropout(weights) @ value
        else:
            dropout = self.dropout.probability if self.training else 0.0
            context = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        context = context.transpose(1, 2).reshape(batch, length, width)  # (B, A, T, D) -> (B, T, H)
        if needed is not None:
            context = pick(context, needed)
        return self.output(context), weights if explicit else None

    def _drops_on_cpu(self, hidden: Tensor) -> bool:
        return self.training and self.dropout.probability > 0 and hidden.device.type == "cpu"


def attention_weights(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(Q K^T / sqrt(D)) over the real tokens: (B, A, T, D) twice -> (B, A, T, T)."""
    scores: Tensor = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(-1)


class Layer(nn.Module):
    """Attention and a feed-forward network, each followed by dropout, residual sum and LayerNorm."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.norm_epsilon)
        self.expand = nn.Linear(config.hidden_size, config.feedforward_size)
        self.contract = nn.Linear(config.feedforward_size, config.hidden_size)
        self.feedforward_norm = nn.LayerNorm(config.hidden_size, eps=config.norm_epsilon)
        self.activation = activation(config.activation)
        self.dropout = Dropout(config.dropout)
        self.attention_adapter: nn.Module | None = None  # model/adapters.py
        self.feedforward_adapter: nn.Module | None = None

    def forward(
        self, hidden: Tensor, mask: Tensor | None, explicit: bool, needed: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """(B, T, H) -> (B, T, H), or (M, H) of what is needed, and the attention weights if they are to be explicit."""
        attended, weights = self.attention(hidden, mask, explicit, needed)
        if needed is not None:
            hidden = pick(hidden, needed)
        attended = self.dropout(attended)
        if self.attention_adapter is not None:
            attended = self.attention_adapter(attended)
        hidden = self.attention_norm(hidden + attended)
        transformed = self.dropout(self.contract(self.activation(self.expand(hidden))))
        if self.feedforward_adapter is not None:
            transformed = self.feedforward_adapter(transformed)
        return self.feedforward_norm(hidden + transformed), weights


def pick(states: Tensor, places: Tensor) -> Tensor:
    """(B, T, H), flat places (M,) -> (M, H)."""
    return states.flatten(0, 1).index_select(0, places)


def put_back(picked: Tensor, places: Tensor, like: Tensor) -> Tensor:
    """(M, H) -> (B, T, H) at their places, and zero elsewhere; places are all different."""
    empty = picked.new_zeros(like.shape[0] * like.shape[1], picked.shape[1])
    return empty.index_copy(0, places, picked).view(*like.shape[:2], -1)


def first_places(ids: Tensor) -> Tensor:
    """The flat places of the first tokens, ``[CLS]``: (B, T) -> (B,)."""
    return torch.arange(0, ids.numel(), ids.shape[1], device=ids.device)


class Encoder(nn.Module):
    """Embeddings and L layers, or one layer that is gone through L times.

    Who reads only some of the last states says which are ``needed``: a classifier reads the first token, the
    masked-word head one in seven. Other tokens are still looked at, but behind attention, where three quarters of a
    layer's work are, the last layer then leaves them out. What is needed comes out the same.

    With ``checkpointing``, training keeps the states between layers alone and computes what is inside a second time on
    the way back: the same numbers, for about a third more time and a fraction of the memory (Chen et al., 2016).
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.depth = config.layers
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.distinct_layers))
        self.checkpointing = False

    def forward(
        self,
        ids: Tensor,
        segments: Tensor,
        mask: Tensor | None = None,
        *,
        needed: Tensor | None = None,
        keep_states: bool = False,
        keep_attentions: bool = False,
    ) -> EncoderOutput:
        """Encode (B, T) ids; ``mask`` is (B, T), true where there is a token, None where there is no padding.

        ``needed`` are flat places (M,), all different; None stands for all.
        """
        allowed = None if mask is None else mask.bool()[:, None, None, :]  # (B, 1, 1, T)
        hidden = self.embeddings(ids, segments)
        states, attentions = [hidden], []
        for number in range(self.depth):
            wanted = needed if number == self.depth - 1 else None
            hidden, weights = self._through(number, hidden, allowed, keep_attentions, wanted)
            if wanted is not None:
                hidden = put_back(hidden, wanted, ids)
            if keep_states:
                states.append(hidden)
            if keep_attentions:
                attentions.append(weights)
        return EncoderOutput(hidden, tuple(states) if keep_states else (), tuple(attentions))

    def _through(
        self, number: int, hidden: Tensor, mask: Tensor | None, explicit: bool, needed: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        layer = self.layers[number % len(self.layers)]
        if self.checkpointing and self.training and torch.is_grad_enabled():
            # The random state is kept and set again, so that dropout takes the same elements the second time.
            return checkpoint(  # type: ignore[no-any-return]
                layer, hidden, mask, explicit, needed, use_reentrant=False, preserve_rng_state=True
            )
        return layer(hidden, mask, explicit, needed)  # type: ignore[no-any-return]


def activation(name: str) -> nn.Module:
    """Return the feed-forward layer's non-linearity: exact GELU unless a checkpoint says otherwise."""
    if name == "relu":
        return nn.ReLU()
    return nn.GELU(approximate="none" if name == "gelu" else "tanh")


def initialise(module: nn.Module, deviation: float, generator: torch.Generator) -> None:
    """Start as the paper's code does: weights from a normal cut at two deviations, biases 0, LayerNorm 1 and 0."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(part.weight, std=deviation, a=-2 * deviation, b=2 * deviation, generator=generator)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.Embedding) and part.padding_idx is not None:
            nn.init.zeros_(part.weight[part.padding_idx])
        if isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
            nn.init.zeros_(part.bias)
