"""Adapter folders: their content, how they find their base, and what is rejected."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import BertForSequenceClassification

from cloze.checkpoint import AdapterInfo, ModelFolder, TaskLabels, load_any, load_folder, save_adapter, save_folder
from cloze.checkpoint.adapter_folder import TENSORS
from cloze.checkpoint.convert import convert
from cloze.checkpoint.folder import weights_fingerprint
from cloze.errors import CheckpointError, ConfigError
from cloze.model import BertConfig
from cloze.model.adapters import Attachment, attach
from tests.model.made import SMALL, model_folder, saved
from tests.model.test_adapters import IDS, MASK, SEGMENTS, encode, move

TASK = TaskLabels("classify", ("no", "perhaps", "yes"), long_texts="head-tail", temperature=1.5)
HOULSBY = Attachment("houlsby", "sequence", 3, size=4)
LORA = Attachment("lora", "sequence", 3, size=2, alpha=5.0)
FEATURES = Attachment("features", "sequence", 3, size=6, reads="mix", feature_head="lstm")
KINDS = [HOULSBY, LORA, FEATURES]


def make_base(folder: Path, config: BertConfig = SMALL) -> Path:
    return saved(model_folder(["mlm", "nsp"], config=config), folder)


def make_adapter(base: Path, folder: Path, attachment: Attachment = HOULSBY) -> ModelFolder:
    """Save an adapter in which every value was changed."""
    loaded = load_folder(base)
    attach(loaded.model, attachment, seed=0)
    move(loaded.model)
    adapter = AdapterInfo(attachment, str(base), base, weights_fingerprint(base), {"epochs": 3})
    contents = replace(loaded, task=TASK, tokenizer=loaded.tokenizer.with_max_length(9), card="# Mine\n")
    save_adapter(replace(contents, adapter=adapter), folder)
    return contents


def logits(contents: ModelFolder) -> Tensor:
    with torch.no_grad():
        bert = contents.model.eval()
        return bert.heads["sequence"](bert.pooled(bert(IDS, SEGMENTS, MASK).last, MASK))  # type: ignore[no-any-return]


def change(folder: Path, **values: Any) -> None:
    path = folder / "adapter.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | values), encoding="utf-8")


@pytest.mark.parametrize("attachment", KINDS, ids=lambda one: one.kind)
def test_saved_adapters_are_restored(tmp_path: Path, attachment: Attachment) -> None:
    base = make_base(tmp_path / "base")
    made = make_adapter(base, tmp_path / "run" / "model", attachment)
    for place in (tmp_path / "run", tmp_path / "run" / "model"):
        loaded = load_any(place)
        assert torch.equal(logits(loaded), logits(made))
        assert loaded.task == TASK
        assert loaded.tokenizer.max_length == 9
        assert loaded.adapter is not None
        assert loaded.adapter.attachment == attachment
        assert loaded.adapter.settings == {"epochs": 3}
    assert {path.name for path in (tmp_path / "run" / "model").iterdir()} == {
        "README.md",
        "adapter.json",
        "adapter.safetensors",
    }
    card = (tmp_path / "run" / "model" / "README.md").read_text("utf-8")
    assert card.startswith("# Mine\n")
    assert f"This is an adapter ({attachment.kind}, size {attachment.size})" in card
    assert weights_fingerprint(base) in card


def test_folder_is_a_few_per_cent_of_its_base(tmp_path: Path) -> None:
    config = replace(SMALL, vocab_size=3000, hidden_size=128, feedforward_size=512)
    base = make_base(tmp_path / "base", config)
    make_adapter(base, tmp_path / "adapter", replace(HOULSBY, size=8))
    size = sum(path.stat().st_size for path in (tmp_path / "adapter").iterdir())
    assert size < 0.05 * (base / "model.safetensors").stat().st_size
    names = load_file(tmp_path / "adapter" / TENSORS)
    assert not any("query_key_value" in name or "pooler" in name or "token" in name for name in names)


def test_base_is_found_after_both_have_moved_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    made = make_adapter(make_base(Path("base")), Path("runs/one/model"))
    (tmp_path / "here").rename(tmp_path / "there")
    monkeypatch.chdir(tmp_path)
    assert torch.equal(logits(load_any(Path("there/runs/one"))), logits(made))
    # A search moves its best model up to the run folder.
    Path("there/runs/one/model").rename("there/model")
    assert torch.equal(logits(load_any(Path("there/model"))), logits(made))


def test_base_is_found_by_the_given_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = make_adapter(make_base(Path("base")), Path("adapter"))
    (tmp_path / "far" / "away").mkdir(parents=True)
    shutil.move("adapter", "far/away/adapter")
    assert torch.equal(logits(load_any(Path("far/away/adapter"))), logits(made))


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names requested from a hub that has no models."""
    requested: list[str] = []

    def ask(name: str, **options: Any) -> Any:
        if not options.get("local_files_only"):
            requested.append(name)
        raise ConnectionError("no network")

    monkeypatch.setattr(huggingface_hub, "model_info", ask)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", ask)
    return requested


