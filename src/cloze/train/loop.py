"""The one loop: pre-training, fine-tuning and whatever follows differ in the objective that they hand to it.

An objective is a module whose forward takes a batch, and what its losses are means over, and returns a loss and
figures. The batch of a step, and the random numbers of its dropout, are functions of (seed, step) alone, which makes a
resumed run equal to an uninterrupted one, bit for bit.

A batch may be worked off in parts, one after the other (``accumulate``) or by several processes (``Team``). Whatever
an objective returns is additive over parts: the sum over the parts is the figure of the batch.
"""

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from cloze.checkpoint import TrainingState
from cloze.interrupts import Interrupted, Interrupts, heard_between_steps
from cloze.progress import Progress, Silent
from cloze.train.distributed import Team, load_whole_state, whole, whole_state
from cloze.train.memory import IdleMemory
from cloze.train.optimization import Guard, Schedule, make_optimizer, optimizer_tensors, restore_optimizer, set_rate
from cloze.train.precision import Precision
from cloze.train.run import Run
from cloze.train.run_log import Meter
from cloze.train.settings import LoopSettings

# Seconds after which a checkpoint is due, however few steps they were: what a power cut may cost.
LONGEST_UNSAVED = 15 * 60.0


@dataclass(frozen=True)
class Outcome:
    """What an objective says of a part of a batch: its share of the batch's loss and figures."""

    loss: Tensor
    figures: Mapping[str, Tensor] = field(default_factory=dict)


class CountedBatch(Protocol):
    """A part of a batch that knows what it holds."""

    @property
    def counts(self) -> Mapping[str, int]:
        """What the losses are means over: blanks, rows."""

    @property
    def token_count(self) -> int:
        """Real tokens, padding not counted."""


class BatchSource(Protocol):
    """Whatever has a batch for every step."""

    def at(self, step: int, part: int = 0, parts: int = 1, progress: float = 0.0) -> Any:
        """A part of the batch of a step, counted from 0; ``progress`` is the share of the training that is done."""


Evaluate = Callable[[Callable[[], None]], Mapping[str, float]]
"""Held-out figures; what it is given is to be called now and then, so that a signal need not wait for the end."""


@dataclass(frozen=True)
class Company:
    """What a training meets besides its data: who else takes part, in which numbers it computes, how fast it could."""

    team: Team = field(default_factory=Team)
    precision: Precision = field(default_factory=Precision)
    layers: Sequence[nn.Module] = ()
    flops_a_token: float = 0.0
    peak: float = 0.0
    tell: Callable[[int, Mapping[str, float]], None] | None = None  # TensorBoard, if somebody asked for it
    enough: Callable[[], bool] | None = None  # asked after each evaluation: is more training in vain?
    rate_scale: Callable[[str], float] | None = None  # the share of the learning rate that a parameter gets, by name


def train(
    objective: nn.Module,
    source: BatchSource,
    settings: LoopSettings,
    run: Run,
    progress: Progress,
    evaluate: Evaluate | None = None,
    company: Company | None = None,
) -> Precision:
    """Train until the schedule ends, from the newest checkpoint if there is one; return in which numbers it was."""
    company = company or Company()
    leads = company.team.leads
    training = _Training(objective, source, settings, run, progress if leads else Silent(), evaluate, company)
    with run.store.held() if leads else nullcontext():
        training.go()
    return training.company.precision


class _CutShortError(Exception):
    """A signal came while held-out text was read, or between two parts of a batch."""


