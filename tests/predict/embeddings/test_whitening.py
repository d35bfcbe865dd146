"""Whitened vectors: computed explicitly, saved in a folder, and loaded by ``sentence-transformers``."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

from cloze.checkpoint import POOLINGS, EmbeddingSettings
from cloze.checkpoint import Pooling as PoolingName
from cloze.errors import CheckpointError, RequestError
from cloze.predict import Model, load
from cloze.predict.embeddings.vector_quality import fit_whitening
from tests.model.made import SMALL, assert_close, model_folder
from tests.text.passages import ENGLISH, MIXED

WORDS = (ENGLISH + " " + MIXED).split()
TEXTS = [" ".join(WORDS[start : start + 1 + start % 9]) for start in range(200)]
MADE = [f"word{number % 30} word{number * 7 % 31} the cat" for number in range(90)]


def test_mean_and_covariance_are_those_of_noise() -> None:
    generator = numpy.random.default_rng(0)
    mixed = (generator.normal(size=(500, 12)) @ generator.normal(size=(12, 12)) + 5).astype(numpy.float32)
    whitening = fit_whitening(mixed)
    vectors = whitening(torch.from_numpy(mixed)).numpy().astype(float)
    numpy.testing.assert_allclose(vectors.mean(0), 0, atol=1e-3)
    numpy.testing.assert_allclose(numpy.cov(vectors, rowvar=False, bias=True), numpy.eye(12), atol=1e-3)
    # With fewer dimensions, those with the largest variance are kept.
    few = fit_whitening(mixed, 5)(torch.from_numpy(mixed))
    assert_close(few, vectors[:, :5])


@pytest.mark.parametrize("pooling", [pooling for pooling in POOLINGS if pooling != "mean_words"])
@pytest.mark.parametrize("normalize", [False, True])
def test_sentence_transformers_gives_equal_vectors(pooling: PoolingName, normalize: bool, tmp_path: Path) -> None:
    base = Model(replace(model_folder(pooler=True), embedding=EmbeddingSettings(pooling, normalize)))
    whitened = base.whiten(MADE, 3)  # scaled-up dimensions differ by more than 1e-5
    ours = whitened.embed(MADE[:20])
    assert ours.shape == (20, 3)
    whitened.save(tmp_path / "model")
    theirs = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(MADE[:20])
    assert_close(ours, theirs)
    assert_close(load(tmp_path / "model").embed(MADE[:20]), ours)
    names = [module["path"] for module in json.loads((tmp_path / "model" / "modules.json").read_text())]
    dense = ["2_Dense", "3_Dense"] if pooling == "pooler" else ["2_Dense"]
    assert names == ["", "1_Pooling", *dense, *([f"{len(dense) + 2}_Normalize"] if normalize else [])]
    assert load(tmp_path / "model").embedding.pooling == pooling


def test_mean_of_the_words_is_whitened(tmp_path: Path) -> None:
    whitened = Model(model_folder()).whiten(MADE, 3, "mean_words")
    whitened.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert (again.embedding.pooling, len(again.embedding.projections)) == ("mean_words", 1)
    assert_close(again.embed(MADE[:20]), whitened.embed(MADE[:20]))
    numpy.testing.assert_allclose(numpy.cov(whitened.embed(MADE), rowvar=False, bias=True), numpy.eye(3), atol=1e-2)


def test_published_model(minilm_folder: Path, tmp_path: Path) -> None:
    model = load(minilm_folder)
    whitened = model.whiten(TEXTS, 96)
    whitened.save(tmp_path / "model")
    theirs = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(TEXTS[:40])
    assert theirs.shape == (40, 96)
    assert_close(whitened.embed(TEXTS[:40]), theirs)
    assert model.embed(TEXTS[:2]).shape == (2, 384), "the model itself is unchanged"


def test_dense_modules_of_others(tmp_path: Path) -> None:
    base = model_folder()
    Model(base).save(tmp_path / "base")
    word = Transformer(str(tmp_path / "base"))
    torch.manual_seed(0)
    dense = [Dense(SMALL.hidden_size, 8), Dense(8, 5, bias=False, activation_function=torch.nn.Identity())]
    theirs = SentenceTransformer(
        modules=[word, Pooling(SMALL.hidden_size, "cls"), *dense, Normalize()], device="cpu"
    ).eval()
    theirs.save(str(tmp_path / "theirs"))
    model = load(tmp_path / "theirs")
    assert [projection.activation for projection in model.embedding.projections] == ["tanh", "identity"]
    expected = theirs.encode(MADE[:10])
    assert_close(model.embed(MADE[:10]), expected)
    model.save(tmp_path / "again")
    assert_close(SentenceTransformer(str(tmp_path / "again"), device="cpu").encode(MADE[:10]), expected)


def test_other_poolings_and_layers_are_not_whitened() -> None:
    base = Model(model_folder())
    whitened = base.whiten(MADE, 6)
    for options in ({"pooling": "max"}, {"layer": 1}, {"layer": (1, -1)}):
        numpy.testing.assert_array_equal(whitened.embed(MADE[:5], **options), base.embed(MADE[:5], **options))
    numpy.testing.assert_array_equal(whitened.embed(MADE[:5], pooling="mean"), whitened.embed(MADE[:5]))
    assert whitened.embed([]).shape == (0, 6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation_function": "torch.nn.modules.activation.ReLU"}, "has a Dense that ends in torch.nn.*ReLU,"),
        ({"use_residual": True}, "has a Dense that adds its input to its output,"),
        ({"module_input_name": "token_embeddings"}, "has a Dense that reads 'token_embeddings' and writes 'sent"),
    ],
)
def test_dense_modules_that_do_something_else(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    Model(model_folder()).whiten(MADE, 6).save(tmp_path / "model")
    path = tmp_path / "model" / "2_Dense" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(RequestError, match=message):
        load(tmp_path / "model").embed(["a"])


def test_folders_that_do_not_fit(tmp_path: Path) -> None:
    Model(model_folder()).whiten(MADE, 6).save(tmp_path / "model")
    modules = tmp_path / "model" / "modules.json"
    listed = json.loads(modules.read_text())
    order = [{"type": "sentence_transformers.models.Normalize", "path": ""}, listed[2]]
    modules.write_text(json.dumps([*listed[:2], *order]))
    with pytest.raises(RequestError, match="has a Dense after Normalize, which cloze does not support"):
        load(tmp_path / "model").embed(["a"])
    modules.write_text(json.dumps([*listed, listed[2]]))
    with pytest.raises(
        CheckpointError, match=r"^a Dense module of this folder expects vectors of size 16, but gets 6; its modules"
    ):
        load(tmp_path / "model").embed(["a"])
    modules.write_text(json.dumps([*listed[:2], {**listed[2], "path": "../else"}]))
    with pytest.raises(CheckpointError, match="leads outside the folder"):
        load(tmp_path / "model")


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"linear.bias": torch.zeros(3)}, "expected linear.weight with two dimensions"),
        ({"linear.weight": torch.zeros(4)}, "expected linear.weight with two dimensions"),
        (
            {"linear.weight": torch.zeros(4, 16), "linear.bias": torch.zeros(3)},
            r"linear.bias has shape \(3,\), but linear.weight has shape \(4, 16\); fetch or save it again",
        ),
    ],
)
def test_weights_that_do_not_fit(tensors: dict[str, torch.Tensor], message: str, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    Model(model_folder()).whiten(MADE, 6).save(tmp_path / "model")
    save_file(tensors, tmp_path / "model" / "2_Dense" / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path / "model")


def test_texts_that_do_not_suffice() -> None:
    model = Model(model_folder())
    with pytest.raises(RequestError, match=r"^1 texts to fit whitening on; expected at least a few hundred$"):
        model.whiten(["the cat"])
    with pytest.raises(RequestError, match=r"^all 3 texts to fit whitening on have the same vector; give different"):
        model.whiten(["the cat"] * 3)
    with pytest.raises(RequestError, match=r"^dimensions is 17; expected 1 to 16 \(the size of a vector\)$"):
        model.whiten(MADE, 17)
    message = r"^4 texts vary in 3 directions, fewer than the 8 requested; give more texts, or 3 dimensions or"
    with pytest.raises(RequestError, match=message):
        model.whiten(["the", "cat", "sat", "on"], 8)
    with pytest.raises(RequestError, match=r"^4 texts vary in only 3 directions, so 3 of the 16"):
        model.whiten(["the", "cat", "sat", "on"])
    assert model.whiten(["the", "cat", "sat", "on"], 3).embed(["a"]).shape == (1, 3)


@pytest.mark.parametrize("dimensions", [1.5, True, "8"])
def test_dimensions_are_a_whole_number(dimensions: Any) -> None:
    with pytest.raises(RequestError, match=r"^dimensions is .*; expected a whole number$"):
        fit_whitening(numpy.eye(8, 4, dtype=numpy.float32), dimensions)


def test_too_few_texts_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    model = Model(model_folder())
    model.whiten(MADE)
    assert not [record for record in caplog.records if "whitening" in record.getMessage()]
    assert model.whiten(["the cat", "a dog"], 1).embed(["a mat"]).shape == (1, 1)
    assert "whitening is fitted on 2 texts, fewer than the 16 dimensions of a vector: it keeps 1" in caplog.text
