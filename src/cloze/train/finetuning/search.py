"""The search of the paper (appendix A.3): a grid of settings, then the best of them over several seeds; or k folds.

Each cell is a run of its own below RUN/cells, which goes on where it stopped; what it scored is written down in
RUN/search.json once it is over, and its model is kept only while no other is better. So the whole can be killed at any
point, and the same command ends with the same table and the same model.

A search as a picture: the grid's cells by rate and epochs, and the seeds or folds as points with their mean.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from cloze.errors import ConfigError
from cloze.files import read_json, replace_json, replaced_file
from cloze.predict import choose_device
from cloze.progress import Progress, Silent
from cloze.tasks.examples import fingerprint, split_fold
from cloze.tasks.registry import TaskData, read_task
from cloze.tasks.rows import Source
from cloze.train.finetuning.checks import check_task
from cloze.train.finetuning.finetune import finetune_rows
from cloze.train.finetuning.settings import FinetuneSettings, SearchSettings
from cloze.train.optimization import DivergedError
from cloze.train.recipe import finetuning_precision
from cloze.train.run import Run
from cloze.train.settings import PrecisionName


def draw_search(rows: Sequence["Scored"], metric: str, path: Path) -> None:
    """Write a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    grid = [row for row in rows if row.part == "grid"]
    others = [row for row in rows if row.part != "grid"]
    batches = sorted({row.settings["batch_size"] for row in grid})
    figure, axes = pyplot.subplots(
        1, len(batches) + 1, figsize=(4.2 * (len(batches) + 1), 3.8), layout="constrained", squeeze=False
    )
    limits = (min(row.score for row in rows), max(row.score for row in rows))
    for axis, batch in zip(axes[0], batches, strict=False):
        _cells(axis, [row for row in grid if row.settings["batch_size"] == batch], limits)
        axis.set_title(f"batch {batch}")
    _points(axes[0][-1], others, metric)
    with replaced_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
    pyplot.close(figure)


def _cells(axis: Any, rows: Sequence["Scored"], limits: tuple[float, float]) -> None:
    rates = sorted({row.settings["learning_rate"] for row in rows})
    epochs = sorted({row.settings["epochs"] for row in rows})
    table = [[_of(rows, rate, epoch) for epoch in epochs] for rate in rates]
    axis.imshow(table, cmap="viridis", vmin=limits[0], vmax=limits[1], aspect="auto")
    axis.set_xticks(range(len(epochs)), epochs)
    axis.set_yticks(range(len(rates)), [f"{rate:g}" for rate in rates])
    axis.set_xlabel("epochs")
    axis.set_ylabel("learning rate")
    middle = sum(limits) / 2
    for line, values in enumerate(table):
        for column, value in enumerate(values):
            colour = "black" if value > middle else "white"
            axis.text(column, line, f"{value:.3f}", ha="center", va="center", color=colour)


def _of(rows: Sequence["Scored"], rate: float, epochs: int) -> float:
    return next(row.score for row in rows if (row.settings["learning_rate"], row.settings["epochs"]) == (rate, epochs))


def _points(axis: Any, rows: Sequence["Scored"], metric: str) -> None:
    scores = [row.score for row in rows]
    colours = ["tab:red" if row.failed else "tab:blue" for row in rows]
    axis.scatter(range(1, len(scores) + 1), scores, c=colours)
    axis.axhline(mean(scores), color="tab:gray", linestyle="--", label=f"mean {mean(scores):.4f}")
    axis.set_xticks(range(1, len(scores) + 1))
    axis.set_xlabel("fold" if rows[0].part == "folds" else "seed (red: failed)")
    axis.set_ylabel(metric)
    axis.legend()


TABLE = "search.json"
CELLS = "cells"
WHOLE = "all-rows"
DIVERGED = "diverged"
BATCHES, RATES, EPOCHS = (16, 32), (5e-5, 3e-5, 2e-5), (2, 3, 4)
# Where the model itself is frozen, what is new can take larger steps, and needs them.
FROZEN_RATES = (3e-3, 1e-3, 3e-4)


@dataclass(frozen=True)
class Cell:
    """One run of a search: its name, its settings, its part ("grid", "seeds" or "folds") and its rows."""

    name: str
    part: str
    settings: FinetuneSettings
    data: TaskData


