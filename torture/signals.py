"""T3: SIGTERM and SIGINT during a step, a save, an evaluation and preparation.

The process sends the signal to itself, from a thread that waits a random time after the phase starts; if the phase ends
first, the signal is sent at its very end. The process must end soon with the exit code that the shell expects, and the
same command must resume: at most one step and no finished shard is lost, and the final result is bit-identical to that
of an undisturbed run.
"""

import os
import random
import signal
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args
from unittest.mock import patch

from cloze.checkpoint import StateStore
from cloze.corpus.preparation.prepare import _Work
from cloze.progress import Progress
from cloze.train.loop import _Training
from cloze.train.pretraining.held_out import HeldOut
from cloze.train.run import Run
from torture.campaign import Outcome
from torture.preparation import differences as other_files
from torture.preparation import digests
from torture.training import Result, command, differences, leftovers, make_corpus, newest, result, run_command

Place = Literal["step", "save", "evaluation", "preparation"]
_PLACES: dict[Place, tuple[type, str]] = {
    "step": (_Training, "_step"),
    "save": (StateStore, "save"),
    "evaluation": (HeldOut, "evaluate"),
    "preparation": (_Work, "make_shards"),
}
_EVALUATE_EVERY = 2
_MOST_FAILURES = 10


@dataclass(frozen=True)
class SignalSettings:
    """The number of signals per phase, and the limits."""

    count: int = 50
    places: tuple[Place, ...] = get_args(Place)
    steps: int = 12
    longest: float = 25.0  # maximum seconds from the signal to the end
    seed: int = 0


@dataclass(frozen=True)
class SendInside:
    """Hook: send a signal during the n-th occurrence of a phase."""

    place: Place
    number: int
    entry: int  # occurrence of the phase, counted from 1
    wait: float  # seconds from the start of the phase to the signal
    shards: Path  # folder in which preparation stores finished shards

    def __call__(self, pipe: Connection) -> None:
        """Patch the function of the phase."""
        owner, name = _PLACES[self.place]
        work = getattr(owner, name)
        entries = 0

        def disturbed(*arguments: Any, **options: Any) -> Any:
            nonlocal entries
            entries += 1
            if entries != self.entry:
                return work(*arguments, **options)
            sender = _Sender(self, pipe)
            timer = threading.Timer(self.wait, sender.send)
            timer.start()
            try:
                return work(*arguments, **options)
            finally:
                timer.cancel()
                sender.send()

        patch.object(owner, name, disturbed).start()


class _Sender:
    """Sends one signal, on the first call."""

    def __init__(self, plan: SendInside, pipe: Connection) -> None:
        self._plan, self._pipe, self._lock, self._sent = plan, pipe, threading.Lock(), False

    def send(self) -> None:
        with self._lock:
            if self._sent:
                return
            self._sent = True
            self._pipe.send((time.monotonic(), _finished_shards(self._plan.shards)))
            os.kill(os.getpid(), self._plan.number)


def run(settings: SignalSettings, progress: Progress) -> Outcome:
    """Send signals in every phase, equally many of each kind."""
    figures: dict[str, str | int | float] = {}
    failures: list[str] = []
    slowest, most_lost = 0.0, 0
    with TemporaryDirectory() as name:
        scratch = Path(name)
        data = make_corpus(scratch / "corpus")
        make_corpus(scratch / "longer", documents=400)
        for place in settings.places:
            trial = _SignalTrials(place, scratch, data, settings, progress)
            trial.go()
            figures[f"in {place}"] = trial.sent
            failures += trial.failures
            slowest, most_lost = max(slowest, trial.slowest), max(most_lost, trial.lost)
    figures |= {"most steps or shards lost": most_lost, "slowest end s": round(slowest, 2)}
    return Outcome(not failures, figures, failures[:_MOST_FAILURES])


