"""Dev scores of MiniLM on published tasks, by the ways there are to tune it, over seeds, and beside the Trainer.

    python benchmarks/scores.py [--tasks mrpc sts-b sst-2] [--ways cloze Trainer] [--seeds 3]

cloze      all of the model: 3 epochs, batch 32, rate 5e-5, linear warm-up over a tenth
Trainer    transformers' own, with the same start, rows and settings
adapters   Houlsby's: the model frozen, two small networks a layer
last, last4, mix   frozen states, of the last layer, of the last four side by side, or mixed by learned weights, read by
           an LSTM of two layers, as in table 7 of the paper

Each seed has its own order, head and dropout. Of SST-2 the first 10,000 rows are trained on, of CoNLL the first 5,000
sentences. Every score is kept in a file beside this script as soon as it is there, and the same command goes on with
what is missing. Printed are mean and deviation over the seeds, the 95 % interval of the mean by Student's t, and
every score.
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
from first_rows import first_rows, first_sentences  # beside this file
from kept_scores import KeptScores
from minilm import minilm
from public_data import add_data, find_data, is_published  # beside this file
from trainer_peer import BATCH, EPOCHS, LENGTH, RATE, trainer_score

ROOT = Path(__file__).parents[1]
KEPT = KeptScores(Path(__file__).with_suffix(".json"))
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
WAYS = [*CHANGES, "Trainer"]


def source_of(task: str, data: Path, out: Path) -> Source:
    """A task's rows; of SST-2 and CoNLL, the first of them."""
    folder = data / FOLDERS[task]
    if task == "sst-2":
        folder = first_rows(folder, out / "SST-2")
    if task == "conll":
        folder = first_sentences(folder, out / "CoNLL")
    if task == "arc":  # these files are ARC-Easy's training and dev questions, whatever they are called
        return Source(task, folder / "arc_easy_dev.csv", dev=folder / "arc_easy_test.csv")
    return Source(task, folder)


def tune(source: Source, way: str, seed: int, out: Path) -> Path:
    """The run of one way and seed, which is gone on with, or found finished."""
    place = out / f"{source.task}-{way}-{seed}"
    return run_finetuning(source, minilm(), place, settings=FinetuneSettings(**(WHOLE | CHANGES[way]), seed=seed))


def score(source: Source, way: str, seed: int, out: Path) -> float:
    """Tune and score on the dev rows."""
    if way == "Trainer":
        return trainer_score(read_task(source), seed, out / f"{source.task}-{way}-{seed}")
    return float(Run(tune(source, way, seed, out)).results()[read_task(source).metrics[0]])


def interval(found: Sequence[float]) -> str:
    """What holds the mean over all seeds with 95 % confidence, by Student's t; one seed says nothing of others."""
    if len(found) < 2:
        return ""
    half = float(t.ppf(0.975, len(found) - 1)) * stdev(found) / sqrt(len(found))
    return f"{mean(found) - half:.2f} to {mean(found) + half:.2f}"


def measure(task: str, source: Source, way: str, seeds: int, out: Path) -> None:
    """What is missing of a task and a way, and their line of the table: mean, deviation, interval and every seed."""
    found = [100 * KEPT.get(f"{task} {way} {seed}", partial(score, source, way, seed, out)) for seed in range(seeds)]
    spread = stdev(found) if len(found) > 1 else 0.0
    told = " ".join(f"{value:.2f}" for value in found)
    print(f"{task:<8} {way:<10} {mean(found):6.2f} ± {spread:.2f}   {interval(found):<16}   {told}", flush=True)


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data(parser)
    parser.add_argument("--tasks", nargs="+", default=["mrpc", "sts-b", "sst-2"], choices=FOLDERS)
    parser.add_argument("--ways", nargs="+", default=["cloze", "Trainer"], choices=WAYS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path("runs/scores"), help="where unfinished trainings are")
    asked = parser.parse_args()
    if not is_published(asked.data):
        KEPT.move(asked.out / "scores.json")
    asked.data = find_data(asked.data, *(FOLDERS[task] for task in asked.tasks))
    torch.set_num_threads(asked.threads)
    for task in asked.tasks:
        for way in asked.ways:
            measure(task, source_of(task, asked.data, asked.out), way, asked.seeds, asked.out)


if __name__ == "__main__":
    main()
