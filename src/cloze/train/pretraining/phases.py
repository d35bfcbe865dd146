"""The phases of pre-training: growing sequence length, objectives that take turns, and extended runs.

Appendix A.2 of the paper has two phases: 90 % of the steps at 128 tokens, 10 % at 512. Attention costs grow with the
square of the length, so most of the training uses short sequences. ``LengthSchedule`` has the batches of each phase;
``require_step_memory`` checks that its largest step fits into memory.

An extension (``cloze pretrain --extend``) continues the stable phase of a warm-up, stable, decay schedule. A finished
or interrupted run with the schedule ``wsd`` keeps its newest checkpoint from before the decay. A new run starts there,
with the optimizer's moments and the step count, stays at the peak learning rate until its own decay begins, and leaves
the old run unchanged. A long training can therefore produce a fully decayed model at any point, and a training can be
prolonged without a second warm-up.
"""

import os
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import torch

from cloze.checkpoint import RUN_MODEL, StateStore, TrainingState
from cloze.corpus.batches import PretrainingBatch, PretrainingBatches
from cloze.corpus.settings import Objective, Phase
from cloze.corpus.shards import Corpus
from cloze.corpus.word_tables import WordTables, open_word_tables
from cloze.errors import ConfigError, format_option
from cloze.files import OUR_JSON_LIMIT, read_json, replaced_file
from cloze.hardware import format_bytes, require_memory
from cloze.model import Backbone, Bert, BertConfig, HeadName
from cloze.model.backbone import find_backbone
from cloze.model.config import generator_config
from cloze.model.cost import Estimate, count_flops
from cloze.text import Tokenizer
from cloze.train.distributed import ProcessGroup
from cloze.train.optimization import Schedule
from cloze.train.run import METRICS, SETTINGS, Run
from cloze.train.settings import PretrainSettings

_CYCLE = 100  # steps in which each objective of a mixture has its share


class MixedBatches:
    """Batches of one sequence length, each of one of several objectives by their shares.

    The objectives take turns in a fixed cycle of steps, so that the objective of a step is a function of its number,
    and each has its share in every cycle. Every objective counts its own steps, and so goes through its own epochs.
    """

    def __init__(self, batches: Mapping[Objective, PretrainingBatches], shares: Mapping[Objective, float]) -> None:
        self.batches = batches
        names = list(batches)
        self._turns = [names[index] for index in _spread([shares[name] for name in names])]
        self._counts = {name: self._turns.count(name) for name in names}
        seen = dict.fromkeys(names, 0)
        self._places = []  # how often the objective of each turn came before it in the cycle
        for name in self._turns:
            self._places.append(seen[name])
            seen[name] += 1

    def objective_at(self, step: int) -> Objective:
        """Return the objective of a step."""
        return self._turns[step % len(self._turns)]

    def at(self, step: int, part: int = 0, parts: int = 1) -> PretrainingBatch:
        """Return a part of the batch of a step; steps and parts are counted from 0."""
        cycle, turn = divmod(step, len(self._turns))
        name = self._turns[turn]
        return self.batches[name].at(cycle * self._counts[name] + self._places[turn], part, parts)

    def check(self) -> None:
        """Raise an error if there is too little text for a batch of each objective."""
        for batches in self.batches.values():
            copy(batches).at(0)  # checked on a copy, so that no epoch plan is held in memory before it is needed


def _spread(shares: Sequence[float]) -> list[int]:
    """Return the index of the share whose turn it is, for each step of a cycle, as evenly spaced as possible."""
    if len(shares) == 1:
        return [0]
    turns, used = [], [0] * len(shares)
    for step in range(1, _CYCLE + 1):
        index = max(range(len(shares)), key=lambda number: shares[number] * step - used[number])
        used[index] += 1
        turns.append(index)
    return turns


