"""Texts beyond a model's length: cut, head and tail, or windows, on IMDB's reviews.

    python benchmarks/long_texts.py --data DATA/imdb/aclImdb_labeled.tar.xz [--model cloze-mini] [--rows 2000]

A model that reads 128 tokens is fine-tuned on some reviews, half of them good ones, and scored on as many of the test
set, by each way with long texts: 3 epochs, batch 32, rate 2e-4, three seeds. Scores are kept beside this script, and
the same command goes on with what is missing.
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
from kept_scores import KeptScores  # beside this file

KEPT = KeptScores(Path(__file__).with_suffix(".json"))
WAYS: tuple[LongTexts, ...] = ("cut", "head-tail", "windows")
SETTINGS = FinetuneSettings(epochs=3, batch_size=32, max_length=128, learning_rate=2e-4)


def write_rows(archive: Path, rows: int, out: Path) -> Source:
    """The first reviews of each split and label, as tables."""
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


def score(source: Source, model: str, way: LongTexts, seed: int, out: Path) -> float:
    """Fine-tune and score on the test rows."""
    run = run_finetuning(
        source, model, out / f"{source.data.stem}-{way}-{seed}", settings=replace(SETTINGS, long_texts=way, seed=seed)
    )
    return float(Run(run).results()["accuracy"])


def main() -> None:
    """Print a row for each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="aclImdb_labeled.tar.xz, or Stanford's own archive")
    parser.add_argument("--model", default="cloze-mini")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path("runs/long_texts"))
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    source = write_rows(asked.data, asked.rows, asked.out)
    for way in asked.ways:
        found = [
            100 * KEPT.get(f"{asked.rows} {way} {seed}", partial(score, source, asked.model, way, seed, asked.out))
            for seed in range(asked.seeds)
        ]
        spread = stdev(found) if len(found) > 1 else 0.0
        told = " ".join(f"{value:.2f}" for value in found)
        print(f"{way:<10} {mean(found):6.2f} ± {spread:.2f}   {told}", flush=True)


if __name__ == "__main__":
    main()
