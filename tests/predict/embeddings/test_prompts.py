"""Prompts of a folder by name or as given, and those that cannot be applied."""

from typing import Any

import numpy as np
import pytest

from cloze.checkpoint.pooling_files import EmbeddingSettings
from cloze.errors import RequestError
from cloze.predict import Model
from tests.model.made import model_folder


def test_names_of_prompts() -> None:
    settings = EmbeddingSettings(prompts={"query": "Q: ", "passage": "P: "})
    assert [settings.prompt(name) for name in ("query", "document", "passage")] == ["Q: ", "P: ", "P: "]
    assert EmbeddingSettings(prompts={"document": "D: "}).prompt("passage") == "D: "
    assert settings.prompt("search: ") == "search: "
    assert [EmbeddingSettings().prompt(name) for name in ("query", "document")] == ["", ""]
    with pytest.raises(RequestError, match=r"unknown prompt 'qury'; did you mean 'query'.*such as 'query: '"):
        settings.prompt("qury")


def test_text_of_a_prompt_is_put_in_front() -> None:
    model = Model(model_folder())
    assert np.allclose(model.embed(["sat"], prompt="the cat "), model.embed(["the cat sat"]))


def test_texts_that_are_no_texts_are_still_refused() -> None:
    model = Model(model_folder())
    values: list[Any] = ["the cat", ["the cat", 3]]
    for value in values:
        with pytest.raises(RequestError):
            model.embed(value, prompt="a mat: ")
