"""The result of an evaluation, the files that report it, and the tables that are printed or shown.

Tables are built from the contents of ``eval_results.json``, so that finished runs and new ones are shown in the same
way.
"""

import html
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloze.errors import DataError
from cloze.files import replace_json, replace_json_lines, replaced_file

if TYPE_CHECKING:
    from cloze.tasks.intervals import Difference, RowScores

PREDICTIONS = "predictions.tsv"
CONFUSION_FILE = "confusion.json"
RISK_COVERAGE = "risk_coverage.json"
# Below this many rows, bootstrap intervals are too narrow.
FEWEST_ROWS = 30
# Scores by label and the confusion matrix are shown for at most this many labels; the files always contain them.
MOST_LABELS = 20
_CELL = "padding:2px 8px;text-align:right"
# Escapes in the cells of a TSV file, as in the text format of PostgreSQL's COPY.
_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_UNESCAPES = {escape: character for character, escape in _ESCAPES.items()}
# With a score below this in any metric, a model has learned nothing.
_NOTHING = 0.05
# Regression hardly ever predicts a number exactly, so this fraction of the rows, those with the largest errors, counts
# as wrong.
_FURTHEST = 0.1
# In points: if the interval of a difference is wider, the difference is unknown rather than small.
_WIDE = 10.0


@dataclass(frozen=True)
class Confusion:
    """A confusion matrix: how often each true label (row) was predicted as each label (column)."""

    labels: tuple[str, ...]
    counts: list[list[int]]


@dataclass(frozen=True)
class Evaluation:
    """Scores and predictions of a model on a set of rows."""

    metrics: dict[str, float]  # the first one selects models
    predictions: list[str]  # spelled as in files
    places: Sequence[str]
    targets: Sequence[str] | None = None  # None if rows have no labels
    inputs: Sequence[Mapping[str, str]] = ()  # texts of each row by column, for the list of errors
    confusion: Confusion | None = None
    files: Mapping[str, Any] = field(default_factory=dict)  # files of official scripts: name -> JSON value or text
    errors: Sequence[float] | None = None  # absolute error of each row, if predictions are numbers
    skipped: int = 0  # rows that could not be used
    unlabelled: int = 0  # rows of a published file that are marked as having no label
    rows: "RowScores | None" = None  # scores per row, for intervals and paired comparisons
    probabilities: Sequence[float] | None = None  # probability of each prediction
    baseline: Mapping[str, Any] | None = None  # the result of ``cloze.tasks.baselines.compare``
    abstention: Mapping[str, Any] | None = None  # threshold below which the model abstains, coverage and error rate

    @cached_property
    def intervals(self) -> dict[str, list[float]]:
        """Lower and upper end of each metric's 95 % interval, from a bootstrap over rows; empty without ``rows``."""
        from cloze.tasks.intervals import bootstrap_intervals  # deferred: it imports NumPy

        return {} if self.rows is None else bootstrap_intervals(self.rows)

    @cached_property
    def by_label(self) -> dict[str, dict[str, float]]:
        """Precision, recall, F1 and support of each label, entity type or tag; empty if there are none."""
        return {} if self.rows is None else self.rows.by_label()

    def __str__(self) -> str:
        return text_report("Scores", self.results())

    def _repr_html_(self) -> str:
        confusion = self.confusion
        matrix = None if confusion is None else {"labels": confusion.labels, "counts": confusion.counts}
        return html_report("Scores", self.results(), (), matrix)

    @property
    def notes(self) -> Sequence[str]:
        """Further lines for the report, of kinds that have some."""
        return ()

    def write_more(self, folder: Path) -> None:
        """Write further files into the folder of the report, of kinds that have some."""

    def gain_over(self, other: "Evaluation") -> "Difference | None":
        """Return by how much the main metric exceeds another model's on the same rows; None without ``rows``.

        Raises:
            DataError: If the rows are not the same.
        """
        from cloze.tasks.intervals import paired_difference

        if self.rows is None or other.rows is None:
            return None
        # Targets are not compared: of several correct answers, the one nearest to the prediction is reported.
        if (list(self.places), list(self.inputs)) != (list(other.places), list(other.inputs)):
            raise DataError("the rows differ; a paired comparison needs the same rows in both evaluations")
        return paired_difference(self.rows, other.rows, next(iter(self.metrics)))

    def results(self) -> dict[str, Any]:
        """Return the contents of ``eval_results.json``."""
        results: dict[str, Any] = {**self.metrics, "rows": len(self.predictions)}
        results |= {"skipped": self.skipped} if self.skipped else {}
        results |= {"unlabelled": self.unlabelled} if self.unlabelled else {}
        further: dict[str, Any] = {"degenerate": self.degenerate, "intervals": self.intervals}
        further |= {"by_label": self.by_label, "baseline": self.baseline, "abstention": self.abstention}
        return results | {name: value for name, value in further.items() if value}

    @property
    def degenerate(self) -> str | None:
        """The reason why the model is degenerate, as some fine-tuning seeds are; None if it has learned something."""
        if len(self.predictions) > 1 and len(set(self.predictions)) == 1:
            return f"predicts {self.predictions[0]!r} for every row"
        if self.confusion is not None:
            rows = sum(map(sum, self.confusion.counts))
            most_frequent = max(map(sum, self.confusion.counts))
            right = sum(self.confusion.counts[label][label] for label in range(len(self.confusion.labels)))
            if right <= most_frequent < rows:
                return "no better than always predicting the most frequent label"
        name, value = next(iter(self.metrics.items()))
        return f"{name} is {value:.3f}" if value < _NOTHING else None

    def wrong(self) -> list[dict[str, str]]:
        """Return the rows with wrong predictions; for regression, the tenth with the largest errors, largest first."""
        if self.targets is None:
            return []
        if self.errors is None:
            chosen = [row for row, target in enumerate(self.targets) if target != self.predictions[row]]
        else:
            furthest = sorted(range(len(self.errors)), key=self.errors.__getitem__, reverse=True)
            chosen = furthest[: math.ceil(_FURTHEST * len(furthest))]
        return [
            {
                "row": self.places[row],
                **self.inputs[row],
                "expected": self.targets[row],
                "predicted": self.predictions[row],
            }
            for row in chosen
        ]