def test_base_is_found_from_another_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requests: list[str]
) -> None:
    """From another working directory, "runs/books" is found locally, although it looks like a hub name."""
    (tmp_path / "work" / "runs").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    made = make_adapter(make_base(Path("runs/books")), Path("runs/reviews/model"))
    monkeypatch.chdir(tmp_path)
    assert torch.equal(logits(load_any(Path("work/runs/reviews"))), logits(made))
    shutil.rmtree("work/runs/books")
    with pytest.raises(CheckpointError, match="its base, runs/books, was not found; give the base"):
        load_any(Path("work/runs/reviews"))
    assert requests == []


def test_an_adapter_of_a_hub_model_downloads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requests: list[str]
) -> None:
    base = make_base(tmp_path / "hub" / "copy")
    made = make_adapter(base, tmp_path / "adapter")
    values = json.loads((tmp_path / "adapter" / "adapter.json").read_text("utf-8"))
    change(tmp_path / "adapter", base=values["base"] | {"name": "owner/model", "path": None})
    with pytest.raises(CheckpointError, match=r'its base, owner/model, was not found; .*base="owner/model"\)$'):
        load_any(tmp_path / "adapter")
    assert requests == []
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, local_files_only, **__: str(base))  # noqa: ARG005
    assert torch.equal(logits(load_any(tmp_path / "adapter")), logits(made))


def test_weights_of_an_adapter_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    make_adapter(make_base(tmp_path / "base"), tmp_path / "adapter")
    tensors = load_file(tmp_path / "adapter" / TENSORS)
    name = min(tensors)
    save_file(tensors | {name: tensors[name] * float("nan")}, tmp_path / "adapter" / TENSORS)
    with pytest.raises(CheckpointError, match=rf"{TENSORS}: {name} holds \d+ of \d+ values that are NaN"):
        load_any(tmp_path / "adapter")


def test_missing_base_is_named_by_its_hash(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base")
    made = make_adapter(base, tmp_path / "adapter")
    sha256 = weights_fingerprint(base)
    base.rename(tmp_path / "elsewhere")
    with pytest.raises(
        CheckpointError, match=rf"adapter: its base, .*base, was not found; .* SHA-256 {sha256}: cloze\.load"
    ):
        load_any(tmp_path / "adapter")
    assert torch.equal(logits(load_any(tmp_path / "adapter", tmp_path / "elsewhere")), logits(made))


def test_other_base_is_refused(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base")
    make_adapter(base, tmp_path / "adapter")
    sha256 = weights_fingerprint(base)
    contents = load_folder(base)
    with torch.no_grad():
        contents.model.encoder.embeddings.token.weight[5, 0] += 1
    save_folder(contents, base)
    with pytest.raises(CheckpointError, match=f"its base, .*base, has other weights now; .* SHA-256 {sha256}"):
        load_any(tmp_path / "adapter")
    with pytest.raises(
        CheckpointError, match=f"have the SHA-256 {sha256}, but the weights of .*base have .*; give the base"
    ):
        load_any(tmp_path / "adapter", base)
    with pytest.raises(CheckpointError, match="nowhere: no such folder"):
        load_any(tmp_path / "adapter", tmp_path / "nowhere")


def test_base_of_a_plain_model_is_rejected(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base")
    with pytest.raises(CheckpointError, match=r"base: not an adapter \(no adapter\.json\).*omit base"):
        load_any(base, base)


def test_adapter_is_no_start_for_other_work(tmp_path: Path) -> None:
    make_adapter(make_base(tmp_path / "base"), tmp_path / "run" / "model")
    for place in (tmp_path / "run", tmp_path / "run" / "model"):
        with pytest.raises(CheckpointError, match="an adapter, not a complete model; use its base"):
            load_folder(place)


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin", "two parts"])
def test_fingerprint_follows_the_weights(tmp_path: Path, weights: str) -> None:
    base = make_base(tmp_path / "base")
    tensors = load_file(base / "model.safetensors")
    if weights != "model.safetensors":
        (base / "model.safetensors").unlink()

    def write() -> None:
        if weights == "model.safetensors":
            save_file(tensors, base / weights)
        elif weights == "pytorch_model.bin":
            torch.save(tensors, base / weights)
        else:
            names = sorted(tensors)
            for number, some in enumerate((names[:5], names[5:]), 1):
                save_file({name: tensors[name] for name in some}, base / f"model-{number}-of-2.safetensors")

    write()
    before = weights_fingerprint(base)
    assert len(before) == 64
    assert weights_fingerprint(base) == before
    tensors[sorted(tensors)[-1]] = tensors[sorted(tensors)[-1]] + 1
    write()
    assert weights_fingerprint(base) != before


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"format": "peft"}, "format is 'peft'; expected 'cloze adapter 1'"),
    ({"kind": "prefix"}, "kind is 'prefix'; expected one of houlsby, lora, features"),
    ({"head": "mlm"}, "head is 'mlm'; expected one of sequence, token, span, choice"),
    ({"labels": 0}, "labels is '0'; expected a whole number from 1"),
    ({"size": 2**40}, "size is '1099511627776'; expected a whole number from 1"),
    ({"size": True}, "size is 'True'; expected a whole number from 1"),
    ({"pooler": "no"}, "pooler is 'no'; expected true or false"),
    ({"alpha": -1}, "alpha is '-1'; expected a positive number"),
    ({"reads": "first"}, "reads is 'first'; expected one of last, last4, mix"),
    ({"feature_head": "crf"}, "feature_head is 'crf'; expected one of linear, lstm"),
    ({"base": "bert"}, "base is 'bert'; expected an object"),
    ({"base": {"name": 3, "sha256": "x"}}, r"base\.name is '3'; expected a string"),
    ({"max_length": None}, "max_length is 'None'; expected a whole number from 1"),
    ({"task": []}, r"task is '\[\]'; expected an object"),
    ({"task": {"id2label": {"0": "a"}}}, "id2label does not name the 3 labels"),
]


