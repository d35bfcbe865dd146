"""What a character is to BERT: space, punctuation or ideograph; and where a long text may be cut.

The tokenizer's engine keeps some 190 bytes for every character of a text until its last token is out,
whatever the truncation, so that ten megabytes in one line would take two gigabytes. Long texts therefore
pass through it in windows. A window ends just before a space, a punctuation mark or an ideograph, where
BERT's basic tokenizer (Devlin et al. 2019, appendix A.2 and the published code) ends a word in any case:
the tokens of the windows, one after the other, are the tokens of the text.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

# The blocks around whose characters BERT puts spaces. The published code starts extension E at 2B820; the
# engine, and with it every model of recent years, at 2B920. We say what the engine does.
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
# No more of one unbroken word is read than this. A word over 100 characters is [UNK], so the cut changes
# nothing unless nearly all of it are characters that the normaliser deletes.
MAX_WINDOW = 65_536

_SPACES = frozenset(" \t\n\r\u00a0\u1680\u2028\u2029\u202f\u205f\u3000") | {chr(code) for code in range(0x2000, 0x200B)}
# Deleted or a space wherever they stand, hence without effect at the start of a window.
_EMPTY = re.compile(
    "[\x00-\x20\x7f-\xa0\xad\u1680\u2000-\u200f\u2028-\u202f\u205f-\u2064\u2066-\u206f\u3000\ufeff\ufffd]*"
)
_SURROGATE = re.compile("[\ud800-\udfff]")


class Window(NamedTuple):
    """Characters ``start`` to ``end`` of a text; ``whole`` unless an endless word was cut short."""

    start: int
    end: int
    whole: bool


def is_ideograph(character: str) -> bool:
    """Whether BERT makes a word of this character alone, as it does with Chinese."""
    code = ord(character)
    return code >= 0x3400 and any(first <= code <= last for first, last in IDEOGRAPHS)


def replace_surrogates(text: str) -> str:
    """Put U+FFFD, which BERT drops, in the place of each lone surrogate, which UTF-8 cannot hold."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def starts_word(character: str, chinese: bool) -> bool:
    """Whether no word of BERT's can reach over the place before this character."""
    if character in _SPACES:
        return True
    if character.isascii():
        return character.isprintable() and not character.isalnum()
    # Newer tables know more punctuation than the engine does; all know what has been so since 3.2.
    if unicodedata.category(character).startswith("P"):
        return unicodedata.ucd_3_2_0.category(character).startswith("P")
    return chinese and is_ideograph(character)


def windows(text: str, size: int, *, chinese: bool) -> Iterator[Window]:
    """Cut a text into windows of about ``size`` characters whose tokens add up to the tokens of the whole."""
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
    if latest >= len(text):
        return len(text)
    return next((place for place in range(latest, start, -1) if starts_word(text[place], chinese)), None)


def _next_cut(text: str, earliest: int, chinese: bool) -> int:
    found = _word_starts(chinese).search(text, earliest)
    return found.start() if found else len(text)


@cache
def _word_starts(chinese: bool) -> re.Pattern[str]:
    """Put ``starts_word`` into a pattern, for words of millions of characters."""
    alone = (chr(code) for code in range(0x10000) if starts_word(chr(code), chinese=False))
    ranges = (f"{chr(first)}-{chr(last)}" for first, last in IDEOGRAPHS if chinese)
    return re.compile(f"[{re.escape(''.join(alone))}{''.join(ranges)}]")
