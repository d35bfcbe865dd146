"""A small random model, documents of its words, and an index of them."""

import random
from pathlib import Path
from typing import Any

import pytest

from cloze.predict import Model, load
from cloze.predict.search.building import index
from cloze.predict.search.index import Index
from tests.model.made import WORDS, model_folder, saved

PLAIN = WORDS[:8]


def made_documents(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return documents of one to a few sentences, with fields of every type."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        sentences = [" ".join(draw.choices(PLAIN, k=draw.randint(3, 9))) for _ in range(draw.randint(1, 6))]
        text = ". ".join(sentence.capitalize() for sentence in sentences) + f". Mat word{number % 40}."
        row = {"id": f"d{number}", "text": text, "year": 2000 + number, "lang": ("en", "zh")[number % 2]}
        rows.append(row | {"good": number % 3 == 0, "score": number / 2, "note": None if number % 5 else f"n{number}"})
    return rows


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(model_folder(["mlm"]), tmp_path_factory.mktemp("search") / "model")


@pytest.fixture(scope="session")
def model(folder: Path) -> Model:
    return load(folder)


@pytest.fixture
def built(tmp_path: Path, folder: Path) -> Index:
    return index(
        made_documents(30), tmp_path / "index", model=str(folder), precision="fp32", chunk=16, overlap=8, progress=False
    )
