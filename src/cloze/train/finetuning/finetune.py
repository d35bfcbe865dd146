"""``cloze finetune``: one more layer on [CLS], and all of the model trained a little (section 4 of the paper)."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from cloze.checkpoint import (
    AdapterOf,
    EmbeddingSettings,
    ModelFolder,
    TaskLabels,
    weights_fingerprint,
)
from cloze.model.heads import POOLED_HEADS
from cloze.model.surgery import with_heads
from cloze.predict import Evaluation, Model, choose_device, evaluate_examples, write_report
from cloze.progress import Progress, Silent
from cloze.tasks.correction.kind import CORRECTION
from cloze.tasks.examples import Item, fingerprint
from cloze.tasks.kind import TaskKind
from cloze.tasks.registry import TaskData, read_task
from cloze.tasks.rows import Source
from cloze.tasks.similarity.kind import SIMILARITY
from cloze.text import Tokenizer
from cloze.train.dev_scoring import train_scored
from cloze.train.finetuning.augmentation import with_more_rows
from cloze.train.finetuning.checks import check_task
from cloze.train.finetuning.correction import finetune_correction
from cloze.train.finetuning.mean_teacher import with_own_teacher
from cloze.train.finetuning.objective import TaskBatches, TaskObjective, balanced_weights, tell_cut
from cloze.train.finetuning.similarity import finetune_similarity
from cloze.train.finetuning.trainable import keep_states, prepare
from cloze.train.memory import keep_freed_memory
from cloze.train.run import Run, end_run
from cloze.train.settings import FinetuneSettings, SimilaritySettings, check_meant


def finetune(
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
    """Fine-tune a model folder on a task and return the run's folder. The same call goes on where another stopped."""
    check_meant(source.task, similarity or SimilaritySettings())
    # Kinds that are trained without labels have their own training.
    trainers: dict[str, Callable[..., Path]] = {
        SIMILARITY.name: partial(finetune_similarity, similarity=similarity),
        CORRECTION.name: finetune_correction,
    }
    if source.task.lower() in trainers:
        train_unlabelled = trainers[source.task.lower()]
        return train_unlabelled(source, model, out, settings=settings, device=device, fresh=fresh, progress=progress)
    progress = progress or Silent()
    data = read_task(source)
    for note in data.notes:
        progress.say(note)
    asked = source.recorded()
    return finetune_on(data, asked, model, out, settings=settings, device=device, fresh=fresh, progress=progress)


def finetune_on(
    data: TaskData,
    asked: Mapping[str, Any],
    model: str | Path,
    out: str | Path,
    *,
    settings: FinetuneSettings | None = None,
    device: str | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
    fit: bool = True,
) -> Path:
    """Fine-tune on rows that were read already; ``asked`` tells where from, to be compared when the run goes on.

    ``fit``: dev rows may decide from when on a question has no answer. Not where they stand for rows that nobody knows.
    """
    settings, progress = settings or FinetuneSettings(), progress or Silent()
    base = check_task(data, model, settings)
    tuned = _start(base, str(model), data, settings, progress)
    wrapped = Model(tuned, device=device)
    weights = balanced_weights(data) if settings.class_weights == "balanced" else None
    recorded = _recorded(asked, model, data)
    run = Run.open(Path(out), recorded | asdict(settings), fresh=fresh)
    if run.done_already(progress):
        return run.folder
    keep_freed_memory()
    rows = with_more_rows(data, base, settings, device, progress)
    batches = _batches(replace(data, train=rows), tuned.tokenizer, settings, choose_device(device), progress)
    keep_states(wrapped.bert, batches.items, tuned.tokenizer.pad_id, progress)
    objective = TaskObjective(wrapped.bert, wrapped.heads[0], weights).to(wrapped.device)
    precision = train_scored(
        with_own_teacher(objective, settings.self_teaching, settings.teacher_decay),
        batches,
        settings,
        run,
        progress,
        wrapped,
        data.metrics[0],
        lambda: evaluate_examples(wrapped, data.kind, data.dev, data.metrics).metrics,
    )
    _finish(run, wrapped, tuned, data, replace(settings, precision=precision.name), recorded, fit=fit)
    return run.folder


def _recorded(asked: Mapping[str, Any], model: str | Path, data: TaskData) -> dict[str, Any]:
    """What the run was asked to do, for comparing with what it is asked next time."""
    # A file that has changed meanwhile would change what is learned, or the size of the head.
    labels = None if data.labels is None else list(data.labels.names)
    facts = {"rows": len(data.train), "labels": labels, "content": fingerprint(data.train, data.dev)}
    return {"command": "finetune", "model": str(Path(model)), **asked, **facts}


