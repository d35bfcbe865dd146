"""Training checkpoints: re-running the same command resumes a run with bit-identical results.

    checkpoints/step-00000500/   model.safetensors  optimizer.safetensors  state.json  manifest.json

A checkpoint is written to a temporary folder with a manifest of sizes and SHA-256 digests, flushed to disk and renamed.
The newest two checkpoints are kept in case one is damaged on disk; an old checkpoint is deleted only after a newer one
has been committed. Resuming uses the newest checkpoint that matches its manifest. It is an error if there are
checkpoints but none matches.
"""

import hashlib
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from cloze.checkpoint.weights import read_safetensors, write_safetensors
from cloze.errors import CheckpointError, format_option
from cloze.files import read_json, replaced_folder, write_json
from cloze.locks import aside_target, delete, is_ours, locked
from cloze.progress import Progress, Silent

_MODEL, _OPTIMIZER, _STATE, _MANIFEST = (
    "model.safetensors",
    "optimizer.safetensors",
    "state.json",
    "manifest.json",
)
_STEP = re.compile(r"step-(\d+)")
# The figure that records whether a checkpoint is from the stable part of a wsd schedule.
STABLE = "stable"
# Figures that had other names in earlier versions.
_RENAMED = {"meter": "tracker", "owed": "evaluation_due"}


@dataclass(frozen=True)
class TrainingState:
    """Everything that the next training step depends on, except the data."""

    step: int
    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    figures: Mapping[str, Any] = field(default_factory=dict)  # counters of the training loop


class StateStore:
    """The checkpoints of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._damaged: set[Path] = set()  # skipped by ``newest``

    def save(self, state: TrainingState) -> None:
        """Write a checkpoint, then delete all others except the previous one and the newest stable one."""
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
        """Hold the lock of the run, so that no other process trains in the same folder."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"{self.folder}: cannot be written ({error.strerror}); free some space") from error
        run = self.folder.parent
        with locked(self.folder, CheckpointError(f"{run}: another process is training this run; wait for it to end")):
            yield

    def newest(self, progress: Progress | None = None) -> TrainingState | None:
        """Return the newest intact checkpoint, or None if there are none; damaged ones are reported and skipped."""
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
                f"{'; '.join(damages)}; none of the run's checkpoints is intact: restore a copy of one, "
                f"or start over with {format_option('fresh', True)}"
            )
        return None

    def clear(self) -> None:
        """Delete all checkpoints but the newest stable one, from which another run can continue."""
        kept = self._newest_stable()
        if kept is None:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        for other in self.folder.iterdir():
            if other != kept and (is_ours(other) or _STEP.match(other.name)):
                delete(other)

    def stable(self) -> TrainingState | None:
        """Return the newest stable checkpoint, or None if there is none.

        Raises:
            CheckpointError: If it is damaged.
        """
        folder = self._newest_stable()
        return None if folder is None else _read(folder)

    def _newest_stable(self) -> Path | None:
        return next((path for path in self._folders().values() if _is_stable(path)), None)

    def _drop_others(self, committed: Path, step: int) -> None:
        """Delete all checkpoints but the given one and its predecessor."""
        before = [path for number, path in self._folders().items() if number < step and path not in self._damaged]
        kept = {committed, *before[:1], self._newest_stable()}
        # This includes newer ones (damaged checkpoints that were skipped) and temporary folders of killed processes.
        for other in self.folder.iterdir():
            if other not in kept and (is_ours(other) or _STEP.match(other.name)):
                delete(other)

    def _folders(self) -> dict[int, Path]:
        """Return the committed checkpoints by step, newest first; names of temporary folders do not match.

        When a step is saved again, its old folder is temporarily renamed. If the process was killed during that time,
        the renamed folder is used.
        """
        found: dict[int, Path] = {}
        paths = list(self.folder.iterdir()) if self.folder.is_dir() else []
        for path in sorted(paths):  # ".step-..." sorts before "step-...", which therefore takes precedence
            number = _STEP.fullmatch(aside_target(path) or path.name)
            if number:
                found[int(number[1])] = path
        return dict(sorted(found.items(), reverse=True))


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"size": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _is_stable(folder: Path) -> bool:
    with suppress(CheckpointError):
        return read_json(folder / _STATE).get("figures", {}).get(STABLE) is True
    return False


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
        figures={_RENAMED.get(name, name): value for name, value in values["figures"].items()},
    )
