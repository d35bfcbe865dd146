import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cloze.corpus.masking import Ids
from cloze.corpus.shards import Corpus, read_manifest
from cloze.errors import DataError


@pytest.fixture
def copy(prepared: Path, tmp_path: Path) -> Path:
    return shutil.copytree(prepared, tmp_path / "data")


def test_tokens_are_mapped_and_read_only(prepared: Path) -> None:
    tokens = Corpus.open(prepared).tokens
    assert isinstance(tokens, np.memmap)
    assert not tokens.flags.writeable
    assert tokens.dtype == np.uint16


def test_folder_without_manifest_is_no_corpus(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"not a prepared corpus \(no manifest.json\); make one with 'cloze prepare'"):
        Corpus.open(tmp_path)


def test_other_format_is_refused(copy: Path) -> None:
    manifest = read_manifest(copy)
    (copy / "manifest.json").write_text(json.dumps({**manifest, "format": 99}), encoding="utf-8")
    with pytest.raises(DataError, match="prepared in format 99, but 1 is read; prepare it again"):
        Corpus.open(copy)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def change(name: str, alter: Callable[[Ids], Ids]) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        np.save(folder / name, alter(np.load(folder / name)))

    return damage


def descend(offsets: Ids) -> Ids:
    offsets[2] = offsets[1]
    return offsets


def start_before_zero(offsets: Ids) -> Ids:
    offsets[0] = -4
    return offsets


DAMAGES: dict[str, Callable[[Path], object]] = {
    "tokens cut": lambda folder: cut(folder / "tokens.bin"),
    "tokens cut in the middle of one": lambda folder: (folder / "tokens.bin").write_bytes(b"\0\0\0"),
    "tokens gone": lambda folder: (folder / "tokens.bin").unlink(),
    "offsets cut": lambda folder: cut(folder / "sentences.npy"),
    "offsets empty file": lambda folder: (folder / "documents.npy").write_bytes(b""),
    "fewer sentences": change("sentences.npy", lambda offsets: offsets[:-1]),
    "no sentences": change("sentences.npy", lambda offsets: offsets[:0]),
    "no documents": change("documents.npy", lambda offsets: offsets[:0]),
    "sentences that do not ascend": change("sentences.npy", descend),
    "documents that do not ascend": change("documents.npy", descend),
    "sentences from before the start": change("sentences.npy", start_before_zero),
    "documents from before the start": change("documents.npy", start_before_zero),
    "a table of offsets": change("documents.npy", lambda offsets: offsets[:, None]),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_on_opening(copy: Path, name: str) -> None:
    DAMAGES[name](copy / "train")
    with pytest.raises(DataError, match=r"the train part (is damaged|does not match its manifest).*again"):
        Corpus.open(copy)
    Corpus.open(copy, "held_out")  # the other part is whole


@pytest.mark.parametrize("missing", ["tokens", "sentences", "documents"])
def test_manifest_without_a_fact_is_refused(copy: Path, missing: str) -> None:
    manifest = read_manifest(copy)
    del manifest["splits"]["train"][missing]
    (copy / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(DataError, match=f"the train part is damaged \\('{missing}'\\)"):
        Corpus.open(copy)
