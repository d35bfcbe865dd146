"""Evaluate a model on labelled rows: the official metrics, and the prediction for each row.

The labels of GLUE's test rows are not published. Predictions for them are written in the format of the GLUE server: one
TSV per test file with the columns ``index`` and ``prediction``.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from cloze.checkpoint import find_source
from cloze.checkpoint.adapter_folder import store_abstention
from cloze.errors import ConfigError, DataError, RequestError
from cloze.files import replaced_file
from cloze.predict.clustering import CLUSTERING_NAME, evaluate_clustering
from cloze.predict.loading import load
from cloze.predict.model import Model
from cloze.predict.retrieval import evaluate_retrieval
from cloze.progress import Progress, Silent
from cloze.tasks.answering.decoding import check_longest
from cloze.tasks.baselines import baseline_scores, compare_with_floor, score_cosines
from cloze.tasks.classification.decoding import predicted_classes
from cloze.tasks.classification.published import PublishedTask, find_glue_task, find_split, read_unlabelled_split
from cloze.tasks.correction.examples import correction_columns, read_corrections
from cloze.tasks.correction.kind import CORRECTION_NAME
from cloze.tasks.correction.metrics import CorrectedRows, score_corrections
from cloze.tasks.examples import Examples, LabelSet
from cloze.tasks.in_memory import as_table_source, is_paired
from cloze.tasks.kind import TaskKind
from cloze.tasks.metrics import choose_abstention, risk_coverage
from cloze.tasks.registry import find_task, read_examples
from cloze.tasks.reports import RISK_COVERAGE, Evaluation
from cloze.tasks.retrieval.examples import read_retrieval, retrieval_source
from cloze.tasks.retrieval.kind import RETRIEVAL_NAME, RetrievalData
from cloze.tasks.rows import OnBadRow, RowSettings, Source
from cloze.tasks.similarity.kind import SIMILARITY, QuestionAnswers, ScoredPairs, Vectors, read_rated


def evaluate_examples(
    model: Model, kind: TaskKind, examples: Examples, metrics: Sequence[str], **options: Any
) -> Evaluation:
    """Evaluate a model on rows with targets; the options depend on the task kind, such as ``longest`` for answers."""
    assert kind.evaluate is not None, "a kind with labels can be scored"
    return kind.evaluate(model, examples, metrics, **options)


def evaluate(
    task: str | os.PathLike[str] | Model,
    data: Any = None,
    *,
    model: str | os.PathLike[str] | Model | None = None,
    split: str = "dev",
    text: str = RowSettings.text,
    pair: str | None = RowSettings.pair,
    label: str = RowSettings.label,
    options: str = RowSettings.options,
    on_bad_row: OnBadRow | None = None,
    device: str | None = None,
    longest: int | None = None,
    abstain_at: float | None = None,
) -> Evaluation:
    """Evaluate a fine-tuned model on labelled rows.

    Args:
        task: The kind of task (classify, tag, ...) or a published task; similarity, retrieval or clustering for the
            vectors of any model; or the model, if ``data`` is a ``Source``.
        data: The rows: a path, a list of dicts, ``(texts, labels)``, a data frame, an Arrow table, a data set, or any
            iterable of rows; for a published task, its folder; for retrieval also a ``RetrievalData`` or a folder of
            BEIR.
        model: A fine-tuned model folder or run, a hub name, or a loaded model.
        split: The split of a published task.
        text, pair, label, options: The names of the columns, as for ``finetune``.
        on_bad_row: On a malformed row: stop, or skip and count it.
        device: cpu, cuda or mps; by default, the best available.
        longest: For answer: maximum answer length in tokens; by default, as the model was fine-tuned.
        abstain_at: For classify: an error rate. The lowest probability above which new rows of this kind have at most
            this error rate, with 95 % certainty, is stored with the model, which then abstains below it.

    Returns:
        The metrics with their intervals, and the prediction of each row.

    Raises:
        RequestError: If the model was not fine-tuned for this kind of task.
        DataError: If the rows cannot be read.

    Example:
        >>> rows = [{"review": "A wonderful film.", "stars": "good"}, {"review": "A dull film.", "stars": "bad"}]
        >>> result = cloze.evaluate("classify", rows, model="runs/reviews", text="review", label="stars")
        >>> sorted(result.metrics)
        ['accuracy', 'macro_f1']
    """
    if isinstance(data, Source):
        return _evaluate(task, data, split, device, longest, abstain_at)
    if model is None or not isinstance(task, str):
        raise ConfigError("model is missing; give a task, its rows and a model: evaluate('...', rows, model=run)")
    if task.lower() == RETRIEVAL_NAME:
        columns = RowSettings(text, pair, label, on_bad_row=on_bad_row)
        given = data if isinstance(data, RetrievalData) else retrieval_source(data, rows=columns)
        return _evaluate_retrieval(model, given, split, device)
    pair = pair or ("pair" if is_paired(data) else None)
    rows = as_table_source(data, "data", text=text, pair=pair, label=label)
    source = Source(task, rows, None, text, pair, label, on_bad_row, options)
    return _evaluate(model, source, split, device, longest, abstain_at)


def _evaluate(
    model: Any, source: Source, split: str, device: str | None, longest: int | None, abstain_at: float | None
) -> Evaluation:
    if abstain_at is not None:
        check_abstention(source.task, abstain_at, model)
    if source.task.lower() == CORRECTION_NAME:
        return _evaluate_correction(model, source, device)
    if source.task.lower() == RETRIEVAL_NAME:
        return _evaluate_retrieval(model, source, split, device)
    if source.task.lower() == CLUSTERING_NAME:
        _refuse_options(source, split, longest)
        return evaluate_clustering(model if isinstance(model, Model) else load(model, device=device), source)
    if source.task.lower() == SIMILARITY.name:
        return _evaluate_similarity(model, source, split, device, longest)
    spec = find_task(source.task)
    if longest is not None and "longest_answer" not in spec.kind.settings:
        raise RequestError(
            f"longest is {longest}, which applies only to question answering; leave it out for {source.task}"
        )
    check_longest(longest)
    loaded = load_tuned(model, source.task, device=device)
    assert loaded.task is not None
    names = loaded.task.names
    examples = read_examples(source, names or None, split)
    metrics = spec.metrics_for(LabelSet(names) if names else None)
    loaded.warnings.unknown(loaded.tokenizer, [text for texts in examples.documents() for text in texts])
    options = {} if longest is None else {"longest": longest}
    evaluation = evaluate_examples(loaded, spec.kind, examples, metrics, **options)
    floor = None
    if spec.kind.floor is not None:
        # Without training rows, the baseline is computed from the scored rows: their majority label, mean, or chance.
        floor = spec.kind.floor(examples, examples, LabelSet(names) if names else None, metrics)
    evaluation = replace(
        evaluation,
        skipped=examples.skipped,
        unlabelled=getattr(examples, "unlabelled", 0),
        baseline=compare_with_floor(evaluation, floor),
    )
    if abstain_at is not None:
        return _set_abstention(loaded, model, evaluation, abstain_at)
    return _report_abstention(loaded, evaluation)


# -- abstention --------------------------------------------------------------------------------------------------------


def check_abstention(task: str, rate: float, model: Any) -> None:
    """Refuse an error rate to abstain at that cannot be used; before any work is done."""
    without_labels = ("mlm", CORRECTION_NAME, SIMILARITY.name, RETRIEVAL_NAME, CLUSTERING_NAME)
    if task.lower() in without_labels or not _can_abstain(find_task(task).kind):
        raise ConfigError(f"abstain_at is {rate:g}, which only applies to classify; leave it out for {task}")
    if not 0 < rate < 1:
        raise ConfigError(f"abstain_at is {rate:g}; expected an error rate above 0 and below 1, such as 0.05")
    if not isinstance(model, Model) and not Path(model).exists():
        raise ConfigError(f"{model}: abstain_at changes the model's folder, but this is a name; save a copy first")


def _can_abstain(kind: TaskKind) -> bool:
    """Return whether models of this kind give each text one label, with a probability."""
    return kind.head == "sequence" and kind.targets == "index"


def _set_abstention(model: Model, place: Any, evaluation: Evaluation, rate: float) -> Evaluation:
    """Choose the probability below which a model abstains, and store it with the model."""
    assert evaluation.targets is not None
    assert evaluation.probabilities is not None
    correct = _correct_rows(evaluation)
    chosen, curve = (
        choose_abstention(evaluation.probabilities, correct, rate),
        risk_coverage(evaluation.probabilities, correct),
    )
    assert model.task is not None
    task = replace(model.task, abstain_below=chosen.below, abstain_rate=rate)
    model._folder = replace(model._folder, task=task)
    if not isinstance(place, Model):
        store_abstention(find_source(place), task)
    points = {"coverage": curve.coverage.tolist(), "risk": curve.risk.tolist(), "threshold": asdict(chosen)}
    return replace(
        evaluation,
        abstention=asdict(chosen) | {"area": curve.area, "best_area": curve.best_area},
        files={**evaluation.files, RISK_COVERAGE: points},
    )


def _correct_rows(evaluation: Evaluation) -> list[bool]:
    assert evaluation.targets is not None
    rows = zip(evaluation.predictions, evaluation.targets, strict=True)
    return [prediction == target for prediction, target in rows]


def _report_abstention(model: Model, evaluation: Evaluation) -> Evaluation:
    """Add how many rows a model with a threshold answers, and with which error rate."""
    below = None if model.task is None else model.task.abstain_below
    if below is None or evaluation.probabilities is None:
        return evaluation
    rows = zip(evaluation.probabilities, _correct_rows(evaluation), strict=True)
    answered = [correct for probability, correct in rows if probability >= below]
    risk = answered.count(False) / len(answered) if answered else None
    found = {"below": below, "coverage": len(answered) / len(evaluation.predictions), "risk": risk}
    return replace(evaluation, abstention=found)


def _evaluate_similarity(model: Any, source: Source, split: str, device: str | None, longest: int | None) -> Evaluation:
    """Evaluate the vectors of any model on pairs with labels, or on questions with their answers."""
    _refuse_options(source, split, longest)
    rated = read_rated(source, source.rows_of("dev"))
    loaded = model if isinstance(model, Model) else load(model, device=device)
    return evaluate_vectors(loaded, rated)


def _refuse_options(source: Source, split: str, longest: int | None) -> None:
    if split not in ("train", "dev"):
        raise RequestError(f"your own files have no split {split!r}; leave it out and give the file itself")
    if longest is not None:
        raise RequestError(
            f"longest is {longest}, which applies only to question answering; leave it out for {source.task}"
        )


def _evaluate_retrieval(model: Any, data: RetrievalData | Source, split: str, device: str | None) -> Evaluation:
    """Evaluate a model's rankings on queries and documents."""
    found = read_retrieval(data, split=split)
    return evaluate_retrieval(model if isinstance(model, Model) else load(model, device=device), found)


