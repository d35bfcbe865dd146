"""Measure explanations, label errors, abstention and suggestions on SST-2 and ChnSentiCorp.

    python benchmarks/trust.py [--data ../shared/data] [--only errors abstain suggest explain]
        [--tasks sst-2 chnsenticorp] [--rows 2000] [--seeds 3] [--out runs/trust]

- ``errors``: 5 % of the labels are flipped, and ``cloze.find_label_errors`` ranks all rows: the fraction of the flipped
  labels among the first 5 % of the rows, and precision and recall of the rows that are marked as errors.
- ``abstain``: the dev rows are split in halves at random. A threshold is chosen on one half, with the bound and with
  the plain error rate, and the error rate among the answers on the other half is measured.
- ``suggest``: a linear head is fitted on 50 rows; rows are added 50 at a time, at random, by uncertainty alone, and as
  ``cloze suggest`` draws them. Accuracy on the dev rows after each round.
- ``explain``: MiniLM is fine-tuned on 2,000 rows of SST-2; deletion curves of 100 dev rows against random order.

English: all-MiniLM-L6-v2; Chinese: m3e-small; the heads are fitted on sentence vectors. One thread is enough.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

import numpy as np
from numpy.typing import NDArray

import cloze
from cloze.errors import DataError
from cloze.predict.integrated_gradients import faithfulness
from cloze.progress import Silent
from cloze.tasks.classification.kind import LabelledTexts
from cloze.tasks.intervals import t_interval
from cloze.tasks.metrics import choose_abstention
from cloze.train.finetuning.few_labels import Loss, choose_strength, fit_head, standardize
from cloze.train.finetuning.label_quality import draw_diverse, linear_probabilities, rank_labels, sentence_features
from few_labels import write_out  # module in benchmarks/
from public_data import add_data, find_data  # module in benchmarks/
from task_samples import TASKS, find_model, read_sample  # module in benchmarks/

Array = NDArray[np.float64]

MODELS = {"sst-2": "minilm", "chnsenticorp": "m3e-small"}
FLIPPED = 0.05
FOLDS = 5
ROUND, ROUNDS = 50, 4
SPLITS = 200
EXPLAINED, TUNED_ROWS = 100, 2000
STRENGTHS = (1e-3, 1e-2, 1e-1)


@dataclass(frozen=True)
class Sample:
    """Rows of a task with their sentence vectors."""

    train: LabelledTexts
    dev: LabelledTexts
    names: tuple[str, ...]
    vectors: Array
    dev_vectors: Array

    @property
    def labels(self) -> NDArray[np.int64]:
        """The labels of the training rows."""
        return np.asarray(self.train.targets, np.int64)

    @property
    def dev_labels(self) -> NDArray[np.int64]:
        """The labels of the dev rows."""
        return np.asarray(self.dev.targets, np.int64)


def read(data: Path, task: str, rows: int, out: Path) -> Sample:
    """Read a sample of a task and its sentence vectors, which are stored in --out."""
    out.mkdir(parents=True, exist_ok=True)
    sample = read_sample(data, task, rows, 0, out)
    assert isinstance(sample.train, LabelledTexts)
    assert isinstance(sample.dev, LabelledTexts)
    assert sample.labels is not None
    kept = out / f"{task}-{rows}.npz"
    if not kept.exists():
        model = cloze.load(find_model(MODELS[task]))
        np.savez(kept, train=sentence_features(model, sample.train), dev=sentence_features(model, sample.dev))
    vectors = np.load(kept)
    return Sample(sample.train, sample.dev, sample.labels.names, vectors["train"], vectors["dev"])


def shown(values: list[float]) -> str:
    """Return mean and 95 % t interval over seeds, in percent."""
    ends = t_interval(values)
    interval = "" if ends is None else f" ({100 * ends[0]:.1f} to {100 * ends[1]:.1f})"
    return f"{100 * mean(values):.1f}{interval}"


def errors(sample: Sample, task: str, seeds: int) -> None:
    """Print how many flipped labels are found."""
    given, labels = sample.labels, len(sample.names)
    at_top, precision, recall, accuracy = [], [], [], []
    for seed in range(seeds):
        draw = np.random.default_rng(seed)
        flipped = draw.choice(len(given), round(FLIPPED * len(given)), replace=False)
        noisy = given.copy()
        noisy[flipped] = (given[flipped] + draw.integers(1, labels, len(flipped))) % labels
        rows = replace(sample.train, targets=noisy.tolist(), places=[str(row) for row in range(len(given))])
        shares = linear_probabilities(sample.vectors, rows, labels, FOLDS, Silent())
        found = rank_labels(rows, sample.names, shares, FOLDS, "linear")
        wrong = set(flipped.tolist())
        hits = [int(row.row) in wrong for row in found.rows]
        marked = [int(row.row) in wrong for row in found.issues]
        at_top.append(sum(hits[: len(wrong)]) / len(wrong))
        precision.append(mean(marked) if marked else 0.0)
        recall.append(sum(marked) / len(wrong))
        accuracy.append(found.accuracy)
    cells = (task, len(given), shown(at_top), shown(recall), shown(precision), shown(accuracy))
    print("|", *cells, sep=" | ", end=" |\n")


def fit(vectors: Array, labels: NDArray[np.int64], classes: int) -> Callable[[Array], Array]:
    """Return the probabilities of a linear head fitted with the best of a few strengths."""
    scaled, undo = standardize(vectors)
    goals, loss = np.eye(classes)[labels], Loss("index", np.ones(classes))
    order = np.random.default_rng(0).permutation(len(labels))
    folds = [order[fold::FOLDS].tolist() for fold in range(FOLDS)]
    head = undo(fit_head(scaled, goals, loss, choose_strength(scaled, goals, loss, folds, STRENGTHS)))

    def predict(others: Array) -> Array:
        outputs = head(others)
        shares: Array = np.exp(outputs - np.logaddexp.reduce(outputs, 1, keepdims=True))
        return shares

    return predict


def abstain(sample: Sample, task: str, rate: float) -> None:
    """Print how often the error rate among answers exceeds the rate on new rows, and the coverage."""
    shares = fit(sample.vectors, sample.labels, len(sample.names))(sample.dev_vectors)
    confident, right = shares.max(1), shares.argmax(1) == sample.dev_labels
    draw, results = np.random.default_rng(0), {"bound": list[tuple[float, float]](), "plain rate": []}
    missing = 0
    for _ in range(SPLITS):
        order = draw.permutation(len(right))
        chosen, others = order[: len(order) // 2], order[len(order) // 2 :]
        ranked = chosen[np.argsort(-confident[chosen])]
        risks = np.cumsum(~right[ranked]) / np.arange(1, len(ranked) + 1)
        below = np.flatnonzero(risks <= rate)
        thresholds = {"plain rate": confident[ranked[below[-1]]] if len(below) else 2.0}
        try:
            found = choose_abstention(confident[chosen].tolist(), right[chosen].tolist(), rate)
            thresholds["bound"] = found.below
        except DataError:
            missing += 1
        for name, threshold in thresholds.items():
            answered = others[confident[others] >= threshold]
            results[name].append(
                (len(answered) / len(others), float((~right[answered]).mean()) if len(answered) else 0.0)
            )
    for name, found_rows in results.items():
        if not found_rows:
            print(f"| {task} | {rate:g} | {name} | no threshold in any split | | |")
            continue
        coverage, risk = (mean(values) for values in zip(*found_rows, strict=True))
        broken = mean(one > rate for _, one in found_rows)
        note = f" ({missing} of {SPLITS} without a threshold)" if name == "bound" and missing else ""
        print(f"| {task} | {rate:g} | {name}{note} | {100 * coverage:.1f} | {100 * risk:.2f} | {100 * broken:.0f} |")


def suggestions(sample: Sample, task: str, seeds: int) -> None:
    """Print the accuracy after each round of labelling, by the way of choosing rows."""
    ways: dict[str, Callable[[NDArray[np.int64], Array, int], list[int]]] = {
        "random": lambda pool, _, seed: np.random.default_rng(seed).choice(len(pool), ROUND, replace=False).tolist(),
        "uncertainty": lambda _, unsure, __: np.argsort(-unsure, kind="stable")[:ROUND].tolist(),
        "cloze suggest": lambda pool, unsure, seed: draw_diverse(
            sample.vectors[pool].astype(np.float32), unsure, ROUND, seed
        ),
    }
    accuracies = {way: np.zeros((seeds, ROUNDS + 1)) for way in ways}
    for seed in range(seeds):
        start = np.random.default_rng(1000 + seed).choice(len(sample.labels), ROUND, replace=False)
        for way, choose in ways.items():
            labelled = start
            for step in range(ROUNDS + 1):
                predict = fit(sample.vectors[labelled], sample.labels[labelled], len(sample.names))
                right = predict(sample.dev_vectors).argmax(1) == sample.dev_labels
                accuracies[way][seed, step] = right.mean()
                pool = np.setdiff1d(np.arange(len(sample.labels)), labelled)
                ranked = np.sort(predict(sample.vectors[pool]), 1)
                chosen = choose(pool, 1 - (ranked[:, -1] - ranked[:, -2]), 100 * seed + step)
                labelled = np.concatenate([labelled, pool[chosen]])
    for way, found in accuracies.items():
        difference = (
            "" if way == "random" else shown((found[:, 1:].mean(1) - accuracies["random"][:, 1:].mean(1)).tolist())
        )
        print("|", task, way, *(f"{100 * value:.1f}" for value in found.mean(0)), difference, sep=" | ", end=" |\n")


def explain(data: Path, out: Path) -> None:
    """Print the deletion curves of explanations of SST-2 dev rows."""
    sample = read_sample(data, "sst-2", TUNED_ROWS, 0, out)
    assert sample.labels is not None
    train, dev = (write_out(part, sample.labels.names) for part in (sample.train, sample.dev))
    run = cloze.finetune(
        "classify", train, dev, model=find_model("minilm"), out=out / "sst-2", epochs=2, few=False, max_length=64
    )
    print(f"fine-tuned: accuracy {run.metrics['accuracy']:.4f}")
    found = run.model.explain([row["text"] for row in dev[:EXPLAINED]], check=True)
    measured = faithfulness(found)
    assert measured is not None
    for name in ("deletion", "random_deletion"):
        print(f"| {name} |", *(f"{value:.3f} |" for value in getattr(measured, name)))
    gain, low, high = measured.gain
    print(f"area between the curves {gain:.3f} ({low:.3f} to {high:.3f}), lower for {measured.better:.0%} of the texts")
    worst = max(abs(why.delta) for why in found)
    print(f"rank correlation with occlusion {measured.agreement:.2f}; convergence delta at most {worst:.3f}")


def main() -> None:
    """Measure the parts that were asked for, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data(parser)
    parts = ("errors", "abstain", "suggest", "explain")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--tasks", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rows", type=int, default=2000, help="training rows per task")
    parser.add_argument("--seeds", type=int, default=3, help="flips of labels, and starts of suggestions")
    parser.add_argument("--out", type=Path, default=Path("runs/trust"))
    given = parser.parse_args()
    data = find_data(given.data, *(TASKS[task].folder for task in given.tasks))
    if set(given.only) - {"explain"}:
        for task in given.tasks:
            sample = read(data, task, given.rows, given.out)
            if "errors" in given.only:
                print("| task | rows | in the first 5 % | recall of marked | precision of marked | accuracy |")
                errors(sample, task, given.seeds)
            if "abstain" in given.only:
                print("| task | rate | threshold by | coverage | error rate | splits above the rate (%) |")
                for rate in (0.05, 0.1):
                    abstain(sample, task, rate)
            if "suggest" in given.only:
                print("| task | rows chosen by | 50 | 100 | 150 | 200 | 250 rows | minus random |")
                suggestions(sample, task, given.seeds)
    if "explain" in given.only:
        explain(data, given.out)


if __name__ == "__main__":
    main()
