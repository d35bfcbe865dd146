"""``cloze.finetune`` and related functions on files and in-memory data, and the run that they return."""

import gc
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from datasets import Dataset

import cloze
from cloze.errors import ConfigError, DataError, format_option
from cloze.files import RowError
from cloze.train.finetuning.python_api import FinetuneRun
from tests.train.finetuning.test_finetune import make_rows, write
from tests.train.made import Listener

FAST: dict[str, Any] = {"epochs": 1, "batch_size": 8, "max_length": 16, "learning_rate": 1e-3}
ROWS = [{"text": row["text"], "label": row["label"]} for row in make_rows(40)]
DEV = [{"text": row["text"], "label": row["label"]} for row in make_rows(12, 1)]
COLUMNS = {name: [row[name] for row in ROWS] for name in ("text", "label")}

FORMS: dict[str, Callable[[Path], Any]] = {
    "csv": lambda folder: write(folder / "train.csv", ROWS),
    "jsonl": lambda folder: str(write(folder / "train.jsonl", ROWS)),
    "list": lambda _: ROWS,
    "texts and labels": lambda _: (COLUMNS["text"], COLUMNS["label"]),
    "pandas": lambda _: pd.DataFrame(COLUMNS),
    "polars": lambda _: pl.DataFrame(COLUMNS),
    "arrow": lambda _: pa.table(COLUMNS),
    "datasets": lambda _: Dataset.from_dict(COLUMNS),
    "generator": lambda _: (row for row in ROWS),
}


