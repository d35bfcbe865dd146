"""Which labels are probably wrong, and which unlabelled rows to label next.

Label errors: each row is predicted by a model that was fitted on other rows (out of fold, with k folds), since a model
that has seen a wrong label may repeat it. A row is suspicious if its given label has a low probability. Confident
learning (Northcutt et al. 2021, section 3.1) decides which rows are probable errors: the threshold of a label is the
mean probability of the label over the rows that have it, and a row is an error if the most probable of the labels above
their thresholds is not the given one.

Rows to label next: rows that the model is unsure about are worth most, but the most uncertain rows are often alike.
Rows are therefore drawn as in k-means++ (Arthur and Vassilvitskii 2007): each with a probability proportional to its
uncertainty times the squared distance of its vector from the nearest row that is already chosen, similar to BADGE (Ash
et al. 2020).

Dimensions: N rows, L labels, H features.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from cloze.errors import ConfigError, RequestError, format_option
from cloze.model.heads import compare_vectors
from cloze.models import SHIPPED_MODEL
from cloze.predict import Model, load
from cloze.progress import Progress, Silent
from cloze.tasks.classification.decoding import probabilities
from cloze.tasks.classification.kind import LabelledTexts
from cloze.tasks.examples import fold_indices
from cloze.tasks.in_memory import as_table_source, is_paired
from cloze.tasks.registry import TaskData, read_task
from cloze.tasks.reports import write_escaped
from cloze.tasks.rows import OnBadRow, RowSettings, Source
from cloze.train.finetuning.few_labels import STRENGTHS, LinearHead, Loss, fit_head, standardize
from cloze.train.finetuning.finetune import finetune_rows
from cloze.train.finetuning.settings import FinetuneSettings

Array = NDArray[np.float64]
Method = Literal["linear", "finetune"]

TABLE, PAGE = "label_errors.tsv", "label_errors.html"
HOW = {"linear": "logistic regression on sentence vectors", "finetune": "fine-tuning, once per fold"}


# -- label errors ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelError:
    """A row, its label, and what models that were fitted on other rows predict for it."""

    row: str  # its location
    texts: tuple[str, ...]
    label: str  # as given
    suggested: str  # the most probable label
    probability: float  # of the suggested label
    given_probability: float  # of the given label
    issue: bool  # whether it is a probable label error


@dataclass(frozen=True)
class LabelErrors:
    """All rows, the most suspicious first, and the accuracy of the out-of-fold predictions."""

    rows: tuple[LabelError, ...]
    accuracy: float
    folds: int
    method: Method

    @property
    def issues(self) -> list[LabelError]:
        """The probable label errors, the most suspicious first."""
        return [row for row in self.rows if row.issue]

    @property
    def summary(self) -> str:
        """The number of probable errors in one line."""
        return (
            f"{len(self.issues):,} of {len(self.rows):,} labels are probably wrong; out-of-fold accuracy "
            f"{self.accuracy:.4f} ({self.folds} folds, {HOW[self.method]})"
        )

    def __str__(self) -> str:
        return self.summary

    def write(self, path: Path) -> None:
        """Write all rows as a TSV file, the most suspicious first."""
        rows = []
        for row in self.rows:
            cells = {"row": row.row, **dict(zip(("text", "pair"), row.texts, strict=False))}
            cells |= {"label": row.label, "suggested": row.suggested, "probability": f"{row.probability:.4g}"}
            rows.append(cells | {"given_probability": f"{row.given_probability:.4g}", "issue": str(row.issue).lower()})
        write_escaped(rows, path)


def find_label_errors(
    task: str | Source,
    data: Any = None,
    *,
    model: str | Path | Model = SHIPPED_MODEL,
    text: str = RowSettings.text,
    pair: str | None = RowSettings.pair,
    label: str = RowSettings.label,
    on_bad_row: OnBadRow | None = None,
    folds: int = 5,
    method: Method = "linear",
    settings: FinetuneSettings | None = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> LabelErrors:
    """Find the rows of a classification whose labels are probably wrong.

    Args:
        task: ``classify``, or a published task with one label per text; or a ``Source``.
        data: The rows, in any form that ``cloze.finetune`` accepts.
        model: The model to start from. It should not have been fine-tuned on these rows, whose labels it may repeat.
        text: The column with the texts.
        pair: The column with the second texts of pairs, if there are any.
        label: The column with the labels.
        on_bad_row: ``stop``, or ``skip`` and count.
        folds: Number of folds: each row is predicted by a model that was fitted on the other folds.
        method: ``linear`` (a linear head on sentence vectors, fast) or ``finetune`` (fine-tuning for every fold).
        settings: The training settings, for ``finetune``.
        device: Where to compute; by default an accelerator if there is one.
        progress: Receives messages and progress.

    Returns:
        All rows, the most suspicious first; ``issues`` are the probable errors.

    Raises:
        ConfigError: If the task has no single label per text, or the folds do not fit the rows.
        DataError: If the rows cannot be read.

    Example:
        >>> rows = {"text": ["good", "bad"] * 20, "label": ["pos", "neg"] * 19 + ["neg", "pos"]}
        >>> len(cloze.find_label_errors("classify", rows).rows)
        40
    """
    progress = progress or Silent()
    if isinstance(task, Source):
        source = task
    else:
        pair = pair or ("pair" if is_paired(data) else None)
        rows = as_table_source(data, "data", text=text, pair=pair, label=label)
        source = Source(task, rows, None, text, pair, label, on_bad_row)
    read = read_task(source, part=False)
    examples = read.train
    if read.kind.targets != "index" or not isinstance(examples, LabelledTexts) or read.labels is None:
        raise ConfigError(f"label errors need rows with one label per text; the task here is {read.kind}")
    if not 2 <= folds <= len(examples):
        raise ConfigError(f"folds is {folds}; expected 2 to {len(examples)}, the number of rows")
    for note in read.notes:
        progress.say(note)
    if method == "linear":
        loaded = model if isinstance(model, Model) else load(model, device=device)
        if loaded.task is not None:
            progress.say(
                f"the model is fine-tuned to {loaded.task.kind}; if it has seen these rows, its vectors repeat their "
                "labels: use the model that it was started from"
            )
        shares = linear_probabilities(sentence_features(loaded, examples), examples, len(read.labels), folds, progress)
    else:
        if isinstance(model, Model):
            raise ConfigError("model is a loaded model, but finetune starts from a folder; give its path")
        shares = _finetuned_probabilities(read, source, model, folds, settings, device, progress)
    return rank_labels(examples, read.labels.names, shares, folds, method)


def rank_labels(
    examples: LabelledTexts, names: Sequence[str], shares: Array, folds: int, method: Method
) -> LabelErrors:
    """Rank rows by the out-of-fold probability of their label, (N, L), the lowest first."""
    assert examples.targets is not None
    given = np.asarray(examples.targets, np.int64)
    predicted, own = shares.argmax(1), shares[np.arange(len(given)), given]
    issues = confident_errors(given, shares)
    pairs: Sequence[str | None] = examples.pairs or [None] * len(given)
    rows = [
        LabelError(
            examples.places[row],
            (examples.texts[row],) if (second := pairs[row]) is None else (examples.texts[row], second),
            names[given[row]],
            names[predicted[row]],
            float(shares[row, predicted[row]]),
            float(own[row]),
            bool(issues[row]),
        )
        for row in np.argsort(own, kind="stable")
    ]
    return LabelErrors(tuple(rows), float((predicted == given).mean()), folds, method)


def confident_errors(given: NDArray[np.int64], shares: Array) -> NDArray[np.bool_]:
    """Return which rows are probable label errors by confident learning, (N,).

    Args:
        given: The label of each row, (N,).
        shares: Out-of-fold probabilities, (N, L).
    """
    labels = shares.shape[1]
    # The mean self-confidence of each label; a label without rows is never confident.
    thresholds = np.array(
        [shares[given == label, label].mean() if (given == label).any() else 2 for label in range(labels)]
    )
    confident = np.where(shares >= thresholds - 1e-6, shares, -1.0)
    errors: NDArray[np.bool_] = (confident.max(1) >= 0) & (confident.argmax(1) != given) & (shares.argmax(1) != given)
    return errors


@torch.inference_mode()
def sentence_features(model: Model, rows: LabelledTexts) -> Array:
    """Return the sentence vector of each text; for pairs, both vectors and how they differ: (N, H)."""
    vectors = model.embed([*rows.texts, *(rows.pairs or ())])
    if rows.pairs is None:
        return vectors.astype(np.float64)
    first, second = torch.split(torch.from_numpy(vectors), len(rows))
    return compare_vectors(first, second).double().numpy()


def linear_probabilities(features: Array, rows: LabelledTexts, labels: int, folds: int, progress: Progress) -> Array:
    """Return out-of-fold probabilities, (N, L), of logistic regression; C has the lowest loss over all folds."""
    from threadpoolctl import threadpool_limits  # installed with scikit-learn

    vectors, _ = standardize(features)
    goals = np.eye(labels)[np.asarray(rows.targets, np.int64)]
    loss = Loss("index", np.ones(labels))
    held_out = [fold_indices(rows, fold, folds) for fold in range(folds)]
    fitted = [np.delete(np.arange(len(rows)), fold) for fold in held_out]
    heads, totals = list[LinearHead | None]([None] * folds), list[float]()
    best, outputs = np.zeros_like(goals), np.zeros_like(goals)
    with threadpool_limits(1, user_api="blas"):
        # From strong to weak regularization: the loss falls, then rises, and the last fits would take the longest.
        for step, strength in enumerate(STRENGTHS):
            progress.advance("strengths", step, len(STRENGTHS))
            for fold, (inside, outside) in enumerate(zip(fitted, held_out, strict=True)):
                heads[fold] = head = fit_head(vectors[inside], goals[inside], loss, strength, heads[fold])
                outputs[outside] = head(vectors[outside])
            totals.append(float(loss(outputs, goals)[0].sum()))
            if totals[-1] == min(totals):
                best = outputs.copy()
            elif totals[-1] > totals[-2] > min(totals):
                break
    progress.advance("strengths", len(STRENGTHS), len(STRENGTHS))
    shares: Array = np.exp(best - np.logaddexp.reduce(best, 1, keepdims=True))
    return shares


def _finetuned_probabilities(
    data: TaskData,
    source: Source,
    model: str | Path,
    folds: int,
    settings: FinetuneSettings | None,
    device: str | None,
    progress: Progress,
) -> Array:
    """Return out-of-fold probabilities, (N, L), of a fine-tuned model per fold."""
    rows = data.train
    shares = np.zeros((len(rows), len(data.labels or ())))
    chosen = settings or FinetuneSettings(few=False, baseline=False)
    with tempfile.TemporaryDirectory(prefix="cloze-folds-") as folder:
        for fold in range(folds):
            held_out = fold_indices(rows, fold, folds)
            others = sorted(set(range(len(rows))) - set(held_out))
            part = replace(data, train=rows.select(others), dev=rows.select(held_out))
            progress.say(f"fold {fold + 1} of {folds}")
            run = finetune_rows(
                part,
                source.recorded(),
                model,
                Path(folder) / f"fold-{fold}",
                settings=chosen,
                device=device,
                progress=progress,
                fit=False,
            )
            tuned, dev = load(run, device=device), part.dev
            assert tuned.task is not None
            assert isinstance(dev, LabelledTexts)
            shares[held_out] = probabilities(tuned.task, tuned.logits(dev.texts, dev.pairs))
    return shares


# -- what to label next ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Suggestion:
    """An unlabelled row that is worth labelling: its index, the prediction, and how unsure the model is (0 to 1)."""

    row: int
    text: str
    prediction: str
    uncertainty: float


def suggest(
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    *,
    model: str | Path | Model,
    count: int = 50,
    seed: int = 0,
    device: str | None = None,
) -> list[Suggestion]:
    """Suggest which unlabelled texts to label next: those that the model is unsure about and that differ.

    Args:
        texts: Unlabelled texts.
        pairs: One second text for each.
        model: A model fine-tuned with ``classify``, ``multilabel`` or ``tag``.
        count: Number of texts to suggest.
        seed: Random seed of the draw.
        device: Where to compute; by default an accelerator if there is one.

    Returns:
        The suggestions in the order of the draw; texts that are equal are suggested once.

    Raises:
        ConfigError: If ``count`` is below 1.
        RequestError: If the model does not predict labels.

    Example:
        >>> [best] = cloze.suggest(["A wonderful film.", "So so."], model="runs/reviews", count=1)
        >>> 0 <= best.uncertainty <= 1
        True
    """
    if count < 1:
        raise ConfigError(f"{format_option('count', count)}: expected at least 1")
    loaded = model if isinstance(model, Model) else load(model, device=device)
    unsure, predictions = _uncertainty(loaded, texts, pairs)
    vectors = loaded.embed(texts, pairs) if len(texts) else np.zeros((0, 1), np.float32)
    chosen = draw_diverse(vectors, unsure, count, seed)
    return [Suggestion(row, texts[row], predictions[row], float(unsure[row])) for row in chosen]


def _uncertainty(model: Model, texts: Sequence[str], pairs: Sequence[str] | None) -> tuple[Array, list[str]]:
    """Return how unsure a model is about each text, from 0 to 1, and its predictions.

    For one label it is 1 minus the difference between the two highest probabilities; for several labels, this value for
    the label nearest to a probability of one half; for tags, the value of the most uncertain word.
    """
    kind = model.kind
    measures: Mapping[str, Callable[[], tuple[list[float], list[str]]]] = {
        "index": lambda: _of_labels(model.classify(texts, pairs, abstain=False)),
        "flags": lambda: _of_label_sets(model.classify_all(texts, pairs)),
        "token_indices": lambda: _of_tags(model.tag(texts)),
    }
    if kind is None or kind.targets not in measures or (kind.targets == "index" and kind.head != "sequence"):
        does = "is not fine-tuned" if kind is None else f"is fine-tuned to {kind}"
        raise RequestError(f"suggestions need a model that predicts labels or tags of texts; this one {does}")
    values, predictions = measures[kind.targets]()
    return np.array(values, np.float64), predictions


def _of_labels(found: Sequence[Any]) -> tuple[list[float], list[str]]:
    ranked = [sorted(label.probabilities.values(), reverse=True) for label in found]
    return [1 - (shares[0] - shares[1] if len(shares) > 1 else 1) for shares in ranked], [one.label for one in found]


def _of_label_sets(found: Sequence[Any]) -> tuple[list[float], list[str]]:
    nearest = [min(abs(share - 0.5) for share in labels.probabilities.values()) for labels in found]
    return [1 - 2 * distance for distance in nearest], ["|".join(labels.labels) for labels in found]


def _of_tags(found: Sequence[Any]) -> tuple[list[float], list[str]]:
    least = [min((word.probability for word in tagged.words), default=1.0) for tagged in found]
    return [1 - share for share in least], [" ".join(word.tag for word in tagged.words) for tagged in found]


def draw_diverse(vectors: NDArray[np.float32], weights: Array, count: int, seed: int) -> list[int]:
    """Draw rows as in k-means++, with probabilities proportional to their weights times the squared distance.

    Args:
        vectors: One vector per row, (N, H); only their directions count.
        weights: One weight per row, (N,), at least 0.
        count: Number of rows; fewer are returned if all others equal a chosen row or have no weight.
        seed: The random seed.
    """
    draw = np.random.default_rng(seed)
    units = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    distances = np.ones(len(units))
    chosen: list[int] = []
    while len(chosen) < min(count, len(units)):
        shares = weights * distances
        total = shares.sum()
        if total <= 0:
            break
        row = int(draw.choice(len(units), p=shares / total))
        chosen.append(row)
        # |u - v|^2 = 2 - 2 u v for vectors of length 1; rounding makes that of equal vectors slightly above 0.
        nearest = 2 - 2 * (units @ units[row]).astype(np.float64)
        distances = np.minimum(distances, np.where(nearest < 1e-5, 0.0, nearest))
        distances[row] = 0.0
    return chosen
