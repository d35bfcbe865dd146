"""T9: a vocabulary is a pure function of its text.

It is trained repeatedly from the command line, each time in a new process with a different Python hash seed, number of
native threads and number of workers. Every file in every folder must be byte-identical to that of the first run.
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

# The installed script's entry point, independent of PATH.
CLOZE = (sys.executable, "-c", "from cloze.cli import main; main()")
BOOKS = SOURCES / "demo" / "data" / "books.txt.xz"
# The numbers of options are chosen so that the combinations differ between runs.
_THREADS = (1, 2, 4)
_WORKERS = (1, 2, 3, 4)
_LONGEST_RUN = 900  # timeout in seconds
_MOST_FAILURES = 10


@dataclass(frozen=True)
class LearningSettings:
    """The text, the number of runs, and the command."""

    texts: tuple[Path, ...] = (BOOKS,)
    size: int = 8000
    runs: int = 20
    at_once: int = 2
    command: tuple[str, ...] = CLOZE


@dataclass(frozen=True)
class Conditions:
    """Conditions that differ between two runs and must not matter; ``workers`` is None if there is no such flag."""

    hash_seed: int
    threads: int
    workers: int | None


def run(settings: LearningSettings, progress: Progress) -> Outcome:
    """Train the vocabulary in separate processes, and compare the folders."""
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
    """Return different conditions for every run."""
    return [
        Conditions(
            hash_seed=number * 7919,
            threads=_THREADS[number % len(_THREADS)],
            workers=_WORKERS[number % len(_WORKERS)] if takes_workers else None,
        )
        for number in range(runs)
    ]


def learn(settings: LearningSettings, conditions: Conditions, folder: Path) -> dict[str, str]:
    """Train once, and return the SHA-256 of every file in the folder."""
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
    """Return the runs whose files differ from those of the first successful run."""
    if not any(folders.values()):
        return ["no run has made a file"]
    first = min(number for number in folders if folders[number])
    problems = []
    for number, files in sorted(folders.items()):
        names = {*files, *folders[first]}
        if names := {name for name in names if files.get(name) != folders[first].get(name)}:
            problems.append(
                f"{conditions[number]}: {', '.join(sorted(names))} differ from those with {conditions[first]}"
            )
    return problems


def run_program(words: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Run a program in a separate process, and return what it printed."""
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
    """Return the last line that a failed program wrote."""
    if isinstance(error, subprocess.CalledProcessError):
        lines = str(error.stderr).strip().splitlines()
        return f"exit code {error.returncode}: {lines[-1] if lines else 'no message'}"
    return str(error)
