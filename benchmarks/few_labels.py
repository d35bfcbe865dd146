"""Compare methods for few labels: a linear head on sentence vectors, contrastive fine-tuning, full fine-tuning.

    python benchmarks/few_labels.py [--data ../shared/data] [--tasks sst-2 scicite chnsenticorp] [--model MODEL]
        [--sizes 50 200 400 1000] [--ways tfidf few contrastive full auto] [--seeds 2] [--out runs/few-labels]

Every cell is a run of ``cloze finetune`` with its defaults except 64 tokens per text and fp32, or scikit-learn's
logistic regression on TF-IDF (``tfidf``). A seed determines the training rows and the training itself; the dev rows are
the same for all seeds. English tasks start from all-MiniLM-L6-v2, Chinese ones from m3e-small, or from the shipped
model if these packages are missing. Accuracies and CPU seconds are stored in --out/scores.json, and re-running the same
command measures what is missing. Prints a Markdown table with the accuracy of each seed and the mean CPU seconds.
"""

import argparse
import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from cloze.models import PACKAGED_MODELS, SHIPPED_MODEL
from cloze.predict import evaluate
from cloze.tasks.rows import Source
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.settings import FinetuneSettings
from kept_scores import ScoreCache  # module in benchmarks/
from public_data import add_data, find_data  # module in benchmarks/
from task_samples import TASKS, read_sample  # module in benchmarks/

SETTINGS: dict[str, dict[str, Any]] = {
    "few": {"few": True},
    "contrastive": {"few": True, "contrastive": True},
    "full": {"few": False},
    "auto": {},
}
METHODS = ("tfidf", *SETTINGS)
SCORED_BY_RUNS = 20  # Number of dev rows for the evaluation after every epoch; the final score uses all dev rows.

Rows = list[dict[str, str]]


def choose_model(task: str) -> str:
    """Return a sentence-embedding model for the task's language, or the shipped model if its package is missing."""
    packaged = PACKAGED_MODELS[TASKS[task].is_chinese]
    return str(packaged.find() or SHIPPED_MODEL)


def draw_rows(data: Path, name: str, size: int, dev_rows: int, seed: int, out: Path) -> tuple[Rows, Rows]:
    """Return training rows selected by the seed, and dev rows that are the same for every seed."""
    drawn = read_sample(data, name, size, dev_rows, out, seed)
    assert drawn.labels is not None
    return write_out(drawn.train, drawn.labels.names), write_out(drawn.dev, drawn.labels.names)


def write_out(examples: Any, names: Sequence[str]) -> Rows:
    """Convert labelled texts to rows."""
    pairs = examples.pairs or [None] * len(examples.texts)
    return [
        {"text": text, "label": names[target]} | ({} if pair is None else {"pair": pair})
        for text, pair, target in zip(examples.texts, pairs, examples.targets, strict=True)
    ]