def _start(base: ModelFolder, name: str, data: TaskData, settings: FinetuneSettings, progress: Progress) -> ModelFolder:
    """The base, which was given by this name, with a new head for the task's labels."""
    head = data.kind.head
    assert head is not None, "a kind with labels has a head"
    if base.model.pooler is None and head in POOLED_HEADS and settings.frozen is None:
        progress.say("the model has no pooler; a new one starts at random")
    outputs = 1 if data.labels is None else len(data.labels)
    bert = with_heads(base.model, (head,), labels=outputs, keep=False, seed=settings.seed, dropout=settings.dropout)
    names = () if data.labels is None else data.labels.names
    length = min(settings.length, base.tokenizer.max_length)
    if length < settings.length:
        progress.say(f"the model reads at most {length} tokens")
    # What it is trained and scored on is what it will read: the limit goes with the folder.
    tokenizer = base.tokenizer.with_max_length(length)
    attachment = prepare(bert, settings)
    adapter = None
    if attachment is not None:
        assert base.place is not None, "it was loaded"
        adapter = AdapterOf(attachment, name, base.place, weights_fingerprint(base.place), asdict(settings))
    longest = settings.longest_answer
    task = TaskLabels(data.kind.name, names, settings.long_texts, settings.context, longest_answer=longest)
    return ModelFolder(bert, tokenizer, task, base.embedding, adapter=adapter)


def _batches(
    data: TaskData, tokenizer: Tokenizer, settings: FinetuneSettings, device: torch.device, progress: Progress
) -> TaskBatches:
    assert data.kind.items is not None, "a kind with labels makes items"
    items = data.kind.items(data.train, tokenizer, settings, progress)
    return make_batches(items, data.kind, tokenizer, settings, device, progress)


def make_batches(
    items: list[Item],
    kind: TaskKind,
    tokenizer: Tokenizer,
    settings: FinetuneSettings,
    device: torch.device,
    progress: Progress,
    *,
    like_lengths: bool = False,
) -> TaskBatches:
    """Batches of what a model trains on; it is told if something of it was cut."""
    tell_cut(items, tokenizer.max_length, progress, kind.item_noun)
    return TaskBatches(
        items,
        settings.batch,
        settings.seed,
        tokenizer.pad_id,
        device,
        labels_tokens=kind.targets == "token_indices",
        like_lengths=like_lengths,
    )


def _finish(
    run: Run,
    wrapped: Model,
    tuned: ModelFolder,
    data: TaskData,
    settings: FinetuneSettings,
    recorded: Mapping[str, Any],
    *,
    fit: bool,
) -> None:
    """Fit what dev rows decide, write their scores, and end the run."""
    wrapped.bert.eval()
    calibrate = data.kind.calibrate if settings.calibrate else None
    calibration = None if calibrate is None else calibrate(wrapped, data.dev, data.metrics)
    if calibration is not None:
        tuned = replace(tuned, task=calibration.task)
        wrapped = Model(tuned, device=str(wrapped.device))
    if fit and data.kind.fit_on_dev is not None:
        tuned = replace(tuned, task=data.kind.fit_on_dev(wrapped, data.dev))
        wrapped = Model(tuned, device=str(wrapped.device))
    evaluation = evaluate_examples(wrapped, data.kind, data.dev, data.metrics)
    write_report(evaluation, run.folder)
    if calibration is not None:
        run.write_results(evaluation.results() | calibration.results())
    card = finetuning_card(tuned, evaluation, settings, data, recorded)
    end_run(run, replace(tuned, embedding=EmbeddingSettings(), card=card))


def finetuning_card(
    tuned: ModelFolder, evaluation: Evaluation, settings: FinetuneSettings, data: TaskData, asked: Mapping[str, Any]
) -> str:
    """The model card of a fine-tuned model; ``asked`` is what its run wrote down."""
    assert tuned.task is not None
    # Where there was nothing else to score, as after folds.
    scored = "training rows, which tell little of others" if data.dev is data.train else "dev rows"
    scores = "\n".join(f"- {name}: {value:.4f}" for name, value in evaluation.metrics.items())
    labels = ", ".join(tuned.task.names) or data.kind.answers
    return (
        f"# BERT, fine-tuned to {tuned.task.kind}\n\n"
        f"- answers: {labels}\n- from: {asked['model']}\n"
        f"- rows: {asked['task']}, {asked['data']} ({asked['content'][:12]})\n"
        f"- training: {len(data.train):,} rows, {settings.summary}\n\n"
        f"On {len(evaluation.predictions):,} {scored}:\n\n{scores}\n"
    )
