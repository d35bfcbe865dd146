"""T1: a training run that is killed by SIGKILL at any moment loses no committed checkpoint.

A run that saves after every step is killed, restarted with the same command, killed again, and so on until it is done;
then the next run starts. Half of the kills come at a random time after the process starts, the other half at a random
time after a save starts. The process reports the start and end of each save, which shows which kills fell inside a
save. After every kill, the newest checkpoint must be intact and no older than the last committed one; the previous one
must be intact as well, and so must the metrics up to it. The final result must be bit-identical to that of an
uninterrupted run.
"""

import random
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from cloze.checkpoint import StateStore, TrainingState
from cloze.progress import Progress
from cloze.train.run import Run
from torture.campaign import Outcome
from torture.training import (
    ChildProcess,
    Result,
    command,
    differences,
    leftovers,
    make_corpus,
    newest,
    one_before,
    result,
    run_command,
    start_command,
)

_MOST_FAILURES = 10


@dataclass(frozen=True)
class KillSettings:
    """The number of kills, and the length of a run."""

    kills: int = 200
    inside: int = 50  # minimum number of kills inside a save
    steps: int = 30
    seed: int = 0


def tell_of_saves(pipe: Connection) -> None:
    """Hook: report the start and end of every save."""
    save = StateStore.save
    pipe.send((0, "begun", time.monotonic()))

    def telling(store: StateStore, state: TrainingState) -> None:
        pipe.send((state.step, "saving", time.monotonic()))
        save(store, state)
        pipe.send((state.step, "saved", time.monotonic()))

    patch.object(StateStore, "save", telling).start()


def run(settings: KillSettings, progress: Progress) -> Outcome:
    """Train once without interruption, then with kills until enough kills have occurred."""
    with TemporaryDirectory() as name:
        trials = _KillTrials(Path(name), settings, progress)
        while not trials.over and not trials.failures:
            trials.train_once()
        figures: dict[str, str | int | float] = {
            "kills": trials.kills,
            "inside saves": trials.inside,
            "lost": trials.lost,
            "runs": trials.runs,
            "identical weights": trials.equal,
        }
        if trials.inside < settings.inside and not trials.failures:
            trials.failures.append(f"{trials.inside} kills inside a save; at least {settings.inside} are required")
        return Outcome(not trials.failures, figures, trials.failures[:_MOST_FAILURES])


class _KillTrials:
    """Consecutive runs, each killed repeatedly until it is done."""

    def __init__(self, scratch: Path, settings: KillSettings, progress: Progress) -> None:
        self._scratch, self._settings, self._progress = scratch, settings, progress
        self._draw = random.Random(settings.seed)
        self._data = make_corpus(scratch / "corpus")
        self.kills = self.inside = self.lost = self.runs = self.equal = 0
        self.failures: list[str] = []
        self._reference = self._train_reference()

    @property
    def over(self) -> bool:
        """Whether the trial is finished: enough kills, or four times as many without enough inside saves."""
        enough = self.kills >= self._settings.kills and self.inside >= self._settings.inside
        return enough or self.kills >= 4 * self._settings.kills

    def _train_reference(self) -> Result | None:
        code, child = run_command(self._words("reference"), self._scratch / "said", tell_of_saves)
        if code != 0:
            self.failures.append(f"uninterrupted run: exit code {code}: {child.last_line}")
            return None
        begun, *times = [moment for _, _, moment in child.messages]
        self._saving = max(end - start for start, end in zip(times[::2], times[1::2], strict=True))
        # The lifetime is long enough for some steps and short enough for frequent kills.
        self._living = times[0] - begun + (times[-1] - times[0]) / self._settings.steps * 4
        return result(self._scratch / "reference")

    def _words(self, out: str) -> list[str]:
        return command(self._data, self._scratch / out, self._settings.steps)

    def train_once(self) -> None:
        """Run the training command, killing it repeatedly, until the model exists."""
        out = self._scratch / f"run-{self.runs}"
        committed = 0
        while not self.failures:
            child = start_command(self._words(out.name), self._scratch / "said", tell_of_saves)
            killed = not self.over and self._kill(child)
            code = child.end()
            self._note(child, killed and code == -9)
            saved = [step for step, word, _ in child.messages if word == "saved"]
            committed = max([committed, *saved])
            if code not in (0, -9):
                self.failures.append(f"exit code {code}: {child.last_line}")
            self._check(out, committed)
            if code == 0:
                break
        self.runs += 1
        if self._reference is not None and Run(out).finished:
            found = differences(result(out), self._reference, out.name)
            self.failures += found + [f"{out.name}: {name} was left behind" for name in leftovers(out)]
            self.equal += not found

    def _kill(self, child: ChildProcess) -> bool:
        """Kill the process at a random time; return False if it had already finished."""
        if self._draw.random() < 0.5:
            saves = self._draw.randint(1, 3)
            while sum(word == "saving" for _, word, _ in child.messages) < saves:
                if not child.listen(0.05) and not child.process.is_alive():
                    return False
            time.sleep(self._draw.uniform(0, self._saving))
        else:
            time.sleep(self._draw.uniform(0, self._living))
        child.process.kill()
        return True

    def _note(self, child: ChildProcess, killed: bool) -> None:
        if killed:
            self.kills += 1
            self.inside += bool(child.messages) and child.messages[-1][1] == "saving"
            self._progress.advance("T1: killing", self.kills, self._settings.kills)

    def _check(self, out: Path, committed: int) -> None:
        """Check that all committed checkpoints still exist and are intact."""
        if not out.is_dir() or Run(out).finished:
            return
        state, said = newest(out)
        step = state.step if state else 0
        if said or step < committed:
            self.lost += 1
            self.failures.append(f"step {committed} was committed, the newest intact one is step {step} {said}")
        if step > 1:
            before, said = one_before(out, step)
            if before is None or before.step != step - 1:
                self.lost += 1
                self.failures.append(f"step {step} exists, but step {step - 1} is not intact {said}")
        measured = {row["step"] for row in Run(out).metrics()}
        if missing := set(range(1, step + 1)) - measured:
            self.failures.append(f"the measurements of steps {sorted(missing)} are lost")
