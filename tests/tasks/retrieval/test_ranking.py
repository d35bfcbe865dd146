"""BM25 compared with ``bm25s`` on its own tokens, and exact search compared with sorting."""

from pathlib import Path

import bm25s
import numpy as np
import pytest

from cloze.errors import DataError
from cloze.tasks.retrieval.ranking import Bm25, search_vectors, split_words, top_k

TEXTS = [
    "A ship at sea is safe; the ships in the harbour are, too.",
    "The cat sat on the mat with a 2nd cat.",
    "It isn't a Café_au_lait, I'd say: 42 of x 7!",
    "",
    "The sea, the sea.",
]
QUERIES = ["the sea and the ship", "cat 42", "café_au_lait", "zebra", ""]


def test_english_words_are_those_of_bm25s() -> None:
    expected = bm25s.tokenize(TEXTS, stopwords=None, return_ids=False, show_progress=False)
    assert [list(split_words(text)) for text in TEXTS] == expected


def test_chinese_words_are_bigrams() -> None:
    assert list(split_words("我爱北京，BERT模型 v2！好")) == ["我爱", "爱北", "北京", "bert", "模型", "v2", "好"]
    assert list(split_words("東京タワー 서울")) == ["東京", "京タ", "タワ", "ワー", "서울"]


def test_scores_are_those_of_bm25s() -> None:
    tokens = bm25s.tokenize(TEXTS, stopwords="en", return_ids=False, show_progress=False)
    theirs = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
    theirs.index(tokens, show_progress=False)
    ours = Bm25.build(TEXTS)
    for query in QUERIES[:4]:
        words = bm25s.tokenize([query], stopwords="en", return_ids=False, show_progress=False)[0]
        assert ours.scores(query) == pytest.approx(theirs.get_scores(words), abs=1e-6)
    assert not ours.scores("").any()


def test_only_documents_with_a_word_of_the_query_are_found(tmp_path: Path) -> None:
    index = Bm25.build(TEXTS)
    found = [hits.indices.tolist() for hits in index.search(QUERIES, 3)]
    assert found == [[0, 4], [1, 2], [2], [], []]
    index.save(tmp_path / "bm25")
    loaded = Bm25.load(tmp_path / "bm25")
    assert len(loaded) == len(TEXTS)
    assert [hits.scores.tolist() for hits in loaded.search(QUERIES, 3)] == [
        hits.scores.tolist() for hits in index.search(QUERIES, 3)
    ]


def test_texts_without_words() -> None:
    with pytest.raises(DataError, match="BM25 found no words in any document"):
        Bm25.build(["!", "the"])


def test_top_k_prefers_the_first_of_equal_scores() -> None:
    draw = np.random.default_rng(0)
    for _ in range(100):
        scores = draw.integers(0, 5, 30).astype(np.float32)
        expected = sorted(range(30), key=lambda index: (-scores[index], index))
        for k in (1, 7, 30, 99):
            assert top_k(scores, k).tolist() == expected[:k]


def test_search_in_parts_equals_search_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    queries, documents = draw.normal(size=(9, 4)).astype(np.float32), draw.normal(size=(20, 4)).astype(np.float32)
    expected = np.argsort(-(queries @ documents.T), axis=1, kind="stable")[:, :5]
    for at_once in (1, 50, 1 << 20):
        monkeypatch.setattr("cloze.tasks.retrieval.ranking._SCORES_AT_ONCE", at_once)
        hits = search_vectors(queries, documents, 5)
        assert [hit.indices.tolist() for hit in hits] == expected.tolist()
        assert np.allclose(hits[2].scores, np.sort(queries[2] @ documents.T)[::-1][:5])
