"""``cloze adapt``."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cloze.cli.console import Machine, Reporter, print_json, print_table
from cloze.models import SHIPPED_MODEL
from cloze.tasks.source import RowSettings
from cloze.train.adapt_settings import AdaptSettings
from cloze.train.settings import FinetuneSettings

HERE = Machine()
ROWS = RowSettings()


def adapt(
    *,
    domain: Annotated[list[Path], Parameter(consume_multiple=True)],
    task: Annotated[tuple[str, Path], Parameter(help="A task and its data, as for finetune: --task classify rows.csv")],
    model: str = SHIPPED_MODEL,
    out: Path,
    dev: Path | None = None,
    test: Path | None = None,
    rows: Annotated[RowSettings, Parameter(name="*")] = ROWS,
    fresh: bool = False,
    adaptation: Annotated[AdaptSettings, Parameter(name="*")] = AdaptSettings(),  # noqa: B008 (frozen)
    settings: Annotated[FinetuneSettings, Parameter(name="*")] = FinetuneSettings(),  # noqa: B008 (frozen)
    machine: Annotated[Machine, Parameter(name="*")] = HERE,
    json: bool = False,
) -> None:
    """Let a model read a field's text and a task's own, then fine-tune it; and say what each step brought.

    Args:
        domain: Text of the field: plain, a blank line between documents; or JSONL or Parquet, with a column text.
        model: The model folder or run to start from, or a hub name.
        out: The run's folder. The same command goes on where it stopped.
        dev: Rows to score on; without it, a tenth of the training rows is kept for that.
        test: Of files of your own: more rows that must not occur in the text, with or without labels.
        fresh: Start over, forgetting what is in the run's folder.
        json: Print JSON.
    """
    from cloze.files import read_json
    from cloze.train.finetuning.domain_adaptation import adapt as run

    source = rows.source(*task, dev)
    with Reporter() as reporter:
        folder = run(
            source,
            domain,
            model,
            out,
            test=test,
            adaptation=adaptation,
            settings=settings,
            device=machine.use(),
            fresh=fresh,
            progress=reporter,
        )
    results = read_json(folder / "eval_results.json")
    if json:
        print_json(results)
        return
    table = [
        (name, f"{row['mean']:.4f} ± {row['deviation']:.4f}", f"{row['brought']:+.4f}", len(row["failed"]))
        for name, row in results["starts"].items()
    ]
    print_table(("start", results["metric"], "brought", "failed"), table)
    print(f"{folder}: the best model, that of {results['best']}")
