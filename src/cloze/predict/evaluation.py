"""A model against labelled rows: the official metrics, and what it said to each row."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloze.errors import RequestError
from cloze.predict.model import Model, load
from cloze.tasks.classify import Examples
from cloze.tasks.metrics import score
from cloze.tasks.source import Source
from cloze.tasks.task import read_examples, task_metrics


@dataclass(frozen=True)
class Evaluation:
    """Scores of a model on a set of rows."""

    metrics: dict[str, float]  # the first is the one that counts
    predictions: list[str]
    places: list[str]

    def results(self) -> dict[str, Any]:
        """What ``eval_results.json`` holds."""
        return {**self.metrics, "rows": len(self.predictions)}


def evaluate_examples(model: Model, examples: Examples, metrics: Sequence[str]) -> Evaluation:
    """Score a model on rows with targets."""
    if examples.targets is None:
        raise RequestError("these rows have no labels to score against; evaluate on a split that has them")
    logits = model.logits(examples.texts, examples.pairs)
    task = model.task
    if task is None or task.kind == "regress":
        numbers = [float(value) for value in logits[:, 0]]
        return Evaluation(
            score(metrics, examples.targets, numbers), [str(number) for number in numbers], examples.places
        )
    classes = [int(index) for index in logits.argmax(-1)]
    names = [task.names[index] for index in classes]
    return Evaluation(score(metrics, examples.targets, classes), names, examples.places)


def evaluate(model: str | Path | Model, source: Source, *, split: str = "dev", device: str | None = None) -> Evaluation:
    """Score a model folder on a task's rows: GLUE's dev split, or the user's own file."""
    kind, metrics = task_metrics(source.task)
    loaded = model if isinstance(model, Model) else load(model, device=device)
    task = loaded.task
    if task is None or task.kind != kind or "sequence" not in loaded.heads:
        there = f"does {task.kind}" if task else f"has the heads: {', '.join(loaded.heads) or 'none'}"
        raise RequestError(f"{model}: {source.task} needs a model fine-tuned to {kind}; this one {there}")
    examples = read_examples(source, task.names if kind == "classify" else None, split)
    return evaluate_examples(loaded, examples, metrics)
