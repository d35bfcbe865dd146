"""Offsets refer to the original text, whatever the normalizer does to it."""

import unicodedata

import pytest

from cloze.text import Encoding, Tokenizer
from tests.text import reference
from tests.text.generated import strings
from tests.text.passages import CHINESE, ENGLISH, MIXED


def normalized(text: str, lowercase: bool) -> str:
    cleaned = reference.clean(text)
    return reference.strip_accents(cleaned.lower()) if lowercase else cleaned


def check(text: str, encoding: Encoding, tokenizer: Tokenizer) -> None:
    previous = (0, 0)
    for number, token, offsets in zip(encoding.ids, encoding.tokens, encoding.offsets, strict=True):
        start, end = offsets
        assert 0 <= start < end <= len(text)
        # Pieces of one character (the letters of a Korean syllable) share its offsets; others never overlap.
        assert start >= previous[1] or (offsets == previous and end - start == 1), text
        previous = offsets
        if number != tokenizer.unknown_id:
            bare = token if tokenizer.word_starts([number])[0] else token.removeprefix("##")
            slice_text = normalized(text[start:end], tokenizer.lowercase)
            assert bare == slice_text or (len(text[start:end]) == 1 and bare in slice_text), (text, token)


@pytest.mark.parametrize("name", ["uncased", "cased"])
def test_offsets_slice_the_text(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    texts = [*strings(1500, seed=11), ENGLISH, CHINESE, MIXED]
    texts = ["".join(c for c in text if not hangul(c)) for text in texts]
    for text, encoding in zip(texts, tokenizer.encode_batch(texts, special=False, max_length=9999), strict=True):
        check(text, encoding, tokenizer)


def hangul(character: str) -> bool:
    return unicodedata.name(character, "").startswith("HANGUL")


def test_accents_of_both_kinds(uncased: Tokenizer) -> None:
    text = "\u200bThe re\u0301sume\u0301 of Zoë"
    encoding = uncased(text, special=False)
    assert [text[start:end] for start, end in encoding.offsets if start == 1] == ["The"]
    assert "".join(token.removeprefix("##") for token in encoding.tokens) == "theresumeofzoe"
    check(text, encoding, uncased)


def test_each_text_has_its_own_offsets(minilm: Tokenizer) -> None:
    encoding = minilm("a cat", "a dog")
    assert encoding.tokens == ["[CLS]", "a", "cat", "[SEP]", "a", "dog", "[SEP]"]
    assert encoding.offsets == [(0, 0), (0, 1), (2, 5), (0, 0), (0, 1), (2, 5), (0, 0)]
    assert encoding.sources == [None, 0, 0, None, 1, 1, None]


def test_windows_keep_the_count(minilm: Tokenizer) -> None:
    text = "\u00e9t\u00e9 caf\u00e9 " * 20_000
    encoding = minilm(text, special=False, max_length=99_999)
    assert encoding.dropped == 0
    check(text, encoding, minilm)
