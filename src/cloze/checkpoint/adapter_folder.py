"""Adapter folders: the few percent of a model that were trained for a task, and a reference to the base model.

    adapter.json          adapter kind and sizes, base model and SHA-256 of its weights, task
    adapter.safetensors   trained tensors, under their names in ``Bert``
    README.md             model card

The base is searched first relative to the adapter's folder, then at the path given in training, then among previously
downloaded models; loading an adapter never starts a download. A base with other weights is rejected, because its
predictions would look plausible but be wrong. ``AttachedAdapters`` switches between adapters on one loaded base.
"""

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from cloze.checkpoint.config_file import read_task_labels, record_abstention, write_config
from cloze.checkpoint.folder import (
    ADAPTER,
    CONFIG,
    RUN_MODEL,
    AdapterInfo,
    ModelFolder,
    file_digest,
    find_model,
    load_folder,
    model_files,
    read_card,
    weights_fingerprint,
)
from cloze.checkpoint.weights import check_finite, read_safetensors, write_safetensors
from cloze.errors import CheckpointError, RequestError, did_you_mean
from cloze.files import read_json, replace_json, replaced_folder, write_json
from cloze.model import HEAD_NAMES, Backbone
from cloze.model.adapters import Attachment, AttachmentKind, Parts, install, new_parts, part_tensors, parts_of
from cloze.model.heads import PRETRAINING_HEADS
from cloze.models import cached_copy, find_source, shipped_folder
from cloze.options import FeatureHead, Features, HeadPooling
from cloze.tasks.kind import TaskLabels

TENSORS = "adapter.safetensors"
_FORMAT = "cloze adapter 1"
# Upper bound for sizes in adapter.json, which are used before the tensors confirm them.
_LARGEST = 2**16


@dataclass(frozen=True)
class AdapterFile:
    """Contents of ``adapter.json``."""

    folder: Path
    attachment: Attachment
    base: str
    relative_base: str | None  # path of the base relative to this folder
    sha256: str
    task: TaskLabels
    max_length: int
    settings: Mapping[str, Any]


def find_adapter(path: Path) -> Path | None:
    """Return the adapter folder at a path or in the run at that path; None if there is none."""
    return next((folder for folder in (path, path / RUN_MODEL) if (folder / ADAPTER).is_file()), None)


def load_any(path: Path, base: str | Path | None = None) -> ModelFolder:
    """Load a model folder, or an adapter with its base (the recorded base unless ``base`` is given)."""
    folder = find_adapter(path)
    if folder is None:
        if base is not None:
            raise CheckpointError(f"{path}: not an adapter (no {ADAPTER}), so it has no base; omit base")
        return load_folder(path)
    described = read_adapter(folder)
    place = find_base(described, base)
    loaded = load_folder(place)
    parts = load_parts(described, loaded.model)
    install(loaded.model, parts)
    loaded.model.labels = described.attachment.labels
    return adapted_folder(described, loaded, place)


def adapted_folder(described: AdapterFile, base: ModelFolder, place: Path) -> ModelFolder:
    """Return the model folder of a base with the adapter installed."""
    adapter = AdapterInfo(described.attachment, described.base, place, described.sha256, described.settings)
    return ModelFolder(
        model=base.model,
        tokenizer=base.tokenizer.with_max_length(min(described.max_length, base.tokenizer.max_length)),
        task=described.task,
        # Without projections: whitening and learned projections were fitted to the states of the base.
        embedding=replace(base.embedding, projections=()),
        card=read_card(described.folder),
        adapter=adapter,
    )


