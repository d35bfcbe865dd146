"""Measure SQuAD scores of a fine-tuned MiniLM on the available parts of the data set.

    python benchmarks/squad.py [--articles 22] [--epochs 2] [--seeds 1]
    python benchmarks/squad.py --check

squad     trained on articles of the official training set (Du's test split), evaluated on the answerable questions in
          half of the official dev set, which have several reference answers each
squad2    trained on the same articles and on three quarters of that half's articles, which include unanswerable
          questions; evaluated on the remaining articles

No article is in both the training and the dev set. Scores are stored next to this script, and re-running the same
command measures what is missing.

The predictions of each run are scored a second time by the slow, independent implementation in the tests, which parses
the files itself. --check compares both scorers on synthetic answers to all available questions, without training.
"""

import argparse
import json
import lzma
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, mean
from typing import Any

import torch

from cloze.files import replace_json
from cloze.tasks.answering.kind import AnswerPrediction, score_answers
from cloze.tasks.rows import Source
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.settings import FinetuneSettings
from cloze.train.run import Run
from kept_scores import ScoreCache  # module in benchmarks/
from minilm import minilm
from public_data import add_data, find_data, is_published  # module in benchmarks/

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))
from tests.tasks import squad_reference as reference  # noqa: E402 (tests is not an installed package)

CACHE = ScoreCache(Path(__file__).with_suffix(".json"))
METRICS = {"squad": ("exact_match", "f1"), "squad2": ("exact", "f1", "HasAns_f1", "NoAns_f1")}
TRAIN, HALF = "squad/du-split-test-v1.1.json.xz", "squad/cs224n-dev-v2.0.json.xz"
AT_HAND = (TRAIN, HALF, "squad/xquad.en.json", "squad/dev-v2.0-first5articles-official-ids.json")
Article = dict[str, Any]
Question = tuple[str, str, tuple[str, ...]]  # (id, context, reference answers)


def articles_of(path: Path) -> list[Article]:
    """Return the articles of a file, compressed or not."""
    with lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open(encoding="utf-8") as file:
        return list(json.load(file)["data"])


def answerable(article: Article) -> Article:
    """Return an article without its unanswerable questions, as in version 1.1."""
    paragraphs = [
        part | {"qas": [one for one in part["qas"] if not one.get("is_impossible")]} for part in article["paragraphs"]
    ]
    return article | {"paragraphs": paragraphs}


def questions_of(articles: Sequence[Article]) -> Iterator[Question]:
    """Yield all questions as they are in the file."""
    for article in articles:
        for part in article["paragraphs"]:
            for one in part["qas"]:
                answers = [] if one.get("is_impossible") else one["answers"]
                yield one["id"], part["context"], tuple(answer["text"] for answer in answers)


def sources(data: Path, articles: int, out: Path) -> dict[str, Source]:
    """Return both tasks with their files."""
    train = articles_of(data / TRAIN)[:articles]
    half = articles_of(data / HALF)
    scored = len(half) // 4
    parts = {
        "squad": (train, [answerable(article) for article in half]),
        "squad2": (train + half[scored:], half[:scored]),
    }
    out.mkdir(parents=True, exist_ok=True)
    found = {}
    for task, sides in parts.items():
        train_file, dev_file = (out / f"{task}-{articles}-{side}.json" for side in ("train", "dev"))
        for path, side in zip((train_file, dev_file), sides, strict=True):
            replace_json(path, {"version": "v2.0" if task == "squad2" else "1.1", "data": side})
        found[task] = Source(task, train_file, dev_file)
    return found


def score(source: Source, metric: str, settings: FinetuneSettings, place: Path) -> float:
    """Fine-tune, or load the finished run, and return one dev metric."""
    return float(Run(run_finetuning(source, minilm(), place, settings=settings)).results()[metric])


def score_independently(task: str, cases: Sequence[reference.Case]) -> dict[str, float]:
    """Return the scores of the tests' implementation, under the names of the official scripts."""
    if task == "squad":
        return dict(zip(("exact_match", "f1"), reference.first_version(cases), strict=True))
    scores = {}
    singles = [(bool(answers), reference.second_version(answers, said)) for answers, said, _ in cases]
    for which, name in enumerate(("exact", "f1")):
        for kind, counted in (("", {True, False}), ("HasAns_", {True}), ("NoAns_", {False})):
            scores[kind + name] = fmean(both[which] for having, both in singles if having in counted)
        scores[f"best_{name}"] = reference.best_over_thresholds(cases, which)
    return scores


