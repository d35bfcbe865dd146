"""The published ways to pre-train, each a few lines of TOML that a flag may overrule."""

import tomllib
from pathlib import Path
from typing import Any

from cloze.errors import ConfigError, did_you_mean

FOLDER = Path(__file__).parents[2] / "recipes"


def recipe_names() -> list[str]:
    """The recipes that come with cloze."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read_recipe(name: str) -> dict[str, Any]:
    """The settings of a recipe: ``PretrainSettings(**read_recipe("albert"), steps=1000)``."""
    if name not in recipe_names():
        raise ConfigError(
            f"unknown recipe {name!r}{did_you_mean(name, recipe_names())}; there are {', '.join(recipe_names())}; "
            "a file of your own goes with --config"
        )
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
