"""``metrics.jsonl`` -> a picture."""

from collections.abc import Sequence
from pathlib import Path

from cloze.files import replaced_file

Metrics = Sequence[dict[str, float]]


# Of a loss that has some.
PARTS = ("mlm_loss", "nsp_loss", "sop_loss", "sbo_loss")
# How held-out losses are named, told and drawn: those of long sequences are other numbers, not later ones.
_HELD_OUT = (("held_out", "held out", "o-"), ("held_out_long", "held out, long", "s--"))


def series(metrics: Metrics, name: str) -> tuple[list[float], list[float]]:
    """The steps and the values of one figure."""
    rows = [row for row in metrics if name in row]
    return [row["step"] for row in rows], [row[name] for row in rows]


def draw_curves(metrics: Metrics, path: Path) -> None:
    """Draw the losses over the steps, held-out ones as dots, into a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    parts = [name for name in PARTS if series(metrics, name)[0]]
    # With the parts there, their sum would only crowd the picture.
    for name in parts or ["loss"]:
        (line,) = axes.plot(*series(metrics, name), label=name.replace("_", " "), linewidth=1, alpha=0.7)
        for group, told, dots in _HELD_OUT:
            steps, values = series(metrics, f"{group}_{name}")
            if steps:
                axes.plot(steps, values, dots, color=line.get_color(), label=f"{name.replace('_', ' ')}, {told}")
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    with replaced_file(path) as temporary:
        figure.savefig(temporary, format="png")
