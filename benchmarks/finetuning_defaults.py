"""Search learning rates and epochs for fine-tuning: dev scores over a grid of models, tasks and row counts.

    python benchmarks/finetuning_defaults.py [--data ../shared/data] [--models minilm m3e-small cloze-mini FOLDER]
        [--tasks sst-2 scicite mrpc] [--sizes 200 1000] [--rates 5e-5 1e-4 2e-4 4e-4 1e-3] [--epochs 3 10]
        [--batch-size 16] [--way full] [--pooling cls] [--max-length 64] [--seeds 1] [--out runs/defaults]

Every cell is one fine-tuning run, scored by the task's main metric in percent. Training rows are sampled with a fixed
seed; the number of dev rows is limited. Scores are stored in --out/scores.json, and re-running the same command
measures what is missing. Prints a Markdown table with one line per model, task, size and number of epochs, and one
column per learning rate. A learning rate, number of epochs or batch size of 0 stands for the default of cloze.
"""

import argparse
import shutil
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from cloze.predict import evaluate_examples, load
from cloze.tasks.registry import TaskData
from cloze.train.finetuning.finetune import finetune_rows
from cloze.train.finetuning.settings import FinetuneSettings
from kept_scores import ScoreCache  # module in benchmarks/
from public_data import add_data, find_data  # module in benchmarks/
from task_samples import TASKS, find_model, read_sample  # module in benchmarks/

ROOT = Path(__file__).parents[1]
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "full": {"few": False},
    "linear-start": {"few": False, "linear_start": True},
    "random-start": {"few": False, "linear_start": False},
    "few": {"few": True},
    "houlsby": {"adapter": "houlsby"},
    "lora": {"adapter": "lora"},
    "frozen": {"frozen": "last"},
}


# A run evaluates this many dev rows after each epoch, to save time; the final score uses all sampled dev rows.
SCORED_PER_EPOCH = 8


def score(data: TaskData, model: str, out: Path, settings: FinetuneSettings) -> float:
    """Fine-tune once and return the main metric on the dev rows."""
    few = replace(data, dev=data.dev.select(range(min(SCORED_PER_EPOCH, len(data.dev)))))
    run = finetune_rows(few, {"task": data.kind.name, "data": "sample"}, model, out, settings=settings, fresh=True)
    evaluation = evaluate_examples(load(run), data.kind, data.dev, data.metrics)
    shutil.rmtree(run)
    return float(evaluation.metrics[data.metrics[0]])


def measure(arguments: argparse.Namespace) -> None:
    """Run missing cells, and print one line per model, task, size and number of epochs."""
    kept = ScoreCache(arguments.out / "scores.json")
    print("| model | task | rows | way | batch | epochs |", " | ".join(f"{rate:g}" for rate in arguments.rates), "|")
    print("|---" * (6 + len(arguments.rates)) + "|")
    for model, task, size, epochs in product(arguments.models, arguments.tasks, arguments.sizes, arguments.epochs):
        data = read_sample(arguments.data, task, size, arguments.dev_rows, arguments.out)
        cells = []
        for rate in arguments.rates:
            scores = []
            for seed in range(arguments.seeds):
                settings = FinetuneSettings(
                    epochs=epochs or None,
                    batch_size=arguments.batch_size or None,
                    learning_rate=rate or None,
                    max_length=arguments.max_length,
                    precision=arguments.precision,
                    seed=seed,
                    pooling=arguments.pooling,
                    baseline=False,
                    **VARIANTS[arguments.way],
                )
                variant = arguments.way + (f"-{arguments.pooling}" if arguments.pooling else "")
                parts = (Path(model).name, task, size, variant, arguments.batch_size, epochs, f"{rate:g}", seed)
                key = " ".join(map(str, parts))
                run = arguments.out / key.replace(" ", "-")
                scores.append(kept.get(key, partial(score, data, find_model(model), run, settings)))
            cells.append(f"{100 * mean(scores):.1f}")
        line = (Path(model).name, task, size, variant, arguments.batch_size or "-", epochs or "-", *cells)
        print("|", " | ".join(map(str, line)), "|", flush=True)


def main() -> None:
    """Parse the arguments and print the table."""
    parser = argparse.ArgumentParser(description="Search learning rates and epochs for fine-tuning on few rows.")
    add_data(parser)
    parser.add_argument("--models", nargs="+", default=["cloze-mini"])
    parser.add_argument("--tasks", nargs="+", default=["sst-2", "scicite", "mrpc"], choices=TASKS)
    parser.add_argument("--sizes", nargs="+", type=int, default=[200, 1000])
    parser.add_argument("--rates", nargs="+", type=float, default=[5e-5, 1e-4, 2e-4, 4e-4, 1e-3])
    parser.add_argument("--epochs", nargs="+", type=int, default=[3, 10])
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--way", default="full", choices=VARIANTS)
    parser.add_argument("--pooling", choices=["cls", "mean", "separate"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--dev-rows", type=int, default=500)
    parser.add_argument("--max-length", type=int, default=64)
    parser.add_argument("--precision", default="auto", choices=["auto", "fp32", "bf16"])
    parser.add_argument("--out", type=Path, default=Path("runs/defaults"))
    arguments = parser.parse_args()
    arguments.data = find_data(arguments.data, *(TASKS[task].folder for task in arguments.tasks))
    torch.set_num_threads(1)
    measure(arguments)


if __name__ == "__main__":
    main()
