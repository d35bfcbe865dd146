import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloze.checkpoint import load_folder
from cloze.progress import Silent
from cloze.tasks.examples import Item
from cloze.tasks.registry import KINDS, TaskData, read_task
from cloze.tasks.rows import Source
from cloze.text import Tokenizer
from cloze.train.finetuning.defaults import (
    TrainingDefaults,
    choose_defaults,
    choose_length,
    choose_task_length,
    resolve_settings,
)
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.settings import FinetuneSettings, ResolvedSettings
from tests.train.finetuning.test_finetune import make_rows, write
from tests.train.made import Listener, save_deep


@pytest.mark.parametrize(
    ("hidden_size", "rate"),
    [(64, 1e-3), (128, 1e-3), (256, 4e-4), (312, 1e-4), (384, 1e-4), (512, 1e-4), (768, 5e-5), (1024, 2e-5)],
)
def test_smaller_models_get_higher_rates(hidden_size: int, rate: float) -> None:
    assert choose_defaults(hidden_size, 5000, FinetuneSettings()).learning_rate == rate


@pytest.mark.parametrize("way", [{"adapter": "houlsby"}, {"adapter": "lora"}, {"frozen": "last"}])
def test_new_layers_on_a_frozen_model_get_a_high_rate(way: dict[str, Any]) -> None:
    assert choose_defaults(768, 5000, FinetuneSettings(**way)).learning_rate == 1e-3
    assert choose_defaults(768, 5000, FinetuneSettings(freeze_layers=2)).learning_rate == 5e-5


@pytest.mark.parametrize(
    ("rows", "epochs", "batch_size"),
    [(1, 20, 16), (200, 20, 16), (500, 8, 16), (999, 4, 16), (1000, 8, 32), (3000, 3, 32), (100_000, 3, 32)],
)
def test_few_rows_get_more_epochs_and_smaller_batches(rows: int, epochs: int, batch_size: int) -> None:
    assert choose_defaults(256, rows, FinetuneSettings()) == TrainingDefaults(4e-4, epochs, batch_size)


def test_explicit_settings_are_kept() -> None:
    given = FinetuneSettings(epochs=1, batch_size=4, learning_rate=1e-5, warmup=0.0, seed=3)
    listener = Listener()
    resolved = resolve_settings(given, 256, 100, listener)
    assert resolved == ResolvedSettings(1, 4, learning_rate=1e-5, warmup=0.0, seed=3)
    assert not listener.said
    # An explicit batch size determines how many epochs give enough updates.
    assert resolve_settings(FinetuneSettings(batch_size=4), 256, 100, Silent()).epochs == 10


def test_augmented_copies_count_as_rows() -> None:
    settings = FinetuneSettings(augment="edits", augment_copies=4)
    assert resolve_settings(settings, 256, 300, Silent()).epochs == 6  # 1,500 rows, 47 updates per epoch


def test_the_choice_is_reported_recorded_and_resumed(base: Path, tmp_path: Path) -> None:
    source = Source("classify", write(tmp_path / "train.csv", make_rows(40)), write(tmp_path / "dev.csv", make_rows(8)))
    settings, listener = FinetuneSettings(epochs=2, max_length=16), Listener()
    run = run_finetuning(source, base, tmp_path / "run", settings=settings, progress=listener)
    line = "2 epochs (about 6 updates), batch size 16, warm-up 10 %: for a model of hidden size"
    assert any(
        line in message
        and "with 40 rows; learning_rate (--learning-rate), epochs (--epochs), batch_size (--batch-size) over"
        in message
        for message in listener.said
    )
    recorded = json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert (recorded["epochs"], recorded["batch_size"], recorded["warmup"]) == (2, 16, 0.1)
    assert recorded["learning_rate"] == 1e-3
    # The same call gives the same run, and so does one with explicit values.
    for again in (settings, replace(settings, batch_size=16, learning_rate=1e-3, warmup=0.1)):
        assert run_finetuning(source, base, run, settings=again) == run


# -- the maximum length ------------------------------------------------------------------------------------------------

SHORT = Tokenizer.from_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"], lowercase=True, max_length=512)


def rows_of(words: Sequence[int], folder: Path, pair: int | None = None) -> TaskData:
    """Return rows with the given numbers of words, all of them in the training part."""
    rows = [{"text": "a " * count, "label": "xy"[number % 2]} for number, count in enumerate(words)]
    rows = rows if pair is None else [row | {"pair": "a " * pair} for row in rows]
    path = write(folder / "rows.csv", rows)
    return read_task(Source("classify", path, path, pair=None if pair is None else "pair"))


