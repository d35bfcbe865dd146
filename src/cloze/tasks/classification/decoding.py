"""Logits -> labels, label sets or numbers; their evaluation, and calibration (Guo et al. 2017).

Temperature and threshold are fitted on dev rows and saved with the model. Scores on the same rows are therefore
slightly optimistic; scores on a test set are not.
Dimensions: N texts, L labels.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloze.errors import ConfigError, RequestError
from cloze.tasks.classification.kind import MULTILABEL, LabelledTexts
from cloze.tasks.examples import Examples, LabelSet
from cloze.tasks.intervals import MetricRows
from cloze.tasks.kind import Predictor, TaskLabels
from cloze.tasks.metrics import confusion, score
from cloze.tasks.reports import Confusion, Evaluation

Floats = NDArray[np.float32]

_BINS = 15
_LOWEST_TEMPERATURE, _HIGHEST_TEMPERATURE = 0.05, 20.0
_MOST_THRESHOLDS = 400


@dataclass(frozen=True)
class Label:
    """A text's label, its probability, and the probability of every label.

    The label is None if the model abstains; ``reason`` then says why.
    """

    label: str | None
    probability: float
    probabilities: Mapping[str, float]
    reason: str | None = None


@dataclass(frozen=True)
class Labels:
    """All labels predicted for a text, and the probability of every label."""

    labels: tuple[str, ...]
    probabilities: Mapping[str, float]


# -- logits -> results -------------------------------------------------------------------------------------------------


def probabilities(task: TaskLabels, logits: Floats) -> Floats:
    """Convert logits to probabilities, (N, L): a softmax over labels, or an independent sigmoid for every label."""
    scaled = logits / task.temperature
    if task.kind == MULTILABEL.name:
        independent: Floats = 1 / (1 + np.exp(-scaled))
        return independent
    exponents = np.exp(scaled - scaled.max(-1, keepdims=True, initial=-np.inf))
    shares: Floats = exponents / exponents.sum(-1, keepdims=True)
    return shares


def predicted_classes(task: TaskLabels, logits: Floats) -> NDArray[np.int64]:
    """Return each text's label index, (N,): the most likely or, with a threshold, the second if it reaches it."""
    if task.threshold is not None and len(task.names) == 2:
        return (probabilities(task, logits)[:, 1] >= task.threshold).astype(np.int64)
    most_likely: NDArray[np.int64] = logits.argmax(-1)
    return most_likely


def predicted_flags(task: TaskLabels, logits: Floats) -> NDArray[np.bool_]:
    """Return which labels are predicted, (N, L)."""
    return probabilities(task, logits) >= (0.5 if task.threshold is None else task.threshold)


def to_labels(task: TaskLabels, logits: Floats, *, abstain: bool = True) -> list[Label]:
    """Convert logits (N, L) to one ``Label`` per text; below the threshold of the task, the model may abstain."""
    rows = zip(probabilities(task, logits), predicted_classes(task, logits), strict=True)
    return [
        _to_label(task if abstain else replace(task, abstain_below=None), index, row.tolist()) for row, index in rows
    ]


def _to_label(task: TaskLabels, index: int, shares: Sequence[float]) -> Label:
    probability, by_name = shares[index], dict(zip(task.names, shares, strict=True))
    if task.abstain_below is None or probability >= task.abstain_below:
        return Label(task.names[index], probability, by_name)
    reason = f"probability {probability:.4f} of {task.names[index]!r} is below {task.abstain_below:.4f}"
    return Label(None, probability, by_name, reason)


def to_label_sets(task: TaskLabels, logits: Floats) -> list[Labels]:
    """Convert logits (N, L) to one ``Labels`` per text."""
    rows = zip(probabilities(task, logits), predicted_flags(task, logits), strict=True)
    return [
        Labels(
            tuple(name for name, flag in zip(task.names, flags, strict=True) if flag),
            dict(zip(task.names, row.tolist(), strict=True)),
        )
        for row, flags in rows
    ]


# -- predictions as JSON rows ------------------------------------------------------------------------------------------


