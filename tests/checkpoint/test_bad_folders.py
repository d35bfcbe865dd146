"""Unreadable folders: one line that states the problem and the remedy."""

import json
import os
import random
import zipfile
from collections.abc import Callable, Iterator
from copy import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from cloze.checkpoint import TaskLabels, load_folder, weights
from cloze.checkpoint.weights import read_safetensors_with_metadata, read_weights
from cloze.errors import CheckpointError, ClozeError, ConfigError
from cloze.hardware import AvailableMemory
from cloze.text import write_vocabulary
from tests.model.made import SMALL, model_folder, saved, vocabulary

LABELS = TaskLabels("classify", ("no", "perhaps", "yes"))
CONTENTS = model_folder(["sequence"], labels=3, task=LABELS)
QUERY = "bert.encoder.layer.1.attention.self.query.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return saved(CONTENTS, tmp_path / "model")


def refusal(folder: Path) -> str:
    """Return the error message for a folder."""
    with pytest.raises(CheckpointError) as caught:
        load_folder(folder)
    message = str(caught.value)
    assert message.startswith(str(folder))
    assert "\n" not in message
    assert len(message) < len(str(folder)) + 400
    return message.removeprefix(str(folder))


def change_config(folder: Path, **changes: Any) -> None:
    """Set keys of ``config.json``, or remove those set to ``...``."""
    path = folder / "config.json"
    values = json.loads(path.read_text(encoding="utf-8")) | changes
    values = {key: value for key, value in values.items() if value is not ...}
    path.write_text(json.dumps(values), encoding="utf-8")


def change_weights(folder: Path, changes: dict[str, Tensor | None]) -> None:
    tensors = load_file(folder / "model.safetensors") | changes
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, folder / "model.safetensors")


def save_pickle(folder: Path, value: Any) -> Path:
    """Replace the weights with a pickle."""
    (folder / "model.safetensors").unlink()
    torch.save(value, folder / "pytorch_model.bin")
    return folder / "pytorch_model.bin"


# Paths


def test_missing_folder(tmp_path: Path) -> None:
    assert ": no such folder; give a model folder, or a hub name such as" in refusal(tmp_path / "nowhere")


def test_not_a_model_folder(tmp_path: Path) -> None:
    advice = "use one written by pretrain, finetune or convert"
    assert refusal(tmp_path) == f": not a model folder (no config.json in it); {advice}"


def test_unfinished_run(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    assert refusal(tmp_path) == ": this run has not finished; run its command again to resume it"


def test_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert ": holds neither model.safetensors nor pytorch_model.bin; is this a model folder?" in refusal(folder)


# config.json


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "roberta"},
            ": model_type is 'roberta'; only 'bert', 'albert'",
        ),
        (
            {"position_embedding_type": "rotary"},
            ": position_kind is 'rotary'; expected learned or",
        ),
        ({"model_type": ["bert"]}, ": model_type is ['bert']; only"),
        ({"cloze_sentence_task": "order"}, ": cloze_sentence_task is 'order'; expected 'nsp' or 'sop'"),
        ({"cloze_sentence_task": ["sop"]}, ": cloze_sentence_task is \"['sop']\"; expected 'nsp' or"),
        ({"add_cross_attention": True}, ": add_cross_attention is True"),
        ({"hidden_size": ..., "vocab_size": ...}, ": lacks vocab_size, hidden_size; is this a BERT folder?"),
        ({"hidden_size": 10**12}, ": hidden_size is 1000000000000; expected a whole number from 1 to"),
        ({"hidden_size": "16"}, ": hidden_size is '16'; expected a whole number"),
        ({"hidden_size": 2**24}, " has shape (60, 16), but config.json requires (60, 16777216)"),
        # Building this many layers would never finish, even if they took no memory.
        ({"num_hidden_layers": 2**24}, ": config.json requires 16777216 layers, but the last one has no"),
        ({"num_attention_heads": 3}, ": hidden_size 16 is not divisible by 3 heads"),
        ({"hidden_act": "swish"}, ": unknown activation 'swish'"),
        ({"hidden_act": 5}, ": unknown activation 5; choose one of: gelu, gelu_new"),
        ({"pad_token_id": 60}, ": pad_id is 60; expected an id from 0 to 59"),
        ({"pad_token_id": [0]}, ": pad_id is [0]; expected an id"),
        (
            {"max_position_embeddings": 33},
            "position_embeddings.weight has shape (32, 16), but config.json requires (33",
        ),
        ({"id2label": {"0": "no", "1": "yes"}}, ": id2label does not name the 3 labels of the head"),
        ({"id2label": ["no", "perhaps", "yes"]}, ": id2label does not name the 3 labels"),
        ({"id2label": {"zero": "no"}}, ": id2label does not name the 3 labels"),
    ],
)
def test_configurations(changes: dict[str, Any], message: str, folder: Path) -> None:
    change_config(folder, **changes)
    assert message in refusal(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe{}", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "expected a JSON object, got list"),
        (b" " * (16 * 2**20 + 1), "16777217 bytes; expected at most 16777216"),
    ],
    ids=["empty", "open", "bytes", "deep", "list", "large"],
)
def test_configurations_that_are_not_json(content: bytes, message: str, folder: Path) -> None:
    (folder / "config.json").write_bytes(content)
    assert f"/config.json: {message}" in refusal(folder)


