"""How well a model does on documents that training never sees: the same blanks every time."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cloze.corpus.batches import PretrainingBatch, PretrainingBatches, WordTables
from cloze.corpus.shards import Corpus
from cloze.errors import DataError
from cloze.text import Tokenizer
from cloze.train.objective import PretrainingObjective
from cloze.train.settings import PretrainSettings
from cloze.train.team import Team

# Evaluation draws its masks from a seed of its own, so that every run is measured on the same blanks.
SEED = 7_919
SEQUENCES = 640


@dataclass(frozen=True)
class HeldOut:
    """This process's share of the held-out batches, and what all of them hold."""

    parts: list[PretrainingBatch]
    totals: Mapping[str, int]
    constants: dict[str, float] = field(default_factory=dict)  # what always giving one answer about pairs would get
    team: Team = field(default_factory=Team)

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
        figures = {f"held_out_{name}": value for name, value in zip(sums, values, strict=True)}
        figures["held_out_perplexity"] = math.exp(min(700.0, figures["held_out_mlm_loss"]))
        return figures | self.constants


def open_held_out(
    data: Path, tokenizer: Tokenizer, settings: PretrainSettings, tables: WordTables, team: Team
) -> HeldOut | None:
    """The held-out documents of a corpus as batches; None where too little was held out."""
    corpus = Corpus.open(data, "held_out")
    if corpus.document_count < (2 if settings.objective == "nsp" else 1):
        return None
    size = settings.batch
    while size >= team.size * settings.accumulate:
        batches = PretrainingBatches(
            corpus,
            tokenizer,
            batch=size,
            examples=settings.examples(),
            masks=settings.masks(),
            seed=SEED,
            tables=tables,
        )
        try:
            count = min(batches.steps_in(0), max(1, SEQUENCES // size))
        except DataError:  # less than one batch
            size //= 2
        else:
            return _share([batches.at(step) for step in range(count)], batches, settings, team)
    return None


def _share(
    whole: list[PretrainingBatch], batches: PretrainingBatches, settings: PretrainSettings, team: Team
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
    constants = {f"held_out_{settings.objective}_constant": max(share, 1 - share)} if len(labels) else {}
    return HeldOut(parts, HeldOut.of(whole).totals, constants, team)
