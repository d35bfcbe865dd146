"""Character classes of BERT (whitespace, punctuation, ideograph), and windows for long texts.

The ``tokenizers`` engine holds about 190 bytes per character until it returns, even with truncation: a line of ten
megabytes would take two gigabytes. Long texts are therefore encoded in windows. A window ends before whitespace,
punctuation or an ideograph. BERT's basic tokenizer (Devlin et al. 2019, appendix A.2 and the published code) always
ends a word there, so the concatenated tokens of the windows are the tokens of the text.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

# Unicode ranges whose characters BERT surrounds with spaces. Extension E starts at 2B820 in the published code, but at
# 2B920 in ``tokenizers``, and therefore in all recent models. These are the ranges of ``tokenizers``.
IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
# Maximum number of characters of a word that are encoded. A word of more than 100 characters is [UNK], so this changes
# nothing unless the normaliser deletes nearly all of these characters.
MAX_WINDOW = 65_536

_WHITESPACE = frozenset(" \t\n\r\u00a0\u1680\u2028\u2029\u202f\u205f\u3000") | {
    chr(code) for code in range(0x2000, 0x200B)
}
# Characters that the normaliser deletes or replaces with spaces, so they have no effect at the start of a window.
_EMPTY = re.compile(
    "[\x00-\x20\x7f-\xa0\xad\u1680\u2000-\u200f\u2028-\u202f\u205f-\u2064\u2066-\u206f\u3000\ufeff\ufffd]*"
)
_RANGES = "".join(f"{chr(first)}-{chr(last)}" for first, last in IDEOGRAPHS)
_WORD = re.compile(rf"[{_RANGES}]|[^\W_{_RANGES}]+|[^\w\s]|_")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Window(NamedTuple):
    """Characters ``start`` to ``end`` of a text; ``whole`` is False if the window ends inside an overlong word."""

    start: int
    end: int
    whole: bool


def is_ideograph(character: str) -> bool:
    """Return whether BERT treats this character as a separate word, as in Chinese."""
    code = ord(character)
    return code >= 0x3400 and any(first <= code <= last for first, last in IDEOGRAPHS)


def count_words(text: str) -> int:
    """Count the words of a text after BERT's basic tokenization; each punctuation mark and each ideograph is a word.

    The count does not depend on a vocabulary, so losses per word are comparable between models.
    """
    return len(_WORD.findall(text))


def count_characters(text: str) -> int:
    """Count the characters of a text, excluding whitespace."""
    return sum(map(len, text.split()))


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode, with U+FFFD, which BERT drops."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def starts_word(character: str, chinese: bool) -> bool:
    """Return whether there is always a word boundary before this character."""
    if character in _WHITESPACE:
        return True
    if character.isascii():
        return character.isprintable() and not character.isalnum()
    # Recent Unicode versions have more punctuation than the engine knows; the punctuation of Unicode 3.2 is known to
    # all.
    if unicodedata.category(character).startswith("P"):
        return unicodedata.ucd_3_2_0.category(character).startswith("P")
    return chinese and is_ideograph(character)


def windows(text: str, size: int, *, chinese: bool) -> Iterator[Window]:
    """Split a text into windows of about ``size`` characters; their concatenated tokens equal the text's tokens."""
    start = 0
    while start < len(text):
        empty = _EMPTY.match(text, start)
        start = empty.end() if empty else start
        end = _last_cut(text, start, start + size, chinese) or _next_cut(text, start + size, chinese)
        if start < end:
            last = min(end, start + max(size, MAX_WINDOW))
            yield Window(start, last, whole=last == end)
        start = end


def _last_cut(text: str, start: int, latest: int, chinese: bool) -> int | None:
    """Return the last word boundary after ``start``, at most ``latest``, or None."""
    if latest >= len(text):
        return len(text)
    return next((index for index in range(latest, start, -1) if starts_word(text[index], chinese)), None)


def _next_cut(text: str, earliest: int, chinese: bool) -> int:
    boundary = _word_starts(chinese).search(text, earliest)
    return boundary.start() if boundary else len(text)


@cache
def _word_starts(chinese: bool) -> re.Pattern[str]:
    """Return ``starts_word`` as a regular expression, to search words of millions of characters quickly."""
    starts = (chr(code) for code in range(0x10000) if starts_word(chr(code), chinese=False))
    ranges = (f"{chr(first)}-{chr(last)}" for first, last in IDEOGRAPHS if chinese)
    return re.compile(f"[{re.escape(''.join(starts))}{''.join(ranges)}]")
