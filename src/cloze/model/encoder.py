"""The Transformer encoder: section 3 of Devlin et al. (2019), after "Attention is all you need" (Vaswani et al., 2017).

Three learned embeddings (token, segment, position) are added, and a stack of bidirectional Transformer layers follows.
As in the original, and unlike most later models, LayerNorm comes after each residual sum (post-LayerNorm).

Dimensions: B sequences, T tokens, H hidden size, E embedding width (H in BERT), A heads, D head size (H = A * D),
L layers, V vocabulary, N tokens without padding, M positions that are read. In a packed batch (``model/packing.py``)
B is 1 and T is N.
"""

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from cloze.model.building_blocks import Dropout, EncoderOutput, activation, table
from cloze.model.config import BertConfig
from cloze.model.packing import Group, Packing, gather_states, scatter_states

# Attention visibility: a padding mask (B, 1, 1, T), the groups of a packed row, or None for full attention.
Visibility = Tensor | tuple[Group, ...] | None

# PyTorch's bfloat16 softmax processes this many numbers at a time on a CPU, and the rest one by one: for other row
# lengths the detour through float32 is about twice as fast (docs/experiments/13).
_SOFTMAX_LANES = 32


class Embeddings(nn.Module):
    """Token + segment + position, then LayerNorm and dropout; ALBERT maps its narrower tables to the hidden size."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        # padding_idx keeps the gradient of [PAD] at zero.
        self.token = table(config.vocab_size, config.table_width, padding_id=config.pad_id)
        self.segment = table(config.segments, config.table_width)
        self.position = table(config.positions, config.table_width)
        self.norm = nn.LayerNorm(config.table_width, eps=config.norm_epsilon)
        self.dropout = Dropout(config.dropout)
        factorised = config.embedding_size is not None
        self.to_hidden = nn.Linear(config.table_width, config.hidden_size) if factorised else None

    def forward(self, ids: Tensor, segments: Tensor, positions: Tensor | None = None) -> Tensor:
        """(B, T), (B, T) -> (B, T, H); ``positions`` (T,) are 0, 1, 2, ... unless they are given."""
        embedded = self.token(ids) + self.segment(segments)  # (B, T, E)
        # An embedding lookup, not an index: the gradient of an index is summed by threads in random order.
        embedded = embedded + (self.position.weight[: ids.shape[1]] if positions is None else self.position(positions))
        narrow: Tensor = self.dropout(self.norm(embedded))  # (B, T, E)
        # Under bfloat16 autocast the projection returns bfloat16; the residual stream stays float32.
        return narrow if self.to_hidden is None else self.to_hidden(narrow).to(narrow.dtype)


class SelfAttention(nn.Module):
    """Multi-head attention of every token to every token of its sequence."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.heads, self.head_size = config.heads, config.head_size
        # One matrix instead of three: the same numbers in one larger, faster product.
        self.query_key_value = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.output = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = Dropout(config.attention_dropout)
        self.low_rank: nn.Module | None = None  # LoRA, attached by model/adapters.py

    def forward(
        self, hidden: Tensor, visible: Visibility, keep_weights: bool, needed: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """(B, T, H) -> (B, T, H), or (M, H) of the needed positions; and the weights (B, A, T, T) if requested."""
        projected = self.query_key_value(hidden)  # (B, T, 3 H)
        if self.low_rank is not None:
            projected = projected + self.low_rank(hidden)
        if isinstance(visible, tuple):
            context, weights = self._attend_groups(projected, visible), None
        else:
            context, weights = self._attend(projected, visible, keep_weights)
        if needed is not None:
            context = gather_states(context, needed)  # (M, H)
        return self.output(context), weights if keep_weights else None

    def _attend(
        self, projected: Tensor, mask: Tensor | None, keep_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Queries, keys and values (B, T, 3 H) -> contexts (B, T, H), and the weights where they were computed."""
        batch, length, width = projected.shape
        by_head = projected.view(batch, length, 3, self.heads, self.head_size)  # (B, T, 3, A, D)
        by_head = by_head.permute(2, 0, 3, 1, 4)  # (3, B, A, T, D)
        weights = None
        if keep_weights or self._needs_explicit_weights(projected):
            # Made contiguous once: each of the two products would otherwise copy its operands.
            query, key, value = by_head.contiguous()  # three of (B, A, T, D)
            weights = attention_weights(query, key, mask)  # (B, A, T, T)
            context = self.dropout(weights) @ value  # (B, A, T, D)
        else:
            query, key, value = by_head
            dropout = self.dropout.probability if self.training else 0.0
            context = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        return context.transpose(1, 2).reshape(batch, length, width // 3), weights  # (B, A, T, D) -> (B, T, H)

    def _attend_groups(self, projected: Tensor, groups: tuple[Group, ...]) -> Tensor:
        """Attend within the sequences of a packed row, group by group: (1, N, 3 H) -> (1, N, H)."""
        chunks = torch.split(projected.flatten(0, 1), [group.tokens for group in groups])  # of (n, 3 H)
        contexts = [
            group.unpad(self._attend(group.pad(chunk), group.mask)[0])
            for chunk, group in zip(chunks, groups, strict=True)
        ]
        return torch.cat(contexts)[None]

    def _needs_explicit_weights(self, projected: Tensor) -> bool:
        """Return whether writing out the weights is faster than PyTorch's fused attention."""
        if projected.device.type != "cpu":
            return False
        # The CPU's fused kernel has no dropout and falls back to these same steps, with a slower dropout; and its
        # bfloat16 backward pass takes four times as long as that of plain products (docs/experiments/13).
        drops = self.training and self.dropout.probability > 0
        return drops or (projected.dtype == torch.bfloat16 and torch.is_grad_enabled())


def attention_weights(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(Q K^T / sqrt(D)) over the real tokens: (B, A, T, D) twice -> (B, A, T, T)."""
    # The factor goes to the narrower side of the product, and the mask is added in place: both cost least there.
    scores: Tensor = query * query.shape[-1] ** -0.5 @ key.transpose(-2, -1)
    dtype = scores.dtype
    if dtype == torch.bfloat16 and scores.device.type == "cpu" and scores.shape[-1] % _SOFTMAX_LANES:
        scores = scores.float()
    if mask is not None:
        scores += torch.zeros_like(mask, dtype=scores.dtype).masked_fill_(~mask, float("-inf"))
    return scores.softmax(-1).to(dtype)


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
        self.attention_adapter: nn.Module | None = None  # attached by model/adapters.py
        self.feedforward_adapter: nn.Module | None = None

    def forward(
        self, hidden: Tensor, visible: Visibility, keep_weights: bool, needed: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """(B, T, H) -> (B, T, H), or (M, H) of the needed positions; and the attention weights if requested."""
        attended, weights = self.attention(hidden, visible, keep_weights, needed)
        if needed is not None:
            hidden = gather_states(hidden, needed)  # (M, H)
        attended = self.dropout(attended)
        if self.attention_adapter is not None:
            attended = self.attention_adapter(attended)
        hidden = self.attention_norm(hidden + attended)
        transformed = self.dropout(self.contract(self.activation(self.expand(hidden))))
        if self.feedforward_adapter is not None:
            transformed = self.feedforward_adapter(transformed)
        return self.feedforward_norm(hidden + transformed), weights


class FusedPath(Protocol):
    """All layers of an encoder as one faster call, in int8 (predict/quantization/linear.py)."""

    def __call__(
        self, encoder: "Encoder", hidden: Tensor, visible: Visibility, needed: Tensor | None, keep_states: bool, /
    ) -> list[Tensor] | None:
        """Map embeddings (B, T, H) to the last state, or with ``keep_states`` to all states, embeddings first.

        Return None if the layers must be run one by one.
        """


class Encoder(nn.Module):
    """Embeddings and L layers, or one layer that is applied L times (ALBERT).

    Three savings change no result:

    - ``needed``: a caller that reads only some of the last states names them (a classifier reads the first token, the
      masked-word head one in seven). The last layer then skips the other positions after attention, where three
      quarters of a layer's work is.
    - Packing: padding is not computed in training, nor in prediction on a CPU (``model/packing.py``). Accelerators get
      texts of similar length in prediction and prefer one large padded product.
    - ``checkpointing``: training keeps only the states between layers and recomputes what is inside on the backward
      pass, for about a third more time and a fraction of the memory (Chen et al., 2016).
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.depth = config.layers
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.distinct_layers))
        self.checkpointing = False
        self.fused_layers: FusedPath | None = None  # set by predict/quantization/precision.py

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
        """Encode a batch; the arguments are those of ``Backbone.encode``."""
        packing = None if mask is None or keep_attentions else self._pack(mask)
        hidden, visible = self._embed(ids, segments, mask, packing)
        read = needed if needed is None or packing is None else packing.locate(needed)  # indices into hidden
        states, attentions = self._run_layers(hidden, visible, read, keep_states, keep_attentions)
        last = states.pop()
        if needed is not None:
            last = scatter_states(last, needed, ids.shape)  # (M, H) -> (B, T, H)
        elif packing is not None:
            last = packing.unpack(last)
        if packing is not None:
            states = [packing.unpack(state) for state in states]
        return EncoderOutput(last, (*states, last) if keep_states else (), tuple(attentions))

    def _embed(
        self, ids: Tensor, segments: Tensor, mask: Tensor | None, packing: Packing | None
    ) -> tuple[Tensor, Visibility]:
        """Return the embeddings, (B, T, H) or packed (1, N, H), and which tokens attend to each other."""
        if packing is None:
            return self.embeddings(ids, segments), None if mask is None else mask.bool()[:, None, None, :]
        return self.embeddings(packing.pack(ids), packing.pack(segments), packing.positions), packing.groups

    def _pack(self, mask: Tensor) -> Packing | None:
        if torch.compiler.is_compiling():  # an exported graph serves all shapes
            return None
        # Packed shapes change from batch to batch, and MPS would compile for each of them.
        if self.training and torch.is_grad_enabled() and mask.device.type != "mps":
            return Packing.of(mask, padded=True)
        return Packing.of(mask) if not torch.is_grad_enabled() and mask.device.type == "cpu" else None

    def _run_layers(
        self, hidden: Tensor, visible: Visibility, needed: Tensor | None, keep_states: bool, keep_weights: bool
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return the last state, or all states, embeddings first; and the attention weights if requested."""
        if self.fused_layers is not None and not keep_weights:
            fused = self.fused_layers(self, hidden, visible, needed, keep_states)
            if fused is not None:
                return fused, []
        states, attentions = [hidden], []
        for number in range(self.depth):
            is_last = number == self.depth - 1
            hidden, weights = self._run_layer(number, hidden, visible, keep_weights, needed if is_last else None)
            states = [*states, hidden] if keep_states else [hidden]
            if keep_weights:
                attentions.append(weights)
        return states, attentions

    def _run_layer(
        self, number: int, hidden: Tensor, visible: Visibility, keep_weights: bool, needed: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        layer = self.layers[number % len(self.layers)]
        if self.checkpointing and self.training and torch.is_grad_enabled():
            # The random state is saved and restored, so that dropout zeroes the same elements the second time.
            return checkpoint(  # type: ignore[no-any-return]
                layer, hidden, visible, keep_weights, needed, use_reentrant=False, preserve_rng_state=True
            )
        return layer(hidden, visible, keep_weights, needed)  # type: ignore[no-any-return]
