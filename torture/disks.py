"""T6: a full, broken or read-only disk costs at most the work since the last checkpoint.

Every write operation of a training run, from its first folder to the last file of its model, fails once with each
error. The command must end with one line and exit code 2, the previous checkpoint must be intact, no partial files may
remain, and after the disk recovers the same command must give the same result as an undisturbed run. As root, the same
is done on a real file system of a few megabytes that fills up or becomes read-only.
"""

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from cloze.checkpoint import StateStore, TrainingState
from cloze.progress import Progress
from cloze.train.run import Run
from torture.campaign import Outcome
from torture.faults import Fail
from torture.training import (
    ChildProcess,
    Result,
    command,
    differences,
    leftovers,
    make_corpus,
    newest,
    result,
    run_command,
)

_CODES = (errno.ENOSPC, errno.EIO, errno.EROFS)
_STEPS = 3
_MOST_FAILURES = 10
_ROOMY = "64m"


@dataclass(frozen=True)
class DiskSettings:
    """The stride over the write operations, the number of resumed runs, and the sizes of real disks."""

    every: int = 1
    resumed: int = 3  # one in this many failures is followed by a resumed run on a working disk
    kilobytes: tuple[int, ...] = (8, 300, 2000, 5000, 8000, 11000, 14000, 16000, 18000, 20000)


def run(settings: DiskSettings, progress: Progress) -> Outcome:
    """Fail every write with every error."""
    with TemporaryDirectory() as name:
        trials = _DiskTrials(Path(name), settings, progress)
        for code in _CODES:
            trials.fail_everywhere(code)
        real = trials.fill_real_disks() if os.geteuid() == 0 else "not root"
        figures: dict[str, str | int | float] = {
            "writes that failed": trials.failed,
            "lost": trials.lost,
            "left behind": trials.littered,
            "resumed to the same weights": trials.resumed,
            "real disks": real,
        }
        return Outcome(not trials.failures, figures, trials.failures[:_MOST_FAILURES])


class _DiskTrials:
    """Training runs on failing disks."""

    def __init__(self, scratch: Path, settings: DiskSettings, progress: Progress) -> None:
        self._scratch, self._settings, self._progress = scratch.resolve(), settings, progress
        self._data = make_corpus(scratch / "corpus")
        self._tried = 0
        self.failed = self.lost = self.littered = self.resumed = 0
        self.failures: list[str] = []

    def fail_everywhere(self, code: int) -> None:
        """Count the write operations of an undisturbed run, then fail each of them."""
        reference = self._scratch / f"reference-{code}"
        ended, child = run_command(self._words(reference), self._scratch / "said", Fail(reference, 0, code))
        if ended != 0:
            self.failures.append(f"uninterrupted run: exit code {ended}: {child.last_line}")
            return
        expected, total = result(reference), sum(words[0] == "done" for words in child.messages)
        for number in range(1, total + 1, self._settings.every):
            out = self._scratch / f"{code}-{number}"
            ended, child = run_command(self._words(out), self._scratch / "said", Fail(out, number, code))
            failed = [message[1:] for message in child.messages if message[0] == "failed"]
            place = f"{os.strerror(code)} at write {number} {failed}"
            self._judge(out, ended, child, place, may_litter=code == errno.EROFS)
            self._tried += 1
            if self._tried % self._settings.resumed == 0:
                self._resume(out, place, expected)
            self._progress.advance(f"T6: {os.strerror(code)}", number, total)

    def fill_real_disks(self) -> str:
        """Train on file systems that are too small, and on one that becomes read-only."""
        place = self._scratch / "disk"
        place.mkdir()
        full = 0
        for size in self._settings.kilobytes:
            try:
                with _mounted(place, f"{size}k"):
                    ended, child = run_command(self._words(place / "run"), self._scratch / "said")
                    if ended != 0:
                        self._judge(place / "run", ended, child, f"a disk of {size} kB", may_litter=False)
                        full += 1
                    _mount(place, "remount", f"size={_ROOMY}")
                    self._resume(
                        place / "run", f"a disk of {size} kB", result(self._scratch / f"reference-{_CODES[0]}")
                    )
            except (subprocess.CalledProcessError, FileNotFoundError):
                return "not available"
        with _mounted(place, _ROOMY):
            ended, child = run_command(self._words(place / "run"), self._scratch / "said", MakeReadOnly(place))
            self._judge(place / "run", ended, child, "a read-only disk", may_litter=False)
            _mount(place, "remount", "rw")
            self._resume(place / "run", "a read-only disk", result(self._scratch / f"reference-{_CODES[0]}"))
        return f"{full} full, 1 read-only"

    def _words(self, out: Path) -> list[str]:
        return command(self._data, out, _STEPS, evaluate_every=2)

    def _judge(self, out: Path, ended: int, child: ChildProcess, place: str, may_litter: bool) -> None:
        """Check for one error line, exit code 2, the previous checkpoint, and no partial files."""
        self.failed += 1
        refused = [words[1] for words in child.messages if words[0] == "failed"]
        if ended == 0 and Run(out).finished and refused in (["unlink"], ["rmdir"]):
            return  # the model was complete, so no write operation remained that could fail
        complaints = [line for line in child.output.splitlines() if "error" in line.lower() or "Traceback" in line]
        if ended != 2 or len(complaints) != 1 or not child.last_line.startswith("cloze: error: "):
            self.failures.append(f"{place}: exit code {ended}: {child.last_line}")
        committed = max((words[1] for words in child.messages if words[0] == "saved"), default=0)
        if Run(out).finished:
            # Only the fsync of the folder can have failed.
            self.failures += differences(result(out), result(self._scratch / f"reference-{_CODES[0]}"), place)
            return
        state, said = newest(out)
        if said or (state.step if state else 0) < committed:
            self.lost += 1
            self.failures.append(f"{place}: step {committed} was committed, {said or 'it is missing'}")
        if not may_litter and (litter := leftovers(out)):
            self.littered += 1
            self.failures.append(f"{place}: {', '.join(litter)} left behind")

    def _resume(self, out: Path, place: str, expected: Result) -> None:
        ended, child = run_command(self._words(out), self._scratch / "said")
        if ended != 0:
            self.failures.append(f"{place}, resumed: exit code {ended}: {child.last_line}")
            return
        found = differences(result(out), expected, place) + [f"{name} was left behind" for name in leftovers(out)]
        self.failures += found
        self.resumed += not found


@dataclass(frozen=True)
class MakeReadOnly:
    """Hook: the disk becomes read-only before the second save."""

    place: Path

    def __call__(self, pipe: Connection) -> None:
        """Patch the save function."""
        save = StateStore.save

        def changing(store: StateStore, state: TrainingState) -> None:
            if state.step == 2:
                _mount(self.place, "remount", "ro")
            save(store, state)
            pipe.send(("saved", state.step))

        patch.object(StateStore, "save", changing).start()


@contextmanager
def _mounted(place: Path, size: str) -> Iterator[None]:
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "cloze-torture", str(place)], check=True, capture_output=True
    )
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True, capture_output=True)


def _mount(place: Path, *options: str) -> None:
    subprocess.run(["mount", "-o", ",".join(options), str(place)], check=True, capture_output=True)
