"""Small models, listeners and batch sources for training runs that take seconds."""

import hashlib
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cloze.checkpoint import ModelFolder, load_folder, save_folder
from cloze.corpus.word_tables import WordTables
from cloze.model import Bert, BertConfig, HeadName
from cloze.text import Tokenizer
from cloze.train.finetuning.objective import TaskBatches
from cloze.train.loop import BatchSource, train
from cloze.train.pretraining.objectives.masked import PretrainingObjective
from cloze.train.pretraining.phases import LengthSchedule
from cloze.train.run import Run
from cloze.train.settings import LoopSettings, PretrainSettings

LOOP = LoopSettings(steps=12, learning_rate=1e-3, save_every=3, log_every=5, seed=4)


class Listener:
    """A progress listener that stores messages."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def advance(self, stage: str, done: int, total: int | None, **figures: float) -> None:
        """Ignore progress; the figures are in the run's metrics."""

    def say(self, message: str) -> None:
        self.said.append(message)


class Disturbed:
    """A source of batches that calls a function before one of them."""

    def __init__(self, source: BatchSource, step: int, act: Callable[[], object]) -> None:
        self._source, self._step, self._act = source, step, act

    def at(self, step: int, part: int = 0, parts: int = 1, progress: float = 0.0) -> Any:
        if step == self._step:
            self._act()
        return self._source.at(step, part, parts, progress)


@contextmanager
def interrupted_at(step: int, kind: type[Any] = TaskBatches) -> Iterator[None]:
    """Raise Interrupted within the block: SIGINT comes when batches of this kind are requested for a step."""
    at = kind.at

    def disturbed(batches: Any, now: int, part: int = 0, parts: int = 1, progress: float = 0.0) -> Any:
        if now == step:
            os.kill(os.getpid(), signal.SIGINT)
        return at(batches, now, part, parts, progress)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "at", disturbed)
        yield


def make_batches(data: Path, *, batch: int = 4, length: int = 24) -> LengthSchedule:
    """Return the batches of a run without a second phase."""
    settings = PretrainSettings(batch_size=batch, max_length=length)
    return LengthSchedule.open(data, Tokenizer.from_folder(data), settings, WordTables())


def make_bert(data: Path, dropout: float = 0.1, seed: int = 2) -> Bert:
    """Return a tiny model with both pre-training heads."""
    config = BertConfig(
        vocab_size=Tokenizer.from_folder(data).size,
        hidden_size=32,
        layers=2,
        heads=2,
        feedforward_size=64,
        positions=64,
        dropout=dropout,
        attention_dropout=dropout,
    )
    return Bert.fresh(config, ("mlm", "nsp"), seed=seed)


def save_deep(base: Path, folder: Path) -> str:
    """Save a model like ``base`` with 300 positions, and return a text of about 180 tokens."""
    contents = load_folder(base)
    heads: tuple[HeadName, ...] = ("mlm",)
    bert = Bert.fresh(replace(contents.model.config, positions=300), heads, seed=1)
    save_folder(ModelFolder(bert, contents.tokenizer.with_max_length(300)), folder)
    return "winter " * (180 // (len(contents.tokenizer("winter").ids) - 2))


class Training:
    """The training loop on a tiny model; every call behaves like running the same command again."""

    def __init__(self, data: Path, folder: Path, settings: LoopSettings = LOOP, dropout: float = 0.1) -> None:
        self.data, self.folder, self.settings, self.dropout = data, folder, settings, dropout
        self.source: BatchSource = make_batches(data)
        self.listener = Listener()

    def go(self, source: BatchSource | None = None) -> nn.Module:
        objective = PretrainingObjective(make_bert(self.data, self.dropout), ("mlm", "nsp"), torch.device("cpu"))
        train(objective, source or self.source, self.settings, self.run, self.listener)
        return objective

    @property
    def run(self) -> Run:
        return Run.open(self.folder, {"like": "this"})

    def losses(self) -> list[tuple[float, ...]]:
        """Return step, learning rate, losses and accuracies, without the speed, which always differs."""
        names = ("step", "learning_rate", "loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy")
        return [tuple(row[name] for name in names) for row in self.run.metrics()]


def fingerprint(module: nn.Module) -> str:
    """Return a digest of a module's full state."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()
