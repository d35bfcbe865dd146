"""Training to answer: the losses of transformers step by step, and something that is learned."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import BertForQuestionAnswering

from cloze.checkpoint import ModelFolder, TaskLabels, load_folder, save_folder
from cloze.errors import ConfigError
from cloze.model import HeadName
from cloze.model.surgery import with_heads
from cloze.predict import evaluate, load
from cloze.progress import Silent
from cloze.tasks.answer import NOWHERE, Question, Questions, answer_items
from cloze.tasks.source import Source
from cloze.train.finetune import finetune
from cloze.train.loop import train
from cloze.train.run import Run
from cloze.train.settings import FinetuneSettings, LoopSettings
from cloze.train.task_batches import TaskBatches
from cloze.train.task_objective import TaskObjective
from tests.corpus.texts import WORDS
from tests.train.test_parity_classify import BATCH, RATE, STEPS, _rate

OTHERS = [word for word in WORDS if word not in {"winter", "garden"}]


def make_questions(count: int, seed: int = 0, none: float = 0.0, words: int = 12) -> list[Question]:
    """The answer goes from "winter" to "garden", with a word between; in some contexts there are no such words."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        before, middle, after = (draw.choices(OTHERS, k=k) for k in (draw.randrange(words), 1, draw.randrange(words)))
        if draw.random() < none:
            rows.append(Question(f"f:{number}", str(number), "the old house", " ".join(before + middle + after)))
            continue
        answer = " ".join(["winter", *middle, "garden"])
        start = len(" ".join([*before, ""]))
        context = " ".join([*before, answer, *after])
        span = start, start + len(answer)
        rows.append(Question(f"f:{number}", str(number), "the old house", context, (answer,), span))
    return rows


def write(path: Path, rows: list[Question]) -> Path:
    lines = [
        {
            "question": row.question,
            "context": row.context,
            "answer": row.answers[0] if row.answers else "",
            "answer_start": row.span[0] if row.span else None,
        }
        for row in rows
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_losses_are_those_of_transformers(base: Path, tmp_path: Path) -> None:
    loaded = load_folder(base)
    heads: tuple[HeadName, ...] = ("span",)
    bert = with_heads(loaded.model, heads, labels=1, keep=False, seed=1, dropout=0.0)
    save_folder(ModelFolder(bert, loaded.tokenizer, TaskLabels("answer")), tmp_path / "start")
    ours = load_folder(tmp_path / "start")
    items = answer_items(Questions(make_questions(90, none=0.2)), ours.tokenizer.with_max_length(24), 5)
    assert sum(item.target == NOWHERE for item in items) > 10
    assert len(items) > 100, "some contexts have several windows"
    batches = TaskBatches(items, BATCH, 0, ours.tokenizer.pad_id, torch.device("cpu"))
    settings = LoopSettings(steps=STEPS, rate=RATE, warmup=0.1, log_every=1, save_every=1000)
    run = Run.open(tmp_path / "run", {})
    train(TaskObjective(ours.model, "span"), batches, settings, run, Silent())
    found = [row["loss"] for row in run.metrics()]
    assert len(found) == STEPS
    assert found == pytest.approx(theirs(tmp_path / "start", batches), abs=1e-4)
    assert max(found) - min(found) > 0.02, "and something happens"


def theirs(folder: Path, batches: TaskBatches) -> list[float]:
    model = BertForQuestionAnswering.from_pretrained(folder).train()
    assert model.config.hidden_dropout_prob == model.config.attention_probs_dropout_prob == 0.0
    plain = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.999), eps=1e-8)
    losses = []
    for step in range(STEPS):
        batch = batches.at(step)
        output = model(
            input_ids=batch.inputs.ids,
            token_type_ids=batch.inputs.segments,
            attention_mask=batch.inputs.real.long(),
            start_positions=batch.targets[:, 0],
            end_positions=batch.targets[:, 1],
        )
        optimizer.zero_grad()
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = _rate(step)
        optimizer.step()
        losses.append(float(output.loss.detach()))
    return losses


@pytest.fixture(scope="module")
def learned(base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Source]:
    folder = tmp_path_factory.mktemp("answers")
    train_rows, dev_rows = make_questions(300, none=0.3), make_questions(60, seed=1, none=0.3)
    source = Source("answer", write(folder / "train.jsonl", train_rows), write(folder / "dev.jsonl", dev_rows))
    settings = FinetuneSettings(epochs=6, batch=8, length=40, rate=3e-3)
    return finetune(source, base, folder / "run", settings=settings), source


def test_answers_are_learned(learned: tuple[Path, Source]) -> None:
    run, source = learned
    results = json.loads((run / "eval_results.json").read_text("utf-8"))
    assert results["rows"] == 60
    assert results["f1"] > 0.8
    assert results["NoAns_exact"] > 0.8
    assert results["f1"] == results["best_f1"], "the threshold is the best of the dev set"
    assert (run / "predictions.json").is_file()
    task = load_folder(run).task
    assert task is not None
    assert task.kind == "answer"
    assert task.threshold is not None
    assert "answers: a stretch of the text" in (run / "model" / "README.md").read_text("utf-8")
    assert evaluate(run, replace(source, data=source.dev, dev=None)).metrics == {  # type: ignore[arg-type]
        name: value for name, value in results.items() if name != "rows"
    }


def test_model_is_asked(learned: tuple[Path, Source]) -> None:
    model = load(learned[0])
    context = "The captain follows Winter silver garden, of music."
    (answer,) = model.answer("the old house", context)
    assert (answer.text, context[answer.start : answer.end]) == ("Winter silver garden", "Winter silver garden")
    assert model.answer("the old house", "the captain follows music under the river")[0].text == ""


def test_bad_stride_is_told() -> None:
    with pytest.raises(ConfigError, match="stride is 0; at least 1 was expected"):
        FinetuneSettings(stride=0)
