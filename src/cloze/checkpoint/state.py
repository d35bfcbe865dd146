"""The state of a training, so that the same command goes on where it stopped, to the bit.

    checkpoints/step-00000500/   model.safetensors  optimizer.safetensors  state.json  manifest.json

A checkpoint is written under another name, gets a manifest of sizes and SHA-256, is flushed to the disk and renamed.
Resuming takes the newest one whose manifest verifies. The older one is deleted only once the newer one is there.
"""

import hashlib
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from cloze.checkpoint.weights import read_safetensors, write_safetensors
from cloze.errors import CheckpointError
from cloze.files import locked, put_aside, read_json, replaced_folder, write_json
from cloze.progress import Progress, Silent

_MODEL, _OPTIMIZER, _STATE, _MANIFEST = (
    "model.safetensors",
    "optimizer.safetensors",
    "state.json",
    "manifest.json",
)


@dataclass(frozen=True)
class TrainingState:
    """Everything that the next step depends on, apart from the data."""

    step: int
    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    figures: Mapping[str, Any] = field(default_factory=dict)  # what the loop remembers: best score, losses so far


class StateStore:
    """The checkpoints of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, state: TrainingState) -> None:
        """Commit a checkpoint, then drop the others."""
        committed = self.folder / f"step-{state.step:08d}"
        with replaced_folder(committed) as folder:
            write_safetensors(folder / _MODEL, state.model)
            write_safetensors(folder / _OPTIMIZER, state.optimizer)
            write_json(folder / _STATE, {"step": state.step, "figures": dict(state.figures)})
            names = (_MODEL, _OPTIMIZER, _STATE)
            write_json(folder / _MANIFEST, {name: _fingerprint(folder / name) for name in names})
        # Not only the older ones: after falling back from a damaged checkpoint, that one has the higher number. And
        # what killed processes have left half done.
        for other in [*self._folders(), *self.folder.glob("step-*.tmp")]:
            if other != committed:
                shutil.rmtree(other, ignore_errors=True)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from training here."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"{self.folder}: cannot be written ({error.strerror}); free some space") from error
        run = self.folder.parent
        with locked(self.folder, CheckpointError(f"{run}: another process is training this; wait for it to end")):
            yield

    def newest(self, progress: Progress | None = None) -> TrainingState | None:
        """The newest checkpoint that is whole, or None; damaged ones are named and passed over."""
        folders = self._folders()
        for folder in folders:
            try:
                return _read(folder)
            except CheckpointError as error:
                last = folder == folders[-1]
                then = "there is none before it: starting over" if last else "falling back to the checkpoint before it"
                (progress or Silent()).say(f"{error}; {then}")
        return None

    def clear(self) -> None:
        """Forget every checkpoint."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _folders(self) -> list[Path]:
        """Committed checkpoints, newest first; the suffixes of unfinished ones do not match.

        A step that is saved again has its old folder put aside for a moment. If the process was ended just then, that
        one counts.
        """
        found: dict[int, Path] = {}
        aside = self.folder.glob(put_aside(Path("step-*")).name)
        for path in [*aside, *self.folder.glob("step-*")]:  # the later one counts
            number = re.fullmatch(r"\.?step-(\d+)(?:\.replaced)?", path.name)
            if number:
                found[int(number[1])] = path
        return [found[number] for number in sorted(found, reverse=True)]


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"size": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _read(folder: Path) -> TrainingState:
    manifest = read_json(folder / _MANIFEST)
    for name in (_MODEL, _OPTIMIZER, _STATE):
        path = folder / name
        if not path.is_file() or manifest.get(name) != _fingerprint(path):
            raise CheckpointError(f"{path}: does not match its manifest")
    values = read_json(folder / _STATE)
    return TrainingState(
        step=int(values["step"]),
        model=read_safetensors(folder / _MODEL),
        optimizer=read_safetensors(folder / _OPTIMIZER),
        figures=values["figures"],
    )