@pytest.mark.parametrize(("values", "message"), WRONG, ids=lambda one: str(one)[:25])
def test_wrong_values_are_named(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    make_adapter(make_base(tmp_path / "base"), tmp_path / "adapter")
    change(tmp_path / "adapter", **values)
    with pytest.raises(CheckpointError, match=rf"adapter\.json: {message}"):
        load_any(tmp_path / "adapter")


def test_damaged_tensors_are_named(tmp_path: Path) -> None:
    make_adapter(make_base(tmp_path / "base"), tmp_path / "adapter")
    path = tmp_path / "adapter" / TENSORS
    whole, tensors = path.read_bytes(), load_file(path)
    name = "encoder.layers.0.attention_adapter.up.bias"

    def refused(message: str) -> None:
        with pytest.raises(CheckpointError, match=rf"adapter\.safetensors: {message}"):
            load_any(tmp_path / "adapter")

    path.write_bytes(whole[:-20])
    refused("damaged or truncated safetensors file")
    save_file({key: tensor for key, tensor in tensors.items() if key != name}, path)
    refused(f"lacks the tensor {name}, contrary to adapter.json")
    save_file({**tensors, "more": torch.zeros(1)}, path)
    refused("has the tensor more, contrary to adapter.json")
    save_file({**tensors, name: torch.zeros(3)}, path)
    refused(rf"{name} has shape \(3,\), but adapter.json and the base require \(16,\)")
    save_file({**tensors, name: torch.zeros(16, dtype=torch.int32)}, path)
    refused(f"{name} holds torch.int32; expected floating-point weights")
    path.unlink()
    refused("cannot be read")


def test_lora_is_merged_into_a_folder_that_transformers_load(tmp_path: Path) -> None:
    made = make_adapter(make_base(tmp_path / "base"), tmp_path / "adapter", LORA)
    convert(tmp_path / "adapter", tmp_path / "merged")
    merged = load_folder(tmp_path / "merged")
    torch.testing.assert_close(logits(merged), logits(made), atol=1e-6, rtol=0)
    assert merged.task == TASK
    theirs = BertForSequenceClassification.from_pretrained(tmp_path / "merged").eval()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        logits_of_peer = theirs(input_ids=IDS, token_type_ids=SEGMENTS, attention_mask=MASK.long()).logits
    torch.testing.assert_close(logits_of_peer, logits(made), atol=1e-5, rtol=0)


@pytest.mark.parametrize("attachment", [HOULSBY, FEATURES], ids=lambda one: one.kind)
def test_unmergeable_adapters_are_reported(tmp_path: Path, attachment: Attachment) -> None:
    make_adapter(make_base(tmp_path / "base"), tmp_path / "adapter", attachment)
    with pytest.raises(ConfigError, match=f"a {attachment.kind} adapter, unlike lora, cannot be merged"):
        convert(tmp_path / "adapter", tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_base_is_not_changed_by_an_adapter(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base")
    before = encode(load_folder(base).model)
    make_adapter(base, tmp_path / "adapter", replace(LORA, pooler=True))
    assert torch.equal(encode(load_folder(base).model), before)
    assert not torch.equal(encode(load_any(tmp_path / "adapter").model), before)


def test_base_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_adapter(make_base(tmp_path / "base"), tmp_path / "adapter")

    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("hashlib.file_digest", broken)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: cannot be read \(Input/output error\)"):
        load_any(tmp_path / "adapter")
