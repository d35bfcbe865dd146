"""The models that come with the package, each in a folder of its own here. Light to import."""

from pathlib import Path

# What commands take unless they are told of another.
SHIPPED_MODEL = "cloze-mini"


def shipped_folder(source: str | Path) -> Path | None:
    """The folder of a shipped model, if this is its name and no path of the user's."""
    if str(source) == SHIPPED_MODEL and not Path(source).exists():
        return Path(__file__).parent / SHIPPED_MODEL
    return None
