"""The pre-training losses of BERT's relatives: next token (GPT), permuted words (XLNet), replaced tokens (ELECTRA).

Dimensions: B sequences, T tokens, M predicted tokens of all sequences, N real tokens of all sequences, H hidden size,
V vocabulary. Positions are flat: indices into all B x T tokens.
"""

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from cloze.checkpoint import find_source, load_folder
from cloze.corpus.batches import PretrainingBatch
from cloze.corpus.sampling import Ids
from cloze.errors import ConfigError
from cloze.model import Backbone, Bert, HeadName, XLNet
from cloze.model.config import generator_config
from cloze.model.encoder import Embeddings
from cloze.model.losses import masked_word_logits, masked_word_loss
from cloze.model.surgery import with_heads
from cloze.text import Tokenizer
from cloze.train.distributed import full_state_dict
from cloze.train.loop import ObjectiveOutput
from cloze.train.pretraining.objectives.masked import BaseObjective, hits
from cloze.train.settings import PretrainSettings


class NextTokenObjective(BaseObjective):
    """The mean cross-entropy of the next token over all positions (Radford et al., 2018)."""

    title = "prediction of the next token on full sentences"
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


def original_ids(batch: PretrainingBatch) -> Ids:
    """Return the token ids of a batch before masking, (B, T)."""
    ids = batch.ids.copy()
    ids.reshape(-1)[batch.positions] = batch.targets
    return ids


class PermutationObjective(BaseObjective):
    """The mean cross-entropy of the selected words, each given the context and the words before it in a random order.

    The selected tokens of a sequence are the end of a permutation of it (Yang et al., 2019, sections 2.2 and 2.3).
    """

    model: XLNet
    title = "permutation language modelling on full sentences"
    main_loss = "plm_loss"

    @classmethod
    def heads(cls, settings: PretrainSettings) -> tuple[HeadName, ...]:  # noqa: ARG003
        """Return the head for words."""
        return ("mlm",)

    def forward(self, batch: PretrainingBatch, totals: Mapping[str, int]) -> ObjectiveOutput:
        """Return the loss and metrics of a part of a batch."""
        ids, segments, positions, targets, ranks = (
            self.tensor(array)
            for array in (original_ids(batch), batch.segments, batch.positions, batch.targets, random_ranks(batch))
        )
        total = max(1, totals["masked_tokens"])
        states = self.model.permuted_states(ids, segments, self.mask(batch), positions, ranks)
        logits = masked_word_logits(self.model, states, positions).float()  # (M, V)
        loss = masked_word_loss(logits, targets, total)
        return ObjectiveOutput(loss, {"plm_loss": loss, "plm_accuracy": hits(logits, targets) / total})


