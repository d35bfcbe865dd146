"""``cloze distill`` and ``cloze adapt``."""

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from cyclopts import Parameter

from cloze.cli.console import Machine, Reporter, print_json, print_table
from cloze.cli.finetuning import FinetuneFlags
from cloze.cli.outputs import check_folder
from cloze.errors import ConfigError
from cloze.models import SHIPPED_MODEL
from cloze.tasks.rows import RowSettings
from cloze.train.distillation.settings import AdaptSettings, DistillSettings, TextDistillSettings

Settings = TypeVar("Settings", DistillSettings, TextDistillSettings)
HERE = Machine()
TEXT = (
    "Instead of a task: raw text to distill on, as text, JSONL or Parquet files, or a folder written by prepare. With "
    "a task: the column with the texts, prompts or words, text by default."
)


@dataclass(frozen=True)
class DistillFlags(TextDistillSettings, DistillSettings):
    """The settings of distillation for a task and on raw text as flags; None stands for the default of either."""

    layers: int | None = None
    """Number of layers of a new student, initialized from the teacher; by default, half of the teacher's."""
    preset: str | None = None
    """Size of a new student: tiny, mini, small, medium, base or large; for a task, it is initialized randomly."""
    student: str | None = None
    """Another model as the student: a folder, a run or a hub name; for a task, with the same vocabulary."""
    epochs: int | None = None  # type: ignore[assignment]
    """Passes over the training rows or texts; by default 6 for a task, and 1 for texts."""
    learning_rate: float | None = None  # type: ignore[assignment]
    """Peak learning rate; by default 1e-4 for a task, and 1e-3 for texts (5e-4 above a hidden size of 384)."""
    cache: Annotated[bool, Parameter(negative="--no-cache", show_default=False)] = True
    """With --text, for vectors: compute the teacher's vectors once and store them in the run's folder (the default)."""

    def __post_init__(self) -> None:
        """Check nothing: the settings of the task or of the texts check their values."""

    def chosen(self, kind: type[Settings], purpose: str) -> Settings:
        """Return the settings of one kind; refuse flags that only the other kind has."""
        known, values = {field.name for field in fields(kind)}, {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value == field.default:
                continue
            if field.name not in known:
                flag = field.name.replace("_", "-")
                raise ConfigError(f"--{flag} is {value!r}, which has no effect {purpose}; leave it out")
            values[field.name] = value
        return kind(**values)


@dataclass(frozen=True)
class Columns(RowSettings):
    """How the rows of a task are read; ``--text`` is a parameter of the command itself, since it has two meanings."""

    text: Annotated[str, Parameter(parse=False)] = RowSettings.text


def distill(
    task: Annotated[str | None, Parameter(help="The task of the teacher, such as classify, tag or sst-2.")] = None,
    data: Annotated[Path | None, Parameter(help="The rows of the task, as for finetune.")] = None,
    /,
    *,
    model: str,
    out: Path,
    text: Annotated[list[str] | None, Parameter(consume_multiple=True, help=TEXT)] = None,
    dev: Path | None = None,
    unlabelled: Path | None = None,
    fresh: bool = False,
    rows: Annotated[Columns, Parameter(name="*")] = Columns(),
    settings: Annotated[DistillFlags, Parameter(name="*")] = DistillFlags(),
    machine: Annotated[Machine, Parameter(name="*")] = HERE,
    json: bool = False,
) -> None:
    """Distill a fine-tuned model into a smaller one, or with --text any model on raw text, without labels.

    Re-running the same command resumes it.

    Args:
        model: The teacher: a model folder or run, or a hub name; for a task, a fine-tuned one.
        out: The folder of the run.
        dev: Rows to evaluate on; by default, a tenth of the training rows is held out.
        unlabelled: Further texts, labelled by the teacher: one text per line, or a table with the same columns.
        fresh: Start over, discarding the contents of the run's folder.
        json: Print JSON.
    """
    if task is None and text and len(text) > 2 and _is_task(text[-2]):  # --text COLUMN TASK DATA
        *text, task, place = text
        data = Path(place)
    if task is None or data is None:
        if task is not None or not text:
            missing = "TASK" if task is None else "DATA"
            raise ConfigError(f"{missing} is missing; 'cloze distill --help' explains it")
        _refuse_rows(dev=dev, unlabelled=unlabelled, rows=rows)
        _distill_text(text, model, out, fresh, settings.chosen(TextDistillSettings, "with --text"), machine, json)
        return
    if text is not None and len(text) != 1:
        raise ConfigError(f"--text is {' '.join(text)}; with a task, it is the name of one column")
    check_folder(out)
    from cloze.files import read_json
    from cloze.train.distillation.distill import REPORT
    from cloze.train.distillation.distill import distill as run

    columns = rows if text is None else replace(rows, text=text[0])
    with Reporter() as reporter:
        folder = run(
            columns.source(task, data, dev),
            model,
            out,
            unlabelled=unlabelled,
            settings=settings.chosen(DistillSettings, "with a task"),
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


def _is_task(name: str) -> bool:
    from cloze.tasks.registry import find_task

    try:
        find_task(name)
    except ConfigError:
        return False
    return not Path(name).exists()


def _refuse_rows(*, dev: Path | None, unlabelled: Path | None, rows: Columns) -> None:
    """Refuse flags for the rows of a task."""
    given = {"dev": dev, "unlabelled": unlabelled, **asdict(rows)}
    for name, value in given.items():
        if value != getattr(Columns, name, None):
            raise ConfigError(f"--{name.replace('_', '-')} is {value}, which is for a task; leave it out with --text")


def _distill_text(
    texts: list[str],
    model: str,
    out: Path,
    fresh: bool,
    settings: TextDistillSettings,
    machine: Machine,
    json: bool,
) -> None:
    check_folder(out)
    from cloze.files import read_json
    from cloze.train.distillation.text_distillation import distill_text

    with Reporter() as reporter:
        device = machine.use()
        paths = [Path(text) for text in texts]
        folder = distill_text(paths, model, out, settings=settings, device=device, fresh=fresh, progress=reporter)
    results = read_json(folder / "eval_results.json")
    if json:
        print_json({"folder": str(folder), **results})
        return
    teacher, student = results.pop("teacher"), results.pop("student")
    sizes = [(name.replace("_", " "), f"{teacher[name]:,}", f"{size:,}") for name, size in student.items()]
    print_table((str(folder / "model"), "teacher", "student"), sizes)
    print_table(
        ("result", ""),
        [(name, f"{value:.4f}" if isinstance(value, float) else value) for name, value in results.items()],
    )


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
