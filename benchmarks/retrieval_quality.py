"""Search before and after training: BM25, an untouched model, fine-tuned for retrieval, and with a reranker.

    python benchmarks/retrieval_quality.py --seeds 1 --out runs/retrieval-quality
    python benchmarks/retrieval_quality.py --language zh --model m3e-small --seeds 1 --out runs/retrieval-quality-zh

English: trained on questions of the split of SQuAD by Du et al. (44 articles), tested on the 1,190 questions of XQuAD,
searched among its 240 paragraphs and the 646 of a part of SQuAD 2.0's dev set, none of them of the training articles.
Chinese: trained on the dev files of CMRC 2018 and DRCD, tested on the questions of XQuAD in Chinese, searched among its
paragraphs and those of the trial file of CMRC. A tenth of the articles is held out as dev data.

Each run is a folder in --out and is resumed, so that seeds can be added later; finished scores are read from
scores.json. Differences are paired over the queries, on the mean over the seeds of each query's score.
"""

import argparse
import json
import lzma
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import cloze
from cloze.files import read_json, replace_json
from cloze.predict import Model
from cloze.predict.retrieval import bm25_run, search_run
from cloze.tasks.intervals import MeanRows, bootstrap_intervals, paired_difference
from cloze.tasks.retrieval.judgements import rank, score_run
from cloze.tasks.retrieval.kind import RetrievalData, Run
from public_data import add_data, find_data  # module in benchmarks/

METRICS = ("ndcg@10", "recall@10")
# Files to train on, the file of the test questions, and a file of more paragraphs to search.
FILES = {
    "en": (("squad/du-split-test-v1.1.json",), "squad/xquad.en.json", "squad/cs224n-dev-v2.0.json"),
    "zh": (
        ("zh_qa/cmrc2018_dev.json", "zh_qa/DRCD_dev.json"),
        "zh_qa/xquad.zh.json",
        "zh_qa/cmrc2018_trial.json",
    ),
}
RERANKED = 10  # passages per query that the reranker sorts
NEGATIVES = 3


def read_articles(path: Path) -> list[list[tuple[str, str]]]:
    """Return the (question, paragraph) pairs of each article of a SQuAD file."""
    raw = path.read_bytes() if path.exists() else lzma.decompress(path.with_name(f"{path.name}.xz").read_bytes())
    return [
        [(qa["question"], part["context"]) for part in article["paragraphs"] for qa in part["qas"]]
        for article in json.loads(raw)["data"]
    ]


