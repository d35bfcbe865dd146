"""Geometry of embeddings compared with NumPy and scikit-learn; and the report with its advice."""

from dataclasses import replace
from pathlib import Path

import numpy
import pytest
from sklearn.decomposition import PCA
from sklearn.metrics.pairwise import cosine_similarity

from cloze.checkpoint import EmbeddingSettings
from cloze.errors import RequestError
from cloze.predict import Model, load
from cloze.predict.embeddings.vector_quality import (
    EmbeddingMethod,
    Geometry,
    advise,
    geometry,
    report_embeddings,
    static_vectors,
    train_word2vec,
)
from cloze.tasks.similarity.kind import agreement, cosines
from tests.model.made import assert_close, model_folder

TEXTS = [f"word{number % 30} word{number * 7 % 31} the cat" for number in range(60)]


def test_geometry_against_others() -> None:
    vectors = numpy.random.default_rng(0).normal(1, 2, (40, 15)).astype(numpy.float32)
    found = geometry(vectors)
    pairs = cosine_similarity(vectors)[numpy.triu_indices(40, 1)]
    assert found.anisotropy == pytest.approx(pairs.mean(), abs=1e-6)
    assert found.uniformity == pytest.approx(numpy.log(numpy.exp(-2 * (2 - 2 * pairs)).mean()), abs=1e-5)
    shares = PCA().fit(vectors).explained_variance_ratio_
    assert found.first_share == pytest.approx(shares[0], abs=1e-6)
    assert found.first_ten_share == pytest.approx(shares[:10].sum(), abs=1e-6)


def test_cosines_and_agreement() -> None:
    vectors = numpy.random.default_rng(1).normal(size=(20, 5)).astype(numpy.float32)
    expected = numpy.diag(cosine_similarity(vectors[:10], vectors[10:])).copy()
    assert_close(cosines(vectors[:10], vectors[10:]), expected)
    assert agreement(vectors[:10], vectors[10:], expected.tolist()) == pytest.approx(1)
    assert agreement(vectors[:10], vectors[10:], (-expected).tolist()) == pytest.approx(-1)
    assert cosines(numpy.zeros((1, 3), numpy.float32), numpy.ones((1, 3), numpy.float32))[0] == 0


def test_every_variant_is_computed_as_named(pretrained: Model) -> None:
    scores = [float(number) for number in range(30)]
    report = report_embeddings(pretrained, TEXTS[:30], TEXTS[30:], scores)
    ways = {way.name: way for way in report.methods}
    assert list(ways) == [
        *("as the folder says", "cls", "mean", "second-to-last", "first and last"),
        *("whitened, 15", "static (own table)"),
    ]
    expected_vectors = {
        "as the folder says": pretrained.embed(TEXTS),
        "cls": pretrained.embed(TEXTS, pooling="cls"),
        "mean": pretrained.embed(TEXTS, pooling="mean"),
        "second-to-last": pretrained.embed(TEXTS, layer=-2),
        "first and last": pretrained.embed(TEXTS, layer=(1, -1)),
        "static (own table)": static_vectors(pretrained, TEXTS),
    }
    for name, vectors in expected_vectors.items():
        assert ways[name].spearman == pytest.approx(agreement(vectors[:30], vectors[30:], scores), abs=1e-6)
        assert ways[name].geometry.anisotropy == pytest.approx(geometry(vectors).anisotropy, abs=1e-5)


def test_whitening_omits_the_direction_removed_by_layer_norm(pretrained: Model) -> None:
    """Vectors of 16 dimensions are whitened to the 15 that layer normalization leaves."""
    many = [f"word{number % 38} word{number * 7 % 37} the cat word{number * 11 % 36}" for number in range(200)]
    report = report_embeddings(pretrained, many, fit_on=many)
    assert "whitened, 15" in [way.name for way in report.methods]


