"""Multiple choice: losses equal to transformers step by step, and a task that is learned."""

import json
import random
from pathlib import Path

import pytest
import torch
from transformers import BertForMultipleChoice

from cloze.checkpoint import TaskLabels
from cloze.predict import load
from cloze.tasks.choice.kind import Choice, Choices, choice_items
from cloze.tasks.rows import Source
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.objective import TaskBatch, TaskBatches
from cloze.train.finetuning.settings import FinetuneSettings
from tests.corpus.texts import WORDS
from tests.train.parity import BATCH, check, inputs_of, start


def make_choices(count: int, seed: int = 0, options: tuple[int, int] = (4, 4)) -> list[Choice]:
    """The correct option contains the word "winter"."""
    draw = random.Random(seed)
    others = [word for word in WORDS if word != "winter"]
    rows = []
    for number in range(count):
        texts = [draw.choices(others, k=draw.randint(1, 5)) for _ in range(draw.randint(*options))]
        target = draw.randrange(len(texts))
        texts[target].insert(0, "winter")
        rows.append(
            Choice(f"f:{number}", " ".join(draw.choices(others, k=4)), tuple(" ".join(one) for one in texts), target)
        )
    return rows


@pytest.mark.parametrize("options", [(4, 4), (2, 5)])
def test_losses_are_those_of_transformers(base: Path, tmp_path: Path, options: tuple[int, int]) -> None:
    ours = start(base, TaskLabels("choose"), tmp_path / "start")
    items = choice_items(Choices(make_choices(90, options=options)), ours.tokenizer)
    batches = TaskBatches(items, BATCH, 0, ours.tokenizer.pad_id, torch.device("cpu"))
    theirs = BertForMultipleChoice.from_pretrained(tmp_path / "start")
    check(ours, theirs, batches, tmp_path / "run", their_loss)


def their_loss(model: BertForMultipleChoice, batch: TaskBatch) -> torch.Tensor:
    """Return the loss, row by row if rows have different numbers of options, which transformers cannot batch."""
    tensors = inputs_of(batch)
    if len(set(batch.sizes)) == 1:
        shaped = {name: tensor.view(len(batch.sizes), batch.sizes[0], -1) for name, tensor in tensors.items()}
        whole: torch.Tensor = model(**shaped, labels=batch.targets).loss
        return whole
    parts = {name: torch.split(tensor, list(batch.sizes)) for name, tensor in tensors.items()}
    losses = [
        model(**{name: parts[name][number][None] for name in parts}, labels=batch.targets[number : number + 1]).loss
        for number in range(len(batch.sizes))
    ]
    return torch.stack(losses).mean()


def test_choices_are_learned(base: Path, tmp_path: Path) -> None:
    sources = {}
    for name, count, seed in (("train", 120, 0), ("dev", 30, 1)):
        sources[name] = tmp_path / f"{name}.jsonl"
        lines = [
            {"prompt": row.prompt, "options": row.options, "label": "ABCDE"[row.target or 0]}
            for row in make_choices(count, seed, (2, 5))
        ]
        sources[name].write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    source = Source("choose", sources["train"], sources["dev"], text="prompt")
    settings = FinetuneSettings(epochs=4, batch_size=8, max_length=24, learning_rate=3e-3)
    run = run_finetuning(source, base, tmp_path / "run", settings=settings)
    results = json.loads((run / "eval_results.json").read_text("utf-8"))
    assert results["rows"] == 30
    assert results["accuracy"] > 0.9
    best, *_ = load(run).choose("the old house", ["the river", "winter music", "again"])
    assert (best.index, best.text) == (1, "winter music")
    assert "answers: one of the options" in (run / "model" / "README.md").read_text("utf-8")
