"""``cloze finetune rerank``: train a cross-encoder, which reads a query and a passage together and scores them.

A cross-encoder has one output. It is slower than comparing vectors, because nothing can be computed in advance, so it
sorts the best passages that a faster search has found (Nogueira and Cho 2019). The folder is that of a model for
sequence classification with one label, which ``CrossEncoder`` of sentence-transformers loads.

Each step has some queries with one relevant passage and K others. The objectives differ in what they compare:

- pointwise: each passage for itself, relevant or not (binary cross-entropy);
- pairwise: the relevant passage with each other one (RankNet, Burges et al. 2005);
- listwise: the relevant passage with all others at once (softmax cross-entropy, as in ListNet, Cao et al. 2007).

Dimensions: B queries of a batch, K negatives, N = B (1 + K) pairs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from cloze.checkpoint import ModelFolder, TaskLabels, base_files, find_source, load_folder
from cloze.errors import ConfigError
from cloze.model import Backbone, HeadName
from cloze.model.batch import collate
from cloze.model.losses import task_logits
from cloze.model.surgery import with_heads
from cloze.predict import Model, write_report
from cloze.predict.retrieval import bm25_run, evaluate_run, rerank_run
from cloze.progress import Progress, Silent
from cloze.tasks.reports import Evaluation, card_scores
from cloze.tasks.retrieval.kind import RERANK, RetrievalData, TrainingPairs
from cloze.tasks.rows import Source
from cloze.text import Tokenizer
from cloze.train.driver import TrainingParts, run_training
from cloze.train.finetuning.defaults import (
    advise,
    choose_length,
    choose_ranking_defaults,
    fill_in,
    keep_recorded_length,
    report_length,
)
from cloze.train.finetuning.objective import TaskBatch, report_unknown, shuffle_batches
from cloze.train.finetuning.retriever import RankingData, as_ranking, read_ranking
from cloze.train.finetuning.settings import FinetuneSettings, ResolvedSettings, SimilaritySettings
from cloze.train.finetuning.trainable import check_label_free_settings, check_length, make_trainable
from cloze.train.loop import ObjectiveOutput
from cloze.train.run import Run

# Negatives per query and step.
_NEGATIVES = 4
# The dev passages of a query that are sorted: the _CANDIDATES best ones by BM25, of at most _DEV_QUERIES queries.
_CANDIDATES, _DEV_QUERIES = 20, 200


# -- objective ---------------------------------------------------------------------------------------------------------


def ranking_loss(scores: Tensor, real: Tensor, objective: str) -> Tensor:
    """Return the summed loss of the queries of a batch.

    Args:
        scores: Scores of the passages of each query, the relevant one first, (B, 1 + K).
        real: False where a query has fewer passages, (B, 1 + K).
        objective: ``pointwise``, ``pairwise`` or ``listwise``.
    """
    if objective == "listwise":
        masked = scores.masked_fill(~real, float("-inf"))
        return functional.cross_entropy(masked, masked.new_zeros(len(masked), dtype=torch.long), reduction="sum")
    if objective == "pairwise":
        real = real[:, 1:]
        losses = functional.softplus(scores[:, 1:] - scores[:, :1])  # -log sigmoid(positive - negative)
    else:
        targets = torch.zeros_like(scores)
        targets[:, 0] = 1.0
        losses = functional.binary_cross_entropy_with_logits(scores, targets, reduction="none")
    return (losses.masked_fill(~real, 0.0).sum(-1) / real.sum(-1).clamp(min=1)).sum()


class RerankObjective(nn.Module):
    """The loss of queries with their passages, scored by a head with one output."""

    def __init__(self, model: Backbone, objective: str) -> None:
        super().__init__()
        self.model, self._objective = model, objective

    def forward(self, batch: TaskBatch, totals: Mapping[str, int]) -> ObjectiveOutput:
        """Return this part's share of the loss of a batch with ``totals`` queries."""
        inputs = batch.inputs
        needed = self.model.needed_by("sequence", inputs.ids, inputs.mask)
        last = self.model(inputs.ids, inputs.segments, inputs.mask, needed).last
        with torch.autocast(last.device.type, enabled=False):
            logits = task_logits(self.model, "sequence", last.float(), batch.sizes, inputs.real)[:, 0]  # (N,)
            scores = nn.utils.rnn.pad_sequence(list(torch.split(logits, list(batch.sizes))), batch_first=True)
            sizes = torch.tensor(batch.sizes, device=scores.device)
            real = torch.arange(scores.shape[1], device=scores.device) < sizes[:, None]
            loss = ranking_loss(scores, real, self._objective)
        best = scores.masked_fill(~real, float("-inf")).argmax(-1)
        share = 1 / max(1, totals["targets"])
        return ObjectiveOutput(loss * share, {"accuracy": best.eq(0).sum() * share})


