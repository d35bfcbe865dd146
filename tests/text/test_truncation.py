"""Truncation equals the original, is always reported, and uses bounded memory for endless texts."""

import itertools
import resource

import pytest

from cloze.errors import RequestError
from cloze.text import SPECIAL, Tokenizer
from cloze.text.boundaries import is_ideograph, starts_word, windows
from tests.text import reference
from tests.text.generated import BLOCKS, strings
from tests.text.passages import CHINESE, ENGLISH

LETTERS = Tokenizer.from_vocabulary([*SPECIAL, "a", "b"], lowercase=True)


def test_pairs_lose_the_longer_ones_end() -> None:
    a, b = LETTERS.id("a"), LETTERS.id("b")
    assert a is not None
    assert b is not None
    for first, second, length in itertools.product(range(9), range(9), range(3, 14)):
        if second == 0:  # a second text without tokens is omitted together with its [SEP]
            assert LETTERS("a " * first, "", max_length=length) == LETTERS("a " * first, max_length=length)
            continue
        kept = [a] * first, [b] * second
        reference.truncate_pair(*kept, length - 3)
        encoding = LETTERS("a " * first, "b " * second, max_length=length)
        assert encoding.ids == [LETTERS.cls_id, *kept[0], LETTERS.sep_id, *kept[1], LETTERS.sep_id]
        assert encoding.segments == [0] * (len(kept[0]) + 2) + [1] * (len(kept[1]) + 1)
        assert encoding.dropped == first + second - len(kept[0]) - len(kept[1])


def test_single_texts_and_the_folders_own_length(minilm: Tokenizer) -> None:
    encoding = minilm(ENGLISH * 8)
    assert len(encoding.ids) == minilm.max_length == 256
    assert encoding.ids[-1] == minilm.sep_id
    assert encoding.dropped == len(minilm.encode_ids([ENGLISH * 8])[0]) - 254
    assert len(minilm(ENGLISH * 10, special=False, max_length=7).ids) == 7


@pytest.mark.parametrize(
    ("pair", "special", "length"), [(None, True, 1), ("b", True, 2), ("b", False, 0), (None, True, -5)]
)
def test_no_room_for_special_tokens(pair: str | None, special: bool, length: int) -> None:
    with pytest.raises(RequestError, match=f"max_length is {length}"):
        LETTERS("a", pair, special=special, max_length=length)
    assert LETTERS("a", max_length=2).tokens == ["[CLS]", "[SEP]"]


@pytest.mark.parametrize("seed", range(6))
def test_windows_add_up(seed: int, uncased: Tokenizer, cased: Tokenizer) -> None:
    """A text has the same tokens for any window size."""
    for text in strings(300, seed=100 + seed):
        for tokenizer in (uncased, cased):
            whole = tokenizer.encode_ids([text])[0]
            for size in (1, 7, 40):
                parts = [text[start:end] for start, end, _ in windows(text, size, chinese=True)]
                assert list(itertools.chain(*tokenizer.encode_ids(parts))) == whole, (text, size)


def test_every_cut_is_one_of_the_engines(uncased: Tokenizer) -> None:
    characters = (character for block in BLOCKS.values() for character in block)
    for character in filter(lambda character: starts_word(character, chinese=True), characters):
        joined = uncased.encode_ids([f"e{character}e"])[0]
        assert joined == [*itertools.chain(*uncased.encode_ids(["e", f"{character}e"]))], f"U+{ord(character):04X}"


@pytest.mark.parametrize("length", [16, 256, 512])
@pytest.mark.parametrize("unit", [ENGLISH + " ", CHINESE, "a" * 300 + " ", " " * 999 + "é", "\u060c", "q\u0301\u0302 "])
def test_long_texts_are_processed_as_far_as_needed(unit: str, length: int, minilm: Tokenizer) -> None:
    text = unit * (200_000 // len(unit))
    encoding = minilm(text, special=False, max_length=length)
    full = minilm.encode_ids([text])[0]
    assert encoding.ids == full[:length]
    assert (encoding.dropped > 0) == (len(full) > length)
    assert encoding.dropped <= max(len(full) - length, 0)
    assert minilm("a", text, max_length=length).ids[-1] == minilm.sep_id


@pytest.mark.parametrize(
    ("text", "tokens", "lost"),
    [
        ("hello " * 1_700_000, ["hello"] * 8, True),
        ("中" * 10_000_000, ["中"] * 8, True),
        ("x" * 10_000_000, ["[UNK]"], False),
        ("x" * 10_000_000 + " a", ["[UNK]", "a"], False),
        (" " * 10_000_000 + "a", ["a"], False),
        ("a" + "\n" * 10_000_000, ["a"], False),
        ("\x00" * 10_000_000 + "a", ["a"], False),
        ("a" + "\u0301" * 10_000_000 + "b", ["a"], True),
        ("a" + "😀" * 10_000_000 + "b", ["[UNK]"], False),
        (" \u0301" * 5_000_000 + "a", [], True),
        ("." * 10_000_000, ["."] * 8, True),
    ],
    ids=[
        "words",
        "ideographs",
        "letter",
        "letter and word",
        "spaces",
        "newlines",
        "controls",
        "accents",
        "emoji",
        "both",
        "stops",
    ],
)
def test_ten_megabytes(text: str, tokens: list[str], lost: bool, minilm: Tokenizer) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    encoding = minilm(text, special=False, max_length=8)
    assert encoding.tokens == tokens
    assert (encoding.dropped > 0) == lost
    # In kilobytes. Without the limit, the native tokenizer would take two million.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_corpus_lines_without_end(minilm: Tokenizer) -> None:
    unit = ENGLISH + CHINESE
    ids = minilm.encode_ids([unit])[0]
    assert minilm.encode_ids([unit * 300, "a"]) == [ids * 300, [minilm.id("a")]]


def test_ideographs() -> None:
    assert all(map(is_ideograph, "中㐀豈\U00020000\U0002b920\U0002f800"))
    assert not any(map(is_ideograph, "aé。、ひカ한\u3007\U0001f600"))
