"""Run long tests and store their results.

The results of a finished test are stored with a digest of everything that they depend on: the sources of cloze, the
test's own files, its settings, and library versions. A test that passed under the same conditions is not run again; a
failed test is.
"""

import platform
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cloze
from cloze.files import read_json, replace_json
from cloze.progress import Progress

ROOT = Path(__file__).parents[1]
SOURCES = Path(cloze.__file__).parent
RESULTS = "results.json"


@dataclass(frozen=True)
class Outcome:
    """The result of a test: figures by name, and one line for each of its first failures."""

    passed: bool
    figures: dict[str, str | int | float]
    failures: list[str]
    seconds: float = 0.0


@dataclass(frozen=True)
class Trial:
    """One test of the campaign: what it tests, the required result, and how to run it.

    ``settings`` is a frozen dataclass that is passed to ``run``; ``files`` are the sources of the test, so that a
    changed test runs again.
    """

    tested: str
    to_reach: str
    settings: Any
    run: Callable[[Any, Progress], Outcome]
    files: tuple[str, ...]


def run_trials(
    trials: Mapping[str, Trial], chosen: Iterable[str], folder: Path, progress: Progress, *, fresh: bool = False
) -> dict[str, Outcome]:
    """Run the selected trials that have not passed yet; return all known results."""
    kept = read_json(folder / RESULTS) if (folder / RESULTS).is_file() else {}
    # Computed once before the runs, because a source file that changes during a run was not tested.
    depends = {name: conditions(trial) for name, trial in trials.items()}
    for name in chosen:
        known = _kept_outcome(kept, name, depends[name])
        if known is not None and known.passed and not fresh:
            progress.say(f"{name}: passed already with these sources and settings; --fresh runs it again")
            continue
        progress.say(f"{name}: {trials[name].tested}")
        start = time.monotonic()
        try:
            outcome = trials[name].run(trials[name].settings, progress)
        except Exception as error:  # the remaining tests are still worth running
            traceback.print_exc()
            outcome = Outcome(False, {}, [f"the test itself failed: {type(error).__name__}: {error}"])
        found = asdict(outcome) | {"seconds": round(time.monotonic() - start, 1)}
        kept[name] = {"depends": depends[name], "outcome": found}
        folder.mkdir(parents=True, exist_ok=True)
        replace_json(folder / RESULTS, kept)
        progress.say(f"{name}: {'passed' if outcome.passed else 'FAILED'} after {found['seconds']:.0f} s")
    outcomes = {name: _kept_outcome(kept, name, depends[name]) for name in trials}
    return {name: outcome for name, outcome in outcomes.items() if outcome is not None}


def conditions(trial: Trial) -> dict[str, Any]:
    """Return a digest of everything that a trial's results depend on."""
    settings = {field.name: str(getattr(trial.settings, field.name)) for field in fields(trial.settings)}
    sources = (path for path in SOURCES.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {
        "sources": digest(sources, SOURCES),
        "test": digest((ROOT / name for name in trial.files), ROOT),
        "settings": settings,
        "python": platform.python_version(),
        "tokenizers": version("tokenizers"),
        "torch": version("torch"),
    }


def digest(paths: Iterable[Path], root: Path) -> str:
    """Return one SHA-256 of the names and contents of files."""
    lines = (f"{path.relative_to(root).as_posix()} {sha256(path.read_bytes()).hexdigest()}" for path in paths)
    return sha256("\n".join(sorted(lines)).encode()).hexdigest()


def _kept_outcome(kept: dict[str, Any], name: str, depends: dict[str, Any]) -> Outcome | None:
    entry = kept.get(name)
    return Outcome(**entry["outcome"]) if entry is not None and entry["depends"] == depends else None
