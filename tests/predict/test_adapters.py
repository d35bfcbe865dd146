"""Many adapters on one loaded base, each with the same results as alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cloze.checkpoint import EmbeddingSettings, TaskLabels
from cloze.errors import CheckpointError, RequestError
from cloze.predict import Model, load
from tests.checkpoint.test_adapter_folder import FEATURES, HOULSBY, LORA, make_adapter, make_base
from tests.model.made import model_folder, saved

TEXTS = ["the cat sat on a mat.", "dogs ran", "the dog sat on the cats, on a mat and on a dog", ""]
ADAPTERS = {"houlsby": HOULSBY, "lora": replace(LORA, size=3), "features": replace(FEATURES, reads="last4")}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base with three adapters in folders next to it."""
    folder = make_base(tmp_path_factory.mktemp("adapters") / "base")
    for name, attachment in ADAPTERS.items():
        make_adapter(folder, folder.parent / name / "model", attachment)
    return folder


@pytest.fixture
def model(base: Path) -> Model:
    model = load(base)
    for name in ADAPTERS:
        model.attach(name, base.parent / name)
    return model


def test_each_answers_as_if_it_were_alone(base: Path, model: Model) -> None:
    blank = load(base).fill("the [MASK] sat.")
    alone = {name: load(base.parent / name) for name in ADAPTERS}
    expected = {name: one.logits(TEXTS) for name, one in alone.items()}
    assert len({array.tobytes() for array in expected.values()}) == 3
    assert model.fill("the [MASK] sat.") == blank
    for name in ("lora", "features", "houlsby", "features", "lora", "houlsby"):
        model.use(name)
        assert np.array_equal(model.logits(TEXTS), expected[name])
        assert model.task == alone[name].task
        assert model.heads == ("sequence",)
        assert model.tokenizer.max_length == 9
        assert model.logits([]).shape == (0, 3)
        model.use(None)
        assert model.fill("the [MASK] sat.") == blank
        assert model.task is None


def test_changing_copies_nothing(model: Model) -> None:
    before = {name: tensor.data_ptr() for name, tensor in model.bert.state_dict().items()}
    places = []
    for _ in range(2):
        model.use("houlsby")
        places.append({name: tensor.data_ptr() for name, tensor in model.bert.state_dict().items()})
        model.use("lora")
    model.use(None)
    assert places[0] == places[1]
    shared = {name for name, place in before.items() if places[0].get(name) == place}
    assert {"encoder.embeddings.token.weight", "encoder.layers.2.attention.query_key_value.weight"} <= shared
    assert {name: tensor.data_ptr() for name, tensor in model.bert.state_dict().items()} == before


def test_an_adapter_can_be_attached_while_another_is_in_use(base: Path) -> None:
    model = load(base)
    model.attach("first", base.parent / "houlsby")
    model.use("first")
    expected = model.logits(TEXTS)
    model.attach("second", base.parent / "features")
    assert np.array_equal(model.logits(TEXTS), expected)
    model.use("second")
    assert np.array_equal(model.logits(TEXTS), load(base.parent / "features").logits(TEXTS))


def test_vectors_and_attention_are_of_the_encoder_whatever_reads_it(base: Path, model: Model) -> None:
    expected = load(base).embed(TEXTS[:2], pooling="cls")
    model.use("features")
    assert np.array_equal(model.embed(TEXTS[:2], pooling="cls"), expected)
    assert model.attend("the cat").weights.shape[0] == 3


def test_lora_in_use_is_saved_merged(model: Model, tmp_path: Path) -> None:
    model.use("lora")
    model.save(tmp_path / "merged")
    assert load(tmp_path / "merged").logits(TEXTS) == pytest.approx(model.logits(TEXTS), abs=1e-6)
    model.use(None)
    model.save(tmp_path / "plain")
    assert load(tmp_path / "plain").heads == ("mlm", "nsp")