@pytest.mark.parametrize(
    ("words", "longest", "length", "held"),
    [
        ([126] * 95 + [127] * 5, 512, 128, 0.95),  # 126 words and two special tokens are 128 tokens
        ([126] * 94 + [127] * 6, 512, 256, 1.0),
        ([100] * 90 + [300] * 4 + [900] * 6, 512, 512, 0.94),  # no candidate covers enough rows
        ([900] * 40, 512, 512, 0.0),
        ([900] * 40, 200, 200, 0.0),
        ([60] * 40, 64, 64, 1.0),
    ],
)
def test_maximum_length_holds_nearly_all_rows(
    words: list[int], longest: int, length: int, held: float, tmp_path: Path
) -> None:
    data = rows_of(words, tmp_path)
    chosen = choose_task_length(data, SHORT.with_max_length(longest), FinetuneSettings())
    assert chosen is not None
    assert chosen.tokens == length
    assert chosen.held == pytest.approx(held)
    assert chosen == choose_task_length(data, SHORT.with_max_length(longest), FinetuneSettings(long_texts="head-tail"))


def test_both_texts_of_a_pair_count(tmp_path: Path) -> None:
    data = rows_of([70] * 40, tmp_path, pair=56)
    chosen = choose_task_length(data, SHORT, FinetuneSettings())
    assert chosen is not None
    assert chosen.tokens == 256  # 70 + 56 words and three special tokens are 129 tokens


def test_a_sample_of_the_rows_is_counted() -> None:
    counted: list[Sequence[int]] = []

    def encode(indices: Sequence[int], tokenizer: Tokenizer) -> list[Item]:
        counted.append(indices)
        return [Item((tokenizer("a " * (200 if index % 10 == 0 else 5)),), 0) for index in indices]

    chosen = choose_length(50_000, encode, SHORT)
    assert (chosen.tokens, chosen.held) == (256, 1.0)
    assert [len(set(indices)) for indices in counted] == [1000, 1000]
    assert counted[0] == counted[1]
    assert max(counted[0]) > 45_000, "estimated from all rows"
    assert choose_length(50_000, encode, SHORT) == chosen
    assert counted[2] == counted[0]


def test_maximum_length_is_not_chosen_where_nothing_is_cut(tmp_path: Path) -> None:
    data = rows_of([300] * 40, tmp_path)
    assert choose_task_length(data, SHORT, FinetuneSettings(max_length=32)) is None
    assert choose_task_length(data, SHORT, FinetuneSettings(long_texts="windows")) is None
    assert [kind.name for kind in KINDS.values() if kind.cuts_texts] == ["classify", "multilabel", "regress", "choose"]
    assert resolve_settings(FinetuneSettings(long_texts="windows"), 256, 100, Silent()).max_length == 128


@pytest.mark.parametrize("few", [True, False])
def test_maximum_length_is_reported_recorded_and_resumed(base: Path, tmp_path: Path, few: bool) -> None:
    long = save_deep(base, tmp_path / "deep")
    train = write(tmp_path / "train.csv", [row | {"text": f"{row['text'][:20]} {long}"} for row in make_rows(40)])
    settings = FinetuneSettings(few=True) if few else FinetuneSettings(epochs=1)
    source, listener = Source("classify", train, train), Listener()
    run = run_finetuning(source, tmp_path / "deep", tmp_path / "run", settings=settings, progress=listener)
    assert sum("maximum length 256 (holds 100 % of the rows)" in message for message in listener.said) == 1
    assert any("max_length (--max-length) override" in message for message in listener.said)
    assert json.loads((run / "run.json").read_text("utf-8"))["max_length"] == 256
    assert load_folder(run).tokenizer.max_length == 256
    assert not any("are cut" in message for message in listener.said)
    # A run with a different length, as from an earlier version, is resumed with that length.
    early = run_finetuning(
        source, tmp_path / "deep", tmp_path / "early", settings=replace(settings, max_length=128), progress=listener
    )
    assert any("are longer than 128 tokens and are cut" in message for message in listener.said)
    (early / "model").rename(tmp_path / "model")
    run_finetuning(source, tmp_path / "deep", early, settings=settings)
    assert load_folder(early).tokenizer.max_length == 128
    again = run_finetuning(source, tmp_path / "deep", early, settings=settings, fresh=True)
    assert load_folder(again).tokenizer.max_length == 256