def split_articles(paths: list[Path], rows: int) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return a sample of the training pairs and of the dev pairs, which are of other articles."""
    draw = random.Random(0)
    articles = [article for path in paths for article in read_articles(path)]
    draw.shuffle(articles)
    held = len(articles) // 10
    train, dev = ([pair for article in part for pair in article] for part in (articles[held:], articles[:held]))
    return draw.sample(train, min(rows, len(train))), draw.sample(dev, min(100, len(dev)))


def as_data(pairs: list[tuple[str, str]]) -> RetrievalData:
    """Return pairs as queries whose only relevant document is their paragraph."""
    return cloze.read_retrieval([{"query": query, "passage": passage} for query, passage in pairs])


def with_passages(data: RetrievalData, passages: list[str]) -> RetrievalData:
    """Return the data with more documents to search."""
    found = set(data.documents.values())
    others = {f"m{number}": text for number, text in enumerate(passages) if text not in found}
    return RetrievalData(data.queries, data.documents | others, data.qrels)


def hard_negatives(pairs: list[tuple[str, str]], model: Model) -> list[dict[str, Any]]:
    """Return rows with the nearest other paragraphs, beyond the first few, which may answer the question too."""
    data = as_data(pairs)
    found = search_run(model, data, 30)
    rows = []
    for query in data.answerable:
        right = set(data.relevant(query))
        others = [name for name in rank(found[query]) if name not in right][5:]
        drawn = random.Random(query).sample(others, min(NEGATIVES, len(others)))
        rows += [
            {
                "query": data.queries[query],
                "positive": data.documents[name],
                "negatives": [data.documents[other] for other in drawn],
            }
            for name in right
        ]
    return rows


class Scores:
    """Scores per query of each system, in a file; systems that are in it are not computed again."""

    def __init__(self, path: Path, data: RetrievalData, queries: list[str]) -> None:
        self._path, self._data, self._queries = path, data, queries
        self.values: dict[str, dict[str, list[float | None]]] = read_json(path) if path.exists() else {}

    def add(self, name: str, search: Callable[[], Run]) -> None:
        """Compute a system if it is missing; queries that it did not search have no score."""
        if name not in self.values:
            found = search()
            rows = score_run(found, self._data, METRICS)
            self.values[name] = {
                metric: [value if query in found else None for query, value in zip(self._queries, values, strict=True)]
                for metric, values in rows.values.items()
            }
            replace_json(self._path, self.values)
            scores = [value for value in self.values[name][METRICS[0]] if value is not None]
            print(f"{name}: {np.mean(scores):.4f} on {len(scores)} queries", flush=True)

    def mean(self, name: str, seeds: int) -> MeanRows:
        """Return the score of each query, averaged over the seeds if the system has several."""
        names = [name] if name in self.values else [f"{name}, seed {seed}" for seed in range(seeds)]
        names = [one for one in names if one in self.values]
        values = {metric: np.array([self.values[one][metric] for one in names], np.float64) for metric in METRICS}
        return MeanRows({metric: rows.mean(0).tolist() for metric, rows in values.items()})


def rerank_best(model: Model, found: Run, data: RetrievalData, count: int) -> Run:
    """Return a run of some queries whose best passages are sorted by a reranker; the others stay below them."""
    ordered: Run = {}
    for query in random.Random(0).sample(data.answerable, min(count, len(data.answerable))):
        names = rank(found[query])
        best = names[:RERANKED]
        sorted_best = model.rerank(data.queries[query], [data.documents[name] for name in best])
        order = [best[one.index] for one in sorted_best] + names[RERANKED:]
        ordered[query] = {name: -float(place) for place, name in enumerate(order)}
    return ordered


def main() -> None:
    """Parse the arguments, train what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data(parser)
    parser.add_argument("--language", choices=FILES, default="en")
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1200, help="pairs to train on")
    parser.add_argument("--rerank-rows", type=int, default=400, help="pairs to train the reranker on")
    parser.add_argument("--rerank-queries", type=int, default=300, help="test queries for the reranker")
    parser.add_argument("--max-length", type=int, default=128, help="tokens in training")
    parser.add_argument("--precision", default="fp32", help="of the searches: fp32 or int8")
    parser.add_argument("--no-reranker", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    train_files, test_file, more_file = FILES[arguments.language]
    folder = find_data(arguments.data, *train_files, test_file, more_file)
    train, dev = split_articles([folder / name for name in train_files], arguments.rows)
    test = [pair for article in read_articles(folder / test_file) for pair in article]
    known = {passage for _, passage in train}
    more = {passage for article in read_articles(folder / more_file) for _, passage in article} - known
    data = with_passages(as_data([pair for pair in test if pair[1] not in known]), sorted(more))
    arguments.out.mkdir(parents=True, exist_ok=True)
    scores = Scores(arguments.out / "scores.json", data, data.answerable)
    print(
        f"{len(train):,} pairs, {len(data.answerable):,} test queries, {len(data.documents):,} paragraphs", flush=True
    )
    scores.add("BM25", lambda: bm25_run(data))
    scores.add("untouched", lambda: search_run(cloze.load(arguments.model, precision=arguments.precision), data))
    for seed in range(arguments.seeds):
        run_seed(arguments, seed, train, dev, data, scores)
    print_tables(scores, arguments.seeds)


def run_seed(
    arguments: argparse.Namespace,
    seed: int,
    train: list[tuple[str, str]],
    dev: list[tuple[str, str]],
    data: RetrievalData,
    scores: Scores,
) -> None:
    """Train and score the retriever and the reranker of a seed."""
    common: dict[str, Any] = {"seed": seed, "max_length": arguments.max_length, "progress": True}
    rows, held = ([{"query": query, "passage": passage} for query, passage in part] for part in (train, dev))
    run = cloze.finetune(
        "retrieval", rows, held, model=arguments.model, out=arguments.out / f"retrieval-{seed}", epochs=1, **common
    )
    tuned = cloze.load(run, precision=arguments.precision)
    found: dict[str, Run] = {}

    def search() -> Run:
        found.setdefault("run", search_run(tuned, data))
        return found["run"]

    scores.add(f"fine-tuned, seed {seed}", search)
    if arguments.no_reranker or f"reranked, seed {seed}" in scores.values:
        return
    hard = hard_negatives(train[: arguments.rerank_rows], tuned)
    reranker = cloze.finetune(
        *("rerank", hard, held[:20]),
        model=run,
        out=arguments.out / f"rerank-{seed}",
        epochs=1,
        negatives=NEGATIVES,
        **common,
    )
    scores.add(
        f"reranked, seed {seed}",
        lambda: rerank_best(
            cloze.load(reranker, precision=arguments.precision), search(), data, arguments.rerank_queries
        ),
    )


def print_tables(scores: Scores, seeds: int) -> None:
    """Print the scores with intervals over the queries, and the paired differences."""
    names = ["BM25", "untouched", "fine-tuned"]
    names += ["reranked"] if any(name.startswith("reranked") for name in scores.values) else []
    means = {name: scores.mean(name, seeds) for name in names}
    print("system\tqueries\t" + "\t".join(METRICS))
    for name, rows in means.items():
        kept = common_rows(rows, rows)[0]
        intervals = bootstrap_intervals(kept)
        cells = [
            f"{np.mean(kept.values[one]):.4f} ({intervals[one][0]:.4f} to {intervals[one][1]:.4f})" for one in METRICS
        ]
        print(f"{name}\t{len(kept)}\t" + "\t".join(cells))
    for first, second in (("fine-tuned", "BM25"), ("fine-tuned", "untouched"), ("reranked", "fine-tuned")):
        if first in means:
            pair = common_rows(means[first], means[second])
            cells = [str(paired_difference(pair[0], pair[1], metric)) for metric in METRICS]
            print(f"{first} - {second}\t{len(pair[0])}\t" + "\t".join(cells))


def common_rows(*systems: MeanRows) -> list[MeanRows]:
    """Return the scores of the queries that all systems have."""
    kept = np.all([np.isfinite(rows.values[METRICS[0]]) for rows in systems], 0)
    return [MeanRows({one: np.array(rows.values[one])[kept].tolist() for one in METRICS}) for rows in systems]


if __name__ == "__main__":
    main()
