"""``cloze finetune``: add a task head to a pre-trained model and train it on labelled rows (section 4 of the paper)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from cloze.checkpoint import ModelFolder, base_files, load_folder
from cloze.checkpoint.folder import loading_note
from cloze.hardware import choose_device
from cloze.options import HeadPooling
from cloze.predict import Evaluation, Model, evaluate_examples, write_report
from cloze.predict.embeddings.pooling import find_pool
from cloze.progress import Progress, Silent
from cloze.tasks.baselines import Baseline, baseline_scores, fit_baselines
from cloze.tasks.comparisons import write_resamples
from cloze.tasks.correction.kind import CORRECTION
from cloze.tasks.examples import fingerprint
from cloze.tasks.registry import TaskData, read_task
from cloze.tasks.reports import card_scores
from cloze.tasks.retrieval.kind import RERANK, RETRIEVAL
from cloze.tasks.rows import Source
from cloze.tasks.similarity.kind import SIMILARITY
from cloze.train.driver import TrainingParts, run_training
from cloze.train.finetuning.augmentation import augment_rows
from cloze.train.finetuning.correction import finetune_correction
from cloze.train.finetuning.defaults import (
    advise,
    choose_defaults,
    is_compared,
    keep_recorded_length,
    resolve_task_settings,
)
from cloze.train.finetuning.few_labels import FewLabels, StageProgress, choose_few, remaining_epochs
from cloze.train.finetuning.objective import TaskBatches, make_batches, make_objective, report_unknown
from cloze.train.finetuning.reranker import finetune_rerank
from cloze.train.finetuning.retriever import finetune_retrieval
from cloze.train.finetuning.settings import (
    FinetuneSettings,
    ResolvedSettings,
    SimilaritySettings,
    check_ranking_settings,
)
from cloze.train.finetuning.similarity import PairObjective, finetune_similarity
from cloze.train.finetuning.trainable import (
    add_head,
    cache_frozen_states,
    has_pairs,
    load_checked_base,
    with_trained_pooling,
)
from cloze.train.optimization import DivergedError
from cloze.train.run import COMPARISON, Run


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
    """Fine-tune a model folder on a task; the same call resumes an unfinished run.

    With few rows of labels or numbers (30 to 499) and no setting about the training, fine-tuning is compared with a
    linear head on sentence vectors on held-out training rows, and the better method is used (``few_labels.py``).

    Args:
        source: The task and its files.
        model: The model folder to start from, a run, or a hub name.
        out: The run's folder, which is created.
        settings: The training settings.
        similarity: Settings of the tasks ``similarity``, ``retrieval`` (``RankingSettings``) and ``rerank``.
        device: Where to train; by default an accelerator if there is one.
        fresh: Delete an existing run and start over.
        progress: Receives messages and progress.

    Returns:
        The run's folder, with the model in ``model`` and its scores in ``eval_results.json``.

    Raises:
        ConfigError: If settings do not fit the task or the model, or differ from those of the run to resume.
        DataError: If rows cannot be read.

    Example:
        >>> run = run_finetuning(cloze.Source("classify", "train.csv", "dev.csv"), "MODEL", "runs/mood")
        >>> cloze.load(run).classify(["What a day!"])
    """
    check_ranking_settings(source.task, similarity or SimilaritySettings())
    # Kinds without labels have their own training functions.
    trainers: dict[str, Callable[..., Path]] = {
        SIMILARITY.name: partial(finetune_similarity, similarity=similarity),
        RETRIEVAL.name: partial(finetune_retrieval, similarity=similarity),
        RERANK.name: partial(finetune_rerank, similarity=similarity),
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
    """Fine-tune on rows that have already been read.

    Args:
        data: The rows.
        source: Their origin, as returned by ``Source.recorded``; compared when the run is resumed.
        model: The model folder to start from.
        out: The run's folder.
        settings: The training settings.
        device: Where to train.
        fresh: Delete an existing run first.
        progress: Receives messages and progress.
        fit: Whether to fit the values that this kind of task fits on the dev rows, such as the no-answer threshold of
            answering. False if the dev rows stand for unseen rows, as in cross-validation.
        baselines: Returns the baselines, for a search that fits them once; by default, they are fitted on these rows.

    Returns:
        The run's folder.
    """
    given, progress = keep_recorded_length(settings or FinetuneSettings(), out, fresh=fresh), progress or Silent()
    base = load_checked_base(data, model, given)
    settings = resolve_task_settings(given, data, base, progress)
    recorded = _recorded(source, model, data)
    baselines = baselines or partial(fit_baselines, data)
    training = _Finetuning(data, base, str(model), settings, recorded, device, fit, baselines, progress)
    parts = training.few_labels() if given.few else training.full()
    if is_compared(data, given):
        parts = replace(parts, choose=partial(training.choose, parts, fresh))
    return run_training(parts, out, fresh=fresh, progress=progress)


@dataclass(frozen=True)
class _Finetuning:
    """Builds the training parts of fine-tuning, or of the few-label method."""

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
        """Return the parts of fine-tuning: a model, an adapter or a head on frozen states, trained in steps."""
        return self._tune(self.settings, *self._start(self.settings))

    def _tune(self, settings: ResolvedSettings, tuned: ModelFolder, wrapped: Model) -> TrainingParts:
        """Return the parts of fine-tuning a model that already has its head."""
        data = self.data
        return TrainingParts(
            recorded=self.recorded | asdict(settings),
            settings=settings,
            model=wrapped,
            batches=lambda: self._batches(wrapped, settings),
            objective=lambda: make_objective(data, wrapped, settings),
            metric=data.metrics[0],
            score=lambda: evaluate_examples(wrapped, data.kind, data.dev, data.metrics).metrics,
            finish=lambda run, used: self._finish(run, wrapped, tuned, used, used.summary),
        )

    def _batches(self, wrapped: Model, settings: ResolvedSettings) -> TaskBatches:
        """Return the batches; first set the head to a fitted linear model if the settings or the pooling require it."""
        batches = _batches(self.data, self.base, wrapped, settings, self.device, self.progress)
        wanted = settings.linear_start
        if wanted or (wanted is None and wrapped.bert.pooling == "separate"):
            few = FewLabels(self.data, wrapped, settings)
            self.progress.say(f"the head starts as {few.method}: {few.fit_start()}")
        return batches

    def few_labels(self) -> TrainingParts:
        """Return the parts of the few-label method: optional contrastive training, then a fitted linear head."""
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
            self._finish(run, model, tuned, used, method, advised=False)

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
        """Compare both methods on held-out training rows; return the parts of the better one.

        Fine-tuning continues from the model of the comparison.
        """
        quiet = replace(self, progress=StageProgress(self.progress))  # messages are shown once, by the final training

        def fit(fold: TaskData) -> float:
            _, few = replace(quiet, data=fold)._start_few()
            few.fit()
            return evaluate_examples(few.model, fold.kind, fold.dev, fold.metrics).metrics[fold.metrics[0]]

        def tune(fold: TaskData, folder: Path) -> float:
            try:
                run_training(replace(quiet, data=fold)._compared(), folder, fresh=fresh, progress=quiet.progress)
            except DivergedError:
                return 0.0  # there is no model to evaluate
            return float(Run(folder).results()[fold.metrics[0]])

        if choose_few(run, self.data, fit, tune, self.progress):
            return self.few_labels()
        compared = Run(run.folder / COMPARISON)
        if not compared.finished:
            return parts
        _copy_history(compared, run)
        tuned, wrapped = quiet._start(self.settings)
        wrapped.bert.load_state_dict(load_folder(compared.model_folder).model.state_dict())
        return self._continued(tuned, wrapped)

    def _compared(self) -> TrainingParts:
        """Return the parts of fine-tuning for the comparison, which evaluates the model once, at the end."""
        settings = replace(self.settings, few=False)
        tuned, wrapped = self._start(settings)
        data = self.data

        def finish(run: Run, used: ResolvedSettings) -> None:  # noqa: ARG001
            run.write_results(evaluate_examples(wrapped, data.kind, data.dev, data.metrics).metrics)
            run.finish(with_trained_pooling(tuned))

        return replace(self._tune(settings, tuned, wrapped), score=dict, finish=finish)

    def _continued(self, tuned: ModelFolder, wrapped: Model) -> TrainingParts:
        """Return the parts of fine-tuning that continue with the model of the comparison, on all rows."""
        whole, epochs = self.settings, remaining_epochs(self.settings.epochs)
        settings = replace(whole, epochs=epochs, linear_start=False)

        def finish(run: Run, used: ResolvedSettings) -> None:
            used = replace(used, epochs=whole.epochs)
            method = f"{used.summary}; then {epochs} epochs with the rows that were held out to compare methods"
            self._finish(run, wrapped, tuned, used, method)

        return replace(self._tune(settings, tuned, wrapped), finish=finish)

    def _start(self, settings: ResolvedSettings) -> tuple[ModelFolder, Model]:
        tuned = add_head(self.base, self.name, self.data, settings, self.recorded, self.progress)
        return tuned, Model(tuned, device=self.device)

    def _start_few(self) -> tuple[ModelFolder, FewLabels]:
        """Return the model with a linear head on sentence vectors: mean pooling unless the settings or pairs differ."""
        usual: HeadPooling = "separate" if has_pairs(self.data) and not self.settings.contrastive else "mean"
        tuned, wrapped = self._start(replace(self.settings, pooling=self.settings.pooling or usual))
        return tuned, FewLabels(self.data, wrapped, self.settings)

    def _finish(
        self,
        run: Run,
        wrapped: Model,
        tuned: ModelFolder,
        used: ResolvedSettings,
        method: str,
        *,
        advised: bool = True,
    ) -> None:
        """Calibrate and fit on the dev rows, write scores, baseline and advice, and finish the run.

        Args:
            run: The run.
            wrapped: The trained model.
            tuned: The contents of its folder.
            used: The settings of the training.
            method: A description of the training, for the model card.
            advised: Whether to suggest what to try next; there is nothing to suggest for a head fitted to convergence.
        """
        data = self.data
        calibrate = data.kind.calibrate if used.calibrate else None
        calibration = None if calibrate is None else calibrate(wrapped, data.dev, data.metrics)
        if calibration is not None:
            tuned = replace(tuned, task=calibration.task)
            wrapped = _with_task(wrapped, tuned)
        if self.fit and data.kind.fit_on_dev is not None:
            tuned = replace(tuned, task=data.kind.fit_on_dev(wrapped, data.dev))
            wrapped = _with_task(wrapped, tuned)
        evaluation = evaluate_examples(wrapped, data.kind, data.dev, data.metrics)
        # Without dev rows the scores are on training rows, where a comparison with the baseline is meaningless.
        if used.baseline and data.dev is not data.train:
            evaluation = replace(evaluation, baseline=baseline_scores(evaluation, self.baselines, self.progress))
        write_report(evaluation, run.folder)
        write_resamples(evaluation.rows, data.metrics[0], run.folder, fingerprint(data.dev))
        if calibration is not None:
            run.write_results(evaluation.results() | calibration.results())
        if advised:
            defaults = choose_defaults(tuned.model.config.hidden_size, len(data.train), used)
            run.write_advice(advise(run.metrics(), evaluation, used, defaults, data.metrics[0]), self.progress)
        card = finetuning_card(tuned, evaluation, method, data, self.recorded)
        run.finish(replace(with_trained_pooling(tuned), card=card))


def _copy_history(compared: Run, run: Run) -> None:
    """Copy the metrics of the comparison before those of the run, with steps that end at 0."""
    rows = [] if run.metrics() else compared.metrics()
    for row in rows:
        values = {name: value for name, value in row.items() if name != "step"}
        run.log(int(row["step"] - rows[-1]["step"]), **values)


def _batches(
    data: TaskData,
    base: ModelFolder,
    wrapped: Model,
    settings: ResolvedSettings,
    device: str | None,
    progress: Progress,
) -> TaskBatches:
    """Augment and encode the training rows; for a frozen model, also compute its states."""
    rows = augment_rows(data, base, settings, device, progress)
    assert data.kind.items is not None, "kinds with labels have items"
    tokenizer = wrapped.tokenizer
    report_unknown(tokenizer, [text for texts in data.train.documents() for text in texts], progress)
    items = data.kind.items(rows, tokenizer, settings, progress)
    batches = make_batches(items, data.kind, tokenizer, settings, choose_device(device), progress)
    cache_frozen_states(wrapped.bert, batches.items, tokenizer.pad_id, progress)
    return batches


def _recorded(source: Mapping[str, Any], model: str | Path, data: TaskData) -> dict[str, Any]:
    """Return the facts that must be the same when the run is resumed."""
    # By content: a changed file would change what is learned, or the size of the head.
    labels = None if data.labels is None else list(data.labels.names)
    facts = {"rows": len(data.train), "labels": labels, "content": fingerprint(data.train, data.dev)}
    return {"command": "finetune", "model": str(Path(model)), "base": base_files(model), **source, **facts}


def _with_task(model: Model, tuned: ModelFolder) -> Model:
    """Return the model with values fitted on the dev rows; warnings that were given before are not repeated."""
    fitted = Model(tuned, device=str(model.device))
    fitted.warnings = model.warnings
    return fitted


def finetuning_card(
    tuned: ModelFolder, evaluation: Evaluation, method: str, data: TaskData, recorded: Mapping[str, Any]
) -> str:
    """Return the model card of a fine-tuned model; ``method`` describes the training, ``recorded`` is from the run."""
    assert tuned.task is not None
    # After cross-validation, the model on all rows has no other rows for an evaluation.
    scored = "training rows, which say little about new ones" if data.dev is data.train else "dev rows"
    labels, loading = ", ".join(tuned.task.names) or data.kind.answers, loading_note(tuned.model)
    return (
        f"# BERT, fine-tuned to {tuned.task.kind}\n\n"
        f"- answers: {labels}\n- from: {recorded['model']}\n"
        f"- rows: {recorded['task']}, {recorded['data']} ({recorded['content'][:12]})\n"
        f"- training: {len(data.train):,} rows, {method}\n\n"
        f"On {len(evaluation.predictions):,} {scored}:\n\n{card_scores(evaluation)}\n"
        + (f"\nLoading: {loading}" if loading is not None and tuned.adapter is None else "")
        + ("\n`cloze.load(folder).embed` returns vectors of length 1.\n" if tuned.embedding.normalize else "")
    )
