"""The demo from end to end, with settings that take seconds: its stages, its page, and a second run."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from cloze.corpus.settings import VocabularySettings
from cloze.demo.flow import run_demo
from cloze.demo.html_report import nice_ticks, render, write_report
from cloze.demo.results_file import Blank, DemoResults, DemoSettings, load_results, paired_margin, save_results
from cloze.predict import load
from cloze.progress import Silent
from cloze.train.finetuning.settings import FinetuneSettings

DEFAULTS = DemoSettings()
SMALL = DemoSettings(
    vocabulary=VocabularySettings(size=1000),
    pretraining=replace(DEFAULTS.pretraining, steps=12, batch_size=4, evaluate_every=6),
    second_finetuning=FinetuneSettings(epochs=1, batch_size=64, max_length=16, learning_rate=3e-4),
    second_seeds=(0,),
    finetuning=FinetuneSettings(epochs=1, batch_size=64, max_length=16, learning_rate=3e-4),
)


class Listener(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, message: str) -> None:
        self.lines.append(message)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, DemoResults]:
    out = tmp_path_factory.mktemp("demo") / "out"
    return out, run_demo(out, Silent(), SMALL)


def test_everything_is_there(demo: tuple[Path, DemoResults]) -> None:
    out, results = demo
    assert sorted(results.accuracies) == ["pretrained", "scratch"]
    assert all(len(values) == 3 and all(0 <= value <= 1 for value in values) for values in results.accuracies.values())
    assert results.labels == ["in order", "shuffled"]
    assert sum(map(sum, results.confusion)) == 1500
    assert results.confusion[0][0] + results.confusion[1][1] == round(1500 * results.accuracies["pretrained"][0])
    assert len(results.blanks) == len(results.second.blanks) == 12
    assert len(results.second.shipped) == 1
    assert len(results.second.own) == 3
    assert abs(results.baseline - 0.5) < 0.05  # bag-of-words features must not help
    assert [row["step"] for row in results.metrics if "held_out_mlm_loss" in row] == [6, 12]
    assert load(out / "pretraining").heads == ("mlm", "nsp")


def test_both_starts_differ_by_pre_training_alone(demo: tuple[Path, DemoResults]) -> None:
    out, _ = demo
    runs = [
        json.loads((out / "finetuning" / f"{start}-1" / "run.json").read_text()) for start in ("pretrained", "scratch")
    ]
    assert {key for key in runs[0] if runs[0][key] != runs[1][key]} == {"model", "base"}
    assert load(out / "pretraining").bert.config == load(out / "scratch").bert.config
    assert load(out / "pretraining").tokenizer.settings == load(out / "scratch").tokenizer.settings


def test_the_second_time_is_read_and_not_made(demo: tuple[Path, DemoResults]) -> None:
    out, results = demo
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    listener = Listener()
    again = run_demo(out, listener, SMALL)
    assert listener.lines == []
    assert json.dumps(again.accuracies) == json.dumps(results.accuracies)
    assert render(again, out) == render(results, out)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


def test_finished_stages_are_not_repeated(demo: tuple[Path, DemoResults]) -> None:
    out, results = demo
    (out / "results.json").unlink()
    weights = (out / "pretraining" / "model" / "model.safetensors").stat().st_mtime_ns
    listener = Listener()
    assert run_demo(out, listener, SMALL).accuracies == results.accuracies
    assert (out / "pretraining" / "model" / "model.safetensors").stat().st_mtime_ns == weights
    assert sum("already finished" in line for line in listener.lines) == 8


def test_page_needs_nothing_from_outside(demo: tuple[Path, DemoResults]) -> None:
    out, results = demo
    page = write_report(results, out).read_text(encoding="utf-8")
    assert not re.search(r"(src|href)=|https?://|<script|@import|url\(", page)
    assert "default-src 'none'" in page
    assert "{{" not in page
    for part in (
        "Pre-training",
        "Filled blanks",
        "Are these words in order?",
        "Examples",
        "Second chapter: a model with hours of training",
        "What to try next",
    ):
        assert f"<h2>{part}</h2>" in page
    assert str(out / "pretraining" / "model") in page


def test_page_escapes_what_it_shows(demo: tuple[Path, DemoResults]) -> None:
    out, results = demo
    nasty = "<img src=x onerror=alert(1)>"
    blank = Blank(f"{nasty} [MASK] &", nasty, [(nasty, 0.5)], [(nasty, 0.5)])
    row = {"text": nasty, "label": nasty, "book": nasty, "pretrained": nasty, "scratch": "other"}
    second = replace(results.second, name=nasty, description=nasty, blanks=[[(nasty, 0.5)]])
    found = replace(results, blanks=[blank], examples=[row], labels=[nasty, "b"], facts={nasty: nasty}, second=second)
    page = render(found, out)
    assert "<img" not in page
    assert page.count("&lt;img src=x onerror=alert(1)&gt;") >= 13


def test_results_of_another_version_are_not_used(demo: tuple[Path, DemoResults], tmp_path: Path) -> None:
    _, results = demo
    save_results(tmp_path, SMALL, results)
    loaded = load_results(tmp_path, SMALL)
    assert loaded is not None
    assert loaded.second.description == results.second.description
    path = tmp_path / "results.json"
    path.write_text(path.read_text("utf-8").replace('"description"', '"told"'), "utf-8")
    assert load_results(tmp_path, SMALL) is None


def test_margin_by_hand() -> None:
    # Differences 0.1, 0.2, 0.3: mean 0.2, standard deviation 0.1, Student's 97.5 % quantile with two degrees of freedom
    # 4.3027.
    margin = paired_margin([0.6, 0.7, 0.8], [0.5, 0.5, 0.5])
    assert margin.mean == pytest.approx(0.2)
    assert margin.low == pytest.approx(0.2 - 4.302653 * 0.1 / 3**0.5, abs=1e-6)
    assert margin.high == pytest.approx(0.2 + 4.302653 * 0.1 / 3**0.5, abs=1e-6)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0.5, 8.7, [0, 2, 4, 6, 8, 10]), (0.0, 1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]), (3.0, 3.4, [3.0, 3.1, 3.2, 3.3, 3.4])],
)
def test_ticks_are_round_and_cover(low: float, high: float, ticks: list[float]) -> None:
    assert nice_ticks(low, high) == pytest.approx(ticks)