def save_adapter(contents: ModelFolder, destination: Path) -> None:
    """Write the trained tensors of an adapter without its base, atomically."""
    adapter, task = contents.adapter, contents.task
    assert adapter is not None, "only an adapter can be saved without its base"
    assert task is not None, "an adapter is trained for a task"
    attachment, bert = adapter.attachment, contents.model
    about = {
        "format": _FORMAT,
        "kind": attachment.kind,
        "head": attachment.head,
        "labels": attachment.labels,
        "size": attachment.size,
        "pooler": attachment.pooler,
        **({"alpha": attachment.alpha} if attachment.kind == "lora" else {}),
        **_features(attachment),
        **({"pooling": attachment.pooling} if attachment.pooling != "cls" else {}),
        "base": {
            "name": adapter.base,
            "path": _relative_path(destination, adapter),
            "sha256": adapter.sha256,
        },
        "max_length": contents.tokenizer.max_length,
        "task": _task_values(bert, attachment, task),
        "settings": dict(adapter.settings),
    }
    with replaced_folder(destination) as folder:
        write_json(folder / ADAPTER, about)
        write_safetensors(folder / TENSORS, part_tensors(parts_of(bert, attachment)))
        (folder / "README.md").write_text(_card(contents, adapter), encoding="utf-8")


def store_abstention(place: Path, task: TaskLabels) -> None:
    """Write the abstention threshold of a task to the model folder or adapter at a path; nothing else changes."""
    adapter = find_adapter(place)
    path = place / CONFIG if adapter is None else adapter / ADAPTER
    values = read_json(path)
    record_abstention(values if adapter is None else values["task"], task)
    replace_json(path, values)


def _features(attachment: Attachment) -> dict[str, Any]:
    if attachment.kind != "features":
        return {}
    return {"reads": attachment.reads, "feature_head": attachment.feature_head}


def _task_values(bert: Backbone, attachment: Attachment, task: TaskLabels) -> dict[str, Any]:
    """Return the entries of ``config.json`` that describe the task."""
    heads = (attachment.head,)
    without = write_config(bert, heads, None)
    return {name: value for name, value in write_config(bert, heads, task).items() if name not in without}


def _relative_path(destination: Path, adapter: AdapterInfo) -> str | None:
    """Return the path of the base relative to the adapter's folder; None for the downloaded copy of a hub model."""
    base = adapter.place.resolve()
    if base == cached_copy(adapter.base):
        return None
    return Path(os.path.relpath(base, destination.resolve())).as_posix()


def _card(contents: ModelFolder, adapter: AdapterInfo) -> str:
    trained = sum(tensor.numel() for tensor in part_tensors(parts_of(contents.model, adapter.attachment)).values())
    return (
        f"{contents.card or '# An adapter'}\n"
        f"This is an adapter ({adapter.attachment.kind}, size {adapter.attachment.size}) with {trained:,} parameters. "
        f"It requires its base model, {adapter.base} (SHA-256 of its weights: {adapter.sha256}).\n\n"
        'Load both with `cloze.load("this folder")`; if the base has moved, pass its path as `base="..."`.\n'
    )


def read_adapter(folder: Path) -> AdapterFile:
    """Read and validate ``adapter.json``."""
    path = folder / ADAPTER
    values = read_json(path)
    if values.get("format") != _FORMAT:
        raise CheckpointError(
            f"{path}: format is {str(values.get('format'))[:50]!r}; expected {_FORMAT!r}: is it from a newer "
            "cloze, or from another program?"
        )
    attachment = _read_attachment(values, path)
    base, task = _section(values, "base", path), _section(values, "task", path)
    relative_base = base.get("path")
    return AdapterFile(
        folder,
        attachment,
        base=_text(base.get("name"), "base.name", path),
        relative_base=None if relative_base is None else _text(relative_base, "base.path", path),
        sha256=_text(base.get("sha256"), "base.sha256", path),
        task=read_task_labels(task, attachment.head, attachment.labels, path),
        max_length=_whole(values.get("max_length"), "max_length", path),
        settings=_section(values, "settings", path),
    )


