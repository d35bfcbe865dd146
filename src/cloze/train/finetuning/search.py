"""Hyperparameter search (appendix A.3 of the paper): a grid, then several seeds of its best cell; or k folds.

Every cell is a separate run below RUN/cells and resumes like any run. When it ends, its score is written to
RUN/search.json, and its model is deleted unless it is the best of its part. A search may be killed at any point: the
same command continues it and produces the same table and model.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import mean
from typing import Any

from cloze.checkpoint import ModelFolder, base_files
from cloze.errors import ConfigError, DataError, format_option
from cloze.files import read_json, replace_json, replaced_file
from cloze.hardware import choose_device
from cloze.progress import Progress, Silent
from cloze.tasks.baselines import Baseline, fit_baselines
from cloze.tasks.comparisons import Resamples, read_interval, read_runs, runs_difference, summarize
from cloze.tasks.examples import fingerprint, split_fold
from cloze.tasks.intervals import Difference, paired_t_difference
from cloze.tasks.registry import TaskData, read_task
from cloze.tasks.reports import PREDICTIONS
from cloze.tasks.rows import Source
from cloze.train.driver import finetuning_precision
from cloze.train.finetuning.defaults import grid_settings, keep_recorded_length, resolve_task_settings
from cloze.train.finetuning.finetune import finetune_rows
from cloze.train.finetuning.settings import FinetuneSettings, ResolvedSettings, SearchSettings
from cloze.train.finetuning.trainable import load_checked_base
from cloze.train.optimization import DivergedError
from cloze.train.run import Run
from cloze.train.settings import PrecisionName

TABLE = "search.json"
CELLS = "cells"
ALL_ROWS = "all-rows"
DIVERGED = "diverged"
_LOWER_RATE = f"lower {format_option('learning_rate')}, with {format_option('fresh', True)}"


@dataclass(frozen=True)
class Cell:
    """One run of a search: its name, its part ("grid", "seeds", "folds" or "whole"), settings and rows."""

    name: str
    part: str
    settings: ResolvedSettings
    data: TaskData


@dataclass(frozen=True)
class CellResult:
    """The result of a cell, as written to the table."""

    name: str
    part: str
    score: float  # in the task's main metric
    results: Mapping[str, Any]
    failed: str | None  # reason of a failure: the cell predicts the same for all rows, or it diverged
    settings: Mapping[str, Any]
    interval: Sequence[float] | None = None  # 95 % interval over rows; tables of version 0.1 have none

    @property
    def diverged(self) -> bool:
        """Whether the training diverged and left no model."""
        return self.failed == DIVERGED


def search(
    source: Source,
    model: str | Path,
    out: str | Path,
    *,
    settings: FinetuneSettings | None = None,
    search_settings: SearchSettings | None = None,
    device: str | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Path:
    r"""Run a grid, several seeds or k folds, and keep the best model in the run's folder.

    With folds, each fold is scored by a model that was not trained on it. The final model is then trained on all rows;
    the mean over the folds estimates its score. The same call resumes an unfinished search.

    Args:
        source: The task and its files.
        model: The model folder to start from, a run, or a name.
        out: The run's folder.
        settings: The training settings of each cell; a grid replaces batch size, learning rate and epochs.
        search_settings: The grid, the number of seeds, or the number of folds.
        device: Where to train; by default an accelerator if there is one.
        fresh: Delete an existing run and start over.
        progress: Receives messages and progress.

    Returns:
        The run's folder; ``search.json`` has the scores of all cells, ``eval_results.json`` a summary.

    Raises:
        ConfigError: If the settings contradict each other, or differ from those of the run to resume.
        DataError: If rows cannot be read, or the training diverges in every cell.

    Example:
        >>> Path("train.csv").write_text("text,label\n" + "good,pos\nbad,neg\n" * 20)
        >>> source, seeds = cloze.Source("classify", Path("train.csv")), cloze.SearchSettings(seeds=2)
        >>> run = cloze.search(source, "cloze-mini", "runs/search", search_settings=seeds)
    """
    given, progress = keep_recorded_length(settings or FinetuneSettings(), out, fresh=fresh), progress or Silent()
    plan = search_settings or SearchSettings()
    data = _read_rows(source, given, plan)
    base = load_checked_base(data, model, given)
    for note in data.notes:
        progress.say(note)
    settings = resolve_task_settings(given, data, base, progress)
    recorded = {"command": "search", "model": str(Path(model)), **source.recorded(), "rows": len(data.train)}
    recorded |= {"content": fingerprint(data.train, data.dev), "base": base_files(model)}
    with Run.open(Path(out), recorded | asdict(plan) | asdict(settings), fresh=fresh) as run:
        if not run.report_finished(progress):
            table = _ResultTable(run.folder, progress, settings, device)
            # The baselines are fitted once, when the first cell ends; not for folds, which differ in their rows.
            settings = replace(settings, baseline=settings.baseline and not plan.folds)
            baselines = cache(partial(fit_baselines, data))
            train_cell = _CellTrainer(
                source, model, run.folder, device, progress, fit=not plan.folds, baselines=baselines
            )
            _run_cells(data, table, train_cell, given, replace(settings, precision=table.precision), plan, base)
            _finish(run, table, data.metrics[0], "folds" if plan.folds else "seeds")
        return run.folder


def _run_cells(
    data: TaskData,
    table: "_ResultTable",
    train_cell: "_CellTrainer",
    given: FinetuneSettings,
    settings: ResolvedSettings,
    plan: SearchSettings,
    base: ModelFolder,
) -> None:
    """Run the cells without a result: the folds and a model of all rows, or the grid and the seeds of its best cell."""
    if plan.folds:
        table.fill(fold_cells(data, settings, plan.folds), train_cell)
        if train_cell(Cell(ALL_ROWS, "whole", settings, data)).diverged:
            raise DivergedError(f"{train_cell.folder}: the training on all rows diverged; {_LOWER_RATE}")
        return
    if plan.grid:
        _report_unused(given, train_cell.progress)
        table.fill(grid_cells(data, settings, base.model.config.hidden_size), train_cell)
        settings = replace(settings, **_grid_values(table.best("grid").settings))
    table.fill(_seed_cells(data, settings, plan), train_cell)


def _read_rows(source: Source, settings: FinetuneSettings, plan: SearchSettings) -> TaskData:
    """Read the rows; with folds, no dev set is split off."""
    if settings.few and (plan.grid or (plan.seeds > 1 and not settings.contrastive)):
        flag, reason = ("grid", "learning rate") if plan.grid else ("seeds", "random start")
        raise ConfigError(f"{flag} only applies to fine-tuning; the head of few has no {reason}; leave out one of them")
    if plan.folds and source.dev is not None:
        raise ConfigError(
            f"folds only apply to rows without a dev set; leave out {format_option('dev')} or {format_option('folds')}"
        )
    if plan.folds and (settings.patience or settings.calibrate):
        either = f"{format_option('patience' if settings.patience else 'calibrate')} or {format_option('folds')}"
        raise ConfigError(f"each fold must be scored by a model that has not used it; leave out {either}")
    data = read_task(source, part=not plan.folds)
    if len(data.train) < plan.folds:
        raise ConfigError(f"{len(data.train)} rows cannot be split into {plan.folds} folds")
    return data


def _report_unused(settings: FinetuneSettings, progress: Progress) -> None:
    """Report the given settings that the grid replaces."""
    given = _grid_values(asdict(settings))
    unused = [f"{name} {value:g}" for name, value in given.items() if value is not None]
    if unused:
        progress.say(f"the grid sets batch size, learning rate and epochs itself; not used: {', '.join(unused)}")


def grid_cells(data: TaskData, settings: ResolvedSettings, hidden_size: int) -> Iterator[Cell]:
    """Yield the cells of a grid as large as the paper's, around the defaults for this model and number of rows."""
    for cell_settings in grid_settings(settings, hidden_size, len(data.train)):
        yield Cell(_cell_name(cell_settings), "grid", cell_settings, data)


