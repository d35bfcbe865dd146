"""The results of a comparison: collected from its folder, with intervals, differences and ranks.

A score is the mean over the seeds of a row. Its interval covers both the test documents (or rows, or couples of minimal
pairs) and the seeds (``tasks/comparisons.py``). Two rows are compared seed by seed and document by document.

Rules for what is claimed:
- A row with one seed is not ranked: its interval does not contain the variance between seeds.
- A row is above another only if the interval of their difference excludes zero; otherwise their ranks overlap.
- Variants of BERT are compared only with the row "bert", each in its own line.
- The losses of different objectives are never compared.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from cloze.comparison.settings import BASE, ComparedRow, CompareSettings
from cloze.files import read_json, replace_json
from cloze.tasks.comparisons import Resamples, mean_interval, runs_difference
from cloze.train.run import Run

RESULTS, SECONDS = "compare.json", "seconds.json"
RATE, COST, DIVERGED, PHENOMENA, NAME = "rate.json", "cost.json", "diverged.json", "phenomena.json", "name.json"
REFUSED = "refused.json"  # why a model could not be scored on a yardstick
# How a task is learned: a head on frozen states (a learned mix of all layers), or the whole model.
MODES: dict[str, Mapping[str, Any]] = {"frozen": {"frozen": "mix"}, "full": {}}
# Yardsticks on words, with their metrics.
WORDS = {"blanks": "accuracy", "likelihood": "likelihood", "pairs": "accuracy"}


@dataclass(frozen=True)
class ComparisonFolder:
    """The folder of a comparison: where each part is, and what it contains so far."""

    path: Path
    settings: CompareSettings
    metrics: Mapping[str, str]  # main metric of each task

    @property
    def corpus(self) -> Path:
        """The text to train on, in tokens."""
        return self.path / "corpus"

    @property
    def test(self) -> Path:
        """The text of the blanks, in tokens."""
        return self.path / "test"

    @property
    def reference(self) -> Path:
        """The scores without a neural network."""
        return self.path / "scores" / "reference"

    @property
    def finished(self) -> bool:
        """Whether all results are there."""
        path = self.path / RESULTS
        return path.is_file() and bool(read_json(path)["finished"])

    def model(self, row: ComparedRow, seed: int | None = None) -> Path:
        """Return the folder of a row's runs, or of the run of one seed."""
        folder = self.path / "models" / row.folder
        return folder if seed is None else folder / f"seed-{seed}"

    def scores(self, row: ComparedRow, seed: int) -> Path:
        """Return the folder of the scores of one pre-training."""
        return self.path / "scores" / row.folder / f"seed-{seed}"

    def seeds(self, row: ComparedRow) -> range:
        """Return the seeds of a row."""
        return range(self.settings.seed, self.settings.seed + row.seeds)

    def yardsticks(self) -> dict[str, str]:
        """Return the names of the yardsticks with their metrics."""
        return WORDS | {f"{task} {mode}": metric for task, metric in self.metrics.items() for mode in MODES}

    def write(self, rows: Sequence[ComparedRow], facts: Mapping[str, Any], *, finished: bool) -> None:
        """Write the results so far, and separately the durations, which differ from run to run."""
        cells = {row.name: {name: self._cells(row, name) for name in self.yardsticks()} for row in rows}
        results = {
            "finished": finished,
            "settings": asdict(self.settings) | {"steps": self.settings.step_budget},
            **facts,
            "yardsticks": self.yardsticks(),
            "references": self._references(),
            "rows": [self._row(row, cells[row.name]) for row in rows],
            **findings(rows, cells),
        }
        replace_json(self.path / SECONDS, {row.name: self._seconds(row) for row in rows})
        replace_json(self.path / RESULTS, results | {"conclusions": conclusions(results)})

    def _cells(self, row: ComparedRow, yardstick: str) -> list[Resamples]:
        """Return the scores of the row's seeds so far."""
        found = [Resamples.read(self.scores(row, seed) / yardstick) for seed in self.seeds(row)]
        return [one for one in found if one is not None]

    def _references(self) -> dict[str, Any]:
        references: dict[str, Any] = {"pairs": {"name": "word frequencies", "mean": 0.5, "interval": [0.5, 0.5]}}
        places = {
            name: self.reference / (name if name in WORDS else name.rpartition(" ")[0]) for name in self.yardsticks()
        }
        for name, place in places.items():
            found = Resamples.read(place)
            if found is not None:
                title = read_json(place / NAME)["name"] if (place / NAME).is_file() else "word frequencies"
                references[name] = {"name": title, "mean": found.score, "interval": found.interval}
        return references

    def _row(self, row: ComparedRow, cells: Mapping[str, Sequence[Resamples]]) -> dict[str, Any]:
        runs = [self.model(row, seed) for seed in self.seeds(row)]
        phenomena = self._existing([self.scores(row, seed) / "pairs" / PHENOMENA for seed in self.seeds(row)])
        rates = self._existing([self.model(row) / RATE])
        # Durations differ from run to run.
        trials = [
            {name: trial[name] for name in trial if name != "seconds"} for rate in rates for trial in rate["trials"]
        ]
        return {
            "name": row.name,
            "folder": row.folder,
            "backbone": row.backbone,
            "group": row.group,
            "settings": dict(row.settings),
            "seeds": row.seeds,
            "learning_rate": rates[0]["learning_rate"] if rates else None,
            "trials": trials,
            "diverged": sum((run / DIVERGED).is_file() for run in runs),
            "runs": self._existing([run / COST for run in runs]),
            "phenomena": {name: _mean([one[name] for one in phenomena]) for name in (phenomena or [{}])[0]},
            "scores": {name: _summary(found) for name, found in cells.items() if found},
            "refused": self._refused(row),
        }

    def _refused(self, row: ComparedRow) -> dict[str, str]:
        """Return why a yardstick has no score for a row, for those that were tried."""
        paths = [path for seed in self.seeds(row) for path in sorted(self.scores(row, seed).glob(f"*/{REFUSED}"))]
        return {path.parent.name: str(read_json(path)["reason"]) for path in paths}

    def _existing(self, paths: Sequence[Path]) -> list[dict[str, Any]]:
        return [read_json(path) for path in paths if path.is_file()]

    def _seconds(self, row: ComparedRow) -> dict[str, Any]:
        """Return the duration of the trials together, and of each finished pre-training."""
        trials = [trial for rate in self._existing([self.model(row) / RATE]) for trial in rate["trials"]]
        runs = [run for seed in self.seeds(row) if (run := Run(self.model(row, seed))).finished]
        return {
            "trials": round(sum(trial["seconds"] for trial in trials), 1),
            "seeds": [round(3600 * run.results()["hours"], 1) for run in runs],
        }


