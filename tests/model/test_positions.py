"""Sinusoidal position embeddings against the formula of the paper, on disk and in transformers."""

import json
import math
from pathlib import Path

import pytest
import torch
from transformers import BertModel

from cloze.checkpoint import ModelFolder, load_folder, save_folder
from cloze.errors import CheckpointError, ConfigError
from cloze.model import Bert, BertConfig
from cloze.model.surgery import with_heads, with_positions
from tests.model.test_gpt import TOKENIZER, random_batch

CONFIG = BertConfig(
    vocab_size=TOKENIZER.size, hidden_size=6, layers=2, heads=2, feedforward_size=8, positions=16, dropout=0.0,
    attention_dropout=0.0, initial_deviation=0.3, position_kind="sinusoidal",
)  # fmt: skip


def test_the_table_is_that_of_the_paper() -> None:
    table = Bert.fresh(CONFIG, ["mlm"]).encoder.embeddings.position.weight
    for position in range(16):
        for column in range(6):
            angle = position / 10_000 ** (2 * (column // 2) / 6)
            expected = 0.3 * (math.cos(angle) if column % 2 else math.sin(angle))
            assert float(table[position, column].detach()) == pytest.approx(expected, abs=1e-6)


def test_training_does_not_change_the_table() -> None:
    model = Bert.fresh(CONFIG, ["mlm"]).train()
    ids, segments, mask = random_batch(CONFIG, 0)
    model(ids, segments, mask).last.sum().backward()
    assert model.encoder.embeddings.position.weight.grad is None
    assert model.token_table.weight.grad is not None


def test_a_saved_model_gives_the_same_states_in_transformers(tmp_path: Path) -> None:
    model = Bert.fresh(CONFIG, ["mlm"], seed=4).eval()
    save_folder(ModelFolder(model, TOKENIZER), tmp_path / "model")
    loaded = load_folder(tmp_path / "model").model
    assert loaded.config == CONFIG
    assert not loaded.encoder.embeddings.position.weight.requires_grad
    ids, segments, mask = random_batch(CONFIG, 1)
    with torch.inference_mode():
        ours = loaded.encode(ids, segments, mask).last
        theirs = BertModel.from_pretrained(tmp_path / "model", add_pooling_layer=False)
        expected = theirs(input_ids=ids, token_type_ids=segments, attention_mask=mask.long()).last_hidden_state
    torch.testing.assert_close(ours[mask], expected[mask], atol=1e-5, rtol=1e-5)
    tuned = with_heads(loaded, ["sequence"], keep=False, seed=0, pooling="mean")
    assert torch.equal(tuned.encoder.embeddings.position.weight, model.encoder.embeddings.position.weight)


def test_more_positions_continue_the_formula() -> None:
    longer = with_positions(Bert.fresh(CONFIG, ["mlm"]), 40)
    fresh = Bert.fresh(longer.config, ["mlm"])
    assert torch.equal(longer.encoder.embeddings.position.weight, fresh.encoder.embeddings.position.weight)
    same = with_positions(longer, 40)
    assert same.config.positions == 40


def test_unknown_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="position_kind is 'rotary'; expected learned or sinusoidal"):
        BertConfig(position_kind="rotary")  # type: ignore[arg-type]
    save_folder(ModelFolder(Bert.fresh(CONFIG, ["mlm"]), TOKENIZER), tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(values | {"cloze_positions": 7}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="position_kind is 7"):
        load_folder(tmp_path / "model")
