"""T3: SIGTERM and SIGINT, in a step, in a save, in an evaluation, in preparation.

The process itself sends the signal, from a thread that waits a random while after the place was entered; if the place
is left before, it is sent at the very end. The process must end soon, with the code that the shell expects, and the
same command must go on: no more than one step is lost, no finished shard is, and what comes out is, to the bit, what an
undisturbed run makes.
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
from torture.training import Result, command, differences, leftovers, live, make_corpus, newest, result

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
    """How many signals in each place, and what they must come to."""

    count: int = 50
    places: tuple[Place, ...] = get_args(Place)
    steps: int = 12
    longest: float = 25.0  # seconds from the signal to the end
    seed: int = 0


@dataclass(frozen=True)
class SendInside:
    """The hook: send a signal while the process is in a place for the n-th time."""

    place: Place
    number: int
    entry: int  # 1 for the first time
    wait: float  # seconds
    shards: Path  # where preparation puts what is finished

    def __call__(self, pipe: Connection) -> None:
        """Put the sender around the place."""
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
    """Sends one signal, whoever asks first."""

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
    """Send signals in every place, half of each kind."""
    figures: dict[str, str | int | float] = {}
    failures: list[str] = []
    slowest, most_lost = 0.0, 0
    with TemporaryDirectory() as name:
        scratch = Path(name)
        data = make_corpus(scratch / "corpus")
        make_corpus(scratch / "longer", documents=400)
        for place in settings.places:
            trial = _Trial(place, scratch, data, settings, progress)
            trial.go()
            figures[f"in {place}"] = trial.sent
            failures += trial.failures
            slowest, most_lost = max(slowest, trial.slowest), max(most_lost, trial.lost)
    figures |= {"most steps or shards lost": most_lost, "slowest end s": round(slowest, 2)}
    return Outcome(not failures, figures, failures[:_MOST_FAILURES])


class _Trial:
    """One place: a run, or a preparation, interrupted until it is done; then the next one."""

    def __init__(self, place: Place, scratch: Path, data: Path, settings: SignalSettings, progress: Progress) -> None:
        self._place, self._scratch, self._data = place, scratch, data
        self._settings, self._progress = settings, progress
        self._draw = random.Random(f"{settings.seed} {place}")
        self.sent = self.lost = 0
        self.slowest = 0.0
        self.failures: list[str] = []
        self._longest_wait = 0.3 if place == "preparation" else 0.05

    def go(self) -> None:
        """Send as many signals as asked for."""
        peace = self._scratch / f"{self._place}-peace"
        code, life = live(self._words(peace), self._scratch / "said")
        if code != 0:
            self.failures.append(f"in peace: exit code {code}: {life.last_words}")
        runs = 0
        while self.sent < self._settings.count and not self.failures:
            out = self._scratch / f"{self._place}-{runs}"
            while not self.failures and self._live(out):
                pass
            if not self.failures:
                self.failures += self._compare(out, peace)
            runs += 1

    def _words(self, out: Path) -> list[str]:
        if self._place != "preparation":
            return command(self._data, out, self._settings.steps, evaluate_every=_EVALUATE_EVERY)
        folder = self._scratch / "longer"
        words = ["prepare", str(folder / "text.txt"), "--vocab", str(folder / "vocabulary"), "--out", str(out)]
        return [*words, "--shard-size", "0.01", "--workers", "1"]

    def _live(self, out: Path) -> bool:
        """Give the command once; whether it was interrupted and has to be given again."""
        number = signal.SIGTERM if self.sent % 2 else signal.SIGINT
        chances = self._chances(out)
        hook = None
        if chances > 0 and self.sent < self._settings.count:
            wait = self._draw.uniform(0, self._longest_wait)
            entry = self._draw.randint(1, chances)
            hook = SendInside(self._place, number, entry, wait, out.with_name(f"{out.name}.partial"))
        code, life = live(self._words(out), self._scratch / "said", hook)
        ended = time.monotonic()
        expected = 128 + number if hook else 0
        if code != expected or (hook and len(life.told) != 1):
            self.failures.append(f"{self._place}: exit code {code}, not {expected}: {life.last_words}")
        if hook is None or self.failures:
            return False
        moment, shards = life.told[0]
        self.sent += 1
        self.slowest = max(self.slowest, ended - moment)
        self._progress.advance(f"T3: signals in {self._place}", self.sent, self._settings.count)
        if ended - moment > self._settings.longest:
            self.failures.append(f"{self._place}: {ended - moment:.0f} s from the signal to the end")
        self._count_lost(out, shards)
        return True

    def _chances(self, out: Path) -> int:
        """How often the place will be entered before the run is so near its end that it may as well end."""
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

    def _compare(self, out: Path, peace: Path) -> list[str]:
        if self._place == "preparation":
            return other_files(digests(peace), digests(out))
        found: Result = result(out)
        return differences(found, result(peace), out.name) + [f"{name} was left behind" for name in leftovers(out)]


def _finished_shards(folder: Path) -> int:
    return sum(path.parent.suffix != ".tmp" for path in folder.glob("shards/*/shard.json"))