def findings(
    rows: Sequence[ComparedRow], cells: Mapping[str, Mapping[str, Sequence[Resamples]]]
) -> dict[str, list[dict[str, Any]]]:
    """Return the differences between rows, and the ranks that they allow; see the rules in the module's docstring.

    Args:
        rows: The rows.
        cells: For each row and yardstick, the score of each seed.

    Returns:
        ``differences`` (yardstick, group, first and second row, seeds, value, interval, and whether it is decided), and
        ``ranks`` (yardstick, row, best and worst rank).
    """
    main = [row.name for row in rows if row.group == "main"]
    variants = [row.name for row in rows if row.group == "variant" and BASE in main]
    pairs = [(*pair, "main") for pair in combinations(main, 2)] + [(row, BASE, "variant") for row in variants]
    differences, ranks = [], []
    for yardstick in next(iter(cells.values()), {}):
        found = [_difference(yardstick, *pair, cells) for pair in pairs]
        measured = [one for one in found if one is not None]
        ranked = [row for row in main if len(cells[row][yardstick]) > 1]
        differences += measured
        if len(ranked) > 1:
            ranks += _ranks(yardstick, ranked, [one for one in measured if one["group"] == "main"])
    return {"differences": differences, "ranks": ranks}


def _difference(
    yardstick: str, first: str, second: str, group: str, cells: Mapping[str, Mapping[str, Sequence[Resamples]]]
) -> dict[str, Any] | None:
    """Return the difference of two rows over the seeds that both have; None if there are none yet."""
    one, other = cells[first][yardstick], cells[second][yardstick]
    seeds = min(len(one), len(other))
    if not seeds:
        return None
    found = runs_difference(one[:seeds], other[:seeds])
    facts = {"yardstick": yardstick, "group": group, "first": first, "second": second, "seeds": seeds}
    decided = seeds > 1 and found.reliable
    return {**facts, "value": found.value, "low": found.low, "high": found.high, "decided": decided}


