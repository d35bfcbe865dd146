"""Operations: numbers that are none, and which heads allow what."""

from typing import Any

import numpy as np
import pytest
import torch

from cloze.errors import RequestError
from cloze.predict import Model, load
from cloze.predict.preprocessing import read_texts
from cloze.serve.errors import ModelFailedError
from cloze.serve.operations import abilities, is_finite, run_operation
from cloze.serve.queue import BatchKey
from tests.model.made import model_folder

# What needs no head.
ANY = {"embed", "inspect"}


@pytest.mark.parametrize(
    ("result", "finite"),
    [
        (np.ones(3), True),
        (np.array([1.0, np.nan]), False),
        ({"a": 1.0, "b": [{"c": float("inf")}]}, False),
        ({"label": "nan", "probabilities": {"x": 0.5}, "count": 3, "none": None}, True),
        ([(1.0, 2.0), ("a", float("-inf"))], False),
    ],
)
def test_numbers_are_looked_for_everywhere(result: Any, finite: bool) -> None:
    assert is_finite(result) is finite


def test_a_model_without_numbers_fails(folders: dict[str, str]) -> None:
    broken = load(folders["base"])
    with torch.no_grad():
        next(broken.bert.parameters())[:] = float("nan")
    results = run_operation(broken, BatchKey("embed"), [("a cat", read_texts(broken.tokenizer, ["a cat"])[0])] * 2)
    assert [type(result) for result in results] == [ModelFailedError, ModelFailedError]


def test_labels_that_mean_nothing_are_refused() -> None:
    unnamed = Model(model_folder(["sequence"]))
    message = "^this model's folder does not say what its labels mean; fine-tune it with cloze$"
    with pytest.raises(RequestError, match=message):
        run_operation(unnamed, BatchKey("classify"), [("a cat", read_texts(unnamed.tokenizer, ["a cat"])[0])])


def test_heads_allow(models: dict[str, Model]) -> None:
    found = {name: abilities(model) - ANY for name, model in models.items()}
    assert found == {
        "base": {"fill", "correct", "score", "follows"},
        "labels": {"classify"},
        "several": {"classify"},
        "number": {"classify"},
        "tags": {"tag"},
        "spans": {"answer"},
        "options": {"choose"},
    }
