"""``cloze finetune similarity``: vectors that tell texts apart, learned from texts alone (SimCSE, Gao et al. 2021).

A text is read twice, with different dropout, and is to find itself among the other texts of its batch. Of rows with two
texts that belong together, the one is to find the other. The loop and the run are those of fine-tuning.

Dimensions: B texts of a batch, H hidden size.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cloze.checkpoint import POOLINGS, EmbeddingSettings, ModelFolder, Pooling, find_source, load_folder
from cloze.corpus.documents import read_documents
from cloze.errors import ConfigError, DataError, did_you_mean
from cloze.model.surgery import with_heads
from cloze.predict import Model
from cloze.predict.embeddings.pooling import POOL
from cloze.predict.embeddings.whitening import geometry
from cloze.progress import Progress, Silent
from cloze.tasks.examples import DEV_SHARE, Item, fingerprint
from cloze.tasks.rows import RowSettings, Source, read_rows
from cloze.tasks.similarity.kind import SIMILARITY, ScoredPairs, agreement, read_scored_pairs
from cloze.tasks.tables import is_table
from cloze.train.finetuning.checks import check_label_free_settings, check_length
from cloze.train.finetuning.defaults import TrainingDefaults, advise, fill_in
from cloze.train.finetuning.objective import TaskBatch, TaskBatches, report_truncated, report_unknown
from cloze.train.finetuning.settings import FinetuneSettings, ResolvedSettings, SimilaritySettings
from cloze.train.finetuning.trainable import freeze_lowest
from cloze.train.loop import ObjectiveOutput
from cloze.train.recipe import TrainingParts, run_training
from cloze.train.run import Run

# Texts that are looked at for how they spread, where nobody says how alike they are.
_LOOKED_AT = 1000
# The same for every model: the defaults by size were measured on labelled rows only.
_DEFAULTS = TrainingDefaults(learning_rate=5e-5, epochs=3, batch_size=32)


class ContrastiveObjective(nn.Module):
    """Cross-entropy of each text's cosines with all partners of the batch, its own being the right one."""

    def __init__(self, model: nn.Module, pooling: Pooling, temperature: float) -> None:
        super().__init__()
        self.model, self._pooling, self._temperature = model, pooling, temperature

    def forward(self, batch: TaskBatch, totals: Mapping[str, int]) -> ObjectiveOutput:
        """This part's share of the loss of a batch; texts are compared within a part."""
        inputs = batch.inputs
        last = self.model(inputs.ids, inputs.segments, inputs.mask).last
        vectors = functional.normalize(POOL[self._pooling](last, inputs.real).float(), dim=-1)  # (2 B, H)
        loss, right = contrast(vectors[::2], vectors[1::2], self._temperature)
        share = 1 / max(1, totals["targets"])
        return ObjectiveOutput(loss * share, {"accuracy": right * share})


