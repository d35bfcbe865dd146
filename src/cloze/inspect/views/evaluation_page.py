"""A page with the scores of a model and the rows or queries on which it is worst."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloze.inspect.views.decision_page import write_data_page
from cloze.predict import Evaluation
from cloze.predict.retrieval import RetrievalEvaluation, report_tables

# Rows or queries in the page, results of a query, and characters of a text.
_MOST_ROWS = 200
_RESULTS = 5
_MOST_CHARACTERS = 1000


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
