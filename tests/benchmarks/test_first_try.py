"""``benchmarks/first_try.py`` on bundled text with a tiny model."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import spearmanr
from seqeval.metrics import f1_score

import first_try
import first_try_ways
import public_data
from cloze.checkpoint import ModelFolder, save_folder
from cloze.model import Bert, BertConfig
from cloze.models import SHIPPED_MODEL, shipped_folder
from cloze.tasks.registry import TaskData
from cloze.text import Tokenizer
from first_try_ways import Job, choose_rate, run_tf_idf, run_trainer, write_rows
from task_samples import TASKS, find_model, read_sample
from tests.benchmarks.test_public_data import run


@pytest.fixture(scope="module")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return public_data.make_small(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder, shipped = tmp_path_factory.mktemp("speck") / "model", shipped_folder(SHIPPED_MODEL)
    assert shipped is not None
    tokenizer = Tokenizer.from_folder(shipped)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, layers=1, heads=2, feedforward_size=32, positions=128
    )
    save_folder(ModelFolder(Bert.fresh(config), tokenizer), folder)
    return str(folder)


def draw(small_data: Path, task: str, rows: int, out: Path, seed: int = 0) -> TaskData:
    return read_sample(small_data, task, rows, 30, out, seed)


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_sampled_from_the_small_form(task: str, small_data: Path, tmp_path: Path) -> None:
    data, other = draw(small_data, task, 20, tmp_path), draw(small_data, task, 20, tmp_path, seed=1)
    assert (len(data.train), len(data.dev)) == (20, 30)
    assert data.train.places != other.train.places
    assert data.dev.places == other.dev.places
    assert draw(small_data, task, 40, tmp_path).train.places[:20] == data.train.places
    assert TASKS[task].main in ("", data.metrics[0])


def test_models_are_folders_that_transformers_can_load() -> None:
    for name in ("minilm", SHIPPED_MODEL):
        assert (Path(find_model(name)) / "config.json").is_file()


def test_training_rows_are_written_as_a_user_has_them(small_data: Path, tmp_path: Path) -> None:
    pairs = draw(small_data, "sts-b", 3, tmp_path)
    rows = [json.loads(line) for line in write_rows(pairs, tmp_path / "pairs").read_text(encoding="utf-8").splitlines()]
    assert [[row["text"], row["pair"]] for row in rows] == pairs.train.documents()
    assert [row["label"] for row in rows] == pairs.train.strata()
    tags: Any = draw(small_data, "conll", 2, tmp_path)
    written = write_rows(tags, tmp_path / "tags").read_text(encoding="utf-8").split("\n\n")
    assert [[line.split("\t")[0] for line in block.splitlines()] for block in written] == tags.train.words


def test_scores_are_those_of_scipy_and_seqeval(small_data: Path, tmp_path: Path) -> None:
    numbers: Any = draw(small_data, "sts-b", 20, tmp_path)
    predictions = [float(len(text)) for text in numbers.dev.texts]
    expected = spearmanr(numbers.dev.targets, predictions).statistic
    assert first_try.score(numbers, predictions) == pytest.approx(expected)
    tags: Any = draw(small_data, "conll", 20, tmp_path)
    found = run_tf_idf(Job(tags, "none", False, 0, tmp_path)).predictions
    names = tags.labels.names
    targets = [[names[tag] for tag in row] for row in tags.dev.targets]
    assert first_try.score(tags, found) == pytest.approx(f1_score(targets, found))
    assert 0 < f1_score(targets, found) < 1


def test_the_rate_is_chosen_on_rows_that_are_not_trained_on(
    small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = draw(small_data, "sst-2", 20, tmp_path)
    jobs: list[Job] = []

    def train(job: Job) -> first_try_ways.Answer:
        jobs.append(job)
        wrong = 0 if job.rate == 2e-4 else 2
        targets: Any = job.data.dev.strata()
        return first_try_ways.Answer([1 - label if row < wrong else label for row, label in enumerate(targets)], 1.0)

    monkeypatch.setattr(first_try_ways, "run_trainer", train)
    assert choose_rate(Job(data, "none", False, 0, tmp_path), first_try.score) == 2e-4
    assert [job.rate for job in jobs] == list(first_try_ways.RATES)
    for job in jobs:
        assert sorted([*job.data.train.places, *job.data.dev.places]) == sorted(data.train.places)
        assert len(job.data.dev) == 4


def test_the_command_measures_missing_cells_and_prints_tables(
    tiny_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--data", "small", "--models", tiny_model, "--only", "sts-b", "conll", "--sizes", "24", "--seeds", "1"]
    words += ["--dev-rows", "30", "--out", str(tmp_path), "--ways", "cloze", "tf-idf", "vectors"]
    assert run("first_try", *words) is None
    first = capsys.readouterr()
    assert first.err.count(" ... ") == 5  # no vectors for tagging
    assert "| sts-b (spearman) | 24 | model |" in first.out
    assert "model: cloze - best other, average over 2 rows of the table: " in first.out
    assert run("first_try", *words) is None
    again = capsys.readouterr()
    assert " ... " not in again.err
    assert again.out == first.out
    assert len(json.loads((tmp_path / "scores.json").read_text(encoding="utf-8"))) == 5


def test_the_trainer_answers_every_row(small_data: Path, tiny_model: str, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    tags: Any = draw(small_data, "conll", 16, tmp_path)
    job = Job(tags, tiny_model, False, 0, tmp_path)
    assert [len(row) for row in run_trainer(job).predictions] == [len(words) for words in tags.dev.words]
    numbers = draw(small_data, "sts-b", 16, tmp_path)
    slow, fast = (run_trainer(replace(job, data=numbers, rate=rate)).predictions for rate in (1e-9, 1e-1))
    assert len(slow) == len(fast) == 30
    assert slow != fast


def test_cells_are_archived_and_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_try, "ARCHIVE", tmp_path / "first_try.json.xz")
    (tmp_path / "one" / "predictions").mkdir(parents=True)
    numbers = {"score": 0.5, "rows": 2, "predictions": [1.23456789, 2.0]}
    tags = {"score": 0.25, "rows": 1, "predictions": [["O", "B-X"]]}
    for name, cell in (("numbers.json", numbers), ("tags.json", tags)):
        (tmp_path / "one" / "predictions" / name).write_text(json.dumps(cell), "utf-8")
    first_try.pack(tmp_path / "one")
    (tmp_path / "two" / "predictions").mkdir(parents=True)
    (tmp_path / "two" / "predictions" / "tags.json").write_text("{}", "utf-8")
    first_try.unpack(tmp_path / "two")
    kept = [
        json.loads((tmp_path / "two" / "predictions" / name).read_text("utf-8"))
        for name in ("numbers.json", "tags.json")
    ]
    assert kept == [{"score": 0.5, "rows": 2, "predictions": [1.2346, 2.0]}, {}]
