"""``cloze plan``: estimate time and memory of a pre-training from a few timed steps, before hours are spent."""

import json
import math
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from cloze.checkpoint import find_source
from cloze.corpus.batches import PretrainingBatch
from cloze.corpus.settings import Phase
from cloze.corpus.shards import read_manifest
from cloze.errors import ConfigError, DataError
from cloze.hardware import (
    MemoryTrimmer,
    available_memory,
    choose_device,
    format_bytes,
    keep_freed_memory,
    resident_memory,
    return_freed_memory,
)
from cloze.model import Backbone
from cloze.model.cost import Estimate
from cloze.options import STATIC_BACKBONES
from cloze.progress import Progress, Silent
from cloze.text import Tokenizer
from cloze.train.optimization import Precision, make_optimizer, measure_peak
from cloze.train.pretraining.objectives import new_objective
from cloze.train.pretraining.objectives.masked import BaseObjective
from cloze.train.pretraining.phases import (
    LengthSchedule,
    flops_per_token,
    open_tables,
    require_step_memory,
    step_memory,
)
from cloze.train.pretraining.pretrain import start_model
from cloze.train.settings import PretrainSettings

# At least TIMED and at most MOST_TIMED steps are timed, for SECONDS in total. More steps give a better memory estimate,
# because batches differ in size.
TIMED, MOST_TIMED, SECONDS = 3, 20, 5.0
# Of a step with more tokens than this, only a part is timed; its time is extrapolated in proportion to the tokens.
TIMED_TOKENS = 8192
# On CPUs, where freed memory is reused, the peak of trainings of forty steps exceeded that of their first four by up to
# this factor.
MEMORY_MARGIN = 1.08
RECORDED = Path(__file__).with_name("recorded_runs.json")
Bound = Literal["lower", "upper"]


@dataclass(frozen=True)
class Plan:
    """The expected cost and result of a run."""

    estimate: Estimate
    peak_bytes: int  # measured during the timed steps, including the interpreter, plus a margin for larger batches
    tokens_per_step: int
    seconds_per_step: float
    share_of_peak: float
    steps: int
    hours: float
    epochs: float
    expected: "ExpectedLoss | None"
    precision: str

    @property
    def tokens(self) -> int:
        """The number of tokens of the whole training."""
        return self.steps * self.tokens_per_step


@dataclass(frozen=True)
class ExpectedLoss:
    """The held-out loss that recorded runs of this project reached after as many tokens."""

    loss: float
    like: str  # name of the recorded run
    # "lower" (bound) if the plan has fewer tokens than the run's first evaluation, "upper" if more than its last one.
    bound: Bound | None = None