def _ranks(yardstick: str, rows: Sequence[str], differences: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the ranks that the decided differences allow: 1 + rows above it, up to all but the rows below it."""
    above: dict[str, set[str]] = {row: set() for row in rows}
    for one in differences:
        if one["decided"]:
            better, worse = (one["first"], one["second"]) if one["value"] > 0 else (one["second"], one["first"])
            above[worse].add(better)
    below = {row: sum(row in others for others in above.values()) for row in rows}
    return [
        {"yardstick": yardstick, "row": row, "best": 1 + len(above[row]), "worst": len(rows) - below[row]}
        for row in rows
    ]


def _summary(runs: Sequence[Resamples]) -> dict[str, Any]:
    scores = [run.score for run in runs]
    return {"mean": _mean(scores), "interval": mean_interval(runs), "seeds": scores, "units": runs[0].rows}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# -- conclusions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """A published finding: which row should be above which, and the published figures."""

    statement: str
    above: str
    below: str
    published: str


CLAIMS = (
    Claim(
        "both sides help: bidirectional above left-to-right",
        "bert",
        "gpt",
        "BERT-base without NSP against left-to-right: MRPC 86.5 / 77.5, SST-2 92.6 / 92.1, SQuAD F1 87.9 / 77.8 "
        "(Devlin et al. 2019, table 5)",
    ),
    Claim("BERT above ELMo", "bert", "elmo", "GLUE average 79.6 / 71.0 (Devlin et al. 2019, table 1)"),
    Claim("GPT above ELMo", "gpt", "elmo", "GLUE average 75.1 / 71.0 (Devlin et al. 2019, table 1)"),
    *(
        Claim(
            "next sentences help",
            name,
            BASE,
            "QNLI 88.4 / 84.9, MRPC 86.7 / 86.5 (Devlin et al. 2019, table 5); but SQuAD 2 78.7 / 79.1 (Liu et al. "
            "2019, table 2)",
        )
        for name in ("bert+nsp", "objective=nsp")
    ),
    *(
        Claim("sentence order helps", name, BASE, "average of five tasks 80.1 / 79.0 (Lan et al. 2020, table 5)")
        for name in ("bert+sop", "objective=sop")
    ),
    Claim(
        "masking whole words helps", "masking=word", BASE, "SQuAD F1 92.8 / 91.0, MNLI 87.1 / 86.1 (BERT's repository)"
    ),
    Claim("masking spans helps", "masking=span", BASE, "SQuAD 2 85.4 / 83.8 (Joshi et al. 2020, table 5)"),
    Claim(
        "80/10/10 above 100 % [MASK]",
        BASE,
        "mix=100-mask",
        "MNLI 84.2 / 84.3; entities fine-tuned 95.4 / 94.9, frozen 94.9 / 94.0 (Devlin et al. 2019, table 8)",
    ),
    Claim("dynamic masks above static ones", BASE, "masks=static", "SQuAD 2 78.7 / 78.3 (Liu et al. 2019, table 1)"),
    Claim("masking 40 % instead of 15 % helps", "rate=0.4", BASE, "for large models (Wettig et al. 2023)"),
)


_FEW_DOCUMENTS = 30
_TITLES = {
    "blanks": "blanks filled",
    "likelihood": "probability of the blank's word",
    "pairs": "minimal pairs",
}


def title_of(yardstick: str) -> str:
    """Return the name of a yardstick in tables and sentences."""
    task, _, mode = yardstick.rpartition(" ")
    return _TITLES.get(yardstick) or f"{task}, {'frozen features' if mode == 'frozen' else 'fine-tuned'}"


def conclusions(facts: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return what the results support, what they leave open, and what limits them, as sentences.

    Args:
        facts: The contents of ``compare.json``.
    """
    supported, undecided = [], []
    for yardstick in facts["yardsticks"]:
        for group in ("main", "variant"):
            found = [one for one in facts["differences"] if (one["yardstick"], one["group"]) == (yardstick, group)]
            decided = [_above(one) for one in found if one["decided"]]
            open_ones = [_open(one) for one in found if not one["decided"] and one["seeds"] > 1]
            name = title_of(yardstick) + (" (variants of BERT)" if group == "variant" else "")
            supported += [f"{name}: {'; '.join(decided)}."] if decided else []
            undecided += [f"{name}: {'; '.join(open_ones)}."] if open_ones else []
    return {"supported": supported, "undecided": undecided, "limits": [*_limits(facts)]}


def _above(one: Mapping[str, Any]) -> str:
    better, worse, sign = (one["first"], one["second"], 1) if one["value"] > 0 else (one["second"], one["first"], -1)
    ends = sorted(100 * sign * one[end] for end in ("low", "high"))
    return f"{better} is above {worse} by {100 * sign * one['value']:.1f} points ({ends[0]:.1f} to {ends[1]:.1f})"


def _open(one: Mapping[str, Any]) -> str:
    value, low, high = (100 * one[name] for name in ("value", "low", "high"))
    return f"{one['first']} against {one['second']}: {value:+.1f} points ({low:+.1f} to {high:+.1f})"


def _limits(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield what limits the conclusions."""
    if not facts["finished"]:
        yield "The comparison is not finished; rows without scores are still to be trained."
    single = [
        row["name"] for row in facts["rows"] if row["scores"] and len(next(iter(row["scores"].values()))["seeds"]) < 2
    ]
    if single:
        yield (
            f"One pre-training seed, not ranked: {', '.join(single)}. Their intervals do not contain the variance "
            "between seeds, so no difference to them is claimed."
        )
    yield from _reference_limits(facts)
    diverged = [row["name"] for row in facts["rows"] if row["diverged"]]
    if diverged:
        yield f"Diverged in at least one seed, which has no scores: {', '.join(diverged)}."
    for row in facts["rows"]:
        for yardstick, reason in row["refused"].items():
            yield f"{row['name']} has no score for {title_of(yardstick)}: {reason}."
    tested = sum(one["seeds"] > 1 for one in facts["differences"])
    if tested:
        yield (
            f"{tested} differences were tested at 95 %: if no two rows differed, about {0.05 * tested:.1f} of them "
            "would exclude zero by chance."
        )
    if facts["test"]["documents"] < _FEW_DOCUMENTS:
        yield (
            f"The blanks come from {facts['test']['documents']} documents; intervals over fewer than {_FEW_DOCUMENTS} "
            "documents are too narrow."
        )
    static = next((row for row in facts["rows"] if row["settings"].get("static") and row["runs"]), None)
    if static is not None and (epochs := static["runs"][0]["tokens"] / facts["text"]["tokens"]) < 2:
        yield (
            f"{static['name']}: the text was read {epochs:.2f} times, so static masks hardly ever occurred twice; this "
            "budget cannot decide between static and dynamic masks."
        )
    yield (
        "At small budgets, the model that leaves the plateau of its loss first is ahead, which may change with more "
        "training: see the curves. Losses of different objectives are not compared anywhere."
    )


def _reference_limits(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the rows that are not reliably above a prediction without a neural network."""
    for yardstick, reference in facts["references"].items():
        scored = {row["name"]: row["scores"][yardstick] for row in facts["rows"] if yardstick in row["scores"]}
        low = [name for name, score in scored.items() if score["interval"][0] <= reference["mean"]]
        if low:
            yield (
                f"{title_of(yardstick)}: not reliably above {reference['name']} ({100 * reference['mean']:.1f}): "
                f"{', '.join(low)}."
            )
