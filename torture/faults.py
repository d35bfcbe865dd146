"""Fault injection for disks: the n-th write operation of a process fails.

Covers what an operating system can reject: creating folders and files, writing, flushing, renaming and deleting.
Reading still works. Files use Python's own buffer layers on top of a failing raw file, so that errors surface where
they would in reality: often not in the write call, but when the buffer is flushed.
"""

import builtins
import errno
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, cast
from unittest.mock import patch

from safetensors import SafetensorError
from safetensors.torch import save_file

from cloze.checkpoint import StateStore, TrainingState, weights

# An I/O error may occur once; a full or read-only disk stays that way.
LASTING = {errno.EIO: False, errno.ENOSPC: True, errno.EROFS: True}
# Operations that succeed on a full disk.
_NEED_NO_SPACE = {"rename", "replace", "chmod", "unlink", "rmdir"}


@dataclass(frozen=True)
class Fail:
    """Hook: the n-th write operation below a folder fails, counted from 1; with 0, operations are only counted."""

    folder: Path
    number: int
    code: int

    def __call__(self, pipe: Connection) -> None:
        """Patch the write functions, and report operations and committed checkpoints."""
        disk = _Disk(self, pipe)
        for name in ("mkdir", "rename", "replace", "chmod", "fsync", "unlink", "rmdir"):
            patch.object(os, name, disk.guarded(name, getattr(os, name))).start()
        opened = disk.opener(builtins.open)
        for module in (builtins, io):
            patch.object(module, "open", opened).start()
        patch.object(weights, "save_file", disk.native(save_file)).start()
        save = StateStore.save

        def telling(store: StateStore, state: TrainingState) -> None:
            save(store, state)
            pipe.send(("saved", state.step))

        patch.object(StateStore, "save", telling).start()


class _Disk:
    """A disk that counts operations and fails."""

    def __init__(self, plan: Fail, pipe: Connection) -> None:
        self._plan, self._pipe, self._count = plan, pipe, 0

    def check(self, name: str, path: Path) -> None:
        """Count an operation, and raise its error if it is due."""
        if not path.is_relative_to(self._plan.folder) or (name == "mkdir" and path.is_dir()):
            return
        takes_space = name not in _NEED_NO_SPACE
        deletes = name in {"unlink", "rmdir"}
        if (self._plan.code == errno.ENOSPC and not takes_space) or (deletes and self._plan.code != errno.EROFS):
            return
        self._count += 1
        lasting = LASTING[self._plan.code] and self._count > self._plan.number
        if self._plan.number and (self._count == self._plan.number or lasting):
            if self._count == self._plan.number:
                self._pipe.send(("failed", name, str(path.relative_to(self._plan.folder))))
            raise OSError(self._plan.code, os.strerror(self._plan.code), str(path))
        if not self._plan.number:
            self._pipe.send(("done", name))

    def guarded(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function of ``os`` whose first argument is a path or a descriptor."""

        def checked(target: Any, *arguments: Any, **options: Any) -> Any:
            self.check(name, _path(target, options.get("dir_fd")))
            return work(target, *arguments, **options)

        return checked

    def opener(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``open`` so that files below the folder can fail."""

        def checked(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> IO[Any]:
            if isinstance(file, int) or not set(mode) & set("wax"):
                return cast("IO[Any]", work(file, mode, *arguments, **options))
            path = Path(os.fspath(file))
            if not path.is_relative_to(self._plan.folder):
                return cast("IO[Any]", work(file, mode, *arguments, **options))
            self.check("open", path)
            raw = _RawFile(str(path), mode.replace("b", "").replace("t", ""))
            raw.disk = self
            buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding=options.get("encoding"))

        return checked

    def native(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the native weight writer so that a failing call leaves an empty file."""

        def checked(tensors: Any, path: Path, *arguments: Any, **options: Any) -> None:
            try:
                self.check("write", path)
            except OSError as error:
                path.touch()
                raise SafetensorError(f"I/O error: {error.strerror} (os error {error.errno})") from error
            work(tensors, path, *arguments, **options)

        return checked


class _RawFile(io.FileIO):
    """A failing file at the lowest of Python's I/O layers."""

    disk: _Disk

    def write(self, data: Any, /) -> int:
        self.disk.check("write", Path(str(self.name)))
        return super().write(data)


def _path(target: Any, folder: int | None) -> Path:
    if isinstance(target, int):
        return Path(f"/proc/self/fd/{target}").readlink()
    base = Path(f"/proc/self/fd/{folder}").readlink() if folder is not None else Path()
    return base / str(os.fspath(target))
