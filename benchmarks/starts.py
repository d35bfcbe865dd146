"""Measure the benefit of pre-training: dev scores of a model compared with the same model from random weights.

    python benchmarks/starts.py --model cloze-mini [--tasks mrpc sst-2 ...] [--seeds 3] [--out runs/starts]

Both are fine-tuned with the product's default settings and the same seeds, and differ only in the encoder weights.
Tasks: SST-2 (--rows limits its training rows), MRPC, RTE, STS-B read as one task (sts-b) and as two separately encoded
texts (sts-b-towers: `finetune similarity` on scored pairs), QNLI (its dev set; trained on pairs built from the articles
of squad/du-split-test-v1.1.json, none of which is in the dev set), CoNLL-2003 (5,000 sentences), and sts-b-cosine, the
model's vectors without any training.

Prints the mean, the 95 % interval over seeds (Student's t) and all scores, next to those that are published for
BERT-mini (Turc et al., 2019; on the test sets). Scores are stored in --out, and re-running the same command measures
what is missing.
"""

import argparse
import json
import lzma
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean, stdev

import torch
from scipy import stats

import cloze
from cloze.checkpoint import find_source, load_folder, save_folder
from cloze.model import Bert
from cloze.tasks.metrics import spearman
from cloze.tasks.registry import read_task
from cloze.tasks.rows import RowSettings, Source
from cloze.tasks.similarity.kind import read_scored_pairs
from cloze.text import split_sentences
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.settings import FinetuneSettings
from cloze.train.run import Run
from first_rows import first_rows, first_sentences  # module in benchmarks/
from kept_scores import ScoreCache  # module in benchmarks/
from public_data import add_data, find_data  # module in benchmarks/

# Name of a score, and the score of BERT-mini on the test set.
PUBLISHED = {
    "sst-2 accuracy": 85.9,
    "mrpc f1": 81.1,
    "mrpc accuracy": 71.8,
    "sts-b spearman": 73.3,
    "rte accuracy": 57.9,
    "qnli accuracy": 84.1,
}
TASKS: dict[str, tuple[str, ...]] = {
    "mrpc": ("f1", "accuracy"),
    "rte": ("accuracy",),
    "sts-b": ("spearman",),
    "sts-b-towers": ("spearman",),
    "sts-b-cosine": ("spearman",),
    "sst-2": ("accuracy",),
    "qnli": ("accuracy",),
    "conll": ("f1",),
}
FOLDERS = {"mrpc": "glue/MRPC", "rte": "glue/RTE", "sst-2": "glue/SST-2", "qnli": "glue/QNLI", "conll": "conll2003"}
SQUAD = "squad/du-split-test-v1.1.json"


def untrained(model: Path, out: Path) -> Path:
    """Save the same model with random weights to a folder."""
    folder = out / "untrained"
    if not folder.exists():
        loaded = load_folder(model)
        fresh = Bert.fresh(loaded.model.config, loaded.model.head_names)
        save_folder(replace(loaded, model=fresh, card=None), folder)
    return folder


def question_pairs(squad: Path) -> Iterator[tuple[str, str, str]]:
    """Yield each question with the sentence that has the answer, and with the most similar other sentence."""
    packed = Path(f"{squad}.xz")
    text = lzma.decompress(packed.read_bytes()).decode() if packed.is_file() else squad.read_text(encoding="utf-8")
    for article in json.loads(text)["data"]:
        for paragraph in article["paragraphs"]:
            context, sentences = paragraph["context"], list(split_sentences(paragraph["context"]))
            starts: list[int] = []
            for sentence in sentences:
                starts.append(context.index(sentence.strip(), starts[-1] if starts else 0))
            for question in paragraph["qas"]:
                position = question["answers"][0]["answer_start"]
                number = max(n for n, start in enumerate(starts) if start <= position) if starts else 0
                words = set(question["question"].lower().split())
                others = sentences[:number] + sentences[number + 1 :]
                yield question["question"], sentences[number], "entailment"
                if others:
                    closest = max(others, key=lambda one: len(words & set(one.lower().split())))
                    yield question["question"], closest, "not_entailment"


def qnli(data: Path, out: Path) -> Source:
    """Write training pairs of SQuAD in QNLI's format, next to QNLI's own dev set."""
    folder = out / "QNLI"
    if not (folder / "train.tsv").is_file():
        first_rows(data / "glue/QNLI", folder, parts=("dev",))
        rows = enumerate(question_pairs(data / SQUAD))
        lines = ["\t".join((str(n), *(" ".join(one.split()) for one in row))) for n, row in rows]
        (folder / "train.tsv").write_text("\n".join(["index\tquestion\tsentence\tlabel", *lines, ""]), encoding="utf-8")
    return Source("qnli", folder)


