"""Prompts, cut vectors and reranking, compared with ``sentence-transformers``."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import CrossEncoder, SentenceTransformer

from cloze.checkpoint import EmbeddingSettings, TaskLabels, load_folder
from cloze.checkpoint.pooling_files import SETTINGS_FILE
from cloze.errors import CheckpointError, RequestError
from cloze.predict import Model, load
from cloze.tasks.retrieval.examples import read_training_pairs
from tests.cli.conftest import Cloze, run  # noqa: F401 (a fixture)
from tests.model.made import assert_close, model_folder, saved

DOCUMENTS = ["the cat sat on a mat", "dogs ran", "a dog sat", "the mat"]
PROMPTS = {"query": "the cat ", "document": "word3: "}


@pytest.fixture(scope="module")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with prompts and dimensions."""
    embedding = EmbeddingSettings("mean", normalize=True, prompts=PROMPTS, dimensions=(8, 4))
    return saved(replace(model_folder(), embedding=embedding), tmp_path_factory.mktemp("prompted") / "model")


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    contents = model_folder(["sequence"], labels=1, task=TaskLabels("regress"))
    return saved(contents, tmp_path_factory.mktemp("cross") / "model")


def test_prompts_and_dimensions_are_those_of_sentence_transformers(prompted: Path) -> None:
    model, theirs = load(prompted), SentenceTransformer(str(prompted))
    assert model.embedding.dimensions == (8, 4)
    for name in PROMPTS:
        assert_close(model.embed(DOCUMENTS, prompt=name), theirs.encode(DOCUMENTS, prompt_name=name))
        short = theirs.encode(DOCUMENTS, prompt_name=name, truncate_dim=4, normalize_embeddings=True)
        assert_close(model.embed(DOCUMENTS, prompt=name, dimensions=4), short)
    assert np.abs(model.embed(DOCUMENTS) - model.embed(DOCUMENTS, prompt="query")).max() > 0.01
    assert model.embed([], dimensions=4).shape == (0, 4)
    assert load_folder(prompted).embedding == replace(model.embedding, configured=False)


def test_models_without_prompts_and_other_names(pretrained: Model, prompted: Path) -> None:
    np.testing.assert_array_equal(pretrained.embed(DOCUMENTS), pretrained.embed(DOCUMENTS, prompt="query"))
    assert EmbeddingSettings(prompts={"passage": "p: "}).prompt("document") == "p: "
    assert pretrained.fingerprint != load(prompted).fingerprint
    with pytest.raises(
        RequestError, match=r"^unknown prompt 'querie'; did you mean 'query'\?; or give the text itself"
    ):
        pretrained.embed(DOCUMENTS, prompt="querie")
    with pytest.raises(RequestError, match=r"^dimensions is 17, but the vectors have 16; expected 1 to 16$"):
        pretrained.embed(DOCUMENTS, dimensions=17)


@pytest.mark.parametrize("values", [{"prompts": ["query"]}, {"prompts": {"query": 1}}, {"matryoshka_dims": [0.5]}])
def test_damaged_prompts_are_refused(values: dict[str, object], prompted: Path, tmp_path: Path) -> None:
    folder = saved(load_folder(prompted), tmp_path / "model")
    (folder / SETTINGS_FILE).write_text(json.dumps(values), encoding="utf-8")
    (name,) = values
    with pytest.raises(CheckpointError, match=rf"config_sentence_transformers.json: {name} is .*; expected a?"):
        load_folder(folder)


def test_cross_encoders_are_those_of_sentence_transformers(cross_encoder: Path) -> None:
    model, theirs = load(cross_encoder), CrossEncoder(str(cross_encoder))
    expected = theirs.rank("the cat", DOCUMENTS)
    found = model.rerank("the cat", DOCUMENTS)
    assert [one.index for one in found] == [row["corpus_id"] for row in expected]
    assert_close([one.score for one in found], [float(row["score"]) for row in expected])
    assert [one.document for one in found] == [DOCUMENTS[one.index] for one in found]
    assert model.rerank("the cat", DOCUMENTS, top=2) == found[:2]


def test_vectors_rank_by_cosine(prompted: Path) -> None:
    model = load(prompted)
    scores = (model.embed(["a cat"], prompt="query") @ model.embed(DOCUMENTS, prompt="document").T)[0]
    found = model.rerank("a cat", DOCUMENTS)
    assert [one.index for one in found] == np.argsort(-scores).tolist()
    assert_close([one.score for one in found], np.sort(scores)[::-1].copy())
    assert model.rerank("a cat", []) == []


