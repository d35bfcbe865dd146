"""The same training as transformers: from one start, on the same batches, without dropout, loss by loss."""

from pathlib import Path

import pytest
import torch
from transformers import BertForSequenceClassification

from cloze.checkpoint import ModelFolder, TaskLabels, load_folder, save_folder
from cloze.kinds import TaskKind
from cloze.model import Bert, HeadName
from cloze.model.surgery import with_heads
from cloze.progress import Silent
from cloze.tasks.items import Item
from cloze.text import Tokenizer
from cloze.train.loop import train
from cloze.train.run import Run
from cloze.train.settings import LoopSettings
from cloze.train.task_batches import TaskBatches
from cloze.train.task_objective import TaskObjective
from tests.train.test_finetune import make_rows

STEPS, BATCH, RATE = 50, 8, 5e-4
TARGETS: dict[TaskKind, list[object]] = {
    "classify": [number % 3 for number in range(90)],
    "regress": [number % 7 / 2 for number in range(90)],
    "multilabel": [(float(number % 2), float(number % 3 == 0), float(number % 5 == 0)) for number in range(90)],
}


def make_items(tokenizer: Tokenizer, kind: TaskKind) -> list[Item]:
    rows = make_rows(90)
    encodings = tokenizer.encode_batch([row["text"] for row in rows], [row["label"] for row in rows])
    return [Item((one,), target) for one, target in zip(encodings, TARGETS[kind], strict=True)]  # type: ignore[arg-type]


def start(base: Path, kind: TaskKind, folder: Path) -> ModelFolder:
    """A model without dropout, on disk for both."""
    loaded = load_folder(base)
    labels = 1 if kind == "regress" else 3
    heads: tuple[HeadName, ...] = ("sequence",)
    bert: Bert = with_heads(loaded.model, heads, labels=labels, keep=False, seed=1, dropout=0.0)
    names = () if kind == "regress" else ("a", "b", "c")
    save_folder(ModelFolder(bert, loaded.tokenizer, TaskLabels(kind, names)), folder)
    return load_folder(folder)


@pytest.mark.parametrize("kind", ["classify", "regress", "multilabel"])
def test_losses_are_those_of_transformers(base: Path, tmp_path: Path, kind: TaskKind) -> None:
    ours = start(base, kind, tmp_path / "start")
    items = make_items(ours.tokenizer, kind)
    batches = TaskBatches(items, BATCH, 0, ours.tokenizer.pad_id, torch.device("cpu"))
    settings = LoopSettings(steps=STEPS, rate=RATE, warmup=0.1, log_every=1, save_every=1000)
    run = Run.open(tmp_path / "run", {})
    train(TaskObjective(ours.model, "sequence"), batches, settings, run, Silent())
    found = [row["loss"] for row in run.metrics()]
    expected = theirs(tmp_path / "start", batches)
    assert len(found) == STEPS
    assert found == pytest.approx(expected, abs=1e-4)
    assert max(found) - min(found) > 0.02, "and something happens"


def theirs(folder: Path, batches: TaskBatches) -> list[float]:
    model = BertForSequenceClassification.from_pretrained(folder).train()
    assert model.config.hidden_dropout_prob == model.config.attention_probs_dropout_prob == 0.0
    plain = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.999), eps=1e-8)
    losses = []
    for step in range(STEPS):
        batch = batches.at(step)
        inputs = batch.inputs
        output = model(
            input_ids=inputs.ids,
            token_type_ids=inputs.segments,
            attention_mask=inputs.real.long(),
            labels=batch.targets,
        )
        optimizer.zero_grad()
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = _rate(step)
        optimizer.step()
        losses.append(float(output.loss.detach()))
    return losses


def _rate(step: int) -> float:
    """Linear up over the first tenth, the first step included, and linear down to zero."""
    warm = STEPS // 10
    return RATE * min(1.0, (step + 1) / warm) if step < warm else RATE * (STEPS - step) / (STEPS - warm)
