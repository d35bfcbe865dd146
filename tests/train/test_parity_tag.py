"""Tagging: losses equal to transformers, from one start, on the same batches; and the task as a whole."""

import json
import random
from pathlib import Path

import pytest
import torch
from transformers import BertForTokenClassification

from cloze.checkpoint import TaskLabels
from cloze.errors import ConfigError
from cloze.predict import load
from cloze.tasks.rows import Source
from cloze.tasks.tagging.kind import read_own_tags, tag_items
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.objective import TaskBatches
from cloze.train.finetuning.settings import FinetuneSettings
from tests.corpus.texts import WORDS
from tests.train.parity import BATCH, check, labelled_loss, start

SETTINGS = FinetuneSettings(epochs=8, batch_size=8, max_length=24, learning_rate=3e-3, dropout=0.0)


def make_columns(path: Path, count: int, seed: int = 0) -> Path:
    """Write sentences in which "winter" and the following word are a name, in CoNLL format."""
    draw = random.Random(seed)
    others = [word for word in WORDS if word != "winter"]
    lines: list[str] = []
    for _ in range(count):
        words, tags, place = draw.sample(others, 5), ["O"] * 5, draw.randrange(4)
        words[place], tags[place : place + 2] = "winter", ["I-X", "I-X"]
        lines += [*(f"{word} {tag}" for word, tag in zip(words, tags, strict=True)), ""]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def make_documents(path: Path, count: int, seed: int) -> Path:
    """Write documents of two sentences; only the first sentence determines the tag in the second."""
    firsts = random.Random(seed).choices(("winter", "garden"), k=count)
    documents = (f"-DOCSTART- O\n\n{word} O\n\nriver {'B-X' if word == 'winter' else 'O'}\n\n" for word in firsts)
    path.write_text("".join(documents), encoding="utf-8")
    return path


def test_losses_are_those_of_transformers(base: Path, tmp_path: Path) -> None:
    found = read_own_tags(Source("tag", make_columns(tmp_path / "rows.txt", 90)), "train", None)
    assert found.labels is not None
    ours = start(base, TaskLabels("tag", found.labels.names), tmp_path / "start")
    tokenizer = ours.tokenizer.with_max_length(12)  # so that some sentences need several windows
    items = tag_items(found.examples, tokenizer)  # type: ignore[arg-type]
    assert len(items) > 90
    batches = TaskBatches(items, BATCH, 0, tokenizer.pad_id, torch.device("cpu"), token_targets=True)
    theirs = BertForTokenClassification.from_pretrained(tmp_path / "start")
    check(ours, theirs, batches, tmp_path / "run", labelled_loss, change=0.2)


def results(run: Path) -> dict[str, float]:
    return json.loads((run / "eval_results.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def test_names_are_learned(base: Path, tmp_path: Path) -> None:
    source = Source("tag", make_columns(tmp_path / "train.txt", 160), make_columns(tmp_path / "dev.txt", 40, 1))
    run = run_finetuning(source, base, tmp_path / "run", settings=SETTINGS)
    found = results(run)
    assert list(found)[:4] == ["f1", "precision", "recall", "accuracy"]
    assert {"rows", "intervals", "by_label"} <= found.keys()
    assert found["f1"] > 0.9
    (one,) = load(run).tag([["winter", "has", "come"]])
    assert [(entity.text, entity.label) for entity in one.entities] == [("winter has", "X")]
    assert (run / "predictions.txt").read_text(encoding="utf-8").count("\n\n") == 40
    assert "answers: B-X, I-X, O" in (run / "model" / "README.md").read_text(encoding="utf-8")


def test_context_is_used_on_request(base: Path, tmp_path: Path) -> None:
    """A tag that depends on the previous sentence is learned with context, and stays at chance without it."""
    paths = [make_documents(tmp_path / f"{seed}.txt", 120, seed) for seed in (0, 1)]
    source = Source("tag", paths[0], paths[1])
    scores = {}
    for context in (False, True):
        settings = FinetuneSettings(epochs=8, batch_size=8, max_length=24, learning_rate=3e-3, context=context)
        run = run_finetuning(source, base, tmp_path / f"run-{context}", settings=settings)
        scores[context] = results(run)["accuracy"]
        task = load(run).task
        assert task is not None
        assert task.context is context
    assert scores[False] < 0.9
    assert scores[True] > 0.97


def test_context_is_for_tagging(base: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("text,label\n" + "a,x\nb,y\n" * 20, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        run_finetuning(
            Source("classify", path), base, tmp_path / "run", settings=FinetuneSettings(max_length=8, context=True)
        )
    assert str(caught.value) == (
        "context applies only to tagging, whose rows are sentences of documents; the task here is classify"
    )
    assert not (tmp_path / "run").exists()
