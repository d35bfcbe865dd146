"""Prediction methods add columns to data frames of any library."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from datasets import Dataset

import cloze
from cloze.errors import CheckpointError, DataError, RequestError
from tests.train.finetuning.test_finetune import make_rows

ROWS = [{"text": row["text"], "label": row["label"]} for row in make_rows(16)]
TEXTS = [row["text"] for row in ROWS]
FAST: dict[str, Any] = {"model": "cloze-mini", "epochs": 1, "batch_size": 8, "max_length": 16}


def tuned(task: str, rows: list[dict[str, Any]]) -> cloze.Model:
    return cloze.finetune(task, rows, rows, **FAST).model


@pytest.fixture(scope="module")
def model() -> cloze.Model:
    return tuned("classify", ROWS)


def test_pandas_keeps_its_index(model: cloze.Model) -> None:
    frame = pd.DataFrame(ROWS, index=range(100, 116))
    found: Any = model.classify(frame)
    expected = model.classify(TEXTS)
    assert isinstance(found, pd.DataFrame)
    assert list(found.columns) == ["text", "label", "prediction", "probability"]
    assert found.index.equals(frame.index)
    assert found["prediction"].tolist() == [label.label for label in expected]
    assert found["probability"].tolist() == [label.probability for label in expected]
    assert list(frame.columns) == ["text", "label"]


@pytest.mark.parametrize("make", [pl.DataFrame, pa.Table.from_pylist, Dataset.from_list])
def test_other_libraries_get_their_own_kind(make: Any, model: cloze.Model) -> None:
    frame = make(ROWS)
    found: Any = model.classify(frame)
    assert type(found) is type(frame)
    column = found["prediction"]
    values = column.to_pylist() if hasattr(column, "to_pylist") else list(column)
    assert values == [label.label for label in model.classify(TEXTS)]


def test_columns_may_have_other_names(model: cloze.Model) -> None:
    frame = pd.DataFrame({"review": TEXTS})
    found: Any = model.classify(frame, text="review")
    assert found["prediction"].tolist() == [label.label for label in model.classify(TEXTS)]
    message = r"data has no column 'text', which the model was trained on; it has: review; name the column with text="
    with pytest.raises(DataError, match=message):
        model.classify(frame)
    with pytest.raises(DataError, match="data has no column 'text'; choose one of: review"):
        model.embed(frame)
    with pytest.raises(DataError, match="data already has a column 'prediction', which the results need"):
        model.classify(found, text="review")
    with pytest.raises(RequestError, match="which name columns of a data frame"):
        model.classify(TEXTS, text="review")
    with pytest.raises(DataError, match="data row 2: 'text' is None; expected text in quotes"):
        model.classify(pd.DataFrame({"text": ["a", None]}))


def test_columns_of_the_training_rows_are_read(tmp_path: Path) -> None:
    rows = [{"review": row["text"], "reply": row["text"][::-1], "label": row["label"]} for row in ROWS]
    frame = pd.DataFrame(rows)
    single = cloze.finetune("classify", frame, frame, text="review", out=tmp_path / "single", **FAST)
    assert json.loads((single / "model" / "config.json").read_text("utf-8"))["cloze_task"] == {"text_column": "review"}
    texts, replies = frame["review"].tolist(), frame["reply"].tolist()
    for model in (single.model, cloze.load(single.folder)):
        found: Any = model.classify(frame.assign(text="something else"))
        assert found["prediction"].tolist() == [label.label for label in model.classify(texts)]
        assert found["probability"].tolist() == [label.probability for label in model.classify(texts)]
        named: Any = model.classify(frame, text="reply")
        assert named["probability"].tolist() == [label.probability for label in model.classify(replies)]
    with pytest.raises(DataError) as caught:
        single.model.classify(frame[["reply", "label"]])
    assert str(caught.value) == (
        "data has no column 'review', which the model was trained on; it has: reply, label; name the column with text= "
        "or pair="
    )
    pairs = cloze.finetune("classify", frame, frame, text="review", pair="reply", out=tmp_path / "pairs", **FAST)
    both: Any = pairs.model.classify(frame)
    assert both["probability"].tolist() == [label.probability for label in pairs.model.classify(texts, replies)]
    alone: Any = pairs.model.classify(frame, text="review")
    assert alone["probability"].tolist() == [label.probability for label in pairs.model.classify(texts)]
    with pytest.raises(DataError, match="data has no column 'reply', which the model was trained on; it has: review; "):
        pairs.model.classify(frame[["review"]])


@pytest.mark.parametrize(
    ("task", "method", "labels"), [("regress", "regress", (0.5, 2.0)), ("multilabel", "classify_all", ("a", "a|b"))]
)
def test_columns_of_other_kinds(task: str, method: str, labels: tuple[Any, Any], tmp_path: Path) -> None:
    rows = [{"review": text, "label": labels[index % 2]} for index, text in enumerate(TEXTS)]
    run = cloze.finetune(task, rows, rows, text="review", out=tmp_path / "run", **FAST)
    frame = pd.DataFrame({"review": TEXTS, "text": TEXTS[::-1]})
    found: Any = getattr(run.model, method)(frame)
    pd.testing.assert_frame_equal(found, getattr(run.model, method)(frame, text="review"))


def test_an_adapter_knows_its_columns(tmp_path: Path) -> None:
    rows = [{"review": row["text"], "label": row["label"]} for row in ROWS]
    run = cloze.finetune("classify", rows, rows, text="review", adapter="lora", out=tmp_path / "run", **FAST)
    task = cloze.load(run.folder).task
    assert task is not None
    assert (task.text_column, task.pair_column) == ("review", None)


def test_bad_column_of_a_folder_is_refused(tmp_path: Path) -> None:
    rows = [{"review": row["text"], "label": row["label"]} for row in ROWS]
    run = cloze.finetune("classify", rows, rows, text="review", out=tmp_path / "run", **FAST)
    path = run / "model" / "config.json"
    config = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(config | {"cloze_task": {"text_column": ["a"]}}), "utf-8")
    with pytest.raises(CheckpointError, match=r"cloze_task.text_column is \"\['a'\]\"; expected the name of a column"):
        cloze.load(run.folder)
    path.write_text(json.dumps({name: value for name, value in config.items() if name != "cloze_task"}), "utf-8")
    task = cloze.load(run.folder).task
    assert task is not None
    assert (task.text_column, task.pair_column) == ("text", None)


def test_series_and_arrays_are_lists(model: cloze.Model) -> None:
    expected = model.classify(TEXTS)
    assert model.classify(pd.Series(TEXTS)) == expected
    assert model.classify(np.array(TEXTS)) == expected
    assert model.classify(pl.Series(TEXTS)) == expected
    assert model.classify(text for text in TEXTS) == expected
    with pytest.raises(DataError, match="texts row 2: None is not a text"):
        model.classify(pd.Series(["a", None], dtype=object))


def test_vectors_scores_and_corrections() -> None:
    shipped = cloze.load()
    frame = pl.DataFrame({"text": ["A good day.", "Rain."], "more": [1, 2]})
    vectors: Any = shipped.embed(frame)
    np.testing.assert_array_equal(np.array(vectors["vector"].to_list(), np.float32), shipped.embed(list(frame["text"])))
    scored: Any = shipped.score(pd.DataFrame({"text": ["A good day."]}))
    assert scored["log_likelihood"][0] == shipped.score(["A good day."])[0].total
    corrected: Any = shipped.correct(pd.DataFrame({"text": ["A good day."]}))
    assert corrected["corrected"].tolist() == [shipped.correct(["A good day."])[0].target]


def test_numbers_label_sets_and_tags() -> None:
    regressor = tuned("regress", [{"text": text, "label": 0.5} for text in TEXTS])
    numbers: Any = regressor.regress(pd.DataFrame(ROWS))
    np.testing.assert_array_equal(np.float32(numbers["prediction"]), regressor.regress(TEXTS))
    several: Any = tuned("multilabel", [{"text": text, "label": ["x"]} for text in TEXTS]).classify_all(
        pd.DataFrame({"text": TEXTS})
    )
    assert isinstance(several["prediction"][0], list)
    tagger = tuned("tag", [{"text": text.split(), "label": ["B-X"] + ["O"] * text.count(" ")} for text in TEXTS])
    for frame in (pl.DataFrame({"text": TEXTS}), pl.DataFrame({"text": [text.split() for text in TEXTS]})):
        tagged: Any = tagger.tag(frame)
        assert len(tagged["tags"][0]) == len(TEXTS[0].split())
    assert len(tagged["entities"]) == len(TEXTS)


def test_repr_says_what_a_model_is(model: cloze.Model, tmp_path: Path) -> None:
    model.save(tmp_path / "mood")
    lines = repr(cloze.load(tmp_path / "mood")).splitlines()
    assert lines[0] == f"Model('{tmp_path / 'mood'}')"
    assert lines[1].startswith("  architecture: bert, 4 layers, hidden size 256, ")
    assert lines[1].endswith("M parameters")
    assert lines[2:4] == ["  heads: sequence", "  task: classify, 2 labels: garden, winter"]
    assert lines[4].startswith("  reads: at most 16 tokens; ")
    assert lines[5] == "  vectors: mean; computes in fp32 on cpu"
