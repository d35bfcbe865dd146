"""The result page of the demo: a self-contained HTML file in which all text is escaped.

Charts are inline SVG, so that they need no library and follow the page's light or dark colours.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from math import ceil, floor, log10
from pathlib import Path

from cloze import __version__
from cloze.demo.results_file import Blank, DemoResults, Margin
from cloze.train.run import series

WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 44, 180, 26, 40

Place = Callable[[float, float], tuple[float, float]]


@dataclass(frozen=True)
class Line:
    """One curve of a chart; ``style`` is a CSS class of the page."""

    name: str
    style: str
    x: Sequence[float]
    y: Sequence[float]
    dots: bool = False


def line_chart(lines: Sequence[Line], x_name: str, y_name: str) -> str:
    """Draw curves on common axes as SVG, each labelled at its end."""
    largest = max(max(line.x) for line in lines)
    low, high = min(min(line.y) for line in lines), max(max(line.y) for line in lines)
    ticks = nice_ticks(low, high)
    low, high = min(low, ticks[0]), max(high, ticks[-1])

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + x / largest * (WIDTH - LEFT - RIGHT)
        down = TOP + (high - y) / (high - low) * (HEIGHT - TOP - BOTTOM)
        return round(across, 1), round(down, 1)

    parts = [_grid(ticks, place, largest), *_ticks_below(largest, place)]
    parts += [_curve(line, place) for line in lines]
    parts += _names(lines, place)
    parts.append(f'<text class="axis" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 4}">{escape(x_name)}</text>')
    parts.append(f'<text class="axis start" x="4" y="12">{escape(y_name)}</text>')
    label = escape(f"{y_name} over {x_name}: {', '.join(line.name for line in lines)}")
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return round numbers that cover the range from ``low`` to ``high``."""
    span = max(high - low, 1e-9)
    power = 10.0 ** floor(log10(span / count))
    step = next(factor * power for factor in (1, 2, 5, 10) if span / (factor * power) <= count)
    return [round(index * step, 6) for index in range(floor(low / step), ceil(high / step) + 1)]


def _grid(ticks: Sequence[float], place: Place, largest: float) -> str:
    parts = []
    for tick in ticks:
        (left, down), (right, _) = place(0, tick), place(largest, tick)
        parts.append(f'<line class="grid" x1="{left}" y1="{down}" x2="{right}" y2="{down}"/>')
        parts.append(f'<text class="axis end" x="{left - 8}" y="{down + 4}">{tick:g}</text>')
    return "".join(parts)


def _ticks_below(largest: float, place: Place) -> list[str]:
    values = [round(largest * share) for share in (0, 0.25, 0.5, 0.75, 1)]
    return [f'<text class="axis" x="{place(value, 0)[0]}" y="{HEIGHT - 22}">{value:,}</text>' for value in values]


def _curve(line: Line, place: Place) -> str:
    points = [place(x, y) for x, y in zip(line.x, line.y, strict=True)]
    path = " ".join(f"{x},{y}" for x, y in points)
    dots = "".join(f'<circle class="{line.style}" cx="{x}" cy="{y}" r="3"/>' for x, y in points) if line.dots else ""
    return f'<polyline class="{line.style}" points="{path}"/>{dots}'


def _names(lines: Sequence[Line], place: Place) -> list[str]:
    """Place the labels at the ends of the curves, moved apart where they would overlap."""
    ends = sorted(((place(line.x[-1], line.y[-1])[1], line) for line in lines), key=lambda end: end[0])
    parts, last = [], -100.0
    for down, line in ends:
        last = max(down, last + 16)
        x = WIDTH - RIGHT + 8
        parts.append(f'<text class="name {line.style}" x="{x}" y="{last + 4}">{escape(line.name)}</text>')
    return parts


def write_report(results: DemoResults, out: Path) -> Path:
    """Write ``report.html`` into the demo's folder and return its path."""
    path = out / "report.html"
    path.write_text(render(results, out), encoding="utf-8")
    return path


def render(results: DemoResults, out: Path) -> str:
    """Return the page as HTML."""
    sections = [
        _summary(results),
        _pretraining(results),
        _blanks(results.blanks),
        _comparison(results),
        _confusion(results),
        _examples(results),
        _second(results),
        _next_steps(out),
        _facts(results),
    ]
    page = files("cloze.demo").joinpath("report.html").read_text("utf-8")
    style = files("cloze.demo").joinpath("report.css").read_text("utf-8")
    return page.replace("{{style}}", style).replace("{{version}}", __version__).replace("{{body}}", "\n".join(sections))


