"""T6: a disk that is full, broken or read-only costs the work since the last checkpoint, and no more.

Each thing that a training writes, from its first folder to the last file of its model, is made to fail once in each
way. The command must end with one line and exit code 2, the checkpoint before must be whole, nothing half-written may
lie about, and once the disk is well again the same command ends as if nothing had been. Where it may (as root), the
same is done on a real file system of a few megabytes, which is really full, and really made read-only.
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
from torture.training import Life, Result, command, differences, leftovers, live, make_corpus, newest, result

_CODES = (errno.ENOSPC, errno.EIO, errno.EROFS)
_STEPS = 3
_MOST_FAILURES = 10
_ROOMY = "64m"


@dataclass(frozen=True)
class DiskSettings:
    """Which of the writes fail (each, or every so many), how often a run goes on, and the sizes of real disks."""

    every: int = 1
    resumed: int = 3  # of so many failures one is followed by the same command on a sound disk
    kilobytes: tuple[int, ...] = (8, 300, 2000, 5000, 8000, 11000, 14000, 16000, 18000, 20000)


def run(settings: DiskSettings, progress: Progress) -> Outcome:
    """Let every write fail in every way."""
    with TemporaryDirectory() as name:
        bench = _Bench(Path(name), settings, progress)
        for code in _CODES:
            bench.fail_everywhere(code)
        real = bench.fill_real_disks() if os.geteuid() == 0 else "not root"
        figures: dict[str, str | int | float] = {
            "writes that failed": bench.failed,
            "lost": bench.lost,
            "left behind": bench.littered,
            "resumed to the same weights": bench.resumed,
            "real disks": real,
        }
        return Outcome(not bench.failures, figures, bench.failures[:_MOST_FAILURES])


class _Bench:
    """Trainings on disks that fail."""

    def __init__(self, scratch: Path, settings: DiskSettings, progress: Progress) -> None:
        self._scratch, self._settings, self._progress = scratch.resolve(), settings, progress
        self._data = make_corpus(scratch / "corpus")
        self._tried = 0
        self.failed = self.lost = self.littered = self.resumed = 0
        self.failures: list[str] = []

    def fail_everywhere(self, code: int) -> None:
        """Count what is written in peace, then fail at each."""
        peace = self._scratch / f"peace-{code}"
        ended, life = live(self._words(peace), self._scratch / "said", Fail(peace, 0, code))
        if ended != 0:
            self.failures.append(f"in peace: exit code {ended}: {life.last_words}")
            return
        expected, total = result(peace), sum(words[0] == "done" for words in life.told)
        for number in range(1, total + 1, self._settings.every):
            out = self._scratch / f"{code}-{number}"
            ended, life = live(self._words(out), self._scratch / "said", Fail(out, number, code))
            place = (
                f"{os.strerror(code)} at write {number} {[words[1:] for words in life.told if words[0] == 'failed']}"
            )
            self._judge(out, ended, life, place, may_litter=code == errno.EROFS)
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
                    ended, life = live(self._words(place / "run"), self._scratch / "said")
                    if ended != 0:
                        self._judge(place / "run", ended, life, f"a disk of {size} kB", may_litter=False)
                        full += 1
                    _mount(place, "remount", f"size={_ROOMY}")
                    self._resume(place / "run", f"a disk of {size} kB", result(self._scratch / f"peace-{_CODES[0]}"))
            except (subprocess.CalledProcessError, FileNotFoundError):
                return "none to be had"
        with _mounted(place, _ROOMY):
            ended, life = live(self._words(place / "run"), self._scratch / "said", MakeReadOnly(place))
            self._judge(place / "run", ended, life, "a read-only disk", may_litter=False)
            _mount(place, "remount", "rw")
            self._resume(place / "run", "a read-only disk", result(self._scratch / f"peace-{_CODES[0]}"))
        return f"{full} full, 1 read-only"

    def _words(self, out: Path) -> list[str]:
        return command(self._data, out, _STEPS, evaluate_every=2)

    def _judge(self, out: Path, ended: int, life: Life, place: str, may_litter: bool) -> None:
        """One line, code 2, the checkpoint before, nothing half-written."""
        self.failed += 1
        refused = [words[1] for words in life.told if words[0] == "failed"]
        if ended == 0 and Run(out).finished and refused in (["unlink"], ["rmdir"]):
            return  # the model was there, and nothing to write any more
        complaints = [line for line in life.words.splitlines() if "error" in line.lower() or "Traceback" in line]
        if ended != 2 or len(complaints) != 1 or not life.last_words.startswith("cloze: error: "):
            self.failures.append(f"{place}: exit code {ended}: {life.last_words}")
        committed = max((words[1] for words in life.told if words[0] == "saved"), default=0)
        if Run(out).finished:
            # Only the flush that makes its name last can have failed.
            self.failures += differences(result(out), result(self._scratch / f"peace-{_CODES[0]}"), place)
            return
        state, said = newest(out)
        if said or (state.step if state else 0) < committed:
            self.lost += 1
            self.failures.append(f"{place}: step {committed} was committed, {said or 'it is gone'}")
        if not may_litter and (litter := leftovers(out)):
            self.littered += 1
            self.failures.append(f"{place}: {', '.join(litter)} left behind")

    def _resume(self, out: Path, place: str, expected: Result) -> None:
        ended, life = live(self._words(out), self._scratch / "said")
        if ended != 0:
            self.failures.append(f"{place}, resumed: exit code {ended}: {life.last_words}")
            return
        found = differences(result(out), expected, place) + [f"{name} was left behind" for name in leftovers(out)]
        self.failures += found
        self.resumed += not found


@dataclass(frozen=True)
class MakeReadOnly:
    """The hook: before the second save the disk becomes read-only."""

    place: Path

    def __call__(self, pipe: Connection) -> None:
        """Put the change before the save."""
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
