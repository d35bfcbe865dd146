"""T27: a killed file job never leaks its results into another job with the same output.

A job of several parts is killed before each of its file operations: creating its folder, writing a part, joining the
parts, and deleting temporary files. Then a job with a different input uses the same output. It must be rejected or
succeed; with ``--fresh`` it must succeed. Its output must equal that of an undisturbed run, and so must the output of
the first job when it is resumed. The deletion by ``--fresh`` is interrupted at each operation as well.
"""

import builtins
import io
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from cloze.progress import Progress
from torture.campaign import Outcome
from torture.commands import Inputs, SmallParts, contents
from torture.training import run_command

_MOST_FAILURES = 10
_OPERATIONS = ("mkdir", "rename", "replace", "chmod", "fsync", "unlink", "rmdir")


@dataclass(frozen=True)
class PartSettings:
    """The stride over the operations before which the process is killed."""

    every: int = 1


@dataclass(frozen=True)
class KillBefore:
    """Hook: SIGKILL before the n-th file operation in a folder, counted from 1; with 0, operations are only counted."""

    folder: Path
    number: int

    def __call__(self, pipe: Connection) -> None:
        """Patch the functions that change files."""
        SmallParts()(pipe)
        count = 0

        def note(place: Any) -> None:
            nonlocal count
            path = Path(f"/proc/self/fd/{place}").readlink() if isinstance(place, int) else Path(os.fsdecode(place))
            if not path.absolute().is_relative_to(self.folder):
                return
            count += 1
            pipe.send(count)
            if count == self.number:
                os.kill(os.getpid(), signal.SIGKILL)

        def counted(work: Callable[..., Any]) -> Callable[..., Any]:
            def called(place: Any, *arguments: Any, **options: Any) -> Any:
                note(place)
                return work(place, *arguments, **options)

            return called

        for name in _OPERATIONS:
            patch.object(os, name, counted(getattr(os, name))).start()
        opened, made = builtins.open, os.open

        def open_counted(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if set(mode) & set("wax"):
                note(file)
            return opened(file, mode, *arguments, **options)

        def make_counted(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
            if flags & os.O_CREAT:
                note(path)
            return made(path, flags, *arguments, **options)

        for module in (builtins, io):
            patch.object(module, "open", open_counted).start()
        patch.object(os, "open", make_counted).start()


def run(settings: PartSettings, progress: Progress) -> Outcome:
    """Kill the job before every operation."""
    with TemporaryDirectory() as name:
        jobs = _JobTrials(Path(name).resolve())
        for first in (False, True):
            total = jobs.count(deleting=first)
            for number in range(1, total + 1, settings.every):
                jobs.kill(number, deleting=first)
                progress.advance(f"T27: killed while {'deleting' if first else 'working'}", number, total)
        figures: dict[str, str | int | float] = {
            "kills": jobs.kills,
            "other jobs": jobs.others,
            "rejected until --fresh": jobs.refused,
            "old answers": jobs.old,
            "resumed": jobs.resumed,
        }
        return Outcome(not jobs.failures, figures, jobs.failures[:_MOST_FAILURES])


class _JobTrials:
    """Two inputs, and the expected output of each."""

    def __init__(self, scratch: Path) -> None:
        self._scratch, self._number = scratch, 0
        self._inputs = Inputs(scratch)
        rows = self._inputs.rows.read_text(encoding="utf-8").splitlines()
        self._sources = [self._inputs.rows, scratch / "others.csv"]
        self._sources[1].write_text("\n".join([rows[0], *reversed(rows[1:])]) + "\n", encoding="utf-8")
        self._alone = []
        for source in (0, 1):
            out = scratch / f"alone-{source}.jsonl"
            self._inputs.must(self._words(source, out))
            self._alone.append(contents(out))
        self._totals: dict[bool, int] = {}
        self.kills = self.others = self.refused = self.old = self.resumed = 0
        self.failures: list[str] = []

    def _words(self, source: int, out: Path, *more: str) -> list[str]:
        model, table = str(self._inputs.model), str(self._sources[source])
        return ["score", "--model", model, "--input", table, "--output", str(out), *more]

    def _begin(self, deleting: bool) -> tuple[Path, list[str]]:
        """Return an output and the job to kill; to interrupt a deletion, parts of the first job exist already."""
        self._number += 1
        folder = self._scratch / f"case-{self._number}"
        folder.mkdir()
        out = folder / "out.jsonl"
        if not deleting:
            return out, self._words(0, out)
        total = self.count(deleting=False)
        run_command(self._words(0, out), self._scratch / "said", KillBefore(folder, total // 2))
        return out, self._words(1, out, "--fresh")

    def count(self, *, deleting: bool) -> int:
        """Count the file operations of the job."""
        if deleting not in self._totals:
            out, words = self._begin(deleting)
            code, child = run_command(words, self._scratch / "said", KillBefore(out.parent, 0))
            if code != 0:
                raise RuntimeError(f"not killed: exit code {code}: {child.last_line}")
            self._totals[deleting] = child.messages[-1]
        return self._totals[deleting]

    def kill(self, number: int, *, deleting: bool) -> None:
        """Kill a job before an operation, then run the other job; every third time, resume the same one."""
        out, words = self._begin(deleting)
        place = f"killed before operation {number}{' while deleting' if deleting else ''}"
        code, child = run_command(words, self._scratch / "said", KillBefore(out.parent, number))
        self.kills += 1
        if code != -9:
            self.failures.append(f"{place}: exit code {code}: {child.last_line}")
        killed = 1 if deleting else 0
        if number % 3 == 0 and not deleting:
            self._go_on(killed, out, place)
        else:
            self._run_other(1 - killed, out, place)

    def _run_other(self, source: int, out: Path, place: str) -> None:
        self.others += 1
        code, child = run_command(self._words(source, out), self._scratch / "said", SmallParts())
        if code == 2 and "belongs to a job with other settings" in child.last_line:
            self.refused += 1
            code, child = run_command(self._words(source, out, "--fresh"), self._scratch / "said", SmallParts())
        if code != 0:
            self.failures.append(f"{place}, then another job: exit code {code}: {child.last_line}")
        elif contents(out) != self._alone[source]:
            self.old += 1
            self.failures.append(f"{place}, then another job: not its own results")
        self._check_clean(out, place)

    def _go_on(self, source: int, out: Path, place: str) -> None:
        code, child = run_command(self._words(source, out), self._scratch / "said", SmallParts())
        if code != 0 or contents(out) != self._alone[source]:
            self.old += code == 0
            self.failures.append(f"{place}, resumed: exit code {code}, or different results: {child.last_line}")
        else:
            self.resumed += 1
        self._check_clean(out, place)

    def _check_clean(self, out: Path, place: str) -> None:
        others = sorted(path.name for path in out.parent.iterdir() if path != out)
        self.failures += [f"{place}: {name} was left behind" for name in others]