def evaluate_vectors(
    model: Model, rated: ScoredPairs | QuestionAnswers, *, baseline: bool = True, progress: Progress | None = None
) -> Evaluation:
    """Evaluate a model's vectors on pairs with labels, or on questions with their answers.

    Args:
        model: The model.
        rated: The rows.
        baseline: Whether to compare with TF-IDF vectors.
        progress: Receives a note if they cannot be compared.
    """
    evaluation = rated.evaluation(*embed_both(model, rated))
    if not baseline:
        return evaluation
    scores = baseline_scores(evaluation, lambda: [score_cosines(rated)], progress or Silent())
    return replace(evaluation, baseline=scores)


def embed_both(model: Model, rated: ScoredPairs | QuestionAnswers) -> tuple[Vectors, Vectors]:
    """Return the vectors of the first and of the second texts, computed together."""
    vectors = model.embed([*rated.firsts, *rated.seconds])
    return vectors[: len(rated.firsts)], vectors[len(rated.firsts) :]


def _evaluate_correction(model: Any, source: Source, device: str | None) -> Evaluation:
    """Evaluate corrections of texts with mistakes against the correct texts."""
    expected = read_corrections(source.data, *correction_columns(source.text, source.label), source.on_bad_row)
    loaded = model if isinstance(model, Model) else load(model, device=device)
    predictions = [corrected.target for corrected in loaded.correct(expected.sources)]
    metrics = score_corrections(expected.sources, expected.targets, predictions)
    inputs = [{"text": text} for text in expected.sources]
    return Evaluation(
        dict(metrics),
        predictions,
        expected.places,
        expected.targets,
        inputs,
        skipped=expected.skipped,
        rows=CorrectedRows(expected.sources, expected.targets, predictions),
    )


