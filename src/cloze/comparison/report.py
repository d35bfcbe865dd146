"""The page of a comparison: a self-contained HTML file without scripts, in which all text is escaped.

It is written from compare.json, the durations in seconds.json, and the metrics of the runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from cloze import __version__
from cloze.comparison.results import CLAIMS, RESULTS, SECONDS, Claim, title_of
from cloze.comparison.settings import BASE
from cloze.demo.html_report import Line, html_section, html_table, line_chart, nice_ticks
from cloze.files import read_json, replaced_file
from cloze.inspect.views.page import csp_hash
from cloze.train.run import LOSS_COMPONENTS, Run

PAGE = "compare.html"
_COLOURS = 9  # CSS classes c0 to c8
_WIDTH, _LEFT, _RIGHT, _TOP, _STEP = 560, 150, 20, 14, 26  # of a chart of scores, in pixels
_SMOOTHED = 5  # points of a running mean


Facts = Mapping[str, Any]


def write_page(folder: Path) -> Path:
    """Write the page of a comparison from the results in its folder, and return its path."""
    path = folder / PAGE
    with replaced_file(path) as temporary:
        temporary.write_text(render(folder), encoding="utf-8")
    return path


def render(folder: Path) -> str:
    """Return the page as HTML."""
    facts, seconds = read_json(folder / RESULTS), read_json(folder / SECONDS)
    sections = [
        _conclusions(facts["conclusions"]),
        _scores(facts),
        _variants(facts),
        _evidence(facts),
        _curves(facts, folder),
        _costs(facts, seconds),
        _phenomena(facts),
        _trials(facts),
        _method(facts),
    ]
    style = files("cloze.comparison").joinpath("page.css").read_text("utf-8")
    policy = f"default-src 'none'; style-src '{csp_hash(style)}'; base-uri 'none'; form-action 'none'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>cloze compare</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>\n</head>\n<body>\n'
        f"<main>\n<h1>cloze compare <small>{__version__}</small></h1>\n{_lead(facts)}\n"
        f"{''.join(sections)}\n</main>\n</body>\n</html>\n"
    )


def _lead(facts: Facts) -> str:
    settings, text = facts["settings"], facts["text"]
    state = "" if facts["finished"] else " <b>Not finished yet.</b>"
    return (
        f'<p class="lead">Models of size {escape(settings["preset"])}, each pre-trained for {budget_of(settings)} on '
        f"{text['tokens']:,} tokens of {text['documents']:,} documents, with one vocabulary of "
        f"{settings['vocabulary']:,} pieces.{state}</p>"
    )


def budget_of(settings: Facts) -> str:
    """Return the budget of each pre-training in words."""
    if settings["hours"] is not None:
        hours = settings["hours"]
        return f"{hours:g} hours" if hours >= 1 else f"{60 * hours:.3g} minutes"
    return f"{settings['steps']:,} steps" if settings["steps"] is not None else f"{settings['flops']:.3g} operations"


def _conclusions(found: Mapping[str, Sequence[str]]) -> str:
    parts = []
    for key, title, empty in (
        ("supported", "Supported", "No difference between rows is decided by these results."),
        ("undecided", "Not decided: the interval of the difference includes zero", ""),
        ("limits", "Limits", ""),
    ):
        style = {"supported": "good", "undecided": "open"}.get(key, "")
        lines = "".join(f"<li>{escape(line)}</li>" for line in found[key])
        if lines or empty:
            parts.append(f'<h3 class="{style}">{title}</h3>' + (f"<ul>{lines}</ul>" if lines else f"<p>{empty}</p>"))
    return html_section("What the results say", *parts)


# -- scores ------------------------------------------------------------------------------------------------------------


def _rows(facts: Facts, group: str | None = None) -> list[Facts]:
    """Return the rows with scores, of a group or all."""
    return [row for row in facts["rows"] if row["scores"] and group in (None, row["group"])]


def _scores(facts: Facts) -> str:
    rows = [row for row in _rows(facts) if row["group"] == "main"]
    ranks = {(rank["yardstick"], rank["row"]): rank for rank in facts["ranks"]}
    header = [
        "",
        *(
            f"{escape(title_of(name))}<small> ({escape(metric)})</small>"
            for name, metric in facts["yardsticks"].items()
        ),
    ]
    cells = [
        [
            escape(row["name"]),
            *(_score(row["scores"].get(name), ranks.get((name, row["name"]))) for name in facts["yardsticks"]),
        ]
        for row in rows
    ]
    references = [_reference(facts["references"].get(name)) for name in facts["yardsticks"]]
    cells.append(['<span class="faint">without a network</span>', *references])
    charts = "".join(_chart(facts, rows, name) for name in facts["yardsticks"])
    return html_section(
        "Scores",
        "<p>In percent, with 95 % intervals over documents (or rows) and seeds. Ranks are the range that the intervals "
        "allow. Extra tasks such as next sentences have a table of their own below.</p>",
        html_table(header, cells, "numbers"),
        f'<div class="charts">{charts}</div>',
        '<p class="faint">The dashed line is the score without a neural network. Dashed circles have one seed.</p>',
    )


def score_rows(facts: Facts) -> list[list[str]]:
    """Return the header and the rows of a plain table of all scores; single-seed rows are marked with an asterisk."""
    names = list(facts["yardsticks"])
    table = [["row", "seeds", *map(title_of, names)]]
    for row in _rows(facts):
        seeds = max(len(score["seeds"]) for score in row["scores"].values())
        cells = [row["scores"].get(name) for name in names]
        table.append([row["name"], f"{seeds}{'*' if seeds < 2 else ''}", *map(_plain_score, cells)])
    means = [facts["references"].get(name) for name in names]
    return [*table, ["without a network", "", *("" if one is None else _percent(one["mean"]) for one in means)]]


def _plain_score(score: Facts | None) -> str:
    if score is None:
        return "does not apply"
    low, high = map(_percent, score["interval"])
    return f"{_percent(score['mean'])} ({low} to {high})"


def _score(score: Facts | None, rank: Facts | None) -> str:
    if score is None:
        return '<span class="faint">does not apply</span>'
    low, high = score["interval"]
    if len(score["seeds"]) < 2:
        place = "one seed, not ranked"
    elif rank is None:
        place = ""
    else:
        best, worst = rank["best"], rank["worst"]
        place = f"rank {best}" if best == worst else f"rank {best} to {worst}"
    return f"<b>{_percent(score['mean'])}</b><small>{_percent(low)} to {_percent(high)}</small><small>{place}</small>"


def _reference(reference: Facts | None) -> str:
    if reference is None:
        return ""
    return f"{_percent(reference['mean'])}<small>{escape(reference['name'])}</small>"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}" if abs(value) >= 0.01 or value == 0 else f"{100 * value:.2g}"


def _chart(facts: Facts, rows: Sequence[Facts], yardstick: str) -> str:
    """Draw the scores of a yardstick with their intervals."""
    shown = [
        (index, row["name"], row["scores"][yardstick]) for index, row in enumerate(rows) if yardstick in row["scores"]
    ]
    reference = facts["references"].get(yardstick)
    if not shown:
        return ""
    values = [value for _, _, score in shown for value in score["interval"]] + (
        [reference["mean"]] if reference else []
    )
    ticks = nice_ticks(100 * min(values), 100 * max(values), 4)
    low, high = ticks[0], max(ticks[-1], ticks[0] + 1e-6)
    bottom = _TOP + _STEP * len(shown)

    def place(value: float) -> float:
        return round(_LEFT + (100 * value - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT), 1)

    parts = []
    for tick in ticks:
        x = place(tick / 100)
        parts.append(f'<line class="grid" x1="{x}" y1="{_TOP}" x2="{x}" y2="{bottom}"/>')
        parts.append(f'<text x="{x}" y="{bottom + 16}">{tick:g}</text>')
    if reference:
        x = place(reference["mean"])
        parts.append(f'<line class="chance" x1="{x}" y1="{_TOP}" x2="{x}" y2="{bottom}"/>')
    for number, (index, name, score) in enumerate(shown):
        y, (first, last) = _TOP + _STEP * (number + 0.5), map(place, score["interval"])
        colour, single = f"c{index % _COLOURS}", " single" if len(score["seeds"]) < 2 else ""
        parts.append(f'<text class="row" x="{_LEFT - 12}" y="{y + 4}">{escape(name)}</text>')
        parts.append(f'<line class="whisker {colour}" x1="{first}" y1="{y}" x2="{last}" y2="{y}"/>')
        parts.append(f'<circle class="{colour}{single}" cx="{place(score["mean"])}" cy="{y}" r="5"/>')
    title = escape(title_of(yardstick))
    svg = f'<svg viewBox="0 0 {_WIDTH} {bottom + 22}" role="img" aria-label="{title}">{"".join(parts)}</svg>'
    return f"<figure><figcaption>{title}</figcaption>{svg}</figure>"


def _variants(facts: Facts) -> str:
    """Return the table of the variants: their differences to the row "bert"."""
    found = {(one["first"], one["yardstick"]): one for one in facts["differences"] if one["group"] == "variant"}
    rows = _rows(facts, "variant")
    if not rows:
        return ""
    cells = [
        [escape(row["name"]), *(_difference(found.get((row["name"], name))) for name in facts["yardsticks"])]
        for row in rows
    ]
    return html_section(
        "Variants of BERT and extra tasks",
        f"<p>Points above the row <b>{BASE}</b>, with 95 % intervals. Bold: the interval excludes zero, with at least "
        "two seeds.</p>",
        html_table(["", *(escape(title_of(name)) for name in facts["yardsticks"])], cells, "numbers"),
    )


def _difference(one: Facts | None) -> str:
    if one is None:
        return ""
    value, low, high = (f"{100 * one[name]:+.1f}" for name in ("value", "low", "high"))
    single = "<small>one seed, not decided</small>" if one["seeds"] < 2 else ""
    return f"{f'<b>{value}</b>' if one['decided'] else value}<small>{low} to {high}</small>{single}"


def _evidence(facts: Facts) -> str:
    """Return published findings beside the measured ones."""
    names = {row["name"] for row in _rows(facts)}
    rows = [
        [escape(claim.statement), escape(claim.published), "<br>".join(_verdicts(facts, claim))]
        for claim in CLAIMS
        if {claim.above, claim.below} <= names
    ]
    if not rows:
        return ""
    text = "<p>Published figures are of far larger models. What is not decided here may still hold there.</p>"
    return html_section("Published findings", text, html_table(("finding", "published", "here"), rows))


def _verdicts(facts: Facts, claim: Claim) -> Iterator[str]:
    """Yield on which yardsticks a claim holds here, is reversed, or is not decided."""
    lists: dict[str, list[str]] = {"holds": [], "reversed": [], "not decided": []}
    for one in facts["differences"]:
        if {one["first"], one["second"]} == {claim.above, claim.below}:
            value = one["value"] if one["first"] == claim.above else -one["value"]
            verdict = "not decided" if not one["decided"] else "holds" if value > 0 else "reversed"
            lists[verdict].append(f"{title_of(one['yardstick'])} ({100 * value:+.1f})")
    for verdict, found in lists.items():
        if found:
            yield f"<b>{verdict}</b>: {escape(', '.join(found))}"


# -- training ----------------------------------------------------------------------------------------------------------


def _curves(facts: Facts, folder: Path) -> str:
    """Return one chart per objective, because losses of different objectives cannot be compared."""
    charts: dict[str, list[Line]] = {}
    for index, row in enumerate(facts["rows"]):
        run = Run(folder / "models" / row["folder"] / f"seed-{facts['settings']['seed']}")
        rows = [one for one in run.metrics() if "seconds" in one]
        name = next((name for name in LOSS_COMPONENTS if any(name in one for one in rows)), "loss")
        points = [(one["seconds"], one[name]) for one in rows if name in one]
        if len(points) > 1:
            task = {key: value for key, value in row["settings"].items() if key not in ("backbone", "position_kind")}
            what = ", ".join(f"{key} {_plain(value)}" for key, value in task.items() if value != "none")
            title = name.replace("_", " ") + (f" ({what})" if what else "")
            times, losses = zip(*points, strict=True)
            charts.setdefault(title, []).append(Line(row["name"], f"c{index % _COLOURS}", times, _smooth(losses)))
    parts = [
        f"<figure><figcaption>{escape(title)}</figcaption>{line_chart(lines, 'seconds', 'loss')}</figure>"
        for title, lines in charts.items()
    ]
    if not parts:
        return ""
    text = (
        "<p>Loss in training over time, first seed. There is one chart per objective: losses of different objectives "
        "cannot be compared. A flat stretch at the beginning is the plateau before attention becomes selective.</p>"
    )
    return html_section("Curves", text, f'<div class="charts">{"".join(parts)}</div>')


def _plain(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _smooth(values: Sequence[float]) -> list[float]:
    windows = (values[max(0, index - _SMOOTHED + 1) : index + 1] for index in range(len(values)))
    return [sum(window) / len(window) for window in windows]


def cost_rows(facts: Facts, seconds: Facts) -> list[list[str]]:
    """Return the cost of each row with a finished pre-training, the mean over its seeds."""
    rows = []
    for row in facts["rows"]:
        runs, times = row["runs"], seconds[row["name"]]["seeds"]
        if runs and times:
            counted = [name for name in runs[0] if runs[0][name] is not None]
            mean = {name: sum(run[name] for run in runs) / len(runs) for name in counted}
            duration = sum(times) / len(times)
            rows.append(
                [
                    row["name"],
                    str(len(runs)),
                    f"{row['learning_rate']:g}",
                    f"{mean['steps']:,.0f}" if "steps" in mean else "",
                    f"{mean['tokens']:,.0f}",
                    f"{mean['targets']:,.0f}" if "targets" in mean else "not counted",
                    f"{mean['flops']:.2e}" if "flops" in mean else "not counted",
                    f"{duration:,.0f}",
                    f"{mean['tokens'] / max(duration, 1e-9):,.0f}",
                    f"{mean['non_embedding_parameters']:,.0f}",
                    f"{seconds[row['name']]['trials']:,.0f}",
                ]
            )
    return rows


COST_HEADER = (
    *("row", "seeds", "learning rate", "steps", "tokens read", "targets predicted", "operations", "seconds"),
    *("tokens/s", "parameters without embeddings", "seconds of trials"),
)


def _costs(facts: Facts, seconds: Facts) -> str:
    rows = [[escape(cell) for cell in row] for row in cost_rows(facts, seconds)]
    text = (
        "<p>Per pre-training. The number of targets is estimated from 20 steps; operations count matrix products.</p>"
    )
    return html_section("Cost", text, html_table(COST_HEADER, rows, "numbers"))


def _trials(facts: Facts) -> str:
    rows = [
        [
            escape(row["name"]),
            f"{trial['learning_rate']:g}",
            "diverged" if trial["loss"] is None else f"{trial['loss']:.3f}",
            f"{trial['steps']:,}",
        ]
        for row in facts["rows"]
        for trial in row["trials"]
    ]
    if not rows:
        return ""
    text = (
        "<p>Every row has the same number of trials, together a tenth of its budget, in addition to it. The rate with "
        "the lowest loss on the development documents is used. Only the losses of one row can be compared.</p>"
    )
    return html_section("Learning rates", text, html_table(("row", "learning rate", "loss", "steps"), rows, "numbers"))


def _phenomena(facts: Facts) -> str:
    rows = [row for row in _rows(facts) if row["phenomena"]]
    if not rows:
        return ""
    names = list(rows[0]["phenomena"])
    cells = [[escape(row["name"]), *(f"{100 * row['phenomena'][name]:.1f}" for name in names)] for row in rows]
    text = "<p>Percentage of minimal pairs whose grammatical sentence is more likely; 50 is chance.</p>"
    return html_section("Minimal pairs", text, html_table(("", *map(escape, names)), cells, "numbers"))


def _method(facts: Facts) -> str:
    settings, test = facts["settings"], facts["test"]
    lines = [
        f"Blanks: {test['blanks']:,} words of {test['documents']:,} documents that no model was trained on. Each model "
        "predicts them from the context that it may see.",
        "Minimal pairs: 1,280 generated pairs in 8 phenomena; masked models by pseudo-log-likelihood. Pairs share "
        "words and patterns, so the intervals are rather too narrow.",
        "Frozen features: a linear head on a learned mix of all layers. Fine-tuned: a linear head on the mean of the "
        "last states. Head, epochs and learning rate of the tasks are the same for all rows.",
        f"Every row has {settings['trials']} learning-rate trials and the same budget ({budget_of(settings)}), text "
        "and vocabulary. The number of seeds may differ.",
    ]
    return html_section("How it was measured", f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>")
