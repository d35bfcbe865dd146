"""What the demo is told and what it found. Light to import: the second time, nothing else is needed.

The margin between two ways to start, with its interval.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import sqrt
from pathlib import Path
from statistics import mean, stdev

from cloze.corpus.settings import PrepareSettings, VocabularySettings
from cloze.files import read_json, replace_json
from cloze.train.settings import FinetuneSettings, PretrainSettings


@dataclass(frozen=True)
class Margin:
    """A mean difference and the interval that holds the true one with 95 % confidence."""

    mean: float
    low: float
    high: float


def paired_margin(better: Sequence[float], worse: Sequence[float]) -> Margin:
    """Student's interval of the paired differences: the same seed is the same order and the same new head."""
    from scipy.stats import t

    differences = [one - other for one, other in zip(better, worse, strict=True)]
    centre = mean(differences)
    half = float(t.ppf(0.975, len(differences) - 1)) * stdev(differences) / sqrt(len(differences))
    return Margin(centre, centre - half, centre + half)


RESULTS = "results.json"


@dataclass(frozen=True)
class DemoSettings:
    """Sizes that fit into about six minutes on two cores."""

    vocabulary: VocabularySettings = field(default_factory=lambda: VocabularySettings(size=6000))
    preparation: PrepareSettings = field(default_factory=lambda: PrepareSettings(held_out=0.03))
    pretraining: PretrainSettings = field(
        default_factory=lambda: PretrainSettings(
            preset="tiny",
            steps=2200,
            batch=64,
            # Short sequences are not only cheaper: the fewer tokens there are, the sooner the model finds out which
            # of them to look at.
            length=32,
            rate=2e-3,
            warmup=0.1,
            # A model that sees its text a handful of times has nothing to forget.
            dropout=0.0,
            evaluate_every=150,
        )
    )
    finetuning: FinetuneSettings = field(
        default_factory=lambda: FinetuneSettings(epochs=4, batch=32, length=32, rate=5e-4, dropout=0.0)
    )
    second_finetuning: FinetuneSettings = field(
        default_factory=lambda: FinetuneSettings(epochs=2, batch=32, length=32, rate=2e-4, dropout=0.1)
    )
    second_seeds: tuple[int, ...] = (0, 1, 2)


@dataclass(frozen=True)
class Blank:
    """A sentence with a blank, the word that stood there, and what two models put in."""

    sentence: str
    word: str
    trained: list[tuple[str, float]]
    untrained: list[tuple[str, float]]


@dataclass(frozen=True)
class SecondChapter:
    """The shipped model beside the demo's own: blanks, and accuracy on sentences that neither has read."""

    name: str
    told: str
    blanks: list[list[tuple[str, float]]]
    shipped: list[float]  # one a seed
    own: list[float]


@dataclass(frozen=True)
class DemoResults:
    """Everything that the page shows."""

    metrics: list[dict[str, float]]
    held_out: dict[str, float]
    blanks: list[Blank]
    accuracies: dict[str, list[float]]  # start -> one a seed
    margin: Margin  # of pre-training over none
    baseline: float  # words counted, no model at all
    labels: list[str]
    confusion: list[list[int]]
    examples: list[dict[str, str]]
    second: SecondChapter
    facts: dict[str, str]
    seconds: dict[str, float]


def recorded_results(out: Path, settings: DemoSettings) -> DemoResults | None:
    """The results of an earlier time, if the demo was the same."""
    path = out / RESULTS
    recorded = read_json(path) if path.is_file() else {}
    if recorded.get("settings") != _plain(settings):
        return None
    results = recorded["results"]
    rebuilt = {
        "blanks": [Blank(**blank) for blank in results["blanks"]],
        "margin": Margin(**results["margin"]),
        "second": SecondChapter(**results["second"]),
    }
    return DemoResults(**results | rebuilt)


def record_results(out: Path, settings: DemoSettings, results: DemoResults) -> None:
    """Keep the results for the next time."""
    replace_json(out / RESULTS, {"settings": _plain(settings), "results": asdict(results)})


def _plain(settings: DemoSettings) -> object:
    """The settings as they look after a journey through JSON."""
    return json.loads(json.dumps(asdict(settings)))
