"""AdamW as BERT uses it: no decay on biases and LayerNorm.

How far a training is, by steps or by the clock, and the learning rate that belongs there (appendix A.2).

Losses that are not numbers, or ten times what they were: not learned from, told, and after a few of them the end.

A batch of garbage costs its own step and nothing more: the weights are as if it had not been. If such steps come in a
row, the weights are the cause, and training stops; the newest checkpoint has the weights from before the first of them,
since none of them changed any. What the loss was when training began is never too much: a model that
knows its rows by heart has a tiny usual loss, and learns most from the one row that it still gets wrong.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from cloze.errors import DataError
from cloze.train.distributed import share, whole
from cloze.train.settings import LoopSettings

BETAS = (0.9, 0.999)
EPSILON = 1e-8


def make_optimizer(
    module: nn.Module, rate: float, weight_decay: float, scale: Callable[[str], float] | None = None
) -> AdamW:
    """An optimizer of every parameter that is not frozen; ``scale`` says by name which share of the rate it gets."""
    parameters = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    scales = {name: 1.0 if scale is None else scale(name) for name in parameters}
    groups = []
    # The largest first: the rate that is told is the first group's.
    for share_of_rate in sorted(set(scales.values()), reverse=True):
        chosen = [parameter for name, parameter in parameters.items() if scales[name] == share_of_rate]
        # Matrices and embeddings have two dimensions; biases and LayerNorm have one, and shrinking those helps nobody.
        for params, decay in (
            ([parameter for parameter in chosen if parameter.ndim > 1], weight_decay),
            ([parameter for parameter in chosen if parameter.ndim <= 1], 0.0),
        ):
            groups.append({"params": params, "weight_decay": decay, "scale": share_of_rate})
    return AdamW(groups, lr=rate, betas=BETAS, eps=EPSILON, fused=True)


def set_rate(optimizer: AdamW, rate: float) -> None:
    """Use this learning rate from now on, or the share of it that a group has."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["scale"]


def optimizer_tensors(optimizer: AdamW) -> dict[str, Tensor]:
    """The moments of every parameter as flat names, for a file that holds tensors alone."""
    state: Mapping[int, Mapping[str, Tensor]] = optimizer.state_dict()["state"]
    return {f"{index}.{name}": whole(tensor) for index, values in state.items() for name, tensor in values.items()}


def restore_optimizer(optimizer: AdamW, tensors: Mapping[str, Tensor]) -> None:
    """The inverse of ``optimizer_tensors``."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, _, name = key.partition(".")
        held = torch.clone(tensor)
        if tensor.ndim:  # the count of steps is a number of its own
            held = share(held, parameters[int(index)])
        state.setdefault(int(index), {})[name] = held
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


@dataclass(frozen=True)
class Schedule:
    """A linear warm-up and a linear way back to zero, over so many steps, so many hours, or whichever ends first."""

    steps: int | None
    hours: float | None
    warmup: float
    peak: float

    @classmethod
    def of(cls, settings: LoopSettings) -> "Schedule":
        """The schedule that the settings describe."""
        return cls(settings.steps, settings.hours, settings.warmup, settings.rate)

    def progress(self, step: int, seconds: float) -> float:
        """The share that is done before a step, counted from 0; 1 or more at the end."""
        by_steps = step / self.steps if self.steps else 0.0
        by_clock = seconds / (3600 * self.hours) if self.hours else 0.0
        return max(by_steps, by_clock)

    def rate(self, step: int, seconds: float) -> float:
        """The learning rate of a step."""
        progress = self.progress(step, seconds)
        if progress < self.warmup:
            # The first step moves, too.
            return self.peak * min(1.0, (progress + 1 / (self.steps or 1000)) / self.warmup)
        return self.peak * max(0.0, 1 - progress) / (1 - self.warmup)

    def expected_steps(self, step: int, seconds: float) -> int | None:
        """How many steps it will have been, judging by those so far; None while nobody can tell."""
        progress = self.progress(step, seconds)
        if self.steps is not None and (not self.hours or step == 0 or progress <= step / self.steps):
            return self.steps
        return max(step, round(step / progress)) if step and progress else None


SPIKE = 10.0  # times the usual loss
SETTLING = 20  # steps until there is a usual loss
PATIENCE = 5  # bad steps in a row
_WEIGHT = 0.05  # of the newest loss in the running mean


class DivergedError(DataError):
    """A training whose losses were no losses any more, and which would end so each time."""


class Guard:
    """Watches the losses of one training."""

    def __init__(self) -> None:
        self._usual, self._first, self._seen, self._bad = 0.0, 0.0, 0, 0

    def objection(self, loss: float, norm: float) -> str | None:
        """Say what is wrong with a step, or None; the usual loss is that of the good ones."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if not math.isfinite(norm):
            return f"the gradient's norm is {norm}"
        if self._seen >= SETTLING and loss > max(SPIKE * self._usual, self._first):
            return f"the loss is {loss:.3g}, more than {SPIKE:g} times the usual {self._usual:.3g}"
        return None

    def accept(self, loss: float) -> None:
        """Count a good step."""
        self._bad = 0
        self._first = max(self._first, loss) if self._seen < SETTLING else self._first
        self._usual += (loss - self._usual) * max(_WEIGHT, 1 / (self._seen + 1))
        self._seen += 1

    def refuse(self, step: int, objection: str) -> str:
        """Count a bad step and return what to tell; too many of them are an error."""
        self._bad += 1
        if self._bad >= PATIENCE:
            raise DivergedError(
                f"step {step + 1}: {objection}, for the {PATIENCE}th time in a row; the last checkpoint is from before "
                "the first of them: lower --rate and start over with --fresh, or look for broken rows in the data"
            )
        return f"step {step + 1}: {objection}; this batch was left out, the weights are as before"

    @property
    def calm(self) -> bool:
        """Whether the last step was a good one."""
        return self._bad == 0

    def figures(self) -> dict[str, Any]:
        """What a checkpoint remembers."""
        return {"usual": self._usual, "first": self._first, "seen": self._seen, "bad": self._bad}

    def restore(self, figures: Mapping[str, Any]) -> None:
        """Go on from such figures."""
        self._usual, self._seen = figures["usual"], figures["seen"]
        self._first, self._bad = figures.get("first", 0.0), figures.get("bad", 0)  # earlier versions have none