def random_ranks(batch: PretrainingBatch) -> Ids:
    """Return the place of each selected token in the order of its sequence, from 1, and 0 for context: (B, T).

    The order of a row is a function of the row, so it does not depend on the division of a batch among processes.
    """
    ranks = np.zeros(batch.ids.shape, np.int64)
    width = batch.ids.shape[1]
    for row, ids in enumerate(batch.ids):
        columns = batch.positions[batch.positions // width == row] % width
        seed = zlib.crc32(ids[: batch.lengths[row]].tobytes())
        ranks[row, columns] = 1 + np.random.default_rng(seed).permutation(len(columns))
    return ranks


class ReplacedTokenObjective(BaseObjective):
    """Replaced-token detection (Clark et al., 2020): a generator fills masks, and the model detects its words.

    A small masked language model, the generator, predicts the masked words, and a word is drawn from each prediction.
    The discriminator, which is the result of the training, reads the text with these words and predicts for every token
    whether it is the original. So it learns from all tokens instead of a seventh of them, and never sees ``[MASK]``.
    The two are trained together, the generator only by its own loss: nothing is adversarial.

    The generator has the depth of the discriminator and a fraction of its width, and shares its embeddings (with a
    projection). A trained masked model may be the generator instead (``settings.generator``); it has its own
    embeddings and is trained further.
    """

    title = "replaced-token detection on full sentences"
    main_loss = "mlm_loss"  # of the generator

    def __init__(self, model: Backbone, heads: tuple[HeadName, ...], device: torch.device, generator: Backbone) -> None:
        super().__init__(model, heads, device)
        self.generator = generator
        if model.pooler is not None:
            model.pooler.requires_grad_(False)  # as in masked language modelling, it gets no gradient

    @classmethod
    def heads(cls, settings: PretrainSettings) -> tuple[HeadName, ...]:  # noqa: ARG003
        """Return the head of the discriminator."""
        return ("rtd",)

    @classmethod
    def create(cls, model: Backbone, settings: PretrainSettings, device: torch.device) -> Self:
        """Return the objective with a new generator, or with the one in the settings."""
        if settings.generator is not None:
            return cls(model, cls.heads(settings), device, load_generator(settings.generator).to(device))
        config, shared = generator_config(model.config, settings.generator_size), model.encoder.embeddings
        generator = Bert.fresh(config, ["mlm"], seed=settings.seed)
        encoder: Any = generator.encoder
        encoder.embeddings = SharedEmbeddings(shared, encoder.embeddings.to_hidden)
        head: Any = generator.heads["mlm"]
        head.tie(shared.token)
        return cls(model, cls.heads(settings), device, generator.to(device))

    def other_models(self, trained: Backbone) -> dict[str, Backbone]:
        """Return the generator with its embeddings; it is saved beside the model."""
        plain = type(self.generator)(self.generator.config, ["mlm"], pooler=self.generator.pooler is not None)
        names = set(plain.state_dict())
        state = {name: tensor for name, tensor in trained.state_dict().items() if name in names}
        own = full_state_dict(self.generator)  # without the embeddings, unless they are not shared
        plain.load_state_dict(state | {name: tensor.cpu() for name, tensor in own.items()})
        return {"generator": plain.eval()}

    def forward(self, batch: PretrainingBatch, totals: Mapping[str, int]) -> ObjectiveOutput:
        """Return the loss and metrics of a part of a batch."""
        masked, originals, segments, positions, targets = (
            self.tensor(array)
            for array in (batch.ids, original_ids(batch), batch.segments, batch.positions, batch.targets)
        )
        mask, predicted, total = self.mask(batch), max(1, totals["masked_tokens"]), max(1, totals["tokens"])
        states = self.generator(masked, segments, mask, positions).last
        logits = masked_word_logits(self.generator, states, positions).float()  # (M, V)
        word_loss = masked_word_loss(logits, targets, predicted)
        words = draw_words(logits.detach(), seed=zlib.crc32(batch.ids.tobytes()))  # (M,)
        shown = originals.flatten().index_copy(0, positions, words).view_as(originals)
        replaced = shown != originals  # a drawn word may be the original
        scores = self.model.heads["rtd"](self.model(shown, segments, mask).last).float()  # (B, T)
        if mask is not None:
            scores, replaced = scores[mask], replaced[mask]  # (N,)
        loss = functional.binary_cross_entropy_with_logits(scores, replaced.float(), reduction="sum") / total
        flagged = scores.detach() > 0
        counts = {
            "rtd_accuracy": flagged == replaced,
            "rtd_found": flagged & replaced,
            "rtd_flagged": flagged,
            "rtd_replaced": replaced,
        }
        shares = {name: right.sum() / total for name, right in counts.items()}
        metrics = {"mlm_loss": word_loss, "mlm_accuracy": hits(logits, targets) / predicted, "rtd_loss": loss}
        return ObjectiveOutput(word_loss + RTD_WEIGHT * loss, metrics | shares)

    def summarize(self, metrics: dict[str, float]) -> dict[str, float]:
        """Add the F1 of replaced tokens, and the accuracy of always answering "original"."""
        found, flagged, replaced = (metrics[f"rtd_{name}"] for name in ("found", "flagged", "replaced"))
        scores = {"rtd_f1": 2 * found / max(flagged + replaced, 1e-12), "rtd_constant": 1 - replaced}
        return {name: value for name, value in metrics.items() if name not in ("rtd_found", "rtd_flagged")} | scores


class SharedEmbeddings(nn.Module):
    """The discriminator's embeddings, projected to the width of the generator."""

    def __init__(self, shared: Embeddings, to_hidden: nn.Module) -> None:
        super().__init__()
        self.to_hidden = to_hidden
        self._shared = (shared,)  # not registered a second time: they belong to the discriminator

    @property
    def token(self) -> nn.Embedding:
        """The token embeddings."""
        return self._shared[0].token

    def forward(self, ids: Tensor, segments: Tensor, positions: Tensor | None = None) -> Tensor:
        """Embed a batch: (B, T), (B, T) -> (B, T, H)."""
        narrow = self._shared[0].narrow(ids, segments, positions)  # (B, T, E)
        return self.to_hidden(narrow).to(narrow.dtype)  # type: ignore[no-any-return]


# Weight of the discriminator's loss, which is about 50 times smaller than the generator's (table 6 of the paper).
RTD_WEIGHT = 50.0


def draw_words(logits: Tensor, seed: int) -> Tensor:
    """Draw a word from each distribution: (M, V) -> (M,). Adding Gumbel noise makes the maximum a sample."""
    uniform = torch.rand(logits.shape, generator=torch.Generator().manual_seed(seed)).clamp_(1e-9, 1 - 1e-7)
    return (logits - (-uniform.log()).log().to(logits.device)).argmax(-1)


def load_generator(path: Path, tokenizer: Tokenizer | None = None) -> Backbone:
    """Load a trained masked model as the generator.

    Raises:
        ConfigError: If it has no masked-LM head that reads ``[MASK]``, or another vocabulary than ``tokenizer``.
    """
    contents = load_folder(find_source(path))
    model = contents.model
    if "mlm" not in model.heads or model.words_apart:
        heads = ", ".join(model.head_names) or "none"
        raise ConfigError(
            f"generator is {path}, a model of type {model.model_type} with the heads: {heads}; use a BERT with a "
            "masked-LM head, from 'cloze pretrain'"
        )
    if tokenizer is not None and not contents.tokenizer.is_equivalent(tokenizer):
        raise ConfigError(
            f"generator is {path}, which has another vocabulary than the text; prepare it with --vocab {path}"
        )
    return with_heads(model, ["mlm"], keep=True, seed=0)


class BothDirectionsObjective(NextTokenObjective):
    """The mean of the losses of a forward and a backward language model, which share their output layer."""

    title = "prediction of the next and previous token on full sentences"

    def forward(self, batch: PretrainingBatch, totals: Mapping[str, int]) -> ObjectiveOutput:
        """Return the loss and metrics of a part of a batch."""
        ids, segments, positions, following = (
            self.tensor(array) for array in (batch.ids, batch.segments, batch.positions, batch.targets)
        )
        total = max(1, totals["masked_tokens"])
        states = self.model(ids, segments, self.mask(batch)).last.flatten(0, 1)  # (B T, 2 D)
        width = states.shape[-1] // 2
        # The token after each position is the forward target; that position is the backward target of the token after.
        losses, correct = [], states.new_zeros(())
        for read, part, targets in (
            (positions, slice(None, width), following),
            (positions + 1, slice(width, None), ids.flatten()[positions]),
        ):
            logits = self.model.heads["lm"](states[read, part]).float()  # (M, V)
            losses.append(masked_word_loss(logits, targets, total))
            correct = correct + hits(logits, targets) / total
        forward, backward = losses
        loss = (forward + backward) / 2
        metrics = {
            "lm_loss": loss,
            "forward_lm_loss": forward,
            "backward_lm_loss": backward,
            "lm_accuracy": correct / 2,
        }
        return ObjectiveOutput(loss, metrics)
