"""Rungs 2 and 5: words that would be [UNK] are spelled by characters, or by variants of these."""

import pytest

from cloze.text import SPECIAL, Tokenizer
from cloze.text.oov.ladder import MAX_SPELLED_LENGTH
from tests.text.laddered import extended, rungs

LETTERS = "abcdefinorstu"
PIECES = [*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS), *"123()-/'.", "##1", "##2", "a", "##nd", "stone"]
UNCASED = Tokenizer.from_vocabulary([*dict.fromkeys(PIECES), "发", "电", "株"], lowercase=True)
CASED = Tokenizer.from_vocabulary([*dict.fromkeys(PIECES), "é", "##é", "😀", "##w"], lowercase=False)
SIMILAR = [("發", "发"), ("髮", "发"), ("ж", "c"), ("€", "eur o")]


def spelled(
    tokenizer: Tokenizer, text: str, *, characters: bool = False, look_alikes: bool = False
) -> list[tuple[str, str, str]]:
    return rungs(extended(tokenizer, characters=characters, look_alikes=look_alikes), text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("😀", [("😀", "word", "😀")]),
        ("a😀", [("a😀", "characters", "a 😀")]),
        ("😀and", [("😀and", "pieces", "😀 ##a ##nd")]),
        ("stone😀stone", [("stone😀stone", "characters", "stone 😀 ##s ##t ##o ##n ##e")]),
        ("🎈and", [("🎈and", "unknown", "[UNK] ##a ##nd")]),
        ("and🎈🎈s", [("and🎈🎈s", "unknown", "a ##nd [UNK] ##s")]),
        ("🎈", [("🎈", "unknown", "[UNK]")]),
        ("w", [("w", "characters", "##w")]),  # known only with ##
        ("a3", [("a3", "characters", "a 3")]),  # known only without ##
        ("3a", [("3a", "pieces", "3 ##a")]),
        ("wa3w", [("wa3w", "characters", "##w ##a 3 ##w")]),
        ("ａ", [("ａ", "unknown", "[UNK]")]),  # look-alikes are disabled
    ],
)
def test_characters(text: str, expected: list[tuple[str, str, str]]) -> None:
    assert spelled(CASED, text, characters=True) == expected


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("ｓｔｏｎｅ", "stone"),
        ("ＳＴＯＮＥ", "stone"),
        ("①", "1"),
        ("②①", "2 ##1"),
        ("ﬁne", "f ##i ##n ##e"),
        ("㈱", "( 株 )"),
        ("⑴", "( 1 )"),
        ("電", "[UNK]"),  # no replacement is defined
        ("\u2010", "-"),
        ("\u2019", "'"),
        ("\u2026", ". . ."),
    ],
)
def test_other_forms(text: str, tokens: str) -> None:
    rung = "unknown" if tokens == "[UNK]" else "look-alike"
    assert spelled(UNCASED, text, look_alikes=True) == [(text, rung, tokens)]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("é", "é"),
        ("fé", "f ##é"),
        ("e\u0301", "é"),  # composed, as in the vocabulary
        ("fe\u0301e", "f ##é ##e"),
        ("ñu", "n ##u"),  # without the accent, which the vocabulary lacks
        ("n\u0303u", "n ##u"),
        ("u\u0302\u0323a", "u ##a"),
        ("s\u0301tone", "stone"),
    ],
)
def test_accents_of_a_cased_vocabulary(text: str, tokens: str) -> None:
    (found,) = spelled(CASED, text, look_alikes=True)
    assert (found[0], found[2]) == (text, tokens)


def test_signs_that_compatibility_forms_hold_are_read_too() -> None:
    halves = Tokenizer.from_vocabulary([*SPECIAL, "1", "/", "2", "~"], lowercase=True)
    assert rungs(extended(halves, look_alikes=True), "½ ∼") == [("½", "look-alike", "1 / 2"), ("∼", "look-alike", "~")]


