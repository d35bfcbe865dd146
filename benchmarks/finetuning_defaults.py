"""Which learning rate and how many epochs suit a model of some size with few rows: dev scores over a grid.

    python benchmarks/finetuning_defaults.py [--data ../shared/data] [--models cloze-mini] [--tasks sst-2 scicite mrpc]
        [--sizes 200 1000] [--rates 5e-5 1e-4 2e-4 4e-4 1e-3] [--epochs 3 10] [--batch-size 16] [--way full]
        [--pooling cls] [--seeds 1] [--out runs/defaults]

Every cell is a fine-tuning by the product's own function. Rows are drawn with a fixed seed, dev rows are capped. The
scores are kept in --out/scores.json, and re-running the same command measures what is missing. It prints a Markdown
table: one line per model, task, size and number of epochs, one column per rate. Rate 0, 0 epochs and batch size 0
stand for the product's defaults.
"""

import argparse
import csv
import json
import lzma
import random
import shutil
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from cloze.tasks.rows import Source
from cloze.train.finetuning.finetune import finetune
from cloze.train.finetuning.settings import FinetuneSettings
from cloze.train.run import Run
from kept_scores import KeptScores  # beside this file
from public_data import add_data, find_data  # beside this file

ROOT = Path(__file__).parents[1]
WAYS: dict[str, dict[str, Any]] = {
    "full": {},
    "houlsby": {"adapter": "houlsby"},
    "lora": {"adapter": "lora"},
    "frozen": {"frozen": "last"},
}


@dataclass(frozen=True)
class Task:
    """Where the rows of a task are, and which columns they have."""

    folder: str
    text: str
    pair: str | None
    label: str
    train: str = "train.tsv"
    dev: str = "dev.tsv"


TASKS = {
    "sst-2": Task("glue/SST-2", "sentence", None, "label"),
    "mrpc": Task("glue/MRPC", "#1 String", "#2 String", "Quality"),
    "scicite": Task("scibert_tasks/text_classification/sci-cite", "text", None, "label", "train.txt", "dev.txt"),
    "chnsenticorp": Task("chnsenticorp", "text_a", None, "label"),
}


def read_rows(path: Path, task: Task) -> list[dict[str, str]]:
    """Read all rows of a file, with the columns text, pair and label."""
    packed = Path(f"{path}.xz")
    contents = lzma.decompress(packed.read_bytes()) if packed.is_file() else path.read_bytes()
    lines = contents.decode("utf-8-sig").splitlines()
    table = map(json.loads, lines) if path.suffix == ".txt" else csv.DictReader(lines, delimiter="\t", quoting=3)
    columns = {"text": task.text, "label": task.label} | ({"pair": task.pair} if task.pair else {})
    return [{name: str(row[column]) for name, column in columns.items()} for row in table]


def write_sample(data: Path, name: str, size: int, dev_rows: int, out: Path) -> Source:
    """Write a random sample of the training and dev rows as JSONL files."""
    task, out = TASKS[name], out / "rows"
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    for split, count in ((task.train, size), (task.dev, dev_rows)):
        rows = read_rows(data / task.folder / split, task)
        sample = random.Random(0).sample(rows, min(count, len(rows)))
        path = out / f"{name}-{Path(split).stem}-{count}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in sample), encoding="utf-8")
        paths.append(path)
    return Source("classify", paths[0], paths[1], pair="pair" if task.pair else None)


def score(source: Source, model: str, out: Path, settings: FinetuneSettings) -> float:
    """Return the accuracy on the dev rows of one fine-tuning."""
    run = finetune(source, model, out, settings=settings, fresh=True)
    accuracy = float(Run(run).results()["accuracy"])
    shutil.rmtree(run)
    return accuracy


def measure(arguments: argparse.Namespace) -> None:
    """Fine-tune what has not been, and print a line for each model, task, size and number of epochs."""
    kept = KeptScores(arguments.out / "scores.json")
    print("| model | task | rows | way | batch | epochs |", " | ".join(f"{rate:g}" for rate in arguments.rates), "|")
    print("|---" * (6 + len(arguments.rates)) + "|")
    for model, task, size, epochs in product(arguments.models, arguments.tasks, arguments.sizes, arguments.epochs):
        source = write_sample(arguments.data, task, size, arguments.dev_rows, arguments.out)
        cells = []
        for rate in arguments.rates:
            scores = []
            for seed in range(arguments.seeds):
                settings = FinetuneSettings(
                    epochs=epochs or None,
                    batch_size=arguments.batch_size or None,
                    learning_rate=rate or None,
                    max_length=64,
                    precision="fp32",
                    seed=seed,
                    pooling=arguments.pooling,
                    **WAYS[arguments.way],
                )
                way = arguments.way + (f"-{arguments.pooling}" if arguments.pooling else "")
                parts = (Path(model).name, task, size, way, arguments.batch_size, epochs, f"{rate:g}", seed)
                key = " ".join(map(str, parts))
                run = arguments.out / key.replace(" ", "-")
                scores.append(kept.get(key, partial(score, source, model, run, settings)))
            cells.append(f"{100 * mean(scores):.1f}")
        line = (Path(model).name, task, size, way, arguments.batch_size or "-", epochs or "-", *cells)
        print("|", " | ".join(map(str, line)), "|", flush=True)


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description="Dev scores over learning rates and epochs, for few rows.")
    add_data(parser)
    parser.add_argument("--models", nargs="+", default=["cloze-mini"])
    parser.add_argument("--tasks", nargs="+", default=["sst-2", "scicite", "mrpc"], choices=TASKS)
    parser.add_argument("--sizes", nargs="+", type=int, default=[200, 1000])
    parser.add_argument("--rates", nargs="+", type=float, default=[5e-5, 1e-4, 2e-4, 4e-4, 1e-3])
    parser.add_argument("--epochs", nargs="+", type=int, default=[3, 10])
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--way", default="full", choices=WAYS)
    parser.add_argument("--pooling", choices=["cls", "mean"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--dev-rows", type=int, default=500)
    parser.add_argument("--out", type=Path, default=Path("runs/defaults"))
    arguments = parser.parse_args()
    arguments.data = find_data(arguments.data, *(TASKS[task].folder for task in arguments.tasks))
    torch.set_num_threads(1)
    measure(arguments)


if __name__ == "__main__":
    main()