def respond_labels(predictor: Predictor, inputs: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:
    """Return one label per tokenized text, with probabilities; a model that may abstain also gives its reason."""
    task, logits = _answer(predictor, inputs)
    rows = [asdict(label) for label in to_labels(task, logits, abstain=options.get("abstain", True))]
    if task.abstain_below is None:
        for row in rows:
            del row["reason"]
    return rows


def respond_label_sets(predictor: Predictor, inputs: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:  # noqa: ARG001
    """Return all predicted labels per tokenized text, with probabilities."""
    return [asdict(labels) for labels in to_label_sets(*_answer(predictor, inputs))]


def respond_numbers(predictor: Predictor, inputs: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:  # noqa: ARG001
    """Return one number per tokenized text."""
    return [{"value": float(value)} for value in _answer(predictor, inputs)[1][:, 0]]


def _answer(predictor: Predictor, inputs: Sequence[Any]) -> tuple[TaskLabels, Floats]:
    logits, task = predictor.logits_encoded(inputs), predictor.task
    if task is None:
        raise RequestError("this model's folder does not define its labels; fine-tune it with cloze")
    return task, logits


# -- evaluation --------------------------------------------------------------------------------------------------------


def evaluate_labels(predictor: Predictor, examples: LabelledTexts, metrics: Sequence[str]) -> Evaluation:
    """Evaluate a model that predicts one label per text."""
    task, targets, logits = _predict(predictor, examples)
    classes = predicted_classes(task, logits).tolist()
    return Evaluation(
        score(metrics, targets, classes),
        [task.names[index] for index in classes],
        examples.places,
        [task.names[int(index)] for index in targets],
        _inputs(examples),
        Confusion(task.names, confusion(LabelSet(task.names), targets, classes)),
        rows=MetricRows(metrics, targets, classes, task.names),
        probabilities=np.take_along_axis(probabilities(task, logits), np.asarray(classes)[:, None], 1)[:, 0].tolist(),
    )


def evaluate_label_sets(predictor: Predictor, examples: LabelledTexts, metrics: Sequence[str]) -> Evaluation:
    """Evaluate a model that predicts any number of labels per text."""
    task, targets, logits = _predict(predictor, examples)
    flags = _flags(task, logits)
    predictions, expected = _join_names(task, flags), _join_names(task, targets)
    scores, rows = score(metrics, targets, flags), MetricRows(metrics, targets, flags, task.names)
    return Evaluation(
        scores,
        predictions,
        examples.places,
        expected,
        _inputs(examples),
        rows=rows,
        # Probability of the set: the product over all labels, whether predicted or not.
        probabilities=np.where(flags, shares := probabilities(task, logits), 1 - shares).prod(1).tolist(),
    )


def evaluate_numbers(predictor: Predictor, examples: LabelledTexts, metrics: Sequence[str]) -> Evaluation:
    """Evaluate a model that predicts a number per text."""
    _, targets, logits = _predict(predictor, examples)
    numbers = [float(value) for value in logits[:, 0]]
    errors = [abs(number - float(target)) for number, target in zip(numbers, targets, strict=True)]
    predictions, expected = [str(number) for number in numbers], [str(target) for target in targets]
    scores = score(metrics, targets, numbers)
    rows = MetricRows(metrics, targets, numbers)
    return Evaluation(scores, predictions, examples.places, expected, _inputs(examples), errors=errors, rows=rows)


def _predict(predictor: Predictor, examples: LabelledTexts) -> tuple[TaskLabels, Sequence[Any], Floats]:
    if examples.targets is None:
        raise RequestError("these rows have no labels to evaluate against; evaluate on a split that has them")
    assert predictor.task is not None, "a fine-tuned folder defines its labels"
    return predictor.task, examples.targets, predictor.logits(examples.texts, examples.pairs)


def _flags(task: TaskLabels, logits: Floats) -> list[tuple[float, ...]]:
    return [tuple(map(float, row)) for row in predicted_flags(task, logits)]


def _join_names(task: TaskLabels, flags: Sequence[Any]) -> list[str]:
    return ["|".join(name for name, flag in zip(task.names, row, strict=True) if flag) for row in flags]


def _inputs(examples: LabelledTexts) -> list[dict[str, str]]:
    if examples.pairs is None:
        return [{"text": text} for text in examples.texts]
    return [{"text": text, "pair": pair} for text, pair in zip(examples.texts, examples.pairs, strict=True)]


# -- calibration -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Calibration:
    """A task with its temperature and threshold, and the calibration error before and after."""

    task: TaskLabels
    error_before: float
    error_after: float

    def results(self) -> dict[str, float]:
        """Return the figures to add to ``eval_results.json``."""
        figures = {
            "temperature": self.task.temperature,
            "calibration_error_before": self.error_before,
            "calibration_error": self.error_after,
        }
        return figures if self.task.threshold is None else {**figures, "threshold": self.task.threshold}


def calibrate_texts(predictor: Predictor, examples: Examples, metrics: Sequence[str]) -> Calibration:
    """Fit temperature and threshold on rows with labels."""
    task = predictor.task
    if task is None or not isinstance(examples, LabelledTexts):
        state = f"is fine-tuned to {task.kind}" if task else "is not fine-tuned"
        raise ConfigError(f"calibrate applies only to classification; this model {state}")
    logits = predictor.logits(examples.texts, examples.pairs)
    targets = examples.targets
    assert targets is not None, "dev rows have labels"

    def score_of(candidate: TaskLabels) -> float:
        predictions: Sequence[Any]
        if candidate.kind == MULTILABEL.name:
            predictions = _flags(candidate, logits)
        else:
            predictions = predicted_classes(candidate, logits).tolist()
        return score(metrics[:1], targets, predictions)[metrics[0]]

    return calibrate(task, logits, np.asarray(targets, np.int64), score_of)


def calibrate(
    task: TaskLabels, logits: Floats, targets: NDArray[np.int64], score: Callable[[TaskLabels], float]
) -> Calibration:
    """Fit the temperature and, for two labels or independent labels, the threshold.

    Args:
        task: The task of the logits.
        logits: Logits on the dev rows, (N, L).
        targets: Label indices, (N,), or 0 and 1, (N, L).
        score: The score to maximize with the threshold.
    """
    from scipy.optimize import minimize_scalar  # deferred: slow to import, and the service never calibrates

    def negative_log_likelihood(temperature: float) -> float:
        shares = probabilities(replace(task, temperature=float(temperature)), logits)
        return float(-np.log(np.clip(_of_target(shares, targets), 1e-12, 1)).mean())

    bounds = (_LOWEST_TEMPERATURE, _HIGHEST_TEMPERATURE)
    fitted = minimize_scalar(negative_log_likelihood, bounds=bounds, method="bounded")
    scaled = replace(task, temperature=float(fitted.x))
    if task.kind == MULTILABEL.name or len(task.names) == 2:
        scaled = replace(scaled, threshold=_best_threshold(scaled, logits, score))
    before, after = (calibration_error(probabilities(one, logits), targets) for one in (task, scaled))
    return Calibration(scaled, before, after)


def calibration_error(shares: Floats, targets: NDArray[np.int64]) -> float:
    """Return the expected calibration error: the mean gap between confidence and accuracy, over bins of confidence."""
    if targets.ndim == 2:
        confidence, correct = shares.ravel(), targets.ravel().astype(float)
    else:
        confidence, correct = shares.max(-1), (shares.argmax(-1) == targets).astype(float)
    bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    gaps = [
        abs(confidence[bins == number].mean() - correct[bins == number].mean()) * (bins == number).mean()
        for number in np.unique(bins)
    ]
    return float(sum(gaps))


def _of_target(shares: Floats, targets: NDArray[np.int64]) -> Floats:
    if targets.ndim == 2:
        return np.where(targets == 1, shares, 1 - shares)
    truth: Floats = shares[np.arange(len(targets)), targets]
    return truth


def _best_threshold(task: TaskLabels, logits: Floats, score: Callable[[TaskLabels], float]) -> float:
    """Return the best midpoint between two neighbouring probabilities; of equally good ones, the nearest to 0.5."""
    shares = probabilities(task, logits)
    values = np.unique(shares if task.kind == MULTILABEL.name else shares[:, 1])
    if len(values) > _MOST_THRESHOLDS:  # neighbouring values differ little, so a sample suffices
        values = np.quantile(values, np.linspace(0, 1, _MOST_THRESHOLDS))
    middles = np.append((values[1:] + values[:-1]) / 2, 0.5)
    return float(max(middles, key=lambda one: (score(replace(task, threshold=float(one))), -abs(one - 0.5))))
