"""Boundaries in text: BERT's character classes, windows for long texts, and sentences.

Character classes are whitespace, punctuation and ideographs. The ``tokenizers`` engine holds about 190 bytes per
character until it returns, even with truncation: a line of ten megabytes would take two gigabytes. Long texts are
therefore encoded in windows. A window ends before whitespace, punctuation or an ideograph. BERT's basic tokenizer
(Devlin et al. 2019, appendix A.2 and the published code) always ends a word there, so the concatenated tokens of the
windows are the tokens of the text.

Sentences are needed for next-sentence prediction (Devlin et al. 2019, section 3.1, task 2). The ``sentencex`` library
proposes sentence ends. Its English rules include Chinese punctuation, so they work for English, Chinese and mixed
paragraphs. This module processes long texts in bounded chunks and corrects the proposals: a sentence never starts with
a comma or a closing bracket, a file name or a list number is not a sentence, ``。`` always ends a sentence, and very
long quotations are split.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import NamedTuple

import sentencex

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


# -- sentences ---------------------------------------------------------------------------------------------------------


# Characters per call. Long inputs are slow, because each step of sentencex looks back over its whole input.
_CHUNK = 16_384
# Quotations and brackets up to this length are not split; in longer ones, the marks inside end sentences as well. This
# also limits the effect of a quotation mark that is never closed.
_LONGEST_QUOTATION = 400

# The following patterns match a few characters around a mark; none may scan a whole text.
_CLOSING = "”’」』】〕〗）》〉］｝)]}»›"
_ENDING = "。！？｡…!?."
_TAIL = re.compile(rf"(?:[{re.escape(_CLOSING + _ENDING)}]|[\"'](?=[\s{re.escape(_CLOSING)}]|$)){{0,100}}")
_SPACE = re.compile(r"\s{0,1000}")
_CONTINUING = frozenset("，、；：,;:")
_OPENING = frozenset("\"'`([{<“‘「『《（")
_CLOSING_OR_STRAIGHT = frozenset(_CLOSING + "\"'")
_LONGEST_NUMBER = 20
_NUMBER = re.compile(r"\s*[(（\[]?(?:\d{1,3}(?:\.\d{1,3})*|[A-Za-z]|[ivxIVX]{1,4})[)）\]]?\.")
_FOOTNOTES = re.compile(r"(?:\s*\[\d{1,4}\])+$")
# "我遇到Mr. Smith": sentencex takes everything since the last space as the word before the mark.
_GLUED = re.compile(r"[^\x00-\u024f\s]([A-Za-z]{1,6})\.$")
# "went home.He slept", but not "Intl.DateTimeFormat" nor "www.Example.com".
_WORD_BEFORE = re.compile(r"(?:^|[\s“‘\"(])[A-Za-z’'-]*[a-z]{2}[.!?]$|[\u3400-\u9fff][.!?]$")
_WORD_AFTER = re.compile(r"[A-Z][a-z]*[\s,’']")

_BULLETS = "•◦▪▫■□●○⁃⁌⁍◆◇★☆➤➢➣▶▸►"
_BULLET = re.compile(f"[{_BULLETS}]")
_BREAK = re.compile(rf"\n[^\S\n]*\n|\n(?=[^\S\n]*[{_BULLETS}])")
# The lookbehinds come after the mark, because ``re`` is fastest for patterns with a literal prefix.
_OPENING_DOUBLE = re.compile(r"""\"(?<![^\s(\[{<‘'—–:：，,-]\")(?=\S)""")
_CLOSING_DOUBLE = re.compile(r"""\"(?<=[^\s\u3400-\u9fff]\")""")
_OPENING_SINGLE = re.compile(r"""'(?<![^\s(\[{<“\"—–-]')(?=[^\s'])""")
_CLOSING_SINGLE = re.compile(r"""'(?<=[^\s']')(?=[^\w']|$)""")
_APOSTROPHE = re.compile(r"""[’'](?:(?<=\w’)(?=\w)|(?<=')(?<!'')(?!'))""")
_OPENED = re.compile(r"(?<=[.!?。！？｡…”’\"')\]])\s+[\"'`“‘「『《（(]+$")
_SPACE_LIKE = re.compile(r"[，\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]")
_PLAIN = re.compile(r"[^.!?。！？｡]*[.!?。！？｡]+\s*|[^.!?。！？｡]+")
_AFTER_CHINESE_MARK = re.compile(rf"([。！？｡][{re.escape(_CLOSING)}\"]*\s*)[0-9a-z]")
_QUOTES = re.compile("[\"“”‘’'`«»‹›„‟‛‚「」《》()（）<>{}\\[\\]]")


