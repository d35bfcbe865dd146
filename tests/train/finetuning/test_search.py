import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloze.cli.finetuning import print_search
from cloze.errors import ConfigError, DataError
from cloze.predict import load
from cloze.progress import Silent
from cloze.tasks.classification.kind import LabelledTexts
from cloze.tasks.comparisons import Resamples, bounded, mean_interval, runs_difference
from cloze.tasks.intervals import Difference, paired_t_difference, t_interval
from cloze.tasks.registry import read_task
from cloze.tasks.rows import Source
from cloze.train import optimization as precision_module
from cloze.train.finetuning import search as search_module
from cloze.train.finetuning.finetune import finetune_rows
from cloze.train.finetuning.search import TABLE, Cell, CellResult, compare_searches, read_cells, search
from cloze.train.finetuning.settings import FinetuneSettings, ResolvedSettings, SearchSettings
from cloze.train.optimization import DivergedError
from cloze.train.run import Run
from tests.train.finetuning.test_finetune import make_rows, write
from tests.train.made import Listener
from tests.train.pretraining.test_pretrain import weights

FAST = FinetuneSettings(epochs=1, batch_size=8, max_length=16, learning_rate=1e-3)
RESOLVED = ResolvedSettings(epochs=1, batch_size=8, max_length=16, learning_rate=1e-3)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    train, dev = write(tmp_path / "train.csv", make_rows(48)), write(tmp_path / "dev.csv", make_rows(16, 1))
    return Source("classify", train, dev)


