"""Compare criteria for the regularization strength C of the linear head: loss, accuracy or macro-F1, and label weights.

    python benchmarks/linear_head.py [--data ../shared/data] [--tasks acl-arc scicite chnsenticorp] [--rows 400]
        [--others 800] [--seeds 3] [--out runs/linear-head]

For each seed, --rows of the rows are drawn for training and the --others rows are scored. C (and whether rare labels
have higher weights) is chosen by 5-fold cross-validation on the training rows. The vectors are those of
``cloze finetune --few`` (all-MiniLM-L6-v2 or m3e-small, mean pooling), and are stored in --out. Prints a Markdown table
with accuracy and macro-F1 of each way, and the differences from the first one over all tasks and seeds.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

import cloze
from cloze.tasks.classification.kind import LabelledTexts
from cloze.tasks.examples import fold_indices
from cloze.tasks.intervals import t_interval
from cloze.tasks.metrics import score
from cloze.train.finetuning.few_labels import STRENGTHS, Loss, fit_head, standardize
from cloze.train.finetuning.label_quality import sentence_features
from public_data import add_data, find_data  # module in benchmarks/
from task_samples import TASKS, find_model, read_sample  # module in benchmarks/

Array = NDArray[np.float64]

FOLDS = 5
METRICS = ("accuracy", "macro_f1")
# Criterion and label weights; "chosen" weights are balanced where the criterion is better with them.
WAYS = {
    "loss": ("loss", "none"),
    "accuracy": ("accuracy", "none"),
    "macro-F1": ("macro_f1", "none"),
    "loss, balanced": ("loss", "balanced"),
    "accuracy, weights chosen": ("accuracy", "chosen"),
    "macro-F1, weights chosen": ("macro_f1", "chosen"),
    "both": ("both", "none"),
    "both, weights chosen": ("both", "chosen"),
}
Scores = dict[str, tuple[float, float]]


def read_vectors(data: Path, task: str, rows: int, out: Path) -> tuple[LabelledTexts, Array, int]:
    """Return some rows of a task, their vectors and the number of labels."""
    out.mkdir(parents=True, exist_ok=True)
    sample = read_sample(data, task, rows, 1, out)
    assert isinstance(sample.train, LabelledTexts)
    assert sample.labels is not None
    kept = out / f"{task}-{rows}.npy"
    if not kept.exists():
        model = cloze.load(find_model("m3e-small" if TASKS[task].is_chinese else "minilm"))
        np.save(kept, sentence_features(model, sample.train))
    return sample.train, np.load(kept), len(sample.labels)


def candidates(rows: LabelledTexts, vectors: Array, labels: int, others: Array) -> list[dict[str, object]]:
    """Return, for each weighting and strength, the criteria by cross-validation and the outputs for the other rows."""
    targets = np.asarray(rows.targets, np.int64)
    goals, (scaled, undo) = np.eye(labels)[targets], standardize(vectors)
    counts = np.bincount(targets, minlength=labels).clip(min=1)
    found = []
    for weighting, weights in (("none", np.ones(labels)), ("balanced", len(rows) / (labels * counts))):
        loss, heads, whole = Loss("index", weights), [None] * FOLDS, None
        for strength in STRENGTHS[2:9]:  # 1e-4 to 0.1
            outputs = np.zeros_like(goals)
            for fold in range(FOLDS):
                held_out = fold_indices(rows, fold, FOLDS)
                fitted = np.delete(np.arange(len(rows)), held_out)
                heads[fold] = head = fit_head(scaled[fitted], goals[fitted], loss, strength, heads[fold])  # type: ignore[call-overload]
                outputs[held_out] = head(scaled[held_out])
            whole = fit_head(scaled, goals, loss, strength, whole)
            criteria = score(METRICS, targets.tolist(), outputs.argmax(1).tolist())
            total = -float(loss(outputs, goals)[0].sum())
            criteria["both"] = sum(criteria.values()) / 2
            found.append({"weights": weighting, "loss": total, **criteria, "outputs": undo(whole)(others)})
    return found


def choose(found: Sequence[dict[str, object]], criterion: str, weights: str) -> Array:
    """Return the outputs of the best candidate; ties go to the lowest loss."""
    kept = [one for one in found if weights in ("chosen", one["weights"])]
    best = max(kept, key=lambda one: (one[criterion], one["loss"]))
    outputs = best["outputs"]
    assert isinstance(outputs, np.ndarray)
    return outputs


def measure(data: Path, task: str, given: argparse.Namespace) -> list[Scores]:
    """Return the scores of each way, for each seed."""
    rows, vectors, labels = read_vectors(data, task, given.rows + given.others, given.out)
    results = []
    for seed in range(given.seeds):
        order = np.random.default_rng(seed).permutation(len(rows))
        train, others = order[: given.rows], order[given.rows :]
        targets = np.asarray(rows.targets, np.int64)[others].tolist()
        found = candidates(rows.select(train.tolist()), vectors[train], labels, vectors[others])
        scores: Scores = {}
        for way, (criterion, weights) in WAYS.items():
            one = score(METRICS, targets, choose(found, criterion, weights).argmax(1).tolist())
            scores[way] = one["accuracy"], one["macro_f1"]
        results.append(scores)
    return results


def main() -> None:
    """Measure all tasks and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data(parser)
    parser.add_argument("--tasks", nargs="+", default=["acl-arc", "scicite", "chnsenticorp"], choices=TASKS)
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--others", type=int, default=800)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/linear-head"))
    given = parser.parse_args()
    data = find_data(given.data, *(TASKS[task].folder for task in given.tasks))
    with threadpool_limits(1):
        results = {task: measure(data, task, given) for task in given.tasks}
    for index, metric in enumerate(METRICS):
        print(f"| {metric} by | {' | '.join(given.tasks)} | minus 'loss', all tasks and seeds |")
        print("|" + "---|" * (len(given.tasks) + 2))
        for way in WAYS:
            cells = [f"{100 * mean(one[way][index] for one in results[task]):.1f}" for task in given.tasks]
            gains = [one[way][index] - one["loss"][index] for task in given.tasks for one in results[task]]
            ends = t_interval(gains)
            interval = "" if ends is None else f" ({100 * ends[0]:+.1f} to {100 * ends[1]:+.1f})"
            print(f"| {way} | {' | '.join(cells)} | {100 * mean(gains):+.1f}{interval} |")


if __name__ == "__main__":
    main()
