from pathlib import Path

import pytest

from cloze.predict import Model, load
from tests.model.made import model_folder, saved


@pytest.fixture(scope="session")
def pretrained_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model with both pre-training heads."""
    return saved(model_folder(["mlm", "nsp"]), tmp_path_factory.mktemp("pretrained") / "model")


@pytest.fixture(scope="session")
def pretrained(pretrained_folder: Path) -> Model:
    return load(pretrained_folder)
