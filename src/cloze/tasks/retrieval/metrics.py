"""Metrics of rankings, equal to those of ``trec_eval``, and a significance test of two systems on the same queries.

As in trec_eval, documents are ranked by score in single precision, and equal scores by descending id, so that the order
of the results in a file does not matter. A document without a judgement is not relevant. Gains are the relevance
itself, discounted by log2(rank + 1) (Jarvelin and Kekalainen 2002). Unlike trec_eval, queries without a relevant
document have no score: they are left out of the means.

Dimensions: Q queries, S resamples.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from cloze.errors import ConfigError
from cloze.tasks.intervals import MeanRows
from cloze.tasks.retrieval.kind import RetrievalData, Run

_PERMUTATIONS = 10_000
_AT_ONCE = 2_000_000  # signs in memory at the same time
_SEED = 0
_NAME = re.compile(r"(?P<name>ndcg|mrr|recall|precision|map)(@(?P<cutoff>[1-9]\d*))?")

Relevances = Sequence[int]
"""The relevance of each ranked document, best rank first; 0 for documents without a judgement."""


def rank(scores: Mapping[str, float]) -> list[str]:
    """Return the documents in the order of trec_eval: by score in single precision, then by id, descending."""
    values = np.fromiter(scores.values(), np.float32, len(scores)).tolist()
    order = sorted(zip(values, scores, strict=True), reverse=True)
    return [document for _, document in order]


def _ndcg(found: Relevances, grades: Relevances) -> float:
    best = sorted((grade for grade in grades if grade > 0), reverse=True)[: len(found)]
    return _gain(found) / _gain(best)


def _gain(relevances: Relevances) -> float:
    return sum(grade / math.log2(place + 1) for place, grade in enumerate(relevances, start=1) if grade > 0)


def _mrr(found: Relevances, grades: Relevances) -> float:  # noqa: ARG001 (the metrics share one signature)
    return next((1 / place for place, grade in enumerate(found, start=1) if grade > 0), 0.0)


def _recall(found: Relevances, grades: Relevances) -> float:
    return _count(found) / _count(grades)


def _precision(found: Relevances, grades: Relevances) -> float:  # noqa: ARG001
    return _count(found) / len(found)


def _map(found: Relevances, grades: Relevances) -> float:
    """Return the mean over the relevant documents of the precision at their ranks; 0 for those that are not found."""
    right, total = 0, 0.0
    for place, grade in enumerate(found, start=1):
        if grade > 0:
            right += 1
            total += right / place
    return total / _count(grades)


def _count(relevances: Relevances) -> int:
    return sum(grade > 0 for grade in relevances)


# Relevances of the ranked documents, cut or padded to the cutoff, and all judgements of the query -> score.
METRICS: dict[str, Callable[[Relevances, Relevances], float]] = {
    "ndcg": _ndcg,
    "mrr": _mrr,
    "recall": _recall,
    "precision": _precision,
    "map": _map,
}


def parse_metric(name: str) -> tuple[str, int | None]:
    """Split ``ndcg@10`` into its name and its cutoff; without a cutoff, all results count."""
    found = _NAME.fullmatch(name)
    if found is None or (found["name"] == "precision" and found["cutoff"] is None):
        known = ", ".join(f"{metric}@k" for metric in METRICS)
        raise ConfigError(f"unknown metric {name!r}; expected {known} with a number for k, such as ndcg@10, or map")
    return found["name"], None if found["cutoff"] is None else int(found["cutoff"])


def score_query(ranked: Sequence[str], grades: Mapping[str, int], metrics: Sequence[str]) -> dict[str, float]:
    """Return the metrics of one query.

    Args:
        ranked: The ids of the documents found, best first.
        grades: The relevance of each judged document; at least one must be relevant.
        metrics: Names such as ``ndcg@10`` or ``map``.
    """
    found, judged = [grades.get(document, 0) for document in ranked], list(grades.values())
    scores = {}
    for metric in metrics:
        name, cutoff = parse_metric(metric)
        # Padding matters to precision@k, which divides by k, and to the ideal ranking of nDCG@k.
        length = max(len(found), len(judged)) if cutoff is None else cutoff
        scores[metric] = METRICS[name]([*found[:length], *[0] * (length - len(found))], judged)
    return scores


def score_run(run: Run, data: RetrievalData, metrics: Sequence[str]) -> MeanRows:
    """Return the metrics of every answerable query, in the order of ``data.answerable``; 0 for one without results."""
    rows = [score_query(rank(run.get(query, {})), data.qrels[query], metrics) for query in data.answerable]
    return MeanRows({metric: [row[metric] for row in rows] for metric in metrics})


def randomization_test(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the two-sided p-value of a difference of means by Fisher's randomization test (Smucker et al. 2007).

    If two systems are equally good, the sign of the difference on each query is arbitrary: the p-value is the fraction
    of 10,000 random assignments of signs (and the observed one) whose mean difference is at least as large.

    Args:
        first: A score per query of one system, (Q,).
        second: A score per query of the other, in the same order, (Q,).
    """
    differences = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    differences = differences[differences != 0]
    if not len(differences):
        return 1.0
    # Sums of the same numbers in another order may differ by rounding.
    observed = abs(differences.sum()) - 1e-9 * np.abs(differences).sum()
    generator = np.random.default_rng(_SEED)
    extreme, left = 1, _PERMUTATIONS
    while left:
        size = min(left, max(1, _AT_ONCE // len(differences)))
        signs: NDArray[np.int8] = generator.integers(0, 2, (size, len(differences)), np.int8)
        extreme += int((np.abs((2.0 * signs - 1.0) @ differences) >= observed).sum())
        left -= size
    return extreme / (_PERMUTATIONS + 1)
