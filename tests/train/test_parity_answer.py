"""Question answering: losses equal to transformers step by step, and a task that is learned."""

import json
import random
from pathlib import Path

import pytest
import torch
from transformers import BertForQuestionAnswering

from cloze.checkpoint import TaskLabels, load_folder
from cloze.errors import ConfigError
from cloze.predict import evaluate, load
from cloze.tasks.answering.examples import NOWHERE, Question, Questions, answer_items
from cloze.tasks.reports import scores_of
from cloze.tasks.rows import Source
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.objective import TaskBatch, TaskBatches, TaskObjective
from cloze.train.finetuning.settings import FinetuneSettings
from tests.corpus.texts import WORDS
from tests.train.made import Listener
from tests.train.parity import BATCH, check, inputs_of, start

OTHERS = [word for word in WORDS if word not in {"winter", "garden"}]


def make_questions(count: int, seed: int = 0, none: float = 0.0, words: int = 12) -> list[Question]:
    """The answer spans "winter" to "garden" with one word between; some contexts lack these words."""
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
    ours = start(base, TaskLabels("answer"), tmp_path / "start")
    items = answer_items(Questions(make_questions(90, none=0.2, words=30)), ours.tokenizer.with_max_length(24), 5)
    # Use full windows only: transformers allows answers in the padding, cloze does not.
    items = [item for item in items if len(item.encodings[0].ids) == 24]
    assert sum(item.target == NOWHERE for item in items) > 10
    assert len(items) > 150, "contexts have several windows"
    batches = TaskBatches(items, BATCH, 0, ours.tokenizer.pad_id, torch.device("cpu"))
    theirs = BertForQuestionAnswering.from_pretrained(tmp_path / "start")
    check(ours, theirs, batches, tmp_path / "run", their_loss)


def test_padding_is_no_answer(base: Path, tmp_path: Path) -> None:
    ours = start(base, TaskLabels("answer"), tmp_path / "start")
    items = answer_items(Questions(make_questions(8)), ours.tokenizer, 5)
    assert len({len(item.encodings[0].ids) for item in items}) > 3
    objective = TaskObjective(ours.model, "span").train()

    def losses(batch: int) -> list[float]:
        batches = TaskBatches(items, batch, 0, ours.tokenizer.pad_id, torch.device("cpu"))
        parts = [batches.at(step) for step in range(batches.steps_per_epoch)]
        return [objective(part, {"targets": 2 * len(items)}).loss.item() for part in parts]

    together, alone = losses(8), losses(1)
    assert (len(together), len(alone)) == (1, 8)
    assert sum(alone) == pytest.approx(together[0], abs=1e-5)


def their_loss(model: BertForQuestionAnswering, batch: TaskBatch) -> torch.Tensor:
    starts, ends = batch.targets.unbind(1)
    loss: torch.Tensor = model(**inputs_of(batch), start_positions=starts, end_positions=ends).loss
    return loss


@pytest.fixture(scope="module")
def learned(base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Source]:
    folder = tmp_path_factory.mktemp("answers")
    train_rows, dev_rows = make_questions(300, none=0.3), make_questions(60, seed=1, none=0.3)
    source = Source("answer", write(folder / "train.jsonl", train_rows), write(folder / "dev.jsonl", dev_rows))
    settings = FinetuneSettings(epochs=6, batch_size=8, max_length=40, learning_rate=3e-3)
    return run_finetuning(source, base, folder / "run", settings=settings), source


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
    assert "answers: a span of the text" in (run / "model" / "README.md").read_text("utf-8")
    assert evaluate(run, source).metrics == scores_of(results)


def test_model_is_asked(learned: tuple[Path, Source]) -> None:
    model = load(learned[0])
    context = "The captain follows Winter silver garden, of music."
    (answer,) = model.answer("the old house", context)
    assert (answer.text, context[answer.start : answer.end]) == ("Winter silver garden", "Winter silver garden")
    assert model.answer("the old house", "the captain follows music under the river")[0].text == ""


def test_answers_that_are_trained_as_none_are_told(base: Path, tmp_path: Path) -> None:
    short, context = make_questions(12), " ".join(OTHERS[:30])
    rows = [*short, Question("f:12", "12", "the old house", context, (context,), (0, len(context)))]
    source = Source("answer", write(tmp_path / "train.jsonl", rows), write(tmp_path / "dev.jsonl", short))
    listener = Listener()
    settings = FinetuneSettings(epochs=1, batch_size=8, max_length=20)
    run_finetuning(source, base, tmp_path / "run", settings=settings, progress=listener)
    messages = [one for one in listener.said if "no window of 20 tokens contains" in one]
    assert [one.split(" have ")[0] for one in messages] == ["1 of 13 training questions"]


def test_longest_answer_is_kept_with_the_model(base: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", make_questions(20))
    settings = FinetuneSettings(epochs=1, batch_size=8, max_length=40, longest_answer=2)
    run = run_finetuning(Source("answer", path, path), base, tmp_path / "run", settings=settings)
    task = load_folder(run).task
    assert task is not None
    assert task.longest_answer == 2
    # In this vocabulary every word is one token.
    assert {
        len(predicted.split()) for predicted in json.loads((run / "predictions.json").read_text("utf-8")).values()
    } <= {1, 2}


def test_bad_stride_is_told() -> None:
    with pytest.raises(ConfigError, match="stride is 0; expected at least 1"):
        FinetuneSettings(stride=0)
