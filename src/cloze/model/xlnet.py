r"""XLNet (Yang et al., 2019, "XLNet: generalized autoregressive pretraining for language understanding").

BERT predicts masked words independently of each other, from texts with ``[MASK]`` in them that no task contains. XLNet
predicts words one after the other, but in a random order ("permutation language modelling", section 2.2): a word
depends on the words that come before it in that order, which stand on both sides of it in the text. Only the last words
of an order are predicted, because the first ones have too little context; all others are context. The text itself keeps
its order. The random order only decides what may be seen.

A state that predicts a word must know the word's position but not the word. A state that serves as context must know
the word as well. So there are two streams with the same weights (section 2.3):

    content stream: starts from the word, sees itself and everything before it in the order     (B, T, H)
    query stream:   starts from one learned vector, sees only what comes before it in the order  (M, H)

    words -> content 0 -> layer -> content 1 -> layer -> ... -> content L: states of a text, used by tasks
                 \ keys, values      \ keys, values
    vector -> query 0 -> layer -> query 1 -> ... -> query L -> head: the predicted words

Positions enter as in Transformer-XL (Dai et al., 2019). The score of query i and key j is the sum of three terms,
divided by sqrt(D), each with a learned bias that replaces the position of the query:

    (q_i + u) k_j      content           (q_i + v) r_ij   distance i - j: a projection of sines and cosines
    (q_i + w) s_ij     segment: one vector if i and j are in the same segment, and one if they are not

Tasks use the content stream, in which every token sees all others. There is no LayerNorm after the embeddings.

Deviations from the paper: no recurrence over the previous part of a long text (Transformer-XL's memory, section 2.4);
``[CLS]`` is the first token, not the last, as everywhere in cloze; special tokens are always context; and the words to
predict are selected like BERT's masked tokens (a sixth of the tokens in the recipe; K = 6 in the paper), by default
single tokens instead of spans. As in the authors' code, context tokens see all other context tokens.
 In
prediction, no token sees a ``[MASK]``: the query stream predicts the word at its place from all other words.

Dimensions: B sequences, T tokens, H hidden size, A heads, D head size, M requested positions, P requested positions per
sequence, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from cloze.errors import ConfigError
from cloze.model.backbone import Backbone, Capabilities, register_backbone
from cloze.model.batch import gather_states, scatter_states
from cloze.model.building_blocks import (
    Dropout,
    EncoderOutput,
    Slots,
    activation,
    by_distance,
    gather_distances,
    relative_shift,
    table,
)
from cloze.model.config import BertConfig
from cloze.model.encoder import masked_softmax
from cloze.model.heads import Head, HeadName
from cloze.options import HeadPooling

# Added to the scores of hidden keys. Finite: a query that sees nothing averages all keys instead of becoming NaN.
_HIDDEN = -1e30


@dataclass(frozen=True)
class XLNetConfig(BertConfig):
    """Hyperparameters of XLNet. ``positions`` and ``segments`` only matter to the tokenizer and the pre-training."""

    clamp_len: int = -1  # distances beyond this are treated as this; -1: no limit

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.clamp_len) is not int:
            raise ConfigError(f"clamp_len is {self.clamp_len!r}; expected a whole number, or -1 for no limit")

    distance_products: ClassVar[int] = 1
    two_streams: ClassVar[bool] = True


@dataclass(frozen=True)
class Context:
    """What all layers need besides the streams."""

    distances: Tensor  # (2 T, H), sines and cosines of the distances T, ..., -(T - 1)
    others: Tensor | None  # (B, T, T), 1 where two tokens are in different segments; None if there is only one segment
    content_bias: Tensor | None  # (B, 1, 1 or T, T), added to the scores of the content stream
    query_bias: Tensor | None = None  # (B, 1, P, T), added to the scores of the query stream
    query_others: Tensor | None = None  # (B, P, T)
    slots: Slots | None = None  # places of the query stream


class RelativeAttention(nn.Module):
    """Attention of both streams. The parameters have the shapes of ``transformers``: (H, A, D) each."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.width, self.heads, self.head_size = config.hidden_size, config.heads, config.head_size
        by_head = (self.heads, self.head_size)
        self.query_key_value = nn.Parameter(torch.zeros(3 * self.width, *by_head))
        self.position_key = nn.Parameter(torch.zeros(self.width, *by_head))
        self.output = nn.Parameter(torch.zeros(self.width, *by_head))
        self.content_bias, self.position_bias, self.segment_bias = (
            nn.Parameter(torch.zeros(by_head)) for _ in range(3)
        )
        self.segments = nn.Parameter(torch.zeros(2, *by_head))  # the same segment, another segment
        self.dropout = Dropout(config.attention_dropout)

    def initialise(self, deviation: float, generator: torch.Generator) -> None:
        """Initialise like the weights of linear layers, biases and segments included, as in the authors' code."""
        for parameter in self.parameters():
            nn.init.trunc_normal_(parameter, std=deviation, a=-2 * deviation, b=2 * deviation, generator=generator)

    def project(self, states: Tensor, first: int, last: int) -> list[Tensor]:
        """Return some of query, key and value (numbers 0 to 2): (B, T, H) -> (B, A, T, D) each."""
        count = last - first
        weight = self.query_key_value.view(3, self.width, -1)[first:last]  # (count, H, A D)
        projected = states @ weight.transpose(0, 1).flatten(1)  # one product: (B, T, count A D)
        by_head = projected.view(*states.shape[:2], count, self.heads, self.head_size)
        return list(by_head.permute(2, 0, 3, 1, 4))

    def distance_keys(self, distances: Tensor) -> Tensor:
        """Return the keys of all distances: (2 T, H) -> (A, D, 2 T)."""
        return (distances @ self.position_key.flatten(1)).view(-1, self.heads, self.head_size).permute(1, 2, 0)

    def attend(
        self,
        query: Tensor,  # (B, A, T or P, D)
        key_value: tuple[Tensor, Tensor],  # (B, A, T, D) each
        distance_keys: Tensor,  # (A, D, 2 T)
        bias: Tensor | None,  # broadcast to the scores, (B, A, T or P, T)
        others: Tensor | None,  # 1 where query and key are in different segments, (B, T or P, T)
        slots: Slots | None = None,  # positions of the queries; None for all tokens
    ) -> tuple[Tensor, Tensor]:
        """Return the contexts of queries, (B, T or P, A D), and their weights, (B, A, T or P, T)."""
        key, value = key_value
        query = query * self.head_size**-0.5
        content, position, segment = (
            part[:, None] * self.head_size**-0.5 for part in (self.content_bias, self.position_bias, self.segment_bias)
        )
        scores = (query + content) @ key.transpose(-2, -1)
        distant = by_distance(query + position, distance_keys)  # (B, A, T or P, 2 T)
        if slots is None:
            scores += relative_shift(distant)
        else:
            scores += gather_distances(distant, slots.positions, key.shape[-2])
        if others is not None:
            # Adding a number to all scores of a query changes nothing, so only the difference of the vectors matters.
            change = ((query + segment) * (self.segments[1] - self.segments[0])[:, None]).sum(-1, keepdim=True)
            scores += others[:, None] * change  # (B, 1, T or P, T) * (B, A, T or P, 1)
        if bias is not None:
            scores += bias
        weights = masked_softmax(scores, None)
        context = self.dropout(weights) @ value  # (B, A, T or P, D)
        return context.transpose(1, 2).flatten(2), weights


