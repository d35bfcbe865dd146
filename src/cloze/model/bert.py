"""An encoder with the heads that a folder has: what is trained, saved, loaded and asked.

One class holds every combination, so that a folder's heads are data and not a type: a pre-training folder has the
heads ``mlm`` and perhaps ``nsp`` or ``sop``, and ``sbo``; a fine-tuned one has one of ``sequence``, ``token``, ``span``
and ``choice``.
"""

from collections.abc import Collection
from typing import Literal, Self, get_args

import torch
from torch import Tensor, nn

from cloze.errors import ConfigError, did_you_mean
from cloze.model.config import BertConfig
from cloze.model.encoder import Encoder, EncoderOutput, first_places, initialise
from cloze.model.frozen_features import Reader
from cloze.model.heads import (
    ChoiceHead,
    MaskedWordHead,
    Pooler,
    SentenceHead,
    SequenceHead,
    SpanBoundaryHead,
    SpanHead,
    TokenHead,
)

# Pre-training: masked words, next sentence, sentence order, span boundaries; then the tasks.
HeadName = Literal["mlm", "nsp", "sop", "sbo", "sequence", "token", "span", "choice"]
HEAD_NAMES: tuple[HeadName, ...] = get_args(HeadName)
PRETRAINING_HEADS: frozenset[HeadName] = frozenset({"mlm", "nsp", "sop", "sbo"})
# These read the pooled [CLS]; the others read the token states.
POOLED_HEADS: frozenset[HeadName] = frozenset({"nsp", "sop", "sequence", "choice"})


def read_by(head: HeadName, ids: Tensor) -> Tensor | None:
    """The flat places whose last states a task's head reads; None where it reads them all."""
    return first_places(ids) if head in POOLED_HEADS else None


class Bert(nn.Module):
    """An encoder, its pooler where there is one, and its heads by name."""

    def __init__(
        self,
        config: BertConfig,
        heads: Collection[HeadName] = (),
        *,
        labels: int = 2,
        pooler: bool | None = None,
    ) -> None:
        super().__init__()
        for name in heads:
            if name not in HEAD_NAMES:
                raise ConfigError(f"unknown head {name!r}{did_you_mean(name, HEAD_NAMES)}")
        if len(set(heads) - PRETRAINING_HEADS) > 1:
            # They share one name on disk.
            raise ConfigError(f"heads {', '.join(heads)}: a model has one task head at the most")
        if {"nsp", "sop"} <= set(heads):
            raise ConfigError("heads nsp and sop: a model has one of them; they share one place on disk, too")
        self.config = config
        self.labels = labels
        self.encoder = Encoder(config)
        needs_pooler = any(name in POOLED_HEADS for name in heads)
        self.pooler = Pooler(config) if needs_pooler or pooler else None
        self.heads = nn.ModuleDict({name: self.new_head(name, labels) for name in HEAD_NAMES if name in heads})
        self.reader: Reader | None = None  # attached by model/adapters.py

    def new_head(self, name: HeadName, labels: int) -> nn.Module:
        """A head for this encoder, not attached to it."""
        if name == "mlm":
            # Tied: the head decodes with the very matrix that embeds.
            return MaskedWordHead(self.config, self.encoder.embeddings.token)
        if name == "sbo":
            return SpanBoundaryHead(self.config, self.encoder.embeddings.token)
        if name in ("nsp", "sop"):
            return SentenceHead(self.config)
        if name == "sequence":
            return SequenceHead(self.config, labels)
        if name == "token":
            return TokenHead(self.config, labels)
        return SpanHead(self.config) if name == "span" else ChoiceHead(self.config)

    @classmethod
    def fresh(
        cls,
        config: BertConfig,
        heads: Collection[HeadName] = (),
        *,
        labels: int = 2,
        pooler: bool | None = None,
        seed: int = 0,
    ) -> "Bert":
        """Return a model with the paper's random start, the same for the same seed."""
        model = cls(config, heads, labels=labels, pooler=pooler)
        initialise(model, config.initial_deviation, torch.Generator().manual_seed(seed))
        return model

    def forward(
        self, ids: Tensor, segments: Tensor, mask: Tensor | None = None, needed: Tensor | None = None
    ) -> EncoderOutput:
        """Encode; the heads are called by those who know which one they want, and which states it reads."""
        if self.reader is not None:
            return EncoderOutput(self.reader(self.encoder, ids, segments, mask))
        return self.encoder(ids, segments, mask, needed=needed)  # type: ignore[no-any-return]

    def train(self, mode: bool = True) -> Self:
        """As of any module; but an encoder whose states are only read has no dropout."""
        super().train(mode)
        if self.reader is not None:
            self.encoder.eval()
        return self

    def pooled(self, last: Tensor) -> Tensor:
        """The pooler's view of the last layer: (B, T, H) -> (B, H)."""
        if self.reader is not None:
            return last[:, 0]  # it pools itself where the head wants that
        if self.pooler is None:
            raise ConfigError("this model has no pooler; it was saved without one")
        return self.pooler(last)  # type: ignore[no-any-return]

    @property
    def head_names(self) -> tuple[HeadName, ...]:
        """The heads that are there, in a fixed order."""
        return tuple(name for name in HEAD_NAMES if name in self.heads)

    def parameter_count(self) -> int:
        """Number of parameters; the tied embedding counts once."""
        return sum(parameter.numel() for parameter in self.parameters())
