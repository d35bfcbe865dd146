"""A search as a picture: the grid's cells by rate and epochs, and the seeds or folds as points with their mean."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from cloze.files import replaced_file

if TYPE_CHECKING:
    from cloze.train.finetuning.search import Scored


def draw_search(rows: Sequence["Scored"], metric: str, path: Path) -> None:
    """Write a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    grid = [row for row in rows if row.part == "grid"]
    others = [row for row in rows if row.part != "grid"]
    batches = sorted({row.settings["batch"] for row in grid})
    figure, axes = pyplot.subplots(
        1, len(batches) + 1, figsize=(4.2 * (len(batches) + 1), 3.8), layout="constrained", squeeze=False
    )
    limits = (min(row.score for row in rows), max(row.score for row in rows))
    for axis, batch in zip(axes[0], batches, strict=False):
        _cells(axis, [row for row in grid if row.settings["batch"] == batch], limits)
        axis.set_title(f"batch {batch}")
    _points(axes[0][-1], others, metric)
    with replaced_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
    pyplot.close(figure)


def _cells(axis: Any, rows: Sequence["Scored"], limits: tuple[float, float]) -> None:
    rates = sorted({row.settings["rate"] for row in rows})
    epochs = sorted({row.settings["epochs"] for row in rows})
    table = [[_of(rows, rate, epoch) for epoch in epochs] for rate in rates]
    axis.imshow(table, cmap="viridis", vmin=limits[0], vmax=limits[1], aspect="auto")
    axis.set_xticks(range(len(epochs)), epochs)
    axis.set_yticks(range(len(rates)), [f"{rate:g}" for rate in rates])
    axis.set_xlabel("epochs")
    axis.set_ylabel("rate")
    middle = sum(limits) / 2
    for line, values in enumerate(table):
        for column, value in enumerate(values):
            colour = "black" if value > middle else "white"
            axis.text(column, line, f"{value:.3f}", ha="center", va="center", color=colour)


def _of(rows: Sequence["Scored"], rate: float, epochs: int) -> float:
    return next(row.score for row in rows if (row.settings["rate"], row.settings["epochs"]) == (rate, epochs))


def _points(axis: Any, rows: Sequence["Scored"], metric: str) -> None:
    scores = [row.score for row in rows]
    colours = ["tab:red" if row.failed else "tab:blue" for row in rows]
    axis.scatter(range(1, len(scores) + 1), scores, c=colours)
    axis.axhline(mean(scores), color="tab:gray", linestyle="--", label=f"mean {mean(scores):.4f}")
    axis.set_xticks(range(1, len(scores) + 1))
    axis.set_xlabel("fold" if rows[0].part == "folds" else "seed (red: failed)")
    axis.set_ylabel(metric)
    axis.legend()
