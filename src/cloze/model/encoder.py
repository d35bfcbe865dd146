"""The Transformer encoder: section 3 of Devlin et al. (2019), based on Vaswani et al. (2017).

The encoder turns token ids into one vector per token that depends on the whole sequence. Three learned embeddings
(token, segment, position) are added up; then L layers refine the vectors. Each layer has two sublayers. Attention mixes
information between the tokens of a sequence, and the feed-forward network transforms each token on its own:

    ids, segments (B, T)
      -> embeddings: token + segment + position -> LayerNorm -> dropout      (B, T, H)
      -> L times: x = LayerNorm(x + dropout(attention(x)))                   (B, T, H)
                  x = LayerNorm(x + dropout(contract(gelu(expand(x)))))      (B, T, H), inside (B, T, 4 H)

As in the original, and unlike most later models, LayerNorm comes after the residual sum (post-LayerNorm). Attention is
bidirectional: every token sees the tokens on both sides, which is why pre-training has to mask words instead of
predicting the next one. ALBERT applies one layer L times and narrows the embeddings to width E < H.

Dimensions: B sequences, T tokens, H hidden size, E embedding width (H in BERT), A heads, D head size (H = A * D),
L layers, V vocabulary, N tokens without padding, M requested positions. In a packed batch (``model/batch.py``)
B is 1 and T is N.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from cloze.model.batch import Group, Packing, gather_states, scatter_states
from cloze.model.building_blocks import Dropout, EncoderOutput, SinusoidalTable, activation, table
from cloze.model.config import BertConfig

# Attention visibility: a padding mask (B, 1, 1, T), the groups of a packed row, or None for full attention.
Visibility = Tensor | tuple[Group, ...] | None

# Terms of the scores that depend on the distance of two tokens; None if attention ignores distances.
DistanceTerms = tuple[Tensor, ...] | None

# PyTorch's bfloat16 softmax on a CPU processes this many numbers at a time and the remainder one by one. For rows whose
# length is not a multiple of it, a float32 softmax is about twice as fast (benchmarks/softmax.py).
_SOFTMAX_LANES = 32


class Embeddings(nn.Module):
    """The sum of token, segment and position embeddings, followed by LayerNorm and dropout (figure 2 of the paper).

    Attention ignores order, so position embeddings are the model's only information about it. Segment embeddings
    distinguish the two texts of a pair. ALBERT has narrower tables and projects their sum to the hidden size.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        # padding_idx keeps the gradient of [PAD] at zero.
        self.token = table(config.vocab_size, config.table_width, padding_id=config.pad_id)
        self.segment = table(config.segments, config.table_width)
        # None if attention itself depends on distances (model/bert.py).
        self.position: Any = None if config.has_distances else table(config.positions, config.table_width)
        if config.position_kind == "sinusoidal":
            self.position = SinusoidalTable(config.positions, config.table_width, config.initial_deviation)
        self.norm = nn.LayerNorm(config.table_width, eps=config.norm_epsilon)
        self.dropout = Dropout(config.dropout)
        factorised = config.embedding_size is not None
        self.to_hidden = nn.Linear(config.table_width, config.hidden_size) if factorised else None

    def forward(self, ids: Tensor, segments: Tensor, positions: Tensor | None = None) -> Tensor:
        """Embed a batch: (B, T), (B, T) -> (B, T, H).

        ``positions`` (T,) default to 0, 1, 2, ...; a packed row passes its own, which restart at each sequence.
        """
        narrow = self.narrow(ids, segments, positions)
        # Under bfloat16 autocast the projection returns bfloat16; the residual stream stays float32.
        return narrow if self.to_hidden is None else self.to_hidden(narrow).to(narrow.dtype)

    def narrow(self, ids: Tensor, segments: Tensor, positions: Tensor | None = None) -> Tensor:
        """Embed a batch without the projection: (B, T), (B, T) -> (B, T, E)."""
        embedded = self.token(ids) + self.segment(segments)  # (B, T, E)
        if self.position is not None:
            # (T, E), broadcast over B. An embedding lookup, not an index: the gradient of an index is summed by threads
            # in no fixed order, which would make training irreproducible.
            rows = self.position.weight[: ids.shape[1]] if positions is None else self.position(positions)
            embedded = embedded + rows
        return self.dropout(self.norm(embedded))  # type: ignore[no-any-return]


