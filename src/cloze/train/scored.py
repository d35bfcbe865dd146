"""The loop with a dev score: looked at as the settings say, and where there is patience, kept at its best."""

from collections.abc import Callable, Mapping

from torch import nn

from cloze.model import Bert
from cloze.progress import Progress
from cloze.train.best import Best
from cloze.train.loop import Company, train
from cloze.train.run import Run
from cloze.train.settings import FinetuneSettings
from cloze.train.task_batches import TaskBatches
from cloze.train.tuning import rate_scale


def train_scored(
    objective: nn.Module,
    batches: TaskBatches,
    settings: FinetuneSettings,
    run: Run,
    progress: Progress,
    model: Bert,
    metric: str,
    score: Callable[[], Mapping[str, float]],
) -> None:
    """Train, and end with the weights of the last step, or with patience those that scored best by ``metric``."""
    best = Best(run, model, metric, settings.patience) if settings.patience else None

    def score_dev(pause: Callable[[], None]) -> Mapping[str, float]:  # noqa: ARG001 (small sets are soon read)
        scored = score()
        if best is not None:
            best.look(scored[metric])
        return {f"dev_{name}": value for name, value in scored.items()}

    train(
        objective,
        batches,
        settings.loop(batches.steps_an_epoch),
        run,
        progress,
        score_dev,
        Company(enough=best.enough if best else None, rate_scale=rate_scale(model, settings.layer_decay)),
    )
    if best is not None:
        best.restore()
