"""What each parameter is called: here, in HF folders, and in Google's TensorFlow checkpoints.

HF names are the ones on disk. Ours differ in one way that is more than spelling: query, key and value are one matrix
here and three there.
"""

import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

# Longest first, so that "attention.output." does not shadow what is inside it.
_LAYER_PARTS = {
    "attention.output.": "attention.output.dense.",
    "attention_norm.": "attention.output.LayerNorm.",
    "expand.": "intermediate.dense.",
    "contract.": "output.dense.",
    "feedforward_norm.": "output.LayerNorm.",
}
_PARTS = {
    "encoder.embeddings.token.": "bert.embeddings.word_embeddings.",
    "encoder.embeddings.segment.": "bert.embeddings.token_type_embeddings.",
    "encoder.embeddings.position.": "bert.embeddings.position_embeddings.",
    "encoder.embeddings.norm.": "bert.embeddings.LayerNorm.",
    "pooler.dense.": "bert.pooler.dense.",
    "heads.mlm.dense.": "cls.predictions.transform.dense.",
    "heads.mlm.norm.": "cls.predictions.transform.LayerNorm.",
    "heads.mlm.bias": "cls.predictions.bias",
    "heads.nsp.output.": "cls.seq_relationship.",
    "heads.sequence.output.": "classifier.",
    "heads.token.output.": "classifier.",
    "heads.choice.output.": "classifier.",
    "heads.span.output.": "qa_outputs.",
}
_LAYER = re.compile(r"encoder\.layers\.(\d+)\.(.+)")
_FUSED = "attention.query_key_value."


def hugging_face_names(name: str) -> tuple[str, ...]:
    """The name, or the three names, under which a parameter of ours stands in an HF folder."""
    layer = _LAYER.fullmatch(name)
    if layer is None:
        return (_replace_prefix(name, _PARTS),)
    prefix, rest = f"bert.encoder.layer.{layer[1]}.", layer[2]
    if rest.startswith(_FUSED):
        suffix = rest.removeprefix(_FUSED)
        return tuple(f"{prefix}attention.self.{part}.{suffix}" for part in ("query", "key", "value"))
    return (prefix + _replace_prefix(rest, _LAYER_PARTS),)


def _replace_prefix(name: str, table: Mapping[str, str]) -> str:
    for ours, theirs in table.items():
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    raise KeyError(name)


def to_hugging_face(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename a state dictionary for the disk. A bare encoder goes without the ``bert.`` prefix, as HF has it."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in state.items():
        names = hugging_face_names(name)
        renamed |= dict(zip(names, tensor.chunk(len(names)), strict=True))
    if not any(name.startswith("heads.") for name in state):
        renamed = {name.removeprefix("bert."): tensor for name, tensor in renamed.items()}
    return {name: tensor.contiguous() for name, tensor in sorted(renamed.items())}


def joined(tensors: Iterable[Tensor]) -> Tensor:
    """One parameter of ours from its one or three tensors on disk."""
    parts = list(tensors)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def normalised(name: str) -> str:
    """The modern HF name of a tensor that an older release, or a bare encoder, calls otherwise."""
    name = re.sub(r"\.LayerNorm\.gamma$", ".LayerNorm.weight", name)
    name = re.sub(r"\.LayerNorm\.beta$", ".LayerNorm.bias", name)
    if name.startswith(("embeddings.", "encoder.", "pooler.")):
        name = f"bert.{name}"
    return name


# Endings of Google's variables. A dense kernel is (in, out) there and (out, in) here; the matrices of the output
# layers, which the original multiplies by hand, are (out, in) already.
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
    """The HF name of a variable of Google's checkpoints, and whether its matrix is to be transposed."""
    # run_classifier.py keeps its layer at the root, run_squad.py under cls/squad.
    path = f"classifier/{name}" if name.startswith("output_") else name.replace("cls/squad/", "qa_outputs/")
    path = re.sub(r"/layer_(\d+)/", r"/layer/\1/", path)
    *parents, last = path.split("/")
    return ".".join([*parents, _TENSORFLOW_ENDINGS.get(last, last)]), last == "kernel"
