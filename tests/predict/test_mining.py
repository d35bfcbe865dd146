"""Hard negatives compared with ``mine_hard_negatives`` of sentence-transformers, and candidates that are left out."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import mine_hard_negatives

import cloze
from cloze.checkpoint.pooling_files import EmbeddingSettings
from cloze.errors import ConfigError, DataError
from cloze.predict import Model
from cloze.predict.mining import Miner, mine_negatives, mining_documents, summarise
from cloze.tasks.retrieval.kind import MiningSettings, TrainingPairs
from tests.model.made import WORDS, model_folder, saved


def made_texts(count: int, seed: int) -> list[str]:
    draw = np.random.default_rng(seed)
    words = [word for word in WORDS if word.isalpha()] + [f"word{number}" for number in range(30)]
    return list(dict.fromkeys(" ".join(draw.choice(words, 6)) for _ in range(count)))


QUERIES = made_texts(20, 0)
# The first 20 passages are near to the queries, but not always the nearest.
PASSAGES = [" ".join(text.split()[1:]) + " mat cat" for text in QUERIES] + made_texts(40, 1)
PAIRS = TrainingPairs(QUERIES, PASSAGES[:20], [()] * 20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    contents = replace(model_folder(), embedding=EmbeddingSettings("mean", normalize=True, prompts={"query": "a mat "}))
    return saved(contents, tmp_path_factory.mktemp("models") / "m")


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return cloze.load(folder)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (MiningSettings(negatives=3, depth=20, relative_margin=0.002), {"relative_margin": 0.002}),
        (MiningSettings(negatives=3, depth=20, relative_margin=0, margin=0.002), {"absolute_margin": 0.002}),
        (
            MiningSettings(negatives=3, depth=50, skip=2, relative_margin=0.02),
            {"relative_margin": 0.02, "range_min": 2},
        ),
    ],
    ids=["relative", "absolute", "skip"],
)
def test_negatives_are_those_of_sentence_transformers(
    folder: Path, model: Model, ours: MiningSettings, theirs: dict[str, Any]
) -> None:
    rows = Dataset.from_dict({"query": QUERIES, "positive": PASSAGES[:20]})
    expected = mine_hard_negatives(
        rows,
        SentenceTransformer(str(folder), device="cpu"),
        corpus=PASSAGES,
        range_max=ours.depth,
        num_negatives=3,
        output_format="labeled-list",
        verbose=False,
        **theirs,
    )
    found: dict[str, list[str]] = {}
    for row in expected:
        found[row["query"]] = [text for text, label in zip(row["positive"], row["labels"], strict=True) if label == 0]
    mined = mine_negatives(model, PAIRS, PASSAGES, ours)
    compared = 0
    for query, negatives in zip(mined.queries, mined.negatives, strict=True):
        if len(negatives) == 3:  # the other library leaves out queries with fewer
            compared += 1
            assert list(negatives) == found[query]
    assert compared > 5


def test_positives_and_candidates_near_to_them_are_left_out(model: Model) -> None:
    pairs = TrainingPairs([QUERIES[0], QUERIES[0], QUERIES[1]], [PASSAGES[0], PASSAGES[1], PASSAGES[2]], [()] * 3)
    vectors = model.embed(PASSAGES, prompt="document")
    miner = Miner(model, pairs, PASSAGES, vectors, MiningSettings(negatives=50, depth=60, relative_margin=0.005))
    mined = miner.mine([QUERIES[0], QUERIES[1]])
    assert [len(one.rows) for one in mined] == [2, 1]
    query = model.embed([QUERIES[0]], prompt="query")[0]
    scores = dict(zip(PASSAGES, (vectors @ query).tolist(), strict=True))
    lowest = min(scores[PASSAGES[0]], scores[PASSAGES[1]])
    limit = lowest - 0.005 * abs(lowest)
    others = [text for text in PASSAGES if text not in PASSAGES[:2]]
    expected = sorted((text for text in others if scores[text] <= limit), key=lambda text: -scores[text])[:50]
    assert mined[0].rows[0]["negatives"] == mined[0].rows[1]["negatives"] == expected
    assert mined[0].candidates == len(others)
    assert mined[0].left_out == sum(scores[text] > limit for text in others)
    example = mined[0].example
    assert example is not None
    assert example.text == max(others, key=lambda text: scores[text])
    report = summarise(mined)
    assert (report.rows, report.candidates) == (3, len(others) + len(PASSAGES) - 1)
    assert report.examples[0].positive_score - report.examples[0].score == min(one.lead for one in mined)


def test_random_candidates_depend_only_on_seed_and_query(model: Model) -> None:
    settings = MiningSettings(negatives=3, depth=40, relative_margin=0.001, sampling="random", seed=4)
    first = mine_negatives(model, PAIRS, PASSAGES, settings)
    assert mine_negatives(model, PAIRS.select(range(5)), PASSAGES, settings).negatives == first.negatives[:5]
    other = mine_negatives(model, PAIRS, PASSAGES, replace(settings, seed=5))
    assert other.negatives != first.negatives


def test_reranker_scores_the_candidates(model: Model, tmp_path: Path) -> None:
    reranker = cloze.load(saved(model_folder(["sequence"], labels=1), tmp_path / "cross"))
    settings = MiningSettings(negatives=2, depth=10, relative_margin=0)
    mined = mine_negatives(model, PAIRS, PASSAGES, settings, reranker)
    assert mined.scores is not None
    for query, positive, negatives, scores in zip(
        mined.queries, mined.positives, mined.negatives, mined.scores, strict=True
    ):
        texts = [positive, *negatives]
        assert np.allclose(scores, reranker.rerank_scores([query] * len(texts), texts), atol=1e-5)
        assert all(score <= scores[0] for score in scores[1:])


def test_passages_of_the_pairs_and_more() -> None:
    pairs = TrainingPairs(["q"], ["a"], [("b", "a")])
    assert mining_documents(pairs, ["c", "b"]) == ["a", "b", "c"]
    with pytest.raises(DataError, match="there are 1 different passages; expected at least 2"):
        mining_documents(TrainingPairs(["q", "r"], ["a", "a"], [(), ()]))


BAD_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"negatives": 0}, "negatives is 0; expected at least 1"),
    ({"skip": -1}, "skip is -1; expected at least 0"),
    ({"margin": -0.1}, "margin is -0.1; expected at least 0"),
    ({"depth": 10, "skip": 6}, "depth is 10, which leaves fewer than 5 candidates after skipping 6; expected at least"),
    ({"sampling": "best"}, "sampling is 'best'"),
]


@pytest.mark.parametrize(("values", "message"), BAD_SETTINGS, ids=[message for _, message in BAD_SETTINGS])
def test_bad_settings(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MiningSettings(**values)
