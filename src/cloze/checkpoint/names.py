"""Convert parameter names between cloze, Hugging Face folders and Google's TensorFlow checkpoints.

Model folders use Hugging Face names, which differ between BERT and ALBERT. One difference from cloze is more than a
name: query, key and value are one matrix in cloze and three in the folder. Architectures without a table in this module
are saved with the names of cloze (layout "native").
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from cloze.errors import CheckpointError

# Naming scheme of a folder, which follows from "model_type" in its config.json.
Layout = Literal["bert", "gpt", "albert", "native"]

# Ordered so that a prefix never shadows a longer one.
_LAYER_PARTS: dict[Layout, dict[str, str]] = {
    "bert": {
        "attention.output.": "attention.output.dense.",
        "attention_norm.": "attention.output.LayerNorm.",
        "expand.": "intermediate.dense.",
        "contract.": "output.dense.",
        "feedforward_norm.": "output.LayerNorm.",
    },
    "albert": {
        "attention.output.": "attention.dense.",
        "attention_norm.": "attention.LayerNorm.",
        "expand.": "ffn.",
        "contract.": "ffn_output.",
        "feedforward_norm.": "full_layer_layer_norm.",
    },
}
_TABLES = {
    "encoder.embeddings.token.": "embeddings.word_embeddings.",
    "encoder.embeddings.segment.": "embeddings.token_type_embeddings.",
    "encoder.embeddings.position.": "embeddings.position_embeddings.",
    "encoder.embeddings.norm.": "embeddings.LayerNorm.",
}
_TASK_HEADS = {
    "heads.sequence.output.": "classifier.",
    "heads.token.output.": "classifier.",
    "heads.choice.output.": "classifier.",
    "heads.span.output.": "qa_outputs.",
    # These heads exist only in cloze.
    "heads.sbo.": "sbo.",
    "heads.relation.": "relation.",
}
_PARTS: dict[Layout, dict[str, str]] = {
    "bert": {
        **{ours: f"bert.{theirs}" for ours, theirs in _TABLES.items()},
        "pooler.dense.": "bert.pooler.dense.",
        "heads.mlm.dense.": "cls.predictions.transform.dense.",
        "heads.mlm.norm.": "cls.predictions.transform.LayerNorm.",
        "heads.mlm.bias": "cls.predictions.bias",
        "heads.nsp.output.": "cls.seq_relationship.",
        "heads.sop.output.": "cls.seq_relationship.",
        **_TASK_HEADS,
    },
    "albert": {
        **{ours: f"albert.{theirs}" for ours, theirs in _TABLES.items()},
        "encoder.embeddings.to_hidden.": "albert.encoder.embedding_hidden_mapping_in.",
        "pooler.dense.": "albert.pooler.",
        "heads.mlm.dense.": "predictions.dense.",
        "heads.mlm.norm.": "predictions.LayerNorm.",
        "heads.mlm.bias": "predictions.bias",
        "heads.nsp.output.": "sop_classifier.classifier.",
        "heads.sop.output.": "sop_classifier.classifier.",
        **_TASK_HEADS,
    },
}
# A GPT has BERT's names, except for the modules on its summary: transformers would apply them to the first token.
_LAYER_PARTS["gpt"] = _LAYER_PARTS["bert"]
_PARTS["gpt"] = {
    **{ours: theirs for ours, theirs in _PARTS["bert"].items() if not ours.startswith(("pooler.", "heads.mlm."))},
    **{name.replace("mlm", "lm"): theirs for name, theirs in _PARTS["bert"].items() if name.startswith("heads.mlm.")},
    "pooler.dense.": "summary.dense.",
    "heads.sequence.output.": "summary.classifier.",
    "heads.choice.output.": "summary.choice.",
}
# ALBERT's layers are in groups; here, each group has one layer.
_LAYER_PREFIX: dict[Layout, str] = {
    "bert": "bert.encoder.layer.{}.",
    "gpt": "bert.encoder.layer.{}.",
    "albert": "albert.encoder.albert_layer_groups.{}.albert_layers.0.",
}
_ATTENTION: dict[Layout, str] = {"bert": "attention.self.", "gpt": "attention.self.", "albert": "attention."}
# Copies of other tensors that some libraries save as well.
COPIES: dict[Layout, dict[str, str]] = {
    "bert": {
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    "albert": {
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    "native": {},
}
COPIES["gpt"] = COPIES["bert"]
# Prefix of all names below the heads, which a bare encoder lacks.
_PREFIX: dict[Layout, str] = {"bert": "bert", "gpt": "bert", "albert": "albert", "native": ""}
_LAYER = re.compile(r"encoder\.layers\.(\d+)\.(.+)")
_FUSED = "attention.query_key_value."


def layout_of(model_type: str) -> Layout:
    """Return the layout of parameter names for a model type."""
    known: dict[str, Layout] = {"bert": "bert", "gpt": "gpt", "albert": "albert"}
    return known.get(model_type, "native")


def hugging_face_names(name: str, layout: Layout = "bert") -> tuple[str, ...]:
    """Return the name, or the three names, of a parameter in a Hugging Face folder."""
    if layout == "native":
        return (name,)
    layer = _LAYER.fullmatch(name)
    if layer is None:
        return (_replace_prefix(name, _PARTS[layout]),)
    prefix, rest = layer_prefix(int(layer[1]), layout), layer[2]
    if rest.startswith(_FUSED):
        suffix = rest.removeprefix(_FUSED)
        return tuple(f"{prefix}{_ATTENTION[layout]}{part}.{suffix}" for part in ("query", "key", "value"))
    return (prefix + _replace_prefix(rest, _LAYER_PARTS[layout]),)


def layer_prefix(number: int, layout: Layout) -> str:
    """Return the common prefix of all names of a layer."""
    return _LAYER_PREFIX[layout].format(number)


def _replace_prefix(name: str, table: Mapping[str, str]) -> str:
    for ours, theirs in table.items():
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    raise KeyError(name)


def to_hugging_face(state: Mapping[str, Tensor], layout: Layout = "bert") -> dict[str, Tensor]:
    """Rename a state dictionary for saving. As in Hugging Face folders, a bare encoder has no ``bert.`` prefix."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in state.items():
        names = hugging_face_names(name, layout)
        renamed |= dict(zip(names, tensor.chunk(len(names)), strict=True))
    if not any(name.startswith("heads.") for name in state):
        renamed = {name.removeprefix(f"{_PREFIX[layout]}."): tensor for name, tensor in renamed.items()}
    return {name: tensor.contiguous() for name, tensor in sorted(renamed.items())}