def write(path: Path, rows: Rows) -> Path:
    """Write rows as JSONL."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def score_run(train: Rows, dev: Rows, model: str, out: Path, settings: FinetuneSettings) -> tuple[float, float]:
    """Return the dev accuracy of one run of ``cloze finetune``, and its CPU seconds."""
    shutil.rmtree(out, ignore_errors=True)
    pair = "pair" if "pair" in train[0] else None
    train_file, dev_file = write(out / "train.jsonl", train), write(out / "dev.jsonl", dev)
    some = write(out / "some.jsonl", dev[:SCORED_BY_RUNS])
    start = time.process_time()
    run = run_finetuning(Source("classify", train_file, some, pair=pair), model, out / "run", settings=settings)
    seconds = time.process_time() - start
    accuracy = evaluate(run, Source("classify", dev_file, pair=pair)).metrics["accuracy"]
    shutil.rmtree(out)
    return float(accuracy), seconds


def score_tfidf(train: Rows, dev: Rows, *, chinese: bool) -> tuple[float, float]:
    """Return the accuracy of logistic regression on TF-IDF with cross-validated C, and its CPU seconds."""
    features: dict[str, Any] = {"analyzer": "char", "ngram_range": (1, 3)} if chinese else {"ngram_range": (1, 2)}
    start = time.process_time()
    model = make_pipeline(
        TfidfVectorizer(sublinear_tf=True, **features),
        GridSearchCV(LogisticRegression(max_iter=2000), {"C": [0.1, 1, 10, 100, 1000]}, scoring="neg_log_loss"),
    )
    texts = [" ".join(filter(None, (row["text"], row.get("pair")))) for row in train]
    model.fit(texts, [row["label"] for row in train])
    predicted = model.predict([" ".join(filter(None, (row["text"], row.get("pair")))) for row in dev])
    right = [said == row["label"] for said, row in zip(predicted, dev, strict=True)]
    return mean(right), time.process_time() - start


@dataclass(frozen=True)
class Cell:
    """One table cell: one method on one sample of a task's rows."""

    task: str
    model: str
    size: int
    method: str
    seed: int

    @property
    def key(self) -> str:
        """The key of the cell in the score file."""
        return f"{Path(self.model).name} {self.task} {self.size} {self.method} {self.seed}"

    def measure(self, arguments: argparse.Namespace, kept: ScoreCache) -> float:
        """Return the accuracy; the CPU seconds are stored under a separate key."""
        train, dev = draw_rows(arguments.data, self.task, self.size, arguments.dev_rows, self.seed, arguments.out)
        if self.method == "tfidf":
            accuracy, seconds = score_tfidf(train, dev, chinese=TASKS[self.task].is_chinese)
        else:
            settings = FinetuneSettings(max_length=64, precision="fp32", seed=self.seed, **SETTINGS[self.method])
            out = arguments.out / self.key.replace(" ", "-")
            accuracy, seconds = score_run(train, dev, self.model, out, settings)
        kept.get(f"{self.key} seconds", lambda: seconds)
        return accuracy


def print_table(arguments: argparse.Namespace) -> None:
    """Measure missing cells, and print one line per task and size."""
    kept = ScoreCache(arguments.out / "scores.json")
    print("| task | model | rows |", " | ".join(arguments.ways), "| CPU seconds |")
    print("|---" * (4 + len(arguments.ways)) + "|")
    for size, task in product(arguments.sizes, arguments.tasks):
        model = arguments.model or choose_model(task)
        accuracies, seconds = [], []
        for method in arguments.ways:
            cells = [Cell(task, model, size, method, seed) for seed in range(arguments.seeds)]
            scores = [kept.get(cell.key, partial(cell.measure, arguments, kept)) for cell in cells]
            accuracies.append(", ".join(f"{100 * score:.1f}" for score in scores))
            seconds.append(f"{mean(kept.get(f'{cell.key} seconds', float) for cell in cells):.0f}")
        print("|", " | ".join((task, Path(model).name, str(size), *accuracies, ", ".join(seconds))), "|", flush=True)


def main() -> None:
    """Parse the arguments and print the table."""
    parser = argparse.ArgumentParser(description="Compare methods for classification with few labels.")
    add_data(parser)
    parser.add_argument("--tasks", nargs="+", default=["sst-2", "scicite", "chnsenticorp"], choices=TASKS)
    parser.add_argument("--model", help="base model (default: chosen by the language of the task)")
    parser.add_argument("--sizes", nargs="+", type=int, default=[50, 200, 400, 1000])
    parser.add_argument("--ways", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--dev-rows", type=int, default=500)
    parser.add_argument("--out", type=Path, default=Path("runs/few-labels"))
    arguments = parser.parse_args()
    arguments.data = find_data(arguments.data, *(TASKS[task].folder for task in arguments.tasks))
    torch.set_num_threads(1)
    print_table(arguments)


if __name__ == "__main__":
    main()