def weights_of(run: FinetuneRun) -> str:
    return hashlib.sha256((run / "model" / "model.safetensors").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def expected(base: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights of a run started from the command line on files."""
    folder = tmp_path_factory.mktemp("files")
    source = cloze.Source("classify", write(folder / "train.csv", ROWS), write(folder / "dev.csv", DEV))
    return weights_of(cloze.finetune(source, base, folder / "run", settings=cloze.FinetuneSettings(**FAST)))


@pytest.fixture(scope="module")
def run(base: Path) -> FinetuneRun:
    return cloze.finetune("classify", train=ROWS, dev=DEV, model=base, **FAST)


@pytest.mark.parametrize("form", FORMS)
def test_the_same_rows_give_the_same_weights_in_every_format(
    form: str, base: Path, expected: str, tmp_path: Path
) -> None:
    found = cloze.finetune("classify", train=FORMS[form](tmp_path), dev=DEV, model=base, out=tmp_path / "run", **FAST)
    assert weights_of(found) == expected


def test_a_run_is_resumed_with_the_same_rows_only(base: Path, tmp_path: Path) -> None:
    listener = Listener()
    call = {"dev": DEV, "model": base, "out": tmp_path / "run", "progress": listener, **FAST}
    first = cloze.finetune("classify", train=pd.DataFrame(COLUMNS), **call)
    before = weights_of(first)
    again = cloze.finetune("classify", train=pl.DataFrame(COLUMNS), **call)
    assert "already finished" in listener.said[-1]
    assert weights_of(again) == before
    with pytest.raises(ConfigError, match=r"data was '40 rows in memory \(\w+\)' and is now '39 rows in memory"):
        cloze.finetune("classify", train=ROWS[:39], **call)


def test_run_has_model_scores_history_and_predictions(run: FinetuneRun) -> None:
    assert list(run.metrics) == ["accuracy", "macro_f1"]
    assert run.results["rows"] == len(DEV)
    assert run.history[-1]["dev_accuracy"] == run.metrics["accuracy"]
    assert run.model is run.model
    labels = [label.label for label in run.model.classify([row["text"] for row in DEV])]
    assert [row["prediction"] for row in run.predictions] == labels
    assert [row["text"] for row in run.predictions] == [row["text"] for row in DEV]
    assert list(run.predictions[0]) == ["row", "text", "label", "prediction", "probability"]
    assert all(isinstance(row["probability"], float) for row in run.predictions)
    right = sum(row["prediction"] == row["label"] for row in run.predictions)
    assert right / len(DEV) == pytest.approx(run.metrics["accuracy"])


def test_recorded_predictions_are_read(run: FinetuneRun, tmp_path: Path) -> None:
    saved = run.save(tmp_path / "saved")
    (saved / "predictions.tsv").write_text('row\ttext\tprediction\n1\t"a" b\tx\n', encoding="utf-8")
    assert saved.predictions == [{"row": "1", "text": '"a" b', "prediction": "x"}]


def test_run_is_a_path(run: FinetuneRun) -> None:
    assert Path(run) == run.folder
    assert run == run.folder
    assert (run / "run.json").is_file()
    assert cloze.load(run).task is not None
    assert cloze.evaluate("classify", DEV, model=run).metrics == run.metrics


def test_run_prints_readably(run: FinetuneRun) -> None:
    assert repr(run).startswith(f"FinetuneRun('{run.folder}', accuracy=")
    first, title, header, accuracy, *rest = str(run).splitlines()
    assert first.startswith("behind TF-IDF + logistic regression by ")  # one epoch on 40 rows is too little
    assert title == f"Fine-tuned model in {run.folder} (temporary; keep it with save)"
    assert header.split("  ")[1] == "metric"
    low, high = run.intervals["accuracy"]
    assert accuracy.split() == [
        "accuracy",
        f"{run.metrics['accuracy']:.4f}",
        f"{low:.4f}",
        "to",
        f"{high:.4f}",
        *accuracy.split()[5:],
    ]
    assert "  12 rows; below 30 rows, the intervals are rough".strip() in rest
    assert [line.split()[0] for line in rest[-2:]] == ["garden", "winter"]


def test_notebook_shows_scores_curves_and_confusion_matrix(run: FinetuneRun) -> None:
    page = run._repr_html_()
    assert page.count("<svg") == 2
    assert "expected (rows), predicted (columns)" in page
    counts = [int(count) for count in re.findall(r"rgba\([^)]*\)'>(\d+)<", page)]
    assert sum(counts) == len(DEV)
    assert "<script" not in page
    assert "http" not in page
    json.dumps(page)


def test_temporary_run_leaves_nothing_behind(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = cloze.finetune("classify", train=ROWS, model=base, **FAST)
    model = found.model
    assert list(tmp_path.iterdir())
    del found
    gc.collect()
    assert not list(tmp_path.iterdir())
    assert len(model.classify(["winter"])) == 1
    with cloze.finetune("classify", train=ROWS, model=base, **FAST) as closed:
        kept = closed.save(tmp_path / "kept")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert kept.model.classify(["winter"]) == model.classify(["winter"])
    with pytest.raises(ConfigError, match="exists and is not empty; choose another folder"):
        kept.save(tmp_path / "kept")


def test_failed_temporary_run_leaves_nothing_behind(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    class Failing(Listener):
        def advance(self, stage: str, done: int, total: int | None, **figures: float) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cloze.finetune("classify", train=ROWS, model=base, progress=Failing(), **FAST)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": "3"}, "epochs is '3'; expected a whole number or None"),
        ({"epochs": 2.5}, "epochs is 2.5; expected a whole number or None"),
        ({"epochs": True}, "epochs is True; expected a whole number or None"),
        ({"max_length": "long"}, "max_length is 'long'; expected a whole number or None"),
        ({"learning_rate": float("nan")}, "learning_rate is nan; expected a number or None"),
        ({"dropout": float("nan")}, "dropout is nan; expected a number or None"),
        ({"calibrate": "yes"}, "calibrate is 'yes'; expected True or False"),
        ({"epoch": 3}, "there is no setting 'epoch'; did you mean 'epochs'?"),
        ({"seeds": None}, "seeds is None; expected a whole number"),
        (
            {"settings": cloze.FinetuneSettings(), "epochs": 3},
            "epochs is given twice: set it in FinetuneSettings",
        ),
        ({"model": 3}, "model is a int; expected a model folder, a run, or a name"),
    ],
)
def test_wrong_settings_are_refused(base: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        cloze.finetune("classify", train=ROWS, **{"model": base, **settings})
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("max_length", None, "max_length (--max-length)"),
        ("epochs", 6, "epochs=6 (--epochs 6)"),
        ("learning_rate", 2e-5 / 3, "learning_rate=6.7e-06 (--learning-rate 6.7e-06)"),
        ("pooling", "cls", "pooling='cls' (--pooling cls)"),
        ("few", True, "few=True (--few)"),
        ("few", False, "few=False (--no-few)"),
    ],
)
def test_messages_name_settings_for_python_and_the_command_line(name: str, value: object, shown: str) -> None:
    assert format_option(name, value) == shown


def test_messages_of_a_run_name_settings(base: Path) -> None:
    listener = Listener()
    cloze.finetune("classify", train=ROWS, dev=DEV, model=base, few=False, epochs=1, progress=listener)
    (line,) = [note for note in listener.said if note.startswith("learning rate")]
    assert line.endswith(
        "; learning_rate (--learning-rate), epochs (--epochs), batch_size (--batch-size), max_length (--max-length) "
        "override"
    )


def test_bad_rows_are_named(base: Path) -> None:
    with pytest.raises(RowError, match=r"^train row 3: 'text' is None; expected text in quotes; "):
        cloze.finetune("classify", train=[*ROWS[:2], {"text": None, "label": "garden"}], model=base)
    with pytest.raises(DataError, match=r"^train is None \(NoneType\); expected a path, a list of dicts"):
        cloze.finetune("classify", model=base)


def test_evaluation_takes_data(run: FinetuneRun, tmp_path: Path) -> None:
    expected = cloze.evaluate("classify", write(tmp_path / "dev.csv", DEV), model=run)
    named = pd.DataFrame(DEV).rename(columns={"text": "review", "label": "kind"})
    found = cloze.evaluate("classify", named, model=run.model, text="review", label="kind")
    assert found.metrics == expected.metrics
    assert found.places[2] == "data row 3"
    assert cloze.evaluate(run, cloze.Source("classify", DEV)).metrics == expected.metrics
    with pytest.raises(ConfigError, match="model is missing; give a task, its rows and a model"):
        cloze.evaluate("classify", named)
    with pytest.raises(RowError, match=r"^data row 1: 'text' is None"):
        cloze.evaluate("classify", [{"text": None, "label": "winter"}], model=run)


def test_a_search_takes_data(base: Path) -> None:
    found = cloze.finetune("classify", train=pl.DataFrame(COLUMNS), dev=DEV, model=base, seeds=2, **FAST)
    assert found.results["runs"] == 2
    assert found.model.classify(["winter"])


TAGGED = [{"text": ["winter", "garden"], "label": ["B-X", "O"]}, {"text": ["garden"], "label": ["O"]}] * 8
ASKED = [{"question": "winter", "context": "the garden in winter", "answer": "garden"}] * 16
CHOSEN = [{"text": "winter", "options": ["garden", "winter"], "label": 1}] * 16
OTHERS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "tag": (TAGGED, {}),
    "answer": (ASKED, {}),
    "choose": (CHOSEN, {}),
    "regress": ([{"text": row["text"], "label": number / 8} for number, row in enumerate(ROWS[:16])], {}),
    "multilabel": ([{"text": row["text"], "label": [row["label"]]} for row in ROWS[:16]], {}),
}


@pytest.mark.parametrize("task", OTHERS)
def test_other_tasks_take_data(task: str, base: Path, tmp_path: Path) -> None:
    rows, columns = OTHERS[task]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    of_file = cloze.finetune(task, path, path, model=base, out=tmp_path / "file", **FAST, **columns)
    for number, form in enumerate((rows, pd.DataFrame(rows), pl.DataFrame(rows))):
        found = cloze.finetune(task, form, rows, model=base, out=tmp_path / str(number), **FAST, **columns)
        assert weights_of(found) == weights_of(of_file)
    assert cloze.evaluate(task, pa.Table.from_pylist(rows), model=found, **columns).metrics == found.metrics


def test_similarity_takes_texts(base: Path, tmp_path: Path) -> None:
    texts = [row["text"] for row in ROWS]
    path = tmp_path / "texts.txt"
    path.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    expected = weights_of(cloze.finetune("similarity", path, model=base, out=tmp_path / "file", **FAST))
    for number, form in enumerate((texts, pd.DataFrame(ROWS), [{"text": text} for text in texts])):
        assert (
            weights_of(cloze.finetune("similarity", form, model=base, out=tmp_path / str(number), **FAST)) == expected
        )
    with pytest.raises(ConfigError, match="temperature is 'x'; expected a number"):
        cloze.finetune("similarity", texts, model=base, temperature="x")


def test_correction_takes_data(base: Path) -> None:
    rows = [
        {"source": "the winter garden", "target": "the garden garden"},
        {"source": "winter", "target": "winter"},
    ] * 20
    found = cloze.finetune("correction", pd.DataFrame(rows), rows, model=base, **FAST)
    evaluation = cloze.evaluate("correction", rows, model=found)
    assert "correction_f1" in evaluation.metrics
    assert len(evaluation.predictions) == len(rows)


def test_distillation_takes_data(run: FinetuneRun, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"layers": 1, "epochs": 1, "batch_size": 8}
    path = write(tmp_path / "train.csv", ROWS)
    source = cloze.Source("classify", path, write(tmp_path / "dev.csv", DEV))
    of_file = cloze.distill(source, run, tmp_path / "file", settings=cloze.DistillSettings(**settings), unlabelled=path)
    texts = pl.DataFrame(ROWS).select("text")
    found = cloze.distill("classify", pd.DataFrame(ROWS), DEV, model=run, unlabelled=texts, **settings)
    assert weights_of(found) == weights_of(of_file)
    assert found.model.bert.config.layers == 1


def test_adaptation_takes_data(base: Path, tmp_path: Path) -> None:
    words = [f"the {row['text']} again and again" for row in make_rows(40, 7)]
    steps: dict[str, Any] = {"domain_steps": 2, "task_steps": 2, "adapt_batch_size": 8, "adapt_max_length": 16}
    steps |= {"seeds": 1, "overlap": "allow", **FAST}
    found = cloze.adapt("classify", {"text": words}, ROWS, DEV, model=base, out=tmp_path / "run", **steps)
    assert set(found.results["starts"]) == {"direct", "domain", "task", "domain + task"}
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    path = tmp_path / "domain.txt"
    path.write_text("\n\n".join(words) + "\n", encoding="utf-8")
    of_file = cloze.adapt(cloze.Source("classify", ROWS, DEV), [path], base, tmp_path / "other", **steps)
    assert (of_file / "domain/model/model.safetensors").read_bytes() == (
        found / "domain/model/model.safetensors"
    ).read_bytes()
