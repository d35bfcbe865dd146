"""What heads are worth to a task: the cost of each, and the score as more and more of them are taken away.

A score is any function of no arguments that asks the model and returns a number, the higher the better: the official
metric on dev rows, for one. Dimensions: B sequences, L layers, A heads.

Pruning curves -> a picture: an order that knows the heads beside ones that do not.
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
from cloze.inspect.report import save_figure
from cloze.model.batch import collate
from cloze.model.surgery import Head, gated_heads, without_heads
from cloze.predict.batching import batches
from cloze.predict.model import Model
from cloze.progress import Progress, Silent

Score = Callable[[], float]


@dataclass(frozen=True)
class Curve:
    """The score after each step of taking heads away."""

    shares: tuple[float, ...]  # of all heads that are gone
    scores: tuple[float, ...]


def removal_costs(model: Model, score: Score, progress: Progress | None = None) -> NDArray[np.float64]:
    """What the score loses when a head is left out, and it alone, (L, A); below zero where it gains."""
    listener, whole = progress or Silent(), score()
    costs = np.zeros((model.bert.config.layers, model.bert.config.heads))
    for done, place in enumerate(np.ndindex(costs.shape), start=1):
        with without_heads(model.bert, [(place[0], place[1])]):
            costs[place] = whole - score()
        listener.advance("heads", done, costs.size)
    return costs


def head_importance(
    model: Model, texts: Sequence[str], pairs: Sequence[str] | None, targets: Sequence[float]
) -> NDArray[np.float64]:
    """How much the loss of labelled rows hangs on each head, (L, A): Michel et al. (2019).

    The mean over rows of the absolute slope of the row's loss by the head's gate. All heads come from one pass, where
    leaving each out takes one for every head; as in the paper, a layer's values are divided by their norm.
    """
    kind = model.kind
    if "sequence" not in model.heads or kind is None or kind.targets not in ("index", "number"):
        raise RequestError("importance needs a model that was fine-tuned to classify or regress; load one")
    if len(targets) != len(texts) or not texts:
        raise RequestError(
            f"{len(targets)} targets for {len(texts)} texts; one for each was expected, and at least one"
        )
    encodings, config = model.tokenizer.encode_batch(texts, pairs), model.bert.config
    slopes = torch.zeros(config.layers, config.heads, dtype=torch.float64)
    for indices in batches([len(encoding.ids) for encoding in encodings]):
        batch = collate([encodings[index] for index in indices], model.tokenizer.pad_id, model.device)
        gates = torch.ones(len(indices), config.layers, config.heads, device=model.device, requires_grad=True)
        with gated_heads(model.bert, gates):
            last = model.bert(batch.ids, batch.segments, batch.mask).last
        logits = model.bert.heads["sequence"](model.bert.pooled(last))
        wanted = torch.tensor([targets[index] for index in indices], device=model.device)
        (slope,) = torch.autograd.grad(_loss(logits, wanted, numbers=kind.targets == "number"), gates)  # (B, L, A)
        slopes += slope.abs().sum(0).double().cpu()
    found = slopes / len(texts)
    normed: NDArray[np.float64] = (found / found.norm(dim=1, keepdim=True).clamp(min=1e-12)).numpy()
    return normed


def least_first(worth: NDArray[np.float64]) -> list[Head]:
    """The heads in the order of what they are worth, the least first."""
    order = np.argsort(worth, axis=None, kind="stable")
    return [(int(place) // worth.shape[1], int(place) % worth.shape[1]) for place in order]


def random_order(model: Model, seed: int) -> list[Head]:
    """The heads in an order that knows nothing of them."""
    config = model.bert.config
    return least_first(np.random.default_rng(seed).random((config.layers, config.heads)))


def pruning_curve(
    model: Model, order: Sequence[Head], score: Score, steps: int = 10, progress: Progress | None = None
) -> Curve:
    """Score a model without the first heads of an order: none, then so many more at each step, and at last all."""
    listener, shares, scores = progress or Silent(), list[float](), list[float]()
    for step in range(steps + 1):
        gone = round(len(order) * step / steps)
        with without_heads(model.bert, order[:gone]):
            scores.append(score())
        shares.append(gone / len(order))
        listener.advance("steps", step + 1, steps + 1)
    return Curve(tuple(shares), tuple(scores))


def _loss(logits: torch.Tensor, targets: torch.Tensor, *, numbers: bool) -> torch.Tensor:
    """Summed over rows, so that each row's gates get the slope of its own loss."""
    if numbers:
        return functional.mse_loss(logits[:, 0], targets.to(logits.dtype), reduction="sum")
    return functional.cross_entropy(logits, targets.long(), reduction="sum")


def draw_curves(curves: Mapping[str, Sequence[Curve]], metric: str, path: Path) -> None:
    """Draw the score over the share of heads removed, into a PNG or an SVG; of several curves the mean and the span."""
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
