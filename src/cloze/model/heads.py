"""Heads: those of pre-training (section 3.1 of the paper) and those of the tasks (section 4, figure 4).

Dimensions: B sequences, T tokens, H hidden size, E table width (H in BERT), V vocabulary, C choices, M targets.
"""

from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from cloze.model.building_blocks import Dropout, activation, table
from cloze.model.config import BertConfig

# Pre-training: masked words, next sentence, sentence order, span boundaries; then the tasks.
HeadName = Literal["mlm", "nsp", "sop", "sbo", "sequence", "token", "span", "choice"]
HEAD_NAMES: tuple[HeadName, ...] = get_args(HeadName)

# Number of distinct positions within a span, and the width of their vectors (section 4.2 of the SpanBERT paper).
SPAN_PLACES = 20
SPAN_PLACE_SIZE = 200


class Head(nn.Module):
    """Base class of the heads: each declares what it reads."""

    reads_summary: ClassVar[bool] = False  # the pooled summary of the sequence rather than token states
    needs_both_sides: ClassVar[bool] = False  # predicts words that the backbone must not have seen from one side only
    is_pretraining: ClassVar[bool] = False


class Pooler(nn.Module):
    """tanh of a linear map of the sequence's summary, which in BERT is the state of ``[CLS]``."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, summary: Tensor) -> Tensor:
        """(B, H) -> (B, H)."""
        return torch.tanh(self.dense(summary))


class MaskedWordHead(Head):
    """Masked words: a transform, then the token embeddings themselves as output matrix, and a bias."""

    needs_both_sides = True
    is_pretraining = True

    def __init__(self, config: BertConfig, embedding: nn.Embedding) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.table_width)
        self.activation = activation(config.activation)
        self.norm = nn.LayerNorm(config.table_width, eps=config.norm_epsilon)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        # In a tuple, so that PyTorch does not register it again: the parameter belongs to the backbone.
        self._tied = (embedding,)

    def forward(self, states: Tensor) -> Tensor:
        """(..., H) -> (..., V). Pass only the states that are needed: V is by far the widest matrix of the model."""
        (embedding,) = self._tied
        return functional.linear(self.norm(self.activation(self.dense(states))), embedding.weight, self.bias)


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
        self._tied = (embedding,)  # as in the masked-word head

    def forward(self, before: Tensor, after: Tensor, places: Tensor) -> Tensor:
        """(M, H) of the token before the span, (M, H) of the one after, places (M,) from 0 -> (M, V)."""
        (embedding,) = self._tied
        # Spans are ten words at the most, and seldom longer than the table; the last place stands for all behind it.
        known = self.place(places.clamp(max=SPAN_PLACES - 1))
        hidden = self.first_norm(self.activation(self.first(torch.cat([before, after, known], -1))))
        hidden = self.second_norm(self.activation(self.second(hidden)))
        return functional.linear(hidden, embedding.weight, self.bias)


class SentenceHead(Head):
    """Does B follow A (NSP), or are A and B in their order (SOP)? Class 0 is yes, as in the originals."""

    reads_summary = True
    is_pretraining = True

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.output = nn.Linear(config.hidden_size, 2)

    def forward(self, pooled: Tensor) -> Tensor:
        """(B, H) -> (B, 2)."""
        return self.output(pooled)  # type: ignore[no-any-return]


class SequenceHead(Head):
    """Labels, or a number, for a text or a pair."""

    reads_summary = True

    def __init__(self, config: BertConfig, labels: int) -> None:
        super().__init__()
        self.dropout = Dropout(config.dropout)
        self.output = nn.Linear(config.hidden_size, labels)

    def forward(self, pooled: Tensor) -> Tensor:
        """(B, H) -> (B, labels)."""
        return self.output(self.dropout(pooled))  # type: ignore[no-any-return]


class TokenHead(Head):
    """A label for every token."""

    def __init__(self, config: BertConfig, labels: int) -> None:
        super().__init__()
        self.dropout = Dropout(config.dropout)
        self.output = nn.Linear(config.hidden_size, labels)

    def forward(self, last: Tensor) -> Tensor:
        """(B, T, H) -> (B, T, labels)."""
        return self.output(self.dropout(last))  # type: ignore[no-any-return]


class SpanHead(Head):
    """Start and end of an answer."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.output = nn.Linear(config.hidden_size, 2)

    def forward(self, last: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, H) -> two of (B, T): the scores of each token as start and as end."""
        start, end = self.output(last).unbind(-1)
        return start, end


class ChoiceHead(Head):
    """Multiple choice: one score per encoded (prompt, choice) pair."""

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
    "nsp": SentenceHead,
    "sop": SentenceHead,
    "sbo": SpanBoundaryHead,
    "sequence": SequenceHead,
    "token": TokenHead,
    "span": SpanHead,
    "choice": ChoiceHead,
}
PRETRAINING_HEADS: frozenset[HeadName] = frozenset(name for name, head in HEADS.items() if head.is_pretraining)
POOLED_HEADS: frozenset[HeadName] = frozenset(name for name, head in HEADS.items() if head.reads_summary)


def build_head(name: HeadName, config: BertConfig, labels: int, token_table: nn.Embedding) -> Head:
    """Return a new head; masked-word heads decode with the token embeddings themselves (tied weights)."""
    if name == "mlm":
        return MaskedWordHead(config, token_table)
    if name == "sbo":
        return SpanBoundaryHead(config, token_table)
    if name in ("nsp", "sop"):
        return SentenceHead(config)
    if name == "sequence":
        return SequenceHead(config, labels)
    if name == "token":
        return TokenHead(config, labels)
    return SpanHead(config) if name == "span" else ChoiceHead(config)
