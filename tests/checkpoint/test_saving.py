"""Saving is atomic: either a new folder, or the old one unchanged."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloze.checkpoint import EmbeddingSettings, load_folder, save_folder
from cloze.errors import CheckpointError, ClozeError
from cloze.files import replaced_folder
from tests.model.made import assert_same_weights, model_folder, saved

BARE = model_folder(pooler=True)
PRETRAINED = model_folder(["mlm", "nsp"])


def contents_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_files_are_for_everybody(tmp_path: Path) -> None:
    folder = saved(replace(BARE, embedding=EmbeddingSettings("cls", True)), tmp_path / "model")
    modes = {str(path.relative_to(folder)): path.stat().st_mode & 0o777 for path in folder.rglob("*.*")}
    assert set(modes) == {
        "1_Pooling/config.json",
        "2_Normalize/config.json",
        "README.md",
        "config.json",
        "model.safetensors",
        "modules.json",
        "sentence_bert_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    }
    assert set(modes.values()) == {0o644}


def test_the_card_is_kept(tmp_path: Path) -> None:
    folder = saved(PRETRAINED, tmp_path / "model")
    assert "- heads: mlm, nsp\n- vocabulary: 60 pieces, uncased\n" in (folder / "README.md").read_text(encoding="utf-8")
    (folder / "README.md").write_text("# My model\n", encoding="utf-8")
    assert (saved(load_folder(folder), tmp_path / "copy") / "README.md").read_text(encoding="utf-8") == "# My model\n"


def test_saving_replaces_a_model(tmp_path: Path) -> None:
    folder = saved(replace(PRETRAINED, embedding=EmbeddingSettings("cls", True)), tmp_path / "model")
    (folder / "pytorch_model.bin").write_bytes(b"of the model before")
    # Loaded from the folder that is replaced: its weights are memory-mapped, not copied.
    loaded = load_folder(folder)
    save_folder(replace(loaded, embedding=EmbeddingSettings()), folder)
    assert_same_weights(load_folder(folder).model, PRETRAINED.model)
    assert not {"pytorch_model.bin", "2_Normalize/config.json"} & contents_of(folder).keys()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_saving_into_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert_same_weights(load_folder(saved(BARE, tmp_path / "empty")).model, BARE.model)


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_saving_onto_something_else_is_refused(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "thesis"
    if kind == "folder":
        place.mkdir()
    precious = place / "chapter.txt" if kind == "folder" else place
    precious.write_text("precious", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"thesis: exists and is not a model folder; choose another location$"):
        save_folder(BARE, place)
    assert precious.read_text(encoding="utf-8") == "precious"


@pytest.mark.parametrize("allowed", [0, 500, 4000, 20_000])
def test_a_full_disk_leaves_the_old_model(
    allowed: int, full_disk: Callable[[int], AbstractContextManager[None]], tmp_path: Path
) -> None:
    """A full disk leaves the old model; at 0 bytes the first file fails, at 20,000 the weights.

    The error messages of safetensors and Python differ.
    """
    folder = saved(PRETRAINED, tmp_path / "model")
    before = contents_of(folder)
    with (
        full_disk(allowed),
        pytest.raises(
            ClozeError, match=r"model: cannot be written \(.*File too large.*\); the previous version is unchanged"
        ),
    ):
        save_folder(BARE, folder)
    assert contents_of(folder) == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_failed_rename_leaves_the_old_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = saved(PRETRAINED, tmp_path / "model")
    before = contents_of(folder)
    rename = Path.rename

    def fail(path: Path, target: Any) -> Path:
        if path.suffix == ".cloze-tmp":
            raise OSError(5, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(ClozeError, match="cannot be written"):
        save_folder(BARE, folder)
    assert contents_of(folder) == before


def test_a_process_that_ended_between_the_renames_loses_nothing(tmp_path: Path) -> None:
    folder = saved(PRETRAINED, tmp_path / "model")
    before = contents_of(folder)
    folder.rename(tmp_path / f".model.{'0' * 16}.cloze-old")  # the state of an interrupted save
    with pytest.raises(RuntimeError), replaced_folder(folder):
        raise RuntimeError("the next save fails as well")
    assert contents_of(folder) == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_user_backups_are_unchanged(tmp_path: Path) -> None:
    aside = saved(PRETRAINED, tmp_path / "model.old")
    before = contents_of(aside)
    for contents in (PRETRAINED, BARE):
        save_folder(contents, tmp_path / "model")
    assert contents_of(aside) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model.old"]


def test_files_of_other_programs_are_not_lost(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    contents = model_folder()
    save_folder(contents, folder)
    save_folder(contents, folder)
    (folder / "notes").mkdir()
    with pytest.raises(CheckpointError, match="model: holds 'notes', which would be lost; choose another location"):
        save_folder(contents, folder)
    assert (folder / "notes").is_dir()
