"""The pre-training loss of left-to-right models: predict the next token at every position (Radford et al., 2018).

Dimensions: B sequences, T tokens, M positions with a next token, H hidden size, V vocabulary.
"""

from collections.abc import Mapping

from cloze.corpus.batches import PretrainingBatch
from cloze.model import HeadName
from cloze.model.losses import masked_word_logits, masked_word_loss
from cloze.train.loop import ObjectiveOutput
from cloze.train.pretraining.objectives.masked import BaseObjective, hits
from cloze.train.settings import PretrainSettings


class NextTokenObjective(BaseObjective):
    """The mean cross-entropy of the next token over all positions."""

    main_loss = "lm_loss"

    @classmethod
    def heads(cls, settings: PretrainSettings) -> tuple[HeadName, ...]:  # noqa: ARG003
        """Return the language-model head."""
        return ("lm",)

    def forward(self, batch: PretrainingBatch, totals: Mapping[str, int]) -> ObjectiveOutput:
        """Return the loss and metrics of a part of a batch."""
        ids, segments, positions, targets = (
            self.tensor(array) for array in (batch.ids, batch.segments, batch.positions, batch.targets)
        )
        total = max(1, totals["masked_tokens"])
        last = self.model(ids, segments, self.mask(batch), positions).last
        logits = masked_word_logits(self.model, last, positions, "lm").float()  # (M, V)
        loss = masked_word_loss(logits, targets, total)
        return ObjectiveOutput(loss, {"lm_loss": loss, "lm_accuracy": hits(logits, targets) / total})
