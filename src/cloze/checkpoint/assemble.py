"""Tensors with HF names + a configuration -> a model, and what was missing or left over."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cloze.checkpoint.config_file import TaskLabels, read_config, read_labels, read_task_head
from cloze.checkpoint.names import hugging_face_names, joined, normalised
from cloze.errors import CheckpointError
from cloze.model import Bert, BertConfig, HeadName

_EMBEDDING = "bert.embeddings.word_embeddings.weight"
# Copies of other tensors that some releases save as well.
_COPIES = {
    "cls.predictions.decoder.weight": _EMBEDDING,
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
_DERIVED = {"bert.embeddings.position_ids"}


@dataclass(frozen=True)
class Assembled:
    """A model and what there is to say about how it was put together."""

    model: Bert
    task: TaskLabels | None
    notes: tuple[str, ...]


def assemble(tensors: Mapping[str, Tensor], values: dict[str, Any], path: Path) -> Assembled:
    """Build the model that the tensors hold; ``path`` is named in errors."""
    config = read_config(values, path)
    found = _without_copies({normalised(name): tensor for name, tensor in tensors.items()})
    heads = _heads(found, read_task_head(values))
    labels = _count_labels(found, path)
    _check_depth(config, found, path)
    with torch.device("meta"):  # sizes are believed only once the tensors have confirmed them
        model = Bert(config, heads, labels=labels, pooler="bert.pooler.dense.weight" in found)
    state = {name: _take(name, parameter, found, path) for name, parameter in model.state_dict().items()}
    model.load_state_dict(state, assign=True)
    _check_tied(tensors, found, path)
    task = read_labels(values, labels, path) if {"sequence", "token"} & set(heads) else None
    return Assembled(model.eval(), task, _notes(model, found))


def _count_labels(found: Mapping[str, Tensor], path: Path) -> int:
    bias = found.get("classifier.bias")
    if bias is None:
        return 2
    if bias.ndim != 1 or len(bias) == 0:
        raise CheckpointError(f"{path}: classifier.bias has shape {tuple(bias.shape)}; one value a label was expected")
    return len(bias)


def _check_depth(config: BertConfig, found: Mapping[str, Tensor], path: Path) -> None:
    """Refuse more layers than there are before they are built: even without memory, millions would take hours."""
    last = f"bert.encoder.layer.{config.layers - 1}."
    if not any(name.startswith(last) for name in found):
        raise CheckpointError(
            f"{path}: config.json asks for {config.layers} layers, but no tensor of the last one is there; "
            "use the config.json that this model was saved with"
        )


def _heads(found: Mapping[str, Tensor], task_head: HeadName) -> list[HeadName]:
    heads: list[HeadName] = []
    if "cls.predictions.bias" in found and "cls.predictions.transform.dense.weight" in found:
        heads.append("mlm")
    # The pooler feeds these; without it a head has nothing to read, and is reported as left over.
    pooled = "bert.pooler.dense.weight" in found
    if "cls.seq_relationship.weight" in found and pooled:
        heads.append("nsp")
    if "qa_outputs.weight" in found:
        heads.append("span")
    elif "classifier.weight" in found and (pooled or task_head == "token"):
        heads.append("sequence" if task_head == "span" else task_head)
    return heads


def _take(name: str, expected: Tensor, found: Mapping[str, Tensor], path: Path) -> Tensor:
    """One parameter of ours from the tensors on disk, in fp32, with every shape checked."""
    names = hugging_face_names(name)
    shape = (expected.shape[0] // len(names), *expected.shape[1:])
    for part in names:
        if part not in found:
            raise CheckpointError(f"{path}: lacks the tensor {part}; the folder is incomplete: fetch or save it again")
        if tuple(found[part].shape) != shape:
            raise CheckpointError(
                f"{path}: {part} has shape {tuple(found[part].shape)}, but config.json asks for {shape}; "
                "use the config.json that this model was saved with"
            )
        if not found[part].is_floating_point():
            raise CheckpointError(f"{path}: {part} holds {found[part].dtype}; floating-point weights were expected")
    return joined(found[part].to(torch.float32) for part in names).contiguous()


def _without_copies(found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Let a copy stand in for an original that is absent; drop it otherwise."""
    for copy, original in _COPIES.items():
        if copy in found and original not in found:
            found[original] = found[copy]
    return {name: tensor for name, tensor in found.items() if name not in _COPIES and name not in _DERIVED}


def _check_tied(tensors: Mapping[str, Tensor], found: Mapping[str, Tensor], path: Path) -> None:
    for copy, original in _COPIES.items():
        if copy in tensors and original in found and not torch.equal(tensors[copy], found[original]):
            raise CheckpointError(
                f"{path}: {copy} differs from {original}; a model with an output matrix of its own cannot be read"
            )


def _notes(model: Bert, found: Mapping[str, Tensor]) -> tuple[str, ...]:
    notes = []
    if model.pooler is None:
        notes.append("no pooler in the weights: [CLS] is used as it is")
    used = {part for name in model.state_dict() for part in hugging_face_names(name)}
    left_over = sorted(set(found) - used)
    if left_over:
        shown = ", ".join(left_over[:5]) + (", ..." if len(left_over) > 5 else "")
        notes.append(f"{len(left_over)} tensors were left over: {shown}")
    return tuple(notes)


def check_vocabulary(pieces: int, config: BertConfig, path: Path) -> None:
    """Refuse a vocabulary of another model; rows that pad the table to a round size are common and harmless."""
    padding = config.vocab_size - pieces
    if padding == 0 or (0 < padding < 128 and config.vocab_size % 8 == 0):
        return
    raise CheckpointError(
        f"{path}: {pieces} pieces in the vocabulary, but the model embeds {config.vocab_size}; "
        "use the vocabulary that this model was trained with"
    )
