"""Many adapters on one loaded base: what each brings is put into its place when it is used, and taken out after.

Nothing is copied: the base's tensors are there once, and changing from one task to another moves pointers.
"""

from pathlib import Path

import torch

from cloze.checkpoint import ModelFolder
from cloze.checkpoint.adapter_folder import check_base, find_adapter, load_parts, read_adapter, tuned_folder
from cloze.errors import CheckpointError, RequestError, did_you_mean
from cloze.model.adapters import Parts, install


class Adapters:
    """The adapters of a base by name, and which of them is in its place."""

    def __init__(self, base: ModelFolder) -> None:
        self._base, self._labels = base, base.model.labels
        self._known: dict[str, tuple[ModelFolder, Parts]] = {}
        self._removed: Parts = {}  # what of the base stands aside for the adapter in use

    def attach(self, name: str, path: Path, device: torch.device) -> None:
        """Load an adapter of this base; it waits until it is used."""
        if self._base.adapter is not None or self._base.place is None:
            raise RequestError("adapters are attached to a base that was loaded from its folder; load that first")
        if name in self._known:
            raise RequestError(f"an adapter {name!r} is attached already; choose another name")
        folder = find_adapter(path)
        if folder is None:
            raise CheckpointError(f"{path}: no adapter; give a folder that 'cloze finetune --adapter' has written")
        described = read_adapter(folder)
        check_base(described, self._base.place)
        parts = load_parts(described, self._base.model)
        for part in parts.values():
            if part is not None:
                part.to(device)
        self._known[name] = tuned_folder(described, self._base, self._base.place), parts

    def use(self, name: str | None) -> ModelFolder:
        """Put an adapter into its place, or with None the base's own parts, and return what the model is now."""
        if name is not None and name not in self._known:
            known = did_you_mean(name, self._known) if self._known else "; attach it first"
            raise RequestError(f"no adapter {name!r} is attached{known}")
        self._restore()
        if name is None:
            return self._base
        folder, parts = self._known[name]
        self._removed = install(self._base.model, parts)
        assert folder.adapter is not None
        self._base.model.labels = folder.adapter.attachment.labels
        return folder

    def _restore(self) -> None:
        install(self._base.model, self._removed)
        self._removed = {}
        self._base.model.labels = self._labels
