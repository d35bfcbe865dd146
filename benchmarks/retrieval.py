"""Search on questions and paragraphs: BM25 and models of text vectors as they are, and what training adds.

    python benchmarks/retrieval.py squad [--data ../shared/data] [--models all-MiniLM-L6-v2] [--out results.json]
    python benchmarks/retrieval.py drcd --models m3e-small

Each question searches the paragraphs; the paragraph that it was written for is relevant. The articles are divided into
train, dev and test, so that no article, and hence no paragraph and no question, is on two sides. A question of the test
articles searches the paragraphs of the test articles. Every row has nDCG@10 and recall@10 with bootstrap intervals over
the questions, and the paired difference of nDCG@10 from BM25.

SQuAD: the articles of its training set that Du et al. 2017 set apart, and half of the dev set. CMRC 2018: dev and
trial. DRCD: dev and test.
"""

import argparse
import json
import lzma
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloze
from cloze.files import replace_json
from cloze.options import PrecisionName
from cloze.predict.retrieval import RetrievalEvaluation, bm25_run, evaluate_run, search_run
from cloze.tasks.retrieval.kind import RetrievalData, Run
from public_data import add_data, find_data  # module in benchmarks/

FILES = {
    "squad": ("squad/du-split-test-v1.1.json", "squad/cs224n-dev-v2.0.json"),
    "cmrc": ("zh_qa/cmrc2018_dev.json", "zh_qa/cmrc2018_trial.json"),
    "drcd": ("zh_qa/DRCD_dev.json", "zh_qa/DRCD_test.json"),
}
MODELS = {"squad": ("all-MiniLM-L6-v2",), "cmrc": ("m3e-small",), "drcd": ("m3e-small",)}
METRICS = ("ndcg@10", "recall@10", "mrr@10", "recall@1")
SHARES = {"train": 0.7, "dev": 0.1, "test": 0.2}
_SEED = 0


@dataclass(frozen=True)
class Article:
    """The paragraphs of an article, each with its answerable questions."""

    title: str
    paragraphs: list[tuple[str, list[str]]]


def read_articles(path: Path) -> Iterator[Article]:
    """Yield the articles of a file in the format of SQuAD."""
    compressed = path.with_name(f"{path.name}.xz")
    text = path.read_bytes() if path.exists() else lzma.decompress(compressed.read_bytes())
    for article in json.loads(text)["data"]:
        paragraphs = [
            (paragraph["context"], [row["question"] for row in paragraph["qas"] if not row.get("is_impossible")])
            for paragraph in article["paragraphs"]
        ]
        yield Article(article["title"], paragraphs)


def split_articles(articles: Sequence[Article]) -> dict[str, list[Article]]:
    """Divide the articles into train, dev and test; files of the same article stay together."""
    titles = sorted({article.title for article in articles})
    random.Random(_SEED).shuffle(titles)
    first, second = round(SHARES["train"] * len(titles)), round((SHARES["train"] + SHARES["dev"]) * len(titles))
    parts = {"train": set(titles[:first]), "dev": set(titles[first:second]), "test": set(titles[second:])}
    return {name: [one for one in articles if one.title in chosen] for name, chosen in parts.items()}


def as_retrieval(articles: Sequence[Article], most_queries: int | None = None) -> RetrievalData:
    """Return questions as queries and paragraphs as documents; at most ``most_queries`` questions, at random."""
    documents: dict[str, str] = {}
    questions: dict[str, set[str]] = {}
    for article in articles:
        for text, asked in article.paragraphs:
            key = documents.setdefault(text, f"d{len(documents) + 1}")
            for question in asked:
                questions.setdefault(question.strip(), set()).add(key)
    chosen = [question for question in questions if question]
    if most_queries is not None and len(chosen) > most_queries:
        chosen = sorted(random.Random(_SEED).sample(chosen, most_queries), key=chosen.index)
    ids = {question: f"q{number + 1}" for number, question in enumerate(chosen)}
    qrels = {ids[question]: dict.fromkeys(sorted(questions[question]), 1) for question in chosen}
    by_id = {key: text for text, key in documents.items()}
    return RetrievalData({key: question for question, key in ids.items()}, by_id, qrels)


def read_splits(name: str, data: str, *, train: int | None = None, test: int | None = None) -> dict[str, RetrievalData]:
    """Return train, dev and test of a data set, split by article."""
    folder = find_data(data, *FILES[name])
    articles = [article for file in FILES[name] for article in read_articles(folder / file)]
    most = {"train": train, "dev": test, "test": test}
    return {split: as_retrieval(part, most[split]) for split, part in split_articles(articles).items()}


def describe(evaluation: RetrievalEvaluation) -> dict[str, Any]:
    """Return the row of the table: scores with intervals, and the difference from BM25."""
    row: dict[str, Any] = {name: evaluation.metrics[name] for name in METRICS}
    row |= {f"{name} interval": evaluation.intervals[name] for name in METRICS[:2]}
    for comparison in evaluation.comparisons:
        row[f"against {comparison['name']}"] = comparison["differences"][METRICS[0]]
    return row


def score(run: Run, data: RetrievalData, name: str, others: Mapping[str, Run]) -> dict[str, Any]:
    """Evaluate a run and compare it with others, among them BM25."""
    baseline = others.get("BM25")
    more = {key: other for key, other in others.items() if key != "BM25"}
    return describe(evaluate_run(run, data, baseline, metrics=METRICS, name=name, others=more))


def show(name: str, row: Mapping[str, Any]) -> None:
    """Print a row."""
    cells = [
        f"{row[metric]:.4f} ({' to '.join(f'{end:.4f}' for end in row[f'{metric} interval'])})"
        for metric in METRICS[:2]
    ]
    differences = [
        f"{key} {found['value']:+.4f} ({found['low']:+.4f} to {found['high']:+.4f})"
        for key, found in row.items()
        if key.startswith("against ")
    ]
    print(f"{name:<24} nDCG@10 {cells[0]}  recall@10 {cells[1]}  {'; '.join(differences)}", flush=True)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Evaluate BM25 and the models as they are, and print a row for each."""
    splits = read_splits(arguments.dataset, arguments.data, train=arguments.train, test=arguments.queries)
    for split, data in splits.items():
        print(f"{split}: {len(data.queries):,} questions, {len(data.documents):,} paragraphs")
    test = splits["test"]
    runs: dict[str, Run] = {"BM25": bm25_run(test)}
    rows = {"BM25": describe(evaluate_run(runs["BM25"], test, metrics=METRICS, name="words"))}
    show("BM25", rows["BM25"])
    for name in arguments.models or MODELS[arguments.dataset]:
        model = cloze.load(name, precision=arguments.precision)
        runs[name] = search_run(model, test)
        rows[name] = score(runs[name], test, name, {"BM25": runs["BM25"]})
        show(name, rows[name])
    return {"dataset": arguments.dataset, "precision": arguments.precision, "rows": rows}


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=FILES)
    add_data(parser)
    parser.add_argument("--models", nargs="*", default=None, help="model folders or names; by default, by data set")
    precisions: tuple[PrecisionName, ...] = ("fp32", "int8", "bf16", "auto")
    parser.add_argument("--precision", choices=precisions, default="fp32")
    parser.add_argument("--queries", type=int, default=2000, help="most questions of dev and of test")
    parser.add_argument("--train", type=int, default=8000, help="most training questions")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of trained models")
    parser.add_argument("--out", type=Path, help="a JSON file for the results")
    arguments = parser.parse_args()
    results = measure(arguments)
    if arguments.out is not None:
        replace_json(arguments.out, results)


if __name__ == "__main__":
    main()
