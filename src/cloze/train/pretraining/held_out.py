"""How well a model does on documents that training never sees: the same blanks every time.

What is told as ``held_out_...`` is measured on sequences of the first phase's length, from the first step to the last,
so that one curve can be read through. Where there is a second phase, the same is told of sequences of its length, as
``held_out_long_...``: that is what the longer positions have learned.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cloze.corpus.batches import PretrainingBatch, PretrainingBatches, WordTables
from cloze.corpus.shards import Corpus
from cloze.errors import DataError
from cloze.progress import Progress
from cloze.text import Tokenizer
from cloze.train.pretraining.objective import PretrainingObjective
from cloze.train.settings import PretrainSettings
from cloze.train.team import Team

# Evaluation draws its masks from a seed of its own, so that every run is measured on the same blanks.
SEED = 7_919
SEQUENCES = 640  # of long ones as many as have the tokens of so many short ones
NAME, LONG_NAME = "held_out", "held_out_long"


@dataclass(frozen=True)
class HeldOut:
    """This process's share of the held-out batches, and what all of them hold."""

    parts: list[PretrainingBatch]
    totals: Mapping[str, int]
    constants: dict[str, float] = field(default_factory=dict)  # what always giving one answer about pairs would get
    team: Team = field(default_factory=Team)
    name: str = NAME

    @classmethod
    def of(cls, batches: list[PretrainingBatch]) -> "HeldOut":
        """These batches, for one process."""
        return cls(batches, {name: sum(batch.counts[name] for batch in batches) for name in batches[0].counts})

    def evaluate(self, objective: PretrainingObjective, pause: Callable[[], object] = bool) -> dict[str, float]:
        """Losses and accuracies; ``pause`` is called between batches."""
        sums: dict[str, float] = {}
        for part in self.parts:
            pause()
            for name, value in objective(part, self.totals).figures.items():
                sums[name] = sums.get(name, 0.0) + float(value)
        values = self.team.total(list(sums.values()))
        figures = {f"{self.name}_{name}": value for name, value in zip(sums, values, strict=True)}
        figures[f"{self.name}_perplexity"] = math.exp(min(700.0, figures[f"{self.name}_mlm_loss"]))
        return figures | self.constants


def evaluate_all(
    held_out: Sequence[HeldOut], objective: PretrainingObjective, pause: Callable[[], object] = bool
) -> dict[str, float]:
    """The figures of each length."""
    return {name: value for one in held_out for name, value in one.evaluate(objective, pause).items()}


def open_held_out(
    data: Path,
    tokenizer: Tokenizer,
    settings: PretrainSettings,
    tables: WordTables,
    team: Team,
    progress: Progress,
) -> list[HeldOut]:
    """The held-out documents in sequences of each phase's length; where too little was held out, it is said."""
    corpus = Corpus.open(data, "held_out")
    lacking = f"{data}: too little text is held out"
    remedy = "prepare it with a larger --held-out to see more"
    short = _open(corpus, tokenizer, settings, tables, team, long=False)
    if short is None:
        progress.say(f"{lacking} to look at; {remedy}")
        return []
    if settings.long_length is None:
        return [short]
    long = _open(corpus, tokenizer, settings, tables, team, long=True)
    if long is None:
        progress.say(f"{lacking} for sequences of {settings.long_length} tokens; {remedy}")
        return [short]
    return [short, long]


def _open(
    corpus: Corpus, tokenizer: Tokenizer, settings: PretrainSettings, tables: WordTables, team: Team, *, long: bool
) -> HeldOut | None:
    if corpus.document_count < (2 if settings.objective == "nsp" else 1):
        return None
    size, examples = settings.sequences(long=long), settings.examples(long=long)
    while size >= team.size * settings.accumulate:
        batches = PretrainingBatches(
            corpus,
            tokenizer,
            batch=size,
            examples=examples,
            masks=settings.masks(),
            seed=SEED,
            tables=tables,
        )
        try:
            count = min(batches.steps_in(0), max(1, SEQUENCES * settings.length // examples.length // size))
        except DataError:  # less than one batch
            size //= 2
        else:
            name = LONG_NAME if long else NAME
            return _share([batches.at(step) for step in range(count)], batches, settings, team, name)
    return None


def _share(
    whole: list[PretrainingBatch], batches: PretrainingBatches, settings: PretrainSettings, team: Team, name: str
) -> HeldOut:
    pieces = settings.accumulate
    labels = np.concatenate([batch.labels for batch in whole])
    parts = [
        batches.at(step, team.rank * pieces + index, team.size * pieces)
        for step in range(len(whole))
        for index in range(pieces)
    ]
    # Short sequences often hold one sentence, whose B can only be random: then half is not chance.
    share = float(labels.mean()) if len(labels) else 0.0
    constants = {f"{name}_{settings.objective}_constant": max(share, 1 - share)} if len(labels) else {}
    return HeldOut(parts, HeldOut.of(whole).totals, constants, team, name)
