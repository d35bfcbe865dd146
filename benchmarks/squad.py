"""SQuAD's scores of a fine-tuned MiniLM, on the parts of it that are at hand.

    python benchmarks/squad.py [--articles 22] [--epochs 2] [--seeds 1]

squad     trained on articles of the official training set (Du's test part), scored on the answerable questions of half
          of the official dev set, which have several right answers each
squad2    trained on the same articles and on three quarters of those of that half, which has the questions without an
          answer; scored on its other articles

No article is on both sides. Scores are kept beside this script, and the same command goes on with what is missing.
"""

import argparse
import json
import lzma
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from cloze.files import replace_json
from cloze.tasks.source import Source
from cloze.train.finetune import finetune
from cloze.train.run import Run
from cloze.train.settings import FinetuneSettings
from kept_scores import KeptScores  # beside this file
from minilm import minilm

ROOT = Path(__file__).parents[1]
KEPT = KeptScores(Path(__file__).with_suffix(".json"))
METRICS = {"squad": ("exact_match", "f1"), "squad2": ("exact", "f1", "HasAns_f1", "NoAns_f1")}
Article = dict[str, Any]


def articles_of(path: Path) -> list[Article]:
    """The articles of a packed file."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return list(json.load(file)["data"])


def answerable(article: Article) -> Article:
    """The same without questions that have no answer, as in version 1.1."""
    paragraphs = [
        part | {"qas": [one for one in part["qas"] if not one.get("is_impossible")]} for part in article["paragraphs"]
    ]
    return article | {"paragraphs": paragraphs}


def sources(data: Path, articles: int, out: Path) -> dict[str, Source]:
    """Both tasks, with the files that they read."""
    train = articles_of(data / "squad/du-split-test-v1.1.json.xz")[:articles]
    half = articles_of(data / "squad/cs224n-dev-v2.0.json.xz")
    scored = len(half) // 4
    parts = {
        "squad": (train, [answerable(article) for article in half]),
        "squad2": (train + half[scored:], half[:scored]),
    }
    out.mkdir(parents=True, exist_ok=True)
    found = {}
    for task, sides in parts.items():
        train_file, dev_file = (out / f"{task}-{articles}-{side}.json" for side in ("train", "dev"))
        for path, side in zip((train_file, dev_file), sides, strict=True):
            replace_json(path, {"version": "v2.0" if task == "squad2" else "1.1", "data": side})
        found[task] = Source(task, train_file, dev_file)
    return found


def score(source: Source, metric: str, settings: FinetuneSettings, place: Path) -> float:
    """Tune, or find it done, and read one score off the dev questions."""
    return float(Run(finetune(source, minilm(), place, settings=settings)).results()[metric])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT / "../shared/data", help="the folder with squad/ in it")
    parser.add_argument("--tasks", nargs="+", default=list(METRICS), choices=METRICS)
    parser.add_argument("--articles", type=int, default=22, help="articles of the training set, of 44")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path("runs/squad"), help="where unfinished trainings are")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    for task, source in sources(asked.data, asked.articles, asked.out).items():
        if task not in asked.tasks:
            continue
        for metric in METRICS[task]:
            values = []
            for seed in range(asked.seeds):
                settings = FinetuneSettings(epochs=asked.epochs, batch=16, length=384, rate=1e-4, seed=seed)
                name = f"{task} {asked.articles} {asked.epochs} {seed}"
                tuned = partial(score, source, metric, settings, asked.out / name.replace(" ", "-"))
                values.append(100 * KEPT.get(f"{name} {metric}", tuned))
            print(
                f"{task:<8} {metric:<12} {mean(values):6.2f}   {' '.join(f'{one:.2f}' for one in values)}", flush=True
            )


if __name__ == "__main__":
    main()
