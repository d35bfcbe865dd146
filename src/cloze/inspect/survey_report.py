"""Report a survey: ``heads.json``, a picture of all heads, table rows and summary lines for the command line.

The picture has one row per layer and one column per head. The colour shows the head's label and the opacity its
strength; further labels are printed below in small letters.
"""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cloze.errors import ClozeError
from cloze.files import replace_json, replaced_file
from cloze.inspect.patterns import DESCRIPTIONS, PATTERNS, FloatArray
from cloze.inspect.survey import Example, HeadReport, Survey

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A palette suitable for colour-blind readers (Okabe and Ito, 2008), with greys for labels that are not patterns.
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
HEADER = ("layer", "head", "label", "score", "null", "interval", "entropy", "distance", "also")


def draw_heads(survey: Survey, path: Path) -> None:
    """Write the picture of all heads as PNG or SVG, by the suffix of the file."""
    figure = _figure(survey)
    with replaced_file(path) as temporary:
        save_figure(figure, temporary, path.suffix.removeprefix("."))


def save_figure(figure: "Figure", path: Path, image_format: str) -> None:
    """Write a figure reproducibly: the same figure gives the same bytes."""
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "cloze"}):
        figure.savefig(path, format=image_format, metadata={"Date": None} if image_format == "svg" else None)


def label_strength(survey: Survey, number: int) -> float:
    """Return the strength of a head's label, from 0 to 1."""
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
        alpha = 0.25 + 0.75 * label_strength(survey, number)
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
    used = {report.label for report in survey.reports}
    keys = [Patch(facecolor=COLOURS[name], label=f"{name}: {DESCRIPTIONS[name]}") for name in COLOURS if name in used]
    figure.legend(handles=keys, loc="outside lower left", frameon=False, fontsize=7)
    return figure


def survey_json(survey: Survey, model: str) -> dict[str, Any]:
    """Return the content of ``heads.json``: indices are counted from 0, and None means not measured."""
    return {
        "model": model,
        "layers": survey.layers,
        "heads_a_layer": survey.heads,
        "sequences": survey.sequences,
        "tokens": survey.tokens,
        "predictive": {"measure": survey.measure, "sequences": survey.measured},
        "settings": asdict(survey.settings),
        "descriptions": DESCRIPTIONS,
        "counts": survey.counts,
        "unmeasured": survey.unmeasured,
        "uniform": _by_pattern(survey.scores.uniform),
        "heads": [_head_json(survey, number, report) for number, report in enumerate(survey.reports)],
    }


def write_survey(survey: Survey, model: str, folder: Path) -> None:
    """Write ``heads.json``, ``heads.png`` and ``heads.svg`` into a folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ClozeError(f"{folder}: cannot be created ({error.strerror}); choose another --out") from error
    replace_json(folder / "heads.json", survey_json(survey, model))
    for ending in ("png", "svg"):
        draw_heads(survey, folder / f"heads.{ending}")


def table_rows(survey: Survey) -> Iterator[tuple[object, ...]]:
    """Yield a table row per head: its label with score, null and interval, and its further labels."""
    scores = survey.scores
    for number, report in enumerate(survey.reports):
        score, null, low, high = (f"{scores.evenness[0, number]:.2f}", "", *scores.evenness[1:, number])
        if report.label in PATTERNS:
            index = PATTERNS.index(report.label)
            score, null = (f"{values[index, number]:.2f}" for values in (scores.score, scores.null))
            low, high = scores.low[index, number], scores.high[index, number]
        described = report.label != "mixed"
        yield (
            report.layer,
            report.head,
            report.label,
            score if described else "",
            null,
            f"{low:.2f} to {high:.2f}" if described else "",
            f"{scores.evenness[0, number]:.2f}",
            f"{scores.distance[number]:.1f}",
            ", ".join(report.labels[1:]),
        )


def summary_lines(survey: Survey) -> list[str]:
    """Summarize a survey: heads per label, patterns without a head, unmeasured patterns, and the influence measure."""
    counts, unmeasured = survey.counts, survey.unmeasured
    total = survey.layers * survey.heads
    present = [f"{name} {count}" for name, count in counts.items() if count]
    absent = [name for name in PATTERNS if not counts[name] and name not in unmeasured]
    lines = [f"labels of {total} heads (a head may have several): {', '.join(present)}"]
    if absent:
        lines.append(f"no head is significantly above its null for: {', '.join(absent)}")
    if unmeasured:
        lines.append(f"not measured, because the text has no targets: {', '.join(unmeasured)}")
    if survey.measured:
        lines.append(f"predictive words were measured by the {survey.measure}, on {survey.measured} sequences")
    return lines


def example_lines(survey: Survey) -> Iterator[tuple[str, str, str]]:
    """Yield each label with the head that shows it most strongly and an example."""
    for label in (*PATTERNS, "broad"):
        strength = survey.scores.evenness[0] if label == "broad" else survey.scores.strength[PATTERNS.index(label)]
        candidates = [number for number, report in enumerate(survey.reports) if label in report.labels]
        for number in sorted(candidates, key=lambda number: -float(strength[number]))[:1]:
            report = survey.reports[number]
            for example in [example for example in report.examples if example.pattern == label][:1]:
                yield label, f"layer {report.layer}, head {report.head}", example_line(example)


def example_line(example: Example) -> str:
    """Format an example: the attending token, and the three tokens with the most attention."""
    order = sorted(range(len(example.tokens)), key=lambda index: -example.weights[index])[:3]
    attended = ", ".join(f"{example.tokens[index]} {example.weights[index]:.2f}" for index in order)
    return f"{example.tokens[example.origin]} -> {attended}"


def _head_json(survey: Survey, number: int, report: HeadReport) -> dict[str, Any]:
    scores = survey.scores
    lows, highs = _by_pattern(scores.low[:, number]), _by_pattern(scores.high[:, number])
    evenness, low, high = (round(float(value), 4) for value in scores.evenness[:, number])
    return {
        "layer": report.layer,
        "head": report.head,
        "label": report.label,
        "labels": list(report.labels),
        "scores": {**_by_pattern(scores.score[:, number]), "broad": evenness},
        "intervals": {**{name: [lows[name], highs[name]] for name in PATTERNS}, "broad": [low, high]},
        "nulls": {
            "shuffled": _by_pattern(scores.null[:, number]),
            "shuffled_high": _by_pattern(scores.null_high[:, number]),
        },
        "entropy": evenness,
        "entropy_nats": round(float(scores.entropy[number]), 4),
        "distance": round(float(scores.distance[number]), 4),
        "examples": [asdict(example) for example in report.examples],
    }


def _by_pattern(values: FloatArray) -> dict[str, float | None]:
    """Map patterns to values; NaN (not measured) becomes None, since JSON has no NaN."""
    pairs = zip(PATTERNS, values, strict=True)
    return {name: None if np.isnan(value) else round(float(value), 4) for name, value in pairs}