class XLNetLayer(nn.Module):
    """Attention and a feed-forward network, with the same weights for both streams."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attention = RelativeAttention(config)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.norm_epsilon)
        self.expand = nn.Linear(config.hidden_size, config.feedforward_size)
        self.contract = nn.Linear(config.feedforward_size, config.hidden_size)
        self.feedforward_norm = nn.LayerNorm(config.hidden_size, eps=config.norm_epsilon)
        self.activation = activation(config.activation)
        self.dropout = Dropout(config.dropout)

    def forward(
        self, content: Tensor, queries: Tensor | None, context: Context, needed: Tensor | None, skips_content: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Apply the layer to the content stream, (B, T, H), and the query stream in the order of the slots, (M, H).

        ``needed`` are the positions (M,) whose content states are used, or None; with ``skips_content``, after the last
        layer of pre-training, none is. Returns the content stream, (B, T, H) or (M, H); the query stream; and the
        weights of the former.
        """
        attention = self.attention
        keys, output = attention.distance_keys(context.distances), attention.output.flatten(1)  # output: (H, A D)
        *query, key, value = attention.project(content, int(skips_content), 3)
        if queries is not None and context.slots is not None:
            (asking,) = attention.project(context.slots.spread(queries), 0, 1)
            bias, others = context.query_bias, context.query_others
            read, _ = attention.attend(asking, (key, value), keys, bias, others, context.slots)
            queries = self.after_attention(queries, functional.linear(context.slots.collect(read), output))
        if not query:
            return content, queries, None
        read, weights = attention.attend(query[0], (key, value), keys, context.content_bias, context.others)
        if needed is not None:
            content, read = gather_states(content, needed), gather_states(read, needed)
        return self.after_attention(content, functional.linear(read, output)), queries, weights

    def after_attention(self, states: Tensor, attended: Tensor) -> Tensor:
        """Apply everything after attention: input and attended states (..., H) -> (..., H)."""
        states = self.attention_norm(states + self.dropout(attended))
        inner = self.dropout(self.activation(self.expand(states)))
        return self.feedforward_norm(states + self.dropout(self.contract(inner)))  # type: ignore[no-any-return]


