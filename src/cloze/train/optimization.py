"""Optimization: AdamW as BERT uses it, the learning-rate schedule, training precision and divergence detection.

AdamW keeps two running means per parameter, of the gradient (first moment) and of its square (second moment), and
divides the first by the square root of the second; weight decay is applied to the weights directly. During the first
steps the second moment is a poor estimate and the updates would be too large. The schedule therefore starts with a
linear warm-up, followed by linear decay to zero (appendix A.2 of the paper). Progress is measured in steps or by the
clock:

    rate = peak * progress / warmup                  while progress < warmup
    rate = peak * (1 - progress) / (1 - warmup)      afterwards

Weights and moments are float32 at any precision; bfloat16 autocast only rounds the inputs of matrix products.
"""

import math
import re
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from cloze.errors import DataError, format_option
from cloze.predict.quantization.precision import has_fast_bf16
from cloze.train.distributed import full_tensor, shard_like
from cloze.train.settings import LoopSettings, PrecisionName, ScheduleName, check_precision

BETAS = (0.9, 0.999)  # decay of the running means of the gradient and of its square
SPIKE = 10.0  # a loss above this multiple of the running mean is rejected
SETTLING = 20  # accepted steps before spikes are rejected
PATIENCE = 5  # consecutive rejected steps that end a training
_NEWEST_WEIGHT = 0.05  # weight of the newest loss in the running mean
_LAYER = re.compile(r"\bencoder\.layers\.(\d+)\.")


# -- optimizer ---------------------------------------------------------------------------------------------------------


def make_optimizer(
    module: nn.Module,
    rate: float,
    weight_decay: float,
    scale: Callable[[str], float] | None = None,
    *,
    epsilon: float = LoopSettings.epsilon,
) -> AdamW:
    """Return AdamW over all parameters that are not frozen, in groups by learning-rate factor and weight decay.

    Args:
        module: The module to train.
        rate: Learning rate.
        weight_decay: Decay of matrices and embeddings; biases and LayerNorm have none.
        scale: Maps a parameter's name to the factor of its learning rate; 1 if omitted.
        epsilon: Added to the denominator. 1e-8 is the default of PyTorch and of most fine-tuning code; Google's BERT
            code uses 1e-6, which damps the updates of parameters with small gradients.

    Returns:
        The optimizer. Set its learning rate with ``set_rate``, which applies the factors.
    """
    parameters = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    scales = {name: 1.0 if scale is None else scale(name) for name in parameters}
    groups = []
    # Largest factor first: the learning rate of the first group is the one that is logged.
    for factor in sorted(set(scales.values()), reverse=True):
        members = [parameter for name, parameter in parameters.items() if scales[name] == factor]
        # Matrices and embeddings have two dimensions; biases and LayerNorm have one and are not decayed.
        for params, decay in (
            ([parameter for parameter in members if parameter.ndim > 1], weight_decay),
            ([parameter for parameter in members if parameter.ndim <= 1], 0.0),
        ):
            groups.append({"params": params, "weight_decay": decay, "scale": factor})
    return AdamW(groups, lr=rate, betas=BETAS, eps=epsilon, fused=True)


def layer_decay_scale(layers: int, decay: float) -> Callable[[str], float] | None:
    """Return a function from parameter name to learning-rate factor, for layer-wise decay (Sun et al., 2019).

    Heads and the top layer get the full learning rate. Each lower layer gets ``decay`` times the learning rate of the
    layer above it, and the embeddings get the lowest. Return None if ``decay`` is 1.
    """
    if decay == 1:
        return None

    def scale(name: str) -> float:
        layer = _LAYER.search(name)
        if layer is not None:
            return float(decay ** (layers - 1 - int(layer[1])))
        return float(decay**layers) if "encoder.embeddings." in name else 1.0

    return scale


def set_rate(optimizer: AdamW, rate: float) -> None:
    """Set the learning rate of each parameter group to ``rate`` times the group's factor."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["scale"]


def optimizer_tensors(optimizer: AdamW) -> dict[str, Tensor]:
    """Return the moments of every parameter under flat names, for a file that can hold only tensors."""
    state: Mapping[int, Mapping[str, Tensor]] = optimizer.state_dict()["state"]
    return {
        f"{index}.{name}": full_tensor(tensor) for index, values in state.items() for name, tensor in values.items()
    }


def restore_optimizer(optimizer: AdamW, tensors: Mapping[str, Tensor]) -> None:
    """Load moments returned by ``optimizer_tensors``."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, _, name = key.partition(".")
        restored = torch.clone(tensor)
        if tensor.ndim:  # the step count is a scalar and not sharded
            restored = shard_like(restored, parameters[int(index)])
        state.setdefault(int(index), {})[name] = restored
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


