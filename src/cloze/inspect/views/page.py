"""A view -> a page: one file that works from a disk, or the frame that a service fills.

Nothing is fetched from anywhere. The policy inside the file allows the one script and the one style that it was made
with, by their hashes, and no other; texts are data, put on the page as text alone.

The pages' scripts as one: what a browser does with modules that it fetches, done beforehand for a page in one file.

The modules under ``static/`` are plain and need no build: a service gives them out as they are. A file that is opened
from a disk cannot fetch; for it, each becomes a function that returns what it exports, after those that it imports.

``cloze.show(model.attend(...))``: the views inside a notebook, or in a file of their own.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from cloze import __version__
from cloze.errors import ClozeError
from cloze.files import replaced_file
from cloze.inspect.views.data import View, look, make_view, view_of
from cloze.predict import Attention

START = "main.js"
STYLE = "views.css"
_IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./([a-z_]+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:const|function|class) (\w+))", re.MULTILINE)


def read_static(name: str) -> str:
    """One of the files that make a page."""
    return files("cloze.inspect.views").joinpath("static", name).read_text("utf-8")


def static_names() -> list[str]:
    """The scripts and the style, as a service gives them out."""
    names = (one.name for one in files("cloze.inspect.views").joinpath("static").iterdir())
    return sorted(name for name in names if name.endswith((".js", ".css")))


@cache
def one_script() -> str:
    """All modules in one, in the order in which they need each other."""
    parts: dict[str, str] = {}
    _gather(START.removesuffix(".js"), parts, ())
    return "(() => {\n'use strict';\n" + "\n".join(parts.values()) + "\n})();\n"


def _gather(name: str, parts: dict[str, str], waiting: tuple[str, ...]) -> None:
    if name in parts:
        return
    assert name not in waiting, f"{name}.js imports itself by way of {waiting}: no order puts each after its own"
    source = read_static(f"{name}.js")
    for _, imported in _IMPORT.findall(source):
        _gather(imported, parts, (*waiting, name))
    exported = ", ".join(found for _, found in _EXPORT.findall(source))
    body = _EXPORT.sub(r"\1", _IMPORT.sub(r"const \1 = module_\2;", source))
    parts[name] = f"const module_{name} = (() => {{\n{body}\nreturn {{ {exported} }};\n}})();"


def fingerprint(text: str) -> str:
    """What a content security policy calls an inline script or style by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


_REST = "base-uri 'none'; form-action 'none'"


def write_page(view: View, path: Path) -> int:
    """Write a page in one file; returns its size in bytes."""
    if path.is_dir():
        raise ClozeError(f"{path}: this is a folder; name a file in it, such as {path / 'page.html'}")
    with replaced_file(path) as temporary:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines(page_parts(view))
    return path.stat().st_size


def render_page(view: View) -> str:
    """A page in one piece."""
    return "".join(page_parts(view))


def page_parts(view: View) -> Iterator[str]:
    """The parts of a page in one file: the first layer and the script come first, so that it is seen at once."""
    script, style = one_script(), read_static(STYLE)
    policy = f"default-src 'none'; script-src '{fingerprint(script)}'; style-src '{fingerprint(style)}'; {_REST}"
    before, after = _frame(_title(view.facts["texts"]), policy, f"<style>{style}</style>")
    yield before
    yield f'<script type="application/json" id="facts">{json_text(view.facts)}</script>\n'
    first, *others = view.weights.layers
    yield _layer(0, first)
    yield f"<script>{script}</script>\n"
    for number, layer in enumerate(others, start=1):
        yield _layer(number, layer)
    yield after


def served_frame(static: str) -> str:
    """The page that a service gives out, which asks it for everything else; ``static`` is where the scripts are."""
    links = f'<link rel="icon" href="static/icon.svg">\n<link rel="stylesheet" href="{escape(static)}/{STYLE}">'
    before, after = _frame(_title([]), None, links)
    return f'{before}<script type="module" src="{escape(static)}/{START}"></script>\n{after}'


def json_text(value: Any) -> str:
    """JSON that no HTML parser takes for the end of a script: without angle brackets, and nothing beyond ASCII."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _title(texts: Sequence[str]) -> str:
    return " / ".join([*texts, "attention"])[:120]


def _frame(title: str, policy: str | None, style: str) -> tuple[str, str]:
    """What stands before the data and the scripts, and what after them."""
    meta = "" if policy is None else f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    page = read_static("page.html").replace("{{policy}}", meta).replace("{{style}}", style)
    before, _, after = page.replace("{{version}}", __version__).partition("{{scripts}}")
    # Last, so that what a text says is not looked at for places to fill.
    return before.replace("{{title}}", escape(title)), after


def _layer(number: int, data: bytes) -> str:
    encoded = base64.b64encode(data).decode()
    return f'<script type="text/plain" id="layer-{number}">{encoded}</script>\n'


# A notebook keeps what it displays in its own file; beyond this it would no longer open well.
_LARGEST = 20_000_000


class Shown:
    """The views of one attention."""

    def __init__(self, view: View) -> None:
        self.view = view

    def save(self, path: str | Path) -> None:
        """Write the views into one file that any browser opens."""
        write_page(self.view, Path(path))

    def _repr_html_(self) -> str:
        """What a notebook displays: a frame that can run its own script and reach nothing of the notebook."""
        size = sum(map(len, self.view.weights.layers)) * 4 // 3
        if size > _LARGEST:
            told = f"{size / 1e6:.0f} MB are too much for a notebook"
            return f"<p>{told}; <code>.save('page.html')</code> writes a file to open.</p>"
        return (
            '<iframe sandbox="allow-scripts allow-downloads" width="100%" height="900" style="border:0" '
            f'title="Attention" srcdoc="{escape(render_page(self.view))}"></iframe>'
        )


def show(attention: Attention) -> Shown:
    """The views of what ``model.attend`` has returned."""
    if attention.origin is not None:
        model, text, pair = attention.origin
        looked = look(model, text, pair, read_mask=False)
        # The model may have changed since, or have answered without some of its heads: then only the weights are sure.
        if np.allclose(looked.attention.weights, attention.weights, atol=1e-5):
            return Shown(make_view(looked))
    return Shown(view_of(attention))
