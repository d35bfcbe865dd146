"""Folders that others write: every layout of ``transformers`` since its first release."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from cloze.checkpoint import load_folder
from tests.model.made import assert_same_weights, model_folder, saved

EXPECTED = model_folder(["mlm", "nsp"]).model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as ``transformers`` saves it, plus a vocabulary."""
    place = saved(model_folder(["mlm", "nsp"]), tmp_path / "model")
    transformers.BertForPreTraining.from_pretrained(place).save_pretrained(place)
    return place


def change_weights(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Rewrite a folder's tensors."""
    tensors = change(load_file(folder / "model.safetensors"))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return tensors


@pytest.mark.parametrize("zipped", [True, False])
def test_pytorch_files(zipped: bool, folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    loaded = load_folder(folder)
    assert_same_weights(loaded.model, EXPECTED)
    assert loaded.notes == ()


def test_safetensors_go_before_a_pickle(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"never opened")
    assert_same_weights(load_folder(folder).model, EXPECTED)


def test_old_names_of_norms(folder: Path) -> None:
    def age(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        renamed = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): tensor for name, tensor in tensors.items()}
        return {name.replace("LayerNorm.bias", "LayerNorm.beta"): tensor for name, tensor in renamed.items()}

    assert sum(name.endswith("gamma") for name in change_weights(folder, age)) == 8
    loaded = load_folder(folder)
    assert_same_weights(loaded.model, EXPECTED)
    assert loaded.notes == ()


def test_copies_of_tied_tensors(folder: Path) -> None:
    def copy(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return tensors | {
            "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"].clone(),
            "cls.predictions.decoder.bias": tensors["cls.predictions.bias"].clone(),
            "bert.embeddings.position_ids": torch.arange(32)[None],
        }

    change_weights(folder, copy)
    loaded = load_folder(folder)
    assert_same_weights(loaded.model, EXPECTED)
    assert loaded.notes == ()
    # A copy stands in where the original was left out.
    change_weights(folder, lambda tensors: {k: v for k, v in tensors.items() if k != "cls.predictions.bias"})
    assert_same_weights(load_folder(folder).model, EXPECTED)


def test_half_precision_becomes_single(folder: Path) -> None:
    change_weights(folder, lambda tensors: {name: tensor.bfloat16() for name, tensor in tensors.items()})
    expected = EXPECTED.state_dict()
    for name, tensor in load_folder(folder).model.state_dict().items():
        assert torch.equal(tensor, expected[name].bfloat16().float())


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("pooler", [True, False])
def test_bare_encoders(prefix: bool, pooler: bool, folder: Path) -> None:
    def strip(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        kept = {name: tensor for name, tensor in tensors.items() if name.startswith("bert.")}
        kept = {name: tensor for name, tensor in kept.items() if pooler or "pooler" not in name}
        return {name if prefix else name.removeprefix("bert."): tensor for name, tensor in kept.items()}

    change_weights(folder, strip)
    loaded = load_folder(folder)
    expected = {
        name: tensor
        for name, tensor in EXPECTED.state_dict().items()
        if name.startswith("encoder.") or (pooler and name.startswith("pooler."))
    }
    assert loaded.model.state_dict().keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in loaded.model.state_dict().items())
    assert loaded.notes == (() if pooler else ("no pooler in the weights: [CLS] is used as it is",))


def test_what_is_left_over_is_noted(folder: Path) -> None:
    extra = {f"extra.{index}": torch.zeros(1) for index in range(6)}
    change_weights(folder, lambda tensors: tensors | extra)
    shown = "extra.0, extra.1, extra.2, extra.3, extra.4, ..."
    assert load_folder(folder).notes == (f"6 tensors were left over: {shown}",)


def test_a_head_without_its_pooler_is_left_over(folder: Path) -> None:
    change_weights(folder, lambda tensors: {name: t for name, t in tensors.items() if "pooler" not in name})
    loaded = load_folder(folder)
    assert loaded.model.head_names == ("mlm",)
    assert "2 tensors were left over: cls.seq_relationship.bias, cls.seq_relationship.weight" in loaded.notes


@pytest.mark.parametrize("pickled", [True, False])
def test_sharded_weights(pickled: bool, folder: Path) -> None:
    theirs = transformers.BertForPreTraining.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    theirs.save_pretrained(folder, max_shard_size="8KB")
    index = folder / "model.safetensors.index.json"
    parts = sorted(folder.glob("model-*.safetensors"))
    assert len(parts) > 2
    if pickled:
        for part in parts:
            torch.save(load_file(part), part.with_name(f"pytorch_{part.stem}.bin"))
            part.unlink()
        text = re.sub(r"(model-[\d-]+of-\d+)\.safetensors", r"pytorch_\1.bin", index.read_text(encoding="utf-8"))
        (folder / "pytorch_model.bin.index.json").write_text(text, encoding="utf-8")
        index.unlink()
    loaded = load_folder(folder)
    assert_same_weights(loaded.model, EXPECTED)
    assert loaded.notes == ()


def test_a_run_is_read_by_its_model(tmp_path: Path) -> None:
    saved(model_folder(["mlm", "nsp"]), tmp_path / "run" / "model")
    assert_same_weights(load_folder(tmp_path / "run").model, EXPECTED)
