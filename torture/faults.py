"""Disks that fail when they are told to: from within a process, at the n-th thing that it wants to write.

What the operating system would refuse is refused here: to make a folder or a file, to write to one, to flush, rename or
delete. Reading goes on. Files are opened with Python's own layers upon a raw file that fails, so that errors come when
they would: often not with the write, but when the buffer is emptied.
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

# An error of the disk may come once; a full or read-only disk stays so.
LASTING = {errno.EIO: False, errno.ENOSPC: True, errno.EROFS: True}
# A full disk lets names be changed and things be deleted.
_NEED_NO_SPACE = {"rename", "replace", "chmod", "unlink", "rmdir"}


@dataclass(frozen=True)
class Fail:
    """The hook: have the n-th writing operation below a folder fail, counted from 1; 0 counts them and fails none."""

    folder: Path
    number: int
    code: int

    def __call__(self, pipe: Connection) -> None:
        """Put the faults before the operating system, and tell of operations and committed checkpoints."""
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
    """Counts, and fails."""

    def __init__(self, plan: Fail, pipe: Connection) -> None:
        self._plan, self._pipe, self._count = plan, pipe, 0

    def check(self, name: str, path: Path) -> None:
        """Count an operation, and refuse it if it is its turn."""
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
        """A function of ``os`` whose first argument is a path or a descriptor."""

        def checked(target: Any, *arguments: Any, **options: Any) -> Any:
            self.check(name, _path(target, options.get("dir_fd")))
            return work(target, *arguments, **options)

        return checked

    def opener(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """``open``, whose files fail below the folder."""

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
        """The writer of weights, which does not ask Python; half of a file is there when it fails."""

        def checked(tensors: Any, path: Path, *arguments: Any, **options: Any) -> None:
            try:
                self.check("write", path)
            except OSError as error:
                path.touch()
                raise SafetensorError(f"I/O error: {error.strerror} (os error {error.errno})") from error
            work(tensors, path, *arguments, **options)

        return checked


class _RawFile(io.FileIO):
    """A file at the lowest level of Python's."""

    disk: _Disk

    def write(self, data: Any, /) -> int:
        self.disk.check("write", Path(str(self.name)))
        return super().write(data)


def _path(target: Any, folder: int | None) -> Path:
    if isinstance(target, int):
        return Path(f"/proc/self/fd/{target}").readlink()
    base = Path(f"/proc/self/fd/{folder}").readlink() if folder is not None else Path()
    return base / str(os.fspath(target))
