"""T25: if several processes write to the same path, one writes, and the rest are rejected or wait for their turn.

Two or four processes run two variants of the same command on the same output and start almost together. A process with
exit code 0 must have left a complete output: in the end, it is byte-identical to that of one of the variants alone. All
other processes must end with one line and exit code 2. Files next to the output must be unchanged.
"""

import random
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from cloze.progress import Progress
from torture.campaign import Outcome
from torture.commands import Inputs, SmallParts, contents, litter, state_of
from torture.training import ChildProcess, start_command

_MOST_FAILURES = 10
# Messages of a rejection: another process is writing, or has written with different settings.
_REFUSALS = (
    "another process is",
    "settings differ",
    "was prepared with other settings",
    "holds unfinished work with other settings",
    "belongs to a job with other settings",
    "is an index of other documents, or built with other settings",
)


@dataclass(frozen=True)
class WriterSettings:
    """The number of trials, the commands (all if empty), and the window in which the processes start."""

    trials: int = 200
    commands: tuple[str, ...] = ()
    within: float = 0.5  # seconds within which all processes start
    seed: int = 0


def run(settings: WriterSettings, progress: Progress) -> Outcome:
    """Run the configured number of trials with competing processes."""
    with TemporaryDirectory() as name:
        writers = _WriterTrials(Path(name).resolve(), settings)
        for number in range(settings.trials):
            writers.try_once(number)
            progress.advance("T25: trials", number + 1, settings.trials)
        figures: dict[str, str | int | float] = {
            "trials": settings.trials,
            "processes": writers.processes,
            "wrote": writers.wrote,
            "refused": writers.refused,
            "mixed or missing": writers.mixed,
            "other files changed": writers.touched,
        }
        return Outcome(not writers.failures, figures, writers.failures[:_MOST_FAILURES])


class _WriterTrials:
    """Consecutive trials of competing processes."""

    def __init__(self, scratch: Path, settings: WriterSettings) -> None:
        self._scratch, self._settings = scratch, settings
        self._draw = random.Random(settings.seed)
        self._inputs = Inputs(scratch)
        every = self._inputs.commands()
        self._commands = {name: every[name] for name in settings.commands or every}
        self._alone = {name: self._run_alone(name) for name in self._commands}
        self.processes = self.wrote = self.refused = self.mixed = self.touched = 0
        self.failures: list[str] = []

    def _run_alone(self, name: str) -> list[dict[str, str]]:
        ending, words = self._commands[name]
        found = []
        for variant in (0, 1):
            out = self._scratch / "alone" / f"{name}-{variant}" / f"out{ending}"
            self._inputs.must(words(out, variant))
            found.append(contents(out))
        return found

    def try_once(self, number: int) -> None:
        """Start two or four processes on one output."""
        name = list(self._commands)[number % len(self._commands)]
        ending, words = self._commands[name]
        folder = self._scratch / f"trial-{number}"
        out = folder / f"out{ending}"
        beside = _make_neighbours(out)
        before = {path: state_of(path) for path in beside}
        children: list[ChildProcess] = []
        for process in range(self._draw.choice((2, 4))):
            children.append(start_command(words(out, process % 2), folder / f"said-{process}", SmallParts()))
            time.sleep(self._draw.uniform(0, self._settings.within))
        codes = [child.end() for child in children]
        place = f"trial {number}, {name}"
        for code, child in zip(codes, children, strict=True):
            self._judge_end(code, child, place)
        if not any(code == 0 for code in codes):
            return
        found = contents(out) if out.exists() else {}
        if found not in self._alone[name]:
            self.mixed += 1
            self.failures.append(f"{place}: {sorted(found)} is what none of them makes alone")
        others = [str(path.name) for path in beside if state_of(path) != before[path]]
        self.touched += len(others)
        self.failures += [f"{place}: {other} has changed" for other in others]
        self.failures += [f"{place}: {other} was left behind" for other in litter(folder)]

    def _judge_end(self, code: int, child: ChildProcess, place: str) -> None:
        self.processes += 1
        self.wrote += code == 0
        complaints = [line for line in child.output.splitlines() if "error" in line.lower() or "Traceback" in line]
        if code == 2 and len(complaints) == 1 and any(words in child.last_line for words in _REFUSALS):
            self.refused += 1
        elif code != 0:
            self.failures.append(f"{place}: exit code {code}: {child.last_line}")


def _make_neighbours(out: Path) -> list[Path]:
    out.parent.mkdir(parents=True)
    paths = [out.with_name(f"{out.name}{ending}") for ending in (".tmp", ".old", ".bak")]
    paths.append(out.with_name(f".{out.name}.replaced"))
    for path in paths:
        path.mkdir()
        (path / "thesis.txt").write_text("years of work", encoding="utf-8")
    return paths
