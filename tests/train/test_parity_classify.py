"""Classification: losses equal to transformers, from one start, on the same batches, without dropout."""

from pathlib import Path

import pytest
import torch
from transformers import BertForSequenceClassification

from cloze.checkpoint import TaskLabels
from cloze.tasks.examples import Item
from cloze.text import Tokenizer
from cloze.train.finetuning.objective import TaskBatches
from tests.train.finetuning.test_finetune import make_rows
from tests.train.parity import BATCH, check, labelled_loss, start

TARGETS: dict[str, list[object]] = {
    "classify": [number % 3 for number in range(90)],
    "regress": [number % 7 / 2 for number in range(90)],
    "multilabel": [(float(number % 2), float(number % 3 == 0), float(number % 5 == 0)) for number in range(90)],
}


def make_items(tokenizer: Tokenizer, kind: str) -> list[Item]:
    rows = make_rows(90)
    encodings = tokenizer.encode_batch([row["text"] for row in rows], [row["label"] for row in rows])
    return [Item((one,), target) for one, target in zip(encodings, TARGETS[kind], strict=True)]  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["classify", "regress", "multilabel"])
def test_losses_are_those_of_transformers(base: Path, tmp_path: Path, kind: str) -> None:
    ours = start(base, TaskLabels(kind, () if kind == "regress" else ("a", "b", "c")), tmp_path / "start")
    items = make_items(ours.tokenizer, kind)
    batches = TaskBatches(items, BATCH, 0, ours.tokenizer.pad_id, torch.device("cpu"))
    theirs = BertForSequenceClassification.from_pretrained(tmp_path / "start")
    check(ours, theirs, batches, tmp_path / "run", labelled_loss)
