"""The encoder: section 3 of Devlin et al. (2019), after "Attention is all you need" (Vaswani et al., 2017).

Three learned embeddings are added, and a stack of bidirectional Transformer layers follows. As in the original, and
unlike most later models, LayerNorm comes after each residual sum (post-LayerNorm), and positions are learned.

Dimensions: B sequences, T tokens, H hidden size, E table width (H in BERT), A heads, D head size (H = A * D), L layers,
V vocabulary, M places that somebody will read.
"""

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from cloze.model.config import BertConfig
from cloze.model.layers import Dropout, EncoderOutput, activation, table
from cloze.model.packing import Packing, Part, pick, put_back

# Whom a token may look at: the real tokens of its sequence (B, 1, 1, T); in a packed row, those of its own sequence, by
# the parts of the row; or every token there is.
Visible = Tensor | tuple[Part, ...] | None

# PyTorch's softmax of bfloat16 works on so many numbers at once on a CPU, and one by one on those that are left: where
# some are, the way over float32 is about twice as fast (docs/findings.md).
_LANES = 32


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

    def forward(self, ids: Tensor, segments: Tensor, positions: Tensor | None = None) -> Tensor:
        """(B, T), (B, T) -> (B, T, H); positions (T,) are 0, 1, 2 unless they are given."""
        total = self.token(ids) + self.segment(segments)
        # Looked up, not indexed: threads would add up the gradients of an index in any order.
        total = total + (self.position.weight[: ids.shape[1]] if positions is None else self.position(positions))
        narrow: Tensor = self.dropout(self.norm(total))  # (B, T, E)
        # Back to float32 where the product was of bfloat16: sums along the layers keep their digits.
        return narrow if self.to_hidden is None else self.to_hidden(narrow).to(narrow.dtype)


class SelfAttention(nn.Module):
    """Multi-head attention of every token to every token of its sequence."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.heads, self.head_size = config.heads, config.head_size
        # One matrix instead of three: the same numbers, one larger and so faster product.
        self.query_key_value = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.output = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = Dropout(config.attention_dropout)
        self.low_rank: nn.Module | None = None  # model/adapters.py

    def forward(
        self, hidden: Tensor, visible: Visible, explicit: bool, needed: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """(B, T, H) -> (B, T, H), or (M, H), and the weights (B, A, T, T) if they are to be explicit."""
        fused = self.query_key_value(hidden)  # (B, T, 3 H)
        if self.low_rank is not None:
            fused = fused + self.low_rank(hidden)
        if isinstance(visible, tuple):
            context, weights = self._in_parts(fused, visible), None
        else:
            context, weights = self._attend(fused, visible, explicit)
        if needed is not None:
            context = pick(context, needed)
        return self.output(context), weights if explicit else None

    def _attend(self, fused: Tensor, mask: Tensor | None, explicit: bool = False) -> tuple[Tensor, Tensor | None]:
        """Queries, keys and values (B, T, 3 H) -> contexts (B, T, H), and the weights where they were written out."""
        batch, length, width = fused.shape
        projected = fused.view(batch, length, 3, self.heads, self.head_size)
        parted = projected.permute(2, 0, 3, 1, 4)  # three of (B, A, T, D)
        weights = None
        if explicit or self._written_out(fused):
            # Copied once: each product would otherwise copy what it takes.
            query, key, value = parted.contiguous()
            weights = attention_weights(query, key, mask)
            context = self.dropout(weights) @ value
        else:
            query, key, value = parted
            dropout = self.dropout.probability if self.training else 0.0
            context = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        return context.transpose(1, 2).reshape(batch, length, width // 3), weights  # (B, A, T, D) -> (B, T, H)

    def _in_parts(self, fused: Tensor, parts: tuple[Part, ...]) -> Tensor:
        """The same for sequences in one row, (1, N, 3 H) -> (1, N, H), a few at a time."""
        tokens = torch.split(fused.flatten(0, 1), [part.tokens for part in parts])
        contexts = [
            part.gather(self._attend(part.spread(some), part.mask)[0]) for some, part in zip(tokens, parts, strict=True)
        ]
        return torch.cat(contexts)[None]

    def _written_out(self, fused: Tensor) -> bool:
        """Whether a CPU is better off with the weights one by one."""
        if fused.device.type != "cpu":
            return False
        # Its fused kernel has no dropout and falls back to these same steps, with a slower one; and in bfloat16 the way
        # back through it takes four times as long as through plain products (docs/findings.md).
        drops = self.training and self.dropout.probability > 0
        return drops or (fused.dtype == torch.bfloat16 and torch.is_grad_enabled())


def attention_weights(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(Q K^T / sqrt(D)) over the real tokens: (B, A, T, D) twice -> (B, A, T, T)."""
    # Factor and mask go where they cost least: on the narrower side of the product, and added in place.
    scores: Tensor = query * query.shape[-1] ** -0.5 @ key.transpose(-2, -1)
    kind = scores.dtype
    if kind == torch.bfloat16 and scores.device.type == "cpu" and scores.shape[-1] % _LANES:
        scores = scores.float()
    if mask is not None:
        scores += torch.zeros_like(mask, dtype=scores.dtype).masked_fill_(~mask, float("-inf"))
    return scores.softmax(-1).to(kind)


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
        self, hidden: Tensor, visible: Visible, explicit: bool, needed: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """(B, T, H) -> (B, T, H), or (M, H) of what is needed, and the attention weights if they are to be explicit."""
        attended, weights = self.attention(hidden, visible, explicit, needed)
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


