"""T7: a damaged checkpoint is never loaded.

Training is killed just after a save, which leaves two checkpoints. The newer one is damaged: a bit flip or a truncation
in one of its files. The damage must be detected and reported, and the older checkpoint used. Some of the damaged runs
are resumed and must end with the same weights as an undamaged run. If both checkpoints are damaged, the command must
fail and change nothing until --fresh is given.
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
from torture.training import command, differences, make_corpus, newest, result, run_command

_STEPS, _OLDER, _NEWER = 8, 4, 5
_MOST_FAILURES = 10


@dataclass(frozen=True)
class DamageSettings:
    """How often a checkpoint is damaged, and the number of damaged runs that are resumed to the end."""

    count: int = 500
    resumed: int = 10
    seed: int = 0


def die_after_a_save(pipe: Connection) -> None:  # noqa: ARG001 (a hook's signature)
    """Hook: kill the process once the newer checkpoint is committed."""
    save = StateStore.save

    def dying(store: StateStore, state: TrainingState) -> None:
        save(store, state)
        if state.step == _NEWER:
            os.kill(os.getpid(), signal.SIGKILL)

    patch.object(StateStore, "save", dying).start()


def run(settings: DamageSettings, progress: Progress) -> Outcome:
    """Damage checkpoints, check that the damage is detected, and resume."""
    with TemporaryDirectory() as name:
        scratch = Path(name)
        trial = _DamagedRun(scratch, make_corpus(scratch / "corpus"), settings, progress)
        if trial.train():
            trial.damage_often()
            trial.damage_all()
        figures: dict[str, str | int | float] = {
            "flips": trial.flips,
            "truncations": trial.cuts,
            "detected": trial.detected,
            "fell back": trial.fell_back,
            "resumed to the same weights": trial.resumed,
            "rejected without an intact checkpoint": trial.refused,
        }
        return Outcome(not trial.failures, figures, trial.failures[:_MOST_FAILURES])


class _DamagedRun:
    """A run with two checkpoints, of which the newer one is damaged repeatedly."""

    def __init__(self, scratch: Path, data: Path, settings: DamageSettings, progress: Progress) -> None:
        self._scratch, self._data, self._settings, self._progress = scratch, data, settings, progress
        self._out, self._left = scratch / "damaged", scratch / "left"
        self._draw = random.Random(settings.seed)
        self.flips = self.cuts = self.detected = self.fell_back = self.resumed = self.refused = 0
        self.failures: list[str] = []

    def train(self) -> bool:
        """Train once without interruption and once until the kill; return whether both checkpoints exist."""
        for out, expected in ((self._scratch / "whole", 0), (self._out, -signal.SIGKILL)):
            hook = die_after_a_save if expected else None
            code, child = run_command(self._words(out), self._scratch / "said", hook)
            if code != expected:
                self.failures.append(f"{out.name}, uninterrupted run: exit code {code}: {child.last_line}")
                return False
        self._out.rename(self._left)
        self._build()
        kept = sorted(path.name for path in Run(self._out).store.folder.glob("step-*"))
        if kept != [folder.name for folder in self._folders().values()]:
            self.failures.append(f"after step {_NEWER} the run holds {kept}")
        return not self.failures

    def damage_often(self) -> None:
        """Damage one file at a time, the configured number of times."""
        every = max(1, self._settings.count // max(1, self._settings.resumed))
        newer = self._folders()[_NEWER]
        for number in range(self._settings.count):
            path = self._draw.choice(sorted(newer.iterdir()))
            good = path.read_bytes()
            bad, change = self._spoil(good)
            path.write_bytes(bad)
            self._look(f"{path.name}, {change}")
            if number % every == 0:
                self._resume(f"{path.name}, {change}", f"resuming at step {_OLDER}\n")
                self._build()
            else:
                path.write_bytes(good)
            self._progress.advance("T7: damaging", number + 1, self._settings.count)

    def damage_all(self) -> None:
        """Check that the command is rejected without an intact checkpoint, until --fresh is given."""
        self._build()
        for folder in self._folders().values():
            (folder / "model.safetensors").write_bytes(b"")
        before = digests(self._out)
        code, child = run_command(self._words(self._out), self._scratch / "said")
        named = all(str(folder) in child.last_line for folder in self._folders().values())
        if code == 2 and named and child.last_line.endswith("(--fresh)"):
            self.refused += 1
        else:
            self.failures.append(f"both damaged: exit code {code}: {child.last_line}")
        if digests(self._out) != before:
            self.failures.append("both damaged: the rejected command changed the run's folder")
        self._resume("both damaged", "", "--fresh")

    def _spoil(self, good: bytes) -> tuple[bytes, str]:
        if self._draw.random() < 0.5:
            self.flips += 1
            place, bit = self._draw.randrange(len(good)), self._draw.randrange(8)
            return good[:place] + bytes([good[place] ^ (1 << bit)]) + good[place + 1 :], f"bit {bit} of byte {place}"
        self.cuts += 1
        length = self._draw.randrange(len(good) - 1)  # the line break at the end of a manifest is insignificant
        return good[:length], f"cut to {length} of {len(good)} bytes"

    def _look(self, place: str) -> None:
        state, output = newest(self._out)
        if len(output) == 1 and output[0].startswith(str(self._folders()[_NEWER])):
            self.detected += 1
        else:
            self.failures.append(f"{place}: not detected {output}")
        if state is not None and state.step == _OLDER:
            self.fell_back += 1
        else:
            self.failures.append(f"{place}: resumed from step {state.step if state else 0}")

    def _resume(self, place: str, output: str, *more: str) -> None:
        """Resume the run; check its output and its result."""
        code, child = run_command([*self._words(self._out), *more], self._scratch / "said")
        fell_back = "falling back to the checkpoint before it\n" in child.output
        if code != 0 or output not in child.output or fell_back != bool(output):
            self.failures.append(f"{place}: exit code {code}: {child.output.splitlines()[:1]}")
            return
        found = differences(result(self._out), result(self._scratch / "whole"), place)
        self.failures += found
        self.resumed += not found

    def _words(self, out: Path) -> list[str]:
        return command(self._data, out, _STEPS)

    def _build(self) -> None:
        """Restore the run as the killed process left it."""
        shutil.rmtree(self._out, ignore_errors=True)
        shutil.copytree(self._left, self._out)

    def _folders(self) -> dict[int, Path]:
        return {step: Run(self._out).store.folder / f"step-{step:08d}" for step in (_OLDER, _NEWER)}
