"""The one loop: pre-training, fine-tuning and whatever follows differ in the objective that they hand to it.

An objective is a module whose forward takes a batch and returns a loss and figures; the batch of a step, and the
random numbers of its dropout, are functions of (seed, step) alone, which makes a resumed run equal to an uninterrupted
one, bit for bit.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from cloze.checkpoint import TrainingState
from cloze.errors import DataError
from cloze.progress import Progress
from cloze.train.interrupts import Interrupted, heard_between_steps
from cloze.train.optimizer import make_optimizer, optimizer_tensors, rate_at, restore_optimizer, set_rate
from cloze.train.run import Run
from cloze.train.settings import LoopSettings


@dataclass(frozen=True)
class Outcome:
    """What an objective says of a batch."""

    loss: Tensor
    tokens: int  # real ones, padding not counted
    figures: Mapping[str, Tensor] = field(default_factory=dict)


class BatchSource(Protocol):
    """Whatever has a batch for every step."""

    def at(self, step: int) -> Any:
        """The batch of a step, counted from 0."""


Evaluate = Callable[[], Mapping[str, float]]


def train(
    objective: nn.Module,
    source: BatchSource,
    settings: LoopSettings,
    run: Run,
    progress: Progress,
    evaluate: Evaluate | None = None,
) -> None:
    """Train until the last step, from the newest checkpoint if there is one."""
    optimizer = make_optimizer(objective, settings.rate, settings.weight_decay)
    meter = _Meter()
    start = _resume(objective, optimizer, meter, run, progress)
    with heard_between_steps() as interrupts:
        for step in range(start, settings.steps):
            outcome = _step(objective, optimizer, source.at(step), step, settings)
            meter.add(outcome)
            done = step + 1
            if done % settings.log_every == 0 or done == settings.steps:
                figures = meter.read()
                run.log(done, rate=optimizer.param_groups[0]["lr"], **figures)
                progress.advance("training", done, settings.steps, **figures)
            if evaluate is not None and _due(done, settings.evaluate_every, settings.steps):
                run.log(done, **_evaluated(objective, evaluate))
            stopping = interrupts.number is not None and done < settings.steps
            if stopping or _due(done, settings.save_every, settings.steps):
                run.store.save(_state(done, objective, optimizer, meter))
            if stopping and interrupts.number is not None:
                raise Interrupted(interrupts.number, f"stopped and saved at step {done}; the same command goes on")


def _due(done: int, every: int, steps: int) -> bool:
    return done == steps or (every > 0 and done % every == 0)


def _step(objective: nn.Module, optimizer: torch.optim.AdamW, batch: Any, step: int, settings: LoopSettings) -> Outcome:
    # Dropout has no generator of its own to pass: it draws from the global one, which each step sets anew.
    torch.manual_seed(settings.seed * 1_000_003 + step)
    objective.train()
    outcome: Outcome = objective(batch)
    _require_finite(outcome.loss, "loss", step)
    optimizer.zero_grad()
    outcome.loss.backward()  # type: ignore[no-untyped-call]
    # A finite loss may still have a gradient that is not, which would spoil every weight.
    _require_finite(nn.utils.clip_grad_norm_(objective.parameters(), settings.clip), "gradient's norm", step)
    warmup = round(settings.warmup * settings.steps)
    set_rate(optimizer, rate_at(step, settings.steps, warmup, settings.rate))
    optimizer.step()
    return outcome


def _require_finite(value: Tensor, name: str, step: int) -> None:
    if not torch.isfinite(value):
        raise DataError(
            f"step {step + 1}: the {name} is {value.item()}; the last checkpoint is from before it: "
            "lower --rate, or look for broken rows in the data"
        )


def _evaluated(objective: nn.Module, evaluate: Evaluate) -> Mapping[str, float]:
    objective.eval()
    with torch.inference_mode():
        return evaluate()


def _resume(objective: nn.Module, optimizer: torch.optim.AdamW, meter: "_Meter", run: Run, progress: Progress) -> int:
    """Put the newest checkpoint into place and return the step to go on with."""
    state = run.store.newest(progress)
    if state is None:
        run.rewind(0)
        return 0
    objective.load_state_dict(dict(state.model))
    restore_optimizer(optimizer, state.optimizer)
    meter.restore(state.figures)
    run.rewind(state.step)
    progress.say(f"resuming at step {state.step}")
    return state.step


def _state(step: int, objective: nn.Module, optimizer: torch.optim.AdamW, meter: "_Meter") -> TrainingState:
    return TrainingState(step, objective.state_dict(), optimizer_tensors(optimizer), meter.figures())


class _Meter:
    """Means since the last reading, and tokens a second."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._sums: dict[str, float] = {}
        self._count = 0
        self._tokens = 0
        self._start = time.monotonic()

    def add(self, outcome: Outcome) -> None:
        for name, value in {"loss": outcome.loss, **outcome.figures}.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(value.detach())
        self._count += 1
        self._tokens += outcome.tokens

    def figures(self) -> dict[str, Any]:
        """What a checkpoint remembers, so that the next mean is that of an uninterrupted run."""
        return {"sums": self._sums, "count": self._count}

    def restore(self, figures: Mapping[str, Any]) -> None:
        """Go on from such figures; the clock starts anew."""
        self._sums, self._count = dict(figures["sums"]), figures["count"]

    def read(self) -> dict[str, float]:
        figures = {name: total / self._count for name, total in self._sums.items()}
        figures["tokens_per_second"] = self._tokens / max(1e-9, time.monotonic() - self._start)
        self._clear()
        return figures
