"""Answers to GLUE's unlabelled test rows, as its server takes them: a TSV a task, ``index`` and ``prediction``."""

from pathlib import Path

from cloze.errors import DataError, RequestError
from cloze.files import replaced_file
from cloze.predict.evaluation import load_tuned
from cloze.predict.labels import chosen_classes
from cloze.predict.model import Model
from cloze.tasks.glue import find_glue_task
from cloze.tasks.published import PublishedTask, find_split, read_unlabelled_split
from cloze.tasks.source import Source

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
    told = model.task
    if told is None or told.kind == "regress":
        # The server wants similarities from 0 to 5.
        answers = [f"{min(5.0, max(0.0, float(value))):.3f}" for value in logits[:, 0]]
    else:
        answers = [told.names[index] for index in chosen_classes(told, logits)]
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{_NAMES.get(split, task.folder)}.tsv"
    lines = ["index\tprediction", *(f"{index}\t{answer}" for index, answer in enumerate(answers))]
    with replaced_file(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
