"""``cloze finetune``: add a task head to a pre-trained model and train it on labelled rows (section 4 of the paper)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from cloze.checkpoint import (
    AdapterInfo,
    EmbeddingSettings,
    ModelFolder,
    TaskLabels,
    base_files,
    weights_fingerprint,
)
from cloze.checkpoint.folder import mean_head_note
from cloze.hardware import choose_device
from cloze.model.surgery import with_heads
from cloze.predict import Evaluation, Model, evaluate_examples, write_report
from cloze.predict.embeddings.pooling import find_pool
from cloze.progress import Progress, Silent
from cloze.tasks.baselines import Baseline, baseline_scores, fit_baselines
from cloze.tasks.comparisons import write_resamples
from cloze.tasks.correction.kind import CORRECTION
from cloze.tasks.examples import fingerprint
from cloze.tasks.registry import TaskData, read_task
from cloze.tasks.reports import card_scores
from cloze.tasks.rows import Source
from cloze.tasks.similarity.kind import SIMILARITY
from cloze.train.driver import TrainingParts, run_training
from cloze.train.finetuning.augmentation import augment_rows
from cloze.train.finetuning.correction import finetune_correction
from cloze.train.finetuning.defaults import advise, choose_defaults, is_compared, resolve_settings
from cloze.train.finetuning.few_labels import FewLabels, StageProgress, choose_few
from cloze.train.finetuning.objective import (
    TaskBatches,
    TaskObjective,
    balanced_weights,
    make_batches,
    report_unknown,
    with_mean_teacher,
)
from cloze.train.finetuning.settings import (
    FinetuneSettings,
    ResolvedSettings,
    SimilaritySettings,
    check_similarity_settings,
)
from cloze.train.finetuning.similarity import PairObjective, finetune_similarity
from cloze.train.finetuning.trainable import (
    cache_frozen_states,
    choose_pooling,
    load_checked_base,
    make_trainable,
    report_few_pairs,
)
from cloze.train.optimization import DivergedError
from cloze.train.run import Run


def run_finetuning(
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
    """Fine-tune a model folder on a task; the same call resumes a run that was stopped.

    Args:
        source: The task and its files.
        model: The model folder to start from, a run, or a hub name.
        out: The run's folder, which is created.
        settings: How to train.
        similarity: Settings of contrastive training, for the task ``similarity``.
        device: Where to train; the fastest device by default.
        fresh: Delete a run that is there, and start over.
        progress: Where progress is reported.

    Returns:
        The run's folder. Its model is in ``model``, its scores in ``eval_results.json``.

    Raises:
        ConfigError: If settings do not fit the task or the model, or the run was started with other settings.
        DataError: If rows cannot be read.

    Example:
        >>> run = cloze.finetune(cloze.Source("classify", "train.csv", "dev.csv"), "MODEL", "runs/mood")
        >>> cloze.load(run).classify(["What a day!"])
    """
    check_similarity_settings(source.task, similarity or SimilaritySettings())
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
    return finetune_rows(
        data, source.recorded(), model, out, settings=settings, device=device, fresh=fresh, progress=progress
    )


def finetune_rows(
    data: TaskData,
    source: Mapping[str, Any],
    model: str | Path,
    out: str | Path,
    *,
    settings: FinetuneSettings | None = None,
    device: str | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
    fit: bool = True,
    baselines: Callable[[], Sequence[Baseline]] | None = None,
) -> Path:
    """Fine-tune on rows that have been read already.

    Args:
        data: The rows.
        source: Where they are from, as ``Source.recorded`` returns it; compared when the run is resumed.
        model: The model folder to start from.
        out: The run's folder.
        settings: How to train.
        device: Where to train.
        fresh: Delete a run that is there.
        progress: Where progress is reported.
        fit: Let the dev rows decide from which score on a question has no answer. Not where they stand for unseen rows.
        baselines: Returns the baselines, for a search that fits them once; by default, they are fitted on these rows.

    Returns:
        The run's folder.
    """
    given, progress = settings or FinetuneSettings(), progress or Silent()
    base = load_checked_base(data, model, given)
    settings = resolve_settings(given, base.model.config.hidden_size, len(data.train), progress)
    report_few_pairs(base, data, progress)
    recorded = _recorded(source, model, data)
    baselines = baselines or partial(fit_baselines, data)
    training = _Finetuning(data, base, str(model), settings, recorded, device, fit, baselines, progress)
    parts = training.few_labels() if given.few else training.full()
    if is_compared(data, given):
        parts = replace(parts, choose=partial(training.choose, parts, fresh))
    return run_training(parts, out, fresh=fresh, progress=progress)


@dataclass(frozen=True)
class _Finetuning:
    """Builds the parts of a fine-tuning, or of the few-label path."""

    data: TaskData
    base: ModelFolder
    name: str
    settings: ResolvedSettings
    recorded: dict[str, Any]
    device: str | None
    fit: bool
    baselines: Callable[[], Sequence[Baseline]]
    progress: Progress

    def full(self) -> TrainingParts:
        """Return the parts of fine-tuning: the model, an adapter or a head on frozen states is trained in steps."""
        data, settings = self.data, self.settings
        tuned, wrapped = self._start(settings)
        return TrainingParts(
            recorded=self.recorded | asdict(settings),
            settings=settings,
            model=wrapped,
            batches=lambda: _batches(data, self.base, wrapped, settings, self.device, self.progress),
            objective=lambda: _objective(data, wrapped, settings),
            metric=data.metrics[0],
            score=lambda: evaluate_examples(wrapped, data.kind, data.dev, data.metrics).metrics,
            finish=lambda run, used: self._finish(run, wrapped, tuned, used),
        )

    def few_labels(self) -> TrainingParts:
        """Return the parts of the few-label path: pairs of rows are trained on, if at all, and the head is fitted."""
        tuned, few = self._start_few()
        data, model, settings = self.data, few.model, self.settings
        pool = find_pool(few.pooling, model.bert, model.tokenizer)

        def score() -> Mapping[str, float]:
            few.fit()
            return evaluate_examples(model, data.kind, data.dev, data.metrics).metrics

        def finish(run: Run, used: ResolvedSettings) -> None:
            few.report_texts(self.progress)
            method = f"{few.method}, {few.fit()}"
            self.progress.say(f"few labels: {method}")
            self._finish(run, model, tuned, used, method)

        return TrainingParts(
            recorded=self.recorded | asdict(settings),
            settings=settings,
            model=model,
            batches=(lambda: few.pair_batches(self.progress)) if settings.contrastive else None,
            objective=lambda: PairObjective(model.bert, pool, "cosine", SimilaritySettings.temperature),
            metric=data.metrics[0],
            score=score,
            finish=finish,
        )

    def choose(self, parts: TrainingParts, fresh: bool, run: Run) -> TrainingParts:
        """Return the parts of whichever is better on held-out training rows."""

        def fit(fold: TaskData) -> float:
            _, few = replace(self, data=fold)._start_few()
            few.fit()
            return evaluate_examples(few.model, fold.kind, fold.dev, fold.metrics).metrics[fold.metrics[0]]

        def tune(fold: TaskData, folder: Path) -> float:
            settings, progress = replace(self.settings, few=False, baseline=False), StageProgress(self.progress)
            training = replace(self, data=fold, settings=settings, fit=False, progress=progress)
            try:
                run_training(training.full(), folder, fresh=fresh, progress=progress)
            except DivergedError:
                return 0.0  # there is no model to score
            return float(Run(folder).results()[fold.metrics[0]])

        return self.few_labels() if choose_few(run, self.data, fit, tune, self.progress) else parts

    def _start(self, settings: ResolvedSettings) -> tuple[ModelFolder, Model]:
        tuned = _start(self.base, self.name, self.data, settings, self.progress)
        return tuned, Model(tuned, device=self.device)

    def _start_few(self) -> tuple[ModelFolder, FewLabels]:
        """Return the model with a head that reads the mean of the token states, unless the settings say otherwise."""
        tuned, wrapped = self._start(replace(self.settings, pooling=self.settings.pooling or "mean"))
        return tuned, FewLabels(self.data, wrapped, self.settings)

    def _finish(
        self, run: Run, wrapped: Model, tuned: ModelFolder, used: ResolvedSettings, method: str | None = None
    ) -> None:
        _finish(
            run,
            wrapped,
            tuned,
            self.data,
            used,
            self.recorded,
            fit=self.fit,
            baselines=self.baselines,
            progress=self.progress,
            method=method,
        )


def _batches(
    data: TaskData,
    base: ModelFolder,
    wrapped: Model,
    settings: ResolvedSettings,
    device: str | None,
    progress: Progress,
) -> TaskBatches:
    """Augment and encode the training rows; for a frozen model, compute its states."""
    rows = augment_rows(data, base, settings, device, progress)
    assert data.kind.items is not None, "a kind with labels makes items"
    tokenizer = wrapped.tokenizer
    report_unknown(tokenizer, [text for texts in data.train.documents() for text in texts], progress)
    items = data.kind.items(rows, tokenizer, settings, progress)
    batches = make_batches(items, data.kind, tokenizer, settings, choose_device(device), progress)
    cache_frozen_states(wrapped.bert, batches.items, tokenizer.pad_id, progress)
    return batches


def _objective(data: TaskData, wrapped: Model, settings: ResolvedSettings) -> nn.Module:
    weights = balanced_weights(data) if settings.class_weights == "balanced" else None
    objective = TaskObjective(wrapped.bert, wrapped.heads[0], weights).to(wrapped.device)
    return with_mean_teacher(objective, settings.mean_teacher, settings.teacher_decay)


def _recorded(source: Mapping[str, Any], model: str | Path, data: TaskData) -> dict[str, Any]:
    """Return the facts that a resumed run is compared by."""
    # A file that has changed meanwhile would change what is learned, or the size of the head.
    labels = None if data.labels is None else list(data.labels.names)
    facts = {"rows": len(data.train), "labels": labels, "content": fingerprint(data.train, data.dev)}
    return {"command": "finetune", "model": str(Path(model)), "base": base_files(model), **source, **facts}


def _start(base: ModelFolder, name: str, data: TaskData, settings: ResolvedSettings, progress: Progress) -> ModelFolder:
    """Return the base model, named ``name``, with a new head for the task's labels."""
    head = data.kind.head
    assert head is not None, "a kind with labels has a head"
    pooling = choose_pooling(base, head, settings, progress)
    outputs = 1 if data.labels is None else len(data.labels)
    bert = with_heads(
        base.model,
        (head,),
        labels=outputs,
        keep=False,
        seed=settings.seed,
        dropout=settings.dropout,
        pooling=pooling,
    )
    names = () if data.labels is None else data.labels.names
    length = min(settings.max_length, base.tokenizer.max_length)
    if length < settings.max_length:
        progress.say(f"the model reads at most {length} tokens")
    # The limit is saved with the folder: the model reads as much as it was trained and scored on.
    tokenizer = base.tokenizer.with_max_length(length)
    attachment = make_trainable(bert, settings)
    adapter = None
    if attachment is not None:
        assert base.place is not None, "it was loaded"
        adapter = AdapterInfo(attachment, name, base.place, weights_fingerprint(base.place), asdict(settings))
    longest = settings.longest_answer
    task = TaskLabels(
        data.kind.name,
        names,
        settings.long_texts,
        settings.context,
        characters=getattr(data.train, "by_characters", False),
        longest_answer=longest,
    )
    return ModelFolder(bert, tokenizer, task, base.embedding, adapter=adapter)


