"""Pages about decisions: explanations as coloured words, probable label errors, and the worst rows of an evaluation.

Each page is one file that loads nothing from elsewhere, with the content security policy of the attention page; texts
are inserted as text, never as markup.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from cloze import __version__
from cloze.errors import ClozeError
from cloze.files import replaced_file
from cloze.inspect.views.page import csp_hash, json_for_html
from cloze.predict import Evaluation
from cloze.predict.integrated_gradients import Explanation, Faithfulness
from cloze.predict.retrieval import RetrievalEvaluation, report_tables

_POLICY = "base-uri 'none'; form-action 'none'"
# Rows or queries in the page, results of a query, and characters of a text.
_MOST_ROWS = 200
_RESULTS = 5
_MOST_CHARACTERS = 1000


def explanation_row(why: Explanation) -> dict[str, Any]:
    """Return an explanation as JSON values, as ``cloze explain --json`` prints it."""
    row: dict[str, Any] = {
        "row": why.row,
        "texts": list(why.texts),
        "label": why.label,
        "span": why.span,
        "probability": why.probability,
        "output": why.output,
        "baseline": why.baseline,
        "delta": why.delta,
        "steps": why.steps,
        "agreement": why.agreement,
        "words": [asdict(word) for word in why.words],
    }
    if why.deletion is not None:
        row |= {"deletion": why.deletion, "random_deletion": why.random_deletion}
    return row


def write_explanations(
    explanations: Sequence[Explanation], measured: Faithfulness | None, model: str, path: Path
) -> int:
    """Write a page of explanations and return its size in bytes."""
    data = {
        "kind": "explanations",
        "title": "Why this label",
        "model": model,
        "explanations": [explanation_row(why) for why in explanations],
        "faithfulness": None if measured is None else asdict(measured),
    }
    return write_data_page(data, path)


def write_label_errors(rows: Sequence[Mapping[str, Any]], summary: str, notes: str, path: Path) -> int:
    """Write a page of rows that may be mislabelled and return its size in bytes.

    Args:
        rows: For each row, the most suspicious first: ``row``, ``texts``, ``label``, ``suggested``, ``probability``,
            ``given_probability`` and ``issue``.
        summary: The line below the heading.
        notes: How the rows were ranked.
        path: The file.
    """
    data = {"kind": "label_errors", "title": "Probable label errors", "rows": rows, "summary": summary, "notes": notes}
    return write_data_page(data, path)


def write_evaluation(evaluation: Evaluation, model: str, path: Path) -> int:
    """Write a self-contained page about an evaluation and return its size in bytes."""
    return write_data_page(evaluation_data(evaluation, model), path)


def evaluation_data(evaluation: Evaluation, model: str) -> dict[str, Any]:
    """Return the data of the page: tables of scores, and the worst queries or the wrong rows."""
    tables, lines = report_tables(evaluation)
    data: dict[str, Any] = {
        "kind": "evaluation",
        "title": "Evaluation",
        "model": model,
        "tables": [[list(header), [list(row) for row in rows]] for header, rows in tables],
        "lines": lines,
    }
    if isinstance(evaluation, RetrievalEvaluation):
        notes = f"The {_MOST_ROWS} queries with the lowest scores, and the first {_RESULTS} results of each system."
        return data | {"queries": _worst_queries(evaluation), "metric": next(iter(evaluation.metrics)), "notes": notes}
    wrong = evaluation.wrong()
    data["notes"] = f"At most {_MOST_ROWS} wrong rows; of pairs with scores, those whose ranks differ most."
    rows = [{name: _cut(text) for name, text in row.items()} for row in wrong[:_MOST_ROWS]]
    return data | {"rows": rows, "wrong": len(wrong)}


def _worst_queries(evaluation: RetrievalEvaluation) -> list[dict[str, Any]]:
    """Return the queries with the lowest scores, worst first: among equal ones those whose first hit ranks lowest."""
    metric, name = next(iter(evaluation.metrics)), evaluation.systems[0].name

    def badness(row: Mapping[str, Any]) -> tuple[float, float]:
        found = row["systems"][name]
        return found[metric], -(found["first"] or float("inf"))

    return [_query(evaluation, row, metric) for row in sorted(evaluation.query_rows(), key=badness)[:_MOST_ROWS]]


def _query(evaluation: RetrievalEvaluation, row: Mapping[str, Any], metric: str) -> dict[str, Any]:
    documents, relevant = evaluation.data.documents, row["relevant"]

    def shown(document: str) -> dict[str, Any]:
        return {"id": document, "text": _cut(documents[document]), "relevant": document in relevant}

    systems = [
        {
            "name": name,
            "score": found[metric],
            "first": found["first"],
            "results": [shown(document) for document in found["results"][:_RESULTS]],
        }
        for name, found in row["systems"].items()
    ]
    best = [shown(document) for document in list(relevant)[:_RESULTS]]
    return {"query": row["query"], "text": _cut(row["text"]), "relevant": best, "systems": systems}


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "…"


def write_data_page(data: Mapping[str, Any], path: Path) -> int:
    """Write a self-contained page that shows some data, and return its size in bytes."""
    if path.is_dir():
        raise ClozeError(f"{path}: this is a folder; name a file in it, such as {path / 'page.html'}")
    with replaced_file(path) as temporary:
        # Texts in memory may have unpaired surrogates, but JSON escapes everything beyond ASCII.
        temporary.write_text(render_data_page(data), encoding="utf-8")
    return path.stat().st_size


def render_data_page(data: Mapping[str, Any]) -> str:
    """Return a self-contained page that shows some data."""
    page, style, script = (
        files("cloze.inspect.views").joinpath("decisions", name).read_text("utf-8")
        for name in ("page.html", "page.css", "page.js")
    )
    policy = f"default-src 'none'; script-src '{csp_hash(script)}'; style-src '{csp_hash(style)}'; {_POLICY}"
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    facts = f'<script type="application/json" id="facts">{json_for_html(_finite(data))}</script>\n'
    before, _, after = page.partition("{{scripts}}")
    before = before.replace("{{policy}}", meta).replace("{{style}}", f"<style>{style}</style>")
    before = before.replace("{{version}}", __version__).replace("{{title}}", escape(data["title"]))
    return f"{before}{facts}<script>{script}</script>{after}"


def _finite(value: Any) -> Any:
    """Replace numbers that JSON cannot represent by None."""
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
