"""Model folders in the Hugging Face layout: load, save, and fingerprint everything that affects predictions."""

import hashlib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cloze.checkpoint.assemble import assemble, check_segments, check_vocabulary
from cloze.checkpoint.config_file import (
    read_correcting,
    read_head_pooling,
    read_layout,
    read_mean_head,
    read_normalized,
    stored_mean_head,
    write_config,
)
from cloze.checkpoint.names import as_bert, hugging_face_names, layout_of, to_hugging_face
from cloze.checkpoint.pooling_files import (
    EmbeddingSettings,
    Projection,
    read_embedding,
    with_pooler,
    without_pooler,
    write_embedding,
)
from cloze.checkpoint.tensorflow import CONFIG as GOOGLE_CONFIG
from cloze.checkpoint.tensorflow import find_checkpoint, read_tensorflow
from cloze.checkpoint.weights import (
    PICKLE,
    PICKLE_INDEX,
    PRETRAINING_HEADS,
    SAFETENSORS,
    SAFETENSORS_INDEX,
    has_weights,
    read_weights,
    write_safetensors,
)
from cloze.errors import CheckpointError, ConfigError
from cloze.files import read_json, replaced_folder, write_json
from cloze.model import Backbone
from cloze.model.adapters import Attachment, without_attachment
from cloze.model.heads import POOLED_HEADS
from cloze.options import HeadPooling
from cloze.tasks.kind import TaskLabels
from cloze.text import Tokenizer
from cloze.text.tokenizer_files import TOKENIZER_FILES

logger = logging.getLogger("cloze")

CONFIG = "config.json"
ADAPTER = "adapter.json"  # checkpoint/adapter_folder.py
# Files of model folders, written by cloze or other libraries. Folders with other files are never overwritten.
_OURS = {
    *(CONFIG, "README.md", SAFETENSORS, PRETRAINING_HEADS, "int8.safetensors", "model.onnx", ".gitattributes"),
    *("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"),
    *("special_tokens_map.json", "added_tokens.json", "training_args.bin", "tf_model.h5", "flax_model.msgpack"),
    *TOKENIZER_FILES,
}
# Folders of sentence-transformers, and weights in several files.
_NUMBERED = re.compile(r"\d+_[A-Z]\w*|(pytorch_model|model)(-[\w-]+)?\.(bin|safetensors)(\.index\.json)?")
# Maximum bytes of a model card; the longest on the hub have about 100 kB.
CARD_LIMIT = 2**20
# Files besides the weights that affect a model's outputs.
_DECISIVE = (
    *(CONFIG, GOOGLE_CONFIG, SAFETENSORS_INDEX, PICKLE_INDEX, PRETRAINING_HEADS),
    *("modules.json", "sentence_bert_config.json", *TOKENIZER_FILES),
)
# Subfolder of a run with the finished model.
RUN_MODEL = "model"


@dataclass(frozen=True)
class AdapterInfo:
    """The adapter installed in a model, and its base."""

    attachment: Attachment
    base: str  # name or path of the base, as given in training
    place: Path  # folder in which the base was found
    sha256: str  # SHA-256 of the base's weights
    settings: Mapping[str, Any] = field(default_factory=dict)  # training settings of the adapter


@dataclass(frozen=True)
class ModelFolder:
    """Contents of a model folder."""

    model: Backbone
    tokenizer: Tokenizer
    task: TaskLabels | None = None
    embedding: EmbeddingSettings = field(default_factory=EmbeddingSettings)
    notes: tuple[str, ...] = ()
    card: str | None = None
    place: Path | None = None  # path it was loaded from
    adapter: AdapterInfo | None = None  # the adapter installed in the model
    correcting: float | None = None  # confidence threshold of a model fine-tuned for correction


def load_folder(path: Path) -> ModelFolder:
    """Load a model folder, the folder of a run, or a TensorFlow checkpoint."""
    folder, checkpoint = _locate(path)
    if checkpoint is not None:
        values, tensors = read_tensorflow(checkpoint)
    else:
        values, tensors = as_bert(read_json(config_path(folder)), read_weights(folder), folder)
    embedding = read_embedding(folder)
    if read_head_pooling(values, folder) == "mean":
        tensors, embedding = _with_mean_head(tensors, embedding, values, folder)
    assembled = assemble(tensors, values, folder, pools_tokens=embedding.pools_tokens)
    model = assembled.model
    longest = model.config.positions if model.capabilities.has_positions else None
    tokenizer = Tokenizer.from_folder(folder, positions=longest)
    check_vocabulary(tokenizer.size, assembled.model.config, folder)
    check_segments(tokenizer.segments, assembled.model.config, folder)
    return ModelFolder(
        model=assembled.model,
        tokenizer=tokenizer,
        task=assembled.task,
        embedding=with_pooler(embedding, _pooler_module(model)),
        notes=assembled.notes,
        card=read_card(folder),
        place=path,
        correcting=read_correcting(values, folder),
    )


