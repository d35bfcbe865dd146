"""T8: a batch with a NaN loss, or ten times the usual loss, has no lasting effect.

The loss of selected steps is corrupted inside the model. A single bad step is reported and skipped: no checkpoint
contains any effect of it, and whatever the corruption was, the run ends with the same weights. Five bad steps in a row
end the run with one line and exit code 2; its newest checkpoint precedes the first of them, and the same command
resumes from it.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import torch

from cloze.checkpoint import StateStore, TrainingState
from cloze.corpus.batches import PretrainingBatch
from cloze.progress import Progress
from cloze.train.loop import ObjectiveOutput, _Training
from cloze.train.optimization import PATIENCE, SETTLING
from cloze.train.pretraining.objectives.masked import PretrainingObjective
from torture.campaign import Outcome
from torture.training import ChildProcess, command, differences, make_corpus, newest, result, run_command

_POISONS = {"nan": "the loss is nan", "infinite": "the gradient's norm is", "tenfold": "more than 10 times the usual"}
_MOST_FAILURES = 10


@dataclass(frozen=True)
class SpikeSettings:
    """The number of single bad batches of each kind, and of series of five."""

    places: int = 10
    rows: int = 5
    steps: int = SETTLING + 12
    seed: int = 0


@dataclass(frozen=True)
class Poison:
    """Hook: corrupt the loss of some steps, counted from 1, and inspect every checkpoint."""

    kind: str
    steps: tuple[int, ...]

    def __call__(self, pipe: Connection) -> None:
        """Patch the model and the save function."""
        forward, step_of, save = PretrainingObjective.forward, _Training._step, StateStore.save
        now = 0

        def step(training: _Training, number: int, seconds: float) -> None:
            nonlocal now
            now = number + 1
            step_of(training, number, seconds)

        def poisoned(
            objective: PretrainingObjective, batch: PretrainingBatch, totals: Mapping[str, int]
        ) -> ObjectiveOutput:
            losses = forward(objective, batch, totals)
            if now not in self.steps or not objective.training:
                return losses
            return ObjectiveOutput(self._spoil(losses.loss), losses.metrics)

        def looked_at(store: StateStore, state: TrainingState) -> None:
            finite = all(
                bool(torch.isfinite(tensor).all()) for tensor in (*state.model.values(), *state.optimizer.values())
            )
            pipe.send((state.step, finite))
            save(store, state)

        patch.object(_Training, "_step", step).start()
        patch.object(PretrainingObjective, "forward", poisoned).start()
        patch.object(StateStore, "save", looked_at).start()

    def _spoil(self, loss: torch.Tensor) -> torch.Tensor:
        match self.kind:
            case "nan":
                return loss * torch.nan
            case "infinite":  # a finite loss with an infinite gradient
                return loss + torch.sqrt(loss - loss.detach())
        return loss * 12


def run(settings: SpikeSettings, progress: Progress) -> Outcome:
    """Corrupt single steps and series of steps."""
    with TemporaryDirectory() as name:
        lab = _SpikeTrials(Path(name), settings, progress)
        lab.spoil_one()
        lab.spoil_rows()
        figures: dict[str, str | int | float] = {
            "bad steps": lab.bad,
            "skipped and reported": lab.told,
            "checkpoints of them": lab.checkpointed,
            "runs ended by five in a row": lab.ended,
            "resumed to the same weights": lab.resumed,
        }
        return Outcome(not lab.failures, figures, lab.failures[:_MOST_FAILURES])


class _SpikeTrials:
    """Runs with corrupted losses, and undisturbed runs for comparison."""

    def __init__(self, scratch: Path, settings: SpikeSettings, progress: Progress) -> None:
        self._scratch, self._settings, self._progress = scratch, settings, progress
        self._data = make_corpus(scratch / "corpus")
        self._draw = random.Random(settings.seed)
        self._tried = 0
        self.bad = self.told = self.checkpointed = self.ended = self.resumed = 0
        self.failures: list[str] = []

    def spoil_one(self) -> None:
        """Corrupt the same step in each way: all runs must end with the same result, unlike an undisturbed run."""
        code, child = self._train("clean", None)
        if code != 0:
            self.failures.append(f"uninterrupted run: exit code {code}: {child.last_line}")
            return
        for number, step in enumerate(self._draw_steps(self._settings.places)):
            results = []
            for kind in _POISONS:
                out = f"{kind}-{number}"
                code, child = self._train(out, Poison(kind, (step,)))
                self._judge(child, code, kind, step)
                if code == 0:
                    results.append(result(self._scratch / out))
                self._advance()
            if any(each.weights != results[0].weights for each in results):
                self.failures.append(f"step {step}: the skipped batch had a lasting effect")
            if any(each.weights == result(self._scratch / "clean").weights for each in results):
                self.failures.append(f"step {step}: no batch was skipped")

    def spoil_rows(self) -> None:
        """Corrupt five steps in a row, then run the same command without corruption."""
        for number, first in enumerate(self._draw_steps(self._settings.rows)):
            kind = list(_POISONS)[number % len(_POISONS)]
            out, last = f"row-{number}", first + PATIENCE - 1
            code, child = self._train(out, Poison(kind, tuple(range(first, last + 1))))
            message = f"cloze: error: step {last}: "
            if code == 2 and child.last_line.startswith(message) and f"{PATIENCE}th time in a row" in child.last_line:
                self.ended += 1
            else:
                self.failures.append(f"{kind} from step {first}: exit code {code}: {child.last_line}")
            state, _ = newest(self._scratch / out)
            if state is None or state.step != first - 1:
                self.failures.append(f"{kind} from step {first}: the newest checkpoint is {state and state.step}")
            self._count_checkpoints(child, range(first, last + 1))
            code, child = self._train(out, None)
            if code != 0:
                self.failures.append(f"{kind} from step {first}, resumed: exit code {code}: {child.last_line}")
                continue
            found = differences(result(self._scratch / out), result(self._scratch / "clean"), out)
            self.failures += found
            self.resumed += not found
            self._advance()

    def _draw_steps(self, count: int) -> list[int]:
        """Choose steps after the usual loss is known, and far enough from the end for a series."""
        return [self._draw.randint(SETTLING + 1, self._settings.steps - PATIENCE) for _ in range(count)]

    def _train(self, out: str, poison: Poison | None) -> tuple[int, ChildProcess]:
        words = command(self._data, self._scratch / out, self._settings.steps)
        return run_command(words, self._scratch / "said", poison)

    def _judge(self, child: ChildProcess, code: int, kind: str, step: int) -> None:
        self.bad += 1
        lines = [line for line in child.output.splitlines() if line.startswith("step ")]
        expected = f"step {step}: {_POISONS[kind]}" if kind != "tenfold" else f"step {step}: the loss is"
        ending = "; batch skipped, weights unchanged"
        if code == 0 and len(lines) == 1 and lines[0].startswith(expected) and lines[0].endswith(ending):
            self.told += 1
        else:
            self.failures.append(f"{kind} at step {step}: exit code {code}, reported {lines}")
        self._count_checkpoints(child, range(step, step + 1))

    def _count_checkpoints(self, child: ChildProcess, bad: range) -> None:
        count = sum(step in bad or not finite for step, finite in child.messages)
        self.checkpointed += count
        if count:
            self.failures.append(f"step {bad.start}: {count} checkpoints of it, or not finite")

    def _advance(self) -> None:
        self._tried += 1
        total = self._settings.places * len(_POISONS) + self._settings.rows
        self._progress.advance("T8: spoiling", self._tried, total)