def _seed_cells(data: TaskData, settings: ResolvedSettings, plan: SearchSettings) -> Iterator[Cell]:
    for seed in range(settings.seed, settings.seed + plan.seeds):
        cell_settings = replace(settings, seed=seed)
        # The grid has already run the first seed of its best cell: with the same name, that result is reused.
        in_grid = plan.grid and seed == settings.seed
        name = _cell_name(cell_settings) if in_grid else f"{_cell_name(cell_settings)}-seed-{seed}"
        yield Cell(name, "seeds", cell_settings, data)


def fold_cells(data: TaskData, settings: ResolvedSettings, folds: int) -> Iterator[Cell]:
    """Yield one cell per fold, scored by a model that was trained on the other folds."""
    for fold in range(folds):
        train, dev = split_fold(data.train, fold, folds)
        yield Cell(f"fold-{fold + 1}-of-{folds}", "folds", settings, replace(data, train=train, dev=dev))


def _cell_name(settings: ResolvedSettings) -> str:
    return f"batch-{settings.batch_size}-rate-{settings.learning_rate:g}-epochs-{settings.epochs}"


def _grid_values(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that the grid varies."""
    return {name: settings[name] for name in ("batch_size", "learning_rate", "epochs")}


@dataclass(frozen=True)
class _CellTrainer:
    """Trains the cells of the grid from one model on one task, each in its own folder."""

    source: Source
    model: str | Path
    folder: Path
    device: str | None
    progress: Progress
    fit: bool
    baselines: Callable[[], Sequence[Baseline]]

    def __call__(self, cell: Cell) -> CellResult:
        folder = self.folder / CELLS / cell.name
        try:
            finetune_rows(
                cell.data,
                self.source.recorded(),
                self.model,
                folder,
                settings=cell.settings,
                device=self.device,
                progress=self.progress,
                fit=self.fit,
                baselines=self.baselines,
            )
        except DivergedError as error:
            self.progress.say(f"{cell.name}: {error}")
            # There is no model to score: the score is 0.
            return CellResult(cell.name, cell.part, 0.0, {}, DIVERGED, _recorded_settings(cell))
        return read_cell_result(cell, folder)


def read_cell_result(cell: Cell, folder: Path) -> CellResult:
    """Return the result of a finished cell from its run's folder."""
    results = Run(folder).results()
    score, failed = float(results[cell.data.metrics[0]]), results.get("degenerate")
    return CellResult(cell.name, cell.part, score, results, failed, _recorded_settings(cell), read_interval(folder))


def _recorded_settings(cell: Cell) -> dict[str, Any]:
    return {**_grid_values(asdict(cell.settings)), "seed": cell.settings.seed}


def read_cells(folder: Path) -> list[CellResult]:
    """Return the table of a search's run."""
    return [CellResult(**row) for row in read_json(folder / TABLE)["cells"]]


class _ResultTable:
    """The results so far, saved on disk; only the best model of each part is kept."""

    def __init__(self, folder: Path, progress: Progress, settings: FinetuneSettings, device: str | None) -> None:
        self._folder, self._progress = folder, progress
        self._path = folder / TABLE
        saved = read_json(self._path) if self._path.is_file() else None
        self.rows = read_cells(folder) if saved else []
        # With precision "auto", the choice is measured once and recorded, so that all cells use the same one even after
        # a restart. (Tables of early versions do not record it.)
        if saved is not None:
            self.precision: PrecisionName = saved.get("precision", settings.precision)
        else:
            self.precision = finetuning_precision(settings, choose_device(device)).name
            self._write()

    def fill(self, cells: Iterator[Cell], train_cell: Callable[[Cell], CellResult]) -> None:
        """Run the cells that have no result yet."""
        for cell in cells:
            if any((row.name, row.part) == (cell.name, cell.part) for row in self.rows):
                continue
            same_run = next((row for row in self.rows if row.name == cell.name), None)
            row = replace(same_run, part=cell.part) if same_run else train_cell(cell)
            self.rows.append(row)
            self._write()
            self._progress.say(f"{cell.name}: {row.score:.4f}{' (failed)' if row.failed else ''}")
            self._remove_models()

    def best(self, part: str) -> CellResult:
        """Return the best cell of a part (the first one in a tie); a failed cell only if all failed.

        A model that predicts the same label for every row may have the best score: on MRPC, a constant "yes" has a
        higher F1 than many models that have learned something.
        """
        rows = [row for row in self.rows if row.part == part]
        return max(rows, key=lambda row: (not row.diverged, row.failed is None, row.score))

    def _write(self) -> None:
        replace_json(self._path, {"precision": self.precision, "cells": [asdict(row) for row in self.rows]})

    def _remove_models(self) -> None:
        """Remove all models except the best of each part; the others are never needed again."""
        best_names = {self.best(part).name for part in {row.part for row in self.rows}}
        for row in self.rows:
            if row.name not in best_names:
                shutil.rmtree(Run(self._folder / CELLS / row.name).model_folder, ignore_errors=True)


def _finish(run: Run, table: _ResultTable, metric: str, part: str) -> None:
    """Write the summary and the figure, then move the best model into place, which marks the run as finished."""
    rows = [row for row in table.rows if row.part == part]
    best = table.best(part)
    if best.diverged:
        raise DivergedError(f"{run.folder}: all {len(rows)} trainings diverged; {_LOWER_RATE}")
    kept = ALL_ROWS if part == "folds" else best.name
    best_cell = {"best": best.name, "best_results": best.results, "kept": kept}
    runs = None if part == "folds" else _read_runs(run.folder, rows)
    summary = summarize([row.score for row in rows], runs, metric, part)
    summary |= {"failed": [row.name for row in rows if row.failed], **_within_noise(run.folder, table)}
    run.write_results({"metric": metric, **summary, **best_cell})
    draw_search(table.rows, metric, run.folder / "search.png")
    predictions = run.folder / CELLS / kept / PREDICTIONS
    if kept != ALL_ROWS and predictions.is_file():  # the model on all rows has no dev rows to predict
        shutil.copyfile(predictions, run.folder / PREDICTIONS)
    Run(run.folder / CELLS / kept).model_folder.rename(run.model_folder)


def _within_noise(folder: Path, table: _ResultTable) -> dict[str, Any]:
    """Return the grid's settings whose score is within noise of the best, by a paired bootstrap on the dev rows."""
    rows = [row for row in table.rows if row.part == "grid"]
    best = table.best("grid") if rows else None
    rest = [row for row in rows if row.failed is None and row is not best]
    if best is None or (runs := _read_runs(folder, [best, *rest])) is None:
        return {}
    near = [row.name for row, run in zip(rest, runs[1:], strict=True) if not runs_difference(runs[:1], [run]).reliable]
    return {"grid": {"best": best.name, "settings": len(rows), "within_noise": near}}


def compare_searches(first: Path, second: Path) -> Difference | None:
    """Return by how much one search scores higher, paired by seed and row; only by seed without scores per row."""
    cells = [[row for row in read_cells(folder) if row.part == "seeds"] for folder in (first, second)]
    seeds = [[row.settings["seed"] for row in rows] for rows in cells]
    if not seeds[0] or seeds[0] != seeds[1]:
        raise DataError(f"{first} has the seeds {seeds[0]}, but {second} has {seeds[1]}; compare the same seeds")
    one, other = (_read_runs(folder, rows) for folder, rows in zip((first, second), cells, strict=True))
    scores = ([row.score for row in rows] for rows in cells)
    return runs_difference(one, other) if one and other else paired_t_difference(*scores)


def _read_runs(folder: Path, rows: Sequence[CellResult]) -> list[Resamples] | None:
    return read_runs([folder / CELLS / row.name for row in rows], [row.diverged for row in rows])


def draw_search(rows: Sequence[CellResult], metric: str, path: Path) -> None:
    """Draw a PNG: a heat map of the grid per batch size, and the seeds or folds as points with their mean."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    grid = [row for row in rows if row.part == "grid"]
    repeats = [row for row in rows if row.part != "grid"]
    batch_sizes = sorted({row.settings["batch_size"] for row in grid})
    columns = len(batch_sizes) + 1
    figure, axes = pyplot.subplots(1, columns, figsize=(4.2 * columns, 3.8), layout="constrained", squeeze=False)
    limits = (min(row.score for row in rows), max(row.score for row in rows))
    for axis, batch_size in zip(axes[0], batch_sizes, strict=False):
        _draw_heat_map(axis, [row for row in grid if row.settings["batch_size"] == batch_size], limits)
        axis.set_title(f"batch {batch_size}")
    _draw_points(axes[0][-1], repeats, metric)
    with replaced_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
    pyplot.close(figure)


def _draw_heat_map(axis: Any, rows: Sequence[CellResult], limits: tuple[float, float]) -> None:
    scores = {(row.settings["learning_rate"], row.settings["epochs"]): row.score for row in reversed(rows)}
    rates = sorted({rate for rate, _ in scores})
    epochs = sorted({epoch for _, epoch in scores})
    table = [[scores[rate, epoch] for epoch in epochs] for rate in rates]
    axis.imshow(table, cmap="viridis", vmin=limits[0], vmax=limits[1], aspect="auto")
    axis.set_xticks(range(len(epochs)), epochs)
    axis.set_yticks(range(len(rates)), [f"{rate:g}" for rate in rates])
    axis.set_xlabel("epochs")
    axis.set_ylabel("learning rate")
    for line, values in enumerate(table):
        for column, value in enumerate(values):
            colour = "black" if value > sum(limits) / 2 else "white"
            axis.text(column, line, f"{value:.3f}", ha="center", va="center", color=colour)


def _draw_points(axis: Any, rows: Sequence[CellResult], metric: str) -> None:
    scores = [row.score for row in rows]
    colours = ["tab:red" if row.failed else "tab:blue" for row in rows]
    axis.scatter(range(1, len(scores) + 1), scores, c=colours)
    axis.axhline(mean(scores), color="tab:gray", linestyle="--", label=f"mean {mean(scores):.4f}")
    axis.set_xticks(range(1, len(scores) + 1))
    axis.set_xlabel("fold" if rows[0].part == "folds" else "seed (red: failed)")
    axis.set_ylabel(metric)
    axis.legend()
