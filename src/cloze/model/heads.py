"""Heads for pre-training (section 3.1 of the BERT paper) and for tasks (section 4, figure 4), and frozen features.

With frozen features (section 5.3) the encoder is not trained. A small reader takes the last layer, the last four
layers concatenated, or all layers and the embeddings mixed with learned weights (ELMo, Peters et al., 2018). It feeds
the head directly or through a two-layer BiLSTM, as in table 7 of the BERT paper.

Dimensions: B sequences, T tokens, H hidden size, E width of the embedding table (H in BERT), V vocabulary, C choices,
M targets, K states per token, F feature width, S LSTM width.
"""

from collections.abc import Callable, Mapping
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from cloze.model.building_blocks import Dropout, EncoderOutput, activation, initialise, table
from cloze.model.config import BertConfig
from cloze.options import FeatureHead, Features, HeadPooling

# Pre-training: masked words, next word, next sentence, sentence order, relation of segments, span boundaries, replaced
# tokens. Then the tasks.
HeadName = Literal["mlm", "lm", "nsp", "sop", "relation", "sbo", "rtd", "sequence", "token", "span", "choice"]
HEAD_NAMES: tuple[HeadName, ...] = get_args(HeadName)

# Number of distinct offsets within a span, and the width of their vectors (section 4.2 of the SpanBERT paper).
SPAN_PLACES = 20
SPAN_PLACE_SIZE = 200


class Head(nn.Module):
    """Base class of the heads. Each declares its input and its requirements."""

    reads_summary: ClassVar[bool] = False  # input: the pooled summary of the sequence instead of token states
    needs_both_sides: ClassVar[bool] = False  # requires a bidirectional backbone
    is_pretraining: ClassVar[bool] = False


class Pooler(nn.Module):
    """A linear map and tanh (or gelu), applied to the summary of the sequence (in BERT, the state of ``[CLS]``)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = torch.tanh if config.pooler_activation == "tanh" else functional.gelu

    def forward(self, summary: Tensor) -> Tensor:
        """(B, H) -> (B, H)."""
        return self.activation(self.dense(summary))


class MaskedWordHead(Head):
    """Masked-word prediction: a transform, the token embeddings as output matrix (tied weights), and a bias."""

    needs_both_sides = True
    is_pretraining = True

    def __init__(self, config: BertConfig, embedding: nn.Embedding) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.table_width)
        self.activation = activation(config.activation)
        self.norm = nn.LayerNorm(config.table_width, eps=config.norm_epsilon)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        # The tuple prevents PyTorch from registering the parameter a second time: it belongs to the backbone.
        self.tie(embedding)

    def tie(self, embedding: nn.Embedding) -> None:
        """Use an embedding table as output matrix."""
        self._tied = (embedding,)

    def forward(self, states: Tensor) -> Tensor:
        """Return logits: (..., H) -> (..., V).

        Pass only the states that you need: the (E, V) product is by far the widest of the model.
        """
        (embedding,) = self._tied
        return functional.linear(self.norm(self.activation(self.dense(states))), embedding.weight, self.bias)


class NextWordHead(MaskedWordHead):
    """Prediction of the next token at every position: the same layers as in the masked-LM head.

    As in ``BertLMHeadModel`` of ``transformers``; GPT itself has only the tied output matrix.
    """

    needs_both_sides = False


class SpanBoundaryHead(Head):
    """Span boundary objective: predict a word of a span from the tokens around it (SpanBERT, section 3.2)."""

    needs_both_sides = True
    is_pretraining = True

    def __init__(self, config: BertConfig, embedding: nn.Embedding) -> None:
        super().__init__()
        self.place = table(SPAN_PLACES, SPAN_PLACE_SIZE)
        self.first = nn.Linear(2 * config.hidden_size + SPAN_PLACE_SIZE, config.hidden_size)
        self.first_norm = nn.LayerNorm(config.hidden_size, eps=config.norm_epsilon)
        self.second = nn.Linear(config.hidden_size, config.table_width)
        self.second_norm = nn.LayerNorm(config.table_width, eps=config.norm_epsilon)
        self.activation = activation(config.activation)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self._tied = (embedding,)  # as in the masked-LM head

    def forward(self, before: Tensor, after: Tensor, places: Tensor) -> Tensor:
        """Return the logits of the tokens in masked spans.

        Args:
            before: States of the tokens before the spans, (M, H).
            after: States of the tokens after the spans, (M, H).
            places: Offset of each target within its span, from 0, (M,).

        Returns:
            Logits, (M, V).
        """
        (embedding,) = self._tied
        # Spans have at most ten words and rarely more than SPAN_PLACES tokens; later offsets share the last vector.
        offset = self.place(places.clamp(max=SPAN_PLACES - 1))  # (M, SPAN_PLACE_SIZE)
        hidden = self.first_norm(self.activation(self.first(torch.cat([before, after, offset], -1))))
        hidden = self.second_norm(self.activation(self.second(hidden)))
        return functional.linear(hidden, embedding.weight, self.bias)


class ReplacedTokenHead(Head):
    """Replaced-token detection: whether a token is original or from ELECTRA's generator (Clark et al., 2020)."""

    is_pretraining = True

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = activation(config.activation)
        self.output = nn.Linear(config.hidden_size, 1)

    def forward(self, states: Tensor) -> Tensor:
        """Return the logit that a token was replaced: (..., H) -> (...)."""
        return self.output(self.activation(self.dense(states))).squeeze(-1)  # type: ignore[no-any-return]


