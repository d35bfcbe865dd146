"""The confidence intervals of ``benchmarks/blanks.py`` are wide enough for correlated blanks."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from blanks import Blank, clustered_interval, groups_of, make_blanks, print_table
from cloze.text import Tokenizer, learn_pieces
from tests.corpus.texts import make_documents


def test_groups_of_one_give_the_usual_interval() -> None:
    values = np.random.default_rng(0).normal(size=50)
    expected = ttest_1samp(values, 0).confidence_interval(0.95)
    assert clustered_interval(values, np.arange(50)) == pytest.approx((values.mean(), expected.low, expected.high))


def test_repeated_values_do_not_narrow_the_interval() -> None:
    values = np.random.default_rng(1).normal(size=50)
    again = clustered_interval(np.tile(values, 4), np.tile(np.arange(50), 4))
    assert again == pytest.approx(clustered_interval(values, np.arange(50)))


def test_names_and_order_of_groups_do_not_matter() -> None:
    generator = np.random.default_rng(2)
    values, groups, order = generator.normal(size=200), generator.integers(20, size=200), generator.permutation(200)
    expected = clustered_interval(values, groups)
    assert clustered_interval(values[order], 1000 - 7 * groups[order]) == pytest.approx(expected)


def test_clustered_intervals_have_the_stated_coverage() -> None:
    generator, held, naive = np.random.default_rng(3), 0, 0
    groups = np.repeat(np.arange(60), 10)
    for _ in range(1000):
        values = generator.normal(size=60)[groups] + generator.normal(size=600)
        mean, low, high = clustered_interval(values, groups)
        held += low <= 0 <= high
        naive += abs(mean) <= 1.96 * values.std(ddof=1) / np.sqrt(600)
    assert 930 <= held <= 970
    assert naive < 700  # the coverage if all values were treated as independent


def test_one_group_has_no_bounds() -> None:
    with pytest.raises(SystemExit, match="all blanks belong to one cluster; confidence intervals need a longer text"):
        clustered_interval([0.0, 1.0], np.zeros(2, np.int64))


def made_blanks(folder: Path, documents: int, count: int) -> list[Blank]:
    text = "\n\n".join("\n".join(document) for document in make_documents(documents, sentences=(60, 80))) + "\n"
    (folder / "text.txt").write_text(text, encoding="utf-8")
    tokenizer = Tokenizer.from_vocabulary(learn_pieces([text], 120), lowercase=True)
    return make_blanks(folder / "text.txt", tokenizer, count)


def test_blanks_know_where_they_are_from(tmp_path: Path) -> None:
    blanks = made_blanks(tmp_path, 40, 2000)
    by_window: dict[int, set[tuple[int, bytes]]] = {}
    for blank in blanks:
        by_window.setdefault(blank.window, set()).add((blank.document, blank.tokens.tobytes()))
    assert len(by_window) < 1000  # windows are reused
    assert {len(known) for known in by_window.values()} == {1}
    assert {blank.document for blank in blanks} == set(range(40))


def test_few_documents_are_no_groups(tmp_path: Path) -> None:
    (tmp_path / "few").mkdir()
    kind, groups = groups_of(made_blanks(tmp_path, 40, 500))
    assert (kind, len(set(groups.tolist()))) == ("documents", 40)
    blanks = made_blanks(tmp_path / "few", 3, 500)
    kind, groups = groups_of(blanks)
    assert (kind, groups.tolist()) == ("windows", [blank.window for blank in blanks])


def test_table_goes_by_groups(capsys: pytest.CaptureFixture[str]) -> None:
    tokens = np.zeros(10, np.int64)
    blanks = [Blank(tokens, 5, document=number // 4, window=number // 4) for number in range(200)]
    right = [0 if number // 4 % 2 else 9 for number in range(200)]  # all blanks of a document are predicted, or none
    ranks = {"counting": [9] * 200, "model": right}
    print_table(ranks, blanks, [number % 2 == 0 for number in range(200)], "model")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "200 blanks in 50 documents (the clusters of the intervals)"
    mean, low, high = clustered_interval([rank < 1 for rank in right], np.arange(200) // 4)
    assert f"top-1 {mean:6.1%} ({low:.1%} to {high:.1%})" in lines[3]
    assert lines[3].split()[:3] == ["model", "all", "200"]
    assert lines[4].split()[:4] == ["model", "word", "starts", "100"]
    expected = f"{100 * mean:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
    assert lines[5] == f"lead over {'counting':<24} points: top-1 {expected}  top-5 {expected}"
