"""Prediction methods add columns to data frames of any library."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from datasets import Dataset

import cloze
from cloze.errors import DataError, RequestError
from tests.train.finetuning.test_finetune import make_rows

ROWS = [{"text": row["text"], "label": row["label"]} for row in make_rows(16)]
TEXTS = [row["text"] for row in ROWS]
FAST: dict[str, Any] = {"epochs": 1, "batch_size": 8, "max_length": 16}


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
    with pytest.raises(DataError, match="data has no column 'text'; choose one of: review"):
        model.classify(frame)
    with pytest.raises(DataError, match="data has a column 'prediction' already, which the results need"):
        model.classify(found, text="review")
    with pytest.raises(RequestError, match="which name columns of a data frame"):
        model.classify(TEXTS, text="review")
    with pytest.raises(DataError, match="data row 2: 'text' is None; expected text in quotes"):
        model.classify(pd.DataFrame({"text": ["a", None]}))


def test_series_and_arrays_are_lists(model: cloze.Model) -> None:
    expected = model.classify(TEXTS)
    assert model.classify(pd.Series(TEXTS)) == expected
    assert model.classify(np.array(TEXTS)) == expected
    assert model.classify(pl.Series(TEXTS)) == expected
    assert model.classify(text for text in TEXTS) == expected
    with pytest.raises(DataError, match="texts row 2: None is no text"):
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
