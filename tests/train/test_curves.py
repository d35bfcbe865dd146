"""Loss curves, compared with recorded values and with ``transformers``."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import BertForPreTraining

from cloze.checkpoint import ModelFolder, save_folder
from cloze.corpus.batches import PretrainingBatch
from cloze.text import Tokenizer
from cloze.train.settings import LoopSettings
from tests.train.made import LOOP, Training, make_batches, make_bert

EACH_STEP = replace(LOOP, log_every=1)
# Losses of the first five steps with dropout, recorded by the test below after the curve without dropout was verified
# against transformers. To record them again, print the compared values.
GOLDEN = [5.71812, 5.69647, 5.69283, 5.63019, 5.6826]


def test_first_steps_are_the_golden_ones(data: Path, tmp_path: Path) -> None:
    training = Training(data, tmp_path / "run", EACH_STEP)
    training.go()
    assert [row[2] for row in training.losses()[:5]] == pytest.approx(GOLDEN, abs=1e-4)


def their_losses(folder: Path, batches: list[PretrainingBatch], settings: LoopSettings) -> list[float]:
    """Train in the same way with transformers and PyTorch only."""
    model = BertForPreTraining.from_pretrained(folder).train()
    plain = [parameter for name, parameter in model.named_parameters() if "bias" in name or "LayerNorm" in name]
    known = {id(parameter) for parameter in plain}
    others = [parameter for parameter in model.parameters() if id(parameter) not in known]
    groups = [{"params": others, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, eps=1e-8)
    # Warm-up for one step in ten, then linear decay to zero.
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step == 0 else (10 - step) / 9)
    losses = []
    for batch in batches:
        labels = torch.full(batch.ids.shape, -100)
        labels.view(-1)[torch.from_numpy(batch.positions)] = torch.from_numpy(batch.targets)
        loss = model(
            input_ids=torch.from_numpy(batch.ids),
            token_type_ids=torch.from_numpy(batch.segments),
            attention_mask=(torch.arange(batch.ids.shape[1]) < torch.from_numpy(batch.lengths)[:, None]).long(),
            labels=labels,
            next_sentence_label=torch.from_numpy(batch.labels),
        ).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    return losses


def test_ten_steps_are_those_of_transformers(data: Path, tmp_path: Path) -> None:
    settings = replace(EACH_STEP, steps=10)
    save_folder(ModelFolder(make_bert(data, dropout=0.0), Tokenizer.from_folder(data)), tmp_path / "start")
    training = Training(data, tmp_path / "run", settings, dropout=0.0)
    training.go()
    ours = [row[2] for row in training.losses()]
    batches = make_batches(data)
    theirs = their_losses(tmp_path / "start", [batches.at(step) for step in range(10)], settings)
    assert ours == pytest.approx(theirs, abs=1e-4)
    assert ours[-1] < ours[0] - 0.05  # make sure that both models learn
