"""Head pruning: the importance of each head for a task, and the score as heads are removed in some order.

A score is a function without arguments that evaluates the model and returns a number (higher is better), such as the
main metric on the dev rows. If it returns the ``Evaluation`` of labelled rows, the main metric is the score, and
differences from the whole model have intervals, paired by row. Dimensions: B sequences, L layers, A heads.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from cloze.errors import RequestError
from cloze.files import replaced_file
from cloze.inspect.survey_report import save_figure
from cloze.model.batch import batches, collate
from cloze.model.surgery import Head, gated_heads, without_heads
from cloze.predict import Difference, Evaluation
from cloze.predict.model import Model
from cloze.progress import Progress, Silent

Score = Callable[[], float | Evaluation]


@dataclass(frozen=True)
class PruningCurve:
    """The score after each step of removing heads."""

    shares: tuple[float, ...]  # fraction of all heads that is removed
    scores: tuple[float, ...]
    # The gain of each step over the whole model; None if the score has no rows.
    gains: tuple[Difference | None, ...] = ()

    @property
    def share_within_noise(self) -> float | None:
        """The largest fraction of heads that can be removed before a step is significantly worse.

        None if the score has no rows.
        """
        if not self.gains or self.gains[0] is None:
            return None
        level = 0.0
        for share, gain in zip(self.shares, self.gains, strict=True):
            if gain is None or gain.high < 0:
                break
            level = share
        return level


def removal_costs(model: Model, score: Score, progress: Progress | None = None) -> NDArray[np.float64]:
    """Return the drop of the score when a single head is removed, for each head, (L, A); negative if it rises."""
    progress, full_score = progress or Silent(), _number(score())
    costs = np.zeros((model.bert.config.layers, model.bert.config.heads))
    for done, (layer, head) in enumerate(np.ndindex(costs.shape), start=1):
        with without_heads(model.bert, [(layer, head)]):
            costs[layer, head] = full_score - _number(score())
        progress.advance("heads", done, costs.size)
    return costs


def removal_gains(
    model: Model, evaluate: Callable[[], Evaluation], progress: Progress | None = None
) -> dict[Head, Difference]:
    """Return the gain of the score on labelled rows when a single head is removed, with its 95 % interval.

    Args:
        model: The model whose heads are removed.
        evaluate: Evaluates the model, on the same labelled rows each time.
        progress: Receives the progress.
    """
    progress, whole = progress or Silent(), evaluate()
    heads = list(np.ndindex(model.bert.config.layers, model.bert.config.heads))
    gains: dict[Head, Difference] = {}
    for done, (layer, head) in enumerate(heads, start=1):
        with without_heads(model.bert, [(layer, head)]):
            gain = evaluate().gain_over(whole)
        if gain is None:
            raise RequestError("the evaluation has no scores per row; evaluate the model on labelled rows")
        gains[layer, head] = gain
        progress.advance("heads", done, len(heads))
    return gains


def _number(found: float | Evaluation) -> float:
    """Return a score as a number: the main metric of an evaluation."""
    return next(iter(found.metrics.values())) if isinstance(found, Evaluation) else found


def head_importance(
    model: Model, texts: Sequence[str], pairs: Sequence[str] | None, targets: Sequence[float]
) -> NDArray[np.float64]:
    """Return the importance of each head for a task, (L, A), after Michel et al. (2019).

    The importance is the absolute gradient of a row's loss with respect to a gate on the head, averaged over the rows.
    A single pass gives the importance of all heads, whereas removing them one at a time takes one pass per head. As in
    the paper, the values of a layer are divided by their norm.

    Args:
        model: A model fine-tuned with classify or regress.
        texts: Labelled texts.
        pairs: Their second texts, if the task has pairs.
        targets: Label indices, or numbers for regression.
    """
    kind = model.kind
    if "sequence" not in model.heads or kind is None or kind.targets not in ("index", "number"):
        raise RequestError("importance needs a model fine-tuned for classification or regression; load one")
    if len(targets) != len(texts) or not texts:
        raise RequestError(f"{len(targets)} targets for {len(texts)} texts; expected one per text, and at least one")
    encodings, config = model.tokenizer.encode_batch(texts, pairs), model.bert.config
    totals = torch.zeros(config.layers, config.heads, dtype=torch.float64)
    for indices in batches([len(encoding.ids) for encoding in encodings]):
        batch = collate([encodings[index] for index in indices], model.tokenizer.pad_id, model.device)
        gates = torch.ones(len(indices), config.layers, config.heads, device=model.device, requires_grad=True)
        # If the texts of a pair are encoded separately, the same gates scale both.
        with gated_heads(model.bert, gates.repeat(2, 1, 1) if model.bert.pooling == "separate" else gates):
            last = model.bert(batch.ids, batch.segments, batch.mask).last
        logits = model.bert.heads["sequence"](model.bert.pooled(last, batch.mask))
        batch_targets = torch.tensor([targets[index] for index in indices], device=model.device)
        (gradient,) = torch.autograd.grad(
            _loss(logits, batch_targets, numbers=kind.targets == "number"), gates
        )  # (B, L, A)
        totals += gradient.abs().sum(0).double().cpu()
    means = totals / len(texts)
    normalized: NDArray[np.float64] = (means / means.norm(dim=1, keepdim=True).clamp(min=1e-12)).numpy()
    return normalized


def least_important_first(importance: NDArray[np.float64]) -> list[Head]:
    """Return the heads in ascending order of their importance, (L, A)."""
    order = np.argsort(importance, axis=None, kind="stable")
    return [(int(index) // importance.shape[1], int(index) % importance.shape[1]) for index in order]


def random_order(model: Model, seed: int) -> list[Head]:
    """Return the heads in random order, as the baseline of a pruning curve."""
    config = model.bert.config
    return least_important_first(np.random.default_rng(seed).random((config.layers, config.heads)))


def pruning_curve(
    model: Model, order: Sequence[Head], score: Score, steps: int = 10, progress: Progress | None = None
) -> PruningCurve:
    """Score a model while its heads are removed in the given order, from none to all in equal steps."""
    progress, shares, found = progress or Silent(), list[float](), list[float | Evaluation]()
    for step in range(steps + 1):
        removed = round(len(order) * step / steps)
        with without_heads(model.bert, order[:removed]):
            found.append(score())
        shares.append(removed / len(order))
        progress.advance("steps", step + 1, steps + 1)
    whole = found[0]
    gains = (
        one.gain_over(whole) if isinstance(one, Evaluation) and isinstance(whole, Evaluation) else None for one in found
    )
    return PruningCurve(tuple(shares), tuple(map(_number, found)), tuple(gains))


def _loss(logits: torch.Tensor, targets: torch.Tensor, *, numbers: bool) -> torch.Tensor:
    """Return the loss summed over rows, so that the gradient of each row's gates belongs to its own loss."""
    if numbers:
        return functional.mse_loss(logits[:, 0], targets.to(logits.dtype), reduction="sum")
    return functional.cross_entropy(logits, targets.long(), reduction="sum")


def draw_curves(curves: Mapping[str, Sequence[PruningCurve]], metric: str, path: Path) -> None:
    """Plot the score over the share of removed heads.

    Args:
        curves: Curves by name; for several curves under one name, the mean and the range are drawn.
        metric: Label of the vertical axis.
        path: A PNG or SVG file, by its suffix.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, group in curves.items():
        scores = np.array([curve.scores for curve in group])
        (line,) = axes.plot(group[0].shares, scores.mean(0), "o-", markersize=3, label=name)
        if len(group) > 1:
            axes.fill_between(group[0].shares, scores.min(0), scores.max(0), color=line.get_color(), alpha=0.15)
    axes.set_xlabel("share of heads removed")
    axes.set_ylabel(metric)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    with replaced_file(path) as temporary:
        save_figure(figure, temporary, path.suffix.removeprefix("."))
