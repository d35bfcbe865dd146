"""Difficult texts for T10, class by class: strings that random generation would hardly produce.

Each class creates its texts lazily, with ``huge`` characters in the classes about size, so that at most one such text
is in memory.
"""

import random
import sys
import unicodedata
from collections.abc import Callable, Iterator

from tests.text.generated import strings
from tests.text.passages import CHINESE, ENGLISH, MIXED

from cloze.text import SPECIAL
from cloze.text.boundaries import MAX_WINDOW

# First and last character of each block. BERT's table has extensions A to E; later ones count as letters.
CJK_BLOCKS = {
    "A": (0x3400, 0x4DBF),
    "B": (0x20000, 0x2A6DF),
    "C": (0x2A700, 0x2B739),
    "D": (0x2B740, 0x2B81D),
    "E": (0x2B820, 0x2CEA1),
    "F": (0x2CEB0, 0x2EBE0),
    "G": (0x30000, 0x3134A),
    "H": (0x31350, 0x323AF),
    "compatibility": (0xF900, 0xFAD9),
    "compatibility supplement": (0x2F800, 0x2FA1D),
}
_CONTROL = ("Cc", "Cf")
# The smallest window of the tokenizer, where truncated texts are cut.
_WINDOW = 8192


def _around(characters: str) -> Iterator[str]:
    """Yield every character alone, inside a word and between words; then all of them in one word."""
    for character in characters:
        yield character
        yield f"a{character}b {character} c"
    yield f"x{characters}y"


def _of_category(*categories: str) -> str:
    return "".join(c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c) in categories)