def _read_attachment(values: Mapping[str, Any], path: Path) -> Attachment:
    heads = [head for head in HEAD_NAMES if head not in PRETRAINING_HEADS]
    alpha = values.get("alpha", Attachment.alpha)
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha) or alpha <= 0:
        raise _wrong(path, "alpha", alpha, "a positive number")
    if not isinstance(values.get("pooler"), bool):
        raise _wrong(path, "pooler", values.get("pooler"), "true or false")
    return Attachment(
        kind=_one_of(values.get("kind"), get_args(AttachmentKind), "kind", path),
        head=_one_of(values.get("head"), heads, "head", path),
        labels=_whole(values.get("labels"), "labels", path),
        size=_whole(values.get("size"), "size", path),
        pooler=values["pooler"],
        alpha=float(alpha),
        reads=_one_of(values.get("reads", "last"), get_args(Features), "reads", path),
        feature_head=_one_of(values.get("feature_head", "linear"), get_args(FeatureHead), "feature_head", path),
        pooling=_one_of(values.get("pooling", "cls"), get_args(HeadPooling), "pooling", path),
    )


def _wrong(path: Path, name: str, value: Any, expected: str) -> CheckpointError:
    return CheckpointError(f"{path}: {name} is {str(value)[:50]!r}; expected {expected}; fetch the folder again")


def _one_of(value: Any, known: Any, name: str, path: Path) -> Any:
    if value not in known:
        raise _wrong(path, name, value, f"one of {', '.join(known)}")
    return value


def _whole(value: Any, name: str, path: Path) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LARGEST:
        raise _wrong(path, name, value, f"a whole number from 1 to {_LARGEST}")
    return value


def _text(value: Any, name: str, path: Path) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise _wrong(path, name, value, "a string")
    return value


