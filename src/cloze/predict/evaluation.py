"""Score a model on labelled rows: the official metrics, and the prediction for each row."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cloze.errors import ConfigError, RequestError
from cloze.predict.model import Model, load
from cloze.tasks.answering.decoding import check_longest
from cloze.tasks.correction.examples import correction_columns, read_corrections
from cloze.tasks.correction.kind import CORRECTION_NAME
from cloze.tasks.correction.metrics import score_corrections
from cloze.tasks.examples import Examples, LabelSet
from cloze.tasks.kind import TaskKind
from cloze.tasks.memory import as_table_source, is_paired
from cloze.tasks.registry import find_task, read_examples
from cloze.tasks.reports import Evaluation
from cloze.tasks.rows import OnBadRow, RowSettings, Source
from cloze.tasks.similarity.kind import SIMILARITY, QuestionAnswers, ScoredPairs, Vectors, read_rated


def evaluate_examples(
    model: Model, kind: TaskKind, examples: Examples, metrics: Sequence[str], **options: Any
) -> Evaluation:
    """Score a model on rows with targets; the options are those of the kind, such as ``longest`` for answers."""
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
) -> Evaluation:
    """Score a model on labelled rows of a file or in memory.

    Args:
        task: What the model was fine-tuned to do, or a published task. Or the model, if ``data`` is a ``Source``.
        data: The rows: a path, a list of dicts, ``(texts, labels)``, a data frame, an Arrow table, a data set, or any
            iterable of rows; for a published task, its folder.
        model: A fine-tuned model folder or run, a hub name, or a loaded model.
        split: Which split of a published task.
        text, pair, label, options: The columns, as for ``finetune``.
        on_bad_row: stop, or skip and count.
        device: Where to compute; by default the best device.
        longest: For answers in texts: maximum tokens per answer; by default, as the model was fine-tuned.

    Returns:
        The scores, and the prediction of each row.

    Example:
        >>> cloze.evaluate("classify", frame, model=run, text="review", label="stars").metrics
    """
    if isinstance(data, Source):
        return _evaluate(task, data, split, device, longest)
    if model is None or not isinstance(task, str):
        raise ConfigError("model is missing; give a task, its rows and a model: evaluate('...', rows, model=run)")
    pair = pair or ("pair" if is_paired(data) else None)
    rows = as_table_source(data, "data", text=text, pair=pair, label=label)
    return _evaluate(model, Source(task, rows, None, text, pair, label, on_bad_row, options), split, device, longest)


def _evaluate(model: Any, source: Source, split: str, device: str | None, longest: int | None) -> Evaluation:
    if source.task.lower() == CORRECTION_NAME:
        return _evaluate_correction(model, source, device)
    if source.task.lower() == SIMILARITY.name:
        return _evaluate_similarity(model, source, split, device, longest)
    spec = find_task(source.task)
    if longest is not None and "longest_answer" not in spec.kind.settings:
        raise RequestError(f"longest is {longest}, which is for answers in texts; {source.task} is to {spec.kind}")
    check_longest(longest)
    loaded = load_tuned(model, source.task, device=device)
    assert loaded.task is not None
    names = loaded.task.names
    examples = read_examples(source, names or None, split)
    metrics = spec.metrics_for(LabelSet(names) if names else None)
    loaded.warnings.unknown(loaded.tokenizer, [text for texts in examples.documents() for text in texts])
    options = {} if longest is None else {"longest": longest}
    evaluation = evaluate_examples(loaded, spec.kind, examples, metrics, **options)
    return replace(evaluation, skipped=examples.skipped, unlabelled=getattr(examples, "unlabelled", 0))


def _evaluate_similarity(model: Any, source: Source, split: str, device: str | None, longest: int | None) -> Evaluation:
    """Score the vectors of any model on pairs with labels, or on questions with their answers."""
    if split not in ("train", "dev"):
        raise RequestError(f"files of your own have no split {split!r}; leave it out, and name the file itself")
    if longest is not None:
        raise RequestError(f"longest is {longest}, which is for answers in texts; leave it out for {source.task}")
    rated = read_rated(source, source.rows_of("dev"))
    loaded = model if isinstance(model, Model) else load(model, device=device)
    return rated.evaluation(*embed_both(loaded, rated))


def embed_both(model: Model, rated: ScoredPairs | QuestionAnswers) -> tuple[Vectors, Vectors]:
    """Return the vectors of first and of second texts, computed together."""
    vectors = model.embed([*rated.firsts, *rated.seconds])
    return vectors[: len(rated.firsts)], vectors[len(rated.firsts) :]


def _evaluate_correction(model: Any, source: Source, device: str | None) -> Evaluation:
    """Score corrected texts against the correct ones."""
    expected = read_corrections(source.data, *correction_columns(source.text, source.label), source.on_bad_row)
    loaded = model if isinstance(model, Model) else load(model, device=device)
    predictions = [corrected.target for corrected in loaded.correct(expected.sources)]
    metrics = score_corrections(expected.sources, expected.targets, predictions)
    inputs = [{"text": text} for text in expected.sources]
    return Evaluation(dict(metrics), predictions, expected.places, expected.targets, inputs, skipped=expected.skipped)


def load_tuned(model: str | os.PathLike[str] | Model, name: str, *, device: str | None = None) -> Model:
    """Load a model; raise ``RequestError`` unless it was fine-tuned for the kind of this task."""
    kind = find_task(name).kind
    loaded = model if isinstance(model, Model) else load(model, device=device)
    task = loaded.task
    if task is None or task.kind != kind.name or kind.head not in loaded.heads:
        ability = f"does {task.kind}" if task else f"has the heads: {', '.join(loaded.heads) or 'none'}"
        place = "the model" if isinstance(model, Model) else os.fspath(model)
        raise RequestError(
            f"{place}: {name} needs a model fine-tuned to {kind}; this one {ability}; make one with cloze finetune"
        )
    return loaded
