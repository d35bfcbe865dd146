"""Read and write the pooling configuration of ``sentence-transformers``: ``modules.json`` and its module folders.

Supported modules are Pooling, Normalize, and Dense, a linear map of pooled vectors (for example, whitening).
``config_sentence_transformers.json`` has the instruction prefixes of search models (prompts) and their dimensions.

Dimensions: N vectors, D input features, K output features.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from cloze.checkpoint.weights import check_finite, read_weights, write_safetensors
from cloze.errors import CheckpointError, RequestError, did_you_mean
from cloze.files import read_json, read_json_value, write_json
from cloze.model import Backbone

Activation = Literal["identity", "tanh"]
_CLASSES: dict[Activation, str] = {
    "identity": "torch.nn.modules.linear.Identity",
    "tanh": "torch.nn.modules.activation.Tanh",
}
# Input and output of a supported Dense: the vector of the text.
_VECTOR = "sentence_embedding"
_MOST_MODULES = 16
# The file with the prompts, and the key under which cloze stores the dimensions that a model was trained to be cut to.
SETTINGS_FILE = "config_sentence_transformers.json"
_DIMENSIONS = "matryoshka_dims"
# The names of the prompts for queries and documents; models of earlier versions use other names for the second one.
QUERY, DOCUMENT = "query", "document"
_ALIASES = {DOCUMENT: ("passage", "corpus")}


@dataclass(frozen=True, eq=False)  # == of tensors is elementwise
class Projection:
    """A linear map with an activation: ``activation(weight @ vector + bias)``."""

    weight: Tensor  # (K, D)
    bias: Tensor  # (K,)
    activation: Activation = "identity"

    def __call__(self, vectors: Tensor) -> Tensor:
        """Map vectors: (N, D) -> (N, K)."""
        mapped = torch.nn.functional.linear(vectors, self.weight.to(vectors), self.bias.to(vectors))
        return mapped.tanh() if self.activation == "tanh" else mapped


def read_projection(folder: Path) -> Projection | str:
    """Read a ``Dense`` module, or return a description of its unsupported feature."""
    path = folder / "config.json"
    values = read_json(path)
    named = str(values.get("activation_function", _CLASSES["tanh"]))  # the default of sentence-transformers
    activations = [name for name in get_args(Activation) if named.lower().endswith(f".{name}")]
    if not activations:
        return f"ends in {named}"
    if values.get("use_residual"):
        return "adds its input to its output"
    names = [values.get(key) or _VECTOR for key in ("module_input_name", "module_output_name")]
    if names != [_VECTOR, _VECTOR]:
        return f"reads {names[0]!r} and writes {names[1]!r}"
    tensors = read_weights(folder)
    weight = tensors.get("linear.weight")
    if weight is None or weight.ndim != 2:
        raise CheckpointError(f"{folder}: expected linear.weight with two dimensions; fetch or save it again")
    bias = tensors.get("linear.bias", torch.zeros(len(weight)))
    if bias.shape != weight.shape[:1]:
        raise CheckpointError(
            f"{folder}: linear.bias has shape {tuple(bias.shape)}, but linear.weight has shape {tuple(weight.shape)}; "
            "fetch or save it again"
        )
    check_finite("linear.weight", weight, folder)
    check_finite("linear.bias", bias, folder)
    return Projection(weight.float(), bias.float(), activations[0])


def write_projection(folder: Path, projection: Projection) -> None:
    """Write a ``Dense`` module."""
    outputs, inputs = projection.weight.shape
    write_json(
        folder / "config.json",
        {
            "in_features": inputs,
            "out_features": outputs,
            "bias": True,
            "activation_function": _CLASSES[projection.activation],
        },
    )
    write_safetensors(
        folder / "model.safetensors", {"linear.weight": projection.weight, "linear.bias": projection.bias}
    )


Pooling = Literal["cls", "mean", "max", "mean_max", "mean_words", "pooler"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)

_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
}
_MODES: dict[frozenset[str], Pooling] = {
    frozenset({"cls"}): "cls",
    frozenset({"mean"}): "mean",
    frozenset({"max"}): "max",
    frozenset({"mean", "max"}): "mean_max",
    # Exists only in cloze. sentence-transformers rejects the name; the flags of another mode would give wrong vectors.
    frozenset({"mean_words"}): "mean_words",
}


@dataclass(frozen=True)
class EmbeddingSettings:
    """Pooling settings of a model folder; ``unsupported`` describes a module that cloze cannot apply, if any."""

    pooling: Pooling = "mean"
    normalize: bool = False
    unsupported: str | None = None
    # Applied between pooling and normalisation: whitening, or learned Dense layers.
    projections: tuple[Projection, ...] = ()
    configured: bool = field(default=False, compare=False)  # whether the settings come from the folder, not defaults
    prompts: Mapping[str, str] = field(default_factory=dict)  # instruction prefixes by name, such as "query"
    dimensions: tuple[int, ...] = ()  # sizes to which vectors may be cut (Matryoshka training), largest first

    @property
    def pools_tokens(self) -> bool:
        """Whether the vectors are a learned map of all pooled tokens, without the state of [CLS].

        Pooling alone does not tell, since cloze writes modules.json into every folder.
        """
        return bool(self.projections) and self.unsupported is None and self.pooling not in ("cls", "pooler")

    def prompt(self, name: str) -> str:
        """Return the prefix of texts of a kind, ``query`` or ``document``; an empty text if the model needs none.

        Any other text than a single word, such as ``search: ``, is returned as the prefix itself.

        Raises:
            RequestError: If a single word is neither one of these names nor in the folder.
        """
        for known in (name, *_ALIASES.get(name, ())):
            if known in self.prompts:
                return self.prompts[known]
        if name in (QUERY, DOCUMENT) or any(name in names for names in _ALIASES.values()):
            return self.prompts.get(DOCUMENT, "") if name != QUERY else ""
        if name.isalnum():
            known = did_you_mean(name, {QUERY: "", DOCUMENT: "", **self.prompts})
            raise RequestError(f"unknown prompt {name!r}{known}; or give the text itself, such as 'query: '")
        return name

    def after_training(self, *, reads_mean: bool) -> "EmbeddingSettings":
        """Return the settings for a model that was fine-tuned from this one.

        Projections are dropped, because they were fitted to the old states. ``reads_mean``: the new head takes the mean
        of the token states, which becomes the pooling.
        """
        if self.unsupported is not None:
            return EmbeddingSettings()
        return EmbeddingSettings("mean" if reads_mean else self.pooling, self.normalize)


def read_embedding(folder: Path) -> EmbeddingSettings:
    """Read the pooling settings of a folder; the default is the mean without normalisation."""
    settings, path = _read_modules(folder), folder / SETTINGS_FILE
    values = read_json(path) if path.is_file() else {}
    prompts, dimensions = values.get("prompts") or {}, values.get(_DIMENSIONS) or []
    # sentence-transformers writes null for a prompt that was not set.
    if not isinstance(prompts, dict) or not all(isinstance(one, str | None) for one in prompts.values()):
        raise CheckpointError(f"{path}: prompts is {str(prompts)[:50]!r}; expected texts by name, such as query")
    if not isinstance(dimensions, list) or not all(type(size) is int and size > 0 for size in dimensions):
        raise CheckpointError(f"{path}: {_DIMENSIONS} is {str(dimensions)[:50]!r}; expected a list of sizes")
    return replace(
        settings, prompts={name: text for name, text in prompts.items() if text}, dimensions=tuple(dimensions)
    )


def _read_modules(folder: Path) -> EmbeddingSettings:
    path = folder / "modules.json"
    if not path.is_file():
        return EmbeddingSettings()
    modules = read_json_value(path)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise CheckpointError(f"{path}: expected a list of modules")
    if len(modules) > _MOST_MODULES:  # all may name the same folder, whose weights would be read each time
        raise CheckpointError(f"{path}: names {len(modules)} modules; expected at most {_MOST_MODULES}")
    settings = EmbeddingSettings(configured=True)
    for module in modules:
        settings = _with_module(settings, module, folder)
        if settings.unsupported is not None:
            return EmbeddingSettings(unsupported=f"{path} {settings.unsupported}")
    return settings


def _with_module(settings: EmbeddingSettings, module: dict[str, Any], folder: Path) -> EmbeddingSettings:
    """Return the settings with the next module; sets ``unsupported`` if cloze cannot apply it."""
    kind = str(module.get("type", "")).rpartition(".")[2]
    if kind == "Pooling":
        modes = _pooling_modes(read_json(_inside(folder, module.get("path")) / "config.json"))
        if modes not in _MODES:
            return replace(settings, unsupported=f"pools by {', '.join(sorted(modes)) or 'nothing'}")
        return replace(settings, pooling=_MODES[modes])
    if kind == "Normalize":
        return replace(settings, normalize=True)
    if kind == "Dense" and not settings.normalize:
        found = read_projection(_inside(folder, module.get("path")))
        if isinstance(found, Projection):
            return replace(settings, projections=(*settings.projections, found))
        return replace(settings, unsupported=f"has a Dense that {found}")
    if kind == "Dense":
        return replace(settings, unsupported="has a Dense after Normalize")
    if kind == "StaticEmbedding" and not _inside(folder, module.get("path")).samefile(folder):
        return replace(settings, unsupported="has a StaticEmbedding in a folder of its own")
    if kind == "StaticEmbedding":
        return replace(settings, pooling="mean_words")
    return settings if kind == "Transformer" else replace(settings, unsupported=f"has a module of type {kind}")


def _inside(folder: Path, name: Any) -> Path:
    """Return a subfolder named in ``modules.json``; it must be inside the model folder."""
    path = folder / str(name or "")
    if "\0" in str(name) or not path.resolve().is_relative_to(folder.resolve()):
        raise CheckpointError(
            f"{folder / 'modules.json'}: {name!r} leads outside the folder; the file may have been tampered with"
        )
    return path


def _pooling_modes(values: dict[str, Any]) -> frozenset[str]:
    """Return the enabled modes from the new key (``pooling_mode``) or the old keys (one flag per mode)."""
    mode = values.get("pooling_mode")
    if mode is not None:
        return frozenset(map(str, mode if isinstance(mode, list) else [mode]))
    names = {flag: name for name, flag in _FLAGS.items()}
    return frozenset(names.get(key, key) for key, on in values.items() if key.startswith("pooling_mode_") and on)


def write_embedding(folder: Path, settings: EmbeddingSettings, model: Backbone, max_length: int) -> None:
    """Write the files with the old keys, which all releases of ``sentence-transformers`` support."""
    if settings.unsupported is not None:
        return
    last = ["Normalize"] if settings.normalize else []
    # StaticEmbedding pools by itself: the mean over the pieces, without special tokens.
    is_static = model.sentence_module == "StaticEmbedding" and settings.pooling == "mean_words"
    first = ["StaticEmbedding"] if is_static else ["Transformer", "Pooling"]
    kinds = [*first, *(["Dense"] * len(settings.projections)), *last]
    paths = ["" if index == 0 else f"{index}_{kind}" for index, kind in enumerate(kinds)]
    write_json(
        folder / "modules.json",
        [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (kind, path) in enumerate(zip(kinds, paths, strict=True))
        ],
    )
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False})
    for path in paths[1:]:
        (folder / path).mkdir()
    if first[-1] == "Pooling":
        _write_pooling(folder / paths[1], settings.pooling, model.config.hidden_size)
    _write_projections(folder, paths[len(first) :], settings.projections)
    # Git and archives may drop empty folders, so Normalize gets a file too.
    if settings.normalize:
        write_json(folder / paths[-1] / "config.json", {})
    if settings.prompts or settings.dimensions:
        values = {"prompts": dict(settings.prompts), "default_prompt_name": None, "similarity_fn_name": "cosine"}
        dimensions = {_DIMENSIONS: list(settings.dimensions)} if settings.dimensions else {}
        write_json(folder / SETTINGS_FILE, values | dimensions)


def _write_pooling(folder: Path, pooling: Pooling, hidden_size: int) -> None:
    modes = {name for names, own in _MODES.items() if own == pooling for name in names}
    how: dict[str, Any] = {flag: name in modes for name, flag in _FLAGS.items()}
    if pooling == "mean_words":
        how = {"pooling_mode": pooling}
    write_json(folder / "config.json", {"word_embedding_dimension": hidden_size} | how)


def with_pooler(settings: EmbeddingSettings, pooler: Projection | None) -> EmbeddingSettings:
    """Convert ``[CLS]`` pooling and a ``Dense`` module equal to the model's pooler to the pooling ``pooler``.

    The files store ``pooler`` as these two, so that ``sentence-transformers`` gives the same vectors.
    """
    if pooler is None or settings.pooling != "cls" or not settings.projections:
        return settings
    first, *others = settings.projections
    same = first.activation == pooler.activation and torch.equal(first.weight, pooler.weight)
    if not (same and torch.equal(first.bias, pooler.bias)):
        return settings
    return replace(settings, pooling="pooler", projections=tuple(others))


def without_pooler(settings: EmbeddingSettings, pooler: Projection | None) -> EmbeddingSettings:
    """Convert the pooling ``pooler`` to ``[CLS]`` pooling and a ``Dense`` module, as it is stored in the files."""
    if settings.pooling != "pooler":
        return settings
    if pooler is None:
        raise CheckpointError("pooling is 'pooler', but this model has no pooler; choose another pooling")
    return replace(settings, pooling="cls", projections=(pooler, *settings.projections))


def _write_projections(folder: Path, paths: Sequence[str], projections: Sequence[Projection]) -> None:
    for path, projection in zip(paths, projections, strict=False):  # the last path may belong to Normalize
        write_projection(folder / path, projection)
