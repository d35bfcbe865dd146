"""The models that are shipped with the package, one folder each. Imports nothing heavy."""

from pathlib import Path

# The default model of every command that needs no fine-tuned model.
SHIPPED_MODEL = "cloze-mini"


def shipped_folder(source: str | Path) -> Path | None:
    """Return the folder of a shipped model, or None if ``source`` is not its name or exists as a path."""
    if str(source) == SHIPPED_MODEL and not Path(source).exists():
        return Path(__file__).parent / SHIPPED_MODEL
    return None