class SentenceHead(Head):
    """Sentence-pair objective: whether B follows A (NSP), or A and B are in their original order (SOP).

    Class 0 means yes, as in the original code.
    """

    reads_summary = True
    is_pretraining = True

    def __init__(self, config: BertConfig, classes: int = 2) -> None:
        super().__init__()
        self.output = nn.Linear(config.hidden_size, classes)

    def forward(self, pooled: Tensor) -> Tensor:
        """(B, H) -> (B, classes)."""
        return self.output(pooled)  # type: ignore[no-any-return]


class RelationHead(SentenceHead):
    """Relation objective: B follows A (0), is from another document (1), or from elsewhere in A's document (2).

    StructBERT (Wang et al., 2020, section 2.2) has such an objective, with the previous sentence as the third class.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, classes=3)


class SequenceHead(Head):
    """Classification or regression of a text or a pair."""

    reads_summary = True

    def __init__(self, config: BertConfig, labels: int, width: int | None = None) -> None:
        super().__init__()
        self.dropout = Dropout(config.dropout)
        self.output = nn.Linear(width or config.hidden_size, labels)

    def forward(self, pooled: Tensor) -> Tensor:
        """(B, H) -> (B, labels)."""
        return self.output(self.dropout(pooled))  # type: ignore[no-any-return]


class ComparisonHead(SequenceHead):
    """Classification or regression of a pair whose texts are encoded separately (a bi-encoder, as in Sentence-BERT).

    Its input is ``compare_vectors`` of the two mean vectors.
    """

    def __init__(self, config: BertConfig, labels: int) -> None:
        super().__init__(config, labels, comparison_width(config.hidden_size))


def comparison_width(hidden_size: int) -> int:
    """Return the number of features that compare two vectors: 4 H + 1."""
    return 4 * hidden_size + 1


def compare_vectors(first: Tensor, second: Tensor) -> Tensor:
    """Return u, v, |u - v|, u * v and the cosine of two vectors: (B, H), (B, H) -> (B, 4 H + 1).

    The vectors are first scaled to norm sqrt(H), so that single features are of order 1, like the inputs of other
    heads. The cosine is multiplied by sqrt(H), because it is a single feature and the most informative one.
    """
    scale = first.shape[-1] ** 0.5
    first, second = (functional.normalize(vectors, dim=-1, eps=1e-12) * scale for vectors in (first, second))
    product = first * second
    cosine = product.mean(-1, keepdim=True) * scale
    return torch.cat([first, second, (first - second).abs(), product, cosine], -1)


class TokenHead(Head):
    """Classification of every token."""

    def __init__(self, config: BertConfig, labels: int) -> None:
        super().__init__()
        self.dropout = Dropout(config.dropout)
        self.output = nn.Linear(config.hidden_size, labels)

    def forward(self, last: Tensor) -> Tensor:
        """(B, T, H) -> (B, T, labels)."""
        return self.output(self.dropout(last))  # type: ignore[no-any-return]


class SpanHead(Head):
    """Extraction of an answer: scores for its start and its end."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.output = nn.Linear(config.hidden_size, 2)

    def forward(self, last: Tensor) -> tuple[Tensor, Tensor]:
        """Return the score of each token as start and as end: (B, T, H) -> two of (B, T)."""
        start, end = self.output(last).unbind(-1)
        return start, end


