"""DeBERTa (He et al., 2021, "DeBERTa: decoding-enhanced BERT with disentangled attention"), versions 1 and 2.

BERT adds the content of a token and its position into one vector. DeBERTa keeps them apart ("disentangled"): a token
is its content vector, and positions enter the attention scores as vectors for the distance i - j of two tokens
(section 3.1, equation 4). The score of query i and key j is the sum of three products, divided by sqrt(3 D):

    content to content:   q_i  k_j        what i looks for, and what j is
    content to position:  q_i  r_ij       what i looks for at this distance
    position to content:  s_ij k_j        what this distance looks for, and what j is

Here r_ij is a projection of the embedding of the distance i - j, shared by all layers, as a key; s_ij is another, as
a query. (As in the code of the authors, s_ij uses the distance i - j too, and the paper writes j - i.) Distances beyond
``max_relative_positions`` share an embedding. Version 2 may sort them into ``position_buckets`` instead: exact for near
tokens, and logarithmically wider for far ones, as in T5.

Distances alone cannot tell "a new store opened beside the new mall" apart from its twin with store and mall exchanged.
So pre-training adds absolute positions just before the masked words are predicted (the enhanced mask decoder, section
3.2): the last layer is applied twice, with queries that start as its input plus the embedding of the absolute position.

    ids, segments (B, T) -> token (+ segment) embeddings -> LayerNorm -> L layers -> states (B, T, H) of a text
                    states of layer L - 1 + absolute positions -> last layer, twice -> masked-word head

The layers are those of BERT (``model/encoder.py``) with other attention, so packing, requested positions and
checkpointing apply here too. The enhanced mask decoder only computes the masked positions.

Deviations from the paper and from Microsoft's code: no n-gram convolution (``conv_kernel_size``, only in the largest
models), no virtual adversarial training (SiFT), tanh instead of gelu in the pooler of new models, and our WordPiece
vocabularies instead of BPE. Version 3 trains the layers of version 2 by replaced-token detection, which is only
available for BERT here.

Dimensions: B sequences, T tokens, H hidden size, A heads, D head size (H = A * D), M requested positions, P requested
positions per sequence, R rows of the distance table.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from cloze.errors import ConfigError
from cloze.model.backbone import Backbone, Capabilities, register_backbone
from cloze.model.batch import scatter_states
from cloze.model.building_blocks import (
    Dropout,
    Slots,
    by_distance,
    central,
    distances,
    gather_distances,
    log_buckets,
    relative_shift,
    table,
)
from cloze.model.config import BertConfig
from cloze.model.encoder import DistanceTerms, Encoder, SelfAttention, masked_softmax

_TERMS = ("c2p", "p2c")  # content to position, position to content
_CHOICES: dict[str, tuple[Any, ...]] = {"norm_rel_ebd": ("none", "layer_norm"), "pooler_hidden_act": ("tanh", "gelu")}
_CHOICES |= dict.fromkeys(("share_att_key", "position_biased_input", "enhanced_mask_decoder"), (False, True))
_DECODER_STEPS = 2  # how often the enhanced mask decoder applies the last layer


@dataclass(frozen=True)
class DebertaConfig(BertConfig):
    """Hyperparameters of DeBERTa. The added fields have the names of ``transformers``."""

    smallest: ClassVar[dict[str, int]] = {"segments": 0}  # published models have no segment embeddings

    norm_epsilon: float = 1e-7
    max_relative_positions: int = -1  # larger distances share an embedding; -1: the number of positions
    position_buckets: int = -1  # version 2: number of logarithmic buckets on each side; -1: none
    pos_att_type: tuple[str, ...] = _TERMS
    share_att_key: bool = False  # version 2: project distances with the matrices for queries and keys
    norm_rel_ebd: str = "none"  # version 2: "layer_norm" normalizes the distance embeddings
    position_biased_input: bool = False  # add absolute positions to the embeddings, as BERT does
    enhanced_mask_decoder: bool = True  # add them before the masked words are predicted
    pooler_hidden_act: str = "tanh"  # published models: "gelu"

    def __post_init__(self) -> None:
        terms: Any = self.pos_att_type
        if isinstance(terms, str):  # older files: "c2p|p2c"
            terms = [part.strip() for part in terms.lower().split("|") if part.strip()]
        object.__setattr__(self, "pos_att_type", tuple(terms or ()))
        super().__post_init__()
        unknown = [term for term in self.pos_att_type if term not in _TERMS]
        if unknown or not self.pos_att_type:
            raise ConfigError(f"pos_att_type is {list(self.pos_att_type)!r}; expected 'c2p', 'p2c' or both")
        for name in ("max_relative_positions", "position_buckets"):
            value = getattr(self, name)
            if type(value) is not int or not (value < 1 or 4 <= value <= 2**24):
                raise ConfigError(f"{name} is {value!r}; expected at least 4, or -1")
        if self.position_buckets > 0 and self.reach <= self.position_buckets // 2 + 1:
            raise ConfigError(
                f"position_buckets is {self.position_buckets} for distances up to {self.reach}; expected at most "
                f"{2 * (self.reach - 2)}"
            )
        for name, values in _CHOICES.items():
            if getattr(self, name) not in values:
                expected = " or ".join(map(repr, values))
                raise ConfigError(f"{name} is {getattr(self, name)!r}; expected {expected}")
        if self.position_biased_input and self.enhanced_mask_decoder:
            raise ConfigError("position_biased_input and enhanced_mask_decoder: absolute positions are added only once")

    @property
    def pooler_activation(self) -> str:
        """Activation of the pooler."""
        return self.pooler_hidden_act

    @property
    def distance_products(self) -> int:
        """Number of terms of the attention scores that depend on distances."""
        return len(self.pos_att_type)

    @property
    def reach(self) -> int:
        """The largest distance that has an embedding of its own, or that the buckets distinguish."""
        return self.max_relative_positions if self.max_relative_positions > 0 else self.positions

    @property
    def span(self) -> int:
        """Half the number of rows of the distance table."""
        return self.position_buckets if self.position_buckets > 0 else self.reach


class ContentEmbeddings(nn.Module):
    """Token and, if the model has any, segment embeddings, followed by LayerNorm and dropout."""

    def __init__(self, config: DebertaConfig) -> None:
        super().__init__()
        self.token = table(config.vocab_size, config.hidden_size, padding_id=config.pad_id)
        self.segment = table(config.segments, config.hidden_size) if config.segments else None
        absolute = config.position_biased_input or config.enhanced_mask_decoder
        self.position = table(config.positions, config.hidden_size) if absolute else None
        self.adds_positions = config.position_biased_input
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.norm_epsilon)
        self.dropout = Dropout(config.dropout)

    def forward(self, ids: Tensor, segments: Tensor, positions: Tensor | None = None) -> Tensor:
        """Embed a batch: (B, T), (B, T) -> (B, T, H); a packed row passes its ``positions`` (T,)."""
        embedded = self.token(ids)
        if self.segment is not None:
            embedded = embedded + self.segment(segments)
        if self.position is not None and self.adds_positions:
            rows = self.position.weight[: ids.shape[1]] if positions is None else self.position(positions)
            embedded = embedded + rows
        return self.dropout(self.norm(embedded))  # type: ignore[no-any-return]


class DistanceEmbeddings(nn.Module):
    """The embeddings of distances, which all layers share."""

    def __init__(self, config: DebertaConfig) -> None:
        super().__init__()
        self.span, self.buckets, self.reach = config.span, config.position_buckets, config.reach
        self.table = table(2 * config.span, config.hidden_size)
        normed = config.norm_rel_ebd == "layer_norm"
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.norm_epsilon) if normed else None
        self.dropout = Dropout(config.dropout)

    def forward(self, length: int) -> Tensor:
        """Return the embeddings of the distances T, ..., -T: (2 T + 1, H)."""
        away = distances(length, self.table.weight.device)
        if self.buckets > 0:
            away = log_buckets(away, self.buckets, self.reach)
        rows = (away + self.span).clamp(0, 2 * self.span - 1)  # equation 3: distance -k and less is row 0
        embedded = functional.embedding(rows, self.table.weight)
        return self.dropout(embedded if self.norm is None else self.norm(embedded))  # type: ignore[no-any-return]


class DisentangledAttention(SelfAttention):
    """Self-attention on contents and distances: the version of DeBERTa 2, with three separate projections."""

    key_bias: ClassVar[bool] = True  # whether the projection of distances as keys has a bias

    def __init__(self, config: BertConfig, embeddings: DistanceEmbeddings) -> None:
        super().__init__(config)
        assert isinstance(config, DebertaConfig)
        self.to_position, self.from_position = ("c2p" in config.pos_att_type), ("p2c" in config.pos_att_type)
        self.scale = (self.head_size * (1 + self.to_position + self.from_position)) ** -0.5
        self.shares = config.share_att_key
        width = config.hidden_size
        if not self.shares:
            self.position_key = nn.Linear(width, width, bias=self.key_bias) if self.to_position else None
            self.position_query = nn.Linear(width, width) if self.from_position else None
        # The tuple prevents PyTorch from registering the embeddings in every layer: they belong to the encoder.
        self._distances = (embeddings,)

    def distance_terms(self, length: int) -> DistanceTerms:
        """Return keys and queries of the distances T, ..., -T: (A, 2 T + 1, D) each; one may be unused."""
        embedded = self._distances[0](length)  # (2 T + 1, H)
        if self.shares:
            rows = slice(2 * embedded.shape[1])  # the matrices for queries and keys
            weight, bias = self.query_key_value.weight[rows], self.query_key_value.bias[rows]
            queries, keys = functional.linear(embedded, weight, bias).chunk(2, -1)
        else:
            keys = embedded if self.position_key is None else self.position_key(embedded)
            queries = embedded if self.position_query is None else self.position_query(embedded)
        return self._by_head(keys), self._by_head(queries)

    def _by_head(self, rows: Tensor) -> Tensor:
        """(R, H) -> (A, R, D)."""
        return rows.view(len(rows), self.heads, self.head_size).transpose(0, 1)

    def weights(self, query: Tensor, key: Tensor, mask: Tensor | None, terms: DistanceTerms) -> Tensor:
        """Return the attention weights: queries and keys (B, A, T, D) -> (B, A, T, T)."""
        assert terms is not None
        length = query.shape[-2]
        query = query * self.scale
        scores: Tensor = query @ key.transpose(-2, -1)
        if self.to_position:
            keys = central(terms[0], length)[:, :-1]  # (A, 2 T, D), distances T to -(T - 1)
            scores += relative_shift(by_distance(query, keys.transpose(-2, -1)))
        if self.from_position:
            # Computed by key: row j, then column i. The distance i - j is the negative of the one that the shift
            # produces, so the rows are reversed.
            queries = central(terms[1], length)[:, 1:].flip(1)  # (A, 2 T, D), distances -T to T - 1
            scores += relative_shift(by_distance(key * self.scale, queries.transpose(-2, -1))).transpose(-2, -1)
        return masked_softmax(scores, mask)

    def attend_from(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, terms: DistanceTerms, positions: Tensor
    ) -> Tensor:
        """Attend from queries at some positions only, for the enhanced mask decoder.

        Args:
            query: Queries, (B, A, P, D).
            key: Keys of all tokens, (B, A, T, D).
            value: Values of all tokens, (B, A, T, D).
            mask: True at real tokens, (B, 1, 1, T).
            terms: ``distance_terms(T)``.
            positions: Position of each query, (B, P).

        Returns:
            Contexts, (B, P, H).
        """
        assert terms is not None
        length = key.shape[-2]
        query = query * self.scale
        scores: Tensor = query @ key.transpose(-2, -1)  # (B, A, P, T)
        if self.to_position:
            scores = scores + gather_distances(query @ terms[0].transpose(-2, -1), positions, length)
        if self.from_position:
            by_key = terms[1] @ (key * self.scale).transpose(-2, -1)  # (B, A, 2 T + 1, T)
            columns = length - positions[:, :, None] + torch.arange(length, device=positions.device)  # (B, P, T)
            scores = scores + by_key.gather(2, columns[:, None].expand(-1, self.heads, -1, -1))
        context: Tensor = self.dropout(masked_softmax(scores, mask)) @ value  # (B, A, P, D)
        return context.transpose(1, 2).flatten(2)


class FirstDisentangledAttention(DisentangledAttention):
    """The attention of DeBERTa 1: one input matrix ordered by head, no bias for keys and for distances as keys."""

    key_bias = False

    def __init__(self, config: BertConfig, embeddings: DistanceEmbeddings) -> None:
        super().__init__(config, embeddings)
        width = config.hidden_size
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)  # rows: query, key and value of head 0, ...
        self.query_bias, self.value_bias = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))

    def project(self, hidden: Tensor) -> Tensor:
        """Return the queries, keys and values: (B, T, H) -> (B, T, 3 H), ordered by head."""
        by_head = (self.heads, self.head_size)
        query, value = self.query_bias.view(by_head), self.value_bias.view(by_head)
        bias = torch.stack([query, torch.zeros_like(query), value], 1).flatten()  # (A, 3, D) -> (3 H,)
        return functional.linear(hidden, self.query_key_value.weight, bias)

    def split(self, projected: Tensor) -> Tensor:
        """Separate queries, keys and values, and the heads: (B, T, 3 H) -> (3, B, A, T, D)."""
        by_head = projected.view(*projected.shape[:2], self.heads, 3, self.head_size)  # (B, T, A, 3, D)
        return by_head.permute(3, 0, 2, 1, 4)


class DebertaEncoder(Encoder):
    """BERT's encoder with disentangled attention and without positions in the embeddings."""

    def __init__(self, config: DebertaConfig, attention: type[DisentangledAttention]) -> None:
        embedded = DistanceEmbeddings(config)
        super().__init__(config, ContentEmbeddings(config), partial(attention, embeddings=embedded))
        self.distances = embedded

    def decode(self, hidden: Tensor, mask: Tensor | None, needed: Tensor) -> Tensor:
        """Apply the enhanced mask decoder: input of the last layer (B, T, H), flat positions (M,) -> (M, H).

        Only the queries change between the steps, and a query does not influence others. So keys and values are
        computed once, and everything else only at the needed positions.
        """
        layer: Any = self.layers[-1]
        attention, position = layer.attention, self.embeddings.position
        batch, length, _ = hidden.shape
        slots = Slots.of(needed, batch, length)
        _, key, value = attention.split(attention.project(hidden))
        visible = None if mask is None else mask.bool()[:, None, None, :]
        terms = attention.distance_terms(length)
        states = hidden.flatten(0, 1).index_select(0, slots.flat) + position(slots.flat % length)
        for _ in range(_DECODER_STEPS):
            query, _, _ = attention.split(attention.project(slots.spread(states)))  # (B, A, P, D)
            context = slots.collect(attention.attend_from(query, key, value, visible, terms, slots.positions))
            states = layer.after_attention(states, attention.output(context))
        return torch.empty_like(states).index_copy_(0, slots.order, states)


