"""The views in the service: the same data and weights, limits and errors, and the page in a browser."""

import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, expect
from torture.services import Running, listening, running

from cloze.inspect.views.data import dequantize, quantization_error
from cloze.inspect.views.page import static_names
from cloze.predict import Model, load
from cloze.serve.operations import ENTRY_BYTES, AttentionCache, AttentionRecord
from cloze.serve.settings import Limits, ServiceSettings
from tests.inspect.test_browser import Visit, browser, settled
from tests.model.made import model_folder, saved

__all__ = ["browser"]  # a fixture

TEXT, PAIR = "the cat sat on [MASK] mat.", "a dog ran."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(model_folder(["mlm", "nsp"]), tmp_path_factory.mktemp("served") / "base")


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Running]:
    limits = Limits(characters=300, queue=64, timeout=20)
    with running(ServiceSettings({"base": str(folder), "other": str(folder)}, limits=limits)) as found:
        yield found


def test_facts_and_weights_are_those_of_the_model(served: Running, folder: Path) -> None:
    model: Model = load(folder)
    facts = served.post("/inspect/view", {"text": "the cat sat.", "pair": PAIR}).json()
    attention = model.attend("the cat sat.", PAIR)
    assert (facts["tokens"], facts["segments"]) == (attention.tokens, attention.segments)
    assert facts["model"] == "base"
    assert facts["fills"] is not None
    assert facts["error"] == quantization_error(1.0, 255)
    for layer in range(3):
        answer = served.get(f"/inspect/weights/{facts['id']}/{layer}")
        assert answer.headers["content-type"] == "application/octet-stream"
        found = dequantize(answer.content, facts["levels"], facts["heads"], len(facts["tokens"]))
        np.testing.assert_allclose(found, attention.weights[layer], atol=facts["error"])


def test_another_model_is_selected_by_name(served: Running) -> None:
    assert served.post("/inspect/view", {"text": "the", "model": "other"}).json()["model"] == "other"
    assert served.post("/inspect/view", {"text": "the", "model": "none"}).status_code == 404


@pytest.mark.parametrize(
    ("name", "layer", "message"),
    [
        ("nothing", "0", "this text is no longer cached; submit it again"),
        ("", "3", "no layer '3'; expected 0 to 2"),
        ("", "-1", "no layer '-1'; expected 0 to 2"),
        ("", "٣", "no layer '٣'; expected 0 to 2"),
        ("", "99999999999999999999999999", "no layer '99999999999999999999'; expected 0 to 2"),
    ],
)
def test_weights_that_are_not_there(name: str, layer: str, message: str, served: Running) -> None:
    found = name or served.post("/inspect/view", {"text": "the"}).json()["id"]
    answer = served.get(f"/inspect/weights/{found}/{layer}")
    assert (answer.status_code, answer.json()["error"]["message"]) == (404, message)


def test_limits_are_those_of_the_service(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    assert served.post("/inspect/view", {"text": "cat " * 100}).status_code == 413
    assert served.post("/inspect/view", {"texts": "cat"}).status_code == 400
    assert served.post("/inspect/view", content=b'{"text": "\\ud800"}').status_code == 400
    monkeypatch.setattr("cloze.serve.operations.MOST_WEIGHTS", 100)
    refused = served.post("/inspect/view", {"text": "the cat sat"})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == (
        "5 tokens have 150 attention weights, but at most 100 are allowed; give a shorter text"
    )


def test_model_that_gives_no_numbers(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloze.serve.operations.np.isfinite", lambda values: np.zeros(values.shape, bool))
    answer = served.post("/inspect/view", {"text": "the"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "model_failed")


def test_oldest_texts_are_forgotten() -> None:
    views = AttentionCache(most=100 + 2 * ENTRY_BYTES)
    names = [views.add(AttentionRecord({}, np.zeros((1, 1, 6, 6), np.uint8))) for _ in range(2)]
    views.find(names[0], "0")  # makes this view the most recently used one
    third = views.add(AttentionRecord({}, np.zeros((1, 1, 6, 6), np.uint8)))
    assert [name in views._steps for name in (*names, third)] == [True, False, True]
    large = views.add(AttentionRecord({}, np.zeros((1, 1, 20, 20), np.uint8)))
    assert list(views._steps) == [large]
    assert len({*names, third, large}) == 4


def test_cached_memory_equals_accounted_memory() -> None:
    """The accounted memory covers everything cached: whole buffers of array views, but not data that is sent once."""
    views = AttentionCache(most=1_000_000)
    tracemalloc.start()
    try:
        for _ in range(60):
            facts = {"tokens": [str(number) * 20 for number in range(1000)]}
            views.add(AttentionRecord(facts, np.zeros((4, 2, 10, 10), np.uint8)[:1]))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2 * views._bytes
    assert views._bytes == 60 * (800 + ENTRY_BYTES)
    for _ in range(2000):
        views.add(AttentionRecord({}, np.zeros((4, 2, 10, 10), np.uint8)))
    assert len(views._steps) == 1_000_000 // (800 + ENTRY_BYTES)


def test_page_and_its_files(served: Running) -> None:
    page = served.get("/inspect")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'self'" in page.headers["content-security-policy"]
    for name in static_names():
        answer = served.get(f"/inspect/static/{name}")
        kind = "text/css" if name.endswith(".css") else "text/javascript"
        assert (answer.status_code, answer.headers["content-type"]) == (200, f"{kind}; charset=utf-8")
    for name in ("../page.py", "..%2fpage.py", "%2e%2e/page.py", "page.html", "nothing.js"):
        assert served.get(f"/inspect/static/{name}").status_code == 404


def test_page_in_a_browser(served: Running, browser: Browser) -> None:
    with listening(served) as address, Visit(browser) as visit:
        page = visit.page
        page.goto(f"{address}/inspect")
        page.locator("#stage[data-layer]").wait_for()
        expect(page.locator("#model")).to_contain_text("base, 3 layers of 2 heads")
        page.locator("#text-a").fill(f"{TEXT} <img src=x onerror=alert(1)>")
        page.locator("#text-b").fill(PAIR)
        page.locator("#ask-model").select_option("other")
        page.get_by_role("button", name="Show").click()
        expect(page.locator("#texts")).to_contain_text("<img src=x onerror=alert(1)>")
        expect(page.locator("#model")).to_contain_text("other")
        page.locator("#layer").select_option("2")
        page.locator("#stage[data-layer='2']").wait_for()
        link, text = page.evaluate("() => location.href"), page.locator("#table").inner_text()
        page.goto("about:blank")
        page.goto(link)
        page.locator("#stage[data-layer='2']").wait_for()
        expect(page.locator("#text-b")).to_have_value(PAIR)
        settled(page)
        assert page.locator("#table").inner_text() == text
        assert visit.complaints == []
        page.locator("#text-a").fill("cat " * 100)
        page.get_by_role("button", name="Show").click()
        expect(page.locator("#caption")).to_contain_text(re.compile("characters in one request"))