def contrast(firsts: Tensor, seconds: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The summed loss of unit vectors, (B, H) each, and how many find their partner."""
    # Not in bfloat16: cosines differ in the digits that it rounds off.
    with torch.autocast(firsts.device.type, enabled=False):
        cosines = firsts @ seconds.T / temperature  # (B, B)
    own = torch.arange(len(firsts), device=firsts.device)
    return functional.cross_entropy(cosines, own, reduction="sum"), cosines.argmax(-1).eq(own).sum()


@dataclass(frozen=True)
class SimilarityData:
    """Texts to train on, with their partners if they have any, and what to score on."""

    texts: list[str]
    partners: list[str] | None
    dev: ScoredPairs | list[str]

    @property
    def metrics(self) -> tuple[str, ...]:
        """The first is the one that counts."""
        return ("spearman",) if isinstance(self.dev, ScoredPairs) else ("anisotropy", "uniformity")

    def recorded(self) -> dict[str, Any]:
        """What tells these texts from others, as a run writes it down."""
        # Texts to look at are some of those to train on.
        scored = (self.dev,) if isinstance(self.dev, ScoredPairs) else ()
        return {"rows": len(self.texts), "content": fingerprint(self, *scored)}


def finetune_similarity(
    source: Source,
    model: str | Path,
    out: str | Path,
    *,
    settings: FinetuneSettings | None = None,
    similarity: SimilaritySettings | None = None,
    device: str | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Train on a text file, a text a line, or on a table; return the run's folder. The same call goes on."""
    given, progress = settings or FinetuneSettings(), progress or Silent()
    similarity = similarity or SimilaritySettings()
    check_label_free_settings(given, SIMILARITY.name)
    settings = fill_in(given, _DEFAULTS)
    data = read_similarity(source)
    if settings.patience and not isinstance(data.dev, ScoredPairs):
        raise ConfigError(f"patience is {settings.patience}, but there is no --dev file of scored pairs to wait on")
    base = load_folder(find_source(model))
    tuned = _start(base, data, settings, similarity)
    wrapped = Model(tuned, device=device)
    facts = {"command": "finetune", "model": str(Path(model)), **source.recorded(), **data.recorded()}
    parts = TrainingParts(
        recorded=facts | asdict(settings) | asdict(similarity),
        settings=settings,
        model=wrapped,
        batches=lambda: _batches(data, tuned, settings, wrapped, progress),
        objective=lambda: ContrastiveObjective(wrapped.bert, tuned.embedding.pooling, similarity.temperature),
        metric=data.metrics[0],
        score=lambda: _score(wrapped, data),
        finish=lambda run, used: _finish(run, wrapped, tuned, data, used, progress),
    )
    return run_training(parts, out, fresh=fresh, progress=progress)


def read_similarity(source: Source) -> SimilarityData:
    """Texts, each of them once: the same text twice in a batch would be its own wrong answer."""
    if is_table(source.data):
        rows = read_rows(source.data, text=source.text, pair=source.pair, on_bad_row=source.on_bad_row or "stop")
        both = [(row.text, row.pair) for row in rows]
    else:
        both = [(line, None) for document in read_documents([source.data]) for line in document]
    partners = dict(reversed(both))  # of a text that comes twice, its first partner
    texts = list(dict.fromkeys(text for text, _ in both))
    if len(texts) < 2:
        raise DataError(f"{source.data}: {len(texts)} different texts; some hundreds at the least were expected")
    dev: ScoredPairs | list[str]
    if source.dev is not None:
        columns = RowSettings(source.text, source.pair, source.label, on_bad_row=source.on_bad_row)
        dev = read_scored_pairs(source.dev, columns)
    else:
        every = round(1 / DEV_SHARE)
        dev = texts[every - 1 :: every][:_LOOKED_AT] if len(texts) >= 2 * every else texts
    paired = [partner for text in texts if (partner := partners[text]) is not None]
    return SimilarityData(texts, paired or None, dev)


def _start(
    base: ModelFolder, data: SimilarityData, settings: FinetuneSettings, similarity: SimilaritySettings
) -> ModelFolder:
    """The encoder of the base, without heads: what they learned belongs to other states."""
    check_length(settings.max_length, base)
    pooling: Any = similarity.vectors or base.embedding.pooling
    if pooling not in POOLINGS:
        raise ConfigError(f"unknown pooling {pooling!r}{did_you_mean(pooling, POOLINGS)}")
    bert = with_heads(base.model, (), keep=False, seed=settings.seed, dropout=settings.dropout)
    if data.partners is None and not bert.config.dropout > 0:
        raise ConfigError("dropout is 0, but without it a text read twice is the same; use 0.1, or rows with pairs")
    freeze_lowest(bert, settings.freeze_layers)
    # The folder keeps its own maximum length; that of the settings is for training.
    return ModelFolder(bert, base.tokenizer, None, EmbeddingSettings(pooling, normalize=True))


def _batches(
    data: SimilarityData, tuned: ModelFolder, settings: ResolvedSettings, wrapped: Model, progress: Progress
) -> TaskBatches:
    """A text and its partner, or itself again, an item; of like length in a batch, or length would tell partners."""
    longest = tuned.tokenizer.max_length
    tokenizer = tuned.tokenizer.with_max_length(min(settings.max_length, longest))
    if settings.max_length > longest:
        progress.say(f"the model reads at most {longest} tokens")
    report_unknown(tokenizer, [*data.texts, *(data.partners or ())], progress)
    firsts = tokenizer.encode_batch(data.texts)
    seconds = firsts if data.partners is None else tokenizer.encode_batch(data.partners)
    items = [Item(both, 0) for both in zip(firsts, seconds, strict=True)]
    report_truncated(items, tokenizer.max_length, progress)
    if tokenizer.max_length < longest:
        progress.say(f"trained with the first {tokenizer.max_length} tokens; the model still reads up to {longest}")
    return TaskBatches(
        items, settings.batch_size, settings.seed, tokenizer.pad_id, wrapped.device, similar_lengths=True
    )


def _score(model: Model, data: SimilarityData) -> dict[str, float]:
    if isinstance(data.dev, ScoredPairs):
        vectors = model.embed([*data.dev.firsts, *data.dev.seconds])
        firsts, seconds = vectors[: len(data.dev.firsts)], vectors[len(data.dev.firsts) :]
        return {"spearman": agreement(firsts, seconds, data.dev.scores)}
    spread = geometry(model.embed(data.dev))
    return {"anisotropy": spread.anisotropy, "uniformity": spread.uniformity}


def _finish(
    run: Run,
    wrapped: Model,
    tuned: ModelFolder,
    data: SimilarityData,
    settings: ResolvedSettings,
    progress: Progress,
) -> None:
    """Write scores and advice, and end the run."""
    scored = _score(wrapped, data)
    run.write_results({**scored, "rows": len(data.texts)})
    # Without scored pairs, no dev score tells whether more training would help.
    metric = data.metrics[0] if isinstance(data.dev, ScoredPairs) else ""
    run.write_advice(advise(run.metrics(), None, settings, _DEFAULTS, metric), progress)
    scores = "\n".join(f"- {name}: {value:.4f}" for name, value in scored.items())
    card = (
        "# BERT, trained for similarity\n\n"
        f"- gives: one vector a text ({tuned.embedding.pooling} of the tokens, of length 1)\n"
        f"- training: {len(data.texts):,} texts, {settings.summary}\n\n{scores}\n"
    )
    run.finish(replace(tuned, card=card))
