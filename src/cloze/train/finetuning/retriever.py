"""``cloze finetune retrieval``: train text vectors that find the passages which answer a query.

The rows are pairs of a query and a passage, with negatives if there are any (``cloze mine`` finds some), or a folder in
the layout of BEIR. The objective and the batches are in ``contrastive.py``; training uses the loop and run of
fine-tuning. The run is evaluated by searching the passages for each dev query, next to BM25.

A LoRA adapter is merged into the weights when the run finishes, so every run ends with a complete model folder.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from cloze.checkpoint import EmbeddingSettings, ModelFolder, base_files, find_source, load_folder
from cloze.checkpoint.pooling_files import DOCUMENT, QUERY
from cloze.errors import ConfigError, DataError, RequestError, format_option
from cloze.model.adapters import attach_low_rank
from cloze.model.surgery import with_heads
from cloze.predict import Model, write_report
from cloze.predict.embeddings.pooling import find_pool, pooled_width
from cloze.predict.retrieval import bm25_run, evaluate_run, search_run
from cloze.progress import Progress, Silent
from cloze.tasks.examples import Item, fingerprint, split_dev
from cloze.tasks.reports import card_scores
from cloze.tasks.retrieval.examples import read_retrieval, read_training_pairs
from cloze.tasks.retrieval.kind import RETRIEVAL, RetrievalData, TrainingPairs
from cloze.tasks.rows import Source
from cloze.text import Tokenizer
from cloze.train.driver import TrainingParts, run_training
from cloze.train.finetuning.contrastive import (
    ContrastiveBatches,
    ContrastiveObjective,
    ContrastiveRows,
    TokenIds,
    default_chunk_tokens,
)
from cloze.train.finetuning.defaults import (
    ChosenLength,
    advise,
    choose_length,
    choose_ranking_defaults,
    fill_in,
    keep_recorded_length,
    report_length,
)
from cloze.train.finetuning.objective import report_unknown
from cloze.train.finetuning.settings import FinetuneSettings, RankingSettings, ResolvedSettings, SimilaritySettings
from cloze.train.finetuning.trainable import SIZES, check_label_free_settings, check_length, freeze_lowest
from cloze.train.run import Run

# Hard negatives per row and step. More of them cost more time than a larger batch and add less.
_NEGATIVES = 1
# Texts that are encoded at a time before training; bounds the memory of their offsets.
_ENCODED_AT_ONCE = 4096
# Most passages among which each dev query is searched; of more, a sample is added to those that were judged.
MOST_DEV_PASSAGES = 10_000
# Seed of the sample, which must be the same in each run.
_SEED = 0


# -- data --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankingData:
    """The rows to train on, and queries with passages to evaluate on."""

    train: TrainingPairs
    dev: RetrievalData
    notes: tuple[str, ...] = ()

    def recorded(self) -> dict[str, Any]:
        """Return the facts that must be the same when the run is resumed."""
        judged = RetrievalTexts(list(self.dev.queries.items()), list(self.dev.documents.items()))
        return {"rows": len(self.train), "content": fingerprint(self.train, judged)}


@dataclass(frozen=True)
class RetrievalTexts:
    """The texts of retrieval data as sequences, whose hash a run records."""

    queries: Sequence[tuple[str, str]]
    documents: Sequence[tuple[str, str]]


def read_ranking(source: Source) -> RankingData:
    """Read training rows and dev data; without a dev file, the rows of a tenth of the queries are held out."""
    rows = read_training_pairs(source)
    notes = [f"{rows.skipped} bad training rows were skipped"] if rows.skipped else []
    if source.dev is not None:
        dev = read_retrieval(source)
        notes += [f"{dev.skipped} bad dev rows were skipped"] if dev.skipped else []
    else:
        rows, held = _hold_out_queries(rows)
        dev = _judged(held, [*rows.positives, *(text for texts in rows.negatives for text in texts)])
        notes.append(
            f"no {format_option('dev')} file: the rows of {len(dev.queries)} of the queries, a tenth, are held out"
        )
    if len(set(rows.positives)) < 2:
        raise DataError(f"{source.data}: all rows have the same passage; expected at least a few hundred passages")
    kept = len(dev.documents)
    dev = _with_fewer_documents(dev)
    if len(dev.documents) < kept:
        notes.append(f"dev queries are searched among {len(dev.documents):,} of {kept:,} passages, a sample")
    return RankingData(rows, dev, tuple(notes))


def _hold_out_queries(rows: TrainingPairs) -> tuple[TrainingPairs, TrainingPairs]:
    """Split rows into training rows and held-out ones, so that all rows of a query are on the same side."""
    firsts = {query: place for place, query in reversed(list(enumerate(rows.queries)))}
    _, held = split_dev(rows.select(sorted(firsts.values())))
    queries = set(held.queries)
    sides: tuple[list[int], list[int]] = ([], [])
    for place, query in enumerate(rows.queries):
        sides[query in queries].append(place)
    return rows.select(sides[0]), rows.select(sides[1])


def _judged(rows: TrainingPairs, others: Sequence[str]) -> RetrievalData:
    """Return rows as queries with judged passages, to be searched among these and other passages."""
    documents: dict[str, str] = {}
    queries: dict[str, str] = {}
    qrels: dict[str, dict[str, int]] = {}
    for query, positive, negatives in zip(rows.queries, rows.positives, rows.negatives, strict=True):
        grades = qrels.setdefault(queries.setdefault(query, f"q{len(queries) + 1}"), {})
        for text in negatives:
            grades.setdefault(documents.setdefault(text, f"d{len(documents) + 1}"), 0)
        grades[documents.setdefault(positive, f"d{len(documents) + 1}")] = 1
    for text in others:
        documents.setdefault(text, f"d{len(documents) + 1}")
    queries_by_id, by_id = ({name: text for text, name in texts.items()} for texts in (queries, documents))
    return RetrievalData(queries_by_id, by_id, qrels)


def _with_fewer_documents(data: RetrievalData) -> RetrievalData:
    """Return the data with all judged documents, and a sample of the others if there are too many."""
    judged = {name for grades in data.qrels.values() for name in grades}
    others = [name for name in data.documents if name not in judged]
    room = max(0, MOST_DEV_PASSAGES - len(judged))
    if len(others) <= room:
        return data
    judged.update(Random(_SEED).sample(others, room))
    return replace(data, documents={name: text for name, text in data.documents.items() if name in judged})


# -- training ----------------------------------------------------------------------------------------------------------


def finetune_retrieval(
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
    """Train on pairs of queries and passages; return the run's folder. The same call resumes it."""
    given, progress = settings or FinetuneSettings(), progress or Silent()
    ranking = as_ranking(similarity)
    check_label_free_settings(given, RETRIEVAL.name, RETRIEVAL.settings)
    _check_settings(given, ranking)
    given = keep_recorded_length(given, out, fresh=fresh)
    data = read_ranking(source)
    for note in data.notes:
        progress.say(note)
    ranking = _resolve(ranking, data)
    base = load_folder(find_source(model))
    check_length(given.max_length, base)
    length = choose_row_length(data.train, base.tokenizer, given)
    defaults = choose_ranking_defaults(base.model.config.hidden_size, len(data.train), given)
    resolved = fill_in(given, defaults, length)
    report_length(length, progress)
    tuned = _start(base, resolved, ranking)
    wrapped = Model(tuned, device=device)
    pool = find_pool(tuned.embedding.pooling, tuned.model, tuned.tokenizer)
    facts = {"command": "finetune", "model": str(Path(model)), "base": base_files(model), **source.recorded()}
    run = _RetrievalRun(data, tuned, wrapped, resolved, ranking, progress)
    parts = TrainingParts(
        recorded=facts | data.recorded() | asdict(resolved) | asdict(ranking),
        settings=resolved,
        model=wrapped,
        batches=run.batches,
        objective=lambda: ContrastiveObjective(
            wrapped.bert,
            pool,
            ranking.temperature,
            symmetric=ranking.symmetric,
            margins=ranking.objective == "margin-mse",
            sizes=(None, *tuned.embedding.dimensions),
        ),
        metric=RETRIEVAL.metrics[0],
        score=run.score,
        save_memory=lambda: f"a smaller {format_option('chunk_tokens')}",
        finish=run.finish,
    )
    return run_training(parts, out, fresh=fresh, progress=progress)