class RerankBatches:
    """Shuffled queries with their passages; order and choice of negatives depend only on the seed and the epoch."""

    def __init__(
        self,
        rows: TrainingPairs,
        tokenizer: Tokenizer,
        batch_size: int,
        negatives: int,
        seed: int,
        device: torch.device,
    ) -> None:
        """Create the batches. Rows with too few negatives get passages of other rows, chosen at random."""
        self.rows, self._tokenizer, self._batch_size = rows, tokenizer, batch_size
        self._negatives, self._seed, self._device = negatives, seed, device
        self._passages = list(dict.fromkeys(rows.positives))
        self._lengths = np.array([len(text) for text in rows.positives])  # in characters, which is enough for sorting
        self.steps_per_epoch = -(-len(rows) // batch_size)
        self._epoch, self._batches = -1, list[NDArray[np.int64]]()

    def at(self, step: int, part: int = 0, parts: int = 1, progress: float = 0.0) -> TaskBatch | None:  # noqa: ARG002
        """Return a part of the batch of a step; None if the batch has fewer queries than parts."""
        epoch, index = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            generator = np.random.default_rng([self._seed, epoch])
            self._epoch, self._batches = epoch, shuffle_batches(self._lengths, self._batch_size, generator)
        generator = np.random.default_rng([self._seed, epoch, index])
        # The negatives of the whole batch are drawn, so that they do not depend on the number of parts.
        groups = [[self.rows.positives[row], *self._draw(int(row), generator)] for row in self._batches[index]]
        rows = np.array_split(np.arange(len(groups)), parts)[part]
        if not len(rows):
            return None
        queries = [self.rows.queries[self._batches[index][row]] for row in rows]
        return self._collate(queries, [groups[row] for row in rows])

    def largest_part(self, parts: int) -> tuple[int, int]:
        """Return an estimate of the tokens of the largest part, and of the longest pair."""
        count = -(-min(self._batch_size, len(self.rows)) // parts)
        longest = self._tokenizer.max_length
        sample = self._collate(self.rows.queries[:count], [[text] for text in self.rows.positives[:count]])
        usual = max(1, sample.token_count // max(1, len(sample.sizes)))
        return count * (1 + self._negatives) * min(longest, 2 * usual), min(longest, 2 * usual)

    def _draw(self, row: int, generator: np.random.Generator) -> list[str]:
        """Return the negatives of a row: its own, and then passages that are not known to answer the query."""
        own = [text for text in self.rows.negatives[row] if text not in self.rows.relevant[self.rows.queries[row]]]
        count = min(len(own), self._negatives)
        drawn = [own[place] for place in sorted(generator.choice(len(own), count, replace=False))] if count else []
        avoided = {*self.rows.relevant[self.rows.queries[row]], *own}
        missing = min(self._negatives - count, len(self._passages) - len(avoided.intersection(self._passages)))
        while missing > 0:
            text = self._passages[int(generator.integers(len(self._passages)))]
            if text not in avoided:
                drawn.append(text)
                avoided.add(text)
                missing -= 1
        return drawn

    def _collate(self, queries: Sequence[str], groups: Sequence[Sequence[str]]) -> TaskBatch:
        firsts = [query for query, group in zip(queries, groups, strict=True) for _ in group]
        encodings = self._tokenizer.encode_batch(firsts, [text for group in groups for text in group])
        inputs = collate(encodings, self._tokenizer.pad_id, self._device)
        # The target of each query is the place of its relevant passage.
        return TaskBatch(inputs, torch.zeros(len(groups), dtype=torch.long), tuple(map(len, groups)))


# -- training ----------------------------------------------------------------------------------------------------------


def finetune_rerank(
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
    """Train a cross-encoder on queries and passages; return the run's folder. The same call resumes it."""
    given, progress = settings or FinetuneSettings(), progress or Silent()
    ranking = as_ranking(similarity)
    negatives = _NEGATIVES if ranking.negatives is None else ranking.negatives
    ranking = replace(ranking, objective=ranking.objective or "listwise", negatives=negatives)
    if negatives == 0:
        raise ConfigError("negatives is 0, so there is nothing to compare the relevant passage with; use at least 1")
    check_label_free_settings(given, RERANK.name, RERANK.settings)
    if given.adapter not in (None, "lora"):
        raise ConfigError(f"adapter is {given.adapter!r}, which cannot be merged into the model; use 'lora'")
    given = keep_recorded_length(given, out, fresh=fresh)
    data = read_ranking(source)
    for note in (*data.notes, *_notes(data.train, negatives)):
        progress.say(note)
    base = load_folder(find_source(model))
    check_length(given.max_length, base)
    length = _choose_length(data.train, base.tokenizer) if given.max_length is None else None
    defaults = choose_ranking_defaults(base.model.config.hidden_size, len(data.train), given, pairs=True)
    resolved = fill_in(given, defaults, length)
    report_length(length, progress)
    tuned = _start(base, resolved)
    wrapped = Model(tuned, device=device)
    facts = {"command": "finetune", "model": str(Path(model)), "base": base_files(model), **source.recorded()}
    run = _RerankRun(data, tuned, wrapped, progress)
    parts = TrainingParts(
        recorded=facts | data.recorded() | asdict(resolved) | asdict(ranking),
        settings=resolved,
        model=wrapped,
        batches=lambda: run.batches(resolved, negatives),
        objective=lambda: RerankObjective(wrapped.bert, str(ranking.objective)),
        metric=RERANK.metrics[0],
        score=run.score,
        finish=run.finish,
    )
    return run_training(parts, out, fresh=fresh, progress=progress)


def _notes(rows: TrainingPairs, negatives: int) -> list[str]:
    few = sum(len(texts) < negatives for texts in rows.negatives)
    if not few:
        return []
    return [
        f"{few:,} of {len(rows):,} rows have fewer than {negatives} negatives and get random passages of other rows; "
        "cloze mine finds harder ones"
    ]


def _choose_length(rows: TrainingPairs, tokenizer: Tokenizer) -> Any:
    from cloze.tasks.examples import Item

    def encode(indices: Sequence[int], shortened: Tokenizer) -> list[Item]:
        queries, passages = ([column[index] for index in indices] for column in (rows.queries, rows.positives))
        return [Item((encoding,), 0) for encoding in shortened.encode_batch(queries, passages)]

    return choose_length(len(rows), encode, tokenizer)


def _start(base: ModelFolder, settings: ResolvedSettings) -> ModelFolder:
    """Return the base model with a head of one output; a cross-encoder keeps its head."""
    is_ranker = "sequence" in base.model.heads and base.model.labels == 1 and base.model.pooling == "cls"
    heads: tuple[HeadName] = ("sequence",)
    bert = with_heads(base.model, heads, labels=1, keep=is_ranker, seed=settings.seed, dropout=settings.dropout)
    make_trainable(bert, settings)  # a LoRA adapter is merged when the folder is written
    # Prediction uses the length of training and evaluation.
    tokenizer = base.tokenizer.with_max_length(min(settings.max_length, base.tokenizer.max_length))
    return ModelFolder(bert, tokenizer, TaskLabels(RERANK.name), base.embedding.after_training(reads_mean=False))


@dataclass(frozen=True)
class _RerankRun:
    """The parts of a training run for reranking."""

    data: RankingData
    tuned: ModelFolder
    model: Model
    progress: Progress

    def batches(self, settings: ResolvedSettings, negatives: int) -> RerankBatches:
        """Return the batches."""
        tokenizer = self.tuned.tokenizer
        if settings.max_length > tokenizer.max_length:
            self.progress.say(f"the model accepts at most {tokenizer.max_length} tokens")
        report_unknown(tokenizer, [*self.data.train.queries, *self.data.train.positives], self.progress)
        return RerankBatches(
            self.data.train, tokenizer, settings.batch_size, negatives, settings.seed, self.model.device
        )

    def score(self) -> Mapping[str, float]:
        """Return the metrics of the sorted candidates of the dev queries."""
        return self._evaluate(baseline=False).metrics

    def finish(self, run: Run, used: ResolvedSettings) -> None:
        """Write scores, advice and model card, and finish the run."""
        evaluation = self._evaluate(baseline=used.baseline)
        write_report(evaluation, run.folder)
        defaults = choose_ranking_defaults(self.tuned.model.config.hidden_size, len(self.data.train), used, pairs=True)
        run.write_advice(advise(run.metrics(), None, used, defaults, RERANK.metrics[0]), self.progress)
        card = (
            "# BERT, trained to rerank\n\n"
            "- output: the relevance of a passage to a query, read together; load with `cloze.load(...).rerank`, or as "
            "`CrossEncoder` with `sentence-transformers`\n"
            f"- training: {len(self.data.train):,} pairs, {used.summary}\n\n{card_scores(evaluation)}\n"
        )
        run.finish(replace(self.tuned, card=card))

    def _evaluate(self, *, baseline: bool) -> Evaluation:
        """Sort the best passages by BM25 of some dev queries, and compare with the order of BM25."""
        data = _fewer_queries(self.data.dev)
        found = bm25_run(data)
        ordered = rerank_run(self.model, found, data, _CANDIDATES)
        return evaluate_run(ordered, data, found if baseline else None)


def _fewer_queries(data: RetrievalData) -> RetrievalData:
    """Return the data with a sample of the queries if there are too many; all documents stay."""
    if len(data.answerable) <= _DEV_QUERIES:
        return data
    kept = set(Random(0).sample(data.answerable, _DEV_QUERIES))
    queries = {name: text for name, text in data.queries.items() if name in kept}
    return replace(data, queries=queries, qrels={name: data.qrels[name] for name in queries})
