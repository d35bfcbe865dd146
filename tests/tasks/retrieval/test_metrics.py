"""Metrics of rankings compared with trec_eval (``pytrec_eval``) and the significance test with an exact one."""

from itertools import product

import numpy as np
import pytest
import pytrec_eval

from cloze.errors import ConfigError
from cloze.tasks.retrieval.judgements import parse_metric, randomization_test, rank, score_query, score_run
from cloze.tasks.retrieval.kind import RetrievalData, Run

CUTOFFS = (1, 3, 10, 100)
# Names here -> names of trec_eval.
NAMES = {
    **{f"ndcg@{k}": f"ndcg_cut_{k}" for k in CUTOFFS},
    **{f"recall@{k}": f"recall_{k}" for k in CUTOFFS},
    **{f"precision@{k}": f"P_{k}" for k in CUTOFFS},
    **{f"map@{k}": f"map_cut_{k}" for k in CUTOFFS},
    "ndcg": "ndcg",
    "map": "map",
    "mrr": "recip_rank",
}


def random_case(draw: np.random.Generator) -> tuple[dict[str, int], dict[str, float]]:
    """Return judgements and a run of one query, with ties, unjudged documents and negative judgements."""
    documents = [f"d{number}" for number in draw.permutation(int(draw.integers(2, 150)))]
    judged = draw.choice(documents, int(draw.integers(1, len(documents) + 1)), replace=False).tolist()
    grades = {document: int(draw.integers(-1, 4)) for document in judged}
    grades[judged[0]] = int(draw.integers(1, 4))
    found = draw.choice(documents, int(draw.integers(1, len(documents) + 1)), replace=False).tolist()
    levels = int(draw.choice([1, 2, 5, 1000]))
    # The last digits are lost in single precision, so that some scores are equal only there.
    scores = draw.integers(0, levels, len(found)) / 7 + draw.choice([0, 1e-9], len(found))
    return grades, dict(zip(found, scores.tolist(), strict=True))


def test_equals_trec_eval_on_1000_random_runs() -> None:
    draw = np.random.default_rng(0)
    cases = {f"q{number}": random_case(draw) for number in range(1000)}
    qrels = {query: grades for query, (grades, _) in cases.items()}
    run = {query: scores for query, (_, scores) in cases.items()}
    expected = pytrec_eval.RelevanceEvaluator(qrels, set(NAMES.values())).evaluate(run)
    for query, (grades, scores) in cases.items():
        found = score_query(rank(scores), grades, list(NAMES))
        for name, theirs in NAMES.items():
            assert found[name] == pytest.approx(expected[query][theirs], abs=1e-9), (query, name)


def test_mrr_at_a_cutoff_equals_trec_eval_on_the_cut_run() -> None:
    draw = np.random.default_rng(1)
    for _ in range(200):
        grades, scores = random_case(draw)
        cut = {document: scores[document] for document in rank(scores)[:10]}
        expected = pytrec_eval.RelevanceEvaluator({"q": grades}, {"recip_rank"}).evaluate({"q": cut})
        found = score_query(rank(scores), grades, ["mrr@10"])
        assert found["mrr@10"] == pytest.approx(expected["q"]["recip_rank"], abs=1e-12)


def test_ids_are_ordered_by_code_points() -> None:
    scores = dict.fromkeys(["a", "Z", "é", "中", "𝒳", "10", "9"], 1.0)
    qrels = {document: {document: 1} for document in scores}
    expected = pytrec_eval.RelevanceEvaluator(qrels, {"recip_rank"}).evaluate(dict.fromkeys(scores, scores))
    for place, document in enumerate(rank(scores), start=1):
        assert expected[document]["recip_rank"] == pytest.approx(1 / place)


def test_queries_without_results_score_0_and_without_relevant_documents_nothing() -> None:
    data = RetrievalData(dict.fromkeys("abc", "?"), {"d": "."}, {"a": {"d": 1}, "b": {"d": 1}, "c": {"d": 0}})
    run: Run = {"a": {"d": 1.0}}
    rows = score_run(run, data, ["ndcg@10", "map"])
    assert rows.values == {"ndcg@10": [1.0, 0.0], "map": [1.0, 0.0]}


@pytest.mark.parametrize("name", ["ndgc@10", "ndcg@0", "precision", "mrr@x", "ndcg@-1"])
def test_unknown_metrics(name: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown metric '{name}'; expected ndcg@k"):
        parse_metric(name)


def test_randomization_test_against_all_signs() -> None:
    draw = np.random.default_rng(2)
    for shift in (0.0, 0.1, 0.3):
        first, second = draw.normal(shift, 0.3, 12), draw.normal(0, 0.3, 12)
        differences = first - second
        sums = [abs(np.dot(signs, differences)) for signs in product((-1, 1), repeat=12)]
        exact = np.mean(np.array(sums) >= abs(differences.sum()) - 1e-12)
        assert randomization_test(first.tolist(), second.tolist()) == pytest.approx(exact, abs=0.02)


def test_equal_systems_differ_by_chance() -> None:
    assert randomization_test([0.5, 1.0], [0.5, 1.0]) == 1.0
    assert randomization_test([0.0] * 500, [1.0] * 500) < 0.001
