"""Build a model from the tensors of a checkpoint and its configuration, with notes on missing and unused tensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cloze.checkpoint.config_file import (
    read_backbone,
    read_config,
    read_layout,
    read_mean_head,
    read_sentence_task,
    read_task_head,
    read_task_labels,
)
from cloze.checkpoint.names import COPIES, Layout, hugging_face_names, joined, layer_prefix, normalised
from cloze.checkpoint.weights import check_finite
from cloze.errors import CheckpointError
from cloze.model import HEAD_NAMES, Backbone, BertConfig, HeadName
from cloze.tasks.kind import TaskLabels
from cloze.tasks.registry import labelled_kinds

_DERIVED = {f"{base}.embeddings.position_ids" for base in ("bert", "albert", "electra", "deberta")}


@dataclass(frozen=True)
class Assembled:
    """A model, the meaning of its task head's outputs, and warnings for the user."""

    model: Backbone
    task: TaskLabels | None
    notes: tuple[str, ...]


def assemble(
    tensors: Mapping[str, Tensor], values: dict[str, Any], path: Path, *, pools_tokens: bool = False
) -> Assembled:
    """Build the model from its tensors; ``path`` is used in error messages.

    ``pools_tokens`` says that the folder computes sentence vectors from all tokens, without the state of [CLS].
    """
    config, layout = read_config(values, path), read_layout(values)
    found = _without_copies({normalised(name, layout): tensor for name, tensor in tensors.items()}, layout)
    mean_head = read_mean_head(values, path)
    task_head, pooled = mean_head or read_task_head(values), _has(found, "pooler.dense.weight", layout)
    heads = _heads(found, layout, task_head, read_sentence_task(values, path), reads_mean=mean_head is not None)
    labels = _count_labels(found, layout, path)
    _check_depth(config, layout, found, path)
    with torch.device("meta"):  # allocate nothing before the tensors confirm the sizes
        model = read_backbone(values, path)(config, heads, labels=labels, pooler=pooled and mean_head is None)
    state = {name: _take(name, layout, parameter, found, path) for name, parameter in model.state_dict().items()}
    model.load_state_dict(state, assign=True)
    _check_tied(tensors, layout, found, path)
    task_heads = [head for head in heads if head in {kind.head for kind in labelled_kinds()}]
    task = read_task_labels(values, task_heads[0], labels, path) if task_heads else None
    return Assembled(model.eval(), task, _notes(model, layout, found, pools_tokens))


def _count_labels(found: Mapping[str, Tensor], layout: Layout, path: Path) -> int:
    names = [name for head in ("sequence", "token") for name in hugging_face_names(f"heads.{head}.output.bias", layout)]
    bias = next((found[name] for name in names if name in found), None)
    if bias is None:
        return 2
    if bias.ndim != 1 or len(bias) == 0:
        raise CheckpointError(f"{path}: classifier.bias has shape {tuple(bias.shape)}; expected one value per label")
    return len(bias)


def _check_depth(config: BertConfig, layout: Layout, found: Mapping[str, Tensor], path: Path) -> None:
    """Raise an error if the last layer has no tensors.

    This is checked before any layer is built, because building a bogus number of layers could take hours.
    """
    if layout == "native":  # layer names depend on the architecture, but each layer has at least one tensor
        if config.distinct_layers > len(found):
            raise CheckpointError(
                f"{path}: config.json requires {config.layers} layers, but there are only {len(found)} tensors"
            )
        return
    last = layer_prefix(config.distinct_layers - 1, layout)
    if not any(name.startswith(last) for name in found):
        raise CheckpointError(
            f"{path}: config.json requires {config.layers} layers, but the last one has no tensors; "
            "use the config.json that this model was saved with"
        )


def _has(found: Mapping[str, Tensor], name: str, layout: Layout) -> bool:
    return hugging_face_names(name, layout)[0] in found


