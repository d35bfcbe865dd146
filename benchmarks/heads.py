"""Survey the attention patterns of heads, and measure which heads a task needs.

    python benchmarks/heads.py survey [--model cloze-mini] [--sequences 256] [--out FOLDER]
    python benchmarks/heads.py pruning [--model cloze-mini] [--task sst-2] [--rows 4000] [--orders 5] [--out FOLDER]

survey labels the heads on two halves of WikiText-2 (alternating documents). It prints the map of labels, the share of
heads with the same label on both halves, and an example of each pattern. pruning fine-tunes the model on a GLUE task
and removes heads step by step, the least important first and in random orders. The default model is all-MiniLM-L6-v2.
"""

import argparse
import gzip
import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from statistics import mean

import torch

from cloze.inspect import HeadSettings
from cloze.inspect.pruning import (
    draw_curves,
    head_importance,
    least_important_first,
    pruning_curve,
    random_order,
    removal_costs,
)
from cloze.inspect.survey import Survey, agreement, survey_heads
from cloze.inspect.survey_report import example_lines, summary_lines, write_survey
from cloze.predict import evaluate_examples, load
from cloze.tasks.classification.kind import LabelledTexts
from cloze.tasks.registry import find_task, read_examples
from cloze.tasks.rows import Source
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.settings import FinetuneSettings
from first_rows import first_rows  # module in benchmarks/
from minilm import minilm
from public_data import add_data, find_data  # module in benchmarks/

ROOT = Path(__file__).parents[1]
MINILM = "all-MiniLM-L6-v2"
FOLDERS = {"sst-2": "SST-2", "sts-b": "STS-B", "mrpc": "MRPC", "rte": "RTE", "cola": "CoLA"}


def weights(model: str) -> Path | str:
    """Return the folder of a model."""
    return minilm() if model == MINILM else model


def articles(path: Path) -> Iterator[list[str]]:
    """Return the paragraphs of WikiText's sections, without headings."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        lines = (line.strip() for line in file)
        for is_text, group in groupby(lines, lambda line: bool(line) and not line.startswith("=")):
            if is_text:
                yield list(group)


def show(survey: Survey) -> None:
    """Print the map of labels and the summary of a survey."""
    for layer, labels in enumerate(survey.labels):
        print(f"layer {layer}: " + " ".join(f"{label:<10}" for label in labels))
    print("\n".join(summary_lines(survey)))
    for line in example_lines(survey):
        print("  " + ": ".join(line))


def measure_survey(arguments: argparse.Namespace) -> None:
    """Survey both halves and compare the labels."""
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
    print(f"of the {len(rest)} that do not attend to separators on both halves: {mean(rest):.1%}")
    print(f"heads with the same set of labels on both halves: {same_set:.1%}")
    if arguments.out:
        name = Path(arguments.model).name
        write_survey(halves[0], name, arguments.out / name)


def measure_pruning(arguments: argparse.Namespace) -> None:
    """Fine-tune the model, then remove heads in several orders."""
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

    # Importance is computed on training rows, so that the dev rows stay unseen.
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
        print(f"removing one head changes the score by {costs.min():+.4f} to {costs.max():+.4f} of {score():.4f}")
    print(f"\n{arguments.task}, {spec.metrics[0]}, by the share of the {worth.size} heads that is removed")
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
    """Parse the arguments, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["survey", "pruning"])
    add_data(parser)
    parser.add_argument("--model", default=MINILM, help="a model folder, or cloze-mini")
    parser.add_argument("--sequences", type=int, default=HeadSettings.sequences)
    parser.add_argument("--task", default="sst-2", choices=FOLDERS)
    parser.add_argument("--rows", type=int, default=4000, help="number of training rows, from the start of the file")
    parser.add_argument("--dev-rows", type=int, help="number of dev rows, from the start of the file (default: all)")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--importance-rows", type=int, default=500)
    parser.add_argument("--orders", type=int, default=5, help="random ones")
    parser.add_argument("--each", action="store_true", help="also remove each head alone")
    parser.add_argument("--out", type=Path, help="folder for the pictures, in a subfolder named after the model")
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    arguments.data = find_data(arguments.data, "wikitext-2/test.raw.gz", "glue")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    (measure_survey if arguments.what == "survey" else measure_pruning)(arguments)


if __name__ == "__main__":
    main()
