"""Rankings by vectors compared with ``sentence-transformers``, rerankers, and the comparison of systems."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

import cloze
from cloze.checkpoint.pooling_files import EmbeddingSettings
from cloze.errors import ConfigError
from cloze.predict import Model
from cloze.predict.retrieval import (
    bm25_run,
    depth_of,
    describe_comparison,
    evaluate_retrieval,
    evaluate_run,
    rerank_run,
    search_run,
)
from cloze.tasks.retrieval.judgements import rank, read_run
from cloze.tasks.retrieval.kind import RetrievalData, Run
from tests.model.made import WORDS, model_folder, saved

PROMPTS = {"query": "a mat ", "document": "the dog "}


def made_data(queries: int = 40, documents: int = 60) -> RetrievalData:
    draw = np.random.default_rng(0)
    words = [word for word in WORDS if word.isalpha()] + [f"word{number}" for number in range(30)]
    texts = [" ".join(draw.choice(words, 6)) for _ in range(queries + documents)]
    corpus = {f"d{number}": text for number, text in enumerate(texts[queries:])}
    asked = {f"q{number}": text for number, text in enumerate(texts[:queries])}
    qrels = {query: {f"d{index}": 1 for index in draw.choice(documents, 2, replace=False)} for query in asked}
    qrels["q0"] = {"d0": 0}
    return RetrievalData(asked, corpus, qrels, split="test")


DATA = made_data()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    contents = replace(model_folder(), embedding=EmbeddingSettings("mean", normalize=True, prompts=PROMPTS))
    return saved(contents, tmp_path_factory.mktemp("models") / "m")


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return cloze.load(folder)


def test_metrics_are_those_of_sentence_transformers(folder: Path, model: Model) -> None:
    relevant = {query: set(DATA.relevant(query)) for query in DATA.answerable}
    queries: dict[str, Any] = {query: DATA.queries[query] for query in DATA.answerable}
    corpus: dict[str, Any] = dict(DATA.documents)
    theirs = InformationRetrievalEvaluator(
        queries, corpus, relevant, mrr_at_k=[10], ndcg_at_k=[10], precision_recall_at_k=[10], map_at_k=[100]
    )(SentenceTransformer(str(folder), device="cpu"))
    ours = evaluate_retrieval(model, DATA).metrics
    names = ("ndcg@10", "mrr@10", "recall@10", "precision@10", "map@100")
    assert {name: ours[name] for name in names} == pytest.approx({name: theirs[f"cosine_{name}"] for name in names})


def test_prompts_are_those_of_the_folder_or_as_given(model: Model) -> None:
    run = search_run(model, DATA, top=5)
    assert all(len(found) == 5 for found in run.values())
    query, document = "q3", next(iter(run["q3"]))
    vectors = model.embed([PROMPTS["query"] + DATA.queries[query], PROMPTS["document"] + DATA.documents[document]])
    assert run[query][document] == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-5)
    other = search_run(model, DATA, top=5, query_prompt="cat ", document_prompt="dog, ")
    first = next(iter(other[query]))
    vectors = model.embed(["cat " + DATA.queries[query], "dog, " + DATA.documents[first]])
    assert other[query][first] == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-5)


def test_report_compares_with_bm25_and_other_systems(model: Model) -> None:
    right: Run = {query: {DATA.relevant(query)[0]: 1.0} for query in DATA.answerable}
    found = evaluate_retrieval(model, DATA, compare_with={"perfect": right}, name="made")
    assert [system.name for system in found.systems] == ["made", "perfect", "BM25"]
    results = found.results()
    assert results["baseline"]["name"] == "BM25"
    assert [one["name"] for one in results["baseline"]["others"]] == ["perfect"]
    assert results["documents"] == 60
    assert results["unanswerable"] == 1
    comparison = results["comparisons"][0]
    assert comparison["mrr@10"] == 1.0
    assert comparison["differences"]["mrr@10"]["high"] < 0
    assert comparison["differences"]["mrr@10"]["p"] < 0.001
    assert describe_comparison(comparison).endswith("(randomization test): beyond noise")
    text = str(found)
    assert "39 queries of the split test, 60 documents" in text
    assert "1 queries have no relevant document and no score" in text
    assert "against BM25: " in text
    json.dumps(results)


def test_results_by_query(model: Model, tmp_path: Path) -> None:
    found = evaluate_retrieval(model, DATA, name="made")
    found.write_more(tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "queries.jsonl").read_text().splitlines()]
    assert len(rows) == 39
    assert rows[0]["query"] == "q1"
    assert rows[0]["relevant"] == DATA.qrels["q1"]
    assert rows[0]["systems"].keys() == {"made", "BM25"}
    made = rows[0]["systems"]["made"]
    assert made["results"] == rank(found.systems[0].run["q1"])[:10]
    place = made["first"]
    assert rank(found.systems[0].run["q1"])[place - 1] in rows[0]["relevant"]
    assert np.mean([row["systems"]["made"]["ndcg@10"] for row in rows]) == pytest.approx(found.metrics["ndcg@10"])
    assert read_run(tmp_path / "model.trec", DATA) == found.systems[0].run
    assert read_run(tmp_path / "bm25.trec", DATA) == found.systems[1].run


def test_reranker_sorts_the_first_results(tmp_path: Path) -> None:
    reranker = cloze.load(saved(model_folder(["sequence"], labels=1), tmp_path / "cross"))
    run = bm25_run(DATA, top=10)
    found = rerank_run(reranker, run, DATA, top=4)
    query = max(run, key=lambda one: len(run[one]))
    before, after = rank(run[query]), rank(found[query])
    expected = reranker.rerank(DATA.queries[query], [DATA.documents[one] for one in before[:4]])
    assert after[:4] == [before[ranked.index] for ranked in expected]
    assert after[4:] == before[4:]
    evaluated = evaluate_retrieval(reranker_free(tmp_path), DATA, reranker=reranker, name="m")
    assert [system.name for system in evaluated.systems] == ["m, reranked", "m", "BM25"]


def reranker_free(folder: Path) -> Model:
    return cloze.load(saved(model_folder(), folder / "plain"))


def test_bm25_finds_words() -> None:
    data = RetrievalData({"q": "where is the ship"}, {"a": "a cat", "b": "the ship at sea"}, {"q": {"b": 1}})
    assert list(bm25_run(data)["q"]) == ["b"]


def test_depth_of_the_search() -> None:
    assert depth_of(["ndcg@10", "recall@50"]) == 50
    assert depth_of(["ndcg@10", "map"]) == 1000


def test_mistakes(model: Model) -> None:
    with pytest.raises(ConfigError, match="metrics is empty"):
        evaluate_retrieval(model, DATA, metrics=())
    with pytest.raises(ConfigError, match="two systems are named 'BM25'"):
        evaluate_run({}, DATA, {}, name="BM25")
    with pytest.raises(ConfigError, match="two systems are named 'a'"):
        evaluate_run({}, DATA, name="a", others={"a": {}})