def test_accents_keep_their_places() -> None:
    tokenizer = extended(CASED, look_alikes=True)
    text = "-fe\u0301e n\u0303u"
    assert tokenizer(text, special=False).offsets == [(0, 1), (1, 2), (2, 4), (4, 5), (6, 8), (8, 9)]


def test_similar_characters_replace_unknown_ones() -> None:
    tokenizer = extended(UNCASED, similar=SIMILAR)
    assert rungs(tokenizer, "發電髮 发 € Ж") == [
        ("發", "look-alike", "发"),
        ("電", "unknown", "[UNK]"),
        ("髮", "look-alike", "发"),
        ("发", "word", "发"),
        ("€", "look-alike", "e ##u ##r ##o"),
        ("Ж", "look-alike", "c"),
    ]
    known = Tokenizer.from_vocabulary([*UNCASED.pieces, "發"], lowercase=True)
    assert rungs(extended(known, similar=SIMILAR), "發") == [("發", "word", "發")]


def test_one_unknown_character_makes_a_word_unknown_without_characters() -> None:
    assert spelled(UNCASED, "ｓｔｏｎｅ☃", look_alikes=True) == [("ｓｔｏｎｅ☃", "unknown", "[UNK]")]
    assert spelled(UNCASED, "⑴☃", look_alikes=True) == [("⑴☃", "unknown", "[UNK]")]
    both = spelled(UNCASED, "ｓｔｏｎｅ☃", look_alikes=True, characters=True)
    assert both == [("ｓｔｏｎｅ☃", "unknown", "stone [UNK]")]


def test_accents_that_are_dropped_anyway_are_no_look_alike() -> None:
    assert [rung for _, rung, _ in spelled(UNCASED, "fe\u03013", characters=True, look_alikes=True)] == ["characters"]
    assert [rung for _, rung, _ in spelled(UNCASED, "fé3", characters=True, look_alikes=True)] == ["characters"]


def test_look_alikes_of_added_words_and_of_entities() -> None:
    tokenizer = extended(UNCASED, words=["bison"], entities=[("stone inn", "and")], look_alikes=True)
    assert rungs(tokenizer, "ｂｉｓｏｎ ｂｉｓｏｎｓ ｓtone Ｉnn bison") == [
        ("ｂｉｓｏｎ", "look-alike", "bison"),
        ("ｂｉｓｏｎｓ", "look-alike", "b ##i ##s ##o ##n ##s"),
        ("ｓtone Ｉnn", "entity", "a ##nd"),
        ("bison", "added", "bison"),
    ]


@pytest.mark.parametrize("length", [100, 101, MAX_SPELLED_LENGTH, MAX_SPELLED_LENGTH + 1])
def test_long_words(length: int) -> None:
    tokenizer = extended(UNCASED, characters=True).with_max_length(2000)
    (word,) = rungs(tokenizer, "a" * length)
    spelled_out = " ".join(["a", *["##a"] * (length - 1)])
    if length == 100:
        assert word[1:] == ("pieces", spelled_out)
    elif length <= MAX_SPELLED_LENGTH:
        assert word[1:] == ("characters", spelled_out)
    else:
        assert word[1:] == ("unknown", "[UNK]")
    text = "b " + "a" * length
    assert tokenizer(text, special=False).offsets[1][0] == 2
    assert tokenizer(text, special=False).offsets[-1][1] == 2 + length


def test_cached_words_have_the_same_tokens() -> None:
    """A word from the cache has the same tokens, at its own position."""
    tokenizer = extended(CASED, characters=True)
    first, second = tokenizer("a😀 a😀", special=False), tokenizer("b a😀", special=False)
    assert first.offsets == [(0, 1), (1, 2), (3, 4), (4, 5)]
    assert second.offsets == [(0, 1), (2, 3), (3, 4)]
    assert len(tokenizer.words(first, "a😀 a😀")) == 2
