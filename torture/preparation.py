"""T23: preparation is a pure function of its text, even if its processes are killed.

``cloze prepare`` runs with several workers. At random times one of its processes, usually a worker and sometimes the
main process, is killed by SIGKILL. The same command is repeated until it succeeds. The folder must be byte-identical,
file by file, to the output of a single uninterrupted process.
"""

import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from cloze.progress import Progress
from torture.campaign import Outcome
from torture.vocabulary import BOOKS, CLOZE, run_program, tell

_LONGEST_RUN = 900.0  # timeout in seconds
# Share of the kills that hit the main process.
_LEADERS = 0.1


@dataclass(frozen=True)
class PreparationSettings:
    """The text to prepare, and the number of kills."""

    texts: tuple[Path, ...] = (BOOKS,)
    vocabulary_size: int = 8000
    shard_size: float = 0.25
    workers: int = 2
    kills: int = 50
    longest_wait: float = 3.0  # maximum seconds between two kills
    duplicates: str = "near"
    command: tuple[str, ...] = CLOZE
    seed: int = 0


def run(settings: PreparationSettings, progress: Progress) -> Outcome:
    """Prepare with and without kills, and compare the folders."""
    with TemporaryDirectory() as name:
        scratch = Path(name)
        try:
            texts = [str(path) for path in settings.texts]
            vocabulary = [*texts, "--out", str(scratch / "vocab"), "--size", str(settings.vocabulary_size)]
            run_program([*settings.command, "vocab", *vocabulary])
            words = [*texts, "--vocab", str(scratch / "vocab"), "--shard-size", str(settings.shard_size)]
            words = [*settings.command, "prepare", *words, "--duplicates", settings.duplicates]
            run_program([*words, "--out", str(scratch / "reference"), "--workers", "1"])
            trial = _KilledPreparation([*words, "--workers", str(settings.workers)], scratch, settings, progress)
            trial.run()
        except (subprocess.SubprocessError, OSError) as error:
            return Outcome(False, {}, [tell(error)])
        expected = digests(scratch / "reference")
        failures = [*trial.failures, *differences(expected, digests(scratch / "killed"))]
        left = sorted(path.name for path in scratch.iterdir() if path.name not in {"vocab", "reference", "killed"})
        failures += [f"{each} was left behind" for each in left if not each.startswith("killed-")]
        figures: dict[str, str | int | float] = {
            "kills": trial.kills,
            "of the main process": trial.leaders,
            "commands": trial.commands,
            "corpora": trial.finished,
            "shards": sum(name.endswith("shard.json") for name in expected),
            "different files": sum("differs from" in failure for failure in failures),
        }
        return Outcome(not failures, figures, failures[:10])


class _KilledPreparation:
    """Repeats a command until enough of its processes were killed and it has succeeded."""

    def __init__(self, words: list[str], scratch: Path, settings: PreparationSettings, progress: Progress) -> None:
        self._words = words
        self._scratch = scratch
        self._settings = settings
        self._progress = progress
        self._draw = random.Random(settings.seed)
        self.kills = self.leaders = self.commands = self.finished = 0
        self.failures: list[str] = []

    def run(self) -> None:
        """Prepare repeatedly; if the output is finished before the last kill, compare it and start over."""
        deadline = time.monotonic() + _LONGEST_RUN
        folder = self._scratch / "killed"
        while not self.failures:
            if time.monotonic() > deadline:
                self.failures.append(f"not done after {_LONGEST_RUN:.0f} s")
                return
            if not self._prepare(folder):
                continue
            self.finished += 1
            if self.kills >= self._settings.kills:
                return
            self.failures += differences(digests(self._scratch / "reference"), digests(folder))
            folder.rename(self._scratch / f"killed-{self.finished}")

    def _prepare(self, folder: Path) -> bool:
        """Run the command once with kills; return whether it succeeded."""
        self.commands += 1
        with (self._scratch / "killed-said").open("w+b") as said:
            process = subprocess.Popen([*self._words, "--out", str(folder)], stdout=subprocess.DEVNULL, stderr=said)
            leader_killed = self._kill_one(process)
            code = process.wait(timeout=_LONGEST_RUN)
            said.seek(0)
            words = said.read().decode("utf-8", "replace")
        # After three deaths at one shard the command stops with this message; any other error is a failure.
        if code != 0 and not leader_killed and "with fewer --workers" not in words:
            last = (words.strip().splitlines() or ["no message"])[-1]
            self.failures.append(f"command {self.commands} ended with exit code {code}: {last}")
        return code == 0

    def _kill_one(self, process: "subprocess.Popen[bytes]") -> bool:
        while self.kills < self._settings.kills:
            pause = self._draw.uniform(0, self._settings.longest_wait)
            if not _lasts(process, pause):
                return False
            workers = children(process.pid)
            if self._draw.random() < _LEADERS:
                process.kill()
                self.kills, self.leaders = self.kills + 1, self.leaders + 1
                self._progress.advance("T23: killing", self.kills, self._settings.kills)
                return True
            if workers:
                with suppress(ProcessLookupError):
                    os.kill(self._draw.choice(workers), signal.SIGKILL)
                    self.kills += 1
            self._progress.advance("T23: killing", self.kills, self._settings.kills)
        return False


def _lasts(process: "subprocess.Popen[bytes]", seconds: float) -> bool:
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def children(number: int) -> list[int]:
    """Return the child processes of a process."""
    try:
        return [int(word) for word in Path(f"/proc/{number}/task/{number}/children").read_text().split()]
    except OSError:
        return []


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file in a folder."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256(path.read_bytes()).hexdigest() for path in paths}


def differences(expected: dict[str, str], found: dict[str, str]) -> list[str]:
    """Return the differences between two folders, one line per file."""
    if not expected:
        return ["the uninterrupted run wrote nothing"]
    missing = [f"{name} is missing" for name in sorted(expected.keys() - found.keys())]
    surplus = [f"{name} is unexpected" for name in sorted(found.keys() - expected.keys())]
    other = [
        f"{name} differs from the uninterrupted run"
        for name in sorted(expected)
        if found.get(name, expected[name]) != expected[name]
    ]
    return [*missing, *surplus, *other]
