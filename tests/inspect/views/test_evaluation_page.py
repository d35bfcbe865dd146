"""Pages of evaluations: the worst queries and rows in a browser, and hostile texts."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from cloze.inspect.views.page import write_evaluation
from cloze.predict import Evaluation
from cloze.predict.retrieval import RetrievalEvaluation, evaluate_run
from cloze.tasks.intervals import MeanRows
from cloze.tasks.retrieval.kind import RetrievalData, Run
from tests.inspect.test_browser import PAYLOADS, Visit, browser

__all__ = ["browser"]  # a fixture


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


def ranked(texts: list[str]) -> RetrievalEvaluation:
    """Query n finds its document at rank n + 1; BM25 finds all of them at once."""
    ids = [f"d{number}" for number in range(len(texts))]
    data = RetrievalData(
        {f"q{number}": text for number, text in enumerate(texts)},
        dict(zip(ids, texts, strict=True)),
        {f"q{number}": {document: 1} for number, document in enumerate(ids)},
    )
    run: Run = {}
    for number in range(len(texts)):
        others = [document for document in ids if document != ids[number]]
        order = [*others[:number], ids[number], *others[number:]]
        run[f"q{number}"] = {document: -float(place) for place, document in enumerate(order)}
    baseline: Run = {f"q{number}": {document: 1.0} for number, document in enumerate(ids)}
    return evaluate_run(run, data, baseline, metrics=("mrr@10",), name="made")


def test_worst_queries_come_first_and_are_found_by_their_texts(visit: Visit, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    assert write_evaluation(ranked(["one ship", "two boats", "three cats"]), "made", path) == path.stat().st_size
    page = opened(visit, path)
    queries = page.locator("article h2")
    assert queries.all_text_contents() == ["three cats", "two boats", "one ship"]
    expect(page.locator("table")).to_contain_text("mrr@10")
    expect(page.locator("main")).to_contain_text("against BM25: ")
    first = page.locator("article").nth(1)
    expect(first.locator("h3").nth(1)).to_have_text("made: mrr@10 0.333, first relevant at rank 3")
    assert first.locator("section").nth(1).locator(".passage").all_text_contents() == [
        "one ship",
        "two boats",
        "three cats",
    ]
    assert first.locator("section").nth(1).locator(".relevant .passage").all_text_contents() == ["three cats"]
    page.get_by_label("Search texts").fill("BOATS")
    assert queries.all_text_contents() == ["two boats"]
    page.get_by_label("Search texts").fill("")
    page.get_by_label("Order").select_option("furthest behind BM25")
    assert queries.all_text_contents() == ["three cats", "two boats", "one ship"]


def test_wrong_rows_of_other_tasks(visit: Visit, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    rows = [{"text": "a film"}, {"text": "a book"}]
    found = Evaluation({"accuracy": 0.5}, ["x", "y"], ["1", "2"], ["x", "x"], rows, rows=MeanRows({"accuracy": [1, 0]}))
    write_evaluation(found, "made", path)
    page = opened(visit, path)
    assert page.locator("tbody tr").last.locator("td").all_text_contents() == ["2", "a book", "x", "y"]
    expect(page.locator("main")).to_contain_text("1 of 1 rows")


def test_hostile_texts_are_shown_as_text(visit: Visit, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_evaluation(ranked(PAYLOADS), PAYLOADS[0], path)
    page = opened(visit, path)
    assert sorted(page.locator("article h2").all_text_contents()) == sorted(PAYLOADS)
    assert page.locator("#summary").text_content() == PAYLOADS[0]
    assert set(page.locator(".passage").all_text_contents()) == set(PAYLOADS)
    rows = [{"text": text} for text in PAYLOADS]
    write_evaluation(Evaluation({"a": 0.0}, PAYLOADS, PAYLOADS, ["?"] * len(PAYLOADS), rows), PAYLOADS[1], path)
    page = opened(visit, path)
    assert page.locator("tbody tr td:nth-child(2)").all_text_contents()[-len(PAYLOADS) :] == PAYLOADS


def test_long_texts_are_shortened_and_only_the_worst_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_evaluation(ranked([f"{number} " + "x" * 5000 for number in range(12)]), "made", path)
    assert path.stat().st_size < 500_000
