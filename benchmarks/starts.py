"""Measure the benefit of pre-training: dev scores of a model compared with the same model from random weights.

    python benchmarks/starts.py --model cloze-mini [--tasks mrpc sst-2 sts-b] [--seeds 3] [--out runs/starts]

Both are fine-tuned with the same settings and seeds and differ only in the encoder weights. SST-2 uses its first 10,000
rows. Prints the mean, the standard deviation and all scores. Scores are stored in --out, and re-running the same
command measures what is missing.
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
from first_rows import first_rows  # module in benchmarks/
from kept_scores import ScoreCache  # module in benchmarks/
from public_data import add_data, find_data  # module in benchmarks/

ROOT = Path(__file__).parents[1]
FOLDERS = {"mrpc": "MRPC", "sst-2": "SST-2", "sts-b": "STS-B"}
SETTINGS = FinetuneSettings(epochs=3, batch_size=32, max_length=128, learning_rate=2e-4, dropout=0.1)


def untrained(model: Path, out: Path) -> Path:
    """Save the same model with random weights to a folder."""
    folder = out / "untrained"
    if not folder.exists():
        loaded = load_folder(model)
        fresh = Bert.fresh(loaded.model.config, loaded.model.head_names)
        save_folder(replace(loaded, model=fresh, card=None), folder)
    return folder


def score(data: Source, model: Path, out: Path, key: str, settings: FinetuneSettings) -> float:
    """Fine-tune once and return the main metric."""
    run = run_finetuning(data, model, out / key.replace(" ", "-"), settings=settings)
    return float(Run(run).results()[find_task(data.task).metrics[0]])


def measure(starts: dict[str, Path], tasks: list[str], glue: Path, seeds: int, out: Path) -> None:
    """Run missing cells, and print one line per task and start."""
    kept = ScoreCache(out / "scores.json")
    for task in tasks:
        folder = glue / FOLDERS[task]
        data = Source(task, first_rows(folder, out / "SST-2") if task == "sst-2" else folder)
        for start, model in starts.items():
            keys = {f"{task} {start} {seed}": replace(SETTINGS, seed=seed) for seed in range(seeds)}
            found = [100 * kept.get(key, partial(score, data, model, out, key, how)) for key, how in keys.items()]
            spread = stdev(found) if seeds > 1 else 0.0
            scores = " ".join(f"{one:.1f}" for one in found)
            print(
                f"{task:<8} {find_task(task).metrics[0]:<10} {start:<10} {mean(found):5.1f} ± {spread:.1f}   {scores}",
                flush=True,
            )


def main() -> None:
    """Parse the arguments and print the table."""
    parser = argparse.ArgumentParser(description="Measure the benefit of pre-training on dev scores.")
    parser.add_argument("--model", default="cloze-mini")
    add_data(parser)
    parser.add_argument("--tasks", nargs="+", default=list(FOLDERS), choices=FOLDERS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--starts", nargs="+", default=["pretrained", "scratch"], choices=["pretrained", "scratch"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path("runs/starts"))
    arguments = parser.parse_args()
    glue = find_data(arguments.data, *(f"glue/{FOLDERS[task]}" for task in arguments.tasks)) / "glue"
    torch.set_num_threads(arguments.threads)
    arguments.out.mkdir(parents=True, exist_ok=True)
    model = find_source(arguments.model)
    starts = {"pretrained": model, "scratch": untrained(model, arguments.out)}
    starts = {start: starts[start] for start in arguments.starts}
    measure(starts, arguments.tasks, glue, arguments.seeds, arguments.out)


if __name__ == "__main__":
    main()
