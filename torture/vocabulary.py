"""T9: a vocabulary is a pure function of its text.

It is learned again and again by the command line, each time in a new process with another seed of Python's hashes,
another number of the engine's threads and another number of workers. Every file of every folder must have the bytes of
the first one's.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from cloze.progress import Progress
from torture.campaign import SOURCES, Outcome

# What the installed script does, whatever PATH says.
CLOZE = (sys.executable, "-c", "from cloze.cli import main; main()")
BOOKS = SOURCES / "demo" / "data" / "books.txt.xz"
# So many that their combinations differ from run to run.
_THREADS = (1, 2, 4)
_WORKERS = (1, 2, 3, 4)
_LONGEST_RUN = 900  # seconds
_MOST_FAILURES = 10


@dataclass(frozen=True)
class LearningSettings:
    """From what to learn how often, and with which command."""

    texts: tuple[Path, ...] = (BOOKS,)
    size: int = 8000
    runs: int = 20
    at_once: int = 2
    command: tuple[str, ...] = CLOZE


@dataclass(frozen=True)
class Conditions:
    """What differs between two runs, and must not matter; ``workers`` is None where there is no such flag."""

    hash_seed: int
    threads: int
    workers: int | None


def run(settings: LearningSettings, progress: Progress) -> Outcome:
    """Learn the vocabulary in as many processes as asked for, and compare the folders."""
    try:
        takes_workers = "--workers" in run_program([*settings.command, "vocab", "--help"])
    except subprocess.SubprocessError as error:
        return Outcome(False, {}, [f"no help: {tell(error)}"])
    conditions = choose_conditions(settings.runs, takes_workers)
    folders: dict[int, dict[str, str]] = {}
    failures: list[str] = []
    with TemporaryDirectory() as scratch, ThreadPoolExecutor(settings.at_once) as pool:
        jobs = {
            pool.submit(learn, settings, each, Path(scratch) / f"{number}"): number
            for number, each in enumerate(conditions)
        }
        for done, job in enumerate(as_completed(jobs), start=1):
            try:
                folders[jobs[job]] = job.result()
            except (subprocess.SubprocessError, OSError) as error:
                failures.append(f"{conditions[jobs[job]]}: {tell(error)}")
            progress.advance("T9: learning", done, settings.runs)
    failures += compare(conditions, folders)
    figures: dict[str, str | int | float] = {
        "runs": len(folders),
        "files in each": max(map(len, folders.values()), default=0),
        "different folders": len({tuple(sorted(files.items())) for files in folders.values()}),
        "workers": f"1 to {max(_WORKERS)}" if takes_workers else "not tried",
    }
    return Outcome(not failures, figures, failures[:_MOST_FAILURES])


def choose_conditions(runs: int, takes_workers: bool) -> list[Conditions]:
    """Other conditions for every run."""
    return [
        Conditions(
            hash_seed=number * 7919,
            threads=_THREADS[number % len(_THREADS)],
            workers=_WORKERS[number % len(_WORKERS)] if takes_workers else None,
        )
        for number in range(runs)
    ]


def learn(settings: LearningSettings, conditions: Conditions, folder: Path) -> dict[str, str]:
    """Learn once, and return the SHA-256 of every file of the folder."""
    workers = [] if conditions.workers is None else ["--workers", str(conditions.workers)]
    words = ["vocab", *map(str, settings.texts), "--out", str(folder), "--size", str(settings.size), *workers]
    environment = {
        "PYTHONHASHSEED": str(conditions.hash_seed),
        "RAYON_NUM_THREADS": str(conditions.threads),
    }
    run_program([*settings.command, *words], environment)
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256(path.read_bytes()).hexdigest() for path in paths}


def compare(conditions: Sequence[Conditions], folders: Mapping[int, Mapping[str, str]]) -> list[str]:
    """Say which runs made other files than the first of those that made any."""
    if not any(folders.values()):
        return ["no run has made a file"]
    first = min(number for number in folders if folders[number])
    told = []
    for number, files in sorted(folders.items()):
        names = {*files, *folders[first]}
        if names := {name for name in names if files.get(name) != folders[first].get(name)}:
            told.append(f"{conditions[number]}: {', '.join(sorted(names))} not as with {conditions[first]}")
    return told


def run_program(words: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Run a program in a process of its own, and return what it printed."""
    return subprocess.run(
        words,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=_LONGEST_RUN,
    ).stdout


def tell(error: Exception) -> str:
    """The last line of what a failed program wrote."""
    if isinstance(error, subprocess.CalledProcessError):
        lines = str(error.stderr).strip().splitlines()
        return f"exit code {error.returncode}: {lines[-1] if lines else 'no message'}"
    return str(error)
