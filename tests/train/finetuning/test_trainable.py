"""Trainable parameters: adapters, LoRA, heads on frozen states, upper layers, layer-wise learning rates."""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import cloze.train.finetuning.trainable
import cloze.train.run
from cloze.checkpoint import ModelFolder, load_folder, save_folder
from cloze.errors import CheckpointError, ConfigError
from cloze.model import Bert, preset
from cloze.model.adapters import part_tensors, parts_of
from cloze.model.heads import Reader
from cloze.predict import load
from cloze.progress import Interrupted
from cloze.tasks.rows import Source
from cloze.text import Tokenizer
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.search import search
from cloze.train.finetuning.settings import FinetuneSettings, SearchSettings
from cloze.train.finetuning.trainable import SIZES, make_trainable
from cloze.train.optimization import (
    layer_decay_scale,
    make_optimizer,
    optimizer_tensors,
    restore_optimizer,
    set_rate,
)
from tests.model.made import SMALL, random_bert
from tests.train.finetuning.test_finetune import FAST, LEARNING, make_rows, write
from tests.train.made import Listener, interrupted_at, make_bert

WAYS: dict[str, dict[str, Any]] = {
    "houlsby": {"adapter": "houlsby", "adapter_size": 8},
    "lora": {"adapter": "lora", "adapter_size": 2},
    "last": {"frozen": "last"},
    "last lstm": {"frozen": "last", "feature_head": "lstm"},
    "mix lstm": {"frozen": "mix", "feature_head": "lstm"},
    "layer decay": {"layer_decay": 0.5},
    "lowest frozen": {"freeze_layers": 1},
    "both": {"freeze_layers": 1, "layer_decay": 0.5},
}
ATTACHED = ["houlsby", "lora", "last", "last lstm", "mix lstm"]


def settings_of(way: str, start: FinetuneSettings = FAST) -> FinetuneSettings:
    return replace(start, **WAYS[way])


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source("classify", write(tmp_path / "train.csv", make_rows(40)))


