"""Folders written by other programs: every layout of ``transformers`` since its first release."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from cloze.checkpoint import load_folder, save_folder, weights_fingerprint
from cloze.errors import CheckpointError
from cloze.predict import Model
from tests.model.made import assert_close, assert_same_weights, model_folder, saved, vocabulary

EXPECTED = model_folder(["mlm", "nsp"]).model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as saved by ``transformers``, plus a vocabulary."""
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
    # The copy of a tensor is used if the original is missing.
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
    assert loaded.notes == (() if pooler else ("no pooler in the weights: the state of [CLS] is used without one",))


def test_unused_tensors_are_noted(folder: Path) -> None:
    extra = {f"extra.{index}": torch.zeros(1) for index in range(6)}
    change_weights(folder, lambda tensors: tensors | extra)
    shown = "extra.0, extra.1, extra.2, extra.3, extra.4, ..."
    assert load_folder(folder).notes == (f"6 tensors were not used: {shown}",)


def test_a_head_without_its_pooler_is_left_over(folder: Path) -> None:
    change_weights(folder, lambda tensors: {name: t for name, t in tensors.items() if "pooler" not in name})
    loaded = load_folder(folder)
    assert loaded.model.head_names == ("mlm",)
    assert "2 tensors were not used: cls.seq_relationship.bias, cls.seq_relationship.weight" in loaded.notes


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


def test_archives_of_hfl(folder: Path) -> None:
    """HFL archives load from bert_config.json, pytorch_model.bin and vocab.txt alone."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for name in ("model_type", "architectures", "transformers_version", "pad_token_id"):
        config.pop(name, None)
    tensors = load_file(folder / "model.safetensors")
    archive = folder.parent / "chinese_wwm_pytorch"
    archive.mkdir()
    (archive / "bert_config.json").write_text(json.dumps(config | {"directionality": "bidi"}), encoding="utf-8")
    (archive / "vocab.txt").write_text("\n".join(vocabulary(60)) + "\n", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"not a model folder \(no config.json in it\)"):
        load_folder(archive)
    torch.save(tensors, archive / "pytorch_model.bin")
    loaded = load_folder(archive)
    assert_same_weights(loaded.model, EXPECTED)
    assert (loaded.notes, loaded.tokenizer.lowercase) == ((), True)
    assert weights_fingerprint(archive)
    before = sorted(path.name for path in archive.iterdir())
    with pytest.raises(CheckpointError, match="exists and is not a model folder; choose another location"):
        save_folder(loaded, archive)
    assert sorted(path.name for path in archive.iterdir()) == before


def make_ernie(folder: Path, kind: str, **options: Any) -> Any:
    """Save a random ERNIE with ``transformers``, plus a vocabulary."""
    config = transformers.ErnieConfig(
        vocab_size=60,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=33,
        hidden_act="relu",
        layer_norm_eps=1e-5,
        **options,
    )
    torch.manual_seed(3)
    theirs = getattr(transformers, kind)(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    theirs.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(vocabulary(60)) + "\n", encoding="utf-8")
    return theirs


@pytest.mark.parametrize("use_task_id", [False, True])
def test_ernie(use_task_id: bool, tmp_path: Path) -> None:
    theirs = make_ernie(tmp_path / "ernie", "ErnieModel", use_task_id=use_task_id, task_type_vocab_size=3)
    loaded = load_folder(tmp_path / "ernie")
    assert (loaded.notes, loaded.model.config.activation) == ((), "relu")
    model = Model(loaded, device="cpu")
    ids = torch.tensor([model.tokenizer("the cat sat on a mat", "猫 坐").ids])
    segments = torch.tensor([model.tokenizer("the cat sat on a mat", "猫 坐").segments])
    with torch.inference_mode():
        expected = theirs(input_ids=ids, token_type_ids=segments).last_hidden_state
        assert_close(model.bert(ids, segments).last, expected)
    save_folder(loaded, tmp_path / "bert")
    again = transformers.BertModel.from_pretrained(tmp_path / "bert").eval()  # type: ignore[no-untyped-call]
    with torch.inference_mode():
        assert_close(again(input_ids=ids, token_type_ids=segments).last_hidden_state, expected)


def test_heads_of_ernie(tmp_path: Path) -> None:
    theirs = make_ernie(tmp_path / "mlm", "ErnieForMaskedLM")
    model = Model(load_folder(tmp_path / "mlm"), device="cpu")
    assert model.heads == ("mlm",)
    ids = torch.tensor([model.tokenizer("the [MASK] sat", read_mask=True).ids])
    with torch.inference_mode():
        place = int(ids[0].tolist().index(model.tokenizer.mask_id))
        expected = theirs(input_ids=ids).logits[0, place].softmax(-1)
    (words,) = model.fill("the [MASK] sat", 5)
    best = expected.topk(5)
    assert [word.token for word in words] == [model.tokenizer.pieces[index] for index in best.indices]
    assert_close(torch.tensor([word.probability for word in words]), best.values)
    make_ernie(tmp_path / "classes", "ErnieForTokenClassification", num_labels=3)
    assert load_folder(tmp_path / "classes").model.head_names == ("token",)


def test_ernie_without_its_task_types(tmp_path: Path) -> None:
    make_ernie(tmp_path / "ernie", "ErnieModel", use_task_id=True)
    change_weights(tmp_path / "ernie", lambda tensors: {k: v for k, v in tensors.items() if "task_type" not in k})
    with pytest.raises(
        CheckpointError, match=r"use_task_id is True, but ernie.embeddings.task_type_embeddings.weight is"
    ):
        load_folder(tmp_path / "ernie")
