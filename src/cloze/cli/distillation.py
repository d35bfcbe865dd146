"""``cloze distill`` and ``cloze adapt``."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from cloze.cli.console import Machine, Reporter, print_json, print_table
from cloze.cli.finetuning import FinetuneFlags
from cloze.cli.outputs import check_folder
from cloze.models import SHIPPED_MODEL
from cloze.tasks.rows import RowSettings
from cloze.train.distillation.settings import DistillSettings
from cloze.train.finetuning.settings import AdaptSettings

HERE = Machine()


def distill(
    task: Annotated[str, Parameter(help="The task of the teacher, such as classify, tag or sst-2.")],
    data: Annotated[Path, Parameter(help="The rows of the task, as for finetune.")],
    /,
    *,
    model: str,
    out: Path,
    dev: Path | None = None,
    unlabelled: Path | None = None,
    fresh: bool = False,
    rows: Annotated[RowSettings, Parameter(name="*")] = RowSettings(),  # noqa: B008 (frozen)
    settings: Annotated[DistillSettings, Parameter(name="*")] = DistillSettings(),  # noqa: B008 (frozen)
    machine: Annotated[Machine, Parameter(name="*")] = HERE,
    json: bool = False,
) -> None:
    """Distill a fine-tuned model into a smaller one. Re-running the same command resumes it.

    Args:
        model: The teacher: a fine-tuned model folder or run, or a hub name.
        out: The folder of the run.
        dev: Rows to evaluate on; by default, a tenth of the training rows is held out.
        unlabelled: Further texts, labelled by the teacher: one text per line, or a table with the same columns.
        fresh: Start over, discarding the contents of the run's folder.
        json: Print JSON.
    """
    check_folder(out)
    from cloze.files import read_json
    from cloze.train.distillation.distill import REPORT
    from cloze.train.distillation.distill import distill as run

    with Reporter() as reporter:
        folder = run(
            rows.source(task, data, dev),
            model,
            out,
            unlabelled=unlabelled,
            settings=settings,
            device=machine.use(),
            fresh=fresh,
            progress=reporter,
        )
    report = read_json(folder / REPORT)
    if json:
        print_json({"folder": str(folder), **report})
    else:
        print_table((str(folder / "model"), "teacher", "student", "student / teacher"), _rows(report))
        print_difference(report)


def print_difference(report: dict[str, Any]) -> None:
    """Print whether the student is level with the teacher; reports of version 0.1 do not contain this."""
    from cloze.tasks.comparisons import read_difference

    difference = read_difference(report.get("difference", {}))
    if difference is not None:
        level = "" if difference.reliable else "; level with the teacher"
        print(f"student against teacher, {report['metric']}: {difference.in_points('difference')}{level}")


def _rows(report: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    teacher, student = report["teacher"], report["student"]

    def row(name: str, key: str, form: str, unit: float = 1) -> tuple[str, str, str, str]:
        before, after = teacher[key] / unit, student[key] / unit
        return name, form.format(before), form.format(after), f"{after / before:.2f}"

    kept = "" if report["kept"] is None else f"{report['kept']:.1%}"
    scores = [
        (name, f"{score:.4f}", f"{student['scores'][name]:.4f}", kept if name == report["metric"] else "")
        for name, score in teacher["scores"].items()
    ]
    return [
        row("layers", "layers", "{:.0f}"),
        row("parameters", "parameters", "{:,.0f}"),
        row("MiB", "bytes", "{:,.1f}", 2**20),
        row("rows per second", "rows_per_second", "{:,.1f}"),
        *scores,
    ]


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
    settings: Annotated[FinetuneFlags, Parameter(name="*")] = FinetuneFlags(),  # noqa: B008 (frozen)
    machine: Annotated[Machine, Parameter(name="*")] = HERE,
    json: bool = False,
) -> None:
    """Continue pre-training on domain and task text, then fine-tune; keep the stages with a significant gain.

    Args:
        domain: Domain text: text files with a blank line between documents, or JSONL or Parquet with a column text.
        model: The model folder or run to start from, or a hub name.
        out: The folder of the run. Re-running the same command resumes it.
        dev: Rows to evaluate on; by default, a tenth of the training rows is held out.
        test: For your own files: further rows that must not occur in the domain text, with or without labels.
        fresh: Start over, discarding the contents of the run's folder.
        json: Print JSON.
    """
    check_folder(out)
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
    else:
        print_starts(folder, results)


def print_starts(folder: Path, results: dict[str, Any]) -> None:
    """Print the gain of each starting model over direct fine-tuning, and which model is kept and why."""
    table = [
        (name, f"{row['mean']:.4f} ± {row['deviation']:.4f}", *_gain(row), len(row["failed"]))
        for name, row in results["starts"].items()
    ]
    print_table(("start", results["metric"], "gain", "95 % interval", "", "failed"), table)
    # Runs of version 0.1 kept the model with the best mean.
    print(results.get("reason", "the model with the best mean is kept"))
    print(f"{folder}: the model of {results.get('kept', results['best'])}")


def _gain(row: dict[str, Any]) -> tuple[str, str, str]:
    """Return the gain of a starting model over direct fine-tuning, its interval, and whether it is significant."""
    from cloze.tasks.comparisons import read_difference

    difference = read_difference(row)
    if difference is None:
        gain = row.get("gain", row.get("brought"))  # "brought" in version 0.1
        return ("" if gain is None else f"{gain:+.4f}", "", "")
    return f"{difference.value:+.4f}", f"{difference.low:+.4f} to {difference.high:+.4f}", difference.verdict
