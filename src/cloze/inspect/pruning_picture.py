"""Pruning curves -> a picture: an order that knows the heads beside ones that do not."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from cloze.files import replaced_file
from cloze.inspect.head_picture import save_figure
from cloze.inspect.pruning import Curve


def draw_curves(curves: Mapping[str, Sequence[Curve]], metric: str, path: Path) -> None:
    """Draw the score over the share of heads removed, into a PNG or an SVG; of several curves the mean and the span."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, group in curves.items():
        scores = np.array([curve.scores for curve in group])
        (line,) = axes.plot(group[0].shares, scores.mean(0), "o-", markersize=3, label=name)
        if len(group) > 1:
            axes.fill_between(group[0].shares, scores.min(0), scores.max(0), color=line.get_color(), alpha=0.15)
    axes.set_xlabel("share of heads removed")
    axes.set_ylabel(metric)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    with replaced_file(path) as temporary:
        save_figure(figure, temporary, path.suffix.removeprefix("."))
