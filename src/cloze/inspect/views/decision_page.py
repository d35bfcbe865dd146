"""Pages about decisions: explanations as coloured words, and probable label errors as a table.

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
from cloze.predict.integrated_gradients import Explanation, Faithfulness

_POLICY = "base-uri 'none'; form-action 'none'"


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
