"""``cloze finetune similarity``: train text vectors on texts, on matching pairs, or on scored pairs.

Texts alone (SimCSE, Gao et al. 2021): each text is encoded twice with different dropout, and must identify its second
encoding among the other texts of the batch. Matching pairs: each first text must identify its second one. Pairs with
scores or 0/1 labels: the order of the cosines must match that of the scores (CoSENT, Su 2022), or the cosine must equal
the score (cosine regression, Reimers and Gurevych 2019). Training uses the loop and run of fine-tuning.

Dimensions: B texts or pairs of a batch, H hidden size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cloze.checkpoint import EmbeddingSettings, ModelFolder, base_files, find_source, load_folder
from cloze.corpus.documents import read_documents
from cloze.errors import ConfigError, DataError, RequestError, format_option
from cloze.model.surgery import with_heads
from cloze.predict import Model, write_report
from cloze.predict.embeddings.pooling import Pool, find_pool
from cloze.predict.embeddings.vector_quality import geometry
from cloze.predict.evaluation import embed_both, evaluate_vectors
from cloze.progress import Progress, Silent
from cloze.tasks.examples import DEV_SHARE, Item, fingerprint, split_dev
from cloze.tasks.reports import card_scores
from cloze.tasks.rows import RowSettings, Source, read_rows
from cloze.tasks.similarity.kind import (
    SIMILARITY,
    QuestionAnswers,
    ScoredPairs,
    has_labels,
    read_rated,
    read_scored_pairs,
)
from cloze.tasks.tables import is_table
from cloze.text import Tokenizer
from cloze.train.driver import TrainingParts, run_training
from cloze.train.finetuning.contrastive import contrast
from cloze.train.finetuning.defaults import (
    ChosenLength,
    TrainingDefaults,
    advise,
    choose_length,
    fill_in,
    keep_recorded_length,
    report_length,
)
from cloze.train.finetuning.objective import TaskBatch, TaskBatches, report_truncated, report_unknown
from cloze.train.finetuning.settings import (
    FinetuneSettings,
    ResolvedSettings,
    SimilarityObjective,
    SimilaritySettings,
)
from cloze.train.finetuning.trainable import check_label_free_settings, check_length, freeze_lowest
from cloze.train.loop import ObjectiveOutput
from cloze.train.run import Run

# Number of training texts whose geometry is reported if there are no dev pairs.
_LOOKED_AT = 1000
# Used for every model, because the defaults by model size were measured only on labelled rows.
_DEFAULTS = TrainingDefaults(learning_rate=5e-5, epochs=3, batch_size=32)


class PairObjective(nn.Module):
    """The loss of text pairs: contrastive without scores, CoSENT or cosine regression with scores."""

    def __init__(self, model: nn.Module, pool: Pool, objective: SimilarityObjective, temperature: float) -> None:
        super().__init__()
        self.model, self._pool, self._objective, self._temperature = model, pool, objective, temperature

    def forward(self, batch: TaskBatch, totals: Mapping[str, int]) -> ObjectiveOutput:
        """Return this part's share of the loss of a batch; texts are compared only within a part."""
        inputs = batch.inputs
        last = self.model(inputs.ids, inputs.segments, inputs.mask).last
        real = replace(inputs, mask=inputs.real)
        vectors = functional.normalize(self._pool(last, real).float(), dim=-1)  # (2 B, H)
        firsts, seconds = vectors[::2], vectors[1::2]
        share = 1 / max(1, totals["targets"])
        if self._objective == "contrastive":
            loss, right = contrast(firsts, seconds, self._temperature)
            return ObjectiveOutput(loss * share, {"accuracy": right * share})
        cosines = (firsts * seconds).sum(-1)  # (B,)
        if self._objective == "cosine":
            return ObjectiveOutput(functional.mse_loss(cosines, batch.targets, reduction="sum") * share)
        # CoSENT is one logarithm over all pairs of pairs, not a sum over rows, so the part is weighted by its size.
        return ObjectiveOutput(cosent(cosines, batch.targets, self._temperature) * len(cosines) * share)


