"""``cloze finetune glue``: every GLUE task whose files are there, each over the same seeds, and their average."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from cloze.errors import ConfigError, DataError
from cloze.files import replace_json
from cloze.predict import evaluate, load
from cloze.predict.evaluation import write_submission
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
    how: SearchSettings | None = None,
    device: str | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Fine-tune on each task, score its dev rows, answer its test rows; return the folder of it all."""
    progress, out = progress or Silent(), Path(out)
    if how is not None and how.folds:
        raise ConfigError("GLUE has dev sets; leave out --folds")
    if source.dev is not None:
        raise ConfigError("every task of GLUE has dev rows of its own; leave out --dev, or name one task")
    tasks = [task for task in GLUE.values() if _is_there(task, source.data)]
    if not tasks:
        raise DataError(f"{source.data}: no GLUE task with train and dev files is there; expected MRPC/train.tsv, ...")
    absent = sorted(set(GLUE) - {task.name for task in tasks})
    if absent:
        progress.say(f"not there, and left out: {', '.join(absent)}")
    for task in tasks:
        check_kind(find_task(task.name).kind, settings or FinetuneSettings())  # before hours go into the first ones
    scores: dict[str, Any] = {}
    for task in tasks:
        progress.say(f"{task.name}:")
        own = replace(source, task=task.name)
        place = out / task.name
        run = search(own, model, place, settings=settings, how=how, device=device, fresh=fresh, progress=progress)
        found = Run(run).results()
        scores[task.name] = {"metric": found["metric"], "mean": found["mean"], "deviation": found["deviation"]}
        tuned = load(run, device=device)
        if task.name == "mnli" and find_split(task, source.data, "dev_mismatched", missing_ok=True):
            scores["mnli"]["mismatched"] = evaluate(tuned, own, split="dev_mismatched").metrics[task.main]
        write_submission(tuned, task, source.data, out / SUBMISSION)
    # As in the paper: one metric a task, MNLI's two dev sets each for itself, and without WNLI, whose dev rows
    # contradict its training rows. The mismatched rows are scored by the best model, since a search keeps no other.
    counted = [score["mean"] for name, score in scores.items() if name != "wnli" or len(scores) == 1]
    counted += [score["mismatched"] for score in scores.values() if "mismatched" in score]
    average = sum(counted) / len(counted)
    replace_json(out / RESULTS, {"average": average, "tasks": scores, "absent": absent})
    return out


def _is_there(task: PublishedTask, data: Path) -> bool:
    own = (data / task.folder).is_dir()
    return own and all(find_split(task, data, split, missing_ok=True) is not None for split in ("train", "dev"))
