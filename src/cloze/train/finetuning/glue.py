"""``cloze finetune glue`` and ``clue``: fine-tune on every available task with the same seeds, and average."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cloze.errors import ConfigError, DataError
from cloze.files import replace_json
from cloze.predict import evaluate, load
from cloze.predict.evaluation import write_submission
from cloze.progress import Progress, Silent
from cloze.tasks.classification.published import GLUE, PublishedTask, find_split
from cloze.tasks.clue import CLUE, has_splits
from cloze.tasks.comparisons import average_interval
from cloze.tasks.registry import find_task
from cloze.tasks.rows import Source
from cloze.train.finetuning.search import search
from cloze.train.finetuning.settings import FinetuneSettings, SearchSettings
from cloze.train.finetuning.trainable import check_kind
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
        source: The folder that contains the folders of the GLUE tasks.
        model: The model folder to start from.
        out: The folder for the runs, one per task, the average score and the files to submit.
        settings: The training settings.
        search_settings: A grid or a number of seeds, for every task.
        device: Where to train.
        fresh: Delete existing runs first.
        progress: Receives messages and progress.

    Returns:
        The folder ``out``.
    """
    progress, out = progress or Silent(), Path(out)
    _check_suite("GLUE", source, search_settings)
    tasks = [task for task in GLUE.values() if _has_files(task, source.path)]
    if not tasks:
        raise DataError(f"{source.path}: no GLUE task with train and dev files found; expected MRPC/train.tsv, ...")
    run_task = _task_runner(model, out, settings, search_settings, device, fresh, progress)
    absent = _report_absent(GLUE, [task.name for task in tasks], settings, progress)
    scores: dict[str, Any] = {}
    for task in tasks:
        task_source = replace(source, task=task.name)
        scores[task.name], run = run_task(task_source)
        tuned = load(run, device=device)
        if task.name == "mnli" and find_split(task, source.path, "dev_mismatched", missing_ok=True):
            evaluation = evaluate(tuned, task_source, split="dev_mismatched")
            scores["mnli"]["mismatched"] = evaluation.metrics[task.main]
            scores["mnli"]["mismatched_interval"] = evaluation.intervals.get(task.main)
        write_submission(tuned, task, source.path, out / SUBMISSION)
    replace_json(out / RESULTS, {**_average(scores), "tasks": scores, "absent": absent})
    return out


def finetune_clue(
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
    """Fine-tune on each task of CLUE and evaluate on its dev rows; takes the arguments of ``finetune_glue``.

    Returns:
        The folder ``out``, with a run per task and the average of the tasks.
    """
    progress, out = progress or Silent(), Path(out)
    _check_suite("CLUE", source, search_settings)
    if not source.path.is_dir():
        raise DataError(f"{source.path} is not a folder; expected the folder that contains the folders of CLUE's tasks")
    tasks = [name for name in CLUE if has_splits(name, source.path)]
    if not tasks:
        raise DataError(f"{source.path}: no CLUE task with train and dev files found; expected tnews/train.json, ...")
    run_task = _task_runner(model, out, settings, search_settings, device, fresh, progress)
    absent = _report_absent(CLUE, tasks, settings, progress)
    scores = {name: run_task(replace(source, task=name))[0] for name in tasks}
    average = _average_facts([(score["mean"], score.get("interval")) for score in scores.values()])
    replace_json(out / RESULTS, {**average, "tasks": scores, "absent": absent})
    return out


def _check_suite(suite: str, source: Source, search_settings: SearchSettings | None) -> None:
    if search_settings is not None and search_settings.folds:
        raise ConfigError(f"{suite} has dev sets; leave out --folds")
    if source.dev is not None:
        raise ConfigError(f"every task of {suite} has its own dev rows; leave out --dev, or choose one task")


def _report_absent(
    suite: Iterable[str], present: Sequence[str], settings: FinetuneSettings | None, progress: Progress
) -> list[str]:
    """Check the settings for every task before hours of training; report and return the tasks without files."""
    for name in present:
        check_kind(find_task(name).kind, settings or FinetuneSettings())
    absent = sorted(set(suite) - set(present))
    if absent:
        progress.say(f"skipped, no files: {', '.join(absent)}")
    return absent


def _task_runner(
    model: str | Path,
    out: Path,
    settings: FinetuneSettings | None,
    search_settings: SearchSettings | None,
    device: str | None,
    fresh: bool,
    progress: Progress,
) -> Callable[[Source], tuple[dict[str, Any], Path]]:
    """Return a function that fine-tunes on one task and returns its scores and the run's folder."""

    def run_task(source: Source) -> tuple[dict[str, Any], Path]:
        progress.say(f"{source.task}:")
        run = search(
            source,
            model,
            out / source.task,
            settings=settings,
            search_settings=search_settings,
            device=device,
            fresh=fresh,
            progress=progress,
        )
        results = Run(run).results()
        # Finished runs of version 0.1 have no interval.
        interval = {"interval": results.get("interval"), "interval_of": results.get("interval_of")}
        return {name: results[name] for name in ("metric", "mean", "deviation")} | interval, run

    return run_task


def _average(scores: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Average the tasks as in the paper: one metric per task, both of MNLI's dev sets, and without WNLI.

    WNLI's dev rows contradict its training rows. Only the best model is evaluated on MNLI's mismatched rows, because a
    search keeps no other.
    """
    counted = {name: score for name, score in scores.items() if name != "wnli" or len(scores) == 1}
    averaged = [(score["mean"], score.get("interval")) for score in counted.values()]
    mismatched = [score for score in scores.values() if "mismatched" in score]
    averaged += [(score["mismatched"], score.get("mismatched_interval")) for score in mismatched]
    return _average_facts(averaged)


def _average_facts(means: Sequence[tuple[float, Sequence[float] | None]]) -> dict[str, Any]:
    """Return the average of means, and its 95 % interval if every mean has one."""
    values = [mean for mean, _ in means]
    interval = average_interval(values, [ends for _, ends in means])
    return {"average": sum(values) / len(values), "average_interval": interval}


def _has_files(task: PublishedTask, data: Path) -> bool:
    folder_exists = (data / task.folder).is_dir()
    return folder_exists and all(
        find_split(task, data, split, missing_ok=True) is not None for split in ("train", "dev")
    )
