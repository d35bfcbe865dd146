"""Correction models: the loss compared with ``transformers``, and runs that learn, save settings and resume."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertForMaskedLM

from cloze.checkpoint import ModelFolder, load_folder, save_folder
from cloze.errors import CheckpointError, ConfigError, DataError
from cloze.model import Bert, BertConfig
from cloze.model.surgery import with_heads
from cloze.options import IGNORED
from cloze.predict import load
from cloze.progress import Interrupted
from cloze.tasks.correction.examples import Corrections
from cloze.tasks.correction.kind import CorrectionSettings
from cloze.tasks.rows import Source
from cloze.text import Tokenizer
from cloze.train.finetuning.correction import (
    CorrectionObjective,
    correction_items,
    finetune_correction,
    read_correction_data,
)
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.objective import TaskBatches
from cloze.train.finetuning.settings import FinetuneSettings
from tests.corpus.texts import make_documents
from tests.model.made import assert_close
from tests.predict.taught import make_tokenizer
from tests.train.made import Listener, interrupted_at

QUICK = FinetuneSettings(epochs=1, batch_size=8, max_length=24, learning_rate=1e-3, seed=1)
# "再" ("again") occurs only after "要" ("want").
SPOKEN = [
    f"{who}{what}"
    for who in ("我", "你", "他", "她", "老师", "学生")
    for place in ("家", "学校", "公园", "外")
    for what in (f"在{place}吃苹果", f"在{place}看书", f"要去{place}", "要再来", "喜欢苹果", f"的苹果在{place}")
]
WEIGHTS = Path("model") / "model.safetensors"
TEXTS = list(dict.fromkeys(sentence.lower() for document in make_documents(60) for sentence in document))


def write_rows(path: Path, rows: list[tuple[str, str]]) -> Path:
    lines = (json.dumps({"source": source, "target": target}) for source, target in rows)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def single_words(tokenizer: Tokenizer) -> list[str]:
    """Return the words of the texts that are single tokens, the most frequent first."""
    words = [word for text in TEXTS for word in text.strip(".").split()]
    ordered = sorted(set(words), key=lambda word: (-words.count(word), word))
    return [word for word in ordered if word.isalpha() and tokenizer.id(word) is not None]


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model of characters."""
    tokenizer = make_tokenizer([*dict.fromkeys("".join(SPOKEN)), "平"])
    config = BertConfig(vocab_size=tokenizer.size, hidden_size=32, layers=1, heads=2, feedforward_size=64, positions=32)
    folder = tmp_path_factory.mktemp("speaker") / "model"
    save_folder(ModelFolder(Bert.fresh(config, ["mlm"], seed=0), tokenizer), folder)
    return folder


@pytest.fixture(scope="module")
def mistakes(base: Path) -> list[tuple[str, str]]:
    """Rows in which the third most frequent word always replaces the first."""
    meant, _, written = single_words(Tokenizer.from_folder(base))[:3]
    return [
        (" ".join(written if word == meant else word for word in text.split()), text)
        for text in TEXTS
        if written not in text.split()
    ]


@pytest.fixture(scope="module")
def rows(mistakes: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("rows") / "rows.jsonl", mistakes)


def results(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "eval_results.json").read_text(encoding="utf-8"))
    return found


def test_loss_is_that_of_others(base: Path, mistakes: list[tuple[str, str]]) -> None:
    folder = load_folder(base)
    chosen = mistakes[:6]
    examples = Corrections([one for one, _ in chosen], [other for _, other in chosen], [""] * len(chosen))
    items = correction_items(examples, folder.tokenizer, Listener())
    batch = TaskBatches(items, 6, 0, folder.tokenizer.pad_id, torch.device("cpu"), token_targets=True).at(0)
    assert batch is not None
    outcome = CorrectionObjective(folder.model)(batch, batch.counts)
    theirs = BertForMaskedLM.from_pretrained(base).train(False)
    inputs = batch.inputs
    corrected = theirs(inputs.ids, inputs.real.long(), inputs.segments, labels=batch.targets)
    assert_close(outcome.loss, corrected.loss)
    correction = batch.targets.ne(IGNORED)
    assert_close(outcome.metrics["accuracy"], (corrected.logits.argmax(-1) == batch.targets)[correction].float().mean())


def test_what_is_asked(base: Path) -> None:
    tokenizer = Tokenizer.from_folder(base)
    one, other = single_words(tokenizer)[:2]
    examples = Corrections([f"{one} {one} xq .", f"{one} {one}"], [f"{one} {other} xq .", one], ["", ""])
    listener = Listener()
    (item,) = correction_items(examples, tokenizer, listener)
    assert listener.said == ["1 of 2 training rows differ from their correction in the number of words: skipped"]
    targets = [None if number == IGNORED else tokenizer.piece(number) for number in item.target]  # type: ignore[union-attr,arg-type]
    assert targets[:3] == [None, one, other]
    assert targets[-2:] == [".", None]
    assert set(targets[3:-2]) == {None}  # words of several pieces have no target


