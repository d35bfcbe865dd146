"""BM25 against ``bm25s``, in one and in several segments; terms of English and Chinese text."""

from pathlib import Path

import numpy as np

from cloze.tasks.retrieval.ranking import Bm25, Postings, PostingsWriter, bm25_scores, matches, terms_of
from tests.predict.search.conftest import made_documents

TEXTS = [row["text"] for row in made_documents(60)] + ["今天下雨了", "他在雨中走路", ""]


def written(folder: Path, texts: list[str]) -> Postings:
    folder.mkdir()
    writer = PostingsWriter()
    writer.add(texts)
    writer.write(folder)
    return Postings(folder)


def test_scores_equal_those_of_bm25s(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole", TEXTS)
    halves = [written(tmp_path / "first", TEXTS[:25]), written(tmp_path / "second", TEXTS[25:])]
    reference = Bm25.build(TEXTS)
    for query in ("The cat word7", "a dog ran. word3 word3", "雨中", "nothing zzz", ""):
        expected = reference.scores(query)
        np.testing.assert_allclose(bm25_scores([whole], query)[0], expected, atol=1e-5)
        np.testing.assert_allclose(np.concatenate(bm25_scores(halves, query)), expected, atol=1e-5)


def test_terms() -> None:
    assert terms_of("The CAT's 2nd mat") == ["cat", "2nd", "mat"]
    assert terms_of("今天雨x雨") == ["今天", "天雨", "雨"]
    assert terms_of("x" * 200) == ["x" * 64]


def test_matches_are_places_of_the_text() -> None:
    text = "The Cat sat; 今天下雨"
    found = matches(text, set(terms_of("cat 天下雨")))
    assert [text[start:end] for start, end in found] == ["Cat", "天下雨"]
    assert matches("İstanbul cat", {"cat"}) == [(9, 12)]  # a character whose lower case has two


def test_an_index_without_terms(tmp_path: Path) -> None:
    empty = written(tmp_path / "empty", ["", "?"])
    assert bm25_scores([empty], "cat")[0].tolist() == [0, 0]
