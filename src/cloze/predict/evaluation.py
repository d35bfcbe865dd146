"""A model against labelled rows: the official metrics, and what it said to each row."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from cloze.checkpoint import HEAD_OF
from cloze.errors import RequestError
from cloze.kinds import TaskKind
from cloze.predict.answering import check_longest, evaluate_answers
from cloze.predict.choice import evaluate_choices
from cloze.predict.model import Model, load
from cloze.predict.reports import Evaluation
from cloze.predict.sequences import evaluate_texts
from cloze.predict.tagging import evaluate_tags
from cloze.tasks.items import Examples
from cloze.tasks.registry import find_task, read_examples
from cloze.tasks.source import Source

EVALUATE: dict[TaskKind, Callable[..., Evaluation]] = {
    "classify": evaluate_texts,
    "multilabel": evaluate_texts,
    "regress": evaluate_texts,
    "tag": evaluate_tags,
    "answer": evaluate_answers,
    "choose": evaluate_choices,
}


def evaluate_examples(model: Model, kind: TaskKind, examples: Examples, metrics: Sequence[str]) -> Evaluation:
    """Score a model on rows with targets."""
    return EVALUATE[kind](model, examples, metrics)


def evaluate(
    model: str | Path | Model,
    source: Source,
    *,
    split: str = "dev",
    device: str | None = None,
    longest: int | None = None,
) -> Evaluation:
    """Score a model folder on a task's rows: a published split, or the user's own file.

    ``longest`` is for answers in texts: the tokens that one has at most, if not what the model was fine-tuned with.
    """
    spec = find_task(source.task)
    if longest is not None and spec.kind != "answer":
        raise RequestError(f"longest is {longest}, which is for answers in texts; {source.task} is to {spec.kind}")
    check_longest(longest)
    loaded = load_tuned(model, source.task, device=device)
    assert loaded.task is not None
    examples = read_examples(source, loaded.task.names or None, split)
    more = {} if longest is None else {"longest": longest}
    return replace(EVALUATE[spec.kind](loaded, examples, spec.metrics, **more), skipped=examples.skipped)


def load_tuned(model: str | Path | Model, name: str, *, device: str | None = None) -> Model:
    """A model that was fine-tuned to what the task of this name asks for; another is refused."""
    kind = find_task(name).kind
    loaded = model if isinstance(model, Model) else load(model, device=device)
    task = loaded.task
    if task is None or task.kind != kind or HEAD_OF[kind] not in loaded.heads:
        there = f"does {task.kind}" if task else f"has the heads: {', '.join(loaded.heads) or 'none'}"
        told = "the model" if isinstance(model, Model) else model
        raise RequestError(
            f"{told}: {name} needs a model fine-tuned to {kind}; this one {there}; make one with cloze finetune"
        )
    return loaded