def as_ranking(settings: SimilaritySettings | None) -> RankingSettings:
    """Return the settings with those that only retrieval and rerank have."""
    if isinstance(settings, RankingSettings):
        return settings
    return RankingSettings() if settings is None else RankingSettings(**asdict(settings))


def _check_settings(given: FinetuneSettings, ranking: RankingSettings) -> None:
    """Refuse settings that do not fit the objective."""
    if given.accumulate > 1:
        raise ConfigError(
            f"accumulate is {given.accumulate}, but retrieval compares all texts of a batch with each other; "
            f"use a smaller {format_option('chunk_tokens')} to save memory, which gives the same result"
        )
    if given.adapter not in (None, "lora"):
        raise ConfigError(f"adapter is {given.adapter!r}, which cannot be merged into the model; use 'lora'")
    if given.adapter is not None and given.freeze_layers:
        raise ConfigError("adapter and freeze_layers exclude each other; each sets what is trained: choose one")
    if ranking.objective == "margin-mse" and ranking.symmetric:
        raise ConfigError("symmetric applies to the objective contrastive, not to margin-mse; leave out one of them")


def _resolve(ranking: RankingSettings, data: RankingData) -> RankingSettings:
    """Return the settings with defaults that depend on the objective; check that the rows have what it needs."""
    most = max(map(len, data.train.negatives), default=0)
    if ranking.objective == "margin-mse":
        if data.train.scores is None or most == 0:
            raise DataError(
                f"objective is 'margin-mse', which learns a teacher's scores of a positive and its negatives; the rows "
                f"have no {'negatives' if most == 0 else 'scores'}: write them with cloze mine and cloze rerank, or "
                f"leave out {format_option('objective')}"
            )
    elif ranking.negatives is not None and ranking.negatives > most:
        raise ConfigError(
            f"negatives is {ranking.negatives}, but the rows have at most {most} negatives; use at most that, or find "
            "more with cloze mine"
        )
    count = min(_NEGATIVES, most) if ranking.negatives is None else ranking.negatives
    return replace(ranking, objective=ranking.objective or "contrastive", negatives=count)


