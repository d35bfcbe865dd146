"""T23: preparation is a pure function of its text, whoever is killed on the way.

The command line prepares a text with several workers. At random moments one of its processes, mostly a worker and now
and then the one that leads them, is killed by SIGKILL, which nobody can hear. The same command is given again until it
ends well. The folder must have, file for file, the bytes of the one that a single process made in peace.
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

_LONGEST_RUN = 900.0  # seconds
# Of the kills, so many are of the leading process.
_LEADERS = 0.1


@dataclass(frozen=True)
class PreparationSettings:
    """What to prepare, and how often to kill."""

    texts: tuple[Path, ...] = (BOOKS,)
    vocabulary_size: int = 8000
    shard_size: float = 0.25
    workers: int = 2
    kills: int = 50
    longest_wait: float = 3.0  # seconds between two kills
    duplicates: str = "near"
    command: tuple[str, ...] = CLOZE
    seed: int = 0


def run(settings: PreparationSettings, progress: Progress) -> Outcome:
    """Prepare in peace and under fire, and compare the folders."""
    with TemporaryDirectory() as name:
        scratch = Path(name)
        try:
            texts = [str(path) for path in settings.texts]
            vocabulary = [*texts, "--out", str(scratch / "vocab"), "--size", str(settings.vocabulary_size)]
            run_program([*settings.command, "vocab", *vocabulary])
            words = [*texts, "--vocab", str(scratch / "vocab"), "--shard-size", str(settings.shard_size)]
            words = [*settings.command, "prepare", *words, "--duplicates", settings.duplicates]
            run_program([*words, "--out", str(scratch / "peace"), "--workers", "1"])
            battle = _Battle([*words, "--workers", str(settings.workers)], scratch, settings, progress)
            battle.fight()
        except (subprocess.SubprocessError, OSError) as error:
            return Outcome(False, {}, [tell(error)])
        expected = digests(scratch / "peace")
        failures = [*battle.failures, *differences(expected, digests(scratch / "fire"))]
        left = sorted(path.name for path in scratch.iterdir() if path.name not in {"vocab", "peace", "fire"})
        failures += [f"{each} was left behind" for each in left if not each.startswith("fire-")]
        figures: dict[str, str | int | float] = {
            "kills": battle.kills,
            "of the leader": battle.leaders,
            "commands": battle.commands,
            "corpora": battle.finished,
            "shards": sum(name.endswith("shard.json") for name in expected),
            "different files": sum("not as" in failure for failure in failures),
        }
        return Outcome(not failures, figures, failures[:10])


class _Battle:
    """The same command again and again, until enough of its processes were killed and it has ended well."""

    def __init__(self, words: list[str], scratch: Path, settings: PreparationSettings, progress: Progress) -> None:
        self._words = words
        self._scratch = scratch
        self._settings = settings
        self._progress = progress
        self._draw = random.Random(settings.seed)
        self.kills = self.leaders = self.commands = self.finished = 0
        self.failures: list[str] = []

    def fight(self) -> None:
        """Prepare; what is done before the last kill is compared, and begun anew."""
        deadline = time.monotonic() + _LONGEST_RUN
        folder = self._scratch / "fire"
        while not self.failures:
            if time.monotonic() > deadline:
                self.failures.append(f"not done after {_LONGEST_RUN:.0f} s")
                return
            if not self._prepare(folder):
                continue
            self.finished += 1
            if self.kills >= self._settings.kills:
                return
            self.failures += differences(digests(self._scratch / "peace"), digests(folder))
            folder.rename(self._scratch / f"fire-{self.finished}")

    def _prepare(self, folder: Path) -> bool:
        """Give the command once, under fire; whether it ended well."""
        self.commands += 1
        with (self._scratch / "fire-said").open("w+b") as said:
            process = subprocess.Popen([*self._words, "--out", str(folder)], stdout=subprocess.DEVNULL, stderr=said)
            leader_killed = self._shoot(process)
            code = process.wait(timeout=_LONGEST_RUN)
            said.seek(0)
            words = said.read().decode("utf-8", "replace")
        # After three deaths at one shard it stops and says so; anything else is a failure.
        if code != 0 and not leader_killed and "the same command goes on" not in words:
            last = (words.strip().splitlines() or ["no message"])[-1]
            self.failures.append(f"command {self.commands} ended with exit code {code}: {last}")
        return code == 0

    def _shoot(self, process: "subprocess.Popen[bytes]") -> bool:
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
    """The processes that a process has started."""
    try:
        return [int(word) for word in Path(f"/proc/{number}/task/{number}/children").read_text().split()]
    except OSError:
        return []


def digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file of a folder."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256(path.read_bytes()).hexdigest() for path in paths}


def differences(expected: dict[str, str], found: dict[str, str]) -> list[str]:
    """Say which files are not those of the other folder."""
    if not expected:
        return ["nothing was prepared in peace"]
    missing = [f"{name} is missing" for name in sorted(expected.keys() - found.keys())]
    surplus = [f"{name} should not be there" for name in sorted(found.keys() - expected.keys())]
    other = [
        f"{name} is not as in peace" for name in sorted(expected) if found.get(name, expected[name]) != expected[name]
    ]
    return [*missing, *surplus, *other]