def write_report(evaluation: Evaluation, folder: Path) -> None:
    """Write scores, predictions, confusion matrix and wrong rows, and the files of the task's official scripts."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_json(folder / "eval_results.json", evaluation.results())
    write_predictions(evaluation, folder / PREDICTIONS)
    if evaluation.confusion is not None:
        labels, counts = evaluation.confusion.labels, evaluation.confusion.counts
        replace_json(folder / CONFUSION_FILE, {"labels": list(labels), "rows_are": "expected", "counts": counts})
    if evaluation.targets is not None:
        replace_json_lines(folder / "wrong_rows.jsonl", evaluation.wrong())
    for name, contents in evaluation.files.items():
        if isinstance(contents, str):
            with replaced_file(folder / name) as temporary:
                temporary.write_text(contents, encoding="utf-8")
        else:
            replace_json(folder / name, contents)
    if RISK_COVERAGE in evaluation.files:
        draw_risk_coverage(evaluation.files[RISK_COVERAGE], folder / "risk_coverage.png")
    evaluation.write_more(folder)


def draw_risk_coverage(curve: Mapping[str, Any], path: Path) -> None:
    """Draw the error rate among the most confident rows by their fraction, and the chosen threshold."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure, chosen = Figure(figsize=(6, 4), dpi=120, layout="constrained"), curve["threshold"]
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(curve["coverage"], curve["risk"], color="#4269d0", label="error rate of the answered rows")
    axes.axhline(chosen["rate"], color="#9a9a9a", linestyle=":", label=f"error rate asked for: {chosen['rate']:g}")
    name = f"abstains below {chosen['below']:.3f}; at most {chosen['bound']:.3f} on new rows"
    axes.plot([chosen["coverage"]], [chosen["risk"]], "o", color="#ff725c", label=name)
    axes.set_xlabel("coverage: fraction of the rows that are answered")
    axes.set_ylabel("error rate")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    with replaced_file(path) as temporary:
        figure.savefig(temporary, format="png")


# -- predictions -------------------------------------------------------------------------------------------------------


def prediction_rows(evaluation: Evaluation) -> list[dict[str, str]]:
    """Return each row's location and texts, its label, its prediction and that prediction's probability, if any."""
    columns: dict[str, Sequence[str]] = {"row": evaluation.places}
    for name in evaluation.inputs[0] if evaluation.inputs else ():
        columns[name] = [row[name] for row in evaluation.inputs]
    if evaluation.targets is not None:
        columns["label"] = evaluation.targets
    columns["prediction"] = evaluation.predictions
    if evaluation.probabilities is not None:
        columns["probability"] = [f"{value:.4g}" for value in evaluation.probabilities]
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def write_predictions(evaluation: Evaluation, path: Path) -> None:
    """Write a TSV file with one line per row; tabs, line breaks and backslashes in cells are escaped."""
    write_escaped(prediction_rows(evaluation), path)


