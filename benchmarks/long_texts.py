"""Compare methods for texts beyond a model's length on IMDB reviews: truncation, head and tail, and windows.

    python benchmarks/long_texts.py --data DATA/imdb/aclImdb_labeled.tar.xz [--model cloze-mini] [--rows 2000]

A model with 128 tokens is fine-tuned on --rows reviews, half of them positive, and evaluated on as many test reviews: 3
epochs, batch size 32, learning rate 2e-4, three seeds. Prints the mean, the standard deviation and all scores per
method. Scores are stored next to this script, and re-running the same command measures what is missing.
"""

import argparse
import csv
import tarfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean, stdev

import torch

from cloze.options import LongTexts
from cloze.tasks.rows import Source
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.settings import FinetuneSettings
from cloze.train.run import Run
from kept_scores import ScoreCache  # module in benchmarks/

CACHE = ScoreCache(Path(__file__).with_suffix(".json"))
METHODS: tuple[LongTexts, ...] = ("cut", "head-tail", "windows")
SETTINGS = FinetuneSettings(epochs=3, batch_size=32, max_length=128, learning_rate=2e-4)


def write_rows(archive: Path, rows: int, out: Path) -> Source:
    """Write the first reviews of each split and label as tables."""
    paths = {split: out / f"imdb-{split}-{rows}.csv" for split in ("train", "test")}
    if not all(path.is_file() for path in paths.values()):
        out.mkdir(parents=True, exist_ok=True)
        found: dict[tuple[str, str], list[str]] = {(split, label): [] for split in paths for label in ("pos", "neg")}
        with tarfile.open(archive) as file:
            for member in file:
                *_, split, label, _ = ("", "", *Path(member.name).parts)[-4:]
                texts = found.get((split, label))
                content = file.extractfile(member) if texts is not None and len(texts) < rows // 2 else None
                if texts is not None and content is not None:
                    texts.append(content.read().decode("utf-8").replace("<br />", " "))
        for split, path in paths.items():
            with path.open("w", encoding="utf-8", newline="") as table:
                writer = csv.writer(table)
                writer.writerow(("text", "label"))
                writer.writerows(
                    (text, label)
                    for pair in zip(found[split, "pos"], found[split, "neg"], strict=True)
                    for text, label in zip(pair, ("pos", "neg"), strict=True)
                )
    return Source("classify", paths["train"], dev=paths["test"])


def score(source: Source, model: str, method: LongTexts, seed: int, out: Path) -> float:
    """Fine-tune and return the score on the test rows."""
    run = run_finetuning(
        source,
        model,
        out / f"{source.data.stem}-{method}-{seed}",
        settings=replace(SETTINGS, long_texts=method, seed=seed),
    )
    return float(Run(run).results()["accuracy"])


def main() -> None:
    """Parse the arguments and print one row per method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="aclImdb_labeled.tar.xz, or Stanford's own archive")
    parser.add_argument("--model", default="cloze-mini")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--ways", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path("runs/long_texts"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    source = write_rows(arguments.data, arguments.rows, arguments.out)
    for method in arguments.ways:
        found = [
            100
            * CACHE.get(
                f"{arguments.rows} {method} {seed}",
                partial(score, source, arguments.model, method, seed, arguments.out),
            )
            for seed in range(arguments.seeds)
        ]
        spread = stdev(found) if len(found) > 1 else 0.0
        scores = " ".join(f"{value:.2f}" for value in found)
        print(f"{method:<10} {mean(found):6.2f} ± {spread:.2f}   {scores}", flush=True)


if __name__ == "__main__":
    main()
