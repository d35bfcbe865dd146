"""T7: a checkpoint that is not what was written is never taken for one.

Of two committed checkpoints the newer one is damaged: a bit is flipped, or a file is cut short, in each of its files.
It must be noticed, named, and passed over for the one before. Some of the damaged runs are given their command again,
and must end with the weights of an undamaged one; so must one whose checkpoints are all damaged.
"""

import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from cloze.progress import Progress
from cloze.train.run import Run
from torture.campaign import Outcome
from torture.resumes import KeepCopies
from torture.training import command, differences, live, make_corpus, newest, result

_STEPS, _OLDER, _NEWER = 8, 4, 5
_MOST_FAILURES = 10


@dataclass(frozen=True)
class DamageSettings:
    """How many damages, and how many of the damaged runs go on to their end."""

    count: int = 500
    resumed: int = 10
    seed: int = 0


def run(settings: DamageSettings, progress: Progress) -> Outcome:
    """Damage, look, and mend."""
    with TemporaryDirectory() as name:
        scratch = Path(name)
        words = command(make_corpus(scratch / "corpus"), scratch / "whole", _STEPS)
        code, life = live(words, scratch / "said", KeepCopies(scratch / "kept"))
        if code != 0:
            return Outcome(False, {}, [f"in peace: exit code {code}: {life.last_words}"])
        ruin = _Ruin(scratch, words, settings, progress)
        ruin.damage_often()
        ruin.damage_all()
        figures: dict[str, str | int | float] = {
            "flips": ruin.flips,
            "truncations": ruin.cuts,
            "detected": ruin.detected,
            "fell back": ruin.fell_back,
            "resumed to the same weights": ruin.resumed,
        }
        return Outcome(not ruin.failures, figures, ruin.failures[:_MOST_FAILURES])


class _Ruin:
    """A run with two checkpoints, of which the newer one is damaged again and again."""

    def __init__(self, scratch: Path, words: list[str], settings: DamageSettings, progress: Progress) -> None:
        self._scratch, self._settings, self._progress = scratch, settings, progress
        self._out = scratch / "ruin"
        self._words = [str(self._out) if word == str(scratch / "whole") else word for word in words]
        self._draw = random.Random(settings.seed)
        self.flips = self.cuts = self.detected = self.fell_back = self.resumed = 0
        self.failures: list[str] = []

    def damage_often(self) -> None:
        """One damage at a time."""
        self._build()
        every = max(1, self._settings.count // max(1, self._settings.resumed))
        newer = self._folders()[_NEWER]
        for number in range(self._settings.count):
            path = self._draw.choice(sorted(newer.iterdir()))
            good = path.read_bytes()
            bad, told = self._spoil(good)
            path.write_bytes(bad)
            self._look(f"{path.name}, {told}")
            if number % every == 0:
                self._resume(f"{path.name}, {told}", _OLDER)
                self._build()
            else:
                path.write_bytes(good)
            self._progress.advance("T7: damaging", number + 1, self._settings.count)

    def damage_all(self) -> None:
        """With no whole checkpoint left, the run starts over, and says so."""
        self._build()
        for folder in self._folders().values():
            (folder / "model.safetensors").write_bytes(b"")
        state, said = newest(self._out)
        if state is not None or len(said) != 2:
            self.failures.append(f"both damaged: {len(said)} damages were told")
        self._resume("both damaged", 0)

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

    def _resume(self, place: str, step: int) -> None:
        code, life = live(self._words, self._scratch / "said")
        there = f"resuming at step {step}\n" in life.words if step else "resuming" not in life.words
        if code != 0 or not there or ("falling back" if step else "starting over") not in life.words:
            self.failures.append(f"{place}: exit code {code}: {life.words.splitlines()[:1]}")
            return
        found = differences(result(self._out), result(self._scratch / "whole"), place)
        self.failures += found
        self.resumed += not found

    def _build(self) -> None:
        """The run as it was just after the newer checkpoint was committed, the older one not yet deleted."""
        shutil.rmtree(self._out, ignore_errors=True)
        self._out.mkdir()
        for name in ("run.json", "metrics.jsonl"):
            shutil.copyfile(self._scratch / "whole" / name, self._out / name)
        for step in (_OLDER, _NEWER):
            shutil.copytree(self._scratch / "kept" / str(step), self._out / "checkpoints", dirs_exist_ok=True)

    def _folders(self) -> dict[int, Path]:
        return {step: Run(self._out).store.folder / f"step-{step:08d}" for step in (_OLDER, _NEWER)}