def load_tuned(model: str | os.PathLike[str] | Model, name: str, *, device: str | None = None) -> Model:
    """Load a model, and raise ``RequestError`` unless it was fine-tuned for the kind of this task."""
    kind = find_task(name).kind
    loaded = model if isinstance(model, Model) else load(model, device=device)
    task = loaded.task
    if task is None or task.kind != kind.name or kind.head not in loaded.heads:
        ability = f"is fine-tuned to {task.kind}" if task else f"has the heads: {', '.join(loaded.heads) or 'none'}"
        place = "the model" if isinstance(model, Model) else os.fspath(model)
        raise RequestError(
            f"{place}: {name} needs a model fine-tuned to {kind}; this one {ability}; train one with cloze finetune"
        )
    return loaded


# -- submissions -------------------------------------------------------------------------------------------------------


# File names of the submission, by split, for tasks with several test files.
_FILE_NAMES = {"test_matched": "MNLI-m", "test_mismatched": "MNLI-mm", "test_diagnostic": "AX"}


def answer_test_rows(model: str | Path, source: Source, out: Path, *, device: str | None = None) -> list[Path]:
    """Predict the test rows of a GLUE task and write the files to submit.

    Args:
        model: The folder or run of a model that was fine-tuned for this task.
        source: The task and its folder.
        out: The folder to write to.
        device: cpu, cuda or mps; by default, the best available.

    Returns:
        The files written.
    """
    task = find_glue_task(source.task)
    tuned = load_tuned(model, task.name, device=device)
    _check_labels(tuned, task, model)
    written = write_submission(tuned, task, source.path, out)
    if not written:
        raise DataError(f"{source.path}: no test file of {task.name} found; expected {task.folder} as published")
    return written