def _heads(
    found: Mapping[str, Tensor], layout: Layout, task_head: HeadName, sentence_head: HeadName, *, reads_mean: bool
) -> list[HeadName]:
    if layout == "native":
        return [name for name in HEAD_NAMES if any(tensor.startswith(f"heads.{name}.") for tensor in found)]
    heads: list[HeadName] = []
    words: HeadName = "lm" if layout == "gpt" else "mlm"
    transforms = layout == "xlnet" or _has(found, f"heads.{words}.dense.weight", layout)  # XLNet's head is only a bias
    if _has(found, f"heads.{words}.bias", layout) and transforms:
        heads.append(words)
    if _has(found, "heads.rtd.output.weight", layout):
        heads.append("rtd")
    # These heads require a pooler; without one, their tensors are reported as unused.
    pooled = _has(found, "pooler.dense.weight", layout) and not reads_mean
    if _has(found, f"heads.{sentence_head}.output.weight", layout) and pooled:
        heads.append(sentence_head)
    if _has(found, "heads.relation.output.weight", layout) and pooled:
        heads.append("relation")
    if _has(found, "heads.sbo.bias", layout):
        heads.append("sbo")
    if "qa_outputs.weight" in found:
        heads.append("span")
    elif layout == "gpt" and (pooled or reads_mean):
        names: tuple[HeadName, ...] = ("sequence", "choice")
        heads += [name for name in names if _has(found, f"heads.{name}.output.weight", layout)]
    elif _has(found, f"heads.{task_head}.output.weight", layout) and (pooled or reads_mean or task_head == "token"):
        heads.append("sequence" if task_head == "span" else task_head)
    return heads


def _take(name: str, layout: Layout, expected: Tensor, found: Mapping[str, Tensor], path: Path) -> Tensor:
    """Return one parameter in float32 from the tensors on disk, after checking its shape."""
    names = hugging_face_names(name, layout)
    shape = (expected.shape[0] // len(names), *expected.shape[1:])
    for part in names:
        if part not in found:
            raise CheckpointError(f"{path}: lacks the tensor {part}; the folder is incomplete: fetch or save it again")
        if tuple(found[part].shape) != shape:
            raise CheckpointError(
                f"{path}: {part} has shape {tuple(found[part].shape)}, but config.json requires {shape}; "
                "use the config.json that this model was saved with"
            )
        if not found[part].is_floating_point():
            raise CheckpointError(f"{path}: {part} holds {found[part].dtype}; expected floating-point weights")
        check_finite(part, found[part], path)
    return joined(found[part].to(torch.float32) for part in names).contiguous()


def _without_copies(found: dict[str, Tensor], layout: Layout) -> dict[str, Tensor]:
    """Remove copies of tied tensors; if an original is missing, its copy replaces it."""
    copies = COPIES[layout]
    for copy, original in copies.items():
        if copy in found and original not in found:
            found[original] = found[copy]
    return {name: tensor for name, tensor in found.items() if name not in copies and name not in _DERIVED}


def _check_tied(tensors: Mapping[str, Tensor], layout: Layout, found: Mapping[str, Tensor], path: Path) -> None:
    for copy, original in COPIES[layout].items():
        if copy in tensors and original in found and not torch.equal(tensors[copy], found[original]):
            raise CheckpointError(
                f"{path}: {copy} differs from {original}; models with a separate output matrix are not supported"
            )


def _notes(model: Backbone, layout: Layout, found: Mapping[str, Tensor], pools_tokens: bool) -> tuple[str, ...]:
    notes = []
    reads_tokens = bool({"token", "span"} & set(model.head_names)) or model.pooling != "cls"
    reads_tokens = reads_tokens or (pools_tokens and not model.head_names)
    if model.pooler is None and not reads_tokens and model.capabilities.summary == "first":
        notes.append("no pooler in the weights: the state of [CLS] is used without one")
    used = {part for name in model.state_dict() for part in hugging_face_names(name, layout)}
    left_over = sorted(set(found) - used)
    if left_over:
        shown = ", ".join(left_over[:5]) + (", ..." if len(left_over) > 5 else "")
        notes.append(f"{len(left_over)} tensors were not used: {shown}")
    return tuple(notes)


def check_segments(segments: int, config: BertConfig, path: Path) -> None:
    """Raise an error if the tokenizer uses more segments than the model has.

    Two are always allowed, because a model with one segment still works for single texts.
    """
    if segments > max(2, config.segments):
        raise CheckpointError(
            f"{path}: cloze_segments in tokenizer_config.json is {segments}, but the model has {config.segments} "
            "segments; use the files that this model was saved with"
        )


def check_vocabulary(pieces: int, config: BertConfig, path: Path) -> None:
    """Raise an error if the vocabulary does not fit; embedding rows added as padding to a round size are allowed."""
    padding = config.vocab_size - pieces
    if padding == 0 or (0 < padding < 128 and config.vocab_size % 8 == 0):
        return
    raise CheckpointError(
        f"{path}: {pieces} pieces in the vocabulary, but the model embeds {config.vocab_size}; "
        "use the vocabulary that this model was trained with"
    )
