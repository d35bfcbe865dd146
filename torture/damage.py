"""T7: a checkpoint that is not what was written is never taken for one.

A training is killed just after a save. Of the two checkpoints that it leaves the newer one is damaged: a bit is
flipped, or a file is cut short, in each of its files. It must be noticed, named, and passed over for the one before.
Some of the damaged runs are given their command again, and must end with the weights of an undamaged one. Where both
are damaged, the command must be refused and leave everything as it is, until it is told to start over.
"""

import os
import random
import shutil
import signal
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from cloze.checkpoint import StateStore, TrainingState
from cloze.progress import Progress
from cloze.train.run import Run
from torture.campaign import Outcome
from torture.preparation import digests
from torture.training import command, differences, live, make_corpus, newest, result

_STEPS, _OLDER, _NEWER = 8, 4, 5
_MOST_FAILURES = 10


@dataclass(frozen=True)
class DamageSettings:
    """How many damages, and how many of the damaged runs go on to their end."""

    count: int = 500
    resumed: int = 10
    seed: int = 0


def die_after_a_save(pipe: Connection) -> None:  # noqa: ARG001 (a hook's signature)
    """The hook: end at once when the newer checkpoint is committed."""
    save = StateStore.save

    def dying(store: StateStore, state: TrainingState) -> None:
        save(store, state)
        if state.step == _NEWER:
            os.kill(os.getpid(), signal.SIGKILL)

    patch.object(StateStore, "save", dying).start()


def run(settings: DamageSettings, progress: Progress) -> Outcome:
    """Damage, look, and mend."""
    with TemporaryDirectory() as name:
        scratch = Path(name)
        ruin = _Ruin(scratch, make_corpus(scratch / "corpus"), settings, progress)
        if ruin.train():
            ruin.damage_often()
            ruin.damage_all()
        figures: dict[str, str | int | float] = {
            "flips": ruin.flips,
            "truncations": ruin.cuts,
            "detected": ruin.detected,
            "fell back": ruin.fell_back,
            "resumed to the same weights": ruin.resumed,
            "refused with none left": ruin.refused,
        }
        return Outcome(not ruin.failures, figures, ruin.failures[:_MOST_FAILURES])


class _Ruin:
    """A run with two checkpoints, of which the newer one is damaged again and again."""

    def __init__(self, scratch: Path, data: Path, settings: DamageSettings, progress: Progress) -> None:
        self._scratch, self._data, self._settings, self._progress = scratch, data, settings, progress
        self._out, self._left = scratch / "ruin", scratch / "left"
        self._draw = random.Random(settings.seed)
        self.flips = self.cuts = self.detected = self.fell_back = self.resumed = self.refused = 0
        self.failures: list[str] = []

    def train(self) -> bool:
        """Train once in peace, and once to the kill; whether two checkpoints are there to be damaged."""
        for out, expected in ((self._scratch / "whole", 0), (self._out, -signal.SIGKILL)):
            hook = die_after_a_save if expected else None
            code, life = live(self._words(out), self._scratch / "said", hook)
            if code != expected:
                self.failures.append(f"{out.name}, in peace: exit code {code}: {life.last_words}")
                return False
        self._out.rename(self._left)
        self._build()
        kept = sorted(path.name for path in Run(self._out).store.folder.glob("step-*"))
        if kept != [folder.name for folder in self._folders().values()]:
            self.failures.append(f"after step {_NEWER} the run holds {kept}")
        return not self.failures

    def damage_often(self) -> None:
        """One damage at a time."""
        every = max(1, self._settings.count // max(1, self._settings.resumed))
        newer = self._folders()[_NEWER]
        for number in range(self._settings.count):
            path = self._draw.choice(sorted(newer.iterdir()))
            good = path.read_bytes()
            bad, told = self._spoil(good)
            path.write_bytes(bad)
            self._look(f"{path.name}, {told}")
            if number % every == 0:
                self._resume(f"{path.name}, {told}", f"resuming at step {_OLDER}\n")
                self._build()
            else:
                path.write_bytes(good)
            self._progress.advance("T7: damaging", number + 1, self._settings.count)

    def damage_all(self) -> None:
        """With no whole checkpoint left, the command is refused until it is told to start over."""
        self._build()
        for folder in self._folders().values():
            (folder / "model.safetensors").write_bytes(b"")
        before = digests(self._out)
        code, life = live(self._words(self._out), self._scratch / "said")
        named = all(str(folder) in life.last_words for folder in self._folders().values())
        if code == 2 and named and life.last_words.endswith("(--fresh)"):
            self.refused += 1
        else:
            self.failures.append(f"both damaged: exit code {code}: {life.last_words}")
        if digests(self._out) != before:
            self.failures.append("both damaged: the refusal has changed the run's folder")
        self._resume("both damaged", "", "--fresh")

    def _spoil(self, good: bytes) -> tuple[bytes, str]:
        if self._draw.random() < 0.5:
            self.flips += 1
            place, bit = self._draw.randrange(len(good)), self._draw.randrange(8)
            return good[:place] + bytes([good[place] ^ (1 << bit)]) + good[place + 1 :], f"bit {bit} of byte {place}"
        self.cuts += 1
        length = self._draw.randrange(len(good) - 1)  # the line break at the end of a manifest means nothing
        return good[:length], f"cut to {length} of {len(good)} bytes"

    def _look(self, place: str) -> None:
        state, said = newest(self._out)
        if len(said) == 1 and said[0].startswith(str(self._folders()[_NEWER])):
            self.detected += 1
        else:
            self.failures.append(f"{place}: not detected {said}")
        if state is not None and state.step == _OLDER:
            self.fell_back += 1
        else:
            self.failures.append(f"{place}: went on from step {state.step if state else 0}")

    def _resume(self, place: str, said: str, *more: str) -> None:
        """Give the command again: what it must say, and what it must come to."""
        code, life = live([*self._words(self._out), *more], self._scratch / "said")
        fell_back = "falling back to the checkpoint before it\n" in life.words
        if code != 0 or said not in life.words or fell_back != bool(said):
            self.failures.append(f"{place}: exit code {code}: {life.words.splitlines()[:1]}")
            return
        found = differences(result(self._out), result(self._scratch / "whole"), place)
        self.failures += found
        self.resumed += not found

    def _words(self, out: Path) -> list[str]:
        return command(self._data, out, _STEPS)

    def _build(self) -> None:
        """The run as the killed process has left it."""
        shutil.rmtree(self._out, ignore_errors=True)
        shutil.copytree(self._left, self._out)

    def _folders(self) -> dict[int, Path]:
        return {step: Run(self._out).store.folder / f"step-{step:08d}" for step in (_OLDER, _NEWER)}