class _SignalTrials:
    """One phase: a run or a preparation that is interrupted until it is done, then the next one."""

    def __init__(self, place: Place, scratch: Path, data: Path, settings: SignalSettings, progress: Progress) -> None:
        self._place, self._scratch, self._data = place, scratch, data
        self._settings, self._progress = settings, progress
        self._draw = random.Random(f"{settings.seed} {place}")
        self.sent = self.lost = 0
        self.slowest = 0.0
        self.failures: list[str] = []
        self._longest_wait = 0.3 if place == "preparation" else 0.05

    def go(self) -> None:
        """Send the configured number of signals."""
        reference = self._scratch / f"{self._place}-reference"
        code, child = run_command(self._words(reference), self._scratch / "said")
        if code != 0:
            self.failures.append(f"uninterrupted run: exit code {code}: {child.last_line}")
        runs = 0
        while self.sent < self._settings.count and not self.failures:
            out = self._scratch / f"{self._place}-{runs}"
            while not self.failures and self._child_main(out):
                pass
            if not self.failures:
                self.failures += self._compare(out, reference)
            runs += 1

    def _words(self, out: Path) -> list[str]:
        if self._place != "preparation":
            return command(self._data, out, self._settings.steps, evaluate_every=_EVALUATE_EVERY)
        folder = self._scratch / "longer"
        words = ["prepare", str(folder / "text.txt"), "--vocab", str(folder / "vocabulary"), "--out", str(out)]
        return [*words, "--shard-size", "0.01", "--workers", "1"]

    def _child_main(self, out: Path) -> bool:
        """Run the command once; return whether it was interrupted and must be repeated."""
        number = signal.SIGTERM if self.sent % 2 else signal.SIGINT
        chances = self._chances(out)
        hook = None
        if chances > 0 and self.sent < self._settings.count:
            wait = self._draw.uniform(0, self._longest_wait)
            entry = self._draw.randint(1, chances)
            hook = SendInside(self._place, number, entry, wait, out.with_name(f"{out.name}.partial"))
        code, child = run_command(self._words(out), self._scratch / "said", hook)
        ended = time.monotonic()
        expected = 128 + number if hook else 0
        if code != expected or (hook and len(child.messages) != 1):
            self.failures.append(f"{self._place}: exit code {code}, not {expected}: {child.last_line}")
        if hook is None or self.failures:
            return False
        moment, shards = child.messages[0]
        self.sent += 1
        self.slowest = max(self.slowest, ended - moment)
        self._progress.advance(f"T3: signals in {self._place}", self.sent, self._settings.count)
        if ended - moment > self._settings.longest:
            self.failures.append(f"{self._place}: {ended - moment:.0f} s from the signal to the end")
        self._count_lost(out, shards)
        return True

    def _chances(self, out: Path) -> int:
        """Return how many times the phase will still be entered before the run is nearly done."""
        if self._place == "preparation":
            return 1
        state, _ = newest(out)
        step = state.step if state else 0
        left = self._settings.steps - step
        match self._place:
            case "evaluation":
                return min(2, (left - 1) // _EVALUATE_EVERY)
            case "step":
                return min(3, left - 1)
        return min(3, left - 2)

    def _count_lost(self, out: Path, shards: int) -> None:
        if self._place == "preparation":
            lost = shards - _finished_shards(out.with_name(f"{out.name}.partial"))
        else:
            state, _ = newest(out)
            done = max((int(row["step"]) for row in Run(out).metrics()), default=0)
            lost = done - (state.step if state else 0)
        self.lost = max(self.lost, lost)
        if lost > (self._place != "preparation"):
            self.failures.append(f"{self._place}: {lost} lost")

    def _compare(self, out: Path, reference: Path) -> list[str]:
        if self._place == "preparation":
            return other_files(digests(reference), digests(out))
        found: Result = result(out)
        return differences(found, result(reference), out.name) + [f"{name} was left behind" for name in leftovers(out)]


def _finished_shards(folder: Path) -> int:
    return sum(path.parent.suffix != ".tmp" for path in folder.glob("shards/*/shard.json"))