def _nul(huge: int) -> Iterator[str]:
    yield from ("\0", "\0\0\0", "a\0b", "\0a", "a\0", "a \0 b", "caf\0e\u0301")
    yield "\0" * huge
    yield "a\0b " * (huge // 4)


def _zwj(_: int) -> Iterator[str]:
    family = "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"
    yield from (family, f"my {family}s", family * 30, "\u200d", "\u200d" * 500, "a\u200db", "क\u094d\u200dष", "\u200c")
    yield from ("\U0001f3f3\ufe0f\u200d\U0001f308", "\U0001f44d\U0001f3fd", "1\ufe0f\u20e3", "\U0001f1e9\U0001f1ea")


def _bidi(_: int) -> Iterator[str]:
    marks = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    yield from _around(marks)
    yield "\u202ereversed\u202c text \u2066isolated\u2069"
    yield "\u202e" * 2000 + "deep" + "\u202c" * 2000


def _surrogates(huge: int) -> Iterator[str]:
    yield from _around("\ud800\udbff\udc00\udfff")
    yield from ("\ud83d\ude00", "\ude00\ud83d", "wo\ud800rd", "\ud800word", "word\udfff", "é\ud800\u0301", "中\udc00国")
    yield "a\ud800" * (huge // 2)


def _cjk(_: int) -> Iterator[str]:
    for first, last in CJK_BLOCKS.values():
        codes = (first, first + 1, (first + last) // 2, last - 1, last)
        yield from _around("".join(map(chr, codes)))
    yield from _around("\u3005\u3007\u3021\u302a\u3400\u9fff\ua000")


def _casing(_: int) -> Iterator[str]:
    yield from (
        "İstanbul",
        "İ",
        "i\u0307",
        "Iı İi",
        "Straße STRASSE ẞ ß",
        "ŉ ǰ ΐ ΰ և ẖ ẗ",
        "ﬁn ﬂ ﬃ ﬅ",
        "Ǆ ǅ ǆ",
        "K Å Ω",
    )
    yield from ("ΟΔΟΣ", "Σ", "ΑΣ. ΑΣΑ ΣΣ", "σς", "Ὀδυσσεύς ὈΔΥΣΣΕΎΣ", "ᾳ ᾼ ᾲ ᾷ", "Ꭰꭰ Ა ა", "\U00010400\U00010428")


def _mark_floods(huge: int) -> Iterator[str]:
    yield "e" + "\u0301" * 1000 + "x"
    yield from ("\u0301", "\u0301a", " \u0301 ", "a \u0301\u0316 b", "\u0316\u0301" * 500, "q\u0301\u0316\u0327" * 200)
    source = random.Random(1)
    marks = [chr(code) for code in range(0x300, 0x36F)]
    yield "".join(letter + "".join(source.choices(marks, k=20)) for letter in "zalgo he comes " * 20)
    yield "\u0301" * huge
    yield "a" + "\u0301" * huge + " b"


def _endless_marks(huge: int) -> Iterator[str]:
    """Yield words with more combining marks than the tokenizer processes: the rest is dropped and reported."""
    length = max(huge, 2 * MAX_WINDOW)
    yield "a" + "\u0301" * length + "b"
    # Marks of two combining classes must be reordered, for which a naive implementation needs quadratic time.
    yield "a" + "\u0301\u0316" * (length // 2) + "b"


def _noncharacters(_: int) -> Iterator[str]:
    codes = [*range(0xFDD0, 0xFDF0), *(plane * 0x10000 + low for plane in range(17) for low in (0xFFFE, 0xFFFF))]
    yield from _around("".join(map(chr, codes)))


def _private_use(_: int) -> Iterator[str]:
    yield from _around("\ue000\uf123\uf8ff\U000f0000\U000ffffd\U00100000\U0010fffd")
    yield "\ue000" * 500


def _long_words(_: int) -> Iterator[str]:
    # Letters that normalization turns into one, two (jamo) or, after accents are removed, again one character.
    for unit in ("a", "é", "e\u0301", "İ", "中", "ж", "가", "한", "\U0001f600", "ß", "\u05d0\u05b8", "a\u200b", "a\0"):
        for length in (33, 34, 49, 50, 51, 99, 100, 101):
            yield unit * length
            yield f"x {unit * length} y"
    for length in (99, 100, 101):
        yield f"a{'-' * length}b"


def _huge_words(huge: int) -> Iterator[str]:
    for unit in ("a", "é", "가", "\U0001f600", "中", ".", "[", "ab\u200b"):
        yield unit * (huge // len(unit))
    yield "a" * huge + " b"
    yield "b " + "Ж" * huge
    yield f"{'z' * 127} " * (huge // 128)


def _spaces(huge: int) -> Iterator[str]:
    yield from ("", " ", "\t\n\r", "\u3000", "\u00a0a\u2003b\u202fc\u205fd\u1680e")
    yield " " * huge
    yield " " * huge + "a"
    yield "a" + "\n" * huge
    yield "\u3000" * huge + "中"
    yield " \u0301" * (huge // 2)


def _one_line(huge: int) -> Iterator[str]:
    parts: list[str] = []
    size = 0
    for number, made in enumerate(strings(huge // 20, seed=77)):
        parts += [made.replace("\n", " ").replace("\r", " "), (ENGLISH, CHINESE, MIXED)[number % 3][:200]]
        size += sum(len(part.encode()) for part in parts[-2:])
        if size > huge:
            break
    yield " ".join(parts)


def _window_edges(huge: int) -> Iterator[str]:
    """Yield texts with a difficult sequence exactly where a long text is cut."""
    for size in (_WINDOW, MAX_WINDOW) if huge >= MAX_WINDOW else (_WINDOW,):
        # words that exceed WordPiece's length limit and are therefore fast to process
        filler = f"{'z' * 127} " * (size // 128 + 1)
        for tail in ("é", "\u0301\u0302", "中国", "\ud800", "\u200d.", "[MASK]", "한국", "\u00a0\u0301", "İ"):
            for place in range(size - 3, size + 1):
                yield f"{filler[: place - 3]} ab{tail}{tail} c d"


def _special_tokens(_: int) -> Iterator[str]:
    for token in (*SPECIAL, "[unused1]", "##x", "##", "#", "##ing", "[", "]", "[[MASK]]", "[mask]", "[ SEP ]"):
        yield from (token, f"hello {token} there", f"a{token}b", token * 3, f"{token}\0{token}", "\u200b".join(token))
    yield "[MASK]" * 2000
    yield "[CLS] a [SEP] b [SEP] [PAD] [PAD] [UNK]"


def _scripts(_: int) -> Iterator[str]:
    yield from (
        "\u1112\u1161\u11ab",
        "\u1112\u1161",
        "\u11ab",
        "\u3131\u314f",
        "\ua960\u1161\ud7cb",
        "한국어 \u1112\u1161\u11ab",
    )
    yield from ("\u1100" * 120, "\u115f\u1160", "각\u11a8", "ᄀ\u302e")
    yield from (
        "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd world",
        "السَّلَامُ عَلَيْكُمْ",
        "\u0640" * 50,
        "لا\u200fabc",
        "پەڕە ٣٤٥",
    )
    yield from ("ಕೋ ಕೊ ொ", "ক্ষ্ম", "ๆ ำ ไม้", "མཱུ", "ᠮᠣᠩᠭᠣᠯ\u180e", "ម៉ែ", "𝔘𝔫𝔦", "𓀀𓁐", "ﷺ", "㋿ ㍿ ½ ² ①")


FIXED: dict[str, Callable[[int], Iterator[str]]] = {
    "NUL": _nul,
    "controls": lambda _: _around(_of_category(*_CONTROL)),
    "zero-width joiners": _zwj,
    "bidi controls": _bidi,
    "lone surrogates": _surrogates,
    "CJK extensions": _cjk,
    "casing": _casing,
    "floods of marks": _mark_floods,
    "endless marks": _endless_marks,
    "noncharacters": _noncharacters,
    "private use": _private_use,
    "words of about 100 letters": _long_words,
    "huge words": _huge_words,
    "spaces": _spaces,
    "one line": _one_line,
    "edges of windows": _window_edges,
    "special tokens": _special_tokens,
    "byte order marks": lambda _: _around("\ufeff\ufffe\ufffd\ufffc"),
    "line separators": lambda _: _around("\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e\r\n"),
    "tags": lambda _: _around("\U000e0001\U000e0020\U000e0067\U000e007f"),
    "variation selectors": lambda _: _around("\ufe00\ufe0e\ufe0f\u180b\u180f\U000e0100\U000e01ef"),
    "scripts": _scripts,
}
# Texts that exceed the tokenizer's documented limits and need not give the original's result.
BEYOND_READING = frozenset({"endless marks"})
