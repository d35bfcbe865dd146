"""The page as a file: it is self-contained and treats texts only as data; and the commands that write it."""

import base64
import json
import re
import zlib
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import cloze
from cloze.errors import ClozeError
from cloze.inspect.views.data import build_view, trace_forward, view_from_weights
from cloze.inspect.views.page import (
    bundle_scripts,
    csp_hash,
    json_for_html,
    read_static,
    render_page,
    served_page,
    static_names,
    write_page,
)
from cloze.predict import Attention, Model, load
from tests.cli.conftest import Cloze, quiet_neighbours, run
from tests.model.made import model_folder, saved

__all__ = ["quiet_neighbours", "run"]  # fixtures

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "{{scripts}}",
    "{{title}}",
    "\u2028",
    "&quot;\"'",
    "]]>",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(model_folder(["mlm", "nsp"]), tmp_path_factory.mktemp("viewed") / "model")


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load(folder)


class Parts(HTMLParser):
    """The scripts and styles of a page, and every attribute that could load something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.styles: list[str] = []
        self.policy = ""
        self.reaching: list[tuple[str, str | None]] = []
        self.title = ""
        self._open = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open = tag
        values = dict(attrs)
        if tag == "script":
            self.scripts.append((values, ""))
        elif tag == "style":
            self.styles.append("")
        elif tag == "meta" and values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values["content"] or ""
        self.reaching += [
            (name, value) for name, value in attrs if name in ("src", "href", "action", "style", "srcset")
        ]
        self.reaching += [(name, value) for name, value in attrs if name.startswith("on")]

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = attributes, text + data
        elif self._open == "style":
            self.styles[-1] += data
        elif self._open == "title":
            self.title += data


def hostile_view() -> Parts:
    weights = np.full((2, 2, len(HOSTILE), len(HOSTILE)), 1 / len(HOSTILE), np.float32)
    view = view_from_weights(Attention(HOSTILE, [0] * len(HOSTILE), weights))
    view.facts["texts"] = [" ".join(HOSTILE)]
    return Parts(render_page(view))


def test_page_is_closed_to_the_outside(model: Model) -> None:
    parts = Parts(render_page(build_view(trace_forward(model, "the cat sat."))))
    assert parts.reaching == []
    (script,) = [text for attributes, text in parts.scripts if "type" not in attributes]
    (style,) = parts.styles
    assert script == bundle_scripts()
    expected = [
        "default-src 'none'",
        f"script-src '{csp_hash(script)}'",
        f"style-src '{csp_hash(style)}'",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    assert parts.policy.split("; ") == expected
    addresses = set(re.findall(r"https?://[^\s\"'`<>]+", render_page(build_view(trace_forward(model, "the cat sat.")))))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a namespace identifier, which is never fetched
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert word not in script


def test_fingerprint_is_the_one_that_browsers_compute() -> None:
    # The example in the standard (CSP level 2, section 7.15).
    assert csp_hash("alert('Hello, world.');") == "sha256-qznLcsROx4GACP2dm0UCKCzCG+HiZ1guq6ZZDob/Tng="


def test_texts_are_data(model: Model) -> None:
    parts = hostile_view()
    kinds = [attributes.get("type", "") for attributes, _ in parts.scripts]
    assert kinds == ["application/json", "text/plain", "", "text/plain"]
    facts = json.loads(parts.scripts[0][1])
    assert facts["tokens"] == HOSTILE
    assert parts.title == f"{' '.join(HOSTILE)} / attention"[:120]
    assert set("<>&") & set(parts.scripts[0][1]) == set()
    assert parts.scripts[2][1] == bundle_scripts()


def test_json_of_anything_comes_back() -> None:
    value = {"a": [*HOSTILE, "\ud800", 1.5, None]}
    assert json.loads(json_for_html(value)) == value
    assert json_for_html(value).isascii()


def test_layers_are_the_weights(model: Model) -> None:
    view = build_view(trace_forward(model, "the cat sat.", "a dog ran."))
    parts = Parts(render_page(view))
    layers = {attributes["id"]: text for attributes, text in parts.scripts if attributes.get("type") == "text/plain"}
    assert list(layers) == ["layer-0", "layer-1", "layer-2"]
    for text, layer in zip(layers.values(), view.weights.layers, strict=True):
        assert base64.b64decode(text) == layer
        assert len(zlib.decompress(layer)) == 2 * len(view.facts["tokens"]) ** 2


def test_modules_stand_after_those_that_they_import() -> None:
    script = bundle_scripts()
    names = re.findall(r"^const module_(\w+) = ", script, re.MULTILINE)
    assert {f"{name}.js" for name in names} == {name for name in static_names() if name.endswith(".js")}
    assert names[-1] == "main"
    assert not re.search(r"^(import|export) ", script, re.MULTILINE)
    seen: set[str] = set()
    for name in names:
        used = set(re.findall(r'^import .* from "\./(\w+)\.js";', read_static(f"{name}.js"), re.MULTILINE))
        assert used <= seen
        seen.add(name)


def test_served_frame_fetches_from_its_own_place() -> None:
    parts = Parts(served_page("/inspect/static"))
    assert [value for _, value in parts.reaching] == [
        "static/icon.svg",
        "/inspect/static/views.css",
        "/inspect/static/main.js",
    ]
    assert parts.policy == ""  # the service sends it as a header


def test_written_whole_or_not_at_all(model: Model, tmp_path: Path) -> None:
    view = build_view(trace_forward(model, "the cat"))
    assert write_page(view, tmp_path / "new" / "page.html") == len(render_page(view))
    with pytest.raises(ClozeError, match=r"this is a folder; name a file in it, such as .*new/page.html"):
        write_page(view, tmp_path / "new")
    (tmp_path / "file").write_text("x")
    with pytest.raises(ClozeError, match="cannot be written"):
        write_page(view, tmp_path / "file" / "page.html")


def shown_page(display: str) -> str:
    """Return the page inside the frame that a notebook displays."""
    found = re.fullmatch(
        r'<iframe sandbox="allow-scripts allow-downloads" .* srcdoc="([^"]*)"></iframe>', display, re.DOTALL
    )
    assert found is not None
    return unescape(found[1])


def test_notebooks_display_attention(model: Model, tmp_path: Path) -> None:
    shown = cloze.show(model.attend("the cat sat on a [MASK]."))
    page = shown_page(shown._repr_html_())
    facts = json.loads(Parts(page).scripts[0][1])
    assert facts["tokens"] == model.attend("the cat sat on a [MASK].").tokens
    assert facts["neighbours"] is not None
    shown.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text("utf-8") == page


def test_attention_that_the_model_would_no_longer_have_is_shown_alone(model: Model) -> None:
    with model.without_heads([(0, 1)]):
        attention = model.attend("the cat sat.")
    facts = json.loads(Parts(shown_page(cloze.show(attention)._repr_html_())).scripts[0][1])
    assert facts["neighbours"] is None
    assert facts["tokens"] == attention.tokens
    alone = Attention(attention.tokens, attention.segments, attention.weights)
    assert json.loads(Parts(shown_page(cloze.show(alone)._repr_html_())).scripts[0][1]) == facts


def test_notebooks_are_spared_what_is_too_large(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloze.inspect.views.page._MAX_NOTEBOOK_SIZE", 10)
    output = cloze.show(model.attend("the cat"))._repr_html_()
    assert "are too large for a notebook" in output


def test_command(folder: Path, tmp_path: Path, run: Cloze) -> None:
    page = tmp_path / "page.html"
    done = run("inspect", "--model", folder, "--out", page)
    assert (done.code, done.err) == (0, "")
    assert re.fullmatch(r".*page.html: \d+ tokens, 0.\d MB; open it in a browser\n", done.out)
    facts = json.loads(Parts(page.read_text("utf-8")).scripts[0][1])
    assert facts["texts"] == ["I went to the store.", "At the store, I bought fresh strawberries."]
    assert facts["model"] == "model"
    long = run("inspect", "the cat " * 40, "--model", folder, "--out", page).out
    assert re.search(r": \d+ tokens \(\d+ more exceed the maximum length and were truncated\), ", long)
    output = json.loads(run("inspect", "the [MASK]", "--model", folder, "--out", page, "--json").out)
    assert output == {"page": str(page), "bytes": page.stat().st_size, "tokens": 4, "cut": 0}
    assert json.loads(Parts(page.read_text("utf-8")).scripts[0][1])["tokens"] == ["[CLS]", "the", "[MASK]", "[SEP]"]


def test_command_tells_of_mistakes(folder: Path, tmp_path: Path, run: Cloze) -> None:
    done = run("inspect", "the cat", "--model", folder, "--out", tmp_path)
    assert done.code == 2
    assert "this is a folder" in done.complaint
    done = run("inspect", "the", "--model", folder, "--out", tmp_path / "x.html", "--heads", tmp_path / "no.json")
    assert done.code == 2
    assert "no.json: was not written by 'cloze heads'" in done.complaint
