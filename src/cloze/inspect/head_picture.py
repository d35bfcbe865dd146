"""A survey -> a picture: layers down, heads across, a colour for each label, the stronger the fuller.

What else holds of a head stands small below its label.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from cloze.files import replaced_file
from cloze.inspect.patterns import DESCRIPTIONS, PATTERNS
from cloze.inspect.survey import Survey

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Told apart by most kinds of colour blindness (Okabe and Ito, 2008), with greys for what is no pattern.
COLOURS = {
    "next": "#0072B2",
    "previous": "#56B4E9",
    "same": "#009E73",
    "other": "#8DB600",
    "predictive": "#CC79A7",
    "separators": "#E69F00",
    "self": "#D55E00",
    "broad": "#9A9A9A",
    "mixed": "#DDDDDD",
}
SHORT = {"previous": "prev", "predictive": "pred", "separators": "sep"}


def draw_heads(survey: Survey, path: Path) -> None:
    """Draw the map of heads into a PNG or an SVG, by the file's ending."""
    figure = _figure(survey)
    form = path.suffix.removeprefix(".")
    with replaced_file(path) as temporary:
        save_figure(figure, temporary, form)


def save_figure(figure: "Figure", path: Path, form: str) -> None:
    """Write a figure so that the same one gives the same bytes."""
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "cloze"}):
        figure.savefig(path, format=form, metadata={"Date": None} if form == "svg" else None)


def fullness(survey: Survey, number: int) -> float:
    """How clearly a head bears its label, 0 to 1."""
    label = survey.reports[number].label
    if label in PATTERNS:
        return float(survey.scores.strength[PATTERNS.index(label), number])
    return float(survey.scores.evenness[0, number]) if label == "broad" else 1.0


def _figure(survey: Survey) -> "Figure":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch, Rectangle

    figure = Figure(figsize=(2.2 + 0.62 * survey.heads, 1.9 + 0.45 * survey.layers), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, report in enumerate(survey.reports):
        colour = COLOURS[report.label]
        alpha = 0.25 + 0.75 * fullness(survey, number)
        corner = (report.head - 0.47, report.layer - 0.47)
        axes.add_patch(Rectangle(corner, 0.94, 0.94, facecolor=colour, alpha=alpha, linewidth=0))
        name, *others = (SHORT.get(label, label) for label in report.labels or ("mixed",))
        axes.text(report.head, report.layer, name, ha="center", va="center", fontsize=7)
        axes.text(report.head, report.layer + 0.4, " ".join(others), ha="center", va="bottom", fontsize=4.5)
    axes.set_xlim(-0.5, survey.heads - 0.5)
    axes.set_ylim(survey.layers - 0.5, -0.5)
    axes.set_xticks(range(survey.heads))
    axes.set_yticks(range(survey.layers))
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    there = {report.label for report in survey.reports}
    keys = [Patch(facecolor=COLOURS[name], label=f"{name}: {DESCRIPTIONS[name]}") for name in COLOURS if name in there]
    figure.legend(handles=keys, loc="outside lower left", frameon=False, fontsize=7)
    return figure
