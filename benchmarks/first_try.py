"""Compare the default settings of `cloze finetune` with other methods that a new user might try on the same rows.

    python benchmarks/first_try.py [--data FOLDER] [--models minilm m3e-small cloze-mini] [--only sst-2 mrpc]
        [--sizes 400 3000 0] [--ways cloze tf-idf vectors trainer trainer-best] [--seeds 3] [--max-rows 10000]
        [--dev-rows 1000] [--threads 1] [--out runs/first_try] [--kept]

cloze         ``cloze finetune TASK FILE --model MODEL``: a file with the training rows, no flags except the seed
tf-idf        TF-IDF with logistic or ridge regression; for tagging, the most frequent tag of each word
vectors       the model's sentence vectors with logistic or ridge regression; not for tagging
trainer       transformers' Trainer with its defaults (3 epochs, batch size 8, learning rate 5e-5), at most 128 tokens
trainer-best  the same with the best of six learning rates, chosen on a fifth of the training rows, once for all seeds

Chinese tasks use Chinese models (m3e-small), English tasks English ones. Size 0 means all rows, up to --max-rows. Each
seed has its own training rows, initial head and order; the dev rows are the same. Scores are stored in
--out/scores.json and predictions in --out/predictions: re-running the same command measures what is missing, and --kept
only prints. Results for the published data are archived in first_try.json.xz and unpacked first (--no-archive measures
them again); --archive adds new results to it. Seconds include loading the model and, for cloze, starting its separate
process.

Intervals are bootstrapped over the dev rows for the mean over the seeds; differences are paired by row. "best other" is
the other method with the best dev score; choosing it on the dev rows favours it over cloze. ``--data small`` runs on
bundled text.
"""

import argparse
import importlib.util
import json
import lzma
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch

from cloze.files import read_json, replace_json
from cloze.tasks.intervals import Difference, Floats, MetricRows, bootstrap_intervals, paired_difference
from cloze.tasks.registry import TaskData
from cloze.tasks.tagging.sequences import TaggedRows
from first_try_ways import Job, Predictions, choose_rate, run_cloze, run_tf_idf, run_trainer, run_vectors
from kept_scores import ScoreCache  # module in benchmarks/
from public_data import SMALL, add_data, find_data
from task_samples import TASKS, find_model, read_sample

METHODS = {
    "cloze": run_cloze,
    "tf-idf": run_tf_idf,
    "vectors": run_vectors,
    "trainer": run_trainer,
    "trainer-best": run_trainer,
}
ARCHIVE = Path(__file__).with_suffix(".json.xz")
# CoLA only runs with --only; RTE covers the small GLUE tasks
TASKS_BY_DEFAULT = [task for task in TASKS if task != "cola"]
CHINESE_MODELS = ("m3e-small",)


@dataclass(frozen=True)
class SeedMean:
    """The mean of a metric over seeds, for intervals over the dev rows that all seeds share."""

    metric: str
    seeds: Sequence[MetricRows | TaggedRows]

    def __len__(self) -> int:
        return len(self.seeds[0])

    def scores(self, counts: Floats) -> dict[str, Floats]:
        """Return the mean score of each resample."""
        return {self.metric: np.mean([rows.scores(counts)[self.metric] for rows in self.seeds], axis=0)}

    @cached_property
    def value(self) -> float:
        """The score in percent."""
        return 100 * float(self.scores(np.ones((1, len(self))))[self.metric][0])

    @cached_property
    def interval(self) -> list[float]:
        """The 95 % interval in percent."""
        return [100 * end for end in bootstrap_intervals(self)[self.metric]]


def rows_of(data: TaskData, predictions: Predictions) -> MetricRows | TaggedRows:
    """Pair the dev rows with predictions."""
    targets: Any = getattr(data.dev, "targets")  # noqa: B009 (all kinds here have them; the protocol does not)
    if data.kind.name != "tag":
        return MetricRows(data.metrics[:1], targets, predictions)
    assert data.labels is not None
    names = data.labels.names
    return TaggedRows(data.labels, [[names[tag] for tag in row] for row in targets], predictions)


def score(data: TaskData, predictions: Predictions) -> float:
    """Return the main metric."""
    return SeedMean(data.metrics[0], [rows_of(data, predictions)]).value / 100


