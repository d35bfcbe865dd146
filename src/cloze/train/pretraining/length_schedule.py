"""Sequence-length schedule: short sequences first, long ones at the end (appendix A.2: 90 % at 128, 10 % at 512).

Attention costs grow with the square of the length, so most of the training uses short sequences. This module also
computes the cost of steps: operations per token, and the memory of the largest step.
"""

import os
from collections.abc import Collection
from copy import copy
from dataclasses import dataclass
from pathlib import Path

import torch

from cloze.corpus.batches import PretrainingBatch, PretrainingBatches
from cloze.corpus.shards import Corpus
from cloze.corpus.word_tables import WordTables, open_word_tables
from cloze.errors import ConfigError
from cloze.hardware import format_bytes, require_memory
from cloze.model import Backbone, BertConfig, HeadName
from cloze.model.cost import Estimate, count_flops, estimate
from cloze.text import Tokenizer
from cloze.train.settings import PretrainSettings


@dataclass(frozen=True)
class LengthSchedule:
    """Batches of short sequences and, from the fraction ``long_from`` of the training on, of long ones."""

    short: PretrainingBatches
    long: PretrainingBatches | None
    long_from: float

    @classmethod
    def open(cls, data: Path, tokenizer: Tokenizer, settings: PretrainSettings, tables: WordTables) -> "LengthSchedule":
        """Open the batches of a prepared corpus."""
        corpus = Corpus.open(data)

        def batches(*, long: bool) -> PretrainingBatches:
            return PretrainingBatches(
                corpus,
                tokenizer,
                batch_size=settings.sequences(long=long),
                examples=settings.examples(long=long),
                masks=settings.masks(),
                seed=settings.seed,
                static=settings.static,
                tables=tables,
            )

        long = None if settings.long_length is None else batches(long=True)
        return cls(batches(long=False), long, 1 - settings.long_share)

    def check(self, processes: int, accumulate: int) -> None:
        """Refuse settings that would fail at the first step, or hours later when the second phase starts."""
        fewest, batch = processes * accumulate, self.short.batch_size
        share = f"{processes} processes with {accumulate} parts each share"
        if fewest > batch:
            raise ConfigError(f"batch_size is {batch}, but {share} it; use a --batch-size of at least {fewest}")
        self.short.at(0)
        if self.long is None:
            return
        if fewest > self.long.batch_size:
            enough = -(-fewest * self.long.examples.max_length // self.short.examples.max_length)
            raise ConfigError(
                f"batch_size is {batch}, which is {self.long.batch_size} of the long sequences, but {share} them; "
                f"use a --batch-size of at least {enough}"
            )
        copy(self.long).at(0)  # on a copy, whose epoch plan need not stay in memory until the second phase

    def at(self, step: int, part: int = 0, parts: int = 1, progress: float = 0.0) -> PretrainingBatch:
        """Return a part of the batch of a step; steps and parts are counted from 0."""
        return self._phase(progress).at(step, part, parts)

    def _phase(self, progress: float) -> PretrainingBatches:
        return self.long if self.long is not None and progress >= self.long_from else self.short


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
    """Estimate parameters, operations and memory of the largest step; each part is divided into ``split`` once more."""
    longest = settings.longest
    rows = max(1, settings.batch_size * settings.max_length // longest) if settings.long_length else settings.batch_size
    return estimate(
        config,
        heads,
        batch=-(-rows // (settings.accumulate * split)),
        length=longest,
        chosen=settings.mask_rate,
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
    require_memory(
        local * numbers.total_bytes,
        f"a step of {settings.batch_size} sequences of up to {settings.longest} tokens in {settings.accumulate} parts "
        f"(parameters and moments {format_bytes(rest)}, states {format_bytes(numbers.activation_bytes)})",
        "use a smaller --batch-size, more parts with --accumulate, --checkpointing, a smaller --max-length or a "
        "smaller model",
    )


def flops_per_token(bert: Backbone, settings: PretrainSettings, long: float) -> float:
    """Return the operations per token of a training step; ``long`` is the fraction of tokens in the second phase."""
    short_cost, long_cost = (
        count_flops(
            bert.config, bert.head_names, length, chosen=settings.mask_rate, checkpointing=settings.checkpointing
        )
        for length in (settings.max_length, settings.longest)
    )
    return (1 - long) * short_cost + long * long_cost
