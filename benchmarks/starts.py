"""What pre-training brought: dev scores of a model, and of the same model as it was before it had read anything.

    python benchmarks/starts.py --model cloze-mini [--tasks mrpc sst-2 sts-b] [--seeds 3] [--out runs/starts]

Both starts are fine-tuned by the product's own function with the same settings and seeds; they differ in nothing but
the weights of the encoder. SST-2 with its first 10,000 rows. Scores are kept in --out, and the same command goes on
with what is missing.
"""

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean, stdev

import torch

from cloze.checkpoint import find_source, load_folder, save_folder
from cloze.model import Bert
from cloze.tasks.registry import find_task
from cloze.tasks.rows import Source
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.settings import FinetuneSettings
from cloze.train.run import Run
from first_rows import first_rows  # beside this file
from kept_scores import KeptScores  # beside this file
from public_data import add_data, find_data  # beside this file

ROOT = Path(__file__).parents[1]
FOLDERS = {"mrpc": "MRPC", "sst-2": "SST-2", "sts-b": "STS-B"}
SETTINGS = FinetuneSettings(epochs=3, batch_size=32, max_length=128, learning_rate=2e-4, dropout=0.1)


def untrained(model: Path, out: Path) -> Path:
    """The same model with a new start, in a folder."""
    folder = out / "untrained"
    if not folder.exists():
        loaded = load_folder(model)
        fresh = Bert.fresh(loaded.model.config, loaded.model.head_names)
        save_folder(replace(loaded, model=fresh, card=None), folder)
    return folder


def score(data: Source, model: Path, out: Path, key: str, settings: FinetuneSettings) -> float:
    """One fine-tuning, by the metric that counts."""
    run = run_finetuning(data, model, out / key.replace(" ", "-"), settings=settings)
    return float(Run(run).results()[find_task(data.task).metrics[0]])


def measure(starts: dict[str, Path], tasks: list[str], glue: Path, seeds: int, out: Path) -> None:
    """Fine-tune what has not been, and print a line for each task and start."""
    kept = KeptScores(out / "scores.json")
    for task in tasks:
        folder = glue / FOLDERS[task]
        data = Source(task, first_rows(folder, out / "SST-2") if task == "sst-2" else folder)
        for start, model in starts.items():
            keys = {f"{task} {start} {seed}": replace(SETTINGS, seed=seed) for seed in range(seeds)}
            found = [100 * kept.get(key, partial(score, data, model, out, key, how)) for key, how in keys.items()]
            spread = stdev(found) if seeds > 1 else 0.0
            told = " ".join(f"{one:.1f}" for one in found)
            print(
                f"{task:<8} {find_task(task).metrics[0]:<10} {start:<10} {mean(found):5.1f} ± {spread:.1f}   {told}",
                flush=True,
            )


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description="A model's dev scores beside the same model's from scratch.")
    parser.add_argument("--model", default="cloze-mini")
    add_data(parser)
    parser.add_argument("--tasks", nargs="+", default=list(FOLDERS), choices=FOLDERS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--starts", nargs="+", default=["pretrained", "scratch"], choices=["pretrained", "scratch"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path("runs/starts"))
    asked = parser.parse_args()
    glue = find_data(asked.data, *(f"glue/{FOLDERS[task]}" for task in asked.tasks)) / "glue"
    torch.set_num_threads(asked.threads)
    asked.out.mkdir(parents=True, exist_ok=True)
    model = find_source(asked.model)
    starts = {"pretrained": model, "scratch": untrained(model, asked.out)}
    starts = {start: starts[start] for start in asked.starts}
    measure(starts, asked.tasks, glue, asked.seeds, asked.out)


if __name__ == "__main__":
    main()