def read_card(folder: Path) -> str | None:
    """Return the model card of a folder; None if there is none or it is longer than ``CARD_LIMIT``."""
    path = folder / "README.md"
    if not path.is_file():
        return None
    with path.open("rb") as file:
        card = file.read(CARD_LIMIT + 1)
    if len(card) > CARD_LIMIT:
        logger.warning("%s: longer than %d bytes; not loaded as the model card", path, CARD_LIMIT)
        return None
    return card.decode("utf-8", errors="replace")


def _with_mean_head(
    tensors: Mapping[str, Tensor], embedding: EmbeddingSettings, values: dict[str, Any], folder: Path
) -> tuple[dict[str, Tensor], EmbeddingSettings]:
    """Convert the last ``Dense`` module to the mean-pooling head; in cloze, it is not part of the vectors."""
    head, layout = read_mean_head(values, folder), read_layout(values)
    if embedding.unsupported is not None or not embedding.projections:
        raise CheckpointError(
            f"{folder}: according to config.json the head mean-pools the token states, but modules.json has no "
            "Dense with its weights; fetch or save the folder again"
        )
    *others, output = embedding.projections
    named = {f"heads.{head}.output.weight": output.weight, f"heads.{head}.output.bias": output.bias}
    found = {hugging_face_names(name, layout)[0]: tensor for name, tensor in named.items()}
    # A Normalize after the Dense would apply to the logits, so config.json records whether to normalize the vectors.
    normalize = embedding.normalize or read_normalized(values, folder)
    return {**tensors, **found}, replace(embedding, projections=tuple(others), normalize=normalize)


def usual_pooling(contents: ModelFolder) -> HeadPooling:
    """Return the default input of a new task head on this model.

    A model with a head on a summary vector keeps that head's input: either its pooler was trained with the head, or the
    head takes the mean. Otherwise, the default is the mean if the model is configured for it, or has no pooler and its
    summary is not the last token. The head is checked first: cloze always writes modules.json, even with a pooler.

    Returns:
        ``"cls"`` or ``"mean"``, for a head on one sequence; for pairs, see ``train/finetuning/trainable.py``.
    """
    if any(name in POOLED_HEADS for name in contents.model.head_names):
        return "cls" if contents.model.pooling == "cls" else "mean"
    if contents.model.pooler is None:
        return "cls" if contents.model.capabilities.summary == "last" else "mean"
    embedding = contents.embedding
    pools_by_mean = embedding.configured and embedding.unsupported is None and embedding.pooling == "mean"
    return "mean" if pools_by_mean else "cls"


def find_model(path: Path) -> tuple[Path, Path | None] | None:
    """Return the model folder at a path and the prefix of its TensorFlow checkpoint, if any; None without a model."""
    for folder in (path, path / RUN_MODEL):
        if config_path(folder).is_file():
            return folder, None
    checkpoint = find_checkpoint(path)
    return None if checkpoint is None else (checkpoint.parent, checkpoint)


def config_path(folder: Path) -> Path:
    """Return the path of the configuration: config.json, or bert_config.json in a folder with PyTorch weights.

    The archives of HFL (Chinese BERT-wwm, RoBERTa-wwm, MacBERT) have bert_config.json. Without PyTorch weights,
    bert_config.json belongs to a TensorFlow checkpoint.
    """
    google = folder / GOOGLE_CONFIG
    if not (folder / CONFIG).is_file() and google.is_file() and has_weights(folder):
        return google
    return folder / CONFIG