def write_escaped(rows: Sequence[Mapping[str, str]], path: Path) -> None:
    """Write rows with the same columns as a TSV file, with the escapes that ``read_predictions`` undoes."""
    lines = ["\t".join(rows[0]) if rows else "row", *("\t".join(map(_escape, row.values())) for row in rows)]
    with replaced_file(path) as temporary:
        # Text in memory may have unpaired surrogates, which UTF-8 cannot represent: they are written as escapes.
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="backslashreplace", newline="\n")


def read_predictions(path: Path) -> list[dict[str, str]]:
    """Read a file written by ``write_predictions``, with the original texts."""
    with path.open(encoding="utf-8", newline="\n") as file:
        header, *rows = ([_unescape(cell) for cell in line.rstrip("\n").split("\t")] for line in file)
    return [dict(zip(header, row, strict=True)) for row in rows]


def _escape(cell: str) -> str:
    return re.sub(r"[\\\t\n\r]", lambda found: _ESCAPES[found.group()], cell)


def _unescape(cell: str) -> str:
    return re.sub(r"\\[\\tnr]", lambda found: _UNESCAPES[found.group()], cell)


# -- tables ------------------------------------------------------------------------------------------------------------


Table = tuple[tuple[str, ...], list[tuple[str, ...]]]  # header and rows


def scores_of(results: Mapping[str, Any]) -> dict[str, float]:
    """Return the scores among the results, the main metric first."""
    return {name: value for name, value in results.items() if isinstance(value, float)}


def score_table(results: Mapping[str, Any]) -> Table:
    """Return each metric with its value, its 95 % interval, and the values of the baselines."""
    intervals, baseline = results.get("intervals", {}), results.get("baseline")
    baselines = [] if baseline is None else [baseline, *baseline.get("others", ())]
    rows = [
        (name, _shown(value), _interval(intervals.get(name)), *(_shown(one.get(name)) for one in baselines))
        for name, value in scores_of(results).items()
    ]
    return ("metric", "value", "95 % interval", *(one["name"] for one in baselines)), rows


def label_table(results: Mapping[str, Any]) -> Table | None:
    """Return precision, recall, F1 and support of each label; None without labels or with more than 20."""
    labels = results.get("by_label", {})
    if not 0 < len(labels) <= MOST_LABELS:
        return None
    columns = ("precision", "recall", "f1", "support")
    return ("label", *columns), [
        (label, *(_shown(scores[name]) for name in columns)) for label, scores in labels.items()
    ]


def headline(results: Mapping[str, Any]) -> str | None:
    """Return the first line of a report if the model is significantly worse than the baseline, else None."""
    baseline = results.get("baseline")
    return verdict(results) if baseline is not None and baseline["difference"]["high"] < 0 else None


def verdict(results: Mapping[str, Any]) -> str:
    """Return one line that states whether the model is ahead of the baseline, level with it or behind it."""
    metric, baseline = next(iter(scores_of(results))), results["baseline"]
    value, low, high = (100 * baseline["difference"][name] for name in ("value", "low", "high"))
    if high < 0:
        return (
            f"behind {baseline['name']} by {-value:.1f} points of {metric} (95 % interval {-high:.1f} to {-low:.1f}): "
            "try more rows, a larger model or, if only a head was fitted (few), fine-tuning; or use the simpler one"
        )
    if low > 0:
        return f"ahead of {baseline['name']} by {value:.1f} points of {metric} (95 % interval {low:.1f} to {high:.1f})"
    if high - low > _WIDE:
        return (
            f"too few rows to distinguish it from {baseline['name']}: the difference of {value:+.1f} points of "
            f"{metric} may be {low:+.1f} to {high:+.1f} (95 % interval); score on more rows, with a dev file or folds"
        )
    return (
        f"level with {baseline['name']}: a difference of {value:+.1f} points of {metric} is within noise "
        f"(95 % interval {low:+.1f} to {high:+.1f})"
    )