class Cells:
    """Measured cells: scores, seconds and predictions by key."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.out: Path = arguments.out
        self.scores = ScoreCache(self.out / "scores.json")
        self._rows: dict[tuple[str, int, int], TaskData] = {}

    def data(self, task: str, size: int, seed: int) -> TaskData:
        """Return the rows of a cell."""
        options, key = self.arguments, (task, size, seed)
        if key not in self._rows:
            rows = min(size, options.max_rows) if size else options.max_rows
            # only the latest sample is cached
            self._rows = {key: read_sample(options.data, task, rows, options.dev_rows, self.out, seed)}
        return self._rows[key]

    def path(self, key: str) -> Path:
        """Return the file with the predictions of a cell."""
        return self.out / "predictions" / f"{key.replace(' ', '_').replace('/', '-')}.json"

    def measure(self, task: str, size: int, model: str, method: str, seed: int) -> None:
        """Measure a cell unless its result is stored."""
        key = key_of(task, size, model, method, seed)
        if not self.path(key).is_file():
            begun = time.perf_counter()
            print(f"{key} ...", end=" ", file=sys.stderr, flush=True)
            replace_json(self.path(key), self._run(key, task, size, model, method, seed))
            print(f"{time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
        self.scores.get(key, lambda: read_json(self.path(key))["score"])

    def _run(self, key: str, task: str, size: int, model: str, method: str, seed: int) -> dict[str, Any]:
        scratch, data = self.out / "running" / key.replace(" ", "-").replace("/", "-"), self.data(task, size, seed)
        shutil.rmtree(scratch, ignore_errors=True)  # left by a killed process
        job = Job(data, find_model(model), TASKS[task].is_chinese, seed, scratch)
        chosen = {"seconds": 0.0}
        if method == "trainer-best":
            chosen = self._chosen_rate(key_of(task, size, model, "rate", 0), job)
            job = replace(job, rate=chosen["rate"])
        answer = METHODS[method](job)
        shutil.rmtree(scratch, ignore_errors=True)
        return {
            "score": score(data, answer.predictions),
            "rows": len(data.train),
            "rate": job.rate,
            "seconds": answer.seconds + chosen["seconds"],
            "choosing": answer.choosing + chosen["seconds"],
            "predictions": answer.predictions,
        }

    def _chosen_rate(self, key: str, job: Job) -> dict[str, float]:
        """Return the learning rate for all seeds, chosen on the rows of the first seed and then stored."""
        path = self.path(key)
        if not path.is_file():
            begun = time.perf_counter()
            rate = choose_rate(job, score)
            replace_json(path, {"rate": rate, "seconds": time.perf_counter() - begun})
        chosen: dict[str, float] = read_json(path)
        return chosen

    def mean_of(self, task: str, size: int, model: str, method: str) -> tuple[SeedMean, list[dict[str, Any]]] | None:
        """Return the stored results of a cell for all seeds, or None if some are missing."""
        paths = [self.path(key_of(task, size, model, method, seed)) for seed in range(self.arguments.seeds)]
        if not all(path.is_file() for path in paths):
            return None
        found, data = [read_json(path) for path in paths], self.data(task, size, 0)
        return SeedMean(data.metrics[0], [rows_of(data, one["predictions"]) for one in found]), found


def unpack(out: Path) -> None:
    """Unpack the archived cells that are missing in a folder."""
    cells = json.loads(lzma.decompress(ARCHIVE.read_bytes())) if ARCHIVE.is_file() else {}
    for name, cell in cells.items():
        if not (path := out / "predictions" / name).is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_json(path, cell)


def pack(out: Path) -> None:
    """Archive the cells of a folder, with numbers rounded to five digits."""
    cells = {path.name: read_json(path) for path in sorted((out / "predictions").glob("*.json"))}
    for cell in cells.values():
        if cell.get("predictions") and isinstance(cell["predictions"][0], float):
            cell["predictions"] = [float(f"{number:.5g}") for number in cell["predictions"]]
    ARCHIVE.write_bytes(lzma.compress(json.dumps(cells, sort_keys=True).encode()))


def key_of(task: str, size: int, model: str, method: str, seed: int) -> str:
    """Return the key of a cell; that of TF-IDF does not contain a model."""
    return f"{task} {size or 'all'} {'any' if method == 'tf-idf' else Path(model).name} {method} {seed}"


def measured_cells(arguments: argparse.Namespace) -> list[tuple[str, int, str]]:
    """Return the model, size and task of each table row, in the order of measurement."""
    return [
        (task, size, model)
        for model, size, task in product(arguments.models, arguments.sizes, arguments.only)
        if TASKS[task].is_chinese == (Path(model).name in CHINESE_MODELS)
    ]


def measure(arguments: argparse.Namespace, cells: Cells) -> None:
    """Measure what is missing, the first seed of every row first, so that early tables are complete."""
    methods = [
        method for method in ("tf-idf", "vectors", "cloze", "trainer", "trainer-best") if method in arguments.ways
    ]
    if importlib.util.find_spec("accelerate") is None and any(method.startswith("trainer") for method in methods):
        print("skipping the Trainer because accelerate is not installed: pip install accelerate", file=sys.stderr)
        methods = [method for method in methods if not method.startswith("trainer")]
    for seed, (task, size, model), method in product(range(arguments.seeds), measured_cells(arguments), methods):
        if method != "vectors" or cells.data(task, size, seed).kind.name != "tag":
            cells.measure(task, size, model, method, seed)


@dataclass(frozen=True)
class Line:
    """A table row: the results for one model, task and size."""

    task: str
    size: int
    model: str
    methods: dict[str, tuple[SeedMean, list[dict[str, Any]]]]

    @cached_property
    def best_other(self) -> str | None:
        """The other method with the best score."""
        others = {method: found[0].value for method, found in self.methods.items() if method != "cloze"}
        return max(others, key=others.__getitem__, default=None)

    def against(self, other: str | None) -> Difference | None:
        """Return cloze minus another method in points, or None if a result is missing."""
        if other not in self.methods or "cloze" not in self.methods:
            return None
        metric = self.methods["cloze"][0].metric
        found = paired_difference(self.methods["cloze"][0], self.methods[other][0], metric)
        return Difference(100 * found.value, 100 * found.low, 100 * found.high)

    def cells(self, methods: Sequence[str]) -> list[str]:
        """Return the cells of this row in the table of scores."""
        metric, rows = next((mean.metric, found[0]["rows"]) for mean, found in self.methods.values())
        start = [f"{self.task} ({metric})", f"{rows:,}", Path(self.model).name]
        scores = [self._score(method) for method in methods]
        difference = self.against(self.best_other)
        shown = "-"
        if difference is not None:
            shown = f"{difference.value:+.1f} ({difference.low:+.1f} to {difference.high:+.1f}), {self.best_other}"
        return [*start, *scores, shown]

    def _score(self, method: str) -> str:
        if method not in self.methods:
            return "-"
        found = self.methods[method][0]
        return f"{found.value:.1f} ({found.interval[0]:.1f} to {found.interval[1]:.1f})"

    def times(self, methods: Sequence[str]) -> list[str]:
        """Return the cells of this row in the table of seconds."""
        start = [self.task, f"{next(iter(self.methods.values()))[1][0]['rows']:,}", Path(self.model).name]
        return [*start, *(self._seconds(method) for method in methods)]

    def _seconds(self, method: str) -> str:
        if method not in self.methods:
            return "-"
        seconds, choosing = (mean(one[name] for one in self.methods[method][1]) for name in ("seconds", "choosing"))
        return f"{seconds:.0f} ({choosing:.0f})"


def print_tables(arguments: argparse.Namespace, cells: Cells) -> None:
    """Print the tables of scores and seconds, and a summary per model."""
    lines = []
    for task, size, model in measured_cells(arguments):
        found = {method: cells.mean_of(task, size, model, method) for method in arguments.ways}
        kept = {method: result for method, result in found.items() if result is not None}
        lines += [Line(task, size, model, kept)] if kept else []
    head = ["data", "rows", "model"]
    print(f"Scores in percent, 95 % intervals, {arguments.seeds} seeds:\n")
    _print_table([*head, *arguments.ways, "cloze - best other"], [line.cells(arguments.ways) for line in lines])
    print("\nSeconds (in parentheses: spent on choosing a learning rate or regularization strength):\n")
    _print_table([*head, *arguments.ways], [line.times(arguments.ways) for line in lines])
    for model in arguments.models:
        _print_summary(Path(model).name, [line for line in lines if line.model == model])


def _print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    for row in (head, ["---"] * len(head), *rows):
        print("|", " | ".join(row), "|")


def _print_summary(model: str, lines: Sequence[Line]) -> None:
    """Print averages over the table rows that have results for both cloze and the other methods."""
    against = [(line, difference) for line in lines if (difference := line.against(line.best_other)) is not None]
    gains = [difference.value for line in lines if (difference := line.against("trainer")) is not None]
    if against:
        worst, lowest = min(against, key=lambda pair: pair[1].value)
        average = mean(difference.value for _, difference in against)
        print(
            f"\n{model}: cloze - best other, average over {len(against)} rows of the table: {average:+.1f} points; "
            f"worst: {lowest.value:+.1f} ({worst.task}, {worst.size or 'all'} rows, {worst.best_other})"
        )
    if gains:
        print(f"{model}: gain over the Trainer's defaults, average over {len(gains)}: {mean(gains):+.1f} points")


def main() -> None:
    """Parse the arguments, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data(parser)
    parser.add_argument("--models", nargs="+", default=["minilm", "m3e-small", "cloze-mini"])
    parser.add_argument("--only", nargs="+", default=TASKS_BY_DEFAULT, choices=TASKS, help="tasks")
    parser.add_argument("--sizes", nargs="+", type=int, default=[400, 3000, 0])
    parser.add_argument("--ways", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--max-rows", type=int, default=10_000)
    parser.add_argument("--dev-rows", type=int, default=1_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/first_try"))
    parser.add_argument("--kept", action="store_true", help="only print stored results")
    parser.add_argument("--no-archive", action="store_true", help="ignore the archive next to this file")
    parser.add_argument(
        "--archive", action="store_true", help="add all measured cells to the archive next to this file"
    )
    arguments = parser.parse_args()
    if str(arguments.data) != SMALL and not arguments.no_archive:
        unpack(arguments.out)
    arguments.data = find_data(arguments.data, *(TASKS[task].folder for task in arguments.only))
    torch.set_num_threads(arguments.threads)
    cells = Cells(arguments)
    if not arguments.kept:
        measure(arguments, cells)
    if arguments.archive:
        pack(arguments.out)
    print_tables(arguments, cells)


if __name__ == "__main__":
    main()