def html_section(title: str, *parts: str) -> str:
    """Return a section of a page; the parts are HTML already."""
    return f"<section><h2>{title}</h2>{''.join(parts)}</section>"


def html_table(header: Sequence[str], rows: Iterable[Sequence[str]], style: str = "") -> str:
    """Return an HTML table; the cells are HTML already."""
    head = "".join(f"<th>{cell}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<table class="{style}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _summary(results: DemoResults) -> str:
    margin = results.margin
    total = sum(results.seconds.values())
    pretrained, scratch = (_mean(results.accuracies[start]) for start in ("pretrained", "scratch"))
    tiles = [
        (f"{total / 60:.1f} min", "from raw text to this page"),
        (f"{results.held_out.get('held_out_mlm_loss', float('nan')):.2f}", "masked-LM loss on held-out chapters"),
        (f"{pretrained:.1%}", f"accuracy on test sentences; {scratch:.1%} without pre-training"),
        (f"{100 * margin.mean:+.1f} points", f"gain from pre-training, 95 % interval {_interval(margin)}"),
    ]
    cards = "".join(f'<div class="tile"><b>{escape(big)}</b><span>{escape(small)}</span></div>' for big, small in tiles)
    return f'<div class="tiles">{cards}</div>'


def _pretraining(results: DemoResults) -> str:
    lines = []
    for name, title, style in (("mlm_loss", "masked words", "one"), ("nsp_loss", "next sentence", "two")):
        steps, values = series(results.metrics, name)
        lines.append(Line(title, style, steps, _smooth(values)))
        steps, values = series(results.metrics, f"held_out_{name}")
        if steps:
            lines.append(Line(f"{title}, held out", f"{style} held", steps, values, dots=True))
    figures = results.held_out
    text = ""
    if figures:
        text = (
            f"<p>On held-out chapters, the model predicts {figures['held_out_mlm_accuracy']:.1%} of the masked words "
            "exactly. It distinguishes the real next passage from a random one in "
            f"{figures['held_out_nsp_accuracy']:.0%} of cases; a constant answer is right in "
            f"{figures['held_out_nsp_constant']:.0%}.</p>"
        )
    return html_section("Pre-training", line_chart(lines, "step", "loss"), text)


def _smooth(values: Sequence[float], width: int = 5) -> list[float]:
    """Smooth a curve with a running mean, because the loss over ten steps is mostly noise."""
    return [_mean(values[max(0, index - width + 1) : index + 1]) for index in range(len(values))]


def _blanks(blanks: Iterable[Blank]) -> str:
    rows = []
    for blank in blanks:
        before, after = (escape(part) for part in blank.sentence.split("[MASK]"))
        words = " ".join(_word(token, probability, token == blank.word) for token, probability in blank.trained)
        untrained = " ".join(escape(token) for token, _ in blank.untrained[:3])
        rows.append((f"{before}<u>{escape(blank.word)}</u>{after}", words, f'<span class="faint">{untrained}</span>'))
    text = (
        "<p>The underlined word was masked. The middle column has the model's five most likely words, the right column "
        "those of the same model before any training.</p>"
    )
    return html_section("Filled blanks", text, html_table(("sentence", "pre-trained", "untrained"), rows))


def _word(token: str, probability: float, right: bool) -> str:
    return f'<span class="word{" right" if right else ""}">{escape(token)} <i>{probability:.0%}</i></span>'


def _comparison(results: DemoResults) -> str:
    margin = results.margin
    pairs = list(zip(results.accuracies["pretrained"], results.accuracies["scratch"], strict=True))
    rows = [(f"seed {seed}", pretrained, scratch) for seed, (pretrained, scratch) in enumerate(pairs)]
    rows.append(("mean", _mean([pretrained for pretrained, _ in pairs]), _mean([scratch for _, scratch in pairs])))
    cells = [
        (name, f"{pretrained:.1%}", f"{scratch:.1%}", f"{100 * (pretrained - scratch):+.1f}")
        for name, pretrained, scratch in rows
    ]
    holds = "is above zero" if margin.low > 0 else "includes zero, so three seeds do not settle the question"
    return html_section(
        "Are these words in order?",
        "<p>There are 3,000 labelled sentences for training and 1,500 test sentences from <em>other books</em>; the "
        "model was not pre-trained on any of them. In half of the sentences, six consecutive words are shuffled. "
        "Model, rows and settings are the same in both columns; only the initial weights differ.</p>",
        html_table(("", "pre-trained", "from scratch", "points"), cells, "numbers"),
        f"<p>Pre-training gains {100 * margin.mean:+.1f} points; the 95 % interval over seeds, {_interval(margin)}, "
        f"{holds}. Guessing gets {1 / len(results.labels):.0%}, and so does a bag of words ({results.baseline:.1%}, "
        "TF-IDF + logistic regression), because shuffling does not change which words occur.</p>",
    )


def _confusion(results: DemoResults) -> str:
    largest = max(max(row) for row in results.confusion)
    names = [escape(label) for label in results.labels]
    rows = [
        (name, *(f'<span class="heat" style="--share:{count / largest:.2f}">{count}</span>' for count in counts))
        for name, counts in zip(names, results.confusion, strict=True)
    ]
    text = "<p>Rows are the true labels, columns the model's predictions (pre-trained, seed 0).</p>"
    return html_section("Confusion matrix", text, html_table(("", *names), rows, "confusion"))


def _examples(results: DemoResults) -> str:
    text = "<p>The first test sentences, not selected by outcome.</p>"
    return html_section("Examples", text, *(_example(row) for row in results.examples))


def _example(row: Mapping[str, str]) -> str:
    marks = "".join(
        f'<li class="{"right" if row[start] == row["label"] else "wrong"}">{title}: {escape(row[start])}</li>'
        for start, title in (("pretrained", "pre-trained"), ("scratch", "from scratch"))
    )
    origin = escape(f"{row['label']}, {row['book']}")
    return (
        f"<figure><blockquote>{escape(row['text'])}</blockquote><figcaption>{origin}</figcaption>"
        f"<ul>{marks}</ul></figure>"
    )


def _second(results: DemoResults) -> str:
    second = results.second
    rows = []
    for blank, words in zip(results.blanks, second.blanks, strict=True):
        before, after = (escape(part) for part in blank.sentence.split("[MASK]"))
        text = " ".join(_word(token, probability, token == blank.word) for token, probability in words)
        rows.append((f"{before}<u>{escape(blank.word)}</u>{after}", text))
    name = escape(second.name)
    return html_section(
        "Second chapter: a model with hours of training",
        f"<p><code>{name}</code> comes with the package ({escape(second.description)}). It was trained with the same "
        "commands on 130 megabytes of books. Both models were fine-tuned on the same rows and tested on 600 sentences "
        f"of four books that neither was trained on: it gets <b>{_mean(second.shipped):.1%}</b> right "
        f"({_each(second.shipped)}), the model of this demo {_mean(second.own):.1%} ({_each(second.own)}). Its words "
        "for the same blanks:</p>",
        html_table(("sentence", name), rows),
    )


def _each(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.1%}" for value in values)


def _next_steps(out: Path) -> str:
    model, tuned = out / "pretraining", out / "finetuning" / "pretrained-0"
    own = "cloze vocab my.txt --out vocab && cloze prepare my.txt --vocab vocab --out data"
    commands = {
        "fill a blank": f'cloze fill "She opened the [MASK]." --model {model}',
        "classify a sentence": f'cloze classify "He the opened door and went in." --model {tuned}',
        "embed sentences": f'cloze embed "a ship at sea" "a boat" --model {model}',
        "see the pieces of a word": f'cloze tokens "unquestionably" --model {model}',
        "your own text": f"{own} && cloze pretrain data --out runs/mine",
        "your own labels": f"cloze finetune classify train.csv --model {model} --out runs/task",
    }
    rows = [(title, f"<code>{escape(command)}</code>") for title, command in commands.items()]
    text = (
        f"<p>The model is in <code>{escape(str(model / 'model'))}</code>: a folder that <code>transformers</code> and "
        "<code>sentence-transformers</code> load as well.</p>"
    )
    return html_section("What to try next", text, html_table(("to", "run"), rows, "facts"))


def _facts(results: DemoResults) -> str:
    times = {f"time for {stage}": f"{seconds:.0f} s" for stage, seconds in results.seconds.items()}
    rows = [(escape(key), escape(value)) for key, value in (results.facts | times).items()]
    return html_section("In numbers", html_table(("", ""), rows, "facts"))


def _interval(margin: Margin) -> str:
    return f"{100 * margin.low:+.1f} to {100 * margin.high:+.1f}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
