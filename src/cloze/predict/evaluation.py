"""A model against labelled rows: the official metrics, and its prediction for each row.

Also predictions for GLUE's unlabelled test rows, as its server expects them: one TSV per task, ``index`` and
``prediction``.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cloze.errors import DataError, RequestError
from cloze.files import replaced_file
from cloze.predict.model import Model, load
from cloze.tasks.answering.decoding import check_longest
from cloze.tasks.classification.decoding import predicted_classes
from cloze.tasks.classification.published import PublishedTask, find_glue_task, find_split, read_unlabelled_split
from cloze.tasks.examples import Examples
from cloze.tasks.kind import TaskKind
from cloze.tasks.registry import find_task, read_examples
from cloze.tasks.reports import Evaluation
from cloze.tasks.rows import Source


def evaluate_examples(model: Model, kind: TaskKind, examples: Examples, metrics: Sequence[str]) -> Evaluation:
    """Score a model on rows with targets."""
    assert kind.evaluate is not None, "a kind with labels can be scored"
    return kind.evaluate(model, examples, metrics)


def evaluate(
    model: str | Path | Model,
    source: Source,
    *,
    split: str = "dev",
    device: str | None = None,
    longest: int | None = None,
) -> Evaluation:
    """Score a model folder on a task's rows.

    Args:
        model: A fine-tuned model folder or run, a hub name, or a loaded model.
        source: A published task or the user's own file.
        split: Which split of a published task.
        device: Where to compute; the best device if left out.
        longest: For answers in texts: maximum tokens of an answer, if not what the model was fine-tuned with.
    """
    spec = find_task(source.task)
    if longest is not None and "longest_answer" not in spec.kind.settings:
        raise RequestError(f"longest is {longest}, which is for answers in texts; {source.task} is to {spec.kind}")
    check_longest(longest)
    loaded = load_tuned(model, source.task, device=device)
    assert loaded.task is not None
    assert spec.kind.evaluate is not None, "a kind with labels can be scored"
    examples = read_examples(source, loaded.task.names or None, split)
    options = {} if longest is None else {"longest": longest}
    return replace(spec.kind.evaluate(loaded, examples, spec.metrics, **options), skipped=examples.skipped)


def load_tuned(model: str | Path | Model, name: str, *, device: str | None = None) -> Model:
    """Load a model that was fine-tuned for the kind of this task; refuse any other."""
    kind = find_task(name).kind
    loaded = model if isinstance(model, Model) else load(model, device=device)
    task = loaded.task
    if task is None or task.kind != kind.name or kind.head not in loaded.heads:
        there = f"does {task.kind}" if task else f"has the heads: {', '.join(loaded.heads) or 'none'}"
        told = "the model" if isinstance(model, Model) else model
        raise RequestError(
            f"{told}: {name} needs a model fine-tuned to {kind}; this one {there}; make one with cloze finetune"
        )
    return loaded


# What the server calls the answers of a task that has several test files, by split.
_NAMES = {"test_matched": "MNLI-m", "test_mismatched": "MNLI-mm", "test_diagnostic": "AX"}


def answer_test_rows(model: str | Path, source: Source, out: Path, *, device: str | None = None) -> list[Path]:
    """Answer the test rows of one task by the model of a folder."""
    task = find_glue_task(source.task)
    tuned = load_tuned(model, task.name, device=device)
    _check_labels(tuned, task, model)
    written = write_submission(tuned, task, source.data, out)
    if not written:
        raise DataError(f"{source.data}: no test file of {task.name} is there; expected {task.folder} as published")
    return written


def _check_labels(tuned: Model, task: PublishedTask, name: str | Path) -> None:
    """Refuse a model that says what the server does not know."""
    told = tuned.task.names if tuned.task else ()
    if task.labels is not None and set(told) != set(task.labels.names):
        raise RequestError(
            f"{name}: the labels of {task.name} are {', '.join(task.labels.names)}; this model says {', '.join(told)}"
        )


def write_submission(model: Model, task: PublishedTask, data: Path, out: Path) -> list[Path]:
    """Answer every test file of a task that is there, and return what was written."""
    splits = [split for split in task.files if split.startswith("test_")] or ["test"]
    return [_write(model, task, data, split, out) for split in splits if _is_there(task, data, split)]


def _is_there(task: PublishedTask, data: Path, split: str) -> bool:
    return find_split(task, data, split, missing_ok=True) is not None


def _write(model: Model, task: PublishedTask, data: Path, split: str, out: Path) -> Path:
    texts, pairs = read_unlabelled_split(task, data, split)
    logits = model.logits(texts, pairs)
    task_labels, kind = model.task, model.kind
    if task_labels is None or kind is None or kind.targets == "number":
        # The server wants similarities from 0 to 5.
        answers = [f"{min(5.0, max(0.0, float(value))):.3f}" for value in logits[:, 0]]
    else:
        answers = [task_labels.names[index] for index in predicted_classes(task_labels, logits)]
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{_NAMES.get(split, task.folder)}.tsv"
    lines = ["index\tprediction", *(f"{index}\t{answer}" for index, answer in enumerate(answers))]
    with replaced_file(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
