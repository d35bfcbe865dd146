"""Measure how much of a fine-tuned model's score a student with half of its layers retains.

    python benchmarks/distillation.py [--tasks sst-2 sts-b] [--seeds 3] [--ways distilled "labels alone"]

The teacher is all-MiniLM-L6-v2 (six layers), fine-tuned on the task as in scores.py. The students start from three of
its layers and differ in their loss: the full distillation loss, the teacher's logits alone, the labels alone, and
further ablations. Prints the mean and standard deviation of the dev scores over the seeds, and the share of the
teacher's score. Scores are stored next to this script, and re-running the same command measures what is missing.
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from cloze.tasks.rows import Source
from cloze.train.distillation.distill import distill
from cloze.train.distillation.settings import DistillSettings
from kept_scores import ScoreCache  # module in benchmarks/
from public_data import add_data, find_data, is_published  # module in benchmarks/
from scores import CACHE as TEACHERS
from scores import FOLDERS, score, source_of, tune

ROOT = Path(__file__).parents[1]
CACHE = ScoreCache(Path(__file__).with_suffix(".json"))
METHODS: dict[str, dict[str, Any]] = {
    "distilled": {},
    "labels alone": {  # equivalent to plain fine-tuning
        "dropout": 0.1,
        "labels_weight": 1.0,
        "logits_weight": 0.0,
        "states_weight": 0.0,
        "attention_weight": 0.0,
    },
    "answers alone": {"labels_weight": 0.0, "states_weight": 0.0, "attention_weight": 0.0},
    "labels and answers": {"states_weight": 0.0, "attention_weight": 0.0},
    "without attention": {"attention_weight": 0.0},
    "without states": {"states_weight": 0.0},
    "first layers": {"take": "first"},
    "temperature 1": {"temperature": 1.0},
    "temperature 4": {"temperature": 4.0},
    "states 10": {"states_weight": 10.0},
    "with dropout": {"dropout": 0.1},
}


def measure(source: Source, methods: list[str], seed: int, out: Path) -> dict[str, float]:
    """Return the dev scores of a teacher and its students for one seed."""

    def student(method: str) -> float:
        teacher = tune(source, "cloze", seed, out)
        settings = DistillSettings(layers=3, seed=seed, **METHODS[method])
        run = distill(source, teacher, out / f"{source.task}-{method.replace(' ', '-')}-{seed}", settings=settings)
        report = json.loads((run / "distillation.json").read_text(encoding="utf-8"))
        return float(report["student"]["scores"][report["metric"]])

    def teacher() -> float:
        return TEACHERS.get(f"{source.task} cloze {seed}", partial(score, source, "cloze", seed, out))

    # Cached together with its students, because they must be compared with the teacher that trained them.
    scores = {"teacher": CACHE.get(f"{source.task} teacher {seed}", teacher)}
    for method in methods:
        scores[method] = CACHE.get(f"{source.task} {method} {seed}", partial(student, method))
        print(f"  {source.task}, seed {seed}, {method}: {scores[method]:.4f} of {scores['teacher']:.4f}", flush=True)
    return scores


def show(task: str, found: list[dict[str, float]]) -> None:
    """Print the table of one task."""
    spread: Callable[[list[float]], float] = lambda values: stdev(values) if len(values) > 1 else 0.0  # noqa: E731
    print(f"\n{task:<22}{'score':>10}{'deviation':>12}{'of teacher':>12}")
    for name in found[0]:
        values = [scores[name] for scores in found]
        positive = all(scores["teacher"] > 0 for scores in found)
        retained = mean(scores[name] / scores["teacher"] for scores in found) if positive else float("nan")
        print(f"{name:<22}{mean(values):>10.4f}{spread(values):>12.4f}{retained:>12.1%}")


def main() -> None:
    """Parse the arguments, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data(parser)
    parser.add_argument("--tasks", nargs="+", default=["sst-2", "sts-b"], choices=FOLDERS)
    parser.add_argument("--ways", nargs="+", default=["distilled", "labels alone"], choices=METHODS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--out", type=Path, default=Path("runs/scores"), help="folder for teachers and students (default: runs/scores)"
    )
    arguments = parser.parse_args()
    if not is_published(arguments.data):
        CACHE.move(arguments.out / "distillation.json")
        TEACHERS.move(arguments.out / "scores.json")
    arguments.data = find_data(arguments.data, *(FOLDERS[task] for task in arguments.tasks))
    torch.set_num_threads(arguments.threads)
    for task in arguments.tasks:
        source = source_of(task, arguments.data, arguments.out)
        show(task, [measure(source, arguments.ways, seed, arguments.out) for seed in range(arguments.seeds)])


if __name__ == "__main__":
    main()