def cosent(cosines: Tensor, scores: Tensor, temperature: float) -> Tensor:
    """Return the CoSENT loss: log(1 + sum of exp((cos_j - cos_i) / temperature) over all i with a higher score than j).

    Args:
        cosines: The cosine of each pair, (B,).
        scores: The score of each pair, (B,); only the order matters.
        temperature: Divisor of the cosines.
    """
    above = scores[:, None] > scores[None, :]  # (B, B): row i has a higher score than column j
    excess = (cosines[None, :] - cosines[:, None]) / temperature
    return torch.logsumexp(torch.cat([excess.new_zeros(1), excess[above]]), 0)


@dataclass(frozen=True)
class SimilarityData:
    """Texts to train on, with their partners and scores if they have any, and the dev data."""

    texts: list[str]
    partners: list[str] | None
    dev: ScoredPairs | QuestionAnswers | list[str]
    scores: list[float] | None = None
    notes: tuple[str, ...] = ()

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics of the dev data; the first is the main one."""
        return ("anisotropy", "uniformity") if isinstance(self.dev, list) else self.dev.metrics

    @property
    def cosine_targets(self) -> list[float]:
        """The scores as cosines: scores outside of [-1, 1] are scaled to [0, 1]."""
        assert self.scores is not None
        least, most = min(self.scores), max(self.scores)
        if least >= -1 and most <= 1:
            return self.scores
        return [(score - least) / (most - least or 1.0) for score in self.scores]

    def recorded(self) -> dict[str, Any]:
        """Return the facts that must be the same when the run is resumed."""
        # A list of dev texts is a part of the training texts.
        scored = () if isinstance(self.dev, list) else (self.dev,)
        return {"rows": len(self.texts), "content": fingerprint(replace(self, notes=()), *scored)}


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
    """Train on a text file with one text per line, or on a table; return the run's folder. The same call resumes it."""
    given, progress = settings or FinetuneSettings(), progress or Silent()
    similarity = similarity or SimilaritySettings()
    check_label_free_settings(given, SIMILARITY.name)
    given = keep_recorded_length(given, out, fresh=fresh)
    data = read_similarity(source, similarity.objective)
    for note in data.notes:
        progress.say(note)
    objective = similarity.objective or ("contrastive" if data.scores is None else "cosent")
    similarity = replace(similarity, objective=objective)
    _check_settings(given, objective, data)
    base = load_folder(find_source(model))
    check_length(given.max_length, base)
    length = _choose_length(data, base.tokenizer, given)
    report_length(length, progress)
    settings = fill_in(given, _DEFAULTS, length)
    tuned = _start(base, data, settings, similarity)
    wrapped = Model(tuned, device=device)
    pool = find_pool(tuned.embedding.pooling, tuned.model, tuned.tokenizer)
    facts = {
        "command": "finetune",
        "model": str(Path(model)),
        "base": base_files(model),
        **source.recorded(),
        **data.recorded(),
    }
    parts = TrainingParts(
        recorded=facts | asdict(settings) | asdict(similarity),
        settings=settings,
        model=wrapped,
        batches=lambda: _batches(data, tuned, settings, objective, wrapped, progress),
        objective=lambda: PairObjective(wrapped.bert, pool, objective, similarity.temperature),
        metric=data.metrics[0],
        score=lambda: _score(wrapped, data),
        finish=lambda run, used: _finish(run, wrapped, tuned, data, used, progress),
    )
    return run_training(parts, out, fresh=fresh, progress=progress)


def _check_settings(given: FinetuneSettings, objective: SimilarityObjective, data: SimilarityData) -> None:
    """Refuse settings that do not fit the objective or the dev data."""
    if given.accumulate > 1 and objective != "cosine":
        raise ConfigError(
            f"accumulate is {given.accumulate}, but {objective} compares all texts of a batch with each other; "
            f"use {format_option('checkpointing', True)} or a smaller {format_option('batch_size')} to save memory"
        )
    if given.patience and isinstance(data.dev, list):
        raise ConfigError(
            f"patience is {given.patience}, but early stopping needs a {format_option('dev')} file of scored or "
            "matching pairs"
        )


def read_similarity(source: Source, objective: SimilarityObjective | None = None) -> SimilarityData:
    """Read the training and dev data; if ``objective`` is None, the rows determine it."""
    rated = _is_table(source) and source.pair is not None and has_labels(source, source.data)
    if objective in ("cosent", "cosine") and not rated:
        raise ConfigError(
            f"objective is {objective!r}, which needs pairs with scores or 0/1 labels; name their columns with "
            f"{format_option('pair')} and {format_option('label')}, or leave it out"
        )
    if rated and objective != "contrastive":
        return _read_rated_pairs(source, objective or "cosent")
    return _read_positives(source, rated=rated)