def _check_labels(tuned: Model, task: PublishedTask, name: str | Path) -> None:
    """Raise ``RequestError`` if the model's labels are not those of the task."""
    labels = tuned.task.names if tuned.task else ()
    if task.labels is not None and set(labels) != set(task.labels.names):
        raise RequestError(
            f"{name}: the labels of {task.name} are {', '.join(task.labels.names)}; this model has {', '.join(labels)}"
        )


def write_submission(model: Model, task: PublishedTask, data: Path, out: Path) -> list[Path]:
    """Predict all existing test files of a task, and return the files written."""
    splits = [split for split in task.files if split.startswith("test_")] or ["test"]
    return [_write(model, task, data, split, out) for split in splits if _exists(task, data, split)]


def _exists(task: PublishedTask, data: Path, split: str) -> bool:
    return find_split(task, data, split, missing_ok=True) is not None


def _write(model: Model, task: PublishedTask, data: Path, split: str, out: Path) -> Path:
    texts, pairs = read_unlabelled_split(task, data, split)
    logits = model.logits(texts, pairs)
    task_labels, kind = model.task, model.kind
    if task_labels is None or kind is None or kind.targets == "number":
        # The server expects similarities from 0 to 5.
        predictions = [f"{min(5.0, max(0.0, float(value))):.3f}" for value in logits[:, 0]]
    else:
        predictions = [task_labels.names[index] for index in predicted_classes(task_labels, logits)]
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{_FILE_NAMES.get(split, task.folder)}.tsv"
    lines = ["index\tprediction", *(f"{index}\t{prediction}" for index, prediction in enumerate(predictions))]
    with replaced_file(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
