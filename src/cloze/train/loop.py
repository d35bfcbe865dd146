"""The training loop. Pre-training passes its objective and batches directly, all other trainings through ``driver.py``.

One step: get this rank's parts of the batch, count their targets over all ranks, run forward and backward on each part,
clip the gradient, reject the step if it diverges, set the learning rate, update the weights; then log, evaluate, save.

A batch is divided into ranks x ``accumulate`` parts: ranks compute theirs in parallel (``ProcessGroup``), and each rank
computes its own one after the other (gradient accumulation). An objective is a module whose forward takes a part and
the target counts of the whole batch, and returns an ``ObjectiveOutput``. Each part divides its summed loss by the count
of the whole batch. Losses, metrics and gradients are therefore additive: their sum over all parts is the batch's value,
however the batch is divided. (The mean of the parts' means would weight targets in small parts more.)

The batch of a step depends only on the seed and the step, and the dropout of a part also on the part's index. A resumed
run is therefore bit-identical to an uninterrupted one.
"""

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from cloze.checkpoint import TrainingState
from cloze.checkpoint.training_state import STABLE
from cloze.errors import ConfigError
from cloze.hardware import MemoryTrimmer
from cloze.progress import Interrupted, Interrupts, Progress, Silent, heard_between_steps
from cloze.train.distributed import ProcessGroup, full_state_dict, full_tensor, load_full_state_dict
from cloze.train.optimization import (
    DivergenceGuard,
    MetricsTracker,
    Precision,
    Schedule,
    make_optimizer,
    optimizer_tensors,
    restore_optimizer,
    set_rate,
)
from cloze.train.run import Run
from cloze.train.settings import LoopSettings

# Seconds after which a checkpoint is due even if few steps were computed: the most work that a power cut can cost.
LONGEST_UNSAVED = 15 * 60.0


@dataclass(frozen=True)
class ObjectiveOutput:
    """The contribution of one part of a batch to the loss and the metrics of that batch."""

    loss: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)


class CountedBatch(Protocol):
    """A part of a batch that reports its number of targets and tokens."""

    @property
    def counts(self) -> Mapping[str, int]:
        """The denominators of the losses, such as the number of masked tokens or of rows."""

    @property
    def token_count(self) -> int:
        """The number of tokens without padding."""


class BatchSource(Protocol):
    """Returns the batch of every step."""

    def at(self, step: int, part: int = 0, parts: int = 1, progress: float = 0.0) -> Any:
        """Return a part of the batch of a step, counted from 0; ``progress`` is the completed fraction of the training.

        None if the batch has fewer rows than parts, which is only allowed in a single process.
        """


Evaluate = Callable[[Callable[[], None]], Mapping[str, float]]
"""Returns held-out metrics. It calls its argument regularly, so that a signal can interrupt the evaluation."""


@dataclass(frozen=True)
class TrainerOptions:
    """Options of a training besides its data and settings.

    Attributes:
        group: The processes that train together.
        precision: The number format of matrix products.
        layers: Submodules that FSDP gathers one at a time.
        flops_per_token: Floating-point operations per token and step, to report the fraction of the peak that is
            reached.
        peak_flops: The device's peak floating-point operations per second; 0 if not measured.
        log: An additional logger, such as TensorBoard's.
        should_stop: Called after each evaluation; True stops the training early.
        rate_scale: Maps a parameter's name to the factor of its learning rate.
        unused_parameters: Whether some steps train only some of the parameters, as in a mixture of objectives.
        start: The state from which a run without checkpoints starts; None for step 0.
    """

    group: ProcessGroup = field(default_factory=ProcessGroup)
    precision: Precision = field(default_factory=Precision)
    layers: Sequence[nn.Module] = ()
    flops_per_token: float = 0.0
    peak_flops: float = 0.0
    log: Callable[[int, Mapping[str, float]], None] | None = None
    should_stop: Callable[[], bool] | None = None
    rate_scale: Callable[[str], float] | None = None
    unused_parameters: bool = False
    start: TrainingState | None = None