def choose_row_length(rows: TrainingPairs, tokenizer: Tokenizer, settings: FinetuneSettings) -> ChosenLength | None:
    """Choose the maximum length for queries and passages; None if the settings have one."""
    if settings.max_length is not None:
        return None

    def encode(indices: Sequence[int], shortened: Tokenizer) -> list[Item]:
        columns = (rows.queries, rows.positives)
        encoded = [shortened.encode_batch([texts[index] for index in indices]) for texts in columns]
        return [Item(encodings, 0) for encodings in zip(*encoded, strict=True)]

    return choose_length(len(rows), encode, tokenizer)


def _start(base: ModelFolder, settings: ResolvedSettings, ranking: RankingSettings) -> ModelFolder:
    """Return the base model without heads, with prompts, sizes and LoRA as in the settings."""
    pooling: Any = ranking.vectors or base.embedding.pooling
    try:
        find_pool(pooling, base.model, base.tokenizer)
    except RequestError as error:
        raise ConfigError(str(error)) from error
    width = pooled_width(pooling, base.model.config.hidden_size)
    if any(size > width for size in ranking.sizes):
        raise ConfigError(
            f"dimensions is {ranking.dimensions!r}, but the vectors have {width} values; use at most that"
        )
    bert = with_heads(base.model, (), keep=False, seed=settings.seed, dropout=settings.dropout)
    freeze_lowest(bert, settings.freeze_layers)
    if settings.adapter is not None:
        attach_low_rank(bert, settings.adapter_size or SIZES["lora"], settings.seed)
    given = {QUERY: ranking.query_prompt, DOCUMENT: ranking.document_prompt}
    prompts = {name: base.embedding.prompt(name) if text is None else text for name, text in given.items()}
    embedding = EmbeddingSettings(
        pooling,
        normalize=True,
        prompts={name: text for name, text in prompts.items() if text},
        dimensions=tuple(size for size in ranking.sizes if size < width),
    )
    # The saved model keeps its own maximum length; the maximum length in the settings applies only to training.
    return ModelFolder(bert, base.tokenizer, None, embedding)