def _is_table(source: Source) -> bool:
    """Return whether the data has columns; those of a text file must have been named."""
    return is_table(source.data) or source.columns is not None


def _read_rated_pairs(source: Source, objective: SimilarityObjective) -> SimilarityData:
    """Read pairs with scores or 0/1 labels; without a dev file, a tenth of them is held out."""
    columns = RowSettings(source.text, source.pair, source.label, columns=source.columns, on_bad_row=source.on_bad_row)
    pairs = read_scored_pairs(source.data, columns)
    if len(set(pairs.scores)) < 2:
        raise DataError(
            f"{source.data}: every label in {source.label!r} is {pairs.scores[0]:g}, so there is no order to learn; "
            f"expected scores or both 0 and 1; {format_option('objective', 'contrastive')} treats every pair as "
            "matching"
        )
    notes = [f"objective {objective}: {source.label!r} has {pairs.described} ({len(pairs):,} pairs)"]
    notes += [f"{pairs.skipped} bad training rows were skipped"] if pairs.skipped else []
    dev: ScoredPairs | QuestionAnswers
    if source.dev is not None:
        dev = read_rated(source, source.dev)
    else:
        pairs, dev = split_dev(pairs)
        notes.append(f"no {format_option('dev')} file: {len(dev)} of the training rows, a tenth, are held out")
    return SimilarityData(pairs.firsts, pairs.seconds, dev, pairs.scores, tuple(notes))


def _read_positives(source: Source, *, rated: bool) -> SimilarityData:
    """Read texts without duplicates: in a batch, a second copy of a text would count as a non-matching text."""
    notes: tuple[str, ...] = ()
    if rated:
        both, notes = _read_labelled_positives(source)
    elif _is_table(source):
        rows = read_rows(
            source.data,
            text=source.text,
            pair=source.pair,
            on_bad_row=source.on_bad_row or "stop",
            header=source.header(source.data),
        )
        both, unused = [], set[str]()
        for row in rows:
            both.append((row.text, row.pair))
            unused |= row.fields.keys()
        unused -= {source.text, source.pair or source.text}
        if source.pair is not None and unused:
            notes = (
                f"every pair is treated as matching; columns not used: {', '.join(sorted(unused))}; "
                f"{format_option('label')} names a column with scores or 0/1 labels",
            )
    else:
        both = [(line, None) for document in read_documents([source.data]) for line in document]
    partners = dict(reversed(both))  # a text that occurs more than once keeps its first partner
    texts = list(dict.fromkeys(text for text, _ in both))
    if len(texts) < 2:
        raise DataError(f"{source.data}: {len(texts)} different texts; expected at least a few hundred")
    dev: ScoredPairs | QuestionAnswers | list[str]
    if source.dev is not None:
        dev = read_rated(source, source.dev)
    else:
        every = round(1 / DEV_SHARE)
        dev = texts[every - 1 :: every][:_LOOKED_AT] if len(texts) >= 2 * every else texts
    paired = [partner for text in texts if (partner := partners[text]) is not None]
    return SimilarityData(texts, paired or None, dev, notes=notes)


def _read_labelled_positives(source: Source) -> tuple[list[tuple[str, str | None]], tuple[str, ...]]:
    """Read pairs with labels for ``--objective contrastive``; those labelled 0 are dropped, as they do not match."""
    rows = list(
        read_rows(
            source.data,
            text=source.text,
            pair=source.pair,
            label=source.label,
            on_bad_row=source.on_bad_row or "stop",
            header=source.header(source.data),
        )
    )
    if {row.label for row in rows} <= {"0", "1", "0.0", "1.0"}:
        kept = [(row.text, row.pair) for row in rows if row.label in ("1", "1.0")]
        return kept, (f"{len(rows) - len(kept)} of {len(rows)} pairs are labelled 0 and left out by contrastive",)
    note = f"objective contrastive: every pair is treated as matching; {source.label!r} is not used"
    return [(row.text, row.pair) for row in rows], (note,)