class _Training:
    """One training under way: everything that a step needs at hand."""

    def __init__(
        self,
        objective: nn.Module,
        source: BatchSource,
        settings: LoopSettings,
        run: Run,
        progress: Progress,
        evaluate: Evaluate | None,
        company: Company,
    ) -> None:
        self.objective, self.source, self.settings, self.run = objective, source, settings, run
        self.progress, self.evaluate, self.company, self.team = progress, evaluate, company, company.team
        self.module = self.team.spread(objective, company.layers, settings.parallel)
        self.optimizer = make_optimizer(self.module, settings.rate, settings.weight_decay, company.rate_scale)
        self.schedule = Schedule.of(settings)
        self.meter = Meter(company.flops_a_token, company.peak * self.team.size)
        self.guard = Guard()
        self.seconds = 0.0  # of training in earlier processes
        self.owed = False  # an evaluation that a signal cut short
        self.unsaved = False  # a checkpoint that is due
        self.evaluated = self.saved = 0  # the step of the last one
        self.saved_at = 0.0  # seconds of training at the last save
        self.shown: dict[str, float] = {}  # the figures of the last reading
        self.interrupts = Interrupts()

    def go(self) -> None:
        """Resume, then step until the schedule ends."""
        step = self._resume()
        self.start = time.monotonic()
        idle = IdleMemory()
        with heard_between_steps() as self.interrupts:
            if self.owed:
                self._evaluate(step)
            seconds, _ = self._agree()
            self.saved_at = seconds
            while self.schedule.progress(step, seconds) < 1 and not self._is_enough(step):
                self._step(step, seconds)
                step += 1
                idle.after_step()
                seconds, stopping = self._agree()
                self._report(step, seconds)
                self._conclude(step, seconds, stopping, over=self.schedule.progress(step, seconds) >= 1)
            if self.evaluated != step:
                self._evaluate(step)
            if self.saved != step:
                self._save(step)

    def _is_enough(self, step: int) -> bool:
        """Whether the last evaluation ended the training; asked again after a resume, it answers the same."""
        return self.company.enough is not None and self.evaluated == step > 0 and self.company.enough()

    def _agree(self) -> tuple[float, bool]:
        """The leader's clock, and whether anybody was told to stop: the same answer for every process."""
        own = self.seconds + time.monotonic() - self.start
        stopped = self.interrupts.number is not None
        seconds, stops = self.team.total([own if self.team.leads else 0.0, float(stopped)])
        return seconds, stops > 0

    def _step(self, step: int, seconds: float) -> None:
        try:
            figures, tokens = self._gradients(step, self.schedule.progress(step, seconds))
        except _CutShortError:
            # Nothing of this update was applied: it will be made again, all of it.
            if self.saved != step:
                self._save(step)
            self._stop()
        norm = self._clip()
        # A finite loss may still have a gradient that is not, which would spoil every weight.
        objection = self.guard.objection(figures["loss"], norm)
        if objection is not None:
            self.progress.say(self.guard.refuse(step, objection))
            return
        self.guard.accept(figures["loss"])
        set_rate(self.optimizer, self.schedule.rate(step, seconds))
        self.optimizer.step()
        self.meter.add(figures, tokens)

    def _clip(self) -> float:
        """Shorten the gradients where all of them together are too long; return how long they were."""
        parameters = [parameter for parameter in self.module.parameters() if parameter.grad is not None]
        found = nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
        norm = float(whole(found))
        # Elsewhere the factor is one: a pass over all gradients that changes nothing.
        if not norm < self.settings.clip:
            nn.utils.clip_grads_with_norm_(parameters, self.settings.clip, found)
        return norm

    def _gradients(self, step: int, done: float) -> tuple[dict[str, float], int]:
        """Work off this process's parts of the batch; return the figures of the whole batch and its tokens."""
        team, pieces = self.team, self.settings.accumulate
        parts = [self.source.at(step, team.rank * pieces + i, team.size * pieces, done) for i in range(pieces)]
        totals, tokens = self._totals(parts)
        self.module.train()
        self.optimizer.zero_grad()
        sums: dict[str, Tensor] = {}
        for index, part in enumerate(parts):
            if index:
                self._pause()
            # Dropout has no generator of its own to pass: it draws from the global one, set anew for each part.
            torch.manual_seed(_dropout_seed(self.settings.seed, step, team.rank * pieces + index))
            with team.quietly(self.module, last=index == pieces - 1):
                with self.company.precision.autocast():
                    outcome: Outcome = self.module(part, totals)
                # Processes average what they add up; the loss is a sum already.
                (outcome.loss * team.size).backward()  # type: ignore[no-untyped-call]
            for name, value in {"loss": outcome.loss, **outcome.figures}.items():
                sums[name] = sums.get(name, 0) + value.detach().cpu().double()
        values = team.total([float(value) for value in sums.values()])
        return dict(zip(sums, values, strict=True)), tokens

    def _totals(self, parts: Sequence[CountedBatch]) -> tuple[dict[str, int], int]:
        """What the losses of the whole batch are means over, and its tokens."""
        names = list(parts[0].counts)
        own = [sum(part.counts[name] for part in parts) for name in names]
        *counts, tokens = self.team.total([*own, sum(part.token_count for part in parts)])
        return {name: round(count) for name, count in zip(names, counts, strict=True)}, round(tokens)

    def _report(self, done: int, seconds: float) -> None:
        over = self.schedule.progress(done, seconds) >= 1
        if over or _due(done, self.settings.log_every):
            self.shown = self.meter.read()
            self._log(done, seconds=round(seconds, 1), rate=self.optimizer.param_groups[0]["lr"], **self.shown)
        expected = self.schedule.expected_steps(done, seconds)
        self.progress.advance("training", done, expected, **(self.shown or self.meter.look()))

    def _conclude(self, done: int, seconds: float, stopping: bool, over: bool) -> None:
        """Evaluate and save where it is time to; stop where somebody said so."""
        if not over and not stopping and _due(done, self.settings.evaluate_every):
            self._evaluate(done)
        # By the leader's clock, so that all processes find the same.
        overdue = seconds - self.saved_at >= LONGEST_UNSAVED
        # While batches are left out, nothing changes that could be lost, and what follows may be worse.
        self.unsaved = self.unsaved or overdue or _due(done, self.settings.save_every)
        if not over and (stopping or (self.unsaved and self.guard.calm)):
            self.owed = stopping and _due(done, self.settings.evaluate_every)
            self._save(done)
        if stopping and not over:
            self._stop()

    def _stop(self) -> NoReturn:
        raise Interrupted(
            self.interrupts.number or signal.SIGTERM,
            f"stopped and saved at step {self.saved}; the same command{self.run.other_flags} goes on",
        )

    def _evaluate(self, done: int) -> None:
        """Look at the held-out text; a signal that comes meanwhile leaves it for the next time."""
        if self.evaluate is None:
            return
        self.objective.eval()
        try:
            with torch.inference_mode(), self.company.precision.autocast():
                figures = self.evaluate(self._pause)
        except _CutShortError:
            self.owed = True
            self._save(done)
            self._stop()
        self._log(done, **figures)
        self.owed, self.evaluated = False, done

    def _pause(self) -> None:
        # Several processes cannot leave at different places: the others would wait for ever.
        if self.interrupts.number is not None and self.team.size == 1:
            raise _CutShortError

    def _log(self, step: int, **figures: float) -> None:
        if self.team.leads:
            self.run.log(step, **figures)
            if self.company.tell is not None:
                self.company.tell(step, figures)

    def _save(self, step: int) -> None:
        figures = {
            "meter": self.meter.figures(),
            "guard": self.guard.figures(),
            "seconds": self.seconds + time.monotonic() - self.start,
            "evaluated": self.evaluated,
            "owed": self.owed,
            "precision": [self.company.precision.name, self.company.precision.device.type],
        }
        state = TrainingState(step, whole_state(self.objective), optimizer_tensors(self.optimizer), figures)
        if self.team.leads:
            self.run.store.save(state)
        self.team.wait()  # nobody runs ahead of a checkpoint that may still fail
        self.saved, self.unsaved = step, False
        self.saved_at, _ = self._agree()

    def _resume(self) -> int:
        """Put the newest checkpoint into place and return the step to go on with."""
        state = self.run.store.newest(self.progress)
        if self.team.leads:
            self.run.rewind(state.step if state else 0, owed=bool(state and state.figures["owed"]))
        if state is None:
            return 0
        load_whole_state(self.objective, state.model)
        restore_optimizer(self.optimizer, state.optimizer)
        figures = state.figures
        self.meter.restore(figures["meter"])
        self.guard.restore(figures["guard"])
        self.seconds, self.evaluated, self.owed = figures["seconds"], figures["evaluated"], figures["owed"]
        self.saved = state.step
        # What was measured to be faster then: another answer now would be another training.
        name, place = figures.get("precision", (None, None))
        if name is not None and place == self.company.precision.device.type:
            self.company = replace(self.company, precision=replace(self.company.precision, bf16=name == "bf16"))
        self.progress.say(f"resuming at step {state.step}")
        return state.step


def _due(done: int, every: int) -> bool:
    return every > 0 and done % every == 0


def _dropout_seed(seed: int, step: int, part: int) -> int:
    return int(np.random.SeedSequence([seed, step, part]).generate_state(1, np.uint64)[0] >> np.uint64(1))