class LengthSchedule:
    """The batches of each phase, and the fraction of the training at which each phase begins."""

    def __init__(self, phases: Sequence[Phase], batches: Sequence[MixedBatches]) -> None:
        self._phases, self._batches = phases, batches
        self._starts = [sum(phase.share for phase in phases[:index]) for index in range(len(phases))]

    @classmethod
    def open(cls, data: Path, tokenizer: Tokenizer, settings: PretrainSettings, tables: WordTables) -> "LengthSchedule":
        """Open the batches of a prepared corpus."""
        corpus, phases = Corpus.open(data), settings.length_phases()
        return cls(phases, [open_batches(corpus, tokenizer, settings, tables, phase) for phase in phases])

    def check(self, processes: int, accumulate: int) -> None:
        """Refuse settings that would fail at the first step, or hours later when another phase begins."""
        fewest = processes * accumulate
        first = self._phases[0]
        for phase, batches in zip(self._phases, self._batches, strict=True):
            if fewest > phase.batch_size:
                enough = -(-fewest * phase.max_length // first.max_length)
                raise ConfigError(
                    f"batch_size is {phase.batch_size} for sequences of {phase.max_length} tokens, too small to "
                    f"divide among {processes} processes with {accumulate} accumulation steps each; use a --batch-size "
                    f"of at least {enough}"
                )
            batches.check()

    def at(self, step: int, part: int = 0, parts: int = 1, progress: float = 0.0) -> PretrainingBatch:
        """Return a part of the batch of a step; steps and parts are counted from 0."""
        # Shares given as decimal fractions do not add up exactly in floating point.
        return self._batches[bisect_right(self._starts, progress + 1e-9) - 1].at(step, part, parts)


def open_batches(
    corpus: Corpus, tokenizer: Tokenizer, settings: PretrainSettings, tables: WordTables, phase: Phase
) -> MixedBatches:
    """Open the batches of a phase."""
    shares = settings.objectives()
    batches = {
        objective: PretrainingBatches(
            corpus,
            tokenizer,
            batch_size=phase.batch_size,
            examples=settings.examples(phase.max_length, objective),
            masks=settings.masks(),
            seed=settings.seed,
            static=settings.static,
            tables=tables,
        )
        for objective in shares
    }
    return MixedBatches(batches, shares)


def open_tables(data: Path, tokenizer: Tokenizer, settings: PretrainSettings) -> WordTables:
    """Open the word tables that the masking strategy needs."""
    return open_word_tables(data, tokenizer, settings.masking, settings.entities, settings.similar, settings.seed)


def step_memory(
    config: BertConfig,
    heads: Collection[HeadName],
    settings: PretrainSettings,
    device: torch.device,
    *,
    bf16: bool,
    split: int = 1,
) -> Estimate:
    """Estimate parameters, operations and memory of the largest step, with each part further divided into ``split``."""
    largest = max(settings.length_phases(), key=lambda phase: (phase.tokens, phase.max_length))
    backbone = find_backbone(settings.backbone) or Bert
    return backbone.estimate(
        config,
        heads,
        batch=-(-largest.batch_size // (settings.accumulate * split)),
        length=largest.max_length,
        chosen=settings.predicted_share,
        checkpointing=settings.checkpointing,
        # As in the encoder: on a CPU, dropout and bfloat16 need explicit attention weights; accelerators have a fused
        # kernel.
        explicit=device.type == "cpu" and (config.attention_dropout > 0 or bf16),
    )


def require_step_memory(
    config: BertConfig,
    heads: Collection[HeadName],
    settings: PretrainSettings,
    device: torch.device,
    *,
    processes: int = 1,
    split: int = 1,
) -> None:
    """Check that the largest step fits into memory, before the weights are allocated.

    Raises:
        ConfigError: If it does not; the message has the sizes and the flags that reduce them.
    """
    if device.type != "cpu":
        return  # an accelerator's allocator reports the failure itself; a CPU machine would swap or kill the process
    bf16 = settings.precision == "bf16"
    numbers = step_memory(config, heads, settings, device, bf16=bf16, split=processes * split)
    rest = numbers.weight_bytes + numbers.gradient_bytes + numbers.optimizer_bytes
    # Processes on the same machine share its memory.
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if processes > 1 else 1
    sizes = ", ".join(
        f"{phase.batch_size} sequences of {phase.max_length} tokens" for phase in settings.length_phases()
    )
    require_memory(
        local * numbers.total_bytes,
        f"a step of {sizes} in {settings.accumulate} parts "
        f"(parameters and moments {format_bytes(rest)}, states {format_bytes(numbers.activation_bytes)})",
        "use a smaller --batch-size, more parts with --accumulate, --checkpointing, a smaller --max-length or a "
        "smaller model",
    )


def flops_per_token(bert: Backbone, settings: PretrainSettings) -> float:
    """Return the operations per token of a training step, averaged over the phases."""
    phases = settings.length_phases()
    tokens = [phase.share * phase.tokens for phase in phases]
    how: dict[str, Any] = {"chosen": settings.predicted_share, "checkpointing": settings.checkpointing}
    costs = [bert.training_flops(phase.max_length, **how) for phase in phases]
    if settings.backbone == "electra":  # a loaded generator is taken to have the same size
        generator = generator_config(bert.config, settings.generator_size)
        added = [count_flops(generator, ["mlm"], phase.max_length, **how) for phase in phases]
        costs = [cost + more for cost, more in zip(costs, added, strict=True)]
    return sum(share * cost for share, cost in zip(tokens, costs, strict=True)) / sum(tokens)


# -- extended runs -----------------------------------------------------------------------------------------------------


# Settings that an extension must keep. Others, such as corpus, lengths and objectives with the same heads, may change.
_KEPT = ("preset", "model", "learning_rate", "schedule", "embedding_size", "shared_layers", "boundary")


def check_extension(base: Path, out: Path, recorded: Mapping[str, Any]) -> None:
    """Refuse to extend a folder that is not a run, or a run whose fixed settings differ.

    Raises:
        ConfigError: If it cannot be extended; the message names the setting that differs.
    """
    if (out / RUN_MODEL).is_dir() or StateStore(out / "checkpoints").newest() is not None:
        return  # the extension has its own checkpoints and no longer needs the extended run
    path = base / SETTINGS
    if not path.is_file():
        raise ConfigError(
            f"{base}: is not a run of cloze pretrain; {format_option('extend')} takes the folder of such a run"
        )
    before = read_json(path, ConfigError, OUR_JSON_LIMIT)
    if before.get("schedule") != "wsd":
        raise ConfigError(
            f"{base}: has the schedule {before.get('schedule', 'linear')}, whose learning rate falls from the start; "
            f"only runs with {format_option('schedule', 'wsd')} can be extended; train its model further with "
            f"{format_option('model', base)}"
        )
    for name in _KEPT:
        if before.get(name) != recorded.get(name):
            raise ConfigError(
                f"{base}: has {name} {before.get(name)!r}, but this run has {recorded.get(name)!r}; an extension must "
                f"keep it"
            )


def start_of_extension(base: Path, run: Run, settings: PretrainSettings, group: ProcessGroup) -> TrainingState | None:
    """Return the state to start from, and copy the measurements until then; None if the run has its own checkpoints.

    Raises:
        ConfigError: If the run has no stable checkpoint, or one that is beyond the stable part of the new schedule.
    """
    if run.store.newest() is not None:
        return None
    state = StateStore(base / "checkpoints").stable()
    if state is None:
        raise ConfigError(
            f"{base}: has no checkpoint from before the decay; let it run until it has saved one (save_every)"
        )
    schedule, seconds = Schedule.of(settings.loop()), float(state.figures["seconds"])
    if not schedule.is_stable(state.step, seconds):
        raise ConfigError(
            f"{base}: its stable checkpoint is at step {state.step:,}, after {seconds / 3600:.2f} hours, where the "
            f"decay of this run has already begun; use more {format_option('steps')} or {format_option('hours')}, "
            f"counted from "
            "the start of that run"
        )
    if group.is_main:
        size, _ = state.figures["measured"]
        measurements = (base / METRICS).read_bytes()[:size]
        with replaced_file(run.folder / METRICS) as temporary:
            temporary.write_bytes(measurements)
    group.barrier()
    return state
