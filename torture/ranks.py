"""T2: two ranks train together, one of them is killed, and torchrun restarts both.

Uses ``torchrun --max-restarts`` on this machine, with DDP and with FSDP2. Most kills come at a random time after the
first checkpoint of an attempt; some come at a random time during start-up. No committed checkpoint may be lost, the run
must complete, and its losses must equal those of an undisturbed run.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from cloze.progress import Progress
from cloze.train.run import Run
from torture.campaign import Outcome
from torture.preparation import children
from torture.training import command, leftovers, make_corpus, newest

_LONGEST_RUN = 900.0  # timeout in seconds
_LONGEST_WAIT = 120.0  # seconds until a new attempt must have saved a checkpoint
_CLOSE = 1e-6
_MOST_FAILURES = 10
_AT_THE_START = 0.2  # share of the kills during start-up


@dataclass(frozen=True)
class RankSettings:
    """The number of kills per run with each strategy."""

    kills: int = 10
    ways: tuple[str, ...] = ("ddp", "fsdp")
    steps: int = 60
    seed: int = 0


def run(settings: RankSettings, progress: Progress) -> Outcome:
    """Train with and without kills, with each strategy."""
    figures: dict[str, str | int | float] = {"kills": 0, "lost": 0, "completed": 0, "largest difference": 0.0}
    failures: list[str] = []
    with TemporaryDirectory() as name:
        scratch = Path(name)
        data = make_corpus(scratch / "corpus")
        for way in settings.ways:
            trial = _KilledRun(scratch, data, way, settings, progress)
            trial.train()
            failures += trial.failures
            for figure, value in (("kills", trial.kills), ("lost", trial.lost), ("completed", trial.completed)):
                figures[figure] = int(figures[figure]) + value
            figures["largest difference"] = max(float(figures["largest difference"]), trial.difference)
    return Outcome(not failures, figures, failures[:_MOST_FAILURES])


class _KilledRun:
    """One run, restarted by torchrun whenever one of its processes is killed."""

    def __init__(self, scratch: Path, data: Path, way: str, settings: RankSettings, progress: Progress) -> None:
        self._scratch, self._data, self._way = scratch, data, way
        self._settings, self._progress = settings, progress
        self._draw = random.Random(f"{settings.seed} {way}")
        self.kills = self.lost = self.completed = 0
        self.difference = 0.0
        self.failures: list[str] = []

    def train(self) -> None:
        """Train without kills, train with kills, and compare."""
        reference, killed = self._scratch / f"{self._way}-reference", self._scratch / f"{self._way}-killed"
        for out in (reference, killed):
            with (self._scratch / "said").open("w+b") as said:
                process = subprocess.Popen(self._words(out), stdout=said, stderr=said, env=_environment())
                try:
                    if out == killed:
                        self._kill_one(process, out)
                    code = process.wait(timeout=1 if self.failures else _LONGEST_RUN)
                except subprocess.TimeoutExpired:
                    self.failures.append(f"{out.name}: hangs")
                    return
                finally:
                    _end(process)
            if code != 0:
                last = (self._scratch / "said").read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
                self.failures.append(f"{out.name}: torchrun ended with exit code {code}: {last}")
                return
        self.completed += 1
        self.failures += [f"{killed.name}: {name} was left behind" for name in leftovers(killed)]
        self._compare(_losses(reference), _losses(killed))

    def _words(self, out: Path) -> list[str]:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        launcher += ["--max-restarts", str(self._settings.kills), "-m", "cloze"]
        return [*launcher, *command(self._data, out, self._settings.steps, "--dropout", "0", "--parallel", self._way)]

    def _kill_one(self, process: "subprocess.Popen[bytes]", out: Path) -> None:
        """Kill one process of every attempt until there were enough kills."""
        dead: set[int] = set()
        while self.kills < self._settings.kills and process.poll() is None and not self.failures:
            team = [number for number in children(process.pid) if number not in dead]
            if len(team) < 2:
                time.sleep(0.02)
                continue
            self._wait(process, out)
            committed = _newest_name(out)
            with suppress(ProcessLookupError):
                os.kill(self._draw.choice(team), signal.SIGKILL)
                self.kills += 1
            dead |= set(team)
            while process.poll() is None and set(team) & set(children(process.pid)):
                time.sleep(0.01)  # torchrun ends the other process; the new attempt first writes seconds later
            self._check(out, committed)
            self._progress.advance(f"T2: killing, {self._way}", self.kills, self._settings.kills)

    def _wait(self, process: "subprocess.Popen[bytes]", out: Path) -> None:
        if self._draw.random() < _AT_THE_START:
            time.sleep(self._draw.uniform(0, 3))
            return
        before, deadline = _newest_name(out), time.monotonic() + _LONGEST_WAIT
        while _newest_name(out) == before and process.poll() is None:
            if time.monotonic() > deadline:
                self.failures.append(f"{self._way}: no new checkpoint {_LONGEST_WAIT:.0f} s after kill {self.kills}")
                return
            time.sleep(0.005)
        time.sleep(self._draw.uniform(0, 0.3))

    def _check(self, out: Path, committed: int) -> None:
        if Run(out).finished:
            return
        state, said = newest(out)
        if said or (state.step if state else 0) < committed:
            self.lost += 1
            self.failures.append(f"{self._way}: step {committed} was committed, {said or 'it is missing'}")

    def _compare(self, reference: list[float], killed: list[float]) -> None:
        if len(reference) != len(killed) or not reference:
            self.failures.append(f"{self._way}: {len(killed)} measurements, not {len(reference)}")
            return
        self.difference = max(abs(one - other) for one, other in zip(reference, killed, strict=True))
        if self.difference > _CLOSE:
            self.failures.append(f"{self._way}: losses differ by {self.difference:.3g}")


def _newest_name(out: Path) -> int:
    """Return the step of the newest committed checkpoint, judged by its name."""
    names = (path.name.removeprefix("step-") for path in Run(out).store.folder.glob("step-*"))
    return max((int(name) for name in names if name.isdigit()), default=0)


def _losses(out: Path) -> list[float]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [row[name] for row in rows for name in ("loss", "held_out_mlm_loss") if name in row]


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Terminate all processes, whatever happened."""
    if process.poll() is None:
        for number in [*children(process.pid), process.pid]:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        process.wait()