def scored_pairs(data: Path, out: Path) -> Source:
    """Write STS-B as tables of two texts and a score."""
    read = read_task(Source("sts-b", data / "glue/STS-B"))
    paths = []
    for name, rows in (("train", read.train), ("dev", read.dev)):
        paths.append(out / f"sts-b-{name}.jsonl")
        pairs = zip(rows.texts, rows.pairs, rows.targets, strict=True)  # type: ignore[attr-defined]
        lines = [json.dumps({"text": one, "pair": other, "label": score}) for one, other, score in pairs]
        paths[-1].write_text("\n".join(lines) + "\n", encoding="utf-8")
    train, dev = paths
    return Source("similarity", train, dev, pair="pair")


def find_rows(task: str, data: Path, out: Path, rows: int) -> Source:
    """Return the rows of a task."""
    if task == "qnli":
        return qnli(data, out)
    if task == "conll":
        return Source("conll", first_sentences(data / "conll2003", out / "conll"))
    if task in ("sts-b-towers", "sts-b-cosine"):
        return scored_pairs(data, out)
    if task == "sst-2" and rows:
        return Source("sst-2", first_rows(data / "glue/SST-2", out / f"SST-2-{rows}", rows))
    return Source(task, data / FOLDERS.get(task, "glue/STS-B"))


def score(task: str, source: Source, model: Path, out: Path, seed: int) -> dict[str, float]:
    """Fine-tune once with the default settings, and return the metrics."""
    if task == "sts-b-cosine":
        assert source.dev is not None
        pairs = read_scored_pairs(source.dev, RowSettings(pair="pair"))
        encoder = cloze.load(model)
        firsts, seconds = (encoder.embed(texts) for texts in (pairs.firsts, pairs.seconds))
        cosines = torch.cosine_similarity(torch.from_numpy(firsts), torch.from_numpy(seconds))
        return {"spearman": spearman(pairs.scores, cosines.tolist())}
    settings = FinetuneSettings(seed=seed, baseline=False)
    results = Run(run_finetuning(source, model, out / f"{task}-{model.name}-{seed}", settings=settings)).results()
    return {name: results[name] for name in TASKS[task]}


def measure(starts: dict[str, Path], arguments: argparse.Namespace, data: Path) -> None:
    """Run missing cells, and print one line per score and start."""
    kept = ScoreCache(arguments.out / "scores.json")
    for task in arguments.tasks:
        source = find_rows(task, data, arguments.out, arguments.rows)
        rows = f" {arguments.rows}" if task == "sst-2" and arguments.rows else ""
        for start, model in starts.items():
            found: dict[str, list[float]] = {metric: [] for metric in TASKS[task]}
            for seed in range(1 if task == "sts-b-cosine" else arguments.seeds):
                run = _Once(partial(score, task, source, model, arguments.out, seed))
                for metric, scores in found.items():
                    key = f"{task}{rows} {metric} {start} {seed}"
                    scores.append(100 * kept.get(key, partial(run, metric)))
            for metric, scores in found.items():
                listed = " ".join(f"{one:.1f}" for one in scores)
                published = f"BERT-mini {PUBLISHED.get(f'{task} {metric}', '-')}"
                scored = f"{task + rows:<14} {metric:<9} {start:<10} {_interval(scores):<22}"
                print(f"{scored} {published:<15} {listed}", flush=True)


class _Once:
    """The metrics of one training, which runs when the first of them is needed."""

    def __init__(self, train: Callable[[], dict[str, float]]) -> None:
        self._train, self._metrics = train, dict[str, float]()

    def __call__(self, metric: str) -> float:
        self._metrics = self._metrics or self._train()
        return self._metrics[metric]


def _interval(scores: list[float]) -> str:
    if len(scores) < 2:
        return f"{scores[0]:5.1f} (one seed)"
    half = stats.t.ppf(0.975, len(scores) - 1) * stdev(scores) / len(scores) ** 0.5
    return f"{mean(scores):5.1f} ({mean(scores) - half:.1f} to {mean(scores) + half:.1f})"


def main() -> None:
    """Parse the arguments and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cloze-mini")
    add_data(parser)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=0, help="training rows of SST-2; all by default")
    parser.add_argument("--starts", nargs="+", default=["pretrained", "scratch"], choices=["pretrained", "scratch"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path("runs/starts"))
    arguments = parser.parse_args()
    needed = {FOLDERS.get(task, "glue/STS-B") for task in arguments.tasks}
    if "qnli" in arguments.tasks:
        needed.add(SQUAD)
    data = find_data(arguments.data, *sorted(needed))
    torch.set_num_threads(arguments.threads)
    arguments.out.mkdir(parents=True, exist_ok=True)
    model = find_source(arguments.model)
    starts = {"pretrained": model, "scratch": untrained(model, arguments.out)}
    measure({start: starts[start] for start in arguments.starts}, arguments, data)


if __name__ == "__main__":
    main()