def _locate(path: Path) -> tuple[Path, Path | None]:
    found = find_model(path)
    if found is not None:
        return found
    if not path.exists():
        raise CheckpointError(
            f"{path}: no such folder; give a model folder, or a hub name such as google-bert/bert-base-uncased"
        )
    if (path / "checkpoints").is_dir():
        raise CheckpointError(f"{path}: this run has not finished; run its command again to resume it")
    if (path / ADAPTER).is_file() or (path / RUN_MODEL / ADAPTER).is_file():
        raise CheckpointError(
            f"{path}: an adapter, not a complete model; use its base, which is named in {ADAPTER}, or merge a LoRA "
            "adapter with 'cloze convert'"
        )
    raise CheckpointError(
        f"{path}: not a model folder (no {CONFIG} in it); use one written by pretrain, finetune or convert"
    )


def save_folder(contents: ModelFolder, destination: Path, *, dtype: torch.dtype = torch.float32) -> None:
    """Write a folder that ``cloze``, ``transformers`` and ``sentence-transformers`` can load, atomically.

    A head that mean-pools the token states is stored as a ``Dense`` module in float32. ``transformers`` then
    loads a bare encoder, and the vectors of ``sentence-transformers`` are the logits.

    Args:
        contents: The model with its tokenizer, task and settings.
        destination: The folder; an existing model folder is replaced.
        dtype: Type of the stored weights. float16 and bfloat16 halve the file size; they are loaded as float32.
    """
    if destination.exists() and not (destination / CONFIG).is_file() and not _is_empty(destination):
        raise CheckpointError(f"{destination}: exists and is not a model folder; choose another location")
    _refuse_others_files(destination)
    model = without_attachment(contents.model)
    # The pooling settings belong to the base of a merged adapter, so they are adapted to the adapter's head.
    is_merged = contents.adapter is not None and model.pooling != "cls"
    embedding = contents.embedding.after_training(reads_mean=True) if is_merged else contents.embedding
    normalized = embedding.normalize and model.pooling == "mean"
    state, embedding = _without_mean_head(model, embedding, destination)
    embedding = without_pooler(embedding, _pooler_module(model))
    tensors = _rounded(to_hugging_face(state, layout_of(model.model_type)), dtype)
    apart = {name for name in tensors if name.startswith(("sbo.", "relation."))}
    with replaced_folder(destination) as folder:
        values = write_config(model, model.head_names, contents.task, contents.correcting, normalized=normalized)
        write_json(folder / CONFIG, values)
        write_safetensors(folder / SAFETENSORS, {name: tensors[name] for name in tensors if name not in apart})
        if apart:
            write_safetensors(folder / PRETRAINING_HEADS, {name: tensors[name] for name in sorted(apart)})
        contents.tokenizer.save(folder)
        write_embedding(folder, embedding, model, contents.tokenizer.max_length)
        (folder / "README.md").write_text(contents.card or plain_card(contents), encoding="utf-8")


def _pooler_module(model: Backbone) -> Projection | None:
    """Return the pooler as a ``sentence-transformers`` module on ``[CLS]``; None if the model has none."""
    if model.pooler is None or model.capabilities.summary != "first" or model.config.pooler_activation != "tanh":
        return None
    dense = model.pooler.dense
    return Projection(dense.weight.detach().cpu(), dense.bias.detach().cpu(), "tanh")


def _without_mean_head(
    model: Backbone, embedding: EmbeddingSettings, destination: Path
) -> tuple[dict[str, Tensor], EmbeddingSettings]:
    """Return the parameters and the modules to store; a mean-pooling head becomes a module."""
    state, head = dict(model.state_dict()), stored_mean_head(model)
    if head is None or model.pooling == "separate":
        return state, embedding
    if replace(embedding, normalize=False) != EmbeddingSettings():
        raise CheckpointError(
            f"{destination}: the head of this model mean-pools the token states and is stored as its Dense "
            "module, so its vectors cannot have whitening or another pooling; save the encoder separately"
        )
    weight, bias = (state.pop(f"heads.{head}.output.{name}").cpu() for name in ("weight", "bias"))
    return state, EmbeddingSettings("mean", projections=(Projection(weight, bias),))


def _refuse_others_files(folder: Path) -> None:
    """Raise an error if the folder to replace has files that do not belong to a model folder."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    others = [name for name in names if name not in _OURS and not _NUMBERED.fullmatch(name)]
    if others:
        raise CheckpointError(f"{folder}: holds {others[0]!r}, which would be lost; choose another location")


def _rounded(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Convert tensors to the type of the file; raise an error if a value overflows."""
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise ConfigError(f"dtype is {dtype}; expected torch.float32, float16 or bfloat16")
    rounded = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    for name, tensor in rounded.items():
        if not tensor.isfinite().all() and tensors[name].isfinite().all():
            largest = tensors[name].abs().max().item()
            raise CheckpointError(f"{name}: holds {largest:.4g}, too large for {dtype}; save it as bfloat16 or float32")
    return rounded


