"""How much of a fine-tuned model a student with half of its layers keeps, with its teacher's help and without.

    python benchmarks/distillation.py [--tasks sst-2 sts-b] [--seeds 3] [--rows 10000] [--ways distilled "labels alone"]

The teacher is all-MiniLM-L6-v2 (six layers), fine-tuned on the task; the students start from three of its layers and
differ in what they learn from: everything that its teacher shows, its answers alone, the labels alone, and so on.
Prints dev scores, mean and spread over the seeds, and the share of the teacher's score that is kept.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from cloze.tasks.source import Source
from cloze.train.distill import distill
from cloze.train.distill_settings import DistillSettings
from cloze.train.finetune import finetune
from cloze.train.settings import FinetuneSettings
from glue_rows import first_rows  # beside this file
from minilm import minilm

ROOT = Path(__file__).parents[1]
FOLDERS = {"sst-2": "SST-2", "sts-b": "STS-B", "mrpc": "MRPC", "rte": "RTE", "cola": "CoLA"}
WAYS: dict[str, dict[str, Any]] = {
    "distilled": {},
    "labels alone": {"labels_weight": 1.0, "logits_weight": 0.0, "states_weight": 0.0, "attention_weight": 0.0},
    "answers alone": {"labels_weight": 0.0, "states_weight": 0.0, "attention_weight": 0.0},
    "labels and answers": {"states_weight": 0.0, "attention_weight": 0.0},
    "without attention": {"attention_weight": 0.0},
    "without states": {"states_weight": 0.0},
    "first layers": {"take": "first"},
    "temperature 1": {"temperature": 1.0},
    "temperature 4": {"temperature": 4.0},
    "states 10": {"states_weight": 10.0},
}


def measure(source: Source, ways: list[str], seed: int, place: Path, changes: dict[str, Any]) -> dict[str, float]:
    """Dev scores of a teacher and of its students, with one seed."""
    teacher = finetune(source, minilm(), place / "teacher", settings=FinetuneSettings(seed=seed))
    scores = {}
    for way in ways:
        settings = DistillSettings(layers=3, seed=seed, **(changes | WAYS[way]))
        run = distill(source, teacher, place / way.replace(" ", "-"), settings=settings)
        report = json.loads((run / "distillation.json").read_text(encoding="utf-8"))
        for name, whose in (("teacher", "teacher"), (way, "student")):
            scores[name] = report[whose]["scores"][report["metric"]]
        print(f"  {source.task}, seed {seed}, {way}: {scores[way]:.4f} of {scores['teacher']:.4f}", flush=True)
    return scores


def show(task: str, found: list[dict[str, float]]) -> None:
    """The table of a task."""
    spread: Callable[[list[float]], float] = lambda values: stdev(values) if len(values) > 1 else 0.0  # noqa: E731
    print(f"\n{task:<22}{'score':>10}{'deviation':>12}{'kept':>9}")
    for name in found[0]:
        values = [scores[name] for scores in found]
        positive = all(scores["teacher"] > 0 for scores in found)
        kept = mean(scores[name] / scores["teacher"] for scores in found) if positive else float("nan")
        print(f"{name:<22}{mean(values):>10.4f}{spread(values):>12.4f}{kept:>9.1%}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT / "../shared/data", help="the folder with glue/ in it")
    parser.add_argument("--tasks", nargs="+", default=["sst-2", "sts-b"], choices=FOLDERS)
    parser.add_argument("--ways", nargs="+", default=["distilled", "labels alone"], choices=WAYS)
    parser.add_argument("--rows", type=int, default=10_000, help="the first so many of train and dev")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=DistillSettings.epochs)
    parser.add_argument("--rate", type=float, default=DistillSettings.rate)
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    changes = {"epochs": arguments.epochs, "rate": arguments.rate}
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        for task in arguments.tasks:
            folder = first_rows(
                arguments.data / "glue" / FOLDERS[task], scratch / FOLDERS[task], arguments.rows, arguments.rows
            )
            found = [
                measure(Source(task, folder), arguments.ways, seed, scratch / f"{task}-{seed}", changes)
                for seed in range(arguments.seeds)
            ]
            show(task, found)


if __name__ == "__main__":
    main()