def test_what_cannot_rank_is_refused(pretrained: Model) -> None:
    labels = Model(model_folder(["sequence"], task=TaskLabels("classify", ("no", "yes"))))
    with pytest.raises(RequestError, match=r"^this model was fine-tuned for classify; use a cross-encoder made with "):
        labels.rerank("a cat", DOCUMENTS)
    with pytest.raises(RequestError, match=r"^top is 0; expected at least 1$"):
        pretrained.rerank("a cat", DOCUMENTS, top=0)
    with pytest.raises(RequestError, match=r"^1 queries, but 4 documents; expected one for each$"):
        pretrained.rerank_scores(["a cat"], DOCUMENTS)


def test_command(run: Cloze, cross_encoder: Path, tmp_path: Path) -> None:  # noqa: F811
    model = load(cross_encoder)
    best = model.rerank("the cat", DOCUMENTS)[0]
    words = ("rerank", "the cat", *DOCUMENTS, "--model", cross_encoder)
    table = run(*words).out.splitlines()
    assert (table[0].split(), len(table)) == (["rank", "score", "document"], 5)
    assert table[1].split("\t") == ["1", f"{best.score:.4f}", best.document]
    (line,) = run(*words, "--top", 1, "--json").out.splitlines()
    assert json.loads(line) == pytest.approx(vars(best))
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"q": "the cat", "d": one}) + "\n" for one in DOCUMENTS), encoding="utf-8")
    pairs = ("--input", rows, "--text", "q", "--pair", "d", "--model", cross_encoder)
    assert run("rerank", *pairs, "--output", tmp_path / "scored.jsonl").code == 0
    written = [json.loads(row) for row in (tmp_path / "scored.jsonl").read_text(encoding="utf-8").splitlines()]
    assert_close([row["score"] for row in written], model.rerank_scores(["the cat"] * 4, DOCUMENTS))
    assert run("rerank", *pairs).out.splitlines()[0] == "score\tquery\tdocument"
    assert run("rerank", "the cat", "--input", rows, "--text", "d", "--model", cross_encoder).out.splitlines() == table


def test_training_rows_are_scored(run: Cloze, cross_encoder: Path, tmp_path: Path) -> None:  # noqa: F811
    rows, output = tmp_path / "rows.jsonl", tmp_path / "scored.jsonl"
    row = {"query": "the cat", "positive": DOCUMENTS[0], "negatives": DOCUMENTS[1:3], "negative_2": DOCUMENTS[3]}
    rows.write_text(json.dumps(row) + "\n", encoding="utf-8")
    words = ("rerank", "--input", rows, "--model", cross_encoder)
    assert run(*words, "--output", output).code == 0
    pairs = read_training_pairs(output)
    assert pairs.scores is not None
    assert_close(pairs.scores[0], load(cross_encoder).logits(["the cat"] * 4, DOCUMENTS)[:, 0].tolist())
    assert run(*words).out.splitlines()[0] == "positive\tbest negative\tquery"
    rows.write_text(json.dumps({"query": "a", "positive": "b"}) + "\n", encoding="utf-8")
    assert run(*words).complaint.startswith(f"{rows} has no column with negatives, such as negatives; name the column")
    rows.write_text(json.dumps(row) + "\n", encoding="utf-8")
    vectors = saved(model_folder(), tmp_path / "vectors")
    errors = run("rerank", "--input", rows, "--model", vectors).err
    assert "the scores of training rows are those of a cross-encoder; make one with finetune rerank" in errors


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), "expected a query and documents: cloze rerank QUERY DOCUMENT DOCUMENT; or --input FILE with columns for "),
        (("a", "b", "--pair", "x"), "--pair x only applies to a file with queries and documents; leave out QUERY, or "),
        (("a", "b", "--output", "x.jsonl"), "--output x.jsonl only applies to a file with queries and documents; "),
        (("--input", "x.csv", "--pair", "x", "--top", 2), "--top 2 only applies to the documents of one query; give "),
    ],
)
def test_mistakes(words: tuple[object, ...], complaint: str, run: Cloze) -> None:  # noqa: F811
    result = run("rerank", *words)
    assert result.code == 2
    assert result.complaint.startswith(complaint)