class Shortcut(Protocol):
    """The layers of an encoder that it was made for, in less time; None where they have to be asked themselves."""

    def __call__(
        self, encoder: "Encoder", hidden: Tensor, visible: Visible, needed: Tensor | None, keep: bool, /
    ) -> list[Tensor] | None:
        """Embeddings (B, T, H) -> what comes out of the last layer, or with ``keep`` all states, embeddings first."""


class Encoder(nn.Module):
    """Embeddings and L layers, or one layer that is gone through L times.

    Who reads only some of the last states says which are ``needed``: a classifier reads the first token, the
    masked-word head one in seven. Other tokens are still looked at, but behind attention, where three quarters of a
    layer's work are, the last layer then leaves them out. What is needed comes out the same.

    Padding is left out too, see ``model/packing.py``: in training, and in prediction on a CPU. Accelerators, which are
    given texts of like length there, prefer one large padded product.

    With ``checkpointing``, training keeps the states between layers alone and computes what is inside a second time on
    the way back: the same numbers, for about a third more time and a fraction of the memory (Chen et al., 2016).
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.depth = config.layers
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.distinct_layers))
        self.checkpointing = False
        self.shortcut: Shortcut | None = None  # predict/quantization/fused.py

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
        packing = None if mask is None or keep_attentions else self._pack(mask)
        hidden, visible = self._enter(ids, segments, mask, packing)
        wanted = needed if needed is None or packing is None else packing.find(needed)
        states, attentions = self._through_all(hidden, visible, wanted, keep_states, keep_attentions)
        last = states.pop()
        if needed is not None:
            last = put_back(last, needed, ids.shape)
        elif packing is not None:
            last = packing.unpack(last)
        if packing is not None:
            states = [packing.unpack(state) for state in states]
        return EncoderOutput(last, (*states, last) if keep_states else (), tuple(attentions))

    def _enter(
        self, ids: Tensor, segments: Tensor, mask: Tensor | None, packing: Packing | None
    ) -> tuple[Tensor, Visible]:
        """The embeddings, and whom each token may look at."""
        if packing is None:
            return self.embeddings(ids, segments), None if mask is None else mask.bool()[:, None, None, :]
        return self.embeddings(packing.take(ids), packing.take(segments), packing.positions), packing.parts

    def _pack(self, mask: Tensor) -> Packing | None:
        if torch.compiler.is_compiling():  # an exported graph is one for all shapes
            return None
        # Shapes change from batch to batch, for each of which MPS would compile anew.
        if self.training and torch.is_grad_enabled() and mask.device.type != "mps":
            return Packing.of(mask, padded=True)
        return Packing.of(mask) if not torch.is_grad_enabled() and mask.device.type == "cpu" else None

    def _through_all(
        self, hidden: Tensor, visible: Visible, needed: Tensor | None, keep: bool, explicit: bool
    ) -> tuple[list[Tensor], list[Tensor]]:
        """What comes out of the last layer, or all states, the embeddings first; and the weights if they are wanted."""
        if self.shortcut is not None and not explicit:
            found = self.shortcut(self, hidden, visible, needed, keep)
            if found is not None:
                return found, []
        states, attentions = [hidden], []
        for number in range(self.depth):
            is_last = number == self.depth - 1
            hidden, weights = self._through(number, hidden, visible, explicit, needed if is_last else None)
            states = [*states, hidden] if keep else [hidden]
            if explicit:
                attentions.append(weights)
        return states, attentions

    def _through(
        self, number: int, hidden: Tensor, visible: Visible, explicit: bool, needed: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        layer = self.layers[number % len(self.layers)]
        if self.checkpointing and self.training and torch.is_grad_enabled():
            # The random state is kept and set again, so that dropout takes the same elements the second time.
            return checkpoint(  # type: ignore[no-any-return]
                layer, hidden, visible, explicit, needed, use_reentrant=False, preserve_rng_state=True
            )
        return layer(hidden, visible, explicit, needed)  # type: ignore[no-any-return]
