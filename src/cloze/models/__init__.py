"""The models that are shipped with the package, one folder each. Imports nothing heavy."""

from dataclasses import dataclass
from pathlib import Path

# The default model of every command that needs no fine-tuned model.
SHIPPED_MODEL = "cloze-mini"


@dataclass(frozen=True)
class ModelPurpose:
    """A model that a command can name, what it is for and what it is not for."""

    name: str
    good_for: str
    not_for: str


SHIPPED_MODELS = (
    ModelPurpose(
        SHIPPED_MODEL,
        "English up to 128 tokens: trying every command offline, filling blanks, scoring texts, a start for "
        "pre-training and fine-tuning where word order matters",
        "sentence vectors and search (use a model trained for similarity, such as all-MiniLM-L6-v2), topics (TF-IDF is "
        "often better), other languages",
    ),
)


def shipped_folder(source: str | Path) -> Path | None:
    """Return the folder of a shipped model, or None if ``source`` is not its name or exists as a path."""
    if any(str(source) == model.name for model in SHIPPED_MODELS) and not Path(source).exists():
        return Path(__file__).parent / str(source)
    return None