def joined(tensors: Iterable[Tensor]) -> Tensor:
    """Return a parameter from its one or three tensors on disk."""
    parts = list(tensors)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def normalised(name: str, layout: Layout = "bert") -> str:
    """Return the current Hugging Face name of a tensor with an old name or without the prefix of a bare encoder."""
    name = re.sub(r"\.LayerNorm\.gamma$", ".LayerNorm.weight", name)
    name = re.sub(r"\.LayerNorm\.beta$", ".LayerNorm.bias", name)
    if layout != "native" and name.startswith(("embeddings.", "encoder.", "pooler.")):
        name = f"{_PREFIX[layout]}.{name}"
    return name


_ERNIE = "ernie"
_TASK_TYPES = "ernie.embeddings.task_type_embeddings.weight"
_POSITIONS = "bert.embeddings.position_embeddings.weight"


def as_bert(values: dict[str, Any], tensors: dict[str, Tensor], path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Convert an ERNIE (Sun et al. 2019) to a BERT: only the prefix of its tensors differs in ``transformers``.

    Later versions add a task embedding to every token. Outside of pre-training, only its first row is used, so this row
    is added to the position embeddings, which gives the same sums.
    """
    if values.get("model_type") != _ERNIE:
        return values, tensors
    names = values.get("architectures")
    classes = [str(name).replace("Ernie", "Bert", 1) for name in names] if isinstance(names, list) else []
    prefixed = {
        f"{_ERNIE}.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name: tensor
        for name, tensor in tensors.items()
    }
    task_types = prefixed.pop(_TASK_TYPES, None)
    renamed = {re.sub(rf"^{_ERNIE}\.", "bert.", name): tensor for name, tensor in prefixed.items()}
    if values.get("use_task_id"):
        positions = renamed.get(_POSITIONS)
        if (
            task_types is None
            or positions is None
            or task_types.ndim != 2
            or task_types.shape[1:] != positions.shape[1:]
        ):
            raise CheckpointError(
                f"{path}: use_task_id is {values['use_task_id']!r}, but {_TASK_TYPES} is missing or has the wrong "
                f"size; "
                "fetch the folder again"
            )
        renamed[_POSITIONS] = positions + task_types[0]
    return {**values, "model_type": "bert", "architectures": classes}, renamed


# Endings of Google's variables. A dense kernel is (in, out) there and (out, in) here. The matrices of the output
# layers, which the original code multiplies explicitly, are already (out, in).
_TENSORFLOW_ENDINGS = {
    "kernel": "weight",
    "gamma": "weight",
    "beta": "bias",
    "output_weights": "weight",
    "output_bias": "bias",
    "word_embeddings": "word_embeddings.weight",
    "token_type_embeddings": "token_type_embeddings.weight",
    "position_embeddings": "position_embeddings.weight",
}


def from_tensorflow(name: str) -> tuple[str, bool]:
    """Return the Hugging Face name of a variable in a Google checkpoint, and whether to transpose its matrix."""
    # The output layer of run_classifier.py is at the root, that of run_squad.py is under cls/squad.
    path = f"classifier/{name}" if name.startswith("output_") else name.replace("cls/squad/", "qa_outputs/")
    path = re.sub(r"/layer_(\d+)/", r"/layer/\1/", path)
    *parents, last = path.split("/")
    return ".".join([*parents, _TENSORFLOW_ENDINGS.get(last, last)]), last == "kernel"