@dataclass(frozen=True)
class _RetrievalRun:
    """The parts of a training run for retrieval."""

    data: RankingData
    tuned: ModelFolder
    model: Model
    settings: ResolvedSettings
    ranking: RankingSettings
    progress: Progress

    def batches(self) -> ContrastiveBatches:
        """Return the batches of encoded rows."""
        longest = self.tuned.tokenizer.max_length
        tokenizer = self.tuned.tokenizer.with_max_length(min(self.settings.max_length, longest))
        if self.settings.max_length > longest:
            self.progress.say(f"the model accepts at most {longest} tokens")
        rows = encode_rows(self.data.train, tokenizer, self.tuned.embedding, self.progress)
        assert self.ranking.negatives is not None
        return ContrastiveBatches(
            rows,
            self.settings.batch_size,
            self.ranking.negatives,
            self.ranking.chunk_tokens or default_chunk_tokens(self.tuned.model),
            self.settings.seed,
            tokenizer.pad_id,
            self.model.device,
        )

    def score(self) -> Mapping[str, float]:
        """Return the metrics of searching the dev passages."""
        return evaluate_run(search_run(self.model, self.data.dev), self.data.dev).metrics

    def finish(self, run: Run, used: ResolvedSettings) -> None:
        """Write scores, advice and model card, and finish the run."""
        dev = self.data.dev
        evaluation = evaluate_run(search_run(self.model, dev), dev, bm25_run(dev) if used.baseline else None)
        write_report(evaluation, run.folder)
        defaults = choose_ranking_defaults(self.tuned.model.config.hidden_size, len(self.data.train), used)
        run.write_advice(advise(run.metrics(), None, used, defaults, RETRIEVAL.metrics[0]), self.progress)
        embedding = self.tuned.embedding
        prompts = "".join(f"- prefix of each {name}: `{text}`\n" for name, text in embedding.prompts.items())
        sizes = ", ".join(map(str, embedding.dimensions))
        card = (
            "# BERT, trained for retrieval\n\n"
            f"- output: one vector per text ({embedding.pooling} of the tokens, of length 1)\n{prompts}"
            f"{f'- vectors may be cut to the first {sizes} values' if sizes else ''}{chr(10) if sizes else ''}"
            f"- training: {len(self.data.train):,} pairs, {used.summary}\n\n{card_scores(evaluation)}\n"
        )
        run.finish(replace(self.tuned, card=card))


# -- encoded rows ------------------------------------------------------------------------------------------------------


def encode_rows(
    rows: TrainingPairs, tokenizer: Tokenizer, embedding: EmbeddingSettings, progress: Progress
) -> ContrastiveRows:
    """Encode each different query and passage once, with its prefix."""
    report_unknown(tokenizer, [*rows.queries, *rows.positives], progress)
    places: dict[tuple[str, str], int] = {}

    def place(kind: str, text: str) -> int:
        return places.setdefault((kind, text), len(places))

    queries = np.array([place(QUERY, query) for query in rows.queries])
    positives = np.array([place(DOCUMENT, positive) for positive in rows.positives])
    negatives, scores = [], []
    for row, (query, others) in enumerate(zip(rows.queries, rows.negatives, strict=True)):
        # A passage that answers the query in another row is not a negative, whatever the file says.
        kept = [number for number, text in enumerate(others) if text not in rows.relevant[query] and text != query]
        negatives.append([place(DOCUMENT, others[number]) for number in kept])
        if rows.scores is not None:
            scores.append([rows.scores[row][0], *(rows.scores[row][number + 1] for number in kept)])
    known = {
        places[QUERY, query]: frozenset(
            places[DOCUMENT, text] for text in {query, *relevant} if (DOCUMENT, text) in places
        )
        for query, relevant in rows.relevant.items()
    }
    texts = _encode(list(places), tokenizer, embedding, progress)
    return ContrastiveRows(texts, queries, positives, negatives, known, scores if rows.scores is not None else None)


def _encode(
    keys: Sequence[tuple[str, str]], tokenizer: Tokenizer, embedding: EmbeddingSettings, progress: Progress
) -> list[TokenIds]:
    """Encode texts of both kinds, and report how many are cut."""
    encoded, cut = list[TokenIds](), 0
    for start in range(0, len(keys), _ENCODED_AT_ONCE):
        part = [embedding.prompt(kind) + text for kind, text in keys[start : start + _ENCODED_AT_ONCE]]
        for encoding in tokenizer.encode_batch(part):
            encoded.append(TokenIds(encoding.ids, encoding.segments))
            cut += bool(encoding.dropped)
    if cut:
        progress.say(f"{cut} of {len(keys)} training texts are longer than {tokenizer.max_length} tokens and are cut")
    return encoded