def _finish(
    run: Run,
    wrapped: Model,
    tuned: ModelFolder,
    data: TaskData,
    settings: ResolvedSettings,
    recorded: Mapping[str, Any],
    *,
    fit: bool,
    baselines: Callable[[], Sequence[Baseline]],
    progress: Progress,
    method: str | None,
) -> None:
    """Calibrate and fit on the dev rows, write their scores and the baseline's, advise, and finish the run.

    ``method`` is how the head was fitted, of the few-label path; None for fine-tuning.
    """
    calibrate = data.kind.calibrate if settings.calibrate else None
    calibration = None if calibrate is None else calibrate(wrapped, data.dev, data.metrics)
    if calibration is not None:
        tuned = replace(tuned, task=calibration.task)
        wrapped = Model(tuned, device=str(wrapped.device))
    if fit and data.kind.fit_on_dev is not None:
        tuned = replace(tuned, task=data.kind.fit_on_dev(wrapped, data.dev))
        wrapped = Model(tuned, device=str(wrapped.device))
    evaluation = evaluate_examples(wrapped, data.kind, data.dev, data.metrics)
    # Training rows would tell nothing of the baseline either.
    if settings.baseline and data.dev is not data.train:
        evaluation = replace(evaluation, baseline=baseline_scores(evaluation, baselines, progress))
    write_report(evaluation, run.folder)
    write_resamples(evaluation.rows, data.metrics[0], run.folder, fingerprint(data.dev))
    if calibration is not None:
        run.write_results(evaluation.results() | calibration.results())
    if method is None:
        defaults = choose_defaults(tuned.model.config.hidden_size, len(data.train), settings)
        run.write_advice(advise(run.metrics(), evaluation, settings, defaults, data.metrics[0]), progress)
    card = finetuning_card(tuned, evaluation, method or settings.summary, data, recorded)
    run.finish(replace(tuned, embedding=EmbeddingSettings(), card=card))


def finetuning_card(
    tuned: ModelFolder, evaluation: Evaluation, method: str, data: TaskData, recorded: Mapping[str, Any]
) -> str:
    """Return the model card of a fine-tuned model; ``method`` is how it was trained, ``recorded`` the run's facts."""
    assert tuned.task is not None
    # After cross-validation there are no other rows to score.
    scored = "training rows, which tell little of others" if data.dev is data.train else "dev rows"
    labels = ", ".join(tuned.task.names) or data.kind.answers
    return (
        f"# BERT, fine-tuned to {tuned.task.kind}\n\n"
        f"- answers: {labels}\n- from: {recorded['model']}\n"
        f"- rows: {recorded['task']}, {recorded['data']} ({recorded['content'][:12]})\n"
        f"- training: {len(data.train):,} rows, {method}\n\n"
        f"On {len(evaluation.predictions):,} {scored}:\n\n{card_scores(evaluation)}\n"
        + (f"\nLoading: {mean_head_note()}" if tuned.model.reads_mean and tuned.adapter is None else "")
    )