# -- learning-rate schedule --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Schedule:
    """The learning rate over a number of steps or hours, whichever ends first.

    ``linear`` is the paper's schedule: linear warm-up, then linear decay to zero. ``wsd`` (warm-up, stable, decay; Hu
    et al., 2024) stays at the peak after the warm-up and decays only over the last fraction of the training. Its stable
    part does not depend on the length of the training, so a run can be extended from there without another warm-up.
    """

    steps: int | None
    hours: float | None
    warmup: float
    peak: float
    name: ScheduleName = "linear"
    decay: float = LoopSettings.decay

    @classmethod
    def of(cls, settings: LoopSettings) -> "Schedule":
        """Return the schedule for these settings."""
        return cls(
            settings.steps,
            settings.hours,
            settings.warmup,
            settings.learning_rate,
            settings.schedule,
            settings.decay,
        )

    def progress(self, step: int, seconds: float) -> float:
        """Return the completed fraction of the training before a step, counted from 0; 1 or more at the end."""
        by_steps = step / self.steps if self.steps else 0.0
        by_clock = seconds / (3600 * self.hours) if self.hours else 0.0
        return max(by_steps, by_clock)

    def rate(self, step: int, seconds: float) -> float:
        """Return the learning rate of a step."""
        progress = self.progress(step, seconds)
        if progress < self.warmup:
            # One step ahead, so that the first step has a learning rate above zero.
            return self.peak * min(1.0, (progress + 1 / (self.steps or 1000)) / self.warmup)
        if self.name == "wsd":
            # 1 - sqrt(x) over the decay ends at a lower loss than a straight line (Hägele et al., 2024, section 4).
            return self.peak * (1 - math.sqrt(min(1.0, max(0.0, progress - 1 + self.decay) / self.decay)))
        return self.peak * max(0.0, 1 - progress) / (1 - self.warmup)

    def is_stable(self, step: int, seconds: float) -> bool:
        """Return whether the learning rate of a wsd schedule has not started to decay before a step."""
        return self.name == "wsd" and self.progress(step, seconds) <= 1 - self.decay

    def expected_steps(self, step: int, seconds: float) -> int | None:
        """Extrapolate the total number of steps; None before the first step of a training limited by time."""
        progress = self.progress(step, seconds)
        if self.steps is not None and (not self.hours or step == 0 or progress <= step / self.steps):
            return self.steps
        return max(step, round(step / progress)) if step and progress else None


# -- precision ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Precision:
    """The number format of matrix products in training: float32 or, with autocast, bfloat16."""

    bf16: bool = False
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @classmethod
    def choose(cls, name: PrecisionName, device: torch.device) -> "Precision":
        """Choose by name; ``auto`` means bf16 if the device computes it faster."""
        check_precision(name)
        return cls(name == "bf16" or (name == "auto" and has_fast_bf16(device)), device)

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which the forward pass runs."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16) if self.bf16 else nullcontext()

    @property
    def dtype(self) -> torch.dtype:
        """The data type of the matrix products."""
        return torch.bfloat16 if self.bf16 else torch.float32

    @property
    def name(self) -> PrecisionName:
        """The name used in settings."""
        return "bf16" if self.bf16 else "fp32"


def measure_peak(precision: Precision, seconds: float = 0.15) -> float:
    """Measure the peak floating-point operations per second of a large matrix product, an upper bound for a step."""
    # On a busy CPU, a small product may finish within a time slice while a large one is interrupted: try both.
    sizes = (4096,) if precision.device.type == "cuda" else (512, 1024)
    factors = [torch.rand(2, size, size, device=precision.device, dtype=precision.dtype) for size in sizes]
    best, end = 0.0, time.perf_counter() + seconds
    while True:
        for left, right in factors:
            start = time.perf_counter()
            product = left @ right
            float(product[0, 0])  # synchronize with an accelerator
            best = max(best, 2 * len(left) ** 3 / (time.perf_counter() - start))
        if time.perf_counter() > end:
            return best


# -- divergence --------------------------------------------------------------------------------------------------------


class DivergedError(DataError):
    """Raised if several consecutive steps have a non-finite loss or gradient, or a loss far above the running mean."""