def test_heads_named_by_something_else_than_a_list(folder: Path) -> None:
    """If nothing else names the head of a classifier, the most common one is assumed."""
    change_config(folder, architectures=5)
    assert load_folder(folder).model.head_names == ("sequence",)


# Weights


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 100, 2000, -1000, -1])
def test_truncated_safetensors(length: int, folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    assert "/model.safetensors: " in refusal(folder)
    assert "damaged or truncated safetensors file" in refusal(folder)


def test_header_too_large(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes((2**20 + 1).to_bytes(8, "little") + bytes(2**20 + 100))
    assert "bytes with a header of 1048577; damaged or truncated safetensors file" in refusal(folder)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"[" * 50_000, "maximum recursion depth"),
        (b"[]", "its header is not a JSON object"),
        (b'{"a": {"dtype": "F32", "shape": [2]}}', "lacks 'data_offsets'"),
        (b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}', "its tensors have 4 bytes, but 8 follow"),
        (
            b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [4, 8]}}',
            "a starts at byte 4 of the tensors, not at 0",
        ),
        (b'{"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}', "a: 8 bytes do not match shape [3] of F32"),
        (b'{"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}', "a: [-2] is not a valid shape"),
        (b'{"a": {"dtype": "F32", "shape": [true, 2], "data_offsets": [0, 8]}}', "a: [True, 2] is not a valid shape"),
        (b'{"a": {"dtype": "F3", "shape": [2], "data_offsets": [0, 8]}}', "lacks 'F3'"),
        (b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8.0]}}', "data_offsets are not whole numbers"),
        (
            b'{"a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]},'
            b' "b": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}',
            "b starts at byte 0 of the tensors, not at 8",
        ),
    ],
)
def test_malformed_safetensors_headers(header: bytes, reason: str, folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    assert f"damaged or truncated safetensors file ({reason}" in refusal(folder)


def test_safetensors_are_read_as_by_the_library(tmp_path: Path) -> None:
    tensors = {
        "scalar": torch.tensor(3.5),
        "none": torch.zeros(0, 4),
        "flags": torch.tensor([True, False, True]),
        "odd": torch.arange(5, dtype=torch.uint8),
        **{str(dtype): torch.randn(3, 5).to(dtype) for dtype in (torch.float16, torch.bfloat16, torch.float64)},
        **{str(dtype): torch.arange(7).to(dtype) for dtype in (torch.int8, torch.int16, torch.int32, torch.int64)},
    }
    save_file(tensors, tmp_path / "a.safetensors", metadata={"name": "ü"})
    found, metadata = read_safetensors_with_metadata(tmp_path / "a.safetensors")
    assert (found.keys(), metadata) == (tensors.keys(), {"name": "ü"})
    assert all(
        found[name].dtype == tensor.dtype and torch.equal(found[name], tensor) for name, tensor in tensors.items()
    )


def test_weights_that_shrink_while_they_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that shrinks while it is read is reported; a memory-mapped one would end the process with SIGBUS."""
    path, read = folder / "model.safetensors", weights._read_tensor

    def read_shrinking(file: Any, name: str, entry: Any) -> torch.Tensor:
        tensor = read(file, name, entry)
        os.truncate(path, file.tell())
        return tensor

    monkeypatch.setattr(weights, "_read_tensor", read_shrinking)
    assert "damaged or truncated safetensors file (the file ends within " in refusal(folder)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.zeros(16, 15), f": {QUERY} has shape (16, 15), but config.json requires (16, 16); use the config.json"),
        (None, f": lacks the tensor {QUERY}; the folder is incomplete: fetch or save it again"),
        (
            torch.zeros(16, 16, dtype=torch.int8),
            f": {QUERY} holds torch.int8; expected floating-point weights",
        ),
    ],
)
def test_tensors(tensor: Tensor | None, message: str, folder: Path) -> None:
    change_weights(folder, {QUERY: tensor})
    assert message in refusal(folder)


@pytest.mark.parametrize("shape", [(), (0,), (3, 1)])
def test_head_without_labels(shape: tuple[int, ...], folder: Path) -> None:
    change_weights(folder, {"classifier.bias": torch.zeros(shape)})
    assert f": classifier.bias has shape {shape}; expected one value per label" in refusal(folder)


def test_untied_decoder(tmp_path: Path) -> None:
    folder = saved(model_folder(["mlm"]), tmp_path / "model")
    change_weights(folder, {"cls.predictions.decoder.weight": torch.zeros(60, 16)})
    assert ": cls.predictions.decoder.weight differs from bert.embeddings.word_embeddings.weight" in refusal(folder)


@pytest.mark.parametrize("size", [59, 61, 30])
def test_vocabulary_of_another_model(size: int, folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    write_vocabulary(folder / "vocab.txt", vocabulary(size))
    assert f": {size} pieces in the vocabulary, but the model embeds {SMALL.vocab_size}; use the" in refusal(folder)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "..", "", 7, "a\\b", "a\0b"])
@pytest.mark.parametrize("index", ["model.safetensors.index.json", "pytorch_model.bin.index.json"])
def test_index_that_leads_outside(index: str, name: Any, folder: Path) -> None:
    (folder / "model.safetensors").rename(folder.parent / "model.safetensors")
    (folder / index).write_text(json.dumps({"weight_map": {QUERY: name}}), encoding="utf-8")
    assert refusal(folder) == f"/{index}: {name!r} is not a plain file name; the file may have been tampered with"


def test_index_without_a_map(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text("{}", encoding="utf-8")
    assert "index.json: lacks weight_map" in refusal(folder)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", [QUERY, "classifier.bias"])
def test_weights_that_are_no_numbers(name: str, bad: float, folder: Path) -> None:
    tensor = load_file(folder / "model.safetensors")[name].clone()
    tensor.view(-1)[1] = bad
    change_weights(folder, {name: tensor})
    expected = f": {name} holds 1 of {tensor.numel()} values that are NaN or infinite; expected finite weights"
    assert expected in refusal(folder)


def test_large_weights_whose_sum_overflows_are_numbers(folder: Path) -> None:
    change_weights(folder, {QUERY: torch.full((16, 16), 3e38)})
    assert (
        float(load_folder(folder).model.state_dict()["encoder.layers.1.attention.query_key_value.weight"][0, 0]) > 1e38
    )


@pytest.mark.parametrize("damage", ["truncated", "overwritten", "deleted"])
def test_loaded_weights_do_not_depend_on_the_file(damage: str, folder: Path) -> None:
    """Loaded weights do not depend on the file; memory-mapped views would become zeros or cause SIGBUS."""
    path, expected = folder / "model.safetensors", load_file(folder / "model.safetensors")
    expected = {name: tensor.clone() for name, tensor in expected.items()}
    model = load_folder(folder).model
    assert str(path) not in Path("/proc/self/maps").read_text(encoding="utf-8")
    if damage == "overwritten":
        with path.open("r+b") as file:
            file.write(bytes(path.stat().st_size))
    elif damage == "truncated":
        os.truncate(path, 0)
    else:
        path.unlink()
    torch.testing.assert_close(model.state_dict()["heads.sequence.output.weight"], expected["classifier.weight"])


# Pickles


def _deflated(path: Path, method: int = zipfile.ZIP_DEFLATED) -> None:
    """Compress the entries of a PyTorch archive."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)


def test_compressed_entries_are_not_unpacked(folder: Path) -> None:
    """Compressed entries are rejected, because a file of megabytes could unpack to gigabytes."""
    path = save_pickle(folder, load_file(folder / "model.safetensors"))
    load_folder(folder)
    _deflated(path, zipfile.ZIP_STORED)
    load_folder(folder)
    _deflated(path)
    message = refusal(folder)
    assert "is compressed to" in message
    assert "PyTorch stores tensors uncompressed: fetch the file again, or save it again with torch.save" in message


def test_entries_that_share_their_bytes(folder: Path) -> None:
    """Archives whose directory lists the same bytes many times are rejected."""
    path = save_pickle(folder, {f"t{number}": torch.zeros(3000) for number in range(8)})
    with zipfile.ZipFile(path, "a") as archive:
        largest = max(archive.infolist(), key=lambda entry: entry.file_size)
        for number in range(20):
            shared = copy(largest)
            shared.filename = f"archive/data/{100 + number}"
            archive.filelist.append(shared)
            archive.NameToInfo[shared.filename] = shared
        archive._didModify = True  # type: ignore[attr-defined]
    assert "but the file has only" in refusal(folder)


class Hostile:
    """An object that creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.marker,)


def test_hostile_pickle_is_not_run(folder: Path) -> None:
    marker = folder.parent / "marker"
    path = save_pickle(folder, load_file(folder / "model.safetensors") | {"x": Hostile(marker)})
    assert "/pytorch_model.bin: holds more than tensors, or is damaged; not loaded" in refusal(folder)
    assert not marker.exists()
    torch.load(path, weights_only=False)
    assert marker.exists()  # the pickle runs if it is loaded unsafely


@pytest.mark.parametrize("length", [0, 1, 100, 5000, -1000, -1])
def test_truncated_pickle(length: int, folder: Path) -> None:
    path = save_pickle(folder, load_file(folder / "model.safetensors"))
    path.write_bytes(path.read_bytes()[:length])
    assert "/pytorch_model.bin: " in refusal(folder)
    assert "fetch it again" in refusal(folder)


@pytest.mark.parametrize(
    "value",
    [
        [torch.zeros(1)],
        {QUERY: 1.0},
        {QUERY: torch.zeros(16, 16).to_sparse()},
        {QUERY: torch.zeros(16, 16, device="meta")},
        # One value on disk, a terabyte in memory.
        {QUERY: torch.zeros(1, 1).expand(500_000, 500_000)},
    ],
    ids=["list", "number", "sparse", "meta", "stretched"],
)
def test_pickles_of_other_things(value: Any, folder: Path) -> None:
    save_pickle(folder, value)
    assert "/pytorch_model.bin: expected a dictionary of plain tensors" in refusal(folder)


# modules.json


@pytest.mark.parametrize("path", ["../outside", "/etc", "1_Pooling/../../outside", "a\0b"])
def test_modules_that_lead_outside(path: str, folder: Path) -> None:
    modules = [{"type": "sentence_transformers.models.Pooling", "path": path}]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    assert refusal(folder) == (
        f"/modules.json: {path!r} leads outside the folder; the file may have been tampered with"
    )


@pytest.mark.parametrize("modules", [{}, [1], "Pooling"])
def test_modules_that_are_none(modules: Any, folder: Path) -> None:
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    assert refusal(folder) == "/modules.json: expected a list of modules"


@pytest.mark.parametrize("mode", ["lasttoken", 5, ["cls", "weightedmean"], []])
def test_unknown_poolings_do_not_stop_the_rest(mode: Any, folder: Path) -> None:
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": mode}), encoding="utf-8")
    unsupported = load_folder(folder).embedding.unsupported
    assert unsupported is not None
    assert "modules.json pools by " in unsupported


def test_modules_without_end(folder: Path) -> None:
    modules = [{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}] * 17
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    assert refusal(folder) == "/modules.json: names 17 modules; expected at most 16"


def test_a_card_that_is_too_long_is_not_kept(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    card = folder / "README.md"
    card.write_bytes(b"x" * 2**20)
    assert load_folder(folder).card == "x" * 2**20
    card.write_bytes(b"x" * (2**20 + 1))
    assert load_folder(folder).card is None
    assert f"{card}: longer than 1048576 bytes; not loaded as the model card" in caplog.text


# Random damage


def damaged(data: bytes, reach: int, source: random.Random) -> Iterator[bytes]:
    """Return truncations, and flipped bits and changed characters within the first ``reach`` bytes."""
    for _ in range(30):
        yield data[: source.randrange(len(data))]
        flipped = bytearray(data)
        for _ in range(source.randint(1, 3)):
            flipped[source.randrange(reach)] ^= 1 << source.randrange(8)
        yield bytes(flipped)
        exchanged = bytearray(data)
        exchanged[source.randrange(reach)] = source.choice(b'0123456789[]{}",:-e. ')
        yield bytes(exchanged)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol:UserWarning")
@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "vocab.txt", "pytorch_model.bin", "legacy pytorch_model.bin"]
)
def test_damage_raises_nothing_else(name: str, folder: Path) -> None:
    path = folder / name.split()[-1]
    if path.suffix == ".bin":
        save_pickle(folder, load_file(folder / "model.safetensors"))
        if name.startswith("legacy"):
            torch.save(torch.load(path), path, _use_new_zipfile_serialization=False)
    if name == "vocab.txt":
        (folder / "tokenizer.json").unlink()  # otherwise, this file would be used instead
    good = path.read_bytes()
    # Tensor values are arbitrary: only the header can be invalid.
    reach = 8 + int.from_bytes(good[:8], "little") if name == "model.safetensors" else len(good)
    outcomes = set()
    for bad in damaged(good, reach, random.Random(11)):
        path.write_bytes(bad)
        try:
            load_folder(folder)
            outcomes.add("read")
        except ClozeError:
            outcomes.add("refused")
    assert "refused" in outcomes


def test_weights_that_do_not_fit_into_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloze.hardware.available_memory", lambda: AvailableMemory(1000, "ulimit -v 1"))
    with pytest.raises(
        ConfigError,
        match=r"model\.safetensors: reading the weights needs about \d+ MB of memory, but 0 MB is available "
        r"\(ulimit -v 1\); use a smaller model",
    ):
        read_weights(folder)
