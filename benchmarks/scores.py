"""Compare fine-tuning methods by MiniLM's dev scores on published tasks, over seeds and against the Trainer.

    python benchmarks/scores.py [--tasks mrpc sts-b sst-2] [--ways cloze Trainer] [--seeds 3]

cloze      full fine-tuning: 3 epochs, batch size 32, learning rate 5e-5, linear warm-up over a tenth of the steps
Trainer    transformers' Trainer with the same initial weights, rows and settings
adapters   Houlsby adapters: the model is frozen, two small networks per layer are trained
last, last4, mix   frozen states (of the last layer, of the last four concatenated, or a learned mix of all) with a
           two-layer LSTM, as in table 7 of the BERT paper

Each seed has its own data order, initial head and dropout. SST-2 uses the first 10,000 training rows, CoNLL the first
5,000 sentences. Every score is stored next to this script as soon as it is measured, and re-running the same command
measures what is missing. Prints the mean and standard deviation over the seeds, the 95 % interval of the mean by
Student's t, and every score.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from scipy.stats import t

from cloze.tasks.registry import read_task
from cloze.tasks.rows import Source
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.settings import FinetuneSettings
from cloze.train.run import Run
from first_rows import first_rows, first_sentences  # module in benchmarks/
from kept_scores import ScoreCache
from minilm import minilm
from public_data import add_data, find_data, is_published  # module in benchmarks/
from trainer_peer import BATCH, EPOCHS, LENGTH, RATE, trainer_score

ROOT = Path(__file__).parents[1]
CACHE = ScoreCache(Path(__file__).with_suffix(".json"))
FOLDERS = {
    "mrpc": "glue/MRPC",
    "sts-b": "glue/STS-B",
    "sst-2": "glue/SST-2",
    "rte": "glue/RTE",
    "cola": "glue/CoLA",
    "conll": "conll2003",
    "arc": "arc",
}
WHOLE: dict[str, Any] = {"epochs": EPOCHS, "batch_size": BATCH, "max_length": LENGTH, "learning_rate": RATE}
LSTM: dict[str, Any] = {"feature_head": "lstm", "learning_rate": 1e-3}
CHANGES: dict[str, dict[str, Any]] = {
    "cloze": {},
    "adapters": {"adapter": "houlsby", "learning_rate": 1e-3},
    "last": {"frozen": "last", **LSTM},
    "last4": {"frozen": "last4", **LSTM},
    "mix": {"frozen": "mix", **LSTM},
}
METHODS = [*CHANGES, "Trainer"]


def source_of(task: str, data: Path, out: Path) -> Source:
    """Return a task's rows; for SST-2 and CoNLL, only the first ones."""
    folder = data / FOLDERS[task]
    if task == "sst-2":
        folder = first_rows(folder, out / "SST-2")
    if task == "conll":
        folder = first_sentences(folder, out / "CoNLL")
    if task == "arc":  # these files hold ARC-Easy's training and dev questions, despite their names
        return Source(task, folder / "arc_easy_dev.csv", dev=folder / "arc_easy_test.csv")
    return Source(task, folder)


def tune(source: Source, method: str, seed: int, out: Path) -> Path:
    """Train one method with one seed, resume the run, or return it if it is finished."""
    place = out / f"{source.task}-{method}-{seed}"
    return run_finetuning(source, minilm(), place, settings=FinetuneSettings(**(WHOLE | CHANGES[method]), seed=seed))


def score(source: Source, method: str, seed: int, out: Path) -> float:
    """Fine-tune and return the score on the dev rows."""
    if method == "Trainer":
        return trainer_score(read_task(source), seed, out / f"{source.task}-{method}-{seed}")
    return float(Run(tune(source, method, seed, out)).results()[read_task(source).metrics[0]])


def interval(found: Sequence[float]) -> str:
    """Return the 95 % interval of the mean by Student's t; an empty string for one seed."""
    if len(found) < 2:
        return ""
    half = float(t.ppf(0.975, len(found) - 1)) * stdev(found) / sqrt(len(found))
    return f"{mean(found) - half:.2f} to {mean(found) + half:.2f}"


def measure(task: str, source: Source, method: str, seeds: int, out: Path) -> None:
    """Measure missing scores of a task and a method; print mean, deviation, interval and every seed."""
    found = [
        100 * CACHE.get(f"{task} {method} {seed}", partial(score, source, method, seed, out)) for seed in range(seeds)
    ]
    spread = stdev(found) if len(found) > 1 else 0.0
    scores = " ".join(f"{value:.2f}" for value in found)
    print(f"{task:<8} {method:<10} {mean(found):6.2f} ± {spread:.2f}   {interval(found):<16}   {scores}", flush=True)


def main() -> None:
    """Parse the arguments and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data(parser)
    parser.add_argument("--tasks", nargs="+", default=["mrpc", "sts-b", "sst-2"], choices=FOLDERS)
    parser.add_argument("--ways", nargs="+", default=["cloze", "Trainer"], choices=METHODS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path("runs/scores"), help="folder for the training runs")
    arguments = parser.parse_args()
    if not is_published(arguments.data):
        CACHE.move(arguments.out / "scores.json")
    arguments.data = find_data(arguments.data, *(FOLDERS[task] for task in arguments.tasks))
    torch.set_num_threads(arguments.threads)
    for task in arguments.tasks:
        for method in arguments.ways:
            measure(task, source_of(task, arguments.data, arguments.out), method, arguments.seeds, arguments.out)


if __name__ == "__main__":
    main()