class SelfAttention(nn.Module):
    """Multi-head self-attention: every token attends to every token of its sequence.

    Each head computes a weighted average of the tokens' values. The weights are a softmax over the dot products of the
    token's query with all keys: a head learns what to look for (query), what a token offers (key) and what it passes on
    (value). The A heads work on D-wide slices, and ``output`` combines their results.

    With ``causal``, a token attends only to itself and to the tokens before it (``model/bert.py``).
    """

    def __init__(self, config: BertConfig, *, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal
        self.heads, self.head_size = config.heads, config.head_size
        # Query, key and value projections in one matrix: the same numbers from one larger and faster product.
        self.query_key_value = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.output = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = Dropout(config.attention_dropout)
        self.low_rank: nn.Module | None = None  # LoRA, attached by model/adapters.py

    def forward(
        self, hidden: Tensor, visible: Visibility, keep_weights: bool, needed: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Attend: (B, T, H) -> (B, T, H), or (M, H) for ``needed`` positions; and weights (B, A, T, T) on request."""
        projected = self.project(hidden)  # (B, T, 3 H)
        if self.low_rank is not None:
            projected = projected + self.low_rank(hidden)
        if isinstance(visible, tuple):
            context, weights = self._attend_groups(projected, visible), None
        else:
            terms = self.distance_terms(hidden.shape[1])
            context, weights = self._attend(projected, visible, terms, keep_weights)
        if needed is not None:
            context = gather_states(context, needed)  # (M, H)
        return self.output(context), weights if keep_weights else None

    def project(self, hidden: Tensor) -> Tensor:
        """Return the queries, keys and values of all heads: (B, T, H) -> (B, T, 3 H)."""
        return self.query_key_value(hidden)  # type: ignore[no-any-return]

    def split(self, projected: Tensor) -> Tensor:
        """Separate queries, keys and values, and the heads: (B, T, 3 H) -> (3, B, A, T, D)."""
        by_head = projected.view(*projected.shape[:2], 3, self.heads, self.head_size)  # (B, T, 3, A, D)
        return by_head.permute(2, 0, 3, 1, 4)

    def distance_terms(self, length: int) -> DistanceTerms:  # noqa: ARG002 (for subclasses)
        """Return what the scores need to depend on distances, for sequences of up to ``length`` tokens.

        BERT's scores do not depend on distances: positions are part of the embeddings. Relatives of BERT override this
        and ``weights`` (model/bert.py, model/deberta.py).
        """
        return None

    def weights(self, query: Tensor, key: Tensor, mask: Tensor | None, terms: DistanceTerms) -> Tensor:  # noqa: ARG002
        """Return the attention weights: queries and keys (B, A, T, D) -> (B, A, T, T)."""
        return attention_weights(query, key, mask)

    def _attend(
        self, projected: Tensor, mask: Tensor | None, terms: DistanceTerms, keep_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Attend within each sequence: projections (B, T, 3 H) -> contexts (B, T, H), and weights if computed."""
        batch, length, width = projected.shape
        by_head = self.split(projected)  # (3, B, A, T, D)
        weights = None
        if keep_weights or terms is not None or self._needs_explicit_weights(projected):
            # One contiguous copy here; otherwise each of the two products would copy its operands.
            query, key, value = by_head.contiguous()  # three of (B, A, T, D)
            weights = self.weights(query, key, self._with_past(mask, projected), terms)  # (B, A, T, T)
            # As in the original, dropout removes whole connections between tokens.
            context = self.dropout(weights) @ value  # (B, A, T, D)
        else:
            query, key, value = by_head
            dropout = self.dropout.probability if self.training else 0.0
            is_causal = self.causal and mask is None
            mask = mask if is_causal else self._with_past(mask, projected)
            context = functional.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=is_causal
            )
        return context.transpose(1, 2).reshape(batch, length, width // 3), weights  # (B, A, T, D) -> (B, T, H)

    def _with_past(self, mask: Tensor | None, projected: Tensor) -> Tensor | None:
        """Return the mask unchanged, or for causal attention restricted to earlier tokens: (B, 1, T, T) or (T, T)."""
        if not self.causal:
            return mask
        length = projected.shape[1]
        past = torch.ones(length, length, dtype=torch.bool, device=projected.device).tril()  # (T, T), query by key
        # A row of padding may see nothing, whose softmax would be NaN; each token at least sees itself.
        return past if mask is None else (mask & past) | torch.eye(length, dtype=torch.bool, device=mask.device)

    def _attend_groups(self, projected: Tensor, groups: tuple[Group, ...]) -> Tensor:
        """Attend within each sequence of a packed row, group by group: (1, N, 3 H) -> (1, N, H)."""
        chunks = torch.split(projected.flatten(0, 1), [group.tokens for group in groups])  # of (n, 3 H)
        terms = self.distance_terms(max(group.shape[1] for group in groups))
        contexts = [
            group.unpad(self._attend(group.pad(chunk), group.mask, terms)[0])
            for chunk, group in zip(chunks, groups, strict=True)
        ]
        return torch.cat(contexts)[None]  # of (n, H) -> (1, N, H)

    def _needs_explicit_weights(self, projected: Tensor) -> bool:
        """Return whether explicit attention weights are faster than PyTorch's fused attention."""
        if projected.device.type != "cpu":
            return False
        # The fused CPU kernel does not support dropout: PyTorch falls back to the explicit steps, with its own, slower
        # dropout. In bfloat16 its backward pass takes four times as long as plain products (benchmarks/attention.py).
        drops = self.training and self.dropout.probability > 0
        return drops or (projected.dtype == torch.bfloat16 and torch.is_grad_enabled())


def attention_weights(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """Return softmax(Q K^T / sqrt(D)) over the real tokens: (B, A, T, D), (B, A, T, D) -> (B, A, T, T).

    The dot product of two D-wide vectors with independent entries of order 1 has a standard deviation of sqrt(D). The
    division keeps the softmax away from saturation, where its gradient vanishes (Vaswani et al., section 3.2.1).
    """
    # Scaling the query (T, D) is cheaper than scaling the scores (T, T); so is adding the mask in place.
    scores: Tensor = query * query.shape[-1] ** -0.5 @ key.transpose(-2, -1)
    return masked_softmax(scores, mask)


def masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Return the softmax over the keys where the mask is true: (B, A, T, T), broadcast to it. May overwrite scores."""
    dtype = scores.dtype
    if dtype == torch.bfloat16 and scores.device.type == "cpu" and scores.shape[-1] % _SOFTMAX_LANES:
        scores = scores.float()
    if mask is not None:
        # (B, 1, 1, T), broadcast over heads and queries (with causal attention, one row per query): minus infinity
        # gives padding a weight of exactly 0.
        scores += torch.zeros_like(mask, dtype=scores.dtype).masked_fill_(~mask, float("-inf"))
    return scores.softmax(-1).to(dtype)


class Layer(nn.Module):
    """Attention and a feed-forward network, each followed by dropout, a residual sum and LayerNorm.

    The residual sum lets a sublayer learn a correction of its input and gives gradients a direct path to lower layers.
    """

    def __init__(self, config: BertConfig, attention: Callable[[BertConfig], SelfAttention] = SelfAttention) -> None:
        super().__init__()
        self.attention = attention(config)
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
        """Apply the layer: (B, T, H) -> (B, T, H), or (M, H) for ``needed`` positions; and attention weights."""
        attended, weights = self.attention(hidden, visible, keep_weights, needed)
        if needed is not None:
            hidden = gather_states(hidden, needed)  # (M, H), the residual of the same positions
        return self.after_attention(hidden, attended), weights

    def after_attention(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """Apply everything after attention, token by token: input and attended states (..., H) -> (..., H)."""
        attended = self.dropout(attended)
        if self.attention_adapter is not None:
            attended = self.attention_adapter(attended)
        hidden = self.attention_norm(hidden + attended)
        transformed = self.dropout(self.contract(self.activation(self.expand(hidden))))  # (..., H) -> 4 H -> (..., H)
        if self.feedforward_adapter is not None:
            transformed = self.feedforward_adapter(transformed)
        return self.feedforward_norm(hidden + transformed)  # type: ignore[no-any-return]


class FusedPath(Protocol):
    """All layers of an encoder as one faster int8 call (predict/quantization/linear.py)."""

    def __call__(
        self, encoder: "Encoder", hidden: Tensor, visible: Visibility, needed: Tensor | None, keep_states: bool, /
    ) -> list[Tensor] | None:
        """Return the last state for embeddings (B, T, H); with ``keep_states`` all states, embeddings first.

        Returns None if the layers must run one by one.
        """


class Encoder(nn.Module):
    """Embeddings and L layers, or one layer that is applied L times (ALBERT).

    Three optimizations leave the results unchanged:

    - ``needed``: a caller that uses only some of the last states passes their positions (a classifier uses the first
      token, the masked-LM head about one token in seven). Attention in the last layer still reads all keys and
      values, but everything after it, three quarters of a layer's work, runs on these positions only.
    - Packing: training, and prediction on a CPU, do not compute padding (``model/batch.py``). In prediction on
      accelerators, texts of similar length are batched and one large padded product is faster.
    - ``checkpointing``: training stores only the states between layers and recomputes the activations inside a layer
      during the backward pass. This takes about a third more time and a fraction of the memory (Chen et al., 2016).
    """

    def __init__(
        self,
        config: BertConfig,
        embeddings: Any = None,
        attention: Callable[[BertConfig], SelfAttention] = SelfAttention,
    ) -> None:
        """Create the layers; other architectures pass their own embeddings and attention."""
        super().__init__()
        self.depth = config.layers
        self.embeddings: Embeddings = Embeddings(config) if embeddings is None else embeddings
        self.layers = nn.ModuleList(Layer(config, attention) for _ in range(config.distinct_layers))
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
        depth: int | None = None,
    ) -> EncoderOutput:
        """Encode a batch; takes the same arguments as ``Backbone.encode``. ``depth`` layers are applied, or all."""
        packing = None if mask is None or keep_attentions else self._pack(mask)
        hidden, visible = self._embed(ids, segments, mask, packing)
        read = needed if needed is None or packing is None else packing.locate(needed)  # (M,), indices into hidden
        depth = self.depth if depth is None else depth
        states, attentions = self._run_layers(hidden, visible, read, keep_states, keep_attentions, depth)
        last = states.pop()
        if needed is not None:
            last = scatter_states(last, needed, ids.shape)  # (M, H) -> (B, T, H)
        elif packing is not None:
            last = packing.unpack(last)  # (1, N, H) -> (B, T, H)
        if packing is not None:
            states = [packing.unpack(state) for state in states]
        return EncoderOutput(last, (*states, last) if keep_states else (), tuple(attentions))

    def _embed(
        self, ids: Tensor, segments: Tensor, mask: Tensor | None, packing: Packing | None
    ) -> tuple[Tensor, Visibility]:
        """Return the embeddings, (B, T, H) or packed (1, N, H), and the visibility for attention."""
        if packing is None:
            return self.embeddings(ids, segments), None if mask is None else mask.bool()[:, None, None, :]
        return self.embeddings(packing.pack(ids), packing.pack(segments), packing.positions), packing.groups

    def _pack(self, mask: Tensor) -> Packing | None:
        """Return the packing of a batch, or None to compute it with padding."""
        if torch.compiler.is_compiling():  # an exported graph must work for all shapes, and groups depend on the data
            return None
        # Not on MPS: packed shapes change from batch to batch, and MPS compiles kernels for each new shape.
        if self.training and torch.is_grad_enabled() and mask.device.type != "mps":
            return Packing.of(mask, padded=True)
        return Packing.of(mask) if not torch.is_grad_enabled() and mask.device.type == "cpu" else None

    def _run_layers(
        self,
        hidden: Tensor,
        visible: Visibility,
        needed: Tensor | None,
        keep_states: bool,
        keep_weights: bool,
        depth: int,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return the last state, or with ``keep_states`` all states, embeddings first; and requested attentions."""
        if self.fused_layers is not None and not keep_weights:
            fused = self.fused_layers(self, hidden, visible, needed, keep_states)
            if fused is not None:
                return fused, []
        states, attentions = [hidden], []
        for number in range(depth):
            is_last = number == depth - 1
            hidden, weights = self._run_layer(number, hidden, visible, keep_weights, needed if is_last else None)
            states = [*states, hidden] if keep_states else [hidden]
            if keep_weights:
                attentions.append(weights)
        return states, attentions

    def _run_layer(
        self, number: int, hidden: Tensor, visible: Visibility, keep_weights: bool, needed: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        layer = self.layers[number % len(self.layers)]  # shared layers: always the only one
        if self.checkpointing and self.training and torch.is_grad_enabled():
            # The random state is saved and restored, so that dropout zeroes the same elements in the recomputation.
            return checkpoint(  # type: ignore[no-any-return]
                layer, hidden, visible, keep_weights, needed, use_reentrant=False, preserve_rng_state=True
            )
        return layer(hidden, visible, keep_weights, needed)  # type: ignore[no-any-return]
