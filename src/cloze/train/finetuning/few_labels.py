"""The few-label method: a linear head, fitted to convergence on the vectors of a frozen model.

A few hundred rows are often too few to train a whole model well. A linear head on sentence vectors has far fewer
parameters, and the optimum of its regularized loss is unique: there is no learning rate and no random start. The steps:

1. Encode every training row once and pool its token states: one vector per text, standardized per feature.
2. For each regularization strength C, fit a head on four fifths of the rows and measure its loss on the last fifth, for
   all five folds. With a small C the head underfits, with a large C it overfits; take the C with the lowest total.
3. Fit the head on all rows with this C, and undo the standardization, so that the head applies to the raw vectors.

Optionally, the vectors are first trained on pairs of rows with the same or different labels (SetFit, Tunstall et al.
2022, section 3). The result is an ordinary model folder with the same head as after fine-tuning.

Dimensions: N texts, H hidden size, L outputs of the head (labels; 1 for numbers).
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cloze.checkpoint import Pooling
from cloze.errors import CheckpointError, DataError, format_option
from cloze.files import read_json, replace_json
from cloze.model.batch import Batch, join_logits
from cloze.model.heads import SequenceHead
from cloze.predict import Model
from cloze.progress import Progress
from cloze.tasks.classification.kind import LabelledTexts
from cloze.tasks.examples import Item, fold_indices, split_fold
from cloze.tasks.kind import TargetType
from cloze.tasks.registry import TaskData
from cloze.text import encode_long
from cloze.train.finetuning.objective import TaskBatches, balanced_weights, report_truncated, report_unknown
from cloze.train.finetuning.settings import FinetuneSettings, ResolvedSettings
from cloze.train.run import COMPARISON, Run

Array = NDArray[np.float64]

# Regularization strengths to choose from: scikit-learn's C, the weight of the loss relative to the squared weights.
STRENGTHS = tuple(10 ** (exponent / 2) for exponent in range(-10, 3))
FOLDS = 5
# For the initial head of a training: at most this many rows, so that it takes seconds, and one of these strengths.
STARTING_ROWS, STARTING_STRENGTHS = 2000, (1e-4, 1e-3, 1e-2, 1e-1)
# Number of folds of the comparison; both methods are scored on one of them.
COMPARED_FOLDS = 3
CHOICE = "few_labels.json"
PAIRS = 2000  # approximate number of pairs for contrastive training: as many texts as 250 updates of 16 rows
_PAIRS_STREAM = 2  # separates these random numbers from those of order, dropout and augmentation
# The weights are accurate to about six digits.
_TOLERANCE, _MOST_ITERATIONS = 1e-9, 10_000
_CONVERGED = 1e-5


# -- the head ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LinearHead:
    """A linear map of vectors: weight (L, H) and bias (L,)."""

    weight: Array
    bias: Array

    def __call__(self, vectors: Array) -> Array:
        """Map vectors to outputs: (N, H) -> (N, L)."""
        outputs: Array = vectors @ self.weight.T + self.bias
        return outputs


@dataclass(frozen=True)
class Loss:
    """The loss of a linear head: cross-entropy of one label, of several flags, or half the squared error of a number.

    Attributes:
        targets: The form of the targets.
        weights: Weights of the labels, (L,), as returned by ``balanced_weights``.
    """

    targets: TargetType
    weights: Array

    def __call__(self, outputs: Array, goals: Array) -> tuple[Array, Array]:
        """Return the loss of each row, (N,), and its gradient with respect to the outputs, (N, L).

        Args:
            outputs: Outputs of the head, (N, L).
            goals: One-hot labels, flags, or numbers, (N, L).
        """
        if self.targets == "number":
            residuals = outputs - goals
            return (residuals**2).sum(1) / 2, residuals
        if self.targets == "flags":
            weights = np.where(goals > 0, self.weights, 1.0)
            signs = 1 - 2 * goals
            losses = np.logaddexp(0, signs * outputs) * weights
            return losses.sum(1), weights * signs / (1 + np.exp(-signs * outputs))
        # Softmax: log p_l = o_l - log(sum of exp(o)); the gradient of -log p_goal is p - one_hot(goal).
        rows = goals @ self.weights  # (N,): the weight of each row's label
        logs = outputs - np.logaddexp.reduce(outputs, 1, keepdims=True)  # (N, L)
        return -(logs * goals).sum(1) * rows, (np.exp(logs) - goals) * rows[:, None]


def fit_head(vectors: Array, goals: Array, loss: Loss, strength: float, start: LinearHead | None = None) -> LinearHead:
    """Fit a linear head to convergence; the optimum is that of scikit-learn's ``LogisticRegression`` or ``Ridge``.

    Args:
        vectors: The inputs, (N, H).
        goals: One-hot labels, flags, or numbers, (N, L).
        loss: The loss; its mean is minimized together with the penalty (sum of squared weights) / (2 C N).
        strength: C, the weight of the loss (for numbers the reciprocal of Ridge's alpha).
        start: The initial head; it affects only the time.

    Raises:
        DataError: If the optimization does not converge.
    """
    from scipy.optimize import minimize  # deferred: slow to import

    (rows, size), outputs = vectors.shape, goals.shape[1]
    # For two labels, scikit-learn uses one vector w instead of -w / 2 and w / 2, whose squares sum to half of w's.
    decay = (2.0 if loss.targets == "index" and outputs == 2 else 1.0) / (strength * rows)

    def objective(flat: Array) -> tuple[float, Array]:
        weight, bias = flat[:-outputs].reshape(outputs, size), flat[-outputs:]
        losses, residuals = loss(vectors @ weight.T + bias, goals)
        slopes = residuals.T @ vectors / rows + decay * weight
        return losses.mean() + decay * (weight**2).sum() / 2, np.concatenate([slopes.ravel(), residuals.mean(0)])

    first = start or LinearHead(np.zeros((outputs, size)), np.zeros(outputs))
    flat = np.concatenate([first.weight.ravel(), first.bias])
    options = {"maxiter": _MOST_ITERATIONS, "maxfun": _MOST_ITERATIONS, "ftol": 0.0, "gtol": _TOLERANCE, "maxcor": 20}
    found = minimize(objective, flat, jac=True, method="L-BFGS-B", options=options)
    # Near the optimum, float64 ends the line search early, so the gradient shows whether it was reached.
    if not np.abs(found.jac).max() <= _CONVERGED * max(1.0, float(np.abs(goals).max())):
        raise DataError(f"the head did not converge at C {strength:g}; use {format_option('few', False)}")
    return LinearHead(found.x[:-outputs].reshape(outputs, size), found.x[-outputs:])


def choose_strength(
    vectors: Array,
    goals: Array,
    loss: Loss,
    folds: Sequence[Sequence[int]],
    strengths: Sequence[float] = STRENGTHS,
) -> float:
    """Return the strength with the lowest loss on held-out rows, summed over the folds; ties go to the smallest."""
    if len(vectors) < 2:
        return 1.0
    totals = np.zeros(len(strengths))
    for fold in folds:
        fitted, head = np.delete(np.arange(len(vectors)), fold), None
        # Each fit starts from the solution for the next smaller strength, which is close.
        for index, strength in enumerate(strengths):
            head = fit_head(vectors[fitted], goals[fitted], loss, strength, head)
            totals[index] += loss(head(vectors[fold]), goals[fold])[0].sum()
    return strengths[int(totals.argmin())]


def standardize(vectors: Array) -> tuple[Array, Callable[[LinearHead], LinearHead]]:
    """Scale every feature to mean 0 and standard deviation 1.

    Returns:
        The scaled vectors, and a function that converts a head for them to a head for the original vectors.
    """
    means, scales = vectors.mean(0), vectors.std(0)
    scales[scales < 1e-8 * max(1.0, float(np.abs(vectors).max()))] = 1.0  # a constant feature stays zero

    def fold(head: LinearHead) -> LinearHead:
        weight = head.weight / scales
        return LinearHead(weight, head.bias - weight @ means)

    return (vectors - means) / scales, fold


# -- the head of a model -----------------------------------------------------------------------------------------------


@torch.inference_mode()
def head_inputs(model: Model, rows: LabelledTexts, settings: FinetuneSettings) -> Array:
    """Return the head's input for each text, (N, H); for a text in windows, the mean over its windows.

    Prediction averages the outputs of windows; because the head is linear, averaging the inputs is equivalent.
    """

    def step(batch: Batch) -> list[NDArray[np.float32]]:
        read = model.bert.head_input("sequence", batch.ids, batch.segments, batch.mask)
        return list(read.float().cpu().numpy())

    windows = encode_long(model.tokenizer, rows.texts, rows.pairs, settings.long_texts)
    vectors = join_logits(windows, model.run([window for text in windows for window in text], step))
    if not np.isfinite(vectors).all():
        raise CheckpointError("vectors of the training rows are not finite; the model's weights are damaged")
    return vectors.astype(np.float64)


@dataclass(frozen=True)
class FewLabels:
    """Fits the head of a model on the training rows of a task."""

    data: TaskData
    model: Model
    settings: ResolvedSettings

    @property
    def method(self) -> str:
        """A description of the head, for messages and the model card."""
        name = "ridge" if self.data.kind.targets == "number" else "logistic"
        vectors = "sentence vectors"
        if self.settings.contrastive:
            vectors = "vectors of the model, trained on pairs of rows"
        elif self.model.bert.pooling == "separate":
            vectors = "the vectors of both texts, and how they differ"
        return f"{name} regression on {vectors}"

    def fit(self) -> str:
        """Set the model's head to the optimum; return a description of the fit."""
        count = min(FOLDS, len(self.data.train))
        return f"C {self._fit(count, STRENGTHS):.2g} by {count}-fold cross-validation of {len(self.data.train):,} rows"

    def fit_start(self) -> str:
        """Set the model's head to the optimum for some of the rows, to start training from; describe the fit.

        The exact strength matters little, since training continues: few are compared, on one fold.
        """
        rows = self.data.train
        every = -(-len(rows) // STARTING_ROWS)
        part = replace(self.data, train=rows.select(fold_indices(rows, 0, every)))
        strength = replace(self, data=part)._fit(1, STARTING_STRENGTHS)
        return f"C {strength:.2g}, fitted to {len(part.train):,} rows"

    def _fit(self, folds: int, strengths: Sequence[float]) -> float:
        """Fit the head with the strength that is best on the first ``folds`` folds; return the strength."""
        from threadpoolctl import threadpool_limits  # installed with scikit-learn

        rows, outputs = self.data.train, self.model.bert.labels
        assert isinstance(rows, LabelledTexts)
        vectors, fold = standardize(head_inputs(self.model, rows, self.settings))
        goals, loss = self._goals(rows, outputs), self._loss(outputs)
        held_out = [fold_indices(rows, index, min(FOLDS, len(rows))) for index in range(folds)]
        # Products of a few hundred rows take a fraction of a millisecond; with several threads, many times as long.
        with threadpool_limits(1, user_api="blas"):
            strength = choose_strength(vectors, goals, loss, held_out, strengths)
            head = fit_head(vectors, goals, loss, strength)
        self._set_head(fold(head))
        return strength

    @property
    def pooling(self) -> Pooling:
        """The pooling of the vectors that contrastive training compares."""
        return "mean" if self.model.bert.pooling == "mean" else "cls"

    def report_texts(self, progress: Progress) -> None:
        """Report training texts that are truncated, and a vocabulary that does not fit them."""
        assert self.data.kind.items is not None
        tokenizer = self.model.tokenizer
        report_unknown(tokenizer, [text for texts in self.data.train.documents() for text in texts], progress)
        items = self.data.kind.items(self.data.train, tokenizer, self.settings, progress)
        report_truncated(items, tokenizer.max_length, progress, self.data.kind.item_noun)

    def pair_batches(self, progress: Progress) -> TaskBatches:
        """Return batches of pairs of rows, for contrastive training."""
        items, settings = pair_items(self.data, self.model, self.settings), self.settings
        progress.say(
            f"contrastive training: {len(items):,} pairs of {len(self.data.train):,} rows, {settings.epochs} epochs, "
            f"learning rate {settings.learning_rate:.0e}, batch size {settings.batch_size}"
        )
        pad_id = self.model.tokenizer.pad_id
        return TaskBatches(items, settings.batch_size, settings.seed, pad_id, self.model.device)

    def _goals(self, rows: LabelledTexts, outputs: int) -> Array:
        targets: Array = np.array(rows.targets, np.float64)
        if self.data.kind.targets == "index":
            targets = np.eye(outputs)[targets.astype(np.int64)]
        return targets.reshape(len(rows), outputs)

    def _loss(self, outputs: int) -> Loss:
        balanced = self.settings.class_weights == "balanced"
        weights = balanced_weights(self.data).double().numpy() if balanced else np.ones(outputs)
        return Loss(self.data.kind.targets, weights)

    def _set_head(self, fitted: LinearHead) -> None:
        head = self.model.bert.heads["sequence"]
        assert isinstance(head, SequenceHead)
        with torch.no_grad():
            head.output.weight.copy_(torch.from_numpy(fitted.weight))
            head.output.bias.copy_(torch.from_numpy(fitted.bias))


# -- contrastive training ----------------------------------------------------------------------------------------------


def label_pairs(labels: Sequence[int], per_row: int, seed: int) -> list[tuple[int, int, float]]:
    """Sample pairs of rows: for each row, ``per_row`` with the same label (target 1) and as many with another (0).

    Args:
        labels: The label of each row.
        per_row: Number of pairs of either kind per row.
        seed: The random seed.

    Returns:
        Both rows and the target of each pair. A row whose label is unique has no pairs with target 1.
    """
    by_label = np.array(labels)
    pairs: list[tuple[int, int, float]] = []
    for row, label in enumerate(labels):
        draw = np.random.default_rng([seed, _PAIRS_STREAM, row])
        same = np.flatnonzero(by_label == label)
        for others, target in ((same[same != row], 1.0), (np.flatnonzero(by_label != label), 0.0)):
            if len(others):
                pairs += [(row, int(other), target) for other in draw.choice(others, per_row)]
    return pairs


def pair_items(data: TaskData, model: Model, settings: FinetuneSettings) -> list[Item]:
    """Return about ``PAIRS`` pairs to train on; of a text in windows, only the first window is used."""
    rows = data.train
    assert isinstance(rows, LabelledTexts)
    assert rows.targets is not None
    encodings = [windows[0] for windows in encode_long(model.tokenizer, rows.texts, rows.pairs, settings.long_texts)]
    per_row = max(1, round(PAIRS / (2 * len(rows))))
    pairs = label_pairs(rows.targets, per_row, settings.seed)
    return [Item((encodings[one], encodings[other]), target) for one, other, target in pairs]


# -- the choice between both methods -----------------------------------------------------------------------------------


def choose_few(
    run: Run,
    data: TaskData,
    fit: Callable[[TaskData], float],
    finetune: Callable[[TaskData, Path], float],
    progress: Progress,
) -> bool:
    """Return whether the few-label method scores better than fine-tuning; the choice is recorded in the run.

    Both methods are trained on two thirds of the training rows and scored once on the last third. The dev rows are not
    used, so that their score remains that of unseen rows. Fine-tuning takes as many epochs as it would on all rows. If
    it wins, training continues from its model on all rows for the last third of the updates (``remaining_epochs``). In
    either case, a run computes no more updates than without the comparison.

    The standard error of the difference is about sqrt(fraction of rows on which both differ / held-out rows): 4 points
    of accuracy for 130 held-out rows, 7 for 40. A wrong choice is therefore likely only if both are about equally good.

    Args:
        run: The run, which records the choice.
        data: The rows.
        fit: Returns the score of the few-label method.
        finetune: Returns the score of fine-tuning, which it runs in the given folder.
        progress: Receives the report of the choice.
    """
    record, folder = run.folder / CHOICE, run.folder / COMPARISON
    if not record.is_file():
        train, held_out = split_fold(data.train, 0, COMPARED_FOLDS)
        fold = replace(data, train=train, dev=held_out)
        scores = {"few": fit(fold), "fine_tuning": finetune(fold, folder)}
        chosen: dict[str, Any] = {"few": scores["few"] > scores["fine_tuning"], "scores": scores}
        replace_json(record, chosen | {"metric": data.metrics[0], "rows": len(held_out)})
    choice = read_json(record)
    if choice["few"]:
        shutil.rmtree(folder, ignore_errors=True)
    used, remedy = "the former" if choice["few"] else "the latter", format_option("few", not choice["few"])
    few, tuned = (_shown(choice["scores"][name]) for name in ("few", "fine_tuning"))
    progress.say(
        f"few labels: linear head on sentence vectors {few}, fine-tuning {tuned} ({choice['metric']} of "
        f"{choice['rows']:,} held-out training rows, one of {COMPARED_FOLDS} folds): using {used}; {remedy} overrides"
    )
    return bool(choice["few"])


def remaining_epochs(epochs: int) -> int:
    """Return the epochs on all rows after ``epochs`` on two thirds: a third, as many updates as in a plain run."""
    return max(1, round(epochs / COMPARED_FOLDS))


class StageProgress:
    """Shows the progress of a training within another one, without its messages."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def advance(self, stage: str, done: int, total: int | None, **figures: float) -> None:
        """Show the progress with the stage's name prefixed."""
        self._progress.advance(f"comparison: {stage}", done, total, **figures)

    def say(self, message: str) -> None:
        """Ignore the message, which the outer training shows as well."""


def _shown(score: float) -> str:
    return f"{100 * score:.1f} %"