@dataclass(frozen=True)
class Scored:
    """What came out of a cell."""

    name: str
    part: str
    score: float  # by the metric that counts
    results: Mapping[str, Any]
    failed: str | None  # why it counts as failed: its training never left the start, or went astray
    settings: Mapping[str, Any]

    @property
    def diverged(self) -> bool:
        """Whether there is no model."""
        return self.failed == DIVERGED


def search(
    source: Source,
    model: str | Path,
    out: str | Path,
    *,
    settings: FinetuneSettings | None = None,
    how: SearchSettings | None = None,
    device: str | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Run the grid, the seeds or the folds, and leave the best model in the run's folder.

    Folds are scores of rows that their model has not seen; the model that is left is trained on all rows, and what to
    expect of it is the mean over the folds.
    """
    settings, how, progress = settings or FinetuneSettings(), how or SearchSettings(), progress or Silent()
    data = _read(source, settings, how)
    check_task(data, model, settings)
    for note in data.notes:
        progress.say(note)
    asked = {"command": "search", "model": str(Path(model)), **source.recorded(), "rows": len(data.train)}
    asked["content"] = fingerprint(data.train, data.dev)
    run = Run.open(Path(out), asked | asdict(how) | asdict(settings), fresh=fresh)
    if run.finished:
        progress.say(f"{run.folder}: finished already; use --fresh to start over")
        return run.folder

    found = _Table(run.folder, progress, settings, device)
    settings = replace(settings, precision=found.precision)
    score = _Scoring(source, model, run.folder, device, progress, fit=not how.folds)
    if how.folds:
        found.fill(_folds(data, settings, how.folds), score)
        if score(Cell(WHOLE, "whole", settings, data)).diverged:
            raise DivergedError(f"{run.folder}: the training on all rows diverged; lower --learning-rate, with --fresh")
    else:
        if how.grid:
            _tell_unused(settings, progress)
            found.fill(_grid(data, settings), score)
            settings = replace(settings, **_varied(found.best("grid").settings))
        found.fill(_seeds(data, settings, how), score)
    _finish(run, found, data.metrics[0], "folds" if how.folds else "seeds")
    return run.folder


@dataclass(frozen=True)
class _Scoring:
    """Trains cells from one start on one task, each in a folder of its own."""

    source: Source
    model: str | Path
    folder: Path
    device: str | None
    progress: Progress
    fit: bool

    def __call__(self, cell: Cell) -> Scored:
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
            )
        except DivergedError as error:
            self.progress.say(f"{cell.name}: {error}")
            return _diverged(cell)
        return _scored(cell, folder)


def _read(source: Source, settings: FinetuneSettings, how: SearchSettings) -> TaskData:
    """The rows; folds are made of all of them, and of nothing that has been looked at."""
    if how.folds and source.dev is not None:
        raise ConfigError("folds are for rows without a dev set; leave out --dev or --folds")
    if how.folds and (settings.patience or settings.calibrate):
        asked_too = "--patience" if settings.patience else "--calibrate"
        raise ConfigError(f"a fold is scored by a model that has not looked at it; leave out {asked_too} or --folds")
    data = read_task(source, part=not how.folds)
    if len(data.train) < how.folds:
        raise ConfigError(f"{len(data.train)} rows cannot be parted into {how.folds} folds")
    return data


def _tell_unused(settings: FinetuneSettings, progress: Progress) -> None:
    """Say what was asked for and is not done, since the grid has values of its own."""
    given = _varied(asdict(settings))
    unused = [f"{name} {value:g}" for name, value in given.items() if value != getattr(FinetuneSettings, name)]
    if unused:
        progress.say(f"the grid tries batches, rates and epochs of its own: {', '.join(unused)} is not used")


def _grid(data: TaskData, settings: FinetuneSettings) -> Iterator[Cell]:
    rates = RATES if settings.trains_all else FROZEN_RATES
    for batch, rate, epochs in product(BATCHES, rates, EPOCHS):
        changed = replace(settings, batch_size=batch, learning_rate=rate, epochs=epochs)
        yield Cell(_name(changed), "grid", changed, data)


def _seeds(data: TaskData, settings: FinetuneSettings, how: SearchSettings) -> Iterator[Cell]:
    for seed in range(settings.seed, settings.seed + how.seeds):
        changed = replace(settings, seed=seed)
        # The first seed of a cell of the grid has been run already.
        name = _name(changed) if how.grid and seed == settings.seed else f"{_name(changed)}-seed-{seed}"
        yield Cell(name, "seeds", changed, data)


def _folds(data: TaskData, settings: FinetuneSettings, folds: int) -> Iterator[Cell]:
    """Each fold is scored by a model that was trained on the others."""
    for fold in range(folds):
        train, dev = split_fold(data.train, fold, folds)
        parted = replace(data, train=train, dev=dev)
        yield Cell(f"fold-{fold + 1}-of-{folds}", "folds", settings, parted)


def _name(settings: FinetuneSettings) -> str:
    return f"batch-{settings.batch_size}-rate-{settings.peak_rate:g}-epochs-{settings.epochs}"


def _varied(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: settings[name] for name in ("batch_size", "learning_rate", "epochs")}


def _scored(cell: Cell, folder: Path) -> Scored:
    results = Run(folder).results()
    score = float(results[cell.data.metrics[0]])
    return Scored(cell.name, cell.part, score, results, results.get("degenerate"), _told_settings(cell))


def _diverged(cell: Cell) -> Scored:
    """It has no model to score, which is worth nothing."""
    return Scored(cell.name, cell.part, 0.0, {}, DIVERGED, _told_settings(cell))


def _told_settings(cell: Cell) -> dict[str, Any]:
    return {**_varied(asdict(cell.settings)), "learning_rate": cell.settings.peak_rate, "seed": cell.settings.seed}


class _Table:
    """What has been scored so far, on disk; only the best model stays."""

    def __init__(self, folder: Path, progress: Progress, settings: FinetuneSettings, device: str | None) -> None:
        self._folder, self._progress = folder, progress
        self._path = folder / TABLE
        kept = read_json(self._path) if self._path.is_file() else None
        self.rows = [Scored(**row) for row in kept["cells"]] if kept else []
        # What was measured to be faster at first: all cells are to be computed alike, whenever each is run. (The first
        # searches left it to each.)
        if kept is not None:
            self.precision: PrecisionName = kept.get("precision", settings.precision)
        else:
            self.precision = finetuning_precision(settings, choose_device(device)).name
            self._write()

    def fill(self, cells: Iterator[Cell], score: Callable[[Cell], Scored]) -> None:
        """Run the cells that are not there yet."""
        for cell in cells:
            if any((row.name, row.part) == (cell.name, cell.part) for row in self.rows):
                continue
            known = next((row for row in self.rows if row.name == cell.name), None)
            row = replace(known, part=cell.part) if known else score(cell)
            self.rows.append(row)
            self._write()
            self._progress.say(f"{cell.name}: {row.score:.4f}{' (failed)' if row.failed else ''}")
            self._forget_models()

    def best(self, part: str) -> Scored:
        """The best cell of a part, a failed one only if all have failed; the first of equals.

        Who says the same of every row may well score best: on MRPC, "yes" to all of them has a higher F1 than many a
        model that has learned something.
        """
        rows = [row for row in self.rows if row.part == part]
        return max(rows, key=lambda row: (not row.diverged, row.failed is None, row.score))

    def _write(self) -> None:
        replace_json(self._path, {"precision": self.precision, "cells": [asdict(row) for row in self.rows]})

    def _forget_models(self) -> None:
        """Remove all models but the best one of each part, which is all that can still be asked for."""
        kept = {self.best(part).name for part in {row.part for row in self.rows}}
        for row in self.rows:
            if row.name not in kept:
                shutil.rmtree(Run(self._folder / CELLS / row.name).model_folder, ignore_errors=True)


def _finish(run: Run, found: _Table, metric: str, part: str) -> None:
    rows = [row for row in found.rows if row.part == part]
    best = found.best(part)
    if best.diverged:
        raise DivergedError(
            f"{run.folder}: every one of {len(rows)} trainings diverged; lower --learning-rate, with --fresh"
        )
    chosen = WHOLE if part == "folds" else best.name
    found_best = {"best": best.name, "best_results": best.results, "kept": chosen}
    run.write_results({"metric": metric, **summary(rows), **found_best})
    draw_search(found.rows, metric, run.folder / "search.png")
    Run(run.folder / CELLS / chosen).model_folder.rename(run.model_folder)


def summary(rows: Sequence[Scored]) -> dict[str, Any]:
    """Mean and spread over runs that differ in the seed, or the fold, alone; failed ones are named and counted in."""
    scores = [row.score for row in rows]
    return {
        "runs": len(scores),
        "mean": mean(scores),
        "deviation": stdev(scores) if len(scores) > 1 else 0.0,
        "median": median(scores),
        "least": min(scores),
        "most": max(scores),
        "failed": [row.name for row in rows if row.failed],
    }