def test_base_can_be_given(base: Path, tmp_path: Path) -> None:
    saved(model_folder(["mlm", "nsp"]), tmp_path / "same")
    found = load(base.parent / "houlsby", base=tmp_path / "same")
    assert np.array_equal(found.logits(TEXTS), load(base.parent / "houlsby").logits(TEXTS))


def test_invalid_attachments_are_reported(base: Path, model: Model, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no adapter 'lara' is attached; did you mean 'lora'"):
        model.use("lara")
    with pytest.raises(RequestError, match="no adapter 'lora' is attached; attach it first"):
        load(base).use("lora")
    with pytest.raises(RequestError, match="an adapter 'lora' is already attached; choose another name"):
        model.attach("lora", base.parent / "lora")
    with pytest.raises(CheckpointError, match=r"base: not an adapter; use a folder written by 'cloze finetune"):
        model.attach("base", base)
    with pytest.raises(RequestError, match="adapters are attached to a base that was loaded from its folder"):
        load(base.parent / "lora").attach("houlsby", base.parent / "houlsby")
    with pytest.raises(RequestError, match="adapters are attached to a base that was loaded from its folder"):
        Model(model_folder(["mlm"])).attach("houlsby", base.parent / "houlsby")
    task = TaskLabels("classify", ("a", "b"))
    other = saved(model_folder(["sequence"], task=task), tmp_path / "other")
    with pytest.raises(CheckpointError, match=r"houlsby/model: trained on .*base, whose weights have the SHA-256"):
        load(other).attach("houlsby", base.parent / "houlsby")


def test_adapter_that_is_refused_leaves_the_model_as_it_was(base: Path, model: Model, tmp_path: Path) -> None:
    model.use("lora")
    expected = model.logits(TEXTS)
    with pytest.raises(CheckpointError):
        model.attach("none", tmp_path)
    with pytest.raises(RequestError):
        model.use("none")
    assert torch.equal(torch.tensor(model.logits(TEXTS)), torch.tensor(expected))
    assert base.is_dir()


def test_vectors_use_the_settings_of_the_base(tmp_path: Path) -> None:
    contents = replace(model_folder(["mlm", "nsp"]), embedding=EmbeddingSettings("cls", normalize=True))
    base = saved(contents, tmp_path / "base")
    make_adapter(base, tmp_path / "adapter" / "model", HOULSBY)
    alone, attached = load(tmp_path / "adapter"), load(base)
    attached.attach("one", tmp_path / "adapter")
    attached.use("one")
    for model in (alone, attached):
        assert (model.embedding.pooling, model.embedding.normalize) == ("cls", True)
        assert np.allclose(np.linalg.norm(model.embed(["the cat"]), axis=1), 1)


def test_fingerprints_distinguish_adapters(base: Path, model: Model) -> None:
    found = {model.fingerprint}
    for name in ADAPTERS:
        model.use(name)
        assert model.fingerprint == load(base.parent / name).fingerprint
        found.add(model.fingerprint)
    assert len(found) == 4
    model.use(None)
    assert model.fingerprint in found


def test_fingerprints_cover_all_settings(tmp_path: Path) -> None:
    contents = model_folder(["sequence"], task=TaskLabels("classify", ("bad", "good")))
    changes: list[dict[str, Any]] = [
        {},
        {"embedding": EmbeddingSettings("cls")},
        {"embedding": EmbeddingSettings("mean", normalize=True)},
        {"tokenizer": contents.tokenizer.with_max_length(7)},
        {"task": TaskLabels("classify", ("bad", "good"), threshold=0.7)},
    ]
    models = [Model(replace(contents, **one)) for one in changes]
    models.append(models[0].whiten([f"the cat word{number}" for number in range(40)], 3))
    assert len({model.fingerprint for model in models}) == len(models)
    models[0].save(tmp_path / "model")
    assert load(tmp_path / "model").fingerprint == models[0].fingerprint