class DivergenceGuard:
    """Rejects steps with a non-finite loss or gradient, or with a loss spike.

    A bad batch costs only its own step, because the weights are not updated. If several consecutive steps are rejected,
    the weights are the cause and the training ends. The newest checkpoint is then from before the first of these steps,
    since none of them changed the weights.

    A loss that is not higher than the losses of the first steps is never a spike: a model that has memorized its rows
    has a tiny mean loss and learns most from the few rows it still gets wrong.
    """

    def __init__(self) -> None:
        self._mean, self._initial, self._accepted, self._rejected_in_a_row = 0.0, 0.0, 0, 0

    def objection(self, loss: float, norm: float) -> str | None:
        """Return the reason to reject a step, or None."""
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if not math.isfinite(norm):
            return f"the gradient's norm is {norm}"
        if self._accepted >= SETTLING and loss > max(SPIKE * self._mean, self._initial):
            return f"the loss is {loss:.3g}, more than {SPIKE:g} times the usual {self._mean:.3g}"
        return None

    def accept(self, loss: float) -> None:
        """Record an applied step, and update the running mean with its loss."""
        self._rejected_in_a_row = 0
        self._initial = max(self._initial, loss) if self._accepted < SETTLING else self._initial
        self._mean += (loss - self._mean) * max(_NEWEST_WEIGHT, 1 / (self._accepted + 1))
        self._accepted += 1

    def reject(self, step: int, objection: str, rate: float) -> str:
        """Record a rejected step and return the message to report.

        Args:
            step: The step, counted from 0.
            objection: The reason, from ``objection``.
            rate: The peak learning rate; the error message suggests a third of it.

        Raises:
            DivergedError: If too many consecutive steps were rejected.
        """
        self._rejected_in_a_row += 1
        if self._rejected_in_a_row >= PATIENCE:
            raise DivergedError(
                f"step {step + 1}: {objection}, for the {PATIENCE}th time in a row; the last checkpoint is from before "
                f"the first of them: start over with {format_option('learning_rate', rate / 3)} and "
                f"{format_option('fresh', True)}, or look for broken rows"
            )
        return f"step {step + 1}: {objection}; batch skipped, weights unchanged"

    @property
    def last_accepted(self) -> bool:
        """Whether the last step was applied."""
        return self._rejected_in_a_row == 0

    def state_dict(self) -> dict[str, Any]:
        """Return the values to save in a checkpoint."""
        return {  # the keys belong to the file format and are older than the attribute names
            "usual": self._mean,
            "first": self._initial,
            "seen": self._accepted,
            "bad": self._rejected_in_a_row,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore values returned by ``state_dict``."""
        self._mean, self._accepted = state["usual"], state["seen"]
        # Checkpoints of earlier versions do not have the last two.
        self._initial, self._rejected_in_a_row = state.get("first", 0.0), state.get("bad", 0)


class MetricsTracker:
    """Averages metrics between log lines and measures the throughput."""

    def __init__(self, flops_per_token: float = 0.0, peak_flops: float = 0.0) -> None:
        """Create a tracker; ``peak_flops`` is the device's peak operations per second, or 0 if not measured."""
        self._peak_share_per_speed = flops_per_token / peak_flops if peak_flops else 0.0
        self._tokens_seen = 0
        self._reset()

    def _reset(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}  # steps that had the metric: those of a mixture of objectives differ
        self._tokens = 0
        self._start = time.monotonic()

    def add(self, metrics: Mapping[str, float], tokens: int) -> None:
        """Add the metrics and the token count of one step."""
        for name, value in metrics.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
            self._counts[name] = self._counts.get(name, 0) + 1
        self._tokens += tokens
        self._tokens_seen += tokens

    def state_dict(self) -> dict[str, Any]:
        """Return the values to save in a checkpoint, so that the next means equal those of an uninterrupted run."""
        return {"sums": self._sums, "counts": self._counts, "seen": self._tokens_seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore values returned by ``state_dict``; the clock restarts at zero."""
        self._sums, self._tokens_seen = dict(state["sums"]), state["seen"]
        # Checkpoints of earlier versions have one count for all metrics.
        self._counts = dict(state.get("counts") or dict.fromkeys(self._sums, state.get("count", 0)))

    def flush(self) -> dict[str, float]:
        """Return the means since the last flush, and start new ones."""
        metrics = self.current()
        self._reset()
        return metrics

    def current(self) -> dict[str, float]:
        """Return the means since the last flush; only the throughput if all steps since then were rejected."""
        metrics = {name: total / self._counts[name] for name, total in self._sums.items()}
        tokens_per_second = self._tokens / max(1e-9, time.monotonic() - self._start)
        metrics["tokens_per_second"] = tokens_per_second
        if self._peak_share_per_speed:
            metrics["share_of_peak"] = tokens_per_second * self._peak_share_per_speed
        metrics["tokens_seen"] = self._tokens_seen
        return metrics