def print_both(task: str, ours: Mapping[str, float], others: Mapping[str, float]) -> None:
    """Print the scores of cloze and of the tests' implementation, and their largest difference."""
    for name, other in others.items():
        print(f"{task:<8} {name:<12} {100 * ours[name]:9.5f} {100 * other:9.5f}")
    largest = max(abs(ours[name] - other) for name, other in others.items())
    print(f"{task:<8} largest difference between the two: {100 * largest:.1e}", flush=True)


def score_again(task: str, dev: Path, place: Path) -> None:
    """Score the stored predictions of a run with the tests' implementation as well."""
    if not (place / "predictions.json").is_file():
        print(f"{task:<8} {place}: no predictions found, so the stored scores are not checked", flush=True)
        return
    said = json.loads((place / "predictions.json").read_text(encoding="utf-8"))
    nulls = json.loads((place / "null_odds.json").read_text(encoding="utf-8")) if task == "squad2" else {}
    questions = questions_of(articles_of(dev))
    cases = [(answers, said[name], nulls.get(name, 0.0)) for name, _, answers in questions]
    print_both(task, Run(place).results(), score_independently(task, cases))


def make_up(context: str, answers: Sequence[str], draw: random.Random) -> str:
    """Return a synthetic prediction: an answer, a truncated one, another span of the text, or nothing."""
    words = context.split()
    start = draw.randrange(len(words))
    other = " ".join(words[start : start + draw.randint(1, 8)])
    right = draw.choice(answers) if answers else other
    return draw.choice((right, right[: draw.randint(0, len(right))], other, ""))


def check(data: Path, seed: int = 0) -> None:
    """Score synthetic answers to all available questions with cloze and with the tests' implementation."""
    draw = random.Random(seed)
    arguments = [question for name in AT_HAND for question in questions_of(articles_of(data / name))]
    cases = [(answers, make_up(context, answers, draw), draw.gauss(0, 5)) for _, context, answers in arguments]
    for task, used in (("squad", [case for case in cases if case[0]]), ("squad2", cases)):
        print(f"{task:<8} {len(used)} questions, {len(used) - sum(bool(case[0]) for case in used)} without an answer")
        ours = score_answers(METRICS[task], [AnswerPrediction(*case) for case in used])
        print_both(task, ours, score_independently(task, used))


def main() -> None:
    """Parse the arguments, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data(parser)
    parser.add_argument(
        "--check", action="store_true", help="compare the scorer with an independent one, without training"
    )
    parser.add_argument("--tasks", nargs="+", default=list(METRICS), choices=METRICS)
    parser.add_argument("--articles", type=int, default=22, help="number of training articles, at most 44")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path("runs/squad"), help="folder for the training runs")
    arguments = parser.parse_args()
    if not is_published(arguments.data):
        CACHE.move(arguments.out / "squad.json")
    arguments.data = find_data(arguments.data, *AT_HAND)
    if arguments.check:
        check(arguments.data)
        return
    torch.set_num_threads(arguments.threads)
    for task, source in sources(arguments.data, arguments.articles, arguments.out).items():
        if task in arguments.tasks:
            measure(task, source, arguments)


def measure(task: str, source: Source, arguments: argparse.Namespace) -> None:
    """Print the scores of a task over all seeds, and each run's scores by the second implementation."""
    assert source.dev is not None
    names = [f"{task} {arguments.articles} {arguments.epochs} {seed}" for seed in range(arguments.seeds)]
    places = [arguments.out / name.replace(" ", "-") for name in names]
    for metric in METRICS[task]:
        values = []
        for seed, (name, place) in enumerate(zip(names, places, strict=True)):
            settings = FinetuneSettings(
                epochs=arguments.epochs, batch_size=16, max_length=384, learning_rate=1e-4, seed=seed
            )
            tuned = partial(score, source, metric, settings, place)
            values.append(100 * CACHE.get(f"{name} {metric}", tuned))
        print(f"{task:<8} {metric:<12} {mean(values):6.2f}   {' '.join(f'{one:.2f}' for one in values)}", flush=True)
    for place in places:
        score_again(task, source.dev, place)


if __name__ == "__main__":
    main()
