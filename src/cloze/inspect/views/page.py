"""Render pages: attention views (a file, a notebook, the service), explanations, label errors and evaluations.

A self-contained page loads nothing from elsewhere. Its content security policy allows only its own script and style, by
their hashes; texts are inserted as text, never as markup.

The JavaScript modules under ``static/`` need no build step: the service delivers them unchanged. Since a page that is
opened from disk cannot load modules, ``bundle_scripts`` turns each module into a function that returns its exports, in
dependency order.
"""

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from cloze import __version__
from cloze.errors import ClozeError
from cloze.files import replaced_file
from cloze.inspect.views.data import View, build_view, trace_forward, view_from_weights
from cloze.predict import Attention, Evaluation
from cloze.predict.integrated_gradients import Explanation, Faithfulness
from cloze.predict.retrieval import RetrievalEvaluation, report_tables

START = "main.js"
STYLE = "views.css"
# The part of the content security policy that does not depend on the page.
_POLICY = "base-uri 'none'; form-action 'none'"
# A notebook file contains its displayed output; with more bytes than this, it becomes slow to open.
_MAX_NOTEBOOK_SIZE = 20_000_000
_IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./([a-z_]+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:const|function|class) (\w+))", re.MULTILINE)


def read_static(name: str) -> str:
    """Read a file of the page by its name."""
    return files("cloze.inspect.views").joinpath("static", name).read_text("utf-8")


def static_names() -> list[str]:
    """Return the names of the scripts and styles that the service delivers."""
    names = (file.name for file in files("cloze.inspect.views").joinpath("static").iterdir())
    return sorted(name for name in names if name.endswith((".js", ".css")))


@cache
def bundle_scripts() -> str:
    """Bundle all JavaScript modules into one script, in dependency order."""
    parts: dict[str, str] = {}
    _bundle(START.removesuffix(".js"), parts, ())
    return "(() => {\n'use strict';\n" + "\n".join(parts.values()) + "\n})();\n"


def _bundle(name: str, parts: dict[str, str], importers: tuple[str, ...]) -> None:
    """Add a module to ``parts``, after the modules that it imports."""
    if name in parts:
        return
    assert name not in importers, f"{name}.js imports itself through {importers}: modules must not form a cycle"
    source = read_static(f"{name}.js")
    for _, imported in _IMPORT.findall(source):
        _bundle(imported, parts, (*importers, name))
    exported = ", ".join(symbol for _, symbol in _EXPORT.findall(source))
    body = _EXPORT.sub(r"\1", _IMPORT.sub(r"const \1 = module_\2;", source))
    parts[name] = f"const module_{name} = (() => {{\n{body}\nreturn {{ {exported} }};\n}})();"


def csp_hash(text: str) -> str:
    """Return the hash by which a content security policy allows an inline script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def write_page(view: View, path: Path) -> int:
    """Write a self-contained page and return its size in bytes."""
    if path.is_dir():
        raise ClozeError(f"{path}: this is a folder; name a file in it, such as {path / 'page.html'}")
    with replaced_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(page_parts(view))
    return path.stat().st_size


def render_page(view: View) -> str:
    """Return a self-contained page as a string."""
    return "".join(page_parts(view))


def page_parts(view: View) -> Iterator[str]:
    """Yield the parts of a self-contained page. The first layer and the script come first, so that it renders early."""
    script, style = bundle_scripts(), read_static(STYLE)
    policy = f"default-src 'none'; script-src '{csp_hash(script)}'; style-src '{csp_hash(style)}'; {_POLICY}"
    before, after = _frame(_title(view.facts["texts"]), policy, f"<style>{style}</style>")
    yield before
    yield f'<script type="application/json" id="facts">{json_for_html(view.facts)}</script>\n'
    first, *others = view.weights.layers
    yield _layer(0, first)
    yield f"<script>{script}</script>\n"
    for number, layer in enumerate(others, start=1):
        yield _layer(number, layer)
    yield after


def served_page(static: str) -> str:
    """Return the page of the service, which requests its data; ``static`` is the path of the scripts."""
    links = f'<link rel="icon" href="static/icon.svg">\n<link rel="stylesheet" href="{escape(static)}/{STYLE}">'
    before, after = _frame(_title([]), None, links)
    return f'{before}<script type="module" src="{escape(static)}/{START}"></script>\n{after}'


def json_for_html(value: Any) -> str:
    """Return JSON that is safe inside a script element: ASCII, without angle brackets and ampersands."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _title(texts: Sequence[str]) -> str:
    return " / ".join([*texts, "attention"])[:120]


def _frame(title: str, policy: str | None, style: str) -> tuple[str, str]:
    """Return the HTML before and after the data and the scripts."""
    meta = "" if policy is None else f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    page = read_static("page.html").replace("{{policy}}", meta).replace("{{style}}", style)
    before, _, after = page.replace("{{version}}", __version__).partition("{{scripts}}")
    # The title comes last, so that placeholders in a user's text are not replaced.
    return before.replace("{{title}}", escape(title)), after


def _layer(number: int, data: bytes) -> str:
    encoded = base64.b64encode(data).decode()
    return f'<script type="text/plain" id="layer-{number}">{encoded}</script>\n'


class AttentionPage:
    """The views of the attention over one text, which can be displayed in a notebook or saved as a file."""

    def __init__(self, view: View) -> None:
        self.view = view

    def save(self, path: str | Path) -> None:
        """Write a self-contained page that any browser can open."""
        write_page(self.view, Path(path))

    def _repr_html_(self) -> str:
        """Return a sandboxed frame that runs its own script and has no access to the notebook."""
        size = sum(map(len, self.view.weights.layers)) * 4 // 3  # base64
        if size > _MAX_NOTEBOOK_SIZE:
            reason = f"{size / 1e6:.0f} MB are too large for a notebook"
            return f"<p>{reason}; <code>.save('page.html')</code> writes a file to open.</p>"
        return (
            '<iframe sandbox="allow-scripts allow-downloads" width="100%" height="900" style="border:0" '
            f'title="Attention" srcdoc="{escape(render_page(self.view))}"></iframe>'
        )


def show(attention: Attention) -> AttentionPage:
    """Show the attention over a text in a notebook, or save it as a page.

    Args:
        attention: The result of ``model.attend``.

    Returns:
        An object that a notebook displays; ``save(path)`` writes it as an HTML file.

    Raises:
        ClozeError: By ``save``, if the path is a folder.

    Example:
        >>> model = cloze.load()
        >>> cloze.show(model.attend("The cat sat on the mat.")).save("attention.html")
    """
    if attention.origin is not None:
        model, text, pair = attention.origin
        trace = trace_forward(model, text, pair, read_mask=False)
        # If the model has changed since, or some of its heads were disabled, only the given weights can be shown.
        if np.allclose(trace.attention.weights, attention.weights, atol=1e-5):
            return AttentionPage(build_view(trace))
    return AttentionPage(view_from_weights(attention))


# -- decisions ---------------------------------------------------------------------------------------------------------


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
