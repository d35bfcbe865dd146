"""The pre-training loss: masked language modelling plus, as configured, NSP or SOP (appendix A.2) and SpanBERT's SBO.

Dimensions: B sequences, T tokens, M masked tokens of all sequences, H hidden size, V vocabulary. Sequences are
    flattened:
``positions`` are indices into all B x T tokens.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from cloze.corpus.batches import PretrainingBatch
from cloze.corpus.sampling import Ids
from cloze.model import Backbone, HeadName
from cloze.model.losses import (
    masked_word_logits,
    masked_word_loss,
    next_sentence_loss,
    sentence_order_loss,
    span_boundary_logits,
)
from cloze.train.loop import ObjectiveOutput
from cloze.train.settings import PretrainSettings

_SENTENCE_LOSSES = {"nsp": next_sentence_loss, "sop": sentence_order_loss}


def pretraining_heads(settings: PretrainSettings) -> tuple[HeadName, ...]:
    """Return the heads that these settings train."""
    heads: list[HeadName] = ["mlm"]
    if settings.objective != "none":
        heads.append(settings.objective)
    if settings.boundary:
        heads.append("sbo")
    return tuple(heads)


class PretrainingObjective(nn.Module):
    """The sum of the heads' losses."""

    def __init__(self, model: Backbone, heads: tuple[HeadName, ...], device: torch.device) -> None:
        super().__init__()
        self.model, self.device = model, device
        self._sentence = next((name for name in heads if name in ("nsp", "sop")), None)
        self._boundary = "sbo" in heads
        if self._sentence is None and model.pooler is not None:
            # Without a sentence objective the pooler gets no gradient; weight decay must not change it either.
            model.pooler.requires_grad_(False)

    def forward(self, batch: PretrainingBatch, totals: Mapping[str, int]) -> ObjectiveOutput:
        """Return the loss and metrics of a part of a batch; ``totals`` has the target counts of the whole batch."""
        ids, segments, positions, targets = (
            self._tensor(array) for array in (batch.ids, batch.segments, batch.positions, batch.targets)
        )
        mask = self._mask(batch)
        last = self.model(ids, segments, mask, self._needed(ids, positions, mask)).last
        masked = max(1, totals["masked_tokens"])
        # In float32: the loss needs it, and on a CPU argmax over the vocabulary is five times as fast as in bfloat16.
        logits = masked_word_logits(self.model, last, positions).float()
        loss = masked_word_loss(logits, targets, masked)
        metrics = {"mlm_loss": loss, "mlm_accuracy": _hits(logits, targets) / masked}
        if self._sentence is not None:
            labels, pairs = self._tensor(batch.labels), totals["pairs"]
            pair_loss, answers = _SENTENCE_LOSSES[self._sentence](self.model, last, labels, pairs, mask)
            metrics |= {
                f"{self._sentence}_loss": pair_loss,
                f"{self._sentence}_accuracy": _hits(answers, labels) / pairs,
            }
            loss = loss + pair_loss
        if self._boundary:
            assert batch.boundaries is not None
            guesses = span_boundary_logits(self.model, last, self._tensor(batch.boundaries))
            metrics["sbo_loss"] = masked_word_loss(guesses, targets, masked)
            loss = loss + metrics["sbo_loss"]
        return ObjectiveOutput(loss, metrics)

    def _needed(self, ids: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor | None:
        """Return the positions whose states the heads need; None for all, since span boundaries may be anywhere."""
        if self._boundary:
            return None
        if self._sentence is None:
            return positions
        summary = self.model.summary_positions(ids, mask)
        return None if summary is None else torch.cat([summary, positions])

    def _tensor(self, array: Ids) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def _mask(self, batch: PretrainingBatch) -> Tensor | None:
        """Return the padding mask, (B, T), True at real tokens; None, which is faster, if there is no padding."""
        length = batch.ids.shape[1]
        if int(batch.lengths.min()) == length:
            return None
        return (torch.arange(length) < torch.from_numpy(batch.lengths)[:, None]).to(self.device)


def _hits(logits: Tensor, targets: Tensor) -> Tensor:
    return (logits.detach().argmax(-1) == targets).float().sum()