def test_whitened_vectors_point_everywhere(pretrained: Model) -> None:
    report = report_embeddings(pretrained, TEXTS)
    ways = {way.name: way for way in report.methods}
    (whitened,) = (way for way in report.methods if way.name.startswith("whitened"))
    assert abs(whitened.geometry.anisotropy) < 0.1 < ways["mean"].geometry.anisotropy
    assert whitened.spearman is None
    assert whitened.row()["size"] == whitened.size


def test_static_vectors_by_hand(pretrained: Model) -> None:
    table = pretrained.bert.encoder.embeddings.token.weight.detach().numpy()
    (ids,) = pretrained.tokenizer.encode_ids(["the cats"])
    assert [pretrained.tokenizer.piece(number) for number in ids] == ["the", "cat", "##s"]
    assert_close(static_vectors(pretrained, ["the cats", ""]), numpy.stack([table[ids].mean(0), numpy.zeros(16)]))


def test_word2vec_learns_from_a_text(pretrained: Model) -> None:
    pytest.importorskip("gensim")
    average = train_word2vec(TEXTS * 3)
    assert average is not None
    vectors = average(["the cat", "cat THE", "nothing known"])
    assert vectors.shape == (3, 100)
    assert_close(vectors[0], vectors[1])
    assert not vectors[2].any()
    numpy.testing.assert_array_equal(train_word2vec(TEXTS * 3)(["the cat"]), average(["the cat"]))  # type: ignore[misc]
    report = report_embeddings(pretrained, TEXTS, fit_on=TEXTS * 3)
    assert report.methods[-1].name == "static (word2vec)"


def test_published_model_agrees_with_people(minilm_folder: Path) -> None:
    pairs = [
        ("A man is playing a guitar.", "Someone plays the guitar.", 4.5),
        ("A cat sleeps on the sofa.", "The kitten is napping on a couch.", 4.0),
        ("The stock market fell today.", "Shares dropped on Tuesday.", 3.5),
        ("A woman is cutting onions.", "A man is riding a horse.", 0.2),
        ("It is raining in Paris.", "The recipe needs two eggs.", 0.0),
        ("A plane is landing.", "A plane is taking off.", 2.0),
    ]
    firsts, seconds, scores = (list(column) for column in zip(*pairs, strict=True))
    report = report_embeddings(load(minilm_folder), firsts, seconds, scores)
    assert report.methods[0].name == "as the folder says"
    assert (report.methods[0].spearman or 0) > 0.7


def test_modules_that_we_do_not_have_are_left_out() -> None:
    contents = replace(model_folder(), embedding=EmbeddingSettings(unsupported="modules.json pools by lasttoken"))
    assert report_embeddings(Model(contents), TEXTS).methods[0].name == "cls"


def way(name: str, spearman: float | None, anisotropy: float = 0.8) -> EmbeddingMethod:
    return EmbeddingMethod(name, 8, Geometry(anisotropy, 0.5, 0.9, -1.0), spearman)


@pytest.mark.parametrize(
    ("ways", "advice"),
    [
        ([way("mean", None)], "cosine of 0.80: the vectors lie in a narrow cone. Whiten them: cloze embed --whiten"),
        ([way("mean", None, 0.1)], "cosine of 0.10: the vectors point in many directions."),
        (
            [way("mean", 0.6), way("whitened, 8", 0.7)],
            "The best method is whitened, 8 (0.700; the current one has 0.600). Whiten them",
        ),
        ([way("mean", 0.6), way("static (own table)", 0.7)], "train it with 'cloze finetune similarity'"),
        ([way("mean", 0.6), way("cls", 0.7)], "Select it with --pooling and --layer"),
        ([way("mean", 0.6), way("cls", 0.605)], "keep the current one"),
    ],
)
def test_advice_follows_from_the_figures(ways: list[EmbeddingMethod], advice: str) -> None:
    assert advice in advise(ways)


def test_too_few_texts(pretrained: Model) -> None:
    with pytest.raises(RequestError, match=r"^2 different texts to report on; expected at least a few hundred$"):
        report_embeddings(pretrained, ["a", "b", "a"])