class ChoiceHead(Head):
    """Multiple choice: one score for each encoded (prompt, choice) pair."""

    reads_summary = True

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dropout = Dropout(config.dropout)
        self.output = nn.Linear(config.hidden_size, 1)

    def forward(self, pooled: Tensor) -> Tensor:
        """(B * C, H) -> (B * C,); the caller knows C."""
        return self.output(self.dropout(pooled)).squeeze(-1)  # type: ignore[no-any-return]


HEADS: dict[HeadName, type[Head]] = {
    "mlm": MaskedWordHead,
    "lm": NextWordHead,
    "nsp": SentenceHead,
    "sop": SentenceHead,
    "relation": RelationHead,
    "sbo": SpanBoundaryHead,
    "rtd": ReplacedTokenHead,
    "sequence": SequenceHead,
    "token": TokenHead,
    "span": SpanHead,
    "choice": ChoiceHead,
}
PRETRAINING_HEADS: frozenset[HeadName] = frozenset(name for name, head in HEADS.items() if head.is_pretraining)
POOLED_HEADS: frozenset[HeadName] = frozenset(name for name, head in HEADS.items() if head.reads_summary)


def build_head(
    name: HeadName, config: BertConfig, labels: int, token_table: nn.Embedding, pooling: HeadPooling = "cls"
) -> Head:
    """Return a new head; masked-LM heads decode with the token embeddings themselves (tied weights)."""
    if name in ("mlm", "lm"):
        return (MaskedWordHead if name == "mlm" else NextWordHead)(config, token_table)
    if name == "sbo":
        return SpanBoundaryHead(config, token_table)
    if name in ("nsp", "sop"):
        return SentenceHead(config)
    if name == "relation":
        return RelationHead(config)
    if name == "rtd":
        return ReplacedTokenHead(config)
    if name == "sequence":
        return (ComparisonHead if pooling == "separate" else SequenceHead)(config, labels)
    if name == "token":
        return TokenHead(config, labels)
    return SpanHead(config) if name == "span" else ChoiceHead(config)


# Type of the ``encode`` method of a backbone.
Encode = Callable[..., EncoderOutput]


