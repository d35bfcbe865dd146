import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloze.progress import Silent
from cloze.tasks.rows import Source
from cloze.train.finetuning.defaults import TrainingDefaults, choose_defaults, resolve_settings
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.settings import FinetuneSettings, ResolvedSettings
from tests.train.finetuning.test_finetune import make_rows, write
from tests.train.made import Listener


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


def test_what_is_set_is_kept() -> None:
    given = FinetuneSettings(epochs=1, batch_size=4, learning_rate=1e-5, warmup=0.0, seed=3)
    listener = Listener()
    resolved = resolve_settings(given, 256, 100, listener)
    assert resolved == ResolvedSettings(1, 4, learning_rate=1e-5, warmup=0.0, seed=3)
    assert not listener.said
    # A given batch size decides how many epochs make enough updates.
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
        line in said and "with 40 rows; --learning-rate, --epochs, --batch-size override" in said
        for said in listener.said
    )
    recorded = json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert (recorded["epochs"], recorded["batch_size"], recorded["warmup"]) == (2, 16, 0.1)
    assert recorded["learning_rate"] == 1e-3
    # The same call is the same run, and so is the one that names the values.
    for again in (settings, replace(settings, batch_size=16, learning_rate=1e-3, warmup=0.1)):
        assert run_finetuning(source, base, run, settings=again) == run
