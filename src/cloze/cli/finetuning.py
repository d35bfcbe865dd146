"""``cloze finetune`` and ``evaluate``; tables of several runs: a grid, seeds, folds, or all of GLUE or CLUE."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from cloze.cli.console import (
    InferenceMachine,
    Machine,
    Reporter,
    print_json,
    print_results,
    print_scores,
    print_table,
    shorten,
)
from cloze.cli.outputs import check_folder
from cloze.cli.retrieval import (
    check_longest,
    check_precision,
    check_report,
    evaluate_blanks,
    evaluate_vectors,
    vector_tasks,
    write_report_page,
)
from cloze.cli.word_prediction import SETTINGS, evaluate_correction
from cloze.errors import ConfigError
from cloze.models import SHIPPED_MODEL
from cloze.tasks.correction.kind import CORRECTION_NAME, CorrectionSettings
from cloze.tasks.retrieval.kind import RETRIEVAL_NAME, RetrievalSettings
from cloze.tasks.rows import RowSettings, Source
from cloze.train.finetuning.settings import FinetuneSettings, RankingSettings, SearchSettings, check_ranking_settings
from cloze.train.settings import MlmEvaluationSettings

if TYPE_CHECKING:
    from cloze.predict import Evaluation


def print_search(folder: Path, json: bool) -> None:
    """Print the results of a search."""
    from cloze.files import read_json

    results = read_json(folder / "eval_results.json")
    if json:
        print_json(results)
    elif "tasks" in results:
        _print_suite(results)
    else:
        from cloze.tasks.reports import headline, verdict

        best = results.get("best_results", {})  # missing in results of early versions
        if (first := headline(best)) is not None:
            print(f"{results['best']}: {first}")
        _print_cells(read_json(folder / "search.json")["cells"], results)
        if first is None and best.get("baseline"):
            print(f"{results['best']}: {verdict(best)}")
        kept = results.get("kept", results["best"])  # missing in results of early versions
        print(f"{folder}: the model of {kept}, search.json, search.png")


def _print_suite(results: dict[str, Any]) -> None:
    rows = []
    for task, score in results["tasks"].items():
        ends = _ends(score.get("interval"))
        rows.append((task, score["metric"], f"{score['mean']:.4f}", f"{score['deviation']:.4f}", ends))
        if "mismatched" in score:  # only for the model that is kept
            ends = _ends(score.get("mismatched_interval"))
            rows.append((f"{task}, mismatched", score["metric"], f"{score['mismatched']:.4f}", "best run alone", ends))
    average = ("average", "", f"{results['average']:.4f}", "", _ends(results.get("average_interval")))
    print_table(("task", "metric", "mean", "deviation", "95 % interval"), [*rows, average])


def _print_cells(cells: list[dict[str, Any]], results: dict[str, Any]) -> None:
    metric, grid = results["metric"], results.get("grid")
    rows = [
        (cell["part"], cell["name"], f"{cell['score']:.4f}", _ends(cell.get("interval")), _note(cell, grid))
        for cell in cells
    ]
    print_table(("part", "run", metric, "95 % interval over rows", ""), rows)
    if grid is not None:
        level, others = len(grid["within_noise"]), grid["settings"] - 1
        print(f"{level} of the other {others} settings are within noise of the best, {grid['best']}")
    if any(cell.get("interval") is None and cell["failed"] != "diverged" for cell in cells):
        print("runs without an interval have no scores per row, such as those of version 0.1")
    spread = f"{results['mean']:.4f} ± {results['deviation']:.4f} over {results['runs']} runs"
    print(f"{metric}: {spread}, {results['least']:.4f} to {results['most']:.4f}; failed: {len(results['failed'])}")
    if results.get("interval") is not None:
        print(_describe_mean(results))


def _note(cell: dict[str, Any], grid: dict[str, Any] | None) -> str:
    """Return why a cell failed, or how it compares with the best of the grid."""
    if cell["failed"]:
        return f"failed: {cell['failed']}"
    if grid is None or cell["part"] != "grid":
        return ""
    return "best" if cell["name"] == grid["best"] else "within noise" if cell["name"] in grid["within_noise"] else ""


def _describe_mean(results: dict[str, Any]) -> str:
    """Describe the mean with its interval: over rows and seeds, only rows (one seed), or folds."""
    alone = results["interval_over_runs"]
    seeds = f"; over seeds alone {_ends(alone)}" if results["interval_of"] == "rows and seeds" else ""
    mean = f"{results['metric']}: mean {results['mean']:.4f}"
    return f"{mean}, 95 % interval {_ends(results['interval'])} over {results['interval_of']}{seeds}"


def _ends(interval: list[float] | None) -> str:
    """Return an interval as text; runs of version 0.1 have none."""
    return "" if interval is None else f"{interval[0]:.4f} to {interval[1]:.4f}"


@dataclass(frozen=True)
class FinetuneFlags(FinetuneSettings):
    """The fine-tuning settings as flags, with a flag to turn off the baseline, which is on by default."""

    baseline: Annotated[bool, Parameter(negative="--no-baseline")] = FinetuneSettings.baseline
    few: Annotated[
        bool | None,
        Parameter(
            help="For classify, multilabel and regress: fit only a linear head on sentence vectors; by default, with "
            "fewer than 500 rows, both this and fine-tuning are tried and the better model is kept."
        ),
    ] = FinetuneSettings.few


@dataclass(frozen=True)
class LabelErrorFlags:
    """Flags of the search for label errors."""

    label_errors: bool = False
    """For classify: instead of evaluating the model, find rows that are probably mislabelled (out of fold)."""
    folds: int = 5
    """With --label-errors: number of folds."""
    method: Literal["linear", "finetune"] = "linear"
    """With --label-errors: linear (a linear head on the model's vectors) or finetune (slower; once per fold)."""

    def check(self, task: str, report: Path | None, abstain_at: float | None) -> None:
        """Refuse settings without --label-errors, and those that have no effect with it."""
        for name in ("folds", "method") if not self.label_errors else ():
            if (value := getattr(self, name)) != getattr(LabelErrorFlags, name):
                raise ConfigError(f"--{name} is {value}, which only applies to --label-errors; leave it out")
        if self.label_errors and task in ("mlm", CORRECTION_NAME, *vector_tasks()):
            raise ConfigError(f"--label-errors only applies to classify; leave it out for {task}")
        for flag, other in (("--report", report), ("--abstain-at", abstain_at)) if self.label_errors else ():
            if other is not None:
                raise ConfigError(f"{flag} {other} has no effect with --label-errors; leave out one of the two")


# Number of probable label errors that a table shows.
_SHOWN_ERRORS = 20
Place = Annotated[Machine, Parameter(name="*")]
HERE = Machine()
INFERENCE = InferenceMachine()
ROWS = RowSettings()
TASKS = (
    "classify, multilabel, regress, tag, answer or choose for your own files; a published task such as mrpc, sst-2, "
    "squad, squad2, swag, conll, tnews or c3"
)
BLANKS = MlmEvaluationSettings()


def finetune(
    task: Annotated[
        str,
        Parameter(
            help=f"{TASKS}; similarity, retrieval, rerank or correction; or glue or clue for all tasks of a suite."
        ),
    ],
    data: Annotated[Path, Parameter(help="A file of your own, or the folder of a published task.")],
    /,
    *,
    model: str | None = None,
    out: Path,
    dev: Path | None = None,
    rows: Annotated[RowSettings, Parameter(name="*")] = ROWS,
    fresh: bool = False,
    search: Annotated[SearchSettings, Parameter(name="*")] = SearchSettings(),  # noqa: B008 (frozen)
    settings: Annotated[FinetuneFlags, Parameter(name="*")] = FinetuneFlags(),
    no_few: bool = False,
    similarity: Annotated[RankingSettings, Parameter(name="*")] = RankingSettings(),  # noqa: B008 (frozen)
    machine: Place = HERE,
    json: bool = False,
) -> None:
    """Fine-tune a model on a task. Re-running the same command resumes it.

    'cloze finetune TASK --help' lists only the flags of that task.

    Args:
        model: The model folder or run to start from, or a model or hub name; by default, the shipped model that suits
            the task.
        out: The folder of the run.
        dev: Rows to evaluate on; by default, a tenth of the training rows is held out.
        fresh: Start over, discarding the contents of the run's folder.
        no_few: For classify, multilabel and regress: do not try a linear head on sentence vectors, even with few rows.
        json: Print JSON.
    """
    check_folder(out)
    if no_few and settings.few:
        raise ConfigError("--few and --no-few exclude each other; leave out one of them")
    settings = replace(settings, few=False) if no_few else settings
    task = task.lower()
    run, source = _choose(task, search, similarity), rows.source(task, data, dev)
    with Reporter() as reporter:
        if model is None:
            from cloze.tasks.registry import announce_default_model

            model = announce_default_model(task, reporter)
        folder = run(source, model, out, settings=settings, device=machine.use(), fresh=fresh, progress=reporter)
    print_search(folder, json) if task in ("glue", "clue") or search.several else print_results(folder, json)


def _choose(task: str, search_settings: SearchSettings, similarity: RankingSettings) -> Callable[..., Path]:
    """Return the function for one run, a search over several, or all of GLUE or CLUE."""
    from cloze.tasks.registry import is_unlabelled

    check_ranking_settings(task, similarity)
    if is_unlabelled(task) and search_settings.several:
        raise ConfigError(f"{task} is one run; leave out --grid, --seeds and --folds")
    if task in ("glue", "clue"):
        from cloze.train.finetuning.glue import finetune_clue, finetune_glue

        return partial(finetune_glue if task == "glue" else finetune_clue, search_settings=search_settings)
    if search_settings.several:
        from cloze.train.finetuning.search import search

        return partial(search, search_settings=search_settings)
    from cloze.train.finetuning.finetune import run_finetuning

    return partial(run_finetuning, similarity=similarity)


def evaluate(
    task: Annotated[
        str,
        Parameter(
            help=f"{TASKS}; correction; similarity, retrieval or clustering (any vectors); or mlm (masked words)."
        ),
    ],
    data: Annotated[
        list[Path],
        Parameter(help="A file of your own, the folder of a published task, or of BEIR for retrieval; texts for mlm."),
    ],
    /,
    *,
    model: str | None = None,
    out: Path | None = None,
    split: str = "dev",
    longest_answer: int | None = None,
    abstain_at: float | None = None,
    quality: Annotated[LabelErrorFlags, Parameter(name="*")] = LabelErrorFlags(),
    rows: Annotated[RowSettings, Parameter(name="*")] = ROWS,
    blanks: Annotated[MlmEvaluationSettings, Parameter(name="*")] = BLANKS,
    correction: Annotated[CorrectionSettings, Parameter(name="*")] = SETTINGS,
    retrieval: Annotated[RetrievalSettings, Parameter(name="*")] = RetrievalSettings(),  # noqa: B008 (frozen)
    report: Path | None = None,
    machine: Annotated[InferenceMachine, Parameter(name="*")] = INFERENCE,
    json: bool = False,
) -> None:
    """Evaluate a fine-tuned model with the official metrics, the vectors of any model, or its loss on masked words.

    'cloze evaluate TASK --help' lists only the flags of that task.

    Args:
        model: The fine-tuned model folder or run; for similarity and mlm, by default the shipped model that suits it.
        out: A folder for eval_results.json and predictions.tsv.
        split: For published tasks: dev, dev_mismatched or test; predictions for GLUE's test rows are written to --out.
            For retrieval: the judgements of the folder; by default those of dev, or else of test.
        longest_answer: For answer: maximum answer length in tokens; by default, as the model was fine-tuned, or 30.
        abstain_at: For classify: an error rate. The model then gives no label below the probability above which new
            rows have at most this error rate (95 % certain); stored in the model's folder.
        report: An HTML file with the scores, and the worst rows or queries.
        json: Print JSON.
    """
    from cloze.predict import evaluate as run
    from cloze.tasks.classification.published import is_glue_task

    check_folder(out)
    task = task.lower()
    check_report(task, report)
    _check_flags(task, split, blanks, correction, retrieval)
    check_precision(task, machine)
    check_longest(task, longest_answer)
    if model is None:
        from cloze.tasks.registry import default_model

        model = SHIPPED_MODEL if task == "mlm" else default_model(task)
    quality.check(task, report, abstain_at)
    if abstain_at is not None:
        from cloze.predict.evaluation import check_abstention

        check_abstention(task, abstain_at, model)
    if task == "mlm" and rows.columns is not None:
        raise ConfigError(f"--columns is {rows.columns!r}, which only applies to rows of a task; leave it out for mlm")
    if task == "mlm":
        evaluate_blanks(data, model, out, rows, blanks, machine, json)
        return
    if len(data) > 1:
        raise ConfigError(f"{task} takes one file or folder, not {len(data)}; only mlm accepts several texts")
    if task == CORRECTION_NAME:
        evaluate_correction(data[0], model, out, rows, correction, machine, json)
        return
    source = rows.source(task, data[0])
    if quality.label_errors:
        _find_label_errors(source, model, out, quality, machine, json)
        return
    if task in vector_tasks():
        evaluation = evaluate_vectors(source, model, split, retrieval, machine)
        _print_evaluation(evaluation, model, out, report, json)
        return
    if split == "test" and is_glue_task(task):
        _predict_test_rows(source, model, out, machine, json)
        return
    evaluation = run(model, source, split=split, device=machine.use(), longest=longest_answer, abstain_at=abstain_at)
    _print_evaluation(evaluation, model, out, report, json)


def _print_evaluation(evaluation: "Evaluation", model: str, out: Path | None, report: Path | None, json: bool) -> None:
    from cloze.predict import write_report

    if out is not None:
        write_report(evaluation, out)
    if report is not None:
        write_report_page(evaluation, model, report)
    results = evaluation.results()
    print_json(results) if json else print_scores(results)
    if not json and evaluation.notes:
        print(*evaluation.notes, sep="\n")


def _find_label_errors(
    source: Source, model: str, out: Path | None, quality: LabelErrorFlags, machine: Machine, json: bool
) -> None:
    """Print the probable label errors, and write all rows as a ranked file and a page."""
    from dataclasses import asdict

    from cloze.inspect.views.page import write_label_errors
    from cloze.train.finetuning.label_quality import HOW, PAGE, TABLE, find_label_errors

    with Reporter() as reporter:
        found = find_label_errors(
            source, model=model, folds=quality.folds, method=quality.method, device=machine.use(), progress=reporter
        )
    rows = [asdict(row) for row in found.rows]
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        found.write(out / TABLE)
        notes = (
            f"Each row was predicted by a model that had not seen it ({HOW[found.method]}). Rows are sorted by the "
            "probability of their given label, the lowest first; probable errors are chosen by confident learning."
        )
        write_label_errors(rows, found.summary, notes, out / PAGE)
    if json:
        print_json({"accuracy": found.accuracy, "folds": found.folds, "method": found.method, "rows": rows})
        return
    shown = [
        (row.row, row.label, row.suggested, f"{row.probability:.4f}", shorten(" / ".join(row.texts)))
        for row in found.issues[:_SHOWN_ERRORS]
    ]
    print_table(("row", "given", "suggested", "probability", "text"), shown)
    print(found.summary)
    if out is not None:
        print(f"{out}: {TABLE}, {PAGE}")


def _check_flags(
    task: str, split: str, blanks: MlmEvaluationSettings, correction: CorrectionSettings, retrieval: RetrievalSettings
) -> None:
    """Reject flags that have no effect on this task."""
    for owner, settings in (("mlm", blanks), (CORRECTION_NAME, correction), (RETRIEVAL_NAME, retrieval)):
        for field in fields(settings) if task != owner else ():
            if (value := getattr(settings, field.name)) != field.default:
                flag = field.name.replace("_", "-")
                raise ConfigError(f"--{flag} is {value!r}, which only applies to {owner}; leave it out for {task}")
    if task in ("mlm", CORRECTION_NAME) and split != "dev":
        raise ConfigError(f"--split is {split!r}, which only applies to published tasks; leave it out for {task}")


def _predict_test_rows(source: Source, model: str, out: Path | None, machine: Machine, json: bool) -> None:
    from cloze.predict.evaluation import answer_test_rows

    if out is None:
        raise ConfigError(f"the labels of {source.task}'s test rows are not published; give --out for the answers")
    written = answer_test_rows(model, source, out, device=machine.use())
    print_json([str(path) for path in written]) if json else print(*written, sep="\n")
