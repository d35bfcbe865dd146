"""``cloze finetune glue``: fine-tune on every GLUE task whose files exist, over the same seeds, and average."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cloze.errors import ConfigError, DataError
from cloze.files import replace_json
from cloze.predict import evaluate, load
from cloze.predict.submission import write_submission
from cloze.progress import Progress, Silent
from cloze.tasks.classification.published import GLUE, PublishedTask, find_split
from cloze.tasks.registry import find_task
from cloze.tasks.rows import Source
from cloze.train.finetuning.checks import check_kind
from cloze.train.finetuning.search import search
from cloze.train.finetuning.settings import FinetuneSettings, SearchSettings
from cloze.train.run import RESULTS, Run

SUBMISSION = "submission"


def finetune_glue(
    source: Source,
    model: str | Path,
    out: str | Path,
    *,
    settings: FinetuneSettings | None = None,
    search_settings: SearchSettings | None = None,
    device: str | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Fine-tune on each task, evaluate on its dev rows and write predictions for its test rows.

    Args:
        source: The folder with the GLUE tasks' folders.
        model: The model folder to start from.
        out: The folder for the runs, one per task, the average and the files to submit.
        settings: How to train.
        search_settings: A grid or a number of seeds, for every task.
        device: Where to train.
        fresh: Delete runs that are there.
        progress: Where progress is reported.

    Returns:
        The folder ``out``.
    """
    progress, out = progress or Silent(), Path(out)
    if search_settings is not None and search_settings.folds:
        raise ConfigError("GLUE has dev sets; leave out --folds")
    if source.dev is not None:
        raise ConfigError("every task of GLUE has dev rows of its own; leave out --dev, or name one task")
    tasks = [task for task in GLUE.values() if _has_files(task, source.path)]
    if not tasks:
        raise DataError(f"{source.path}: no GLUE task with train and dev files is there; expected MRPC/train.tsv, ...")
    absent = sorted(set(GLUE) - {task.name for task in tasks})
    if absent:
        progress.say(f"skipped, no files: {', '.join(absent)}")
    for task in tasks:
        check_kind(find_task(task.name).kind, settings or FinetuneSettings())  # fail now, not after hours of training
    scores: dict[str, Any] = {}
    for task in tasks:
        progress.say(f"{task.name}:")
        task_source = replace(source, task=task.name)
        run = search(
            task_source,
            model,
            out / task.name,
            settings=settings,
            search_settings=search_settings,
            device=device,
            fresh=fresh,
            progress=progress,
        )
        results = Run(run).results()
        scores[task.name] = {name: results[name] for name in ("metric", "mean", "deviation")}
        tuned = load(run, device=device)
        if task.name == "mnli" and find_split(task, source.path, "dev_mismatched", missing_ok=True):
            scores["mnli"]["mismatched"] = evaluate(tuned, task_source, split="dev_mismatched").metrics[task.main]
        write_submission(tuned, task, source.path, out / SUBMISSION)
    replace_json(out / RESULTS, {"average": _average(scores), "tasks": scores, "absent": absent})
    return out


def _average(scores: Mapping[str, Mapping[str, Any]]) -> float:
    """Average the tasks as in the paper: one metric per task, MNLI's two dev sets separately, and without WNLI.

    WNLI's dev rows contradict its training rows. MNLI's mismatched rows are scored by the best model only, since a
    search keeps no other.
    """
    averaged: list[float] = [score["mean"] for name, score in scores.items() if name != "wnli" or len(scores) == 1]
    averaged += [score["mismatched"] for score in scores.values() if "mismatched" in score]
    return sum(averaged) / len(averaged)


def _has_files(task: PublishedTask, data: Path) -> bool:
    folder_exists = (data / task.folder).is_dir()
    return folder_exists and all(
        find_split(task, data, split, missing_ok=True) is not None for split in ("train", "dev")
    )