def table(run: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads((run / TABLE).read_text(encoding="utf-8"))["cells"]
    return found


def test_seeds_give_mean_spread_and_the_best_model(base: Path, source: Source, tmp_path: Path) -> None:
    run = search(source, base, tmp_path / "run", settings=FAST, search_settings=SearchSettings(seeds=3))
    rows, results = table(run), Run(run).results()
    scores = [float(row["score"]) for row in rows]  # type: ignore[arg-type]
    assert [row["settings"]["seed"] for row in rows] == [0, 1, 2]  # type: ignore[index]
    assert results["runs"] == 3
    assert results["mean"] == pytest.approx(sum(scores) / 3)
    assert results["metric"] == "accuracy"
    assert results["best"] == rows[scores.index(max(scores))]["name"]
    # Each run has an interval over rows; the mean has one over rows and seeds.
    kept = [Resamples.read(run / "cells" / str(row["name"])) for row in rows]
    assert [row["interval"] for row in rows] == [one and one.interval for one in kept]
    assert [one and one.score for one in kept] == scores
    assert results["interval"] == mean_interval([one for one in kept if one])
    assert results["interval_of"] == "rows and seeds"
    assert results["interval_over_runs"] == bounded(t_interval(scores) or (), "accuracy")
    assert "grid" not in results
    assert (run / "search.png").read_bytes().startswith(b"\x89PNG")
    assert load(run).classify(["the winter"])[0].label in {"winter", "garden"}
    # The remaining models are deleted, but their scores are kept.
    assert not list(run.glob("cells/*/model"))
    assert len(list(run.glob("cells/*/eval_results.json"))) == 3


def test_grid_has_eighteen_cells_and_the_best_goes_over_the_seeds(
    base: Path, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, values in (("BATCH_SIZES", (4, 8)), ("RATE_FACTORS", (1.0, 3.0)), ("EPOCH_FACTORS", (0.05, 0.1))):
        monkeypatch.setattr(f"cloze.train.finetuning.defaults.{name}", values)
    listener, search_settings = Listener(), SearchSettings(grid=True, seeds=2)
    run = search(source, base, tmp_path / "run", settings=FAST, search_settings=search_settings, progress=listener)
    unused = "batch_size 8, learning_rate 0.001, epochs 1"
    assert f"the grid sets batch size, learning rate and epochs itself; not used: {unused}" in listener.said
    rows = table(run)
    grid = [row for row in rows if row["part"] == "grid"]
    seeds = [row for row in rows if row["part"] == "seeds"]
    assert len({row["name"] for row in grid}) == 8
    best = max(grid, key=lambda row: row["score"])  # type: ignore[arg-type, return-value]
    assert seeds[0]["name"] == best["name"], "the first seed is finished already"
    assert seeds[0]["score"] == best["score"]
    assert [row["settings"] for row in seeds] == [{**best["settings"], "seed": seed} for seed in (0, 1)]  # type: ignore[dict-item]
    results = Run(run).results()
    assert results["runs"] == 2
    level = results["grid"]["within_noise"]
    assert (results["grid"]["best"], results["grid"]["settings"]) == (best["name"], 8)
    kept = {str(row["name"]): Resamples.read(run / "cells" / str(row["name"])) for row in grid}
    top = kept.pop(str(best["name"]))
    failed = {row["name"] for row in grid if row["failed"]}
    for name, one in kept.items():
        assert top is not None
        assert one is not None
        assert (name in level) == (name not in failed and np.quantile(top.values - one.values, 0.025) <= 0)
    print_search(run, json=False)
    line = f"{len(level)} of the other 7 settings are within noise of the best, {best['name']}"
    assert line in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("hidden_size", "changes", "rates"),
    [
        (256, {}, {2e-4, 4e-4, 8e-4}),
        (768, {}, {2.5e-5, 5e-5, 1e-4}),
        (768, {"adapter": "lora"}, {5e-4, 1e-3, 2e-3}),
    ],
)
def test_the_grid_has_eighteen_cells_around_the_defaults(
    source: Source, hidden_size: int, changes: dict[str, Any], rates: set[float]
) -> None:
    cells = list(search_module.grid_cells(read_task(source), replace(RESOLVED, **changes), hidden_size))
    assert len({cell.name for cell in cells}) == len(cells) == 18
    assert {cell.settings.learning_rate for cell in cells} == rates
    assert {cell.settings.batch_size for cell in cells} == {16, 32}
    assert {cell.settings.epochs for cell in cells} == {13, 20, 27}  # with only 48 rows, the default is 20 epochs


def test_questions_of_a_fold_do_not_decide_when_there_is_no_answer(base: Path, tmp_path: Path) -> None:
    rows = [
        {"question": f"the river {n}", "context": "the old garden", "answer": "garden" if n % 2 else ""}
        for n in range(8)
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    run = search(Source("answer", path), base, tmp_path / "run", settings=FAST, search_settings=SearchSettings(folds=2))
    task = load(run).task
    assert task is not None
    assert task.threshold is None


def test_folds_score_every_row_once_and_leave_a_model_of_all(base: Path, tmp_path: Path) -> None:
    source = Source("classify", write(tmp_path / "rows.csv", make_rows(31)))
    run = search(source, base, tmp_path / "run", settings=FAST, search_settings=SearchSettings(folds=3))
    rows = table(run)
    assert [row["results"]["rows"] for row in rows] == [11, 10, 10]  # type: ignore[index]
    assert "On 31 training rows, which say little about new ones:" in (run / "model" / "README.md").read_text(
        encoding="utf-8"
    )
    recorded = json.loads((run / "cells" / "all-rows" / "run.json").read_text(encoding="utf-8"))
    assert recorded["rows"] == 31
    results = Run(run).results()
    assert results["kept"] == "all-rows"
    # Folds have different rows, so both rows and training vary between them.
    scores = [float(row["score"]) for row in rows]  # type: ignore[arg-type]
    assert results["interval"] == results["interval_over_runs"] == bounded(t_interval(scores) or (), "accuracy")
    assert results["interval_of"] == "folds"
    assert all(row["interval"] is not None for row in rows)
    assert load(run).task is not None


def test_folds_of_labels_that_take_turns_have_both(tmp_path: Path) -> None:
    source = Source("classify", write(tmp_path / "rows.csv", make_rows(24)))
    for cell in search_module.fold_cells(read_task(source, part=False), RESOLVED, 2):
        for part in (cell.data.train, cell.data.dev):
            assert isinstance(part, LabelledTexts)
            assert sorted(part.targets or ()) == [0] * 6 + [1] * 6


def test_failed_runs_are_named(base: Path, source: Source, tmp_path: Path) -> None:
    still = FinetuneSettings(epochs=1, batch_size=8, max_length=16, learning_rate=1e-9, dropout=0.0)
    run = search(source, base, tmp_path / "run", settings=still, search_settings=SearchSettings(seeds=2))
    failed = [row["name"] for row in table(run) if row["failed"]]
    assert Run(run).results()["failed"] == failed
    assert failed, "an untrained model predicts a constant or guesses"


def test_a_failed_run_is_not_the_best_however_it_scores(
    base: Path, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_cell_result = search_module.read_cell_result

    def first_says_one_thing(cell: Cell, folder: Path) -> CellResult:
        result = read_cell_result(cell, folder)
        if cell.settings.seed:
            return replace(result, failed=None)
        return replace(result, score=2.0, failed="predicts 'winter' for every row")

    monkeypatch.setattr(search_module, "read_cell_result", first_says_one_thing)
    run = search(source, base, tmp_path / "run", settings=FAST, search_settings=SearchSettings(seeds=2))
    rows, results = table(run), Run(run).results()
    assert (results["best"], results["most"]) == (rows[1]["name"], 2.0)
    assert results["failed"] == [rows[0]["name"]]


@pytest.mark.parametrize("diverging", [(1,), (0, 1)])
def test_a_diverging_run_is_named_and_the_others_go_on(
    base: Path, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, diverging: tuple[int, ...]
) -> None:
    def tune_or_diverge(*given: Any, settings: FinetuneSettings, **named: Any) -> Path:
        if settings.seed in diverging:
            raise DivergedError("step 7: the loss is nan")
        return finetune_rows(*given, settings=settings, **named)

    monkeypatch.setattr(search_module, "finetune_rows", tune_or_diverge)
    listener = Listener()
    asked = partial(search, source, base, tmp_path / "run", settings=FAST, search_settings=SearchSettings(seeds=2))
    if len(diverging) == 2:
        with pytest.raises(
            DivergedError,
            match=r"run: all 2 trainings diverged; lower learning_rate \(--learning-rate\), with fresh=True",
        ):
            asked(progress=listener)
        return
    run = asked(progress=listener)
    results, rows = Run(run).results(), table(run)
    assert rows[1]["name"] in results["failed"]
    assert (rows[1]["failed"], results["least"]) == ("diverged", 0.0)
    assert f"{rows[1]['name']}: step 7: the loss is nan" in listener.said
    # A diverged run counts as 0 on every row, in the interval as in the mean.
    survivor = Resamples.read(run / "cells" / str(rows[0]["name"]))
    assert survivor is not None
    assert results["interval"] == mean_interval([survivor, survivor.zeros()])
    assert load(run).task is not None


def as_of_version_01(run: Path) -> None:
    """Remove everything that version 0.1 did not write in a search."""
    for path in run.glob("cells/*/resamples.json"):
        path.unlink()
    saved = json.loads((run / TABLE).read_text(encoding="utf-8"))
    cells = [{name: value for name, value in cell.items() if name != "interval"} for cell in saved["cells"]]
    (run / TABLE).write_text(json.dumps(saved | {"cells": cells}), encoding="utf-8")


def test_searches_of_version_01_are_resumed_and_shown(
    base: Path, source: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = partial(search, source, base, tmp_path / "run", settings=FAST, search_settings=SearchSettings(seeds=2))
    run = asked()
    scores = [row.score for row in read_cells(run)]
    as_of_version_01(run)
    # the state before the end of the search
    Run(run).model_folder.rename(run / "cells" / str(Run(run).results()["kept"]) / "model")
    assert asked() == run
    results = Run(run).results()
    assert results["interval_of"] == "seeds"
    assert results["interval"] == bounded(t_interval(scores) or (), "accuracy")
    print_search(run, json=False)
    assert "runs without an interval have no scores per row, such as those of version 0.1" in capsys.readouterr().out
    early = {name: value for name, value in results.items() if not name.startswith("interval")}
    Run(run).write_results(early)  # as finished by version 0.1
    print_search(run, json=False)
    assert "accuracy: mean " not in capsys.readouterr().out


def test_searches_are_compared_by_seed_and_row(base: Path, source: Source, tmp_path: Path) -> None:
    runs = []
    for name, rate in (("slow", 1e-5), ("fast", 3e-3)):
        settings = replace(FAST, learning_rate=rate, epochs=3)
        two = SearchSettings(seeds=2)
        runs.append(search(source, base, tmp_path / name, settings=settings, search_settings=two))
    kept = [[Resamples.read(run / "cells" / row.name) for row in read_cells(run)] for run in runs]
    expected = runs_difference(*([one for one in rows if one] for rows in kept))
    assert compare_searches(*runs) == expected
    assert compare_searches(runs[0], runs[0]) == Difference(0.0, 0.0, 0.0)
    one = search(source, base, tmp_path / "one", settings=replace(FAST, seed=1))
    with pytest.raises(DataError, match=r"slow has the seeds \[0, 1\], but .*one has \[1\]; compare the same seeds"):
        compare_searches(runs[0], one)
    as_of_version_01(runs[1])
    scores = [[row.score for row in read_cells(run)] for run in runs]
    assert compare_searches(*runs) == paired_t_difference(*scores)


def test_the_table_of_a_search_has_intervals_and_one_of_rows_and_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def cell(name: str, part: str, failed: str | None = None) -> dict[str, Any]:
        interval = None if failed else [0.7, 0.9]
        return {"name": name, "part": part, "score": 0.8, "failed": failed, "interval": interval}

    cells = [cell("a", "grid"), cell("b", "grid"), cell("c", "grid"), cell("d", "grid", "diverged")]
    cells += [cell("a", "seeds"), cell("a-1", "seeds")]
    results = {"metric": "accuracy", "mean": 0.8, "deviation": 0.0, "runs": 2, "least": 0.8, "most": 0.8, "failed": []}
    results |= {"interval": [0.6, 1.0], "interval_of": "rows and seeds", "interval_over_runs": [0.65, 0.95]}
    results |= {"best": "a", "grid": {"best": "a", "settings": 4, "within_noise": ["b"]}}
    (tmp_path / TABLE).write_text(json.dumps({"cells": cells}), encoding="utf-8")
    (tmp_path / "eval_results.json").write_text(json.dumps(results), encoding="utf-8")
    print_search(tmp_path, json=False)
    assert capsys.readouterr().out.splitlines() == [
        "part\trun\taccuracy\t95 % interval over rows\t",
        "grid\ta\t0.8000\t0.7000 to 0.9000\tbest",
        "grid\tb\t0.8000\t0.7000 to 0.9000\twithin noise",
        "grid\tc\t0.8000\t0.7000 to 0.9000\t",
        "grid\td\t0.8000\t\tfailed: diverged",
        "seeds\ta\t0.8000\t0.7000 to 0.9000\t",
        "seeds\ta-1\t0.8000\t0.7000 to 0.9000\t",
        "1 of the other 3 settings are within noise of the best, a",
        "accuracy: 0.8000 ± 0.0000 over 2 runs, 0.8000 to 0.8000; failed: 0",
        "accuracy: mean 0.8000, 95 % interval 0.6000 to 1.0000 over rows and seeds; over seeds alone 0.6500 to 0.9500",
        f"{tmp_path}: the model of a, search.json, search.png",
    ]


def test_all_cells_compute_in_the_numbers_that_were_chosen_first(
    base: Path, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision_module, "has_fast_bf16", lambda _: True)

    def stop(*_: Any, **__: Any) -> Path:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(search_module, "finetune_rows", stop)
        with pytest.raises(KeyboardInterrupt):
            search(source, base, tmp_path / "run", settings=FAST, search_settings=SearchSettings(seeds=2))
    monkeypatch.setattr(precision_module, "has_fast_bf16", lambda _: False)  # simulates a machine that has become busy
    run = search(source, base, tmp_path / "run", settings=FAST, search_settings=SearchSettings(seeds=2))
    asked = [json.loads(path.read_text(encoding="utf-8")) for path in run.glob("cells/*/run.json")]
    assert [one["precision"] for one in asked] == ["bf16", "bf16"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": 0}, "seeds is 0; expected at least 1"),
        ({"folds": 1}, "folds is 1; expected at least 2"),
        ({"folds": 2, "grid": True}, "folds cannot be combined with a grid or seeds"),
    ],
)
def test_impossible_searches_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SearchSettings(**options)  # type: ignore[arg-type]


def test_folds_need_rows_and_no_dev_set(base: Path, source: Source, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"leave out dev \(--dev\) or folds \(--folds\)"):
        search(source, base, tmp_path / "run", settings=FAST, search_settings=SearchSettings(folds=2))
    few = Source("classify", write(tmp_path / "few.csv", make_rows(4)))
    with pytest.raises(ConfigError, match="4 rows cannot be split into 5 folds"):
        search(few, base, tmp_path / "few", settings=FAST, search_settings=SearchSettings(folds=5))
    with pytest.raises(ConfigError, match="context applies only to tagging"):
        search(
            source,
            base,
            tmp_path / "few",
            settings=replace(FAST, context=True),
            search_settings=SearchSettings(seeds=2),
        )
    assert not (tmp_path / "few").exists(), "the corrected command can use the same folder"


@pytest.mark.parametrize("looking", [{"patience": 1}, {"calibrate": True}])
def test_folds_are_not_looked_at_before_they_are_scored(base: Path, tmp_path: Path, looking: dict[str, Any]) -> None:
    rows = Source("classify", write(tmp_path / "rows.csv", make_rows(12)))
    with pytest.raises(ConfigError, match=rf"has not used it; leave out {next(iter(looking))} \(--.*\) or folds"):
        search(rows, base, tmp_path / "run", settings=replace(FAST, **looking), search_settings=SearchSettings(folds=2))


def test_a_slash_at_the_end_makes_no_other_model(base: Path, source: Source, tmp_path: Path) -> None:
    run = search(source, base, tmp_path / "run", settings=FAST)
    assert search(source, f"{base}/", run, settings=FAST) == run


def test_changed_settings_are_refused_and_a_finished_search_is_left_alone(
    base: Path, source: Source, tmp_path: Path
) -> None:
    run = search(source, base, tmp_path / "run", settings=FAST, search_settings=SearchSettings(seeds=2))
    before = weights(run)
    search(source, base, run, settings=FAST, search_settings=SearchSettings(seeds=2), progress=Silent())
    assert weights(run) == before
    with pytest.raises(ConfigError, match="seeds was 2 and is now 3"):
        search(source, base, run, settings=FAST, search_settings=SearchSettings(seeds=3))


PROGRAM = """
import sys
from pathlib import Path
import cloze.train.finetuning.search as module
from cloze.tasks.rows import Source
from cloze.train.finetuning.search import search
from cloze.train.finetuning.settings import SearchSettings
from cloze.train.finetuning.settings import FinetuneSettings
from cloze.train.finetuning.objective import TaskBatches
train, dev, base, out = map(Path, sys.argv[1:])
settings = FinetuneSettings(epochs=1, batch_size=8, max_length=16, learning_rate=1e-3, save_every=2)
module.BATCH_SIZES, module.LEARNING_RATES, module.EPOCHS = (8,), (1e-3, 3e-3), (1,)
at = TaskBatches.at

def announce(*given, **named):
    print("a batch", flush=True)
    return at(*given, **named)

TaskBatches.at = announce
search(Source("classify", train, dev), base, out, settings=settings, search_settings=SearchSettings(grid=True, seeds=2))
"""


def kill_after(words: list[str], batches: int, seconds: float) -> bool:
    """Run a program and kill it some seconds after a number of batches; return whether it was still running."""
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert child.stdout is not None
    with child.stdout as lines:
        for _ in range(batches):
            lines.readline()
        time.sleep(seconds)
        child.kill()
    return child.wait() == -signal.SIGKILL


def test_killed_at_random_and_run_again_it_ends_with_the_same(base: Path, source: Source, tmp_path: Path) -> None:
    assert source.dev is not None
    words = [sys.executable, "-c", PROGRAM, str(source.data), str(source.dev), str(base)]
    subprocess.run([*words, str(tmp_path / "whole")], check=True, stdout=subprocess.DEVNULL)
    draw, kills = random.Random(0), 0
    for _ in range(5):
        # Three runs of six batches each; each batch is followed by a step, and sometimes by a save or an evaluation.
        # Few batches and a short wait, so that the process is still running on a fast machine.
        kills += kill_after([*words, str(tmp_path / "killed")], draw.randint(1, 4), draw.uniform(0, 0.01))
        if Run(tmp_path / "killed").finished:
            break
    assert kills >= 2
    subprocess.run([*words, str(tmp_path / "killed")], check=True, stdout=subprocess.DEVNULL)
    assert table(tmp_path / "killed") == table(tmp_path / "whole")
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")
