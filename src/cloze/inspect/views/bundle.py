"""The pages' scripts as one: what a browser does with modules that it fetches, done beforehand for a page in one file.

The modules under ``static/`` are plain and need no build: a service gives them out as they are. A file that is opened
from a disk cannot fetch; for it, each becomes a function that returns what it exports, after those that it imports.
"""

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files

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
