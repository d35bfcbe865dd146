"""Pre-training of every backbone through the same loop, and the settings that choose their shape."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cloze.checkpoint import load_folder
from cloze.errors import ConfigError
from cloze.model import Bert, Gpt, preset
from cloze.options import PREDICTS, STATIC_BACKBONES, BackboneName
from cloze.progress import Silent
from cloze.text import Tokenizer
from cloze.train.pretraining.objectives import OBJECTIVES, backbone_class
from cloze.train.pretraining.phases import LengthSchedule, open_tables
from cloze.train.pretraining.plan import plan
from cloze.train.pretraining.pretrain import pretrain, start_model
from cloze.train.settings import PretrainSettings, read_recipe, recipe_names
from tests.train.made import interrupted_at

SETTINGS = PretrainSettings(
    preset="tiny", layers=1, hidden_size=32, steps=4, batch_size=4, max_length=24, save_every=2,
    evaluate_every=2, learning_rate=1e-3,
)  # fmt: skip
BACKBONES: list[BackboneName] = list(OBJECTIVES)


def test_every_backbone_is_declared() -> None:
    assert [*OBJECTIVES, *STATIC_BACKBONES] == list(PREDICTS)
    assert set(OBJECTIVES) <= set(recipe_names())
    for name in OBJECTIVES:
        assert name in backbone_class(name).model_types
        assert PretrainSettings(**read_recipe(name)).backbone == name


@pytest.mark.parametrize("name", BACKBONES)
def test_resumed_run_equals_an_uninterrupted_one(name: BackboneName, data: Path, tmp_path: Path) -> None:
    settings = replace(SETTINGS, backbone=name)
    whole = pretrain(data, tmp_path / "whole", settings=settings)
    with interrupted_at(1, LengthSchedule), pytest.raises(BaseException, match="stopped and saved"):
        pretrain(data, tmp_path / "halves", settings=settings)
    with pytest.raises(ConfigError, match=r"backbone was .* and is now|settings differ"):
        pretrain(data, tmp_path / "halves", settings=replace(settings, backbone="gpt" if name == "bert" else "bert"))
    halves = pretrain(data, tmp_path / "halves", settings=settings)
    for file in ("model.safetensors", "config.json"):
        assert (whole / "model" / file).read_bytes() == (halves / "model" / file).read_bytes()
    loaded = load_folder(whole)
    assert type(loaded.model) is backbone_class(name)
    assert loaded.model.head_names == OBJECTIVES[name].heads(settings)
    assert loaded.card is not None
    assert loaded.card.startswith(f"# {loaded.model.title}, 1 layers, hidden size 32")
    results = json.loads((whole / "eval_results.json").read_text(encoding="utf-8"))
    main = f"held_out_{OBJECTIVES[name].main_loss}"
    assert results["held_out_perplexity"] == pytest.approx(np.exp(results[main]))
    assert results[f"{main}_per_word"] > results[main]


@pytest.mark.parametrize("name", BACKBONES)
def test_a_model_is_trained_further_as_its_own_backbone(name: BackboneName, data: Path, tmp_path: Path) -> None:
    settings = replace(SETTINGS, backbone=name, steps=1)
    first = pretrain(data, tmp_path / "first", settings=settings)
    further = pretrain(data, tmp_path / "further", model=first, settings=settings)
    assert type(load_folder(further).model) is backbone_class(name)
    other: BackboneName = "gpt" if name in ("bert", "electra") else "bert"  # a discriminator is a BERT
    with pytest.raises(ConfigError, match=f"but the backbone is {other}; use .*--backbone"):
        pretrain(data, tmp_path / "other", model=first, settings=replace(settings, backbone=other))


@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone_can_be_planned(name: BackboneName, data: Path) -> None:
    planned = plan(data, settings=replace(SETTINGS, backbone=name))
    assert planned.seconds_per_step > 0
    assert planned.estimate.flops_per_token > 0


def test_next_token_targets(data: Path) -> None:
    tokenizer = Tokenizer.from_folder(data)
    settings = replace(SETTINGS, backbone="gpt")
    batch = LengthSchedule.open(data, tokenizer, settings, open_tables(data, tokenizer, settings)).at(0)
    assert settings.objectives() == {"none": 1.0}
    assert len(batch.positions) == int((batch.lengths - 1).sum())
    ids = batch.ids.reshape(-1)
    assert (batch.targets == ids[batch.positions + 1]).all()
    assert (ids[batch.positions] != tokenizer.mask_id).all()
    assert not batch.segments.any()
    assert batch.counts == {"masked_tokens": len(batch.targets), "pairs": 0, "tokens": int(batch.lengths.sum())}


def test_next_token_loss_is_the_mean_over_all_positions(data: Path) -> None:
    tokenizer, settings = Tokenizer.from_folder(data), replace(SETTINGS, backbone="gpt", dropout=0.0)
    model, _ = start_model(tokenizer, settings, None, Silent())
    batch = LengthSchedule.open(data, tokenizer, settings, open_tables(data, tokenizer, settings)).at(0)
    objective = OBJECTIVES["gpt"].create(model, settings, torch.device("cpu"))
    output = objective(batch, batch.counts)
    losses = []
    for row, length in zip(batch.ids, batch.lengths, strict=True):
        ids = torch.from_numpy(row[:length])[None]
        logits = model.heads["lm"](model(ids, torch.zeros_like(ids)).last)[0, :-1]
        losses.append(torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none"))
    torch.testing.assert_close(output.loss, torch.cat(losses).mean())
    assert 0 <= output.metrics["lm_accuracy"] <= 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"objective": "sop"}, "objective is sop, but it does not apply to the backbone gpt"),
        ({"masking": "word"}, "masking is word, but it does not apply to the backbone gpt"),
        ({"mask_rate": 0.4}, "mask_rate is 0.4, but it does not apply to the backbone gpt"),
        ({"shared_layers": True}, "shared_layers is True, but it does not apply to the backbone gpt"),
        ({"backbone": "gtp"}, "backbone is 'gtp'; did you mean 'gpt'"),
        ({"hidden_size": 100, "heads": 3}, "hidden_size 100 is not divisible by 3 heads"),
        ({"layers": 0}, "layers is 0; expected a whole number from 1"),
        ({"position_kind": "rotary"}, "position_kind is 'rotary'"),
    ],
)
def test_settings_that_do_not_apply_are_refused(change: dict[str, Any], message: str, data: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        start_model(Tokenizer.from_folder(data), PretrainSettings(**{"backbone": "gpt", **change}), None, Silent())


def test_shape_settings_replace_those_of_the_preset(data: Path) -> None:
    tokenizer = Tokenizer.from_folder(data)
    settings = PretrainSettings(preset="tiny", layers=3, hidden_size=192, segments=5, position_kind="sinusoidal")
    model, _ = start_model(tokenizer, settings, None, Silent())
    config = model.config
    assert (config.layers, config.hidden_size, config.heads, config.feedforward_size) == (3, 192, 3, 768)
    assert (config.segments, config.position_kind) == (5, "sinusoidal")
    assert config.initial_deviation == pytest.approx(0.02 * (768 / 192) ** 0.5)
    assert preset("tiny", heads=4).heads == 4
    assert type(model) is Bert


def test_a_gpt_is_trained_by_its_recipe(data: Path, tmp_path: Path) -> None:
    settings = PretrainSettings(preset="tiny", steps=1, batch_size=2, max_length=16, **read_recipe("gpt"))
    run = pretrain(data, tmp_path / "run", settings=settings)
    contents = load_folder(run)
    assert isinstance(contents.model, Gpt)
    assert contents.card is not None
    assert "by prediction of the next token on full sentences" in contents.card
    assert "masking" not in contents.card
    assert json.loads((run / "model" / "config.json").read_text(encoding="utf-8"))["architectures"] == [
        "BertLMHeadModel"
    ]
