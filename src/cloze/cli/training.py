"""``cloze prepare``, ``pretrain``, ``finetune`` and ``evaluate``."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cloze.cli.console import Machine, Reporter, print_json, print_table
from cloze.cli.outputs import write_rows
from cloze.corpus.settings import PrepareSettings
from cloze.tasks.source import OnBadRow, Source
from cloze.train.settings import FinetuneSettings, PretrainSettings

Place = Annotated[Machine, Parameter(name="*")]
HERE = Machine()


def prepare(
    texts: Annotated[list[Path], Parameter(help="Text files; a blank line between documents.")],
    /,
    *,
    vocab: Path,
    out: Path,
    settings: Annotated[PrepareSettings, Parameter(name="*")] = PrepareSettings(),  # noqa: B008 (frozen)
    json: bool = False,
) -> None:
    """Split text into sentences, tokenize it, and store it so that training maps it into memory.

    Args:
        vocab: The folder with the vocabulary.
        out: The folder to write.
        json: Print JSON.
    """
    from cloze.corpus.prepare import prepare as run
    from cloze.corpus.shards import read_manifest

    with Reporter() as reporter:
        folder = run(texts, vocab, out, settings=settings, progress=reporter)
    splits = read_manifest(folder)["splits"]
    if json:
        print_json({"folder": str(folder), **splits})
        return
    names = ("documents", "sentences", "tokens")
    rows = [(split, *(f"{facts[name]:,}" for name in names)) for split, facts in splits.items()]
    print_table((str(folder), *names), rows)


def pretrain(
    data: Annotated[Path, Parameter(help="A folder that 'cloze prepare' wrote.")],
    /,
    *,
    out: Path,
    model: str | None = None,
    fresh: bool = False,
    settings: Annotated[PretrainSettings, Parameter(name="*")] = PretrainSettings(),  # noqa: B008 (frozen)
    machine: Place = HERE,
    json: bool = False,
) -> None:
    """Pre-train by masked words and next sentences. The same command goes on where it stopped.

    Args:
        out: The run's folder.
        model: A model folder to go on with, instead of a new model.
        fresh: Start over, forgetting what is in the run's folder.
        json: Print JSON.
    """
    from cloze.train.pretrain import pretrain as run

    with Reporter() as reporter:
        folder = run(data, out, model=model, settings=settings, device=machine.use(), fresh=fresh, progress=reporter)
    _print_results(folder, json)


def finetune(
    task: Annotated[str, Parameter(help="classify or regress for your own files; or cola, sst-2, mrpc, sts-b, ...")],
    data: Annotated[Path, Parameter(help="A CSV, TSV, JSONL or Parquet file, or GLUE's folder.")],
    /,
    *,
    model: str,
    out: Path,
    dev: Path | None = None,
    text: str = "text",
    pair: str | None = None,
    label: str = "label",
    on_bad_row: OnBadRow | None = None,
    fresh: bool = False,
    settings: Annotated[FinetuneSettings, Parameter(name="*")] = FinetuneSettings(),  # noqa: B008 (frozen)
    machine: Place = HERE,
    json: bool = False,
) -> None:
    """Fine-tune a model on a task. The same command goes on where it stopped.

    Args:
        model: The model folder or run to start from, or a hub name.
        out: The run's folder.
        dev: Rows to score on; without it, every tenth training row is kept for that.
        text: The column with the texts.
        pair: The column with second texts, if there are any.
        label: The column with the labels.
        on_bad_row: stop, or skip and count.
        fresh: Start over, forgetting what is in the run's folder.
        json: Print JSON.
    """
    from cloze.train.finetune import finetune as run

    source = Source(task, data, dev, text, pair, label, on_bad_row)
    with Reporter() as reporter:
        folder = run(source, model, out, settings=settings, device=machine.use(), fresh=fresh, progress=reporter)
    _print_results(folder, json)


def evaluate(
    task: Annotated[str, Parameter(help="classify or regress for your own files; or cola, sst-2, mrpc, sts-b, ...")],
    data: Annotated[Path, Parameter(help="A CSV, TSV, JSONL or Parquet file, or GLUE's folder.")],
    /,
    *,
    model: str,
    out: Path | None = None,
    split: str = "dev",
    text: str = "text",
    pair: str | None = None,
    label: str = "label",
    on_bad_row: OnBadRow | None = None,
    machine: Place = HERE,
    json: bool = False,
) -> None:
    """Score a fine-tuned model with the official metrics.

    Args:
        model: The fine-tuned model folder or run.
        out: A folder for eval_results.json and predictions.tsv.
        split: Which of GLUE's files: dev, or dev_mismatched.
        text: The column with the texts.
        pair: The column with second texts, if there are any.
        label: The column with the labels.
        on_bad_row: stop, or skip and count.
        json: Print JSON.
    """
    from cloze.files import replace_json
    from cloze.predict import evaluate as run

    source = Source(task, data, None, text, pair, label, on_bad_row)
    evaluation = run(model, source, split=split, device=machine.use())
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        replace_json(out / "eval_results.json", evaluation.results())
        told = zip(evaluation.places, evaluation.predictions, strict=True)
        write_rows(out / "predictions.tsv", [{"row": place, "prediction": answer} for place, answer in told])
    if json:
        print_json(evaluation.results())
    else:
        print_table(("metric", "value"), [(name, f"{value:.4f}") for name, value in evaluation.metrics.items()])


def _print_results(folder: Path, json: bool) -> None:
    from cloze.train.run import Run

    results = Run(folder).results()
    if json:
        print_json({"folder": str(folder), **results})
        return
    rows = [(name, f"{value:.4f}" if isinstance(value, float) else value) for name, value in results.items()]
    print_table((str(folder / "model"), ""), rows)