def fingerprint(tensors: Iterable[tuple[str, Tensor]]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def weights(run: Path) -> bytes:
    """Return the only tensor file of a finished run."""
    (path,) = (run / "model").glob("*.safetensors")
    return path.read_bytes()


def trained_model(monkeypatch: pytest.MonkeyPatch, train: Callable[[], Path]) -> ModelFolder:
    """Return the complete model that a run is about to save."""
    seen: list[ModelFolder] = []
    for name in ("save_folder", "save_adapter"):
        monkeypatch.setattr(cloze.train.run, name, lambda contents, _: seen.append(contents))
    train()
    (contents,) = seen
    return contents


@pytest.mark.parametrize("way", WAYS)
def test_frozen_parameters_never_move_and_all_others_do(
    base: Path, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    settings = replace(settings_of(way), epochs=2)
    contents = trained_model(monkeypatch, lambda: run_finetuning(source, base, tmp_path / "run", settings=settings))
    before = load_folder(base).model.state_dict()
    after = dict(contents.model.named_parameters())
    frozen = {name for name, parameter in after.items() if not parameter.requires_grad}
    kept = fingerprint((name, before[name]) for name in frozen)
    assert kept == fingerprint((name, after[name].detach()) for name in frozen)
    moved = {name for name in after.keys() - frozen if name in before and torch.equal(before[name], after[name])}
    assert moved <= {"encoder.embeddings.segment.weight"}, "the second segment is never used"
    if way in ATTACHED:
        assert contents.adapter is not None
        assert part_tensors(parts_of(contents.model, contents.adapter.attachment)).keys() == after.keys() - frozen
        assert "encoder.embeddings.token.weight" in frozen
        # A pooler that may be untrained is trained with the head that uses it.
        assert ("pooler.dense.weight" in frozen) == (WAYS[way].get("frozen") is not None)
    elif "freeze_layers" in WAYS[way]:
        assert {name.rpartition(".")[0] for name in frozen if "layers.1." in name} == set()
        assert sum("layers.0." in name for name in frozen) == 12
    else:
        assert not frozen


@pytest.mark.parametrize("way", WAYS)
def test_resumed_is_uninterrupted_to_the_bit(base: Path, source: Source, tmp_path: Path, way: str) -> None:
    settings = settings_of(way)
    whole = run_finetuning(source, base, tmp_path / "whole", settings=settings)
    with pytest.raises(Interrupted, match="stopped and saved at step 3"), interrupted_at(2):
        run_finetuning(source, base, tmp_path / "run", settings=settings)
    assert weights(run_finetuning(source, base, tmp_path / "run", settings=settings)) == weights(whole)


@pytest.mark.parametrize("way", ["houlsby", "lora", "mix lstm"])
def test_separable_labels_are_learned(data: Path, tmp_path: Path, way: str) -> None:
    # Untrained adapters need a base with large initial weights: they only see what its attention computes.
    lively = Bert.fresh(replace(make_bert(data).config, initial_deviation=0.2), ("mlm", "nsp"), seed=1)
    save_folder(ModelFolder(lively, Tokenizer.from_folder(data)), tmp_path / "base")
    source = Source(
        "classify", write(tmp_path / "train.csv", make_rows(160)), write(tmp_path / "dev.csv", make_rows(40, 1))
    )
    settings = replace(settings_of(way, LEARNING), learning_rate=3e-3, epochs=10, adapter_size=None)
    run = run_finetuning(source, tmp_path / "base", tmp_path / "run", settings=settings)
    results = json.loads((run / "eval_results.json").read_text(encoding="utf-8"))
    assert results["accuracy"] > 0.9
    texts = [row["text"] for row in make_rows(6, seed=2)]
    answers = [answer.label for answer in load(run).classify(texts)]
    assert sum(str(word) in text for word, text in zip(answers, texts, strict=True)) >= 5
    about = json.loads((run / "model" / "adapter.json").read_text(encoding="utf-8"))
    assert about["size"] == SIZES.get(way, 32)
    assert about["settings"]["learning_rate"] == 3e-3
    assert not (run / "model" / "model.safetensors").exists()


def write_tags(path: Path, count: int, seed: int) -> Path:
    """Write sentences with one word per line, with two names of different types each."""
    tags = {"winter": "B-X", "garden": "B-Y"}
    sentences = [row["text"].split() for row in make_rows(count, seed)]
    lines = [[f"{word} {tags.get(word, 'O')}" for word in words] for words in sentences]
    path.write_text("\n\n".join("\n".join(words) for words in lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("way", ["houlsby", "lora", "last", "mix lstm"])
def test_words_are_tagged_by_every_way(base: Path, tmp_path: Path, way: str) -> None:
    rows, dev = write_tags(tmp_path / "rows.txt", 120, 0), write_tags(tmp_path / "dev.txt", 30, 1)
    settings = replace(settings_of(way, LEARNING), learning_rate=1e-2, epochs=8, max_length=24)
    run = run_finetuning(Source("tag", rows, dev), base, tmp_path / "run", settings=settings)
    results = json.loads((run / "eval_results.json").read_text(encoding="utf-8"))
    assert results["f1"] > 0.8
    assert load(run).heads == ("token",)


def test_calibration_goes_with_the_adapter(base: Path, source: Source, tmp_path: Path) -> None:
    settings = replace(settings_of("houlsby"), calibrate=True, patience=1)
    run = run_finetuning(source, base, tmp_path / "run", settings=settings)
    task = load(run).task
    assert task is not None
    assert task.temperature == json.loads((run / "eval_results.json").read_text("utf-8"))["temperature"] != 1


def test_search_keeps_an_adapter_that_finds_its_base(base: Path, source: Source, tmp_path: Path) -> None:
    search_settings = SearchSettings(seeds=2)
    run = search(
        source, base, tmp_path / "runs" / "search", settings=settings_of("houlsby"), search_settings=search_settings
    )
    assert load(run).task is not None


def test_pooler_that_is_new_goes_with_the_adapter(data: Path, source: Source, tmp_path: Path) -> None:
    bare = Bert.fresh(make_bert(data).config, seed=1)
    save_folder(ModelFolder(bare, Tokenizer.from_folder(data)), tmp_path / "bare")
    settings = replace(settings_of("houlsby"), pooling="cls")
    run = run_finetuning(source, tmp_path / "bare", tmp_path / "run", settings=settings)
    loaded = load(run)
    assert loaded.bert.pooler is not None
    assert json.loads((run / "model" / "adapter.json").read_text("utf-8"))["pooler"] is True
    assert len(loaded.classify(["river"])) == 1


def test_frozen_states_need_no_pooler(data: Path, source: Source, tmp_path: Path) -> None:
    save_folder(ModelFolder(Bert.fresh(make_bert(data).config, seed=1), Tokenizer.from_folder(data)), tmp_path / "bare")
    listener = Listener()
    run = run_finetuning(source, tmp_path / "bare", tmp_path / "run", settings=settings_of("last"), progress=listener)
    assert not any("pooler" in said for said in listener.said)
    loaded = load(run)
    assert loaded.bert.pooler is None
    assert len(loaded.classify(["river"])) == 1


def test_adapter_is_no_start(base: Path, source: Source, tmp_path: Path) -> None:
    run = run_finetuning(source, base, tmp_path / "run", settings=settings_of("houlsby"))
    with pytest.raises(CheckpointError, match="an adapter, not a complete model"):
        run_finetuning(source, run, tmp_path / "again", settings=FAST)


def test_default_sizes_train_at_most_four_per_cent() -> None:
    settings = FinetuneSettings(adapter="houlsby")
    bert = Bert(preset("small"), ["sequence"])
    attachment = make_trainable(bert, settings)
    assert attachment is not None
    assert (attachment.kind, attachment.size, attachment.pooler) == ("houlsby", 64, True)
    trained = sum(parameter.numel() for parameter in bert.parameters() if parameter.requires_grad)
    assert 0.01 < trained / bert.parameter_count() < 0.04


# frozen states


def test_kept_states_teach_what_computed_ones_do(
    base: Path, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener, settings = Listener(), settings_of("mix lstm")
    states, count = Reader.states, 0

    def counted(reader: Reader, encoder: Any, ids: Tensor, segments: Tensor, mask: Tensor | None) -> Tensor:
        nonlocal count
        count += len(ids)
        return states(reader, encoder, ids, segments, mask)

    monkeypatch.setattr(Reader, "states", counted)
    kept = run_finetuning(source, base, tmp_path / "kept", settings=replace(settings, epochs=3), progress=listener)
    # Each training row is encoded once; the four dev rows after each epoch, and once at the end.
    assert count == 36 + 4 * 4
    assert not any("anew" in said for said in listener.said)
    monkeypatch.setattr(cloze.train.finetuning.trainable, "STATES_BUDGET", 1000)
    count = 0
    computed = run_finetuning(
        source, base, tmp_path / "computed", settings=replace(settings, epochs=3), progress=listener
    )
    assert count == 3 * 36 + 4 * 4
    assert "frozen states would take 0.0 GiB: they are recomputed in every epoch" in listener.said
    texts = [row["text"] for row in make_rows(6, seed=2)]
    assert load(kept).logits(texts) == pytest.approx(load(computed).logits(texts), abs=1e-4)


# layers


def test_each_layer_learns_at_a_share_of_the_one_above_it() -> None:
    bert = random_bert(SMALL, ["sequence"])
    scale = layer_decay_scale(bert.config.distinct_layers, 0.5)
    assert scale is not None
    assert [scale(f"model.encoder.layers.{number}.expand.weight") for number in range(3)] == [0.25, 0.5, 1.0]
    assert scale("model.encoder.embeddings.token.weight") == 0.125
    assert scale("model.heads.sequence.output.weight") == scale("model.pooler.dense.bias") == 1.0
    assert layer_decay_scale(bert.config.distinct_layers, 1.0) is None


def test_scales_stay_with_every_rate_and_after_a_resume() -> None:
    bert = random_bert(SMALL, ["sequence"])
    optimizer = make_optimizer(bert, 1.0, 0.01, layer_decay_scale(bert.config.distinct_layers, 0.5))
    set_rate(optimizer, 0.8)
    expected = [0.1, 0.2, 0.4, 0.8]
    assert sorted({group["lr"] for group in optimizer.param_groups}) == pytest.approx(expected)
    assert optimizer.param_groups[0]["lr"] == 0.8, "the reported rate"
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(bert.parameters()))
    restore_optimizer(optimizer, optimizer_tensors(optimizer))
    set_rate(optimizer, 0.8)
    assert sorted({group["lr"] for group in optimizer.param_groups}) == pytest.approx(expected)
    token = bert.encoder.embeddings.token.weight
    (home,) = [group for group in optimizer.param_groups if any(one is token for one in group["params"])]
    assert (home["lr"], home["weight_decay"]) == (0.1, 0.01)


def test_more_frozen_layers_than_there_are_is_refused() -> None:
    with pytest.raises(ConfigError, match="freeze_layers is 4, but the model has 3 layers"):
        make_trainable(random_bert(SMALL, ["sequence"]), FinetuneSettings(freeze_layers=4))
    shared = replace(SMALL, embedding_size=8, shared_layers=True)
    with pytest.raises(
        ConfigError, match="freeze_layers is 1, but all layers of this model share their weights; leave it out"
    ):
        make_trainable(random_bert(shared, ["sequence"]), FinetuneSettings(freeze_layers=1))


# settings

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"freeze_layers": -1}, "freeze_layers is -1; expected a number of layers, or 0 for none"),
    ({"layer_decay": 0.0}, "layer_decay is 0.0; expected a fraction above 0 and at most 1"),
    ({"layer_decay": 1.5}, "layer_decay is 1.5; expected a fraction above 0"),
    ({"layer_decay": float("nan")}, "layer_decay is nan; expected a number"),
    ({"adapter": "lora", "adapter_size": 0}, "adapter_size is 0; expected at least 1"),
    ({"adapter_size": 8}, "adapter_size is 8, but no adapter is trained; choose houlsby or lora"),
    ({"feature_head": "lstm"}, "feature_head is 'lstm', which reads frozen states; choose last, last4 or mix"),
    ({"adapter": "lora", "frozen": "last"}, "adapter and frozen exclude each other"),
    ({"adapter": "lora", "freeze_layers": 2}, "adapter and freeze_layers exclude each other"),
    ({"frozen": "mix", "layer_decay": 0.9}, "frozen and layer_decay exclude each other"),
    (
        {"adapter": "lora", "freeze_layers": 2, "layer_decay": 0.9},
        "adapter and freeze_layers and layer_decay exclude each other",
    ),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_ways_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FinetuneSettings(**changes)
