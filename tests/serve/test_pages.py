"""The pages in a real browser: every tab works with mouse and keyboard, and no text is interpreted as markup (T22)."""

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page
from torture.pages import PAYLOADS, PLACES, Shown, Watch, attack, browsing, chromium
from torture.services import listening, running

from cloze.progress import Silent
from cloze.serve.settings import ServiceSettings

pytestmark = pytest.mark.skipif(chromium() is None and "CI" not in os.environ, reason="chromium is not installed")
MOST = 20_000  # timeout in milliseconds


@pytest.fixture(scope="module")
def address(folders: dict[str, str], index: str) -> Iterator[str]:
    with running(ServiceSettings(folders, index=index)) as service, listening(service) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as found:
        yield found


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    watch = Watch(address)
    with browser.new_page() as made:
        watch.over(made)
        made.set_default_timeout(MOST)
        yield made
    assert watch.failures == []


def answer(page: Page) -> str:
    page.wait_for_selector("#result > *")
    return page.inner_text("#result")


def test_every_tab_answers(page: Page, address: str) -> None:
    page.goto(address)
    page.wait_for_selector("#tabs button")
    titles = page.eval_on_selector_all("#tabs button:not(.unable)", "tabs => tabs.map(tab => tab.textContent)")
    assert titles[:4] == ["Fill", "Embed", "Rerank", "Search"]
    assert len(titles) >= 10
    for title in titles:
        page.click(f"#tabs button:text-is('{title}')")
        page.wait_for_selector(f"#title:text-is('{title}')")  # the page changes after its address has changed
        page.click("form button")
        answer_text = answer(page)
        assert " ms" in answer_text
        assert page.query_selector(".error") is None, (title, answer_text)


def test_keyboard_alone(page: Page, address: str) -> None:
    page.goto(address)
    page.wait_for_selector("#tabs button")
    page.focus("#tabs button[aria-selected=true]")
    page.keyboard.press("End")
    page.wait_for_selector("#title:text-is('bert-as-service')")
    page.keyboard.press("ArrowDown")  # the selection wraps around to the first tab
    page.wait_for_selector("#title:text-is('Fill')")
    page.keyboard.press("Tab")
    page.keyboard.press("Control+A")
    page.keyboard.type("the [MASK] sat")
    page.keyboard.press("Control+Enter")
    assert "the [MASK] sat" in answer(page)


def test_addresses_that_name_no_route(page: Page, address: str) -> None:
    for name in ("#%", "#/nothing", "#"):
        page.goto(f"{address}/{name}")
        page.reload()
        page.wait_for_selector("form button")
        assert page.inner_text("#title") == "Search"  # the page of a service with an index


def test_errors_are_reported(page: Page, address: str) -> None:
    page.goto(f"{address}/#/fill")
    page.fill("textarea", "no blank here")
    page.click("form button")
    assert "no [MASK] in 'no blank here'" in answer(page)
    assert page.get_attribute("#result .error", "role") == "alert"


def test_every_route_is_listed(page: Page, address: str) -> None:
    page.goto(f"{address}/docs")
    page.wait_for_selector(".route")
    answer_text = page.eval_on_selector_all(".route h2 code", "routes => routes.map(route => route.textContent)")
    assert {"/embed", "/v1/embeddings", "/v1/models", "/fill", "/encode", "/health", "/metrics"} <= set(answer_text)


def test_the_page_of_attention_is_one_click_away(page: Page, address: str) -> None:
    page.goto(address)
    page.click("nav a:text-is('Attention')")
    page.wait_for_url(f"{address}/inspect")
    assert page.title() == "attention"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(scheme: str, browser: Browser, address: str) -> None:
    with browser.new_context(color_scheme=scheme) as context:  # type: ignore[arg-type]
        page = context.new_page()
        page.goto(address)
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        red = int(ground.removeprefix("rgb(").split(",")[0])
        assert (red > 128) == (scheme == "light")


def test_markup_is_text(browser: Browser) -> None:
    outcome = attack(browser, [PAYLOADS[0], PAYLOADS[1], PAYLOADS[28]], Silent())
    assert outcome.failures == []
    assert outcome.passed
    assert int(outcome.figures["questions"]) > 10
    assert {name: outcome.figures[f"shown as {name}"] for name in PLACES} == dict.fromkeys(PLACES, 3)


def test_markup_that_is_not_shown_would_be_noticed() -> None:
    shown = Shown(["<a>", "<b>"])
    for place in PLACES:
        shown.note(place, ["<a>", "<b>"])
    assert shown.failures == []
    shown.places["tags"].clear()
    shown.note("tags", ["<a>", "x<b>"])  # the payload is only part of a text
    assert shown.failures == ["as tags: 1 were not shown, such as <b>"]


def test_markup_that_ran_would_be_noticed(browser: Browser, address: str) -> None:
    watch = Watch(address)
    with browser.new_page() as page:
        watch.over(page)
        page.goto(address)
        page.evaluate("alert(1)")
        page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=//evil.example/x onerror=alert(2)>')")
        page.wait_for_timeout(300)
    assert watch.dialogs == ["1"]  # the second was blocked by the policy
    assert watch.violations