def plain_card(contents: ModelFolder) -> str:
    """Return a minimal model card."""
    model = contents.model
    heads = ", ".join(model.head_names) or "none"
    loading = 'load with `cloze.load("this folder")` or with `transformers`.\n'
    return (
        f"# {model.title}, {model.config.layers} layers, hidden size {model.config.hidden_size}\n\n"
        f"- parameters: {model.parameter_count():,}\n- heads: {heads}\n"
        f"- vocabulary: {contents.tokenizer.size:,} pieces, {'uncased' if contents.tokenizer.lowercase else 'cased'}\n"
        f"- longest input: {contents.tokenizer.max_length} tokens\n\n"
        f"Saved by cloze; {loading_note(model) or loading}"
    )


def loading_note(model: Backbone) -> str | None:
    """Return a note for the model card on a head that other libraries load differently; None if they load it as is."""
    if model.pooling == "separate":
        return (
            "the two texts of a pair are encoded separately, and the head compares their vectors. `cloze.load` applies "
            "it. `transformers` (`AutoModel`) and `sentence-transformers` load the encoder; "
            "`AutoModelForSequenceClassification` rejects the head because of its shape.\n"
        )
    if model.pooling == "cls":
        return None
    return (
        "the head mean-pools the token states. `cloze.load` applies it. With `sentence-transformers`, "
        "`SentenceTransformer(folder).encode` returns the logits of the head. `transformers` loads the encoder as "
        "`AutoModel`; `AutoModelForSequenceClassification` would add a random pooler and head.\n"
    )


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def weights_fingerprint(place: Path) -> str:
    """Return the SHA-256 of the weight file or, if there are several files, of their names and digests."""
    found = find_model(place)
    assert found is not None, "the caller has found the model"
    digests = [f"{path.name} {file_digest(path)}" for path in [*_weight_files(*found), *_head_files(*found)]]
    joined = hashlib.sha256("\n".join(digests).encode()).hexdigest()
    return digests[0].partition(" ")[2] if len(digests) == 1 else joined


def model_files(place: Path) -> dict[str, str]:
    """Return the SHA-256 of each file that affects a model's outputs, by its name in the folder."""
    found = find_model(place)
    assert found is not None, "the caller has found the model"
    folder, _ = found
    paths = [*_weight_files(*found), *(folder / name for name in _DECISIVE)]
    paths += [path for name in (CONFIG, SAFETENSORS, PICKLE) for path in folder.glob(f"[0-9]*_*/{name}")]
    names = {path.relative_to(folder).as_posix(): path for path in paths if path.is_file()}
    return {name: file_digest(names[name]) for name in sorted(names)}


def _head_files(folder: Path, checkpoint: Path | None) -> list[Path]:
    """Return the file of a head that mean-pools the token states, which is stored as a separate module."""
    if checkpoint is not None or read_head_pooling(read_json(config_path(folder)), folder) != "mean":
        return []
    return sorted(folder.glob(f"*_Dense/{SAFETENSORS}"))


def _weight_files(folder: Path, checkpoint: Path | None) -> list[Path]:
    if checkpoint is not None:
        return sorted(folder.glob(f"{checkpoint.name}.*"))
    for name in (SAFETENSORS, PICKLE):
        if (folder / name).is_file():
            return [folder / name]
    return sorted(folder.glob("model-*.safetensors")) or sorted(folder.glob("pytorch_model-*.bin"))


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error


def fingerprint(folder: ModelFolder) -> str:
    """Return the SHA-256 of everything that affects predictions: weights, adapter, vocabulary, labels, and pooling."""
    digest = hashlib.sha256()
    embedding = folder.embedding
    parts = [folder.model.config, folder.tokenizer.settings, folder.task, embedding.pooling, embedding.normalize]
    for part in parts + ([sorted(embedding.prompts.items())] if embedding.prompts else []):
        digest.update(f"{part!r}\n".encode())
    for name, tensor in sorted(folder.model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(_bytes(tensor))
    for projection in embedding.projections:
        digest.update(f"{projection.activation} {tuple(projection.weight.shape)}\n".encode())
        digest.update(_bytes(projection.weight))
        digest.update(_bytes(projection.bias))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
