"""The base class of pre-training objectives, and BERT's: masked language modelling.

Optionally with a sentence objective and SpanBERT's SBO.

Sentence objectives are next-sentence prediction (appendix A.2 of the paper), sentence order (ALBERT) and the three-way
relation of two segments. In a mixture, every batch has one of them or none, and trains the heads it has labels for.

Dimensions: B sequences, T tokens, M masked tokens of all sequences, H hidden size, V vocabulary. Sequences are
flattened: ``positions`` are indices into all B x T tokens.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from cloze.corpus.batches import PretrainingBatch
from cloze.corpus.sampling import Ids
from cloze.model import Backbone, HeadName
from cloze.model.losses import (
    masked_word_logits,
    masked_word_loss,
    next_sentence_loss,
    relation_loss,
    sentence_order_loss,
    span_boundary_logits,
)
from cloze.train.loop import ObjectiveOutput
from cloze.train.settings import PretrainSettings

SentenceLoss = Callable[[Backbone, Tensor, Tensor, int | None, Tensor | None], tuple[Tensor, Tensor]]


class BaseObjective(nn.Module):
    """Base class of the pre-training objectives: a model with the loss that trains it.

    A subclass names the heads that it trains, and its ``forward`` maps a part of a batch to losses and metrics.
    """

    title: ClassVar[str] = "masked language modelling on full sentences"  # for the model card
    main_loss: ClassVar[str]  # the metric from which the evaluation computes the perplexity

    def __init__(self, model: Backbone, heads: tuple[HeadName, ...], device: torch.device) -> None:  # noqa: ARG002
        super().__init__()
        self.model, self.device = model, device

    @classmethod
    @abstractmethod
    def heads(cls, settings: PretrainSettings) -> tuple[HeadName, ...]:
        """Return the heads that these settings train."""
        raise NotImplementedError

    @classmethod
    def create(cls, model: Backbone, settings: PretrainSettings, device: torch.device) -> Self:
        """Return the objective of a run; one with a second model, such as a generator, builds it here."""
        return cls(model, cls.heads(settings), device)

    @abstractmethod
    def forward(self, batch: PretrainingBatch, totals: Mapping[str, int]) -> ObjectiveOutput:
        """Return the loss and metrics of a part of a batch; ``totals`` has the target counts of the whole batch."""
        raise NotImplementedError

    def other_models(self, trained: Backbone) -> dict[str, Backbone]:  # noqa: ARG002
        """Return models to save beside the trained one, by the name of their folder; a collective operation."""
        return {}

    def summarize(self, metrics: dict[str, float]) -> dict[str, float]:
        """Return the metrics of a whole evaluation; a subclass may derive scores that are no means over batches."""
        return metrics

    def tensor(self, array: Ids) -> Tensor:
        """Return an array of the batch as a tensor on the device."""
        return torch.from_numpy(array).to(self.device)

    def mask(self, batch: PretrainingBatch) -> Tensor | None:
        """Return the padding mask, (B, T), True at real tokens; None, which is faster, if there is no padding."""
        length = batch.ids.shape[1]
        if int(batch.lengths.min()) == length:
            return None
        return (torch.arange(length) < torch.from_numpy(batch.lengths)[:, None]).to(self.device)


class PretrainingObjective(BaseObjective):
    """The sum of the losses of the heads that a batch trains."""

    main_loss = "mlm_loss"

    def __init__(self, model: Backbone, heads: tuple[HeadName, ...], device: torch.device) -> None:
        super().__init__(model, heads, device)
        self._boundary = "sbo" in heads
        if not set(heads) & {"nsp", "sop", "relation"} and model.pooler is not None:
            # Without a sentence objective the pooler gets no gradient; weight decay must not change it either.
            model.pooler.requires_grad_(False)

    @classmethod
    def heads(cls, settings: PretrainSettings) -> tuple[HeadName, ...]:
        """Return ``mlm`` and the heads of the sentence objectives and of span boundaries."""
        objectives = settings.objectives()
        heads: list[HeadName] = ["mlm"]
        if {"nsp", "relation"} & set(objectives):
            heads.append("nsp")
        heads += [name for name in ("sop", "relation") if name in objectives]
        if settings.boundary:
            heads.append("sbo")
        return tuple(heads)

    def forward(self, batch: PretrainingBatch, totals: Mapping[str, int]) -> ObjectiveOutput:
        """Return the loss and metrics of a part of a batch."""
        ids, segments, positions, targets = (
            self.tensor(array) for array in (batch.ids, batch.segments, batch.positions, batch.targets)
        )
        mask = self.mask(batch)
        if self.model.words_apart:  # then there is no other head
            last = self.model.word_states(ids, segments, mask, positions)
        else:
            last = self.model(ids, segments, mask, self._needed(ids, positions, mask, pairs=len(batch.labels) > 0)).last
        masked = max(1, totals["masked_tokens"])
        # In float32: the loss needs it, and on a CPU argmax over the vocabulary is five times as fast as in bfloat16.
        logits = masked_word_logits(self.model, last, positions).float()
        loss = masked_word_loss(logits, targets, masked)
        metrics = {"mlm_loss": loss, "mlm_accuracy": hits(logits, targets) / masked}
        if len(batch.labels):
            pair_loss, pair_metrics = self._sentence_losses(batch, last, totals["pairs"], mask)
            metrics |= pair_metrics
            loss = loss + pair_loss
        if self._boundary:
            assert batch.boundaries is not None
            guesses = span_boundary_logits(self.model, last, self.tensor(batch.boundaries))
            metrics["sbo_loss"] = masked_word_loss(guesses, targets, masked)
            loss = loss + metrics["sbo_loss"]
        return ObjectiveOutput(loss, metrics)

    def _sentence_losses(
        self, batch: PretrainingBatch, last: Tensor, pairs: int, mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of the losses on the pairs, and their metrics."""
        labels = self.tensor(batch.labels)
        parts: dict[str, tuple[SentenceLoss, Tensor]] = {}
        if batch.objective == "sop":
            parts["sop"] = sentence_order_loss, labels
        else:
            # A B that does not follow A is not the next sentence, so relations train the next-sentence head as well.
            parts["nsp"] = next_sentence_loss, labels.clamp(max=1)
        if batch.objective == "relation":
            parts["relation"] = relation_loss, labels
        metrics, total = dict[str, Tensor](), torch.zeros((), device=self.device)
        for name, (loss_of, targets) in parts.items():
            loss, answers = loss_of(self.model, last, targets, pairs, mask)
            metrics |= {f"{name}_loss": loss, f"{name}_accuracy": hits(answers, targets) / pairs}
            total = total + loss
        return total, metrics

    def _needed(self, ids: Tensor, positions: Tensor, mask: Tensor | None, *, pairs: bool) -> Tensor | None:
        """Return the positions whose states the heads need; None for all, since span boundaries may be anywhere."""
        if self._boundary:
            return None
        if not pairs:
            return positions
        summary = self.model.summary_positions(ids, mask)
        return None if summary is None else torch.cat([summary, positions])


def hits(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the number of correct predictions: (M, V), (M,) -> ()."""
    return (logits.detach().argmax(-1) == targets).float().sum()