class XLNetEncoder(nn.Module):
    """Word embeddings and L layers with one or two streams."""

    def __init__(self, config: XLNetConfig) -> None:
        super().__init__()
        self.config = config
        self.token = table(config.vocab_size, config.hidden_size)
        self.query = nn.Parameter(torch.zeros(1, 1, config.hidden_size))  # start of the query stream
        self.layers = nn.ModuleList(XLNetLayer(config) for _ in range(config.layers))
        self.dropout = Dropout(config.dropout)
        self.checkpointing = False

    def initialise(self, deviation: float, generator: torch.Generator) -> None:
        """Initialise the start of the query stream."""
        nn.init.trunc_normal_(self.query, std=deviation, a=-2 * deviation, b=2 * deviation, generator=generator)

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
        """Run the content stream, in which every token sees all others; takes the arguments of ``Backbone.encode``."""
        context = self._context(ids, segments, None if mask is None else ~mask.bool()[:, None])
        content = self.dropout(self.token(ids))
        states, attentions = [content], []
        for number, layer in enumerate(self.layers):
            read = needed if number == len(self.layers) - 1 else None
            content, _, weights = self._run(layer, content, None, context, read, False)
            states = [*states, content] if keep_states else [content]
            attentions += [weights] if keep_attentions else []
        last = self.dropout(states.pop())
        if needed is not None:
            last = scatter_states(last, needed, ids.shape)
        return EncoderOutput(last, (*states, last) if keep_states else (), tuple(attentions))

    def predict(self, ids: Tensor, segments: Tensor, hidden: Tensor, needed: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the states of both streams before each layer and after the last: (B, T, H) and (M, H) each.

        ``ids`` have the words to predict, at the flat positions ``needed``, (M,). ``hidden``, (B, T, T), is true where
        the row's token must not see the column's when it is predicted, padding included; as content, a token also sees
        itself. After the last layer, the content stream is not computed.
        """
        batch, length = ids.shape
        slots = Slots.of(needed, batch, length)
        itself = torch.eye(length, dtype=torch.bool, device=ids.device)
        rows = slots.positions[:, :, None].expand(-1, -1, length)  # (B, P, T)
        context = self._context(ids, segments, hidden & ~itself, slots, hidden.gather(1, rows))
        content = self.dropout(self.token(ids))
        queries = self.dropout(self.query[0].expand(len(needed), -1))
        states = [(content, queries)]
        for number, layer in enumerate(self.layers):
            is_last = number == len(self.layers) - 1
            content, queries, _ = self._run(layer, content, queries, context, None, is_last)
            states.append((content, queries))
        return [(content, torch.empty_like(queries).index_copy(0, slots.order, queries)) for content, queries in states]

    def _run(self, layer: nn.Module, *arguments: Any) -> tuple[Any, Any, Any]:
        if self.checkpointing and self.training and torch.is_grad_enabled():
            return checkpoint(layer, *arguments, use_reentrant=False, preserve_rng_state=True)  # type: ignore[no-any-return]
        return layer(*arguments)  # type: ignore[no-any-return]

    def _context(
        self,
        ids: Tensor,
        segments: Tensor,
        hidden: Tensor | None,
        slots: Slots | None = None,
        query_hidden: Tensor | None = None,
    ) -> Context:
        """Prepare what all layers share; ``hidden`` is (B, 1 or T, T) and ``query_hidden`` (B, P, T)."""
        dtype, others = self.token.weight.dtype, None
        if torch.compiler.is_compiling() or (segments != segments[:, :1]).any():
            others = (segments[:, :, None] != segments[:, None]).to(dtype)  # (B, T, T)
        rows = None if slots is None else slots.positions[:, :, None].expand(-1, -1, ids.shape[1])
        return Context(
            distances=self.dropout(self._sinusoids(ids.shape[1])),
            others=others,
            content_bias=_bias(hidden, dtype),
            query_bias=_bias(query_hidden, dtype),
            query_others=None if others is None or rows is None else others.gather(1, rows),
            slots=slots,
        )

    def _sinusoids(self, length: int) -> Tensor:
        """Return sines and cosines of the distances T, ..., -(T - 1): (2 T, H)."""
        weight, width, clamp = self.token.weight, self.config.hidden_size, self.config.clamp_len
        away = torch.arange(length, -length, -1.0, device=weight.device)
        if clamp > 0:
            away = away.clamp(-clamp, clamp)
        rates = 10000 ** -(torch.arange(0, width, 2.0, device=weight.device) / width)
        angles = away[:, None] * rates
        return torch.cat([angles.sin(), angles.cos()], -1).to(weight.dtype)[:, :width]


def _bias(hidden: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return what hides keys: (B, rows, T) -> (B, 1, rows, T)."""
    return None if hidden is None else torch.zeros_like(hidden, dtype=dtype).masked_fill_(hidden, _HIDDEN)[:, None]


class WordHead(Head):
    """Prediction of words from the query stream: the token embeddings (tied weights) and a bias."""

    needs_both_sides = True
    is_pretraining = True

    def __init__(self, config: BertConfig, embedding: nn.Embedding) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self._tied = (embedding,)  # not registered a second time: it belongs to the backbone

    def forward(self, states: Tensor) -> Tensor:
        """Return logits: (..., H) -> (..., V)."""
        return functional.linear(states, self._tied[0].weight, self.bias)


@register_backbone
class XLNet(Backbone):
    """XLNet without memory."""

    model_types = ("xlnet",)
    title = "XLNet"
    config_type = XLNetConfig
    capabilities = Capabilities(bidirectional=True, has_positions=False, summary="first")
    encoder: XLNetEncoder
    words_apart = True
    hides_words = True

    def build(self, config: BertConfig) -> None:
        """Create the encoder."""
        assert isinstance(config, XLNetConfig)
        self.encoder = XLNetEncoder(config)

    def new_head(self, name: HeadName, labels: int, pooling: HeadPooling | None = None) -> nn.Module:
        """Return a new head; the one for words has no transform."""
        return WordHead(self.config, self.token_table) if name == "mlm" else super().new_head(name, labels, pooling)

    def word_states(
        self, ids: Tensor, segments: Tensor, mask: Tensor | None = None, needed: Tensor | None = None
    ) -> Tensor:
        """Return the query stream at the needed positions; their words are hidden from all tokens."""
        if needed is None:
            raise ConfigError("an XLNet predicts words without reading them; give the positions to predict")
        ranks = torch.zeros_like(ids).flatten().index_fill(0, needed, 1).view_as(ids)
        return self.permuted_states(ids, segments, mask, needed, ranks)

    def permuted_states(
        self, ids: Tensor, segments: Tensor, mask: Tensor | None, needed: Tensor, ranks: Tensor
    ) -> Tensor:
        """Return the query stream for a random order of the words: (B, T, H), 0 at positions that are not needed.

        ``ids`` have the words to predict. ``ranks``, (B, T), are 0 for context, otherwise the place in the order; a
        word sees only lower ranks than its own.
        """
        hidden = (ranks[:, None] >= ranks[:, :, None]) & (ranks[:, None] > 0)  # (B, T, T)
        if mask is not None:
            hidden = hidden | ~mask.bool()[:, None]
        _, queries = self.encoder.predict(ids, segments, hidden, needed)[-1]
        return scatter_states(self.encoder.dropout(queries), needed, ids.shape)

    @property
    def token_table(self) -> nn.Embedding:
        """The token embeddings."""
        return self.encoder.token

    @classmethod
    def read_values(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Translate a ``config.json`` of ``transformers``, where most sizes have other names."""
        for key, expected in {"attn_type": "bi", "same_length": False, "bi_data": False}.items():
            if values.get(key, expected) != expected:
                raise ConfigError(f"{key} is {values[key]!r}; cloze supports XLNet models with {key} {expected!r}")
        dropout = values.get("dropout", 0.1)
        own = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout, "pad_token_id": 5}
        return own | values | {ours: values[theirs] for ours, theirs in _KEYS.items() if theirs in values}

    def write_values(self, values: dict[str, Any]) -> dict[str, Any]:
        """Translate to the names of ``transformers``, whose classifier then pools ``[CLS]`` as ours does."""
        # Its configuration refuses a maximum length.
        renamed = {_KEYS.get(key, key): value for key, value in values.items()}
        pooling = {"summary_type": "first", "summary_activation": "tanh", "summary_use_proj": True}
        fixed = {"attn_type": "bi", "mem_len": None, "use_mems_eval": False, "use_mems_train": False}
        return renamed | pooling | fixed | {"dropout": self.config.dropout, "summary_last_dropout": self.config.dropout}


# Keys of BERT's config.json, and those of XLNet's.
_KEYS = {
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "d_inner",
    "hidden_act": "ff_activation",
    "max_position_embeddings": "cloze_max_length",
}
