"""Write a GLUE submission: predictions for the unlabelled test rows, as the GLUE server expects them.

One TSV per test file, with the columns ``index`` and ``prediction``.
"""

from pathlib import Path

from cloze.errors import DataError, RequestError
from cloze.files import replaced_file
from cloze.predict.evaluation import load_tuned
from cloze.predict.model import Model
from cloze.tasks.classification.decoding import predicted_classes
from cloze.tasks.classification.published import PublishedTask, find_glue_task, find_split, read_unlabelled_split
from cloze.tasks.rows import Source

# File names of the submission, by split, for tasks with several test files.
_FILE_NAMES = {"test_matched": "MNLI-m", "test_mismatched": "MNLI-mm", "test_diagnostic": "AX"}


def answer_test_rows(model: str | Path, source: Source, out: Path, *, device: str | None = None) -> list[Path]:
    """Predict the test rows of one task with the model of a folder.

    Args:
        model: The folder or run of a model that was fine-tuned for this task.
        source: The task and its folder.
        out: The folder to write to.
        device: Where to compute; by default the best device.

    Returns:
        The files written.
    """
    task = find_glue_task(source.task)
    tuned = load_tuned(model, task.name, device=device)
    _check_labels(tuned, task, model)
    written = write_submission(tuned, task, source.path, out)
    if not written:
        raise DataError(f"{source.path}: no test file of {task.name} is there; expected {task.folder} as published")
    return written


def _check_labels(tuned: Model, task: PublishedTask, name: str | Path) -> None:
    """Raise ``RequestError`` if the model's labels are not those of the task."""
    labels = tuned.task.names if tuned.task else ()
    if task.labels is not None and set(labels) != set(task.labels.names):
        raise RequestError(
            f"{name}: the labels of {task.name} are {', '.join(task.labels.names)}; this model says {', '.join(labels)}"
        )


def write_submission(model: Model, task: PublishedTask, data: Path, out: Path) -> list[Path]:
    """Predict every test file of a task that exists, and return the files written."""
    splits = [split for split in task.files if split.startswith("test_")] or ["test"]
    return [_write(model, task, data, split, out) for split in splits if _exists(task, data, split)]


def _exists(task: PublishedTask, data: Path, split: str) -> bool:
    return find_split(task, data, split, missing_ok=True) is not None


def _write(model: Model, task: PublishedTask, data: Path, split: str, out: Path) -> Path:
    texts, pairs = read_unlabelled_split(task, data, split)
    logits = model.logits(texts, pairs)
    task_labels, kind = model.task, model.kind
    if task_labels is None or kind is None or kind.targets == "number":
        # The server expects similarities from 0 to 5.
        predictions = [f"{min(5.0, max(0.0, float(value))):.3f}" for value in logits[:, 0]]
    else:
        predictions = [task_labels.names[index] for index in predicted_classes(task_labels, logits)]
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{_FILE_NAMES.get(split, task.folder)}.tsv"
    lines = ["index\tprediction", *(f"{index}\t{prediction}" for index, prediction in enumerate(predictions))]
    with replaced_file(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
