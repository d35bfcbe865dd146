"""The state of a training, so that the same command goes on where it stopped, to the bit.

    checkpoints/step-00000500/   model.safetensors  optimizer.safetensors  state.json  manifest.json

A checkpoint is written under another name, gets a manifest of sizes and SHA-256, is flushed to the disk and renamed.
The newest two are kept, and an older one is deleted only once a newer one is there: disks spoil what was written well.
Resuming takes the newest one whose manifest verifies; where there are some and none does, it is refused.
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
        self._damaged: set[Path] = set()  # passed over in reading

    def save(self, state: TrainingState) -> None:
        """Commit a checkpoint, then drop the others, but for the one before it."""
        committed = self.folder / f"step-{state.step:08d}"
        with replaced_folder(committed) as folder:
            write_safetensors(folder / _MODEL, state.model)
            write_safetensors(folder / _OPTIMIZER, state.optimizer)
            write_json(folder / _STATE, {"step": state.step, "figures": dict(state.figures)})
            names = (_MODEL, _OPTIMIZER, _STATE)
            write_json(folder / _MANIFEST, {name: _fingerprint(folder / name) for name in names})
        self._damaged.discard(committed)
        self._drop_others(committed, state.step)

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
        """The newest checkpoint that is whole, None if there is none at all; damaged ones are named and passed over."""
        damages: list[str] = []
        for folder in self._folders().values():
            try:
                state = _read(folder)
            except CheckpointError as error:
                damages.append(str(error))
                self._damaged.add(folder)
            else:
                for damage in damages:
                    (progress or Silent()).say(f"{damage}; falling back to the checkpoint before it")
                return state
        if damages:
            raise CheckpointError(
                f"{'; '.join(damages)}; none of the run's checkpoints is whole: put a copy of one back, "
                "or start over with --fresh"
            )
        return None

    def clear(self) -> None:
        """Forget every checkpoint."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _drop_others(self, committed: Path, step: int) -> None:
        """Keep a checkpoint and the one before it."""
        before = [path for number, path in self._folders().items() if number < step and path not in self._damaged]
        kept = {committed, *before[:1]}
        # Not only older ones: after falling back from a damaged checkpoint, that one has the higher number. And what
        # killed processes have left half done.
        for other in [*self.folder.glob("step-*"), *self._put_aside()]:
            if other not in kept:
                shutil.rmtree(other, ignore_errors=True)

    def _folders(self) -> dict[int, Path]:
        """Committed checkpoints by their steps, newest first; the suffixes of unfinished ones do not match.

        A step that is saved again has its old folder put aside for a moment. If the process was ended just then, that
        one counts.
        """
        found: dict[int, Path] = {}
        for path in [*self._put_aside(), *self.folder.glob("step-*")]:  # the later one counts
            number = re.fullmatch(r"\.?step-(\d+)(?:\.replaced)?", path.name)
            if number:
                found[int(number[1])] = path
        return dict(sorted(found.items(), reverse=True))

    def _put_aside(self) -> Iterator[Path]:
        return self.folder.glob(put_aside(Path("step-*")).name)


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