def plan(
    data: str | Path,
    *,
    model: str | Path | None = None,
    settings: PretrainSettings | None = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Time a few steps of the training that these settings describe, and extrapolate to the whole run."""
    settings, progress, data = settings or PretrainSettings(), progress or Silent(), Path(data)
    if settings.backbone in STATIC_BACKBONES:
        raise ConfigError(f"a training of {settings.backbone} takes minutes and cannot be planned; run cloze pretrain")
    return_freed_memory() if settings.checkpointing else keep_freed_memory()
    place = choose_device(device)
    manifest = read_manifest(data)
    start = None if model is None else find_source(model)
    phases = settings.length_phases()
    largest = max(phases, key=lambda phase: (phase.tokens, phase.max_length))
    split = _Timed.choose(settings, largest).split
    check = partial(require_step_memory, device=place, split=split)
    bert, tokenizer = start_model(Tokenizer.from_folder(data), settings, start, progress, check)
    precision = Precision.choose(settings.precision, place)
    batches = LengthSchedule.open(data, tokenizer, settings, open_tables(data, tokenizer, settings))
    seconds = tokens = done = 0.0
    for phase in phases:
        phase_seconds, phase_tokens = _phase(bert, batches, settings, precision, phase, done, progress)
        # By the clock, a phase with quick steps has more of them; this counts shares of steps for both.
        seconds, tokens = seconds + phase.share * phase_seconds, tokens + phase.share * phase_tokens
        done += phase.share
    steps, hours = _extent(settings, seconds)
    numbers, timed = (
        step_memory(bert.config, bert.head_names, settings, place, bf16=precision.bf16, split=parts)
        for parts in (1, split)
    )
    margin = MEMORY_MARGIN if place.type == "cpu" and not settings.checkpointing else 1
    peak = round(margin * (_peak_memory(place) + numbers.activation_bytes - timed.activation_bytes))
    _report_shortage(peak, place, progress)
    read = round(steps * tokens)
    return Plan(
        estimate=numbers,
        peak_bytes=peak,
        tokens_per_step=round(tokens),
        seconds_per_step=seconds,
        share_of_peak=tokens / seconds * flops_per_token(bert, settings) / measure_peak(precision),
        steps=steps,
        hours=hours,
        epochs=read / manifest["splits"]["train"]["tokens"],
        expected=None
        if start or settings.backbone != "bert"
        else expected_loss(numbers.parameters, read, recorded_runs()),
        precision=precision.name,
    )


@dataclass(frozen=True)
class _Timed:
    """The part of a step that is timed: ``parts`` of its ``of`` parts; each accumulation step gives ``split`` parts."""

    split: int
    parts: int
    of: int

    @classmethod
    def choose(cls, settings: PretrainSettings, phase: Phase) -> "_Timed":
        """Choose a part of about ``TIMED_TOKENS`` tokens, so that timing large steps takes little time and memory."""
        length, rows = phase.max_length, phase.batch_size
        rows_of_part = rows // settings.accumulate
        split = max(1, min(rows_of_part, round(rows_of_part * length / TIMED_TOKENS)))
        parts = settings.accumulate * split
        tokens = rows * length / parts
        return cls(split, min(parts, max(1, round(TIMED_TOKENS / tokens))), parts)


def _phase(
    bert: Backbone,
    batches: LengthSchedule,
    settings: PretrainSettings,
    precision: Precision,
    phase: Phase,
    done: float,
    progress: Progress,
) -> tuple[float, float]:
    """Return seconds and tokens of a step: the fastest of several, after one warm-up step."""
    objective = new_objective(bert.to(precision.device), settings, precision.device)
    bert.use_checkpointing(settings.checkpointing)
    optimizer = make_optimizer(objective, settings.learning_rate, settings.weight_decay)
    objective.train()
    timed, idle = _Timed.choose(settings, phase), MemoryTrimmer()
    times: list[float] = []
    tokens: list[int] = []
    while len(times) <= TIMED or (len(times) < MOST_TIMED and sum(times) < SECONDS):
        step = len(times)
        progress.advance("timing", min(step, TIMED), TIMED + 1)
        start = time.perf_counter()
        parts = [batches.at(step, part, timed.of, done) for part in range(timed.parts)]
        _compute_gradients(objective, optimizer, parts, precision)
        computed = time.perf_counter()
        _update(objective, optimizer)
        times.append((computed - start) * timed.of / timed.parts + time.perf_counter() - computed)
        tokens.append(sum(part.token_count for part in parts))
        idle.after_step()
    return min(times[1:]), float(np.mean(tokens)) * timed.of / timed.parts


def _compute_gradients(
    objective: BaseObjective,
    optimizer: torch.optim.Optimizer,
    parts: Sequence[PretrainingBatch],
    precision: Precision,
) -> None:
    totals = {name: sum(part.counts[name] for part in parts) for name in parts[0].counts}
    optimizer.zero_grad()
    for part in parts:
        with precision.autocast():
            output = objective(part, totals)
        output.loss.backward()


def _update(objective: BaseObjective, optimizer: torch.optim.Optimizer) -> None:
    torch.nn.utils.clip_grad_norm_(objective.parameters(), 1.0)
    for group in optimizer.param_groups:
        group["lr"] = 0.0  # the computation of a step without its effect
    optimizer.step()


def _report_shortage(peak: int, device: torch.device, progress: Progress) -> None:
    """Report if this machine has too little memory; the plan may be for another one."""
    available = available_memory()
    if device.type == "cpu" and available is not None and peak > available.size + resident_memory():
        progress.say(
            f"the run needs {format_bytes(peak)}, but {format_bytes(available.size)} is available here "
            f"({available.limit}); reduce it with --accumulate, --checkpointing or a smaller --batch-size"
        )


def _peak_memory(device: torch.device) -> int:
    """Return the peak memory in bytes so far, of the accelerator or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # ru_maxrss is in kilobytes on Linux and in bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _extent(settings: PretrainSettings, seconds: float) -> tuple[int, float]:
    """Return the steps and hours of a run, by whichever of the two limits ends it."""
    loop = settings.loop()
    by_clock = math.inf if loop.hours is None else 3600 * loop.hours / seconds
    steps = max(1, round(min(by_clock, math.inf if loop.steps is None else loop.steps)))
    return steps, steps * seconds / 3600


def recorded_runs(path: Path = RECORDED) -> list[dict[str, Any]]:
    """Return the held-out losses of recorded runs: name, parameters, and points of (tokens seen, loss)."""
    try:
        runs: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["runs"]
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path}: cannot be read ({error}); reinstall cloze") from error
    return runs


def expected_loss(parameters: int, tokens: int, runs: Sequence[Mapping[str, Any]]) -> ExpectedLoss | None:
    """Return the loss of the recorded run with the most similar model size after ``tokens`` tokens.

    This is the lowest loss up to that point, interpolated: a recorded run may consist of several trainings, and the
    loss rises a little when the learning rate does. Nothing is extrapolated before the first point or beyond the last.
    """
    if not runs:
        return None
    nearest = min(runs, key=lambda run: abs(math.log(run["parameters"] / parameters)))
    seen, losses = zip(*nearest["points"], strict=True)
    loss = float(np.interp(math.log(max(1, tokens)), np.log(seen), np.minimum.accumulate(losses)))
    bound: Bound | None = "lower" if tokens < seen[0] else "upper" if tokens > seen[-1] else None
    return ExpectedLoss(loss, nearest["name"], bound)