class Reader(nn.Module):
    """Map frozen states to the input of a head: one vector per token, or one per text for pooled heads.

    The states are the same in every epoch, so training may store them in ``cache``. The cache is not part of the model.
    """

    cache: Mapping[bytes, Tensor]  # key of a sequence -> its states, (K, T, H)

    def __init__(self, config: BertConfig, reads: Features, head: FeatureHead, size: int, pools: bool) -> None:
        super().__init__()
        self.reads, self.pools = reads, pools
        self.count = {"last": 1, "last4": min(4, config.layers + 1), "mix": config.layers + 1}[reads]
        self.weights = nn.Parameter(torch.zeros(self.count)) if reads == "mix" else None
        self.scale = nn.Parameter(torch.ones(1)) if reads == "mix" else None
        width = config.hidden_size * (1 if reads == "mix" else self.count)
        self.lstm = None
        if head == "lstm":
            self.lstm = nn.LSTM(width, size, num_layers=2, bidirectional=True, batch_first=True)
        self.width = width if self.lstm is None else 2 * size  # F
        self.cache = {}

    def start(self, deviation: float, generator: torch.Generator) -> None:
        """Initialise with equal weights for all states and a random LSTM."""
        initialise(self, deviation, generator)
        if self.lstm is not None:
            for parameter in self.lstm.parameters():
                # PyTorch's default initialisation, drawn from the given generator.
                nn.init.uniform_(parameter, -(self.lstm.hidden_size**-0.5), self.lstm.hidden_size**-0.5, generator)
        if self.weights is not None and self.scale is not None:
            nn.init.zeros_(self.weights)
            nn.init.ones_(self.scale)

    def forward(self, encode: Encode, ids: Tensor, segments: Tensor, mask: Tensor | None) -> Tensor:
        """Return the features of a batch: ids, segments and mask (B, T) -> (B, T, F), or (B, 1, F) with pooling."""
        states = self._cached_states(ids, segments, mask) if self.training and self.cache else None
        if states is None:
            states = self.states(encode, ids, segments, mask)
        return self.read(states, torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool())

    def read(self, states: Tensor, real: Tensor) -> Tensor:
        """Combine the selected states: (B, K, T, H), (B, T) -> (B, T, F), or (B, 1, F) with pooling."""
        read = self._side_by_side(states)
        if self.lstm is not None:
            read = _through(self.lstm, read, real)
        if not self.pools:
            return read
        # A frozen [CLS] state was never trained to summarise the text; the mean of all tokens is more informative.
        weights = real.unsqueeze(-1).to(read.dtype)
        return (read * weights).sum(1, keepdim=True) / weights.sum(1, keepdim=True).clamp(min=1)

    @torch.no_grad()
    def states(self, encode: Encode, ids: Tensor, segments: Tensor, mask: Tensor | None) -> Tensor:
        """Run the frozen backbone and return the selected states, (B, K, T, H)."""
        return self.choose(encode(ids, segments, mask, keep_states=self.needs_states))

    @property
    def needs_states(self) -> bool:
        """Whether the reader uses the states of layers before the last."""
        return self.reads != "last"

    def choose(self, output: EncoderOutput) -> Tensor:
        """Select this reader's states from the output of a backbone: (B, K, T, H)."""
        return torch.stack(output.states[-self.count :] if output.states else [output.last], 1)

    def _side_by_side(self, states: Tensor) -> Tensor:
        """Mix or concatenate the states: (B, K, T, H) -> (B, T, H) or (B, T, K H)."""
        if self.weights is None or self.scale is None:
            return states.transpose(1, 2).flatten(2)
        return self.scale * torch.einsum("k,bkth->bth", self.weights.softmax(0), states)

    def _cached_states(self, ids: Tensor, segments: Tensor, mask: Tensor | None) -> Tensor | None:
        """Return the cached states of a batch, zero at padding; None if a sequence is not in the cache."""
        lengths = [ids.shape[1]] * len(ids) if mask is None else mask.sum(1).tolist()
        rows = zip(ids.tolist(), segments.tolist(), lengths, strict=True)
        cached = [self.cache.get(key(row[:length], kinds[:length])) for row, kinds, length in rows]
        known = [states for states in cached if states is not None]
        if len(known) < len(cached):
            return None
        batch = known[0].new_zeros(len(known), self.count, ids.shape[1], known[0].shape[-1])
        for row, states in zip(batch, known, strict=True):
            row[:, : states.shape[1]] = states
        return batch


def key(ids: list[int], segments: list[int]) -> bytes:
    """Return the cache key of a sequence; its ids and segments determine its states."""
    return torch.tensor([ids, segments]).numpy().tobytes()


def _through(lstm: nn.LSTM, read: Tensor, real: Tensor) -> Tensor:
    """Run a bidirectional LSTM over each sequence without its padding: (B, T, F) -> (B, T, 2 S)."""
    packed = pack_padded_sequence(read, real.sum(1).cpu(), batch_first=True, enforce_sorted=False)
    output, _ = pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=read.shape[1])
    return output