def _choose_length(data: SimilarityData, tokenizer: Tokenizer, settings: FinetuneSettings) -> ChosenLength | None:
    """Choose the maximum length for the texts and their partners; None if the settings have one."""
    if settings.max_length is not None:
        return None

    def encode(indices: Sequence[int], shortened: Tokenizer) -> list[Item]:
        columns = [data.texts] if data.partners is None else [data.texts, data.partners]
        encoded = [shortened.encode_batch([texts[index] for index in indices]) for texts in columns]
        return [Item(encodings, 0) for encodings in zip(*encoded, strict=True)]

    return choose_length(len(data.texts), encode, tokenizer)


def _start(
    base: ModelFolder, data: SimilarityData, settings: ResolvedSettings, similarity: SimilaritySettings
) -> ModelFolder:
    """Return the base model without heads, which would not fit the new states."""
    pooling: Any = similarity.vectors or base.embedding.pooling
    try:
        find_pool(pooling, base.model, base.tokenizer)
    except RequestError as error:
        raise ConfigError(str(error)) from error
    bert = with_heads(base.model, (), keep=False, seed=settings.seed, dropout=settings.dropout)
    if data.partners is None and not bert.config.dropout > 0:
        raise ConfigError("dropout is 0, so both encodings of a text would be equal; use 0.1, or rows with pairs")
    freeze_lowest(bert, settings.freeze_layers)
    # The saved model keeps its own maximum length; the maximum length in the settings applies only to training.
    return ModelFolder(bert, base.tokenizer, None, EmbeddingSettings(pooling, normalize=True))


def _batches(
    data: SimilarityData,
    tuned: ModelFolder,
    settings: ResolvedSettings,
    objective: SimilarityObjective,
    wrapped: Model,
    progress: Progress,
) -> TaskBatches:
    """Return batches of texts with their partners, or with themselves; for contrastive, of similar length."""
    longest = tuned.tokenizer.max_length
    tokenizer = tuned.tokenizer.with_max_length(min(settings.max_length, longest))
    if settings.max_length > longest:
        progress.say(f"the model accepts at most {longest} tokens")
    report_unknown(tokenizer, [*data.texts, *(data.partners or ())], progress)
    firsts = tokenizer.encode_batch(data.texts)
    seconds = firsts if data.partners is None else tokenizer.encode_batch(data.partners)
    targets: list[float] | list[int] = [0] * len(firsts)
    if objective != "contrastive" and data.scores is not None:
        targets = data.cosine_targets if objective == "cosine" else data.scores
    items = [Item((one, other), target) for one, other, target in zip(firsts, seconds, targets, strict=True)]
    report_truncated(items, tokenizer.max_length, progress)
    if tokenizer.max_length < longest:
        progress.say(f"trained on the first {tokenizer.max_length} tokens; the model still accepts up to {longest}")
    # With different lengths in a batch, the length alone would identify the partner.
    alike = objective == "contrastive"
    return TaskBatches(
        items, settings.batch_size, settings.seed, tokenizer.pad_id, wrapped.device, similar_lengths=alike
    )


def _score(model: Model, data: SimilarityData) -> dict[str, float]:
    if not isinstance(data.dev, list):
        return data.dev.score(*embed_both(model, data.dev))
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
    """Write scores, advice and model card, and finish the run."""
    if isinstance(data.dev, list):
        scored = _score(wrapped, data)
        run.write_results({**scored, "rows": len(data.texts)})
        scores = "\n".join(f"- {name}: {value:.4f}" for name, value in scored.items())
    else:
        evaluation = evaluate_vectors(wrapped, data.dev, baseline=settings.baseline, progress=progress)
        write_report(evaluation, run.folder)
        scores = card_scores(evaluation)
    # Without scored pairs, no dev score shows whether more training would help.
    metric = data.metrics[0] if isinstance(data.dev, ScoredPairs) else ""
    run.write_advice(advise(run.metrics(), None, settings, _DEFAULTS, metric), progress)
    card = (
        "# BERT, trained for similarity\n\n"
        f"- output: one vector per text ({tuned.embedding.pooling} of the tokens, of length 1)\n"
        f"- training: {len(data.texts):,} texts, {settings.summary}\n\n{scores}\n"
    )
    run.finish(replace(tuned, card=card))