class _Deberta(Backbone):
    """What both versions share."""

    config_type = DebertaConfig
    config: DebertaConfig
    encoder: DebertaEncoder
    attention: ClassVar[type[DisentangledAttention]]

    def build(self, config: BertConfig) -> None:
        """Create the encoder."""
        assert isinstance(config, DebertaConfig)
        self.encoder = DebertaEncoder(config, self.attention)

    def word_states(
        self, ids: Tensor, segments: Tensor, mask: Tensor | None = None, needed: Tensor | None = None
    ) -> Tensor:
        """Return the states for the masked-word head, after the enhanced mask decoder if the model has one."""
        if not self.config.enhanced_mask_decoder:
            return super().word_states(ids, segments, mask, needed)
        hidden = self.encoder(ids, segments, mask, depth=self.config.layers - 1).last  # (B, T, H)
        if needed is None:
            needed = torch.arange(ids.numel(), device=ids.device)
        return scatter_states(self.encoder.decode(hidden, mask, needed), needed, ids.shape)

    @property
    def words_apart(self) -> bool:
        """Whether the model has an enhanced mask decoder."""
        return self.config.enhanced_mask_decoder

    @property
    def layers(self) -> tuple[nn.Module, ...]:
        """The layers to shard separately: not the last, of which the mask decoder calls only parts."""
        return super().layers[:-1]

    @property
    def token_table(self) -> nn.Embedding:
        """The token embeddings."""
        return self.encoder.embeddings.token

    @classmethod
    def read_values(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Check a ``config.json`` of ``transformers`` and fill in its defaults."""
        values = _DEFAULTS | {key: value for key, value in values.items() if value is not None}
        for key, value in {"relative_attention": True, "talking_head": False, "conv_kernel_size": 0}.items():
            if values.get(key, value) != value:
                raise ConfigError(f"{key} is {values[key]!r}; cloze supports DeBERTa models with {key} {value!r}")
        return values

    def write_values(self, values: dict[str, Any]) -> dict[str, Any]:
        """Add what ``transformers`` needs to compute the same."""
        width = self.config.hidden_size
        return values | {"relative_attention": True, "legacy": True, "pooler_hidden_size": width, "pooler_dropout": 0.0}


# Defaults of transformers where they differ from ours.
_DEFAULTS = {
    "relative_attention": False,
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-7,
    "pos_att_type": (),
    "position_biased_input": True,
    "pooler_hidden_act": "gelu",
    "enhanced_mask_decoder": False,  # unknown there: the masked-word head reads the last states
}


@register_backbone
class Deberta(_Deberta):
    """DeBERTa as in the paper: distances are clipped."""

    title = "DeBERTa"
    model_types = ("deberta",)
    capabilities = Capabilities(bidirectional=True, has_positions=True, summary="first")
    attention = FirstDisentangledAttention

    def build(self, config: BertConfig) -> None:
        """Create the encoder."""
        assert isinstance(config, DebertaConfig)
        if config.position_buckets > 0 or config.share_att_key or config.norm_rel_ebd != "none":
            raise ConfigError(
                "position_buckets, share_att_key and norm_rel_ebd: only models of type 'deberta-v2' have them"
            )
        super().build(config)


@register_backbone
class DebertaV2(_Deberta):
    """DeBERTa 2 and 3: optional logarithmic buckets, shared projections, and LayerNorm of the distance embeddings."""

    title = "DeBERTa 2"
    model_types = ("deberta-v2",)
    capabilities = Capabilities(bidirectional=True, has_positions=True, summary="first")
    attention = DisentangledAttention
