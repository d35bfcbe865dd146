"""The loop with a dev score: looked at as the settings say, and where there is patience, kept at its best."""

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import nn

from cloze.predict import Model
from cloze.progress import Progress
from cloze.train.best import Best
from cloze.train.finetuning.trainable import rate_scale
from cloze.train.loop import BatchSource, Company, train
from cloze.train.precision import Precision
from cloze.train.run import Run
from cloze.train.settings import FinetuneSettings


class ScoredBatches(BatchSource, Protocol):
    """Batches of a training set whose epochs are told apart."""

    steps_an_epoch: int


def train_scored(
    objective: nn.Module,
    batches: ScoredBatches,
    settings: FinetuneSettings,
    run: Run,
    progress: Progress,
    model: Model,
    metric: str,
    score: Callable[[], Mapping[str, float]],
) -> Precision:
    """Train, and end with the weights of the last step, or with patience those that scored best by ``metric``.

    Returns in which numbers it was computed.
    """
    bert = model.bert
    best = Best(run, bert, metric, settings.patience) if settings.patience else None

    def score_dev(pause: Callable[[], None]) -> Mapping[str, float]:
        # In float32, whatever the training computes in: what is told is what the saved model will have.
        with model.paused(pause), torch.autocast(model.device.type, enabled=False):
            scored = score()
        if best is not None:
            best.look(scored[metric])
        return {f"dev_{name}": value for name, value in scored.items()}

    precision = train(
        objective,
        batches,
        settings.loop(batches.steps_an_epoch),
        run,
        progress,
        score_dev,
        Company(
            precision=finetuning_precision(settings, model.device),
            enough=best.enough if best else None,
            rate_scale=rate_scale(bert, settings.layer_decay),
        ),
    )
    if best is not None:
        best.restore()
    return precision


def finetuning_precision(settings: FinetuneSettings, device: torch.device) -> Precision:
    """In which numbers a fine-tuning computes."""
    # Frozen states are there once and for all; the little that is trained on them gains nothing.
    return Precision.choose("fp32" if settings.frozen else settings.precision, device)