def train(
    objective: nn.Module,
    source: BatchSource,
    settings: LoopSettings,
    run: Run,
    progress: Progress,
    evaluate: Evaluate | None = None,
    options: TrainerOptions | None = None,
) -> Precision:
    """Train until the schedule ends, starting from the newest checkpoint if there is one.

    Args:
        objective: The module to train; see the module docstring.
        source: Returns the batch of each step.
        settings: Schedule, optimizer and intervals.
        run: The run whose folder receives checkpoints and metrics.
        progress: Receives messages and progress.
        evaluate: Computes held-out metrics, every ``settings.evaluate_every`` steps and at the end.
        options: Process group, precision and hooks.

    Returns:
        The precision that was used; a resumed run uses that of its checkpoint.
    """
    options = options or TrainerOptions()
    is_main = options.group.is_main
    training = _Training(objective, source, settings, run, progress if is_main else Silent(), evaluate, options)
    with run.store.held() if is_main else nullcontext():
        training.run_steps()
    return training.options.precision


class _StopRequestedError(Exception):
    """A signal arrived during an evaluation, or between two parts of a batch."""


class _Training:
    """The state of one training."""

    def __init__(
        self,
        objective: nn.Module,
        source: BatchSource,
        settings: LoopSettings,
        run: Run,
        progress: Progress,
        evaluate: Evaluate | None,
        options: TrainerOptions,
    ) -> None:
        self.objective, self.source, self.settings, self.run = objective, source, settings, run
        self.progress, self.evaluate, self.options, self.group = progress, evaluate, options, options.group
        self.module = self.group.wrap(objective, options.layers, settings.parallel, unused=options.unused_parameters)
        self.optimizer = make_optimizer(
            self.module, settings.learning_rate, settings.weight_decay, options.rate_scale, epsilon=settings.epsilon
        )
        self.schedule = Schedule.of(settings)
        self.tracker = MetricsTracker(options.flops_per_token, options.peak_flops * self.group.size)
        self.guard = DivergenceGuard()
        self.seconds = 0.0  # training time in earlier processes
        self.evaluation_due = False  # True if a signal interrupted an evaluation
        self.save_due = False
        self.evaluated = self.saved = 0  # step of the last evaluation and of the last checkpoint
        self.saved_at = 0.0  # training time in seconds at the last checkpoint
        self.shown: dict[str, float] = {}  # the metrics that were logged last
        self.interrupts = Interrupts()

    def run_steps(self) -> None:
        """Resume from the newest checkpoint, then train until the schedule ends."""
        step = self._resume()
        self.start = time.monotonic()
        trimmer = MemoryTrimmer()
        with heard_between_steps() as self.interrupts:
            if self.evaluation_due:
                self._evaluate(step)
            seconds, _ = self._synchronize()
            self.saved_at = seconds
            while self.schedule.progress(step, seconds) < 1 and not self._stops_early(step):
                self._step(step, seconds)
                step += 1
                trimmer.after_step()
                seconds, stopping = self._synchronize()
                self._report(step, seconds)
                self._evaluate_and_save(step, seconds, stopping, over=self.schedule.progress(step, seconds) >= 1)
            if self.evaluated != step:
                self._evaluate(step)
            if self.saved != step:
                self._save(step)

    def _stops_early(self, step: int) -> bool:
        """Return whether the last evaluation ended the training; the result is the same after a resume."""
        should_stop = self.options.should_stop
        return should_stop is not None and self.evaluated == step > 0 and should_stop()

    def _synchronize(self) -> tuple[float, bool]:
        """Return rank 0's training time and whether any rank received a signal; the same values on every rank."""
        elapsed = self.seconds + time.monotonic() - self.start
        stopped = self.interrupts.number is not None
        seconds, stops = self.group.all_reduce([elapsed if self.group.is_main else 0.0, float(stopped)])
        return seconds, stops > 0

    def _step(self, step: int, seconds: float) -> None:
        try:
            metrics, tokens = self._compute_gradients(step, self.schedule.progress(step, seconds))
        except _StopRequestedError:
            # The weights are still those before this step, so it can be computed again in full.
            if self.saved != step:
                self._save(step)
            self._stop()
        norm = self._clip_gradients()
        # A finite loss can have a non-finite gradient, which would destroy every weight.
        objection = self.guard.objection(metrics["loss"], norm)
        if objection is not None:
            self.progress.say(self.guard.reject(step, objection, self.settings.learning_rate))
            return
        self.guard.accept(metrics["loss"])
        set_rate(self.optimizer, self.schedule.rate(step, seconds))
        self.optimizer.step()
        self.tracker.add(metrics, tokens)

    def _clip_gradients(self) -> float:
        """Clip the global gradient norm; return the norm before clipping."""
        parameters = [parameter for parameter in self.module.parameters() if parameter.grad is not None]
        total_norm = nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
        norm = float(full_tensor(total_norm))
        # Below the limit the factor is 1: skip a pass over all gradients that changes nothing.
        if not norm < self.settings.clip:
            nn.utils.clip_grads_with_norm_(parameters, self.settings.clip, total_norm)
        return norm

    def _compute_gradients(self, step: int, done: float) -> tuple[dict[str, float], int]:
        """Compute the gradients of this rank's parts; return the metrics and the token count of the whole batch."""
        group, steps = self.group, self.settings.accumulate
        whole = [self.source.at(step, group.rank * steps + i, group.size * steps, done) for i in range(steps)]
        parts = [part for part in whole if part is not None]
        totals, tokens = self._count(parts)
        self.module.train()
        self.optimizer.zero_grad()
        sums: dict[str, Tensor] = {}
        for index, part in enumerate(parts):
            if index:
                self._check_signals()
            # Dropout has no generator argument: it draws from the global one, which is seeded for each part.
            torch.manual_seed(_dropout_seed(self.settings.seed, step, group.rank * steps + index))
            with group.no_sync(self.module, last=index == len(parts) - 1):
                with self.options.precision.autocast():
                    output: ObjectiveOutput = self.module(part, totals)
                # DDP and FSDP average gradients over the ranks; the factor turns the mean back into the sum over parts.
                (output.loss * group.size).backward()  # type: ignore[no-untyped-call]
            for name, value in {"loss": output.loss, **output.metrics}.items():
                sums[name] = sums.get(name, 0) + value.detach().cpu().double()
        values = group.all_reduce([float(value) for value in sums.values()])
        return dict(zip(sums, values, strict=True)), tokens

    def _count(self, parts: Sequence[CountedBatch]) -> tuple[dict[str, int], int]:
        """Return the denominators of the whole batch's losses and its token count, summed over all ranks."""
        names = list(parts[0].counts)
        local = [sum(part.counts[name] for part in parts) for name in names]
        *counts, tokens = self.group.all_reduce([*local, sum(part.token_count for part in parts)])
        return {name: round(count) for name, count in zip(names, counts, strict=True)}, round(tokens)

    def _report(self, done: int, seconds: float) -> None:
        over = self.schedule.progress(done, seconds) >= 1
        if over or _is_due(done, self.settings.log_every):
            self.shown = self.tracker.flush()
            self._log(done, seconds=round(seconds, 1), learning_rate=self.optimizer.param_groups[0]["lr"], **self.shown)
        expected = self.schedule.expected_steps(done, seconds)
        self.progress.advance("training", done, expected, **(self.shown or self.tracker.current()))

    def _evaluate_and_save(self, done: int, seconds: float, stopping: bool, over: bool) -> None:
        """Evaluate and save if due; stop if any rank received a signal."""
        if not over and not stopping and _is_due(done, self.settings.evaluate_every):
            self._evaluate(done)
        # By rank 0's clock, so that all ranks make the same decision.
        overdue = seconds - self.saved_at >= LONGEST_UNSAVED
        # Before the decay starts, so that the run can be extended from there.
        last_stable = self.schedule.is_stable(done, seconds) and not self.schedule.is_stable(done + 1, seconds)
        # Not while steps are rejected: the weights do not change, and the next rejection may end the training.
        self.save_due = self.save_due or overdue or last_stable or _is_due(done, self.settings.save_every)
        if not over and (stopping or (self.save_due and self.guard.last_accepted)):
            self.evaluation_due = stopping and _is_due(done, self.settings.evaluate_every)
            self._save(done)
        if stopping and not over:
            self._stop()

    def _stop(self) -> NoReturn:
        raise Interrupted(
            self.interrupts.number or signal.SIGTERM,
            f"stopped and saved at step {self.saved}; run the same command{self.run.resume_note} to resume",
        )

    def _evaluate(self, done: int) -> None:
        """Evaluate. If a signal interrupts it, save and stop; the resumed run then evaluates first."""
        if self.evaluate is None:
            return
        self.objective.eval()
        try:
            with torch.inference_mode(), self.options.precision.autocast():
                metrics = self.evaluate(self._check_signals)
        except _StopRequestedError:
            self.evaluation_due = True
            self._save(done)
            self._stop()
        self._log(done, **metrics)
        self.evaluation_due, self.evaluated = False, done

    def _check_signals(self) -> None:
        # With several ranks, one that stopped alone would leave the others waiting in a collective operation.
        if self.interrupts.number is not None and self.group.size == 1:
            raise _StopRequestedError

    def _log(self, step: int, **metrics: float) -> None:
        if self.group.is_main:
            self.run.log(step, **metrics)
            if self.options.log is not None:
                self.options.log(step, metrics)

    def _save(self, step: int) -> None:
        seconds = self.seconds + time.monotonic() - self.start
        figures = {
            "tracker": self.tracker.state_dict(),
            "guard": self.guard.state_dict(),
            "seconds": seconds,
            "evaluated": self.evaluated,
            "evaluation_due": self.evaluation_due,
            "precision": [self.options.precision.name, self.options.precision.device.type],
            "measured": self.run.measured() if self.group.is_main else None,
            STABLE: self.schedule.is_stable(step, seconds),
        }
        state = TrainingState(step, full_state_dict(self.objective), optimizer_tensors(self.optimizer), figures)
        if self.group.is_main:
            self.run.store.save(state)
        self.group.barrier()  # no rank continues before the checkpoint is written, because writing may fail
        self.saved, self.save_due = step, False
        self.saved_at, _ = self._synchronize()

    def _resume(self) -> int:
        """Load the newest checkpoint, if any; return the step to continue with."""
        state = self.run.store.newest(self.progress) or self.options.start
        if self.group.is_main:
            self.run.check_measured(state.figures.get("measured") if state else None)
            self.run.rewind(state.step if state else 0, evaluation_due=bool(state and state.figures["evaluation_due"]))
        if state is None:
            return 0
        load_full_state_dict(self.objective, state.model)
        restore_optimizer(self.optimizer, state.optimizer)
        figures = state.figures
        self.tracker.load_state_dict(figures["tracker"])
        self.guard.load_state_dict(figures["guard"])
        self.seconds, self.evaluated = figures["seconds"], figures["evaluated"]
        self.evaluation_due = figures["evaluation_due"]
        self.saved = state.step
        # Keep the precision of the first process: "auto" would measure again and might choose differently.
        name, device_type = figures.get("precision", (None, None))
        if name is not None and device_type == self.options.precision.device.type:
            self.options = replace(self.options, precision=replace(self.options.precision, bf16=name == "bf16"))
        self.progress.say(f"resuming at step {state.step}")
        return state.step


def _is_due(done: int, every: int) -> bool:
    return every > 0 and done % every == 0


def _dropout_seed(seed: int, step: int, part: int) -> int:
    return int(np.random.SeedSequence([seed, step, part]).generate_state(1, np.uint64)[0] >> np.uint64(1))


class TensorBoardLogger:
    """Writes a run's metrics for TensorBoard, which is an optional dependency."""

    def __init__(self, run: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                "--tensorboard needs TensorBoard; install it with: pip install 'cloze-bert[tensorboard]'"
            ) from error
        # A resumed run writes the steps after its checkpoint a second time, with equal values.
        self._writer = SummaryWriter(str(run / "tensorboard"))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add a point to the curve of each metric."""
        for name, value in metrics.items():
            group = "held out" if name.startswith("held_out_") else "training"
            self._writer.add_scalar(f"{group}/{name.removeprefix('held_out_')}", value, step)
        self._writer.flush()
