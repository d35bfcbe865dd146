"""Test cases published with the original tokenizer, and variations of them."""

import pytest

from cloze.text import SPECIAL, Tokenizer
from tests.text import reference

PIECES = [*SPECIAL, "want", "##want", "##ed", "wa", "un", "runn", "##ing", ","]


def words(text: str, lowercase: bool) -> list[str]:
    """Tokenize with a vocabulary that contains every word of the text."""
    found = reference.basic_tokens(text, lowercase)
    tokenizer = Tokenizer.from_vocabulary([*SPECIAL, *dict.fromkeys(found)], lowercase=lowercase)
    tokens = tokenizer(text, special=False).tokens
    assert tokens == found
    return tokens


def test_full_tokenizer() -> None:
    encoding = Tokenizer.from_vocabulary(PIECES, lowercase=True)("UNwant\u00e9d,running", special=False)
    assert encoding.tokens == ["un", "##want", "##ed", ",", "runn", "##ing"]
    assert encoding.ids == [PIECES.index(token) for token in encoding.tokens]


def test_ideographs_stand_alone() -> None:
    assert words("ah\u535a\u63a8zz", lowercase=True) == ["ah", "\u535a", "\u63a8", "zz"]


@pytest.mark.parametrize(
    ("text", "lowercase", "expected"),
    [
        (" \tHeLLo!how  \n Are yoU?  ", True, ["hello", "!", "how", "are", "you", "?"]),
        (" \tHeLLo!how  \n Are yoU?  ", False, ["HeLLo", "!", "how", "Are", "yoU", "?"]),
        ("H\u00e9llo", True, ["hello"]),
        ("H\u00e9llo", False, ["H\u00e9llo"]),
        ("a\u0000b\ufffdc\u200bd", True, ["abcd"]),
        ("cost $5^2 `x`", True, ["cost", "$", "5", "^", "2", "`", "x", "`"]),
        ("a\u00a0b\u2028c\u3000d", True, ["a", "b", "c", "d"]),
        ("\u0130stanbul Stra\u00dfe", True, ["istanbul", "stra\u00dfe"]),
    ],
)
def test_basic_tokenizer(text: str, lowercase: bool, expected: list[str]) -> None:
    assert words(text, lowercase) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("unwanted running", ["un", "##want", "##ed", "runn", "##ing"]),
        ("unwantedX running", ["[UNK]", "runn", "##ing"]),
        ("wa" * 50, ["[UNK]"]),
    ],
)
def test_longest_match_first(text: str, expected: list[str]) -> None:
    assert Tokenizer.from_vocabulary(PIECES, lowercase=True)(text, special=False).tokens == expected


@pytest.mark.parametrize(("length", "unknown"), [(99, False), (100, False), (101, True)])
def test_words_over_a_hundred_characters_are_unknown(length: int, unknown: bool) -> None:
    tokenizer = Tokenizer.from_vocabulary([*SPECIAL, "a", "##a"], lowercase=True)
    tokens = tokenizer("a" * length, special=False).tokens
    assert tokens == (["[UNK]"] if unknown else ["a"] + ["##a"] * (length - 1))


@pytest.mark.parametrize(
    ("lowercase", "strip_accents", "expected"),
    [(True, None, "cafe"), (True, False, "café"), (False, None, "CAFÉ"), (False, True, "CAFE")],
)
def test_accents_follow_the_casing_by_default(lowercase: bool, strip_accents: bool | None, expected: str) -> None:
    pieces = [*SPECIAL, "cafe", "café", "CAFÉ", "CAFE"]
    tokenizer = Tokenizer.from_vocabulary(pieces, lowercase=lowercase, strip_accents=strip_accents)
    assert tokenizer("CAFÉ", special=False).tokens == [expected]


def test_chinese_splitting_can_be_disabled() -> None:
    pieces = [*SPECIAL, "中", "##国", "国"]
    apart = Tokenizer.from_vocabulary(pieces, lowercase=True)
    together = Tokenizer.from_vocabulary(pieces, lowercase=True, chinese=False)
    assert apart("中国", special=False).tokens == ["中", "国"]
    assert together("中国", special=False).tokens == ["中", "##国"]
