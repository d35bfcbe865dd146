"""What stands on the encoder: the two of pre-training (section 3.1) and those of the tasks (section 4, figure 4).

Dimensions: B sequences, T tokens, H hidden size, V vocabulary, C choices.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from cloze.model.config import BertConfig
from cloze.model.dropout import Dropout
from cloze.model.encoder import activation


class Pooler(nn.Module):
    """tanh of a linear map of the first token, ``[CLS]``."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, last: Tensor) -> Tensor:
        """(B, T, H) -> (B, H)."""
        return torch.tanh(self.dense(last[:, 0]))


class MaskedWordHead(nn.Module):
    """Which word was here: a transform, then the token embeddings themselves as output matrix, and a bias."""

    def __init__(self, config: BertConfig, embedding: nn.Embedding) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = activation(config.activation)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.norm_epsilon)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        # A tuple hides the embedding from PyTorch: it is the encoder's parameter, not a second one.
        self._tied = (embedding,)

    def forward(self, states: Tensor) -> Tensor:
        """(..., H) -> (..., V). Pass only the states that matter: V is by far the widest matrix of the model."""
        (embedding,) = self._tied
        return functional.linear(self.norm(self.activation(self.dense(states))), embedding.weight, self.bias)


class NextSentenceHead(nn.Module):
    """Does B follow A? Class 0 is yes, as in the original."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.output = nn.Linear(config.hidden_size, 2)

    def forward(self, pooled: Tensor) -> Tensor:
        """(B, H) -> (B, 2)."""
        return self.output(pooled)  # type: ignore[no-any-return]


class SequenceHead(nn.Module):
    """A label, or a number, for a text or a pair."""

    def __init__(self, config: BertConfig, labels: int) -> None:
        super().__init__()
        self.dropout = Dropout(config.dropout)
        self.output = nn.Linear(config.hidden_size, labels)

    def forward(self, pooled: Tensor) -> Tensor:
        """(B, H) -> (B, labels)."""
        return self.output(self.dropout(pooled))  # type: ignore[no-any-return]


class TokenHead(nn.Module):
    """A label for every token."""

    def __init__(self, config: BertConfig, labels: int) -> None:
        super().__init__()
        self.dropout = Dropout(config.dropout)
        self.output = nn.Linear(config.hidden_size, labels)

    def forward(self, last: Tensor) -> Tensor:
        """(B, T, H) -> (B, T, labels)."""
        return self.output(self.dropout(last))  # type: ignore[no-any-return]


class SpanHead(nn.Module):
    """Where an answer starts and ends."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.output = nn.Linear(config.hidden_size, 2)

    def forward(self, last: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, H) -> two of (B, T): the scores of each token as start and as end."""
        start, end = self.output(last).unbind(-1)
        return start, end


class ChoiceHead(nn.Module):
    """How well a choice fits: one score for each encoded (prompt, choice) pair."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dropout = Dropout(config.dropout)
        self.output = nn.Linear(config.hidden_size, 1)

    def forward(self, pooled: Tensor) -> Tensor:
        """(B * C, H) -> (B * C,); the caller knows C."""
        return self.output(self.dropout(pooled)).squeeze(-1)  # type: ignore[no-any-return]
