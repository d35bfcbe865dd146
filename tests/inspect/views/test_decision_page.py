"""Pages of explanations and label errors: closed to the outside, hostile texts, and what a browser shows."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from cloze.errors import ClozeError
from cloze.inspect.views.page import csp_hash, render_data_page, write_explanations, write_label_errors
from cloze.predict.integrated_gradients import Explanation, WordAttribution, faithfulness
from tests.inspect.test_browser import PAYLOADS, Visit, browser
from tests.inspect.views.test_page import Parts

__all__ = ["browser"]  # a fixture


def explained(text: str, label: str | None = "good") -> Explanation:
    """An explanation whose words are the thirds of a text."""
    size = max(1, len(text) // 3)
    starts = range(0, len(text), size)
    words = [
        WordAttribution(text[start : start + size], start, min(len(text), start + size), 0, (-1) ** number / 2, 0.1)
        for number, start in enumerate(starts)
    ]
    falling = tuple(1 - step / 10 for step in range(11))
    return Explanation(0, (text,), label, None, tuple(words), 1.0, 0.5, 16, falling, (1.0,) * 10 + (0.0,))


def error_row(text: str, label: str, *, issue: bool = True) -> dict[str, object]:
    shares = {"probability": 0.9, "given_probability": 0.1}
    return {"row": f"rows.csv:{label}", "texts": [text], "label": label, "suggested": "bad", "issue": issue, **shares}


@pytest.fixture
def visit(browser: "object") -> Iterator[Visit]:
    with Visit(browser, offline=True) as found:  # type: ignore[arg-type]
        yield found
        assert found.complaints == []


def opened(visit: Visit, path: Path) -> Page:
    visit.page.goto("about:blank")
    visit.complaints.clear()
    visit.page.goto(path.as_uri())
    return visit.page


def test_page_is_closed_to_the_outside() -> None:
    page = render_data_page({"kind": "label_errors", "title": "<b>", "rows": [], "summary": "", "notes": ""})
    parts = Parts(page)
    assert parts.reaching == []
    (script,) = [text for attributes, text in parts.scripts if "type" not in attributes]
    (style,) = parts.styles
    assert f"script-src '{csp_hash(script)}'" in parts.policy
    assert f"style-src '{csp_hash(style)}'" in parts.policy
    assert parts.policy.startswith("default-src 'none'")
    assert "innerHTML" not in script


def test_words_are_coloured_by_their_values(visit: Visit, tmp_path: Path) -> None:
    path = tmp_path / "why.html"
    found = [explained("😀 good film"), explained("3.5 of 5", None)]
    assert write_explanations(found, faithfulness(found), "made", path) == path.stat().st_size
    page = opened(visit, path)
    expect(page.locator("article .text").first).to_have_text("😀 good film")
    words = page.locator("article").first.locator(".word")
    assert words.all_text_contents() == [word.text for word in found[0].words]
    assert list(words.evaluate_all("all => all.map(one => one.title)"))[:2] == ["+0.500", "−0.500"]
    assert "against" in (words.nth(1).get_attribute("class") or "")
    background = words.first.evaluate("one => getComputedStyle(one).backgroundColor")
    assert background.startswith("rgba(43, 95, 184, 0.7")
    expect(page.locator("figure polyline")).to_have_count(2)
    expect(page.locator("article").nth(1)).to_contain_text("value 1.000")
    page.get_by_label("Measure").select_option("occlusion")
    assert words.nth(1).evaluate("one => one.title") == "+0.100"


def test_errors_are_filtered(visit: Visit, tmp_path: Path) -> None:
    path = tmp_path / "errors.html"
    rows = [error_row("a dull film", "good"), error_row("fine", "fair"), error_row("ok", "good", issue=False)]
    write_label_errors(rows, "3 rows", "how", path)
    page = opened(visit, path)
    lines = page.locator("tbody tr")
    expect(lines).to_have_count(2)
    page.get_by_label("probable errors only").uncheck()
    expect(lines).to_have_count(3)
    page.get_by_label("Given label").select_option("good")
    expect(lines).to_have_count(2)
    page.get_by_label("Search texts").fill("DULL")
    expect(lines).to_have_count(1)
    expect(lines.first).to_contain_text("90.0 %")


def test_hostile_texts_are_shown_as_text(visit: Visit, tmp_path: Path) -> None:
    why, errors = tmp_path / "why.html", tmp_path / "errors.html"
    write_explanations([explained(text, text) for text in PAYLOADS], None, PAYLOADS[0], why)
    write_label_errors([error_row(text, text) for text in PAYLOADS], PAYLOADS[1], PAYLOADS[2], errors)
    page = opened(visit, why)
    assert page.locator("article .text").all_text_contents() == PAYLOADS
    assert page.locator("h2").all_text_contents() == PAYLOADS
    page = opened(visit, errors)
    assert page.locator("td.long").all_text_contents() == PAYLOADS
    page.get_by_label("Given label").select_option(index=3)
    expect(page.locator("tbody tr")).to_have_count(1)
    assert page.locator("#summary").text_content() == PAYLOADS[1]


def test_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ClozeError, match=r"this is a folder; name a file in it"):
        write_explanations([], None, "made", tmp_path)