class _Proposal(NamedTuple):
    """A sentence proposed by sentencex: the start of the next sentence, its end, and ends inside a quotation."""

    next_start: int
    end: int
    inner: list[int]


def split_sentences(text: str, language: str | None = None) -> list[str]:
    """Split a text into sentences.

    Args:
        text: The text. Lone surrogates, which UTF-8 cannot encode, become U+FFFD.
        language: ISO 639 code; None selects the rules for English and Chinese.

    Returns:
        The sentences, stripped and never empty. Only whitespace between sentences is lost.
    """
    return [replace_surrogates(text[start:end]) for start, end in sentence_spans(text, language)]


def sentence_spans(text: str, language: str | None = None) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each sentence, in code points of the original text.

    Spans are in order, stripped and never empty, with only whitespace between them.
    """
    start = 0
    for candidate in _candidates(text, language or "en"):
        end = _sentence_end(text, start, candidate) if candidate > start else None
        if end is not None:
            yield from _strip_span(text, start, end)
            start = end
    yield from _strip_span(text, start, len(text))


def _strip_span(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    sentence = text[start:end]
    first, last = start + len(sentence) - len(sentence.lstrip()), start + len(sentence.rstrip())
    if first < last:
        yield first, last


def _sentence_end(text: str, start: int, candidate: int) -> int | None:
    """Return the end of the sentence that may end at ``candidate``, or None if it continues."""
    end = candidate
    # sentencex may assign an opening quotation mark to the sentence before it.
    if text[end - 1] in _OPENING and (opened := _OPENED.search(text, max(start, end - 8), end)):
        end = opened.start()
    if not text[end : end + 1].isspace() and (tail := _TAIL.match(text, end)):
        end = tail.end()
    if end >= len(text):
        return end
    space = _SPACE.match(text, end)
    following = min(space.end() if space else end, len(text) - 1)
    if text.count("\n", end, following) > 1:
        return end
    if text[following] in _CONTINUING:
        return None
    mark = end
    # "et al. [22] showed": footnote numbers follow the mark.
    if text[mark - 1] == "]" and (footnotes := _FOOTNOTES.search(text, max(start, end - 40), end)):
        mark = footnotes.start()
    while mark > start and text[mark - 1] in _CLOSING_OR_STRAIGHT:
        mark -= 1
    # Chinese marks and line ends without a mark always end a sentence.
    is_ascii = mark > start and text[mark - 1] in ".!?"
    return None if is_ascii and _continues(text, start, mark, following, following == end) else end


def _continues(text: str, start: int, mark: int, following: int, direct: bool) -> bool:
    """Return whether the sentence continues after the ASCII mark before ``mark``.

    ``direct`` means that no whitespace follows the mark.
    """
    character = text[following]
    # A lower-case letter follows, also as in "Mamma Mia!'s success".
    if "a" <= (text[following + 1 : following + 2] if direct and character in "'’" else character) <= "z":
        return True
    before = text[max(start, mark - 40) : mark]
    if direct and character.isascii() and character not in _OPENING:
        return not (_WORD_AFTER.match(text, following) and _WORD_BEFORE.search(before))
    if before[-1] != ".":
        return False
    # In Chinese, several dots are a pause, as in "我...不知道", like the ellipsis "……".
    if direct and before.endswith("..") and is_ideograph(character):
        return True
    if len(before) < _LONGEST_NUMBER and _NUMBER.fullmatch(before):
        return True
    glued = _GLUED.search(text[max(0, mark - 8) : mark])
    return glued is not None and _is_abbreviation(glued[1])


@lru_cache(maxsize=10_000)
def _is_abbreviation(word: str) -> bool:
    return len(_segment("en", f"So {word}. Xyz")) == 1


def _candidates(text: str, language: str) -> Iterator[int]:
    """Yield the positions at which sentences may end, chunk by chunk.

    A chunk starts at a sentence start. Proposals close to its end are left to the next chunk, which contains the text
    that follows them, so the positions do not depend on the chunks. A sentence never continues past an empty line, or
    into a line that starts with a bullet.
    """
    begin = 0
    while begin < len(text):
        blank = _BREAK.search(text, begin, begin + _CHUNK)
        stop = blank.start() if blank else min(begin + _CHUNK, len(text))
        is_end = blank is not None or stop == len(text)
        limit = stop if is_end else stop - _CHUNK // 8
        known = begin
        for proposal in _proposals(text, begin, stop, language):
            if proposal.next_start > limit:
                # No proposed end within half a chunk: fall back on the possible ends inside the quotation.
                if known < begin + _CHUNK // 2:
                    yield from (position for position in proposal.inner if position <= limit)
                    known = limit
                break
            yield from proposal.inner
            yield proposal.end
            known = proposal.next_start
        begin = (blank.end() if blank else stop) if is_end else known


def _proposals(text: str, begin: int, stop: int, language: str) -> Iterator[_Proposal]:
    masked = _mask(text[begin:stop])
    place = 0
    for part in _segment(language, masked):
        inner: list[int] = []
        if len(part) > _LONGEST_QUOTATION and _QUOTES.search(part):
            inner = _ends(_segment(language, _QUOTES.sub("A", part)), begin + place)[:-1]
        core = place + len(part.rstrip())
        place += len(part)
        yield _Proposal(begin + place, begin + core, inner)


def _ends(parts: list[str], place: int) -> list[int]:
    ends = []
    for part in parts:
        ends.append(place + len(part.rstrip()))
        place += len(part)
    return ends


def _mask(chunk: str) -> str:
    """Replace characters that mislead sentencex with others, one for one, so that positions stay the same."""
    # After a number followed by ")", sentencex would treat the rest of the paragraph as one list item.
    masked = chunk.replace(")", "]")
    # sentencex pairs each straight quotation mark with the next one, so an unpaired mark would invert all that follow.
    if '"' in masked:
        masked = _OPENING_DOUBLE.sub("“", masked)
        masked = _CLOSING_DOUBLE.sub("”", masked)
    if "'" in masked or "’" in masked:
        masked = _OPENING_SINGLE.sub("‘", masked)
        masked = _CLOSING_SINGLE.sub("’", masked)
        masked = _APOSTROPHE.sub("\u02bc", masked)
    if masked.isascii():
        return masked
    masked = replace_surrogates(masked)
    # sentencex looks up the word before a mark, starting at the last space, but Chinese has no spaces. It also fails on
    # whitespace other than the ASCII space.
    masked = _SPACE_LIKE.sub(" ", masked)
    # After a bullet, sentencex would treat the rest of the paragraph as one list item.
    masked = _BULLET.sub("·", masked)
    # A digit or lower-case letter continues the sentence after an ASCII mark, but not after "。".
    return _AFTER_CHINESE_MARK.sub(r"\1A", masked)


def _segment(language: str, masked: str) -> list[str]:
    """Call sentencex; if it fails or loses characters, return the parts between all marks instead."""
    try:
        parts: list[str] = sentencex.segment(language, masked)
    except BaseException as error:
        # A Rust panic is not an Exception. Re-raise everything else, such as KeyboardInterrupt.
        if type(error).__name__ != "PanicException":
            raise
        parts = []
    return parts if sum(map(len, parts)) == len(masked) else _PLAIN.findall(masked)