def summary_lines(results: Mapping[str, Any]) -> list[str]:
    """Return the lines below a table of scores: row counts and the comparison with the baseline."""
    rows, lines = results.get("rows"), []
    if rows is not None:  # searches over several runs have no single number of rows
        rough = f"; below {FEWEST_ROWS} rows, the intervals are rough" if rows < FEWEST_ROWS else ""
        lines.append(f"{rows:,} rows{rough if results.get('intervals') else ''}")
    if results.get("skipped"):
        lines.append(f"{results['skipped']} bad rows were skipped")
    if results.get("unlabelled"):
        lines.append(f"{results['unlabelled']} rows that are marked as having no label were skipped")
    if results.get("degenerate"):
        lines.append(f"degenerate: {results['degenerate']}")
    if results.get("baseline") and headline(results) is None:
        lines.append(verdict(results))
    if results.get("abstention"):
        lines.append(_abstention_line(results["abstention"]))
    if len(results.get("by_label", ())) > MOST_LABELS:
        lines.append(f"{len(results['by_label'])} labels; their scores are in the results' by_label")
    return lines


def _abstention_line(found: Mapping[str, Any]) -> str:
    """Describe the threshold of a model that may abstain; the bound is known only when it is chosen."""
    line = f"abstains below a probability of {found['below']:.4f}: answers {100 * found['coverage']:.1f} % of the rows"
    line += "" if found["risk"] is None else f", {100 * found['risk']:.1f} % of them wrong"
    if "bound" in found:
        line += f"; on new rows at most {100 * found['bound']:.1f} % ({100 * found['certainty']:g} % certain)"
        line += f"; area under the risk-coverage curve {found['area']:.4f} (at best {found['best_area']:.4f})"
    return line


def card_scores(evaluation: Evaluation) -> str:
    """Return the scores as a Markdown list, with intervals and the comparison with the baseline."""
    results = evaluation.results()
    lines = [f"- {name}: {value:.4f}" for name, value in evaluation.metrics.items()]
    shown = (_interval(evaluation.intervals.get(name)) for name in evaluation.metrics)
    lines = [
        f"{line} (95 % interval {interval})" if interval else line for line, interval in zip(lines, shown, strict=True)
    ]
    return "\n".join([*lines, *([f"- {verdict(results)}"] if evaluation.baseline else ())])


def text_report(title: str, results: Mapping[str, Any]) -> str:
    """Return scores with intervals, baseline and scores by label as plain text."""
    tables = [_text_table(table) for table in (score_table(results), label_table(results)) if table is not None]
    return "\n".join([*filter(None, [headline(results)]), title, tables[0], *summary_lines(results), *tables[1:]])


def _text_table(table: Table) -> str:
    header, rows = table
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    cells = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in (header, *rows))
    return "\n".join(f"  {'  '.join(row).rstrip()}" for row in cells)


def html_report(
    title: str, results: Mapping[str, Any], curves: Sequence[str], confusion: Mapping[str, Any] | None
) -> str:
    """Return scores, curves and confusion matrix for a notebook, as HTML and SVG without scripts."""
    lines = [html.escape(line) for line in (headline(results), *summary_lines(results)) if line]
    tables = [_html_table(table) for table in (score_table(results), label_table(results)) if table is not None]
    matrix = "" if confusion is None else _confusion_table(confusion["labels"], confusion["counts"])
    return (
        f"<div><b>{html.escape(title)}</b><p>{'<br>'.join(lines)}</p>"
        "<div style='display:flex;gap:24px;flex-wrap:wrap'>"
        f"<div>{''.join(tables)}</div>{''.join(curves)}{matrix}</div></div>"
    )


def _html_table(table: Table) -> str:
    header, rows = table
    cells = [("th", header), *(("td", row) for row in rows)]
    lines = ("".join(f"<{tag} style='{_CELL}'>{html.escape(cell)}</{tag}>" for cell in row) for tag, row in cells)
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _confusion_table(labels: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    if len(labels) > MOST_LABELS:
        return f"<p>{len(labels)} labels; the confusion matrix is in {CONFUSION_FILE}</p>"
    most = max(1, *(count for row in counts for count in row))
    header = "".join(f"<th style='{_CELL}'>{html.escape(label)}</th>" for label in labels)
    rows = "".join(
        f"<tr><th style='{_CELL}'>{html.escape(label)}</th>"
        + "".join(f"<td style='{_CELL};background:rgba(66,105,208,{count / most:.2f})'>{count}</td>" for count in row)
        + "</tr>"
        for label, row in zip(labels, counts, strict=True)
    )
    return f"<table><caption>expected (rows), predicted (columns)</caption><tr><th></th>{header}</tr>{rows}</table>"


def _shown(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else f"{value:,}"


def _interval(ends: Sequence[float] | None) -> str:
    return "" if ends is None else f"{ends[0]:.4f} to {ends[1]:.4f}"
