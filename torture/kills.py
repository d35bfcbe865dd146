"""T1: a training that is killed by SIGKILL at any moment loses no checkpoint that it had committed.

A training that saves after every step is killed, given the same command, killed again, and so on until it is done; then
the next one. Half of the kills come at random moments of a process's life, the other half at random moments after a
save has begun. Which of them fell inside a save is told by the process itself, which sends a word before and after
each. After every kill the newest checkpoint must be whole and no older than the last that was committed, and the one
before it whole as well, with the measurements up to it; and what comes out in the end is, to the bit, what an
uninterrupted run makes.
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
    Life,
    Result,
    begin,
    command,
    differences,
    leftovers,
    live,
    make_corpus,
    newest,
    one_before,
    result,
)

_MOST_FAILURES = 10


@dataclass(frozen=True)
class KillSettings:
    """How often to kill, and how long a run is."""

    kills: int = 200
    inside: int = 50  # at least so many of them inside a save
    steps: int = 30
    seed: int = 0


def tell_of_saves(pipe: Connection) -> None:
    """The hook: a word before and after every save."""
    save = StateStore.save
    pipe.send((0, "begun", time.monotonic()))

    def telling(store: StateStore, state: TrainingState) -> None:
        pipe.send((state.step, "saving", time.monotonic()))
        save(store, state)
        pipe.send((state.step, "saved", time.monotonic()))

    patch.object(StateStore, "save", telling).start()


def run(settings: KillSettings, progress: Progress) -> Outcome:
    """Train in peace, then under fire as often as it takes."""
    with TemporaryDirectory() as name:
        siege = _Siege(Path(name), settings, progress)
        while not siege.over and not siege.failures:
            siege.train_once()
        figures: dict[str, str | int | float] = {
            "kills": siege.kills,
            "inside saves": siege.inside,
            "lost": siege.lost,
            "runs": siege.runs,
            "weights as uninterrupted": siege.equal,
        }
        if siege.inside < settings.inside and not siege.failures:
            siege.failures.append(f"{siege.inside} kills inside a save; at least {settings.inside} were to be")
        return Outcome(not siege.failures, figures, siege.failures[:_MOST_FAILURES])


class _Siege:
    """Trainings one after the other, each killed again and again until it is done."""

    def __init__(self, scratch: Path, settings: KillSettings, progress: Progress) -> None:
        self._scratch, self._settings, self._progress = scratch, settings, progress
        self._draw = random.Random(settings.seed)
        self._data = make_corpus(scratch / "corpus")
        self.kills = self.inside = self.lost = self.runs = self.equal = 0
        self.failures: list[str] = []
        self._peace = self._train_in_peace()

    @property
    def over(self) -> bool:
        """Whether there were enough kills; a machine on which none hits a save gives up in the end."""
        enough = self.kills >= self._settings.kills and self.inside >= self._settings.inside
        return enough or self.kills >= 4 * self._settings.kills

    def _train_in_peace(self) -> Result | None:
        code, life = live(self._words("peace"), self._scratch / "said", tell_of_saves)
        if code != 0:
            self.failures.append(f"in peace: exit code {code}: {life.last_words}")
            return None
        begun, *times = [moment for _, _, moment in life.told]
        self._saving = max(end - start for start, end in zip(times[::2], times[1::2], strict=True))
        # Long enough to get some steps further, short enough to die often.
        self._living = times[0] - begun + (times[-1] - times[0]) / self._settings.steps * 4
        return result(self._scratch / "peace")

    def _words(self, out: str) -> list[str]:
        return command(self._data, self._scratch / out, self._settings.steps)

    def train_once(self) -> None:
        """Train until the model is there."""
        out = self._scratch / f"run-{self.runs}"
        committed = 0
        while not self.failures:
            life = begin(self._words(out.name), self._scratch / "said", tell_of_saves)
            killed = not self.over and self._kill(life)
            code = life.end()
            self._note(life, killed and code == -9)
            saved = [step for step, word, _ in life.told if word == "saved"]
            committed = max([committed, *saved])
            if code not in (0, -9):
                self.failures.append(f"exit code {code}: {life.last_words}")
            self._check(out, committed)
            if code == 0:
                break
        self.runs += 1
        if self._peace is not None and Run(out).finished:
            found = differences(result(out), self._peace, out.name)
            self.failures += found + [f"{out.name}: {name} was left behind" for name in leftovers(out)]
            self.equal += not found

    def _kill(self, life: Life) -> bool:
        """Kill at a random moment; False if the process was done before."""
        if self._draw.random() < 0.5:
            saves = self._draw.randint(1, 3)
            while sum(word == "saving" for _, word, _ in life.told) < saves:
                if not life.listen(0.05) and not life.process.is_alive():
                    return False
            time.sleep(self._draw.uniform(0, self._saving))
        else:
            time.sleep(self._draw.uniform(0, self._living))
        life.process.kill()
        return True

    def _note(self, life: Life, killed: bool) -> None:
        if killed:
            self.kills += 1
            self.inside += bool(life.told) and life.told[-1][1] == "saving"
            self._progress.advance("T1: killing", self.kills, self._settings.kills)

    def _check(self, out: Path, committed: int) -> None:
        """Whatever was committed must still be there, and whole."""
        if not out.is_dir() or Run(out).finished:
            return
        state, said = newest(out)
        step = state.step if state else 0
        if said or step < committed:
            self.lost += 1
            self.failures.append(f"step {committed} was committed, step {step} is the newest that is whole {said}")
        if step > 1:
            before, said = one_before(out, step)
            if before is None or before.step != step - 1:
                self.lost += 1
                self.failures.append(f"step {step} is there, but step {step - 1} is not whole {said}")
        measured = {row["step"] for row in Run(out).metrics()}
        if missing := set(range(1, step + 1)) - measured:
            self.failures.append(f"the measurements of steps {sorted(missing)} are lost")