def _section(values: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    section = values.get(name)
    if not isinstance(section, dict):
        raise _wrong(path, name, section, "an object")
    return section


def load_parts(described: AdapterFile, bert: Backbone) -> Parts:
    """Load the modules of an adapter for this base without changing the base."""
    path = described.folder / TENSORS
    with torch.device("meta"):  # allocate nothing before the tensors confirm the sizes
        parts = new_parts(bert, described.attachment)
    tensors = read_safetensors(path)
    expected = part_tensors(parts)
    for name in sorted(tensors.keys() ^ expected.keys()):
        verb = "has" if name in tensors else "lacks"
        raise CheckpointError(f"{path}: {verb} the tensor {name}, contrary to {ADAPTER}; fetch the folder again")
    for name, tensor in tensors.items():
        _check_tensor(name, tensor, expected[name], path)
    for place, part in parts.items():
        if part is not None:
            state = {name: tensors[f"{place}.{name}"].to(torch.float32) for name in part.state_dict()}
            part.load_state_dict(state, assign=True)
            part.eval().requires_grad_(False)
    return parts


def _check_tensor(name: str, tensor: Tensor, expected: Tensor, path: Path) -> None:
    if tensor.shape != expected.shape:
        raise CheckpointError(
            f"{path}: {name} has shape {tuple(tensor.shape)}, but {ADAPTER} and the base require "
            f"{tuple(expected.shape)}; fetch the folder again, or use the base that it was trained on"
        )
    if not tensor.is_floating_point():
        raise CheckpointError(f"{path}: {name} holds {tensor.dtype}; expected floating-point weights")
    check_finite(name, tensor, path)


def find_base(described: AdapterFile, base: str | Path | None = None) -> Path:
    """Return the folder of the base with the recorded weights: ``base``, or the first match among the candidates."""
    if base is not None:
        place = find_source(base)
        check_base(described, place)
        return place
    found = [place for place in _candidates(described) if find_model(place) is not None]
    matching = (place for place in found if weights_fingerprint(place) == described.sha256)
    place_or_none = next(matching, None)
    if place_or_none is None:
        why = "has other weights now" if found else "was not found"
        name = "..." if described.relative_base is not None else described.base
        raise CheckpointError(
            f"{described.folder}: its base, {described.base}, {why}; give the base whose weights have the SHA-256 "
            f'{described.sha256}: cloze.load("{described.folder}", base="{name}")'
        )
    return place_or_none


def _candidates(described: AdapterFile) -> Iterator[Path]:
    """Yield possible folders of the base: relative to the adapter, even if it was moved up, and as given in training.

    Nothing is downloaded: only a name that the user passes explicitly causes a request.
    """
    if described.relative_base is not None:
        relative = Path(described.relative_base)
        for start in range(sum(part == ".." for part in relative.parts) + 1):
            yield described.folder.joinpath(*relative.parts[start:])
    yield shipped_folder(described.base) or Path(described.base)
    copy = cached_copy(described.base)
    if copy is not None:
        yield copy


def check_base(described: AdapterFile, place: Path) -> None:
    """Raise a ``CheckpointError`` unless the base has the weights that the adapter was trained on."""
    if find_model(place) is None:
        load_folder(place)  # raises an error that explains what is wrong
    sha256 = weights_fingerprint(place)
    if sha256 != described.sha256:
        raise CheckpointError(
            f"{described.folder}: trained on {described.base}, whose weights have the SHA-256 {described.sha256}, but "
            f"the weights of {place} have {sha256}; give the base that it was trained on"
        )


def any_fingerprint(place: Path) -> str:
    """Return the SHA-256 of the weights that ``load_any`` loads. The weights of an adapter imply those of its base."""
    folder = find_adapter(place)
    return weights_fingerprint(place) if folder is None else file_digest(folder / TENSORS)


def base_files(source: str | Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a model that affects its outputs; for an adapter, also those of its base."""
    place = find_source(source)
    folder = find_adapter(place)
    if folder is None:
        return model_files(place)
    base = model_files(find_base(read_adapter(folder)))
    own = {path.name: file_digest(path) for path in (folder / ADAPTER, folder / TENSORS)}
    return own | {f"base/{name}": digest for name, digest in base.items()}


class AttachedAdapters:
    """Adapters that share one loaded base. One adapter is installed at a time.

    Nothing is copied: the tensors of the base exist once, and switching between tasks only exchanges modules.
    """

    def __init__(self, base: ModelFolder) -> None:
        self._base, self._labels = base, base.model.labels
        self._attached: dict[str, tuple[ModelFolder, Parts]] = {}
        self._replaced: Parts = {}  # modules of the base that the installed adapter replaces

    def attach(self, name: str, path: Path, device: torch.device) -> None:
        """Load an adapter for this base without installing it."""
        if self._base.adapter is not None or self._base.place is None:
            raise RequestError("adapters are attached to a base that was loaded from its folder; load that first")
        if name in self._attached:
            raise RequestError(f"an adapter {name!r} is already attached; choose another name")
        folder = find_adapter(path)
        if folder is None:
            raise CheckpointError(f"{path}: not an adapter; use a folder written by 'cloze finetune --adapter'")
        described = read_adapter(folder)
        check_base(described, self._base.place)
        parts = load_parts(described, self._base.model)
        for part in parts.values():
            if part is not None:
                part.to(device)
        self._attached[name] = adapted_folder(described, self._base, self._base.place), parts

    def use(self, name: str | None) -> ModelFolder:
        """Install an adapter, or restore the base if ``name`` is None; return the model folder that is now active."""
        if name is not None and name not in self._attached:
            hint = did_you_mean(name, self._attached) if self._attached else "; attach it first"
            raise RequestError(f"no adapter {name!r} is attached{hint}")
        self._restore()
        if name is None:
            return self._base
        folder, parts = self._attached[name]
        self._replaced = install(self._base.model, parts)
        assert folder.adapter is not None
        self._base.model.labels = folder.adapter.attachment.labels
        return folder

    def _restore(self) -> None:
        install(self._base.model, self._replaced)
        self._replaced = {}
        self._base.model.labels = self._labels
