"""What a model's heads do, whether that holds on other text, and which of them a task can do without.

    python benchmarks/heads.py survey [--model cloze-mini] [--sequences 256] [--out FOLDER]
    python benchmarks/heads.py pruning [--model cloze-mini] [--task sst-2] [--rows 4000] [--orders 5] [--out FOLDER]

The first surveys the heads on two halves of WikiText-2, every other document in each, and prints the map of labels, how
many heads bear the same one on both, and an example of each pattern. The second fine-tunes the model on a GLUE task and
takes its heads away in steps: those of the least importance first, and in random orders. The model is all-MiniLM-L6-v2
if none is named.
"""

import argparse
import gzip
import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from statistics import mean

import torch

from cloze.inspect.pruning import (
    draw_curves,
    head_importance,
    least_important_first,
    pruning_curve,
    random_order,
    removal_costs,
)
from cloze.inspect.settings import HeadSettings
from cloze.inspect.survey import Survey, agreement, survey_heads
from cloze.inspect.survey_report import example_lines, summary_lines, write_survey
from cloze.predict import evaluate_examples, load
from cloze.tasks.classification.examples import LabelledTexts
from cloze.tasks.registry import find_task, read_examples
from cloze.tasks.rows import Source
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.settings import FinetuneSettings
from first_rows import first_rows  # beside this file
from minilm import minilm
from public_data import add_data, find_data  # beside this file

ROOT = Path(__file__).parents[1]
MINILM = "all-MiniLM-L6-v2"
FOLDERS = {"sst-2": "SST-2", "sts-b": "STS-B", "mrpc": "MRPC", "rte": "RTE", "cola": "CoLA"}


def weights(model: str) -> Path | str:
    """Where a model lies."""
    return minilm() if model == MINILM else model


def articles(path: Path) -> Iterator[list[str]]:
    """The paragraphs of WikiText's sections, without their headings."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        lines = (line.strip() for line in file)
        for is_text, group in groupby(lines, lambda line: bool(line) and not line.startswith("=")):
            if is_text:
                yield list(group)


def show(survey: Survey) -> None:
    """The map of labels and what was found."""
    for layer, labels in enumerate(survey.labels):
        print(f"layer {layer}: " + " ".join(f"{label:<10}" for label in labels))
    print("\n".join(summary_lines(survey)))
    for line in example_lines(survey):
        print("  " + ": ".join(line))


def measure_survey(arguments: argparse.Namespace) -> None:
    """Survey both halves and compare."""
    model, documents = load(weights(arguments.model)), list(articles(arguments.data / "wikitext-2" / "test.raw.gz"))
    settings = HeadSettings(sequences=arguments.sequences)
    halves = [survey_heads(model, documents[start::2], settings) for start in (0, 1)]
    for number, half in enumerate(halves, start=1):
        print(f"\nhalf {number}: {half.sequences} sequences, {half.tokens:,} tokens")
        show(half)
    print(f"\nheads with the same label on both halves: {agreement(*halves):.1%}")
    same_set = mean(set(one.labels) == set(two.labels) for one, two in zip(*(h.reports for h in halves), strict=True))
    pairs = [(one.label, two.label) for one, two in zip(*(half.reports for half in halves), strict=True)]
    rest = [one == two for one, two in pairs if {one, two} != {"separators"}]
    print(f"of the {len(rest)} that are not called after separators on both: {mean(rest):.1%}")
    print(f"heads with the same labels, all of them, on both halves: {same_set:.1%}")
    if arguments.out:
        name = Path(arguments.model).name
        write_survey(halves[0], name, arguments.out / name)


def measure_pruning(arguments: argparse.Namespace) -> None:
    """Fine-tune, then take heads away in several orders."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        task = arguments.data / "glue" / FOLDERS[arguments.task]
        folder = first_rows(task, scratch / "rows", arguments.rows, arguments.dev_rows)
        source, spec = Source(arguments.task, folder), find_task(arguments.task)
        settings = FinetuneSettings(epochs=arguments.epochs)
        model = load(run_finetuning(source, weights(arguments.model), scratch / "run", settings=settings))
        names = model.task.names if model.task else None
        train, dev = (read_examples(source, names or None, split) for split in ("train", "dev"))
    assert isinstance(train, LabelledTexts)
    assert train.targets is not None

    def score() -> float:
        return evaluate_examples(model, spec.kind, dev, spec.metrics).metrics[spec.metrics[0]]

    # Importance comes from training rows: the dev rows that it is judged on have had no part in it.
    rows = slice(arguments.importance_rows)
    pairs = None if train.pairs is None else train.pairs[rows]
    worth = head_importance(model, train.texts[rows], pairs, [float(one) for one in train.targets[rows]])
    curves = {
        "least important first": [pruning_curve(model, least_important_first(worth), score)],
        "most important first": [pruning_curve(model, least_important_first(-worth), score)],
        "random orders": [pruning_curve(model, random_order(model, seed), score) for seed in range(arguments.orders)],
    }
    if arguments.each:
        costs = removal_costs(model, score)
        print(f"one head alone costs {costs.min():+.4f} to {costs.max():+.4f} of {score():.4f}")
    print(f"\n{arguments.task}, {spec.metrics[0]}, by the share of {worth.size} heads that is gone")
    print(f"{'gone':>6}" + "".join(f"{name:>24}" for name in curves) + f"{'random, low to high':>24}")
    for step, share in enumerate(curves["random orders"][0].shares):
        columns = [[curve.scores[step] for curve in group] for group in curves.values()]
        span = f"{min(columns[-1]):.4f} to {max(columns[-1]):.4f}"
        print(f"{share:>6.0%}" + "".join(f"{mean(column):>24.4f}" for column in columns) + f"{span:>24}", flush=True)
    if arguments.out:
        folder = arguments.out / Path(arguments.model).name
        folder.mkdir(parents=True, exist_ok=True)
        draw_curves(curves, spec.metrics[0], folder / "pruning.png")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["survey", "pruning"])
    add_data(parser)
    parser.add_argument("--model", default=MINILM, help="a model folder, or cloze-mini")
    parser.add_argument("--sequences", type=int, default=HeadSettings.sequences)
    parser.add_argument("--task", default="sst-2", choices=FOLDERS)
    parser.add_argument("--rows", type=int, default=4000, help="the first so many of train")
    parser.add_argument("--dev-rows", type=int, help="the first so many of dev; all if left out")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--importance-rows", type=int, default=500)
    parser.add_argument("--orders", type=int, default=5, help="random ones")
    parser.add_argument("--each", action="store_true", help="also leave out each head alone")
    parser.add_argument("--out", type=Path, help="a folder; the pictures go into one called after the model in it")
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    arguments.data = find_data(arguments.data, "wikitext-2/test.raw.gz", "glue")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    (measure_survey if arguments.what == "survey" else measure_pruning)(arguments)


if __name__ == "__main__":
    main()
