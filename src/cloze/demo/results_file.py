"""Settings and results of the demo. Imports nothing heavy, so that the results of a finished demo are shown quickly."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import sqrt
from pathlib import Path
from statistics import mean, stdev

from cloze.corpus.settings import PrepareSettings, VocabularySettings
from cloze.files import read_json, replace_json
from cloze.train.finetuning.settings import FinetuneSettings
from cloze.train.settings import PretrainSettings

RESULTS = "results.json"


@dataclass(frozen=True)
class DemoSettings:
    """Sizes of all stages, chosen so that the demo takes about seven minutes on two cores."""

    vocabulary: VocabularySettings = field(default_factory=lambda: VocabularySettings(size=6000))
    preparation: PrepareSettings = field(default_factory=lambda: PrepareSettings(held_out=0.03))
    pretraining: PretrainSettings = field(
        default_factory=lambda: PretrainSettings(
            preset="tiny",
            steps=2200,
            batch_size=64,
            # Short sequences are cheaper, and attention becomes selective sooner if there are fewer tokens.
            max_length=32,
            learning_rate=2e-3,
            warmup=0.1,
            # Few passes over the text, so there is no overfitting to prevent.
            dropout=0.0,
            evaluate_every=150,
        )
    )
    finetuning: FinetuneSettings = field(
        default_factory=lambda: FinetuneSettings(
            epochs=4, batch_size=32, max_length=32, learning_rate=5e-4, dropout=0.0
        )
    )
    second_finetuning: FinetuneSettings = field(
        default_factory=lambda: FinetuneSettings(
            epochs=2, batch_size=32, max_length=32, learning_rate=2e-4, dropout=0.1
        )
    )
    second_seeds: tuple[int, ...] = (0, 1, 2)


@dataclass(frozen=True)
class Blank:
    """A sentence with a blank, the original word, and the predictions of the trained and the untrained model."""

    sentence: str
    word: str
    trained: list[tuple[str, float]]
    untrained: list[tuple[str, float]]


@dataclass(frozen=True)
class ShippedComparison:
    """The shipped model compared with the demo's own: predictions, and accuracy on sentences new to both."""

    name: str
    description: str
    blanks: list[list[tuple[str, float]]]
    shipped: list[float]  # accuracy per seed
    own: list[float]


@dataclass(frozen=True)
class Margin:
    """A mean difference with its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class DemoResults:
    """The content of the demo's page."""

    metrics: list[dict[str, float]]
    held_out: dict[str, float]
    blanks: list[Blank]
    accuracies: dict[str, list[float]]  # start -> accuracy per seed
    margin: Margin  # accuracy with pre-training minus without
    baseline: float  # accuracy of a bag-of-words classifier
    labels: list[str]
    confusion: list[list[int]]
    examples: list[dict[str, str]]
    second: ShippedComparison
    facts: dict[str, str]
    seconds: dict[str, float]


def paired_margin(better: Sequence[float], worse: Sequence[float]) -> Margin:
    """Return the mean of the paired differences with its 95 % interval by Student's t.

    Accuracies are paired by seed, which determines the order of the rows and the initial head.
    """
    from scipy.stats import t

    differences = [first - second for first, second in zip(better, worse, strict=True)]
    centre = mean(differences)
    half = float(t.ppf(0.975, len(differences) - 1)) * stdev(differences) / sqrt(len(differences))
    return Margin(centre, centre - half, centre + half)


def load_results(out: Path, settings: DemoSettings) -> DemoResults | None:
    """Return the saved results of a finished demo; None if there are none or they have other settings or fields."""
    path = out / RESULTS
    saved = read_json(path) if path.is_file() else {}
    if saved.get("settings") != _as_json(settings):
        return None
    results = saved["results"]
    try:
        rebuilt = {
            "blanks": [Blank(**blank) for blank in results["blanks"]],
            "margin": Margin(**results["margin"]),
            "second": ShippedComparison(**results["second"]),
        }
        return DemoResults(**results | rebuilt)
    except TypeError:  # written by another version, with other fields
        return None


def save_results(out: Path, settings: DemoSettings, results: DemoResults) -> None:
    """Save the results, from which the page of a finished demo can be rendered again."""
    replace_json(out / RESULTS, {"settings": _as_json(settings), "results": asdict(results)})


def _as_json(settings: DemoSettings) -> object:
    """Return the settings as JSON values, for the comparison with saved ones."""
    return json.loads(json.dumps(asdict(settings)))