def test_of_a_text_that_is_cut_the_words_that_were_read_are_asked(base: Path) -> None:
    tokenizer = Tokenizer.from_folder(base).with_max_length(6)
    one, other = single_words(tokenizer)[:2]
    mistaken = next(word for word in (one + letter for letter in "abcdefgh") if len(tokenizer(word).ids) > 3)
    # The correct text has fewer pieces, so more of its words would fit.
    texts = f"{one} {mistaken} {other} {one}", f"{one} {one} {other} {one}"
    listener = Listener()
    (item,) = correction_items(Corrections([texts[0]], [texts[1]], [""]), tokenizer, listener)
    assert listener.said == ["1 of 1 training texts are longer than 6 tokens and are cut"]
    first, second = tokenizer.id(one), tokenizer.id(other)
    assert item.target == [IGNORED, first, IGNORED, IGNORED, second, IGNORED]


def test_mistakes_are_learned_and_the_folder_remembers(speaker: Path, tmp_path: Path) -> None:
    pairs = [(text.replace("苹", "平").replace("在", "再"), text) for text in SPOKEN]
    rows = write_rows(tmp_path / "rows.jsonl", pairs)
    settings = replace(QUICK, epochs=8, learning_rate=3e-3, dropout=0.0)
    listener = Listener()
    run = run_finetuning(Source("Correction", rows), speaker, tmp_path / "run", settings=settings, progress=listener)
    found = results(run)
    assert found["correction_f1"] > 0.9
    assert found["false_alarms"] < 0.05
    assert any(targets.startswith("no dev (--dev) file: ") for targets in listener.said)
    model = load(run)
    assert model.heads == ("mlm",)
    assert model.correcting == found["threshold"]
    corrected = model.correct(["他再家吃平果", "他要再来"])
    assert [one.target for one in corrected] == [
        "他在家吃苹果",
        "他要再来",
    ]  # the correct "再" in the second text is unchanged
    # The settings stored in the folder equal these explicit settings.
    correction = CorrectionSettings(reading="seen", threshold=found["threshold"])
    assert model.correct(["他再家吃平果", "他要再来"], correction) == corrected
    model.save(tmp_path / "copy")
    assert load(tmp_path / "copy").correcting == found["threshold"]
    assert BertForMaskedLM.from_pretrained(tmp_path / "copy").config.model_type == "bert"


def test_resumed_is_uninterrupted_to_the_bit(base: Path, rows: Path, tmp_path: Path) -> None:
    source = Source("correction", rows)
    whole = finetune_correction(source, base, tmp_path / "whole", settings=QUICK)
    with pytest.raises(Interrupted, match="stopped and saved at step 3"), interrupted_at(2):
        finetune_correction(source, base, tmp_path / "run", settings=QUICK)
    resumed = finetune_correction(source, base, tmp_path / "run", settings=QUICK)
    assert (resumed / WEIGHTS).read_bytes() == (whole / WEIGHTS).read_bytes()
    listener = Listener()
    finetune_correction(source, base, tmp_path / "run", settings=QUICK, progress=listener)
    assert f"{tmp_path / 'run'}: already finished; use fresh=True (--fresh) to start over" in listener.said
    with pytest.raises(ConfigError, match=r"epochs was 1 and is now 2"):
        finetune_correction(source, base, tmp_path / "run", settings=replace(QUICK, epochs=2))


def test_dev_rows_get_some_without_a_mistake(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [("a b", "a c")] * 40)
    listener = Listener()
    data = read_correction_data(Source("correction", path), listener)
    assert (len(data.train), data.dev.sources) == (36, ["a c", "a b", "a c", "a b"])
    assert "almost every dev row has a mistake: every other row is corrected, to count false alarms" in listener.said
    with path.open("a", encoding="utf-8") as file:
        file.write("[]\n")
    read_correction_data(Source("correction", path, path, on_bad_row="skip"), listener)
    assert "1 bad training rows were skipped" in listener.said
    mixed = write_rows(tmp_path / "mixed.jsonl", [("a b", "a c"), ("a c", "a c")])
    data = read_correction_data(Source("correction", path, mixed, on_bad_row="skip"), Listener())
    assert (len(data.train), data.dev.sources) == (40, ["a b", "a c"])


def test_invalid_input_is_rejected(base: Path, rows: Path, tmp_path: Path) -> None:
    def refused(message: str, kind: type[Exception], source: Path = rows, model: Path = base, **changes: Any) -> None:
        with pytest.raises(kind, match=message):
            finetune_correction(
                Source("correction", source), model, tmp_path / "run", settings=replace(QUICK, **changes)
            )
        assert not (tmp_path / "run").exists()

    refused("^adapter is 'lora', which training for correction does not support; leave", ConfigError, adapter="lora")
    refused(
        r"^max_length is 5000, but the model accepts at most \d+ tokens; use at most that", ConfigError, max_length=5000
    )
    clean = write_rows(tmp_path / "clean.jsonl", [("a", "a")] * 30)
    refused("clean.jsonl: no row has a mistake; expected texts with mistakes", DataError, clean)
    few = write_rows(tmp_path / "few.jsonl", [("a", "b")] * 3)
    refused(r"^3 rows are too few to hold some out: at least 20 are needed; give dev \(--dev\)$", DataError, few)
    uneven = write_rows(tmp_path / "uneven.jsonl", [("a b", "a")] * 30)
    refused(
        "uneven.jsonl:1: this row and all others differ from their correction in the number of words", DataError, uneven
    )
    folder = load_folder(base)
    save_folder(replace(folder, model=with_heads(folder.model, (), keep=False, seed=0)), tmp_path / "headless")
    refused("headless: no masked-LM head; train one with", CheckpointError, model=tmp_path / "headless")
