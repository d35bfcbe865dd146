"""The same training run twice: with the product's own loop, and with a model and loss of transformers.

Both use the same initial weights, no dropout, the same batches in the same order, fp32, AdamW without weight decay on
biases and LayerNorm, gradient clipping, linear warm-up and linear decay to zero.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cloze.checkpoint import ModelFolder, TaskLabels, load_folder, save_folder
from cloze.model.surgery import with_heads
from cloze.progress import Silent
from cloze.tasks.registry import head_of
from cloze.train.finetuning.objective import TaskBatch, TaskBatches, TaskObjective
from cloze.train.loop import train
from cloze.train.run import Run
from cloze.train.settings import LoopSettings

STEPS, BATCH, RATE = 50, 8, 5e-4


def start(base: Path, task: TaskLabels, folder: Path) -> ModelFolder:
    """Save a model for a task in a folder that both can load."""
    loaded = load_folder(base)
    labels = max(1, len(task.names))
    bert = with_heads(loaded.model, (head_of(task.kind),), labels=labels, keep=False, seed=1, dropout=0.0)
    save_folder(ModelFolder(bert, loaded.tokenizer, task), folder)
    return load_folder(folder)


def check(
    ours: ModelFolder,
    theirs: Any,
    batches: TaskBatches,
    out: Path,
    their_loss: Callable[[Any, TaskBatch], Tensor],
    change: float = 0.02,
) -> None:
    """Train both and compare their losses step by step; the loss must change by a minimum amount."""
    assert ours.task is not None
    settings = LoopSettings(steps=STEPS, learning_rate=RATE, warmup=0.1, log_every=1, save_every=1000)
    run = Run.open(out, {})
    train(TaskObjective(ours.model, head_of(ours.task.kind)), batches, settings, run, Silent())
    found = [row["loss"] for row in run.metrics()]
    assert len(found) == STEPS
    assert found == pytest.approx(_train_theirs(theirs.train(), batches, their_loss), abs=1e-4)
    assert max(found) - min(found) > change, "and the loss changes"


def inputs_of(batch: TaskBatch) -> dict[str, Tensor]:
    """Return a batch as keyword arguments of a transformers model."""
    inputs = batch.inputs
    return {"input_ids": inputs.ids, "token_type_ids": inputs.segments, "attention_mask": inputs.real.long()}


def labelled_loss(model: Any, batch: TaskBatch) -> Tensor:
    """Return the loss of a transformers model that accepts the targets unchanged."""
    loss: Tensor = model(**inputs_of(batch), labels=batch.targets).loss
    return loss


def _train_theirs(model: Any, batches: TaskBatches, their_loss: Callable[[Any, TaskBatch], Tensor]) -> list[float]:
    assert model.config.hidden_dropout_prob == model.config.attention_probs_dropout_prob == 0.0
    plain = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.999), eps=1e-8)
    losses = []
    for step in range(STEPS):
        batch = batches.at(step)
        assert batch is not None
        loss = their_loss(model, batch)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = _rate(step)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def _rate(step: int) -> float:
    """Return the learning rate: linear warm-up over the first tenth, then linear decay to zero."""
    warm = STEPS // 10
    return RATE * min(1.0, (step + 1) / warm) if step < warm else RATE * (STEPS - step) / (STEPS - warm)
