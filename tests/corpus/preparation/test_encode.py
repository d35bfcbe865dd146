import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import cloze.corpus.preparation.encode as module
from cloze.corpus.preparation.encode import SentenceEncoder
from cloze.text import SPECIAL, Tokenizer, learn_pieces, split_sentences
from cloze.text.segmentation import WordSplitter, encode_words
from tests.text.generated import strings, wild_strings
from tests.text.passages import CHINESE, ENGLISH, MIXED

TEXTS = [ENGLISH, CHINESE, MIXED, "don't e-mail  covid-19, T恤§3 x×y", "naïve ΟΔΟΣ İstanbul §3 ½ x² ＋１", " ", ""]
EDGES = [
    "a" * 60 + " b",
    "a" * 61,
    "a" * 200,
    "中" * 90,
    "a\u0301 \u0300",
    "\ud800x",
    "a\x00b\x7f\xadc",
    "𠀀𪚥字",
    "x\u200by",
]


def expected(tokenizer: Tokenizer, splitter: WordSplitter, texts: list[str]) -> tuple[list[int], list[bool], list[int]]:
    """Return the result of encode_words, sentence by sentence."""
    found = encode_words(tokenizer, splitter, texts)
    ids = [number for sentence, _ in found for number in sentence]
    starts = [flag for _, words in found for flag in [True, *(a != b for a, b in pairwise(words))][: len(words)]]
    return ids, starts, [len(sentence) for sentence, _ in found]


def check(tokenizer: Tokenizer, splitter: WordSplitter, texts: list[str], has_dictionary: bool = False) -> None:
    encoder = SentenceEncoder(tokenizer, splitter, has_dictionary=has_dictionary)
    for _ in range(2):  # the second pass uses the cache
        encoded = encoder.encode(texts)
        assert (encoded.ids.tolist(), encoded.starts.tolist(), encoded.lengths.tolist()) == expected(
            tokenizer, splitter, texts
        )


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    texts = [*TEXTS, *EDGES, *strings(1500, seed=11), *wild_strings(300, seed=11)]
    return [sentence for text in texts for sentence in split_sentences(text)]


@pytest.fixture(scope="module")
def pieces(sentences: list[str]) -> list[str]:
    return learn_pieces(sentences, 3000)


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("chinese", [True, False])
def test_result_is_that_of_encode_words(
    sentences: list[str], pieces: list[str], lowercase: bool, chinese: bool
) -> None:
    tokenizer = Tokenizer.from_vocabulary(pieces, lowercase=lowercase, chinese=chinese)
    check(tokenizer, WordSplitter(), sentences)


def test_result_is_that_of_encode_words_with_a_dictionary(sentences: list[str], pieces: list[str]) -> None:
    tokenizer = Tokenizer.from_vocabulary(pieces, lowercase=True)
    check(tokenizer, WordSplitter(["covid-19", "中文字"]), [*sentences, "the covid-19 中文字"], has_dictionary=True)


def test_most_sentences_take_the_fast_path(sentences: list[str], pieces: list[str]) -> None:
    known = module._patterns().known
    ordinary = [sentence for text in (ENGLISH, CHINESE, MIXED) for sentence in split_sentences(text)]
    assert sum(known.fullmatch(sentence) is not None for sentence in ordinary) > 0.8 * len(ordinary)
    for strange in ("§3", "x²", "a\u0301", "x\x00", "\ud800", "×", "𠀀", "ｆｕｌｌ"):
        assert known.fullmatch(strange) is None


def test_fast_path_needs_the_pattern(sentences: list[str], pieces: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the pattern that selects plain sentences, the fast path gives wrong results."""
    patterns = module._patterns()
    monkeypatch.setattr(module, "_patterns", lambda: patterns._replace(known=re.compile(r"(?s:.*)")))
    with pytest.raises((AssertionError, IndexError)):
        check(Tokenizer.from_vocabulary(pieces, lowercase=True), WordSplitter(), sentences)


def test_words_are_forgotten_in_time(monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer) -> None:
    monkeypatch.setattr(module, "MAX_CACHED_WORDS", 10)
    encoder = SentenceEncoder(tokenizer, WordSplitter(), has_dictionary=False)
    for number in range(50):
        text = f"the old river word{number} and number{number} again"
        assert encoder.encode([text]).ids.tolist() == tokenizer.encode_ids([text])[0]
    assert len(encoder._words._numbers) < 20


def test_unknown_words_and_nothing(tmp_path: Path) -> None:
    nothing = SentenceEncoder(
        Tokenizer.from_vocabulary([*SPECIAL, "a"], lowercase=True), WordSplitter(), has_dictionary=False
    )
    encoded = nothing.encode(["a b a", "二"])
    assert (encoded.ids.tolist(), encoded.lengths.tolist()) == ([5, 1, 5, 1], [3, 1])
    assert encoded.starts.all()
    assert [len(array) for array in nothing.encode([])] == [0, 0, 0]
    assert nothing.encode(["\u200b", "a"]).lengths.tolist() == [0, 1]
    cut = encoded.slice(1, 2)
    assert np.array_equal(cut.ids, [1])
