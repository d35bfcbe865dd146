"""Text -> sentences, what next-sentence pairs are made of (Devlin et al. 2019, section 3.1, task 2).

Where a sentence may end is the word of ``sentencex``; its rules for English know the Chinese marks as well, so that
English, Chinese and both in one paragraph take the same way. This module goes through long texts in bounded
stretches, and mends what the rules get wrong: a sentence never starts with a comma or a closing bracket, a file name
or a list number is not one, ``。`` ends it whatever follows, and a quotation of half a page is not a single one.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import sentencex

from cloze.text.characters import is_ideograph, replace_surrogates

# Each of the engine's steps looks back over the whole stretch that it was given, which makes long ones slow.
_STRETCH = 16_384
# A sentence in quotation marks or brackets is one up to this length; beyond it the marks inside count as well.
# It also keeps a mark that was never closed from taking the next page with it.
_LONGEST_QUOTATION = 400

# The patterns that follow look at a few characters around a mark: none of them may run along a whole text.
_CLOSING = "”’」』】〕〗）》〉］｝)]}»›"
_ENDING = "。！？｡…!?."
_TAIL = re.compile(rf"(?:[{re.escape(_CLOSING + _ENDING)}]|[\"'](?=[\s{re.escape(_CLOSING)}]|$)){{0,100}}")
_SPACE = re.compile(r"\s{0,1000}")
_GOES_ON = frozenset("，、；：,;:")
_OPENING = frozenset("\"'`([{<“‘「『《（")
_CLOSING_OR_STRAIGHT = frozenset(_CLOSING + "\"'")
_LONGEST_NUMBER = 20
_NUMBER = re.compile(r"\s*[(（\[]?(?:\d{1,3}(?:\.\d{1,3})*|[A-Za-z]|[ivxIVX]{1,4})[)）\]]?\.")
_NOTES = re.compile(r"(?:\s*\[\d{1,4}\])+$")
# "我遇到Mr. Smith": the engine takes all since the last space for the word before the mark.
_GLUED = re.compile(r"[^\x00-\u024f\s]([A-Za-z]{1,6})\.$")
# "went home.He slept", but not "Intl.DateTimeFormat" nor "www.Example.com".
_WORD_BEFORE = re.compile(r"(?:^|[\s“‘\"(])[A-Za-z’'-]*[a-z]{2}[.!?]$|[\u3400-\u9fff][.!?]$")
_WORD_AFTER = re.compile(r"[A-Z][a-z]*[\s,’']")

_BULLETS = "•◦▪▫■□●○⁃⁌⁍◆◇★☆➤➢➣▶▸►"
_BULLET = re.compile(f"[{_BULLETS}]")
_BREAK = re.compile(rf"\n[^\S\n]*\n|\n(?=[^\S\n]*[{_BULLETS}])")
# The mark comes first and what precedes it after, for the engine of patterns looks for plain characters fastest.
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


class _Piece(NamedTuple):
    """What the engine holds to be a sentence: where the next begins, where its marks end, and those inside it."""

    next_start: int
    end: int
    inner: list[int]


def split_sentences(text: str, language: str | None = None) -> list[str]:
    """Split a text into sentences, trimmed and never empty; nothing but white space is lost.

    ``language`` is an ISO 639 code; without one the rules are those for English and Chinese. U+FFFD stands in the
    place of lone surrogates, which nothing after this could write down.
    """
    return [replace_surrogates(text[start:end]) for start, end in sentence_spans(text, language)]


def sentence_spans(text: str, language: str | None = None) -> Iterator[tuple[int, int]]:
    """Yield where each sentence starts and ends, in code points of the text as it was given.

    Spans are in order, trimmed and never empty, with nothing but white space between them.
    """
    start = 0
    for candidate in _candidates(text, language or "en"):
        end = _sentence_end(text, start, candidate) if candidate > start else None
        if end is not None:
            yield from _trimmed(text, start, end)
            start = end
    yield from _trimmed(text, start, len(text))


def _trimmed(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    sentence = text[start:end]
    first, last = start + len(sentence) - len(sentence.lstrip()), start + len(sentence.rstrip())
    if first < last:
        yield first, last


def _sentence_end(text: str, start: int, candidate: int) -> int | None:
    """Return where a sentence ends that may end at ``candidate``, None where it goes on."""
    end = candidate
    # The engine may count an opening quotation mark to the sentence before it.
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
    if text[following] in _GOES_ON:
        return None
    mark = end
    # "et al. [22] showed": the numbers of notes stand after the mark.
    if text[mark - 1] == "]" and (notes := _NOTES.search(text, max(start, end - 40), end)):
        mark = notes.start()
    while mark > start and text[mark - 1] in _CLOSING_OR_STRAIGHT:
        mark -= 1
    # Marks that are Chinese, and ends of lines that hold no mark, are what they seem to be.
    is_ascii = mark > start and text[mark - 1] in ".!?"
    return None if is_ascii and _goes_on(text, start, mark, following, following == end) else end


def _goes_on(text: str, start: int, mark: int, following: int, direct: bool) -> bool:
    """Whether the ASCII mark before ``mark`` is inside a sentence; ``direct`` if no space follows it."""
    character = text[following]
    # "Mamma Mia!'s success" as well.
    if "a" <= (text[following + 1 : following + 2] if direct and character in "'’" else character) <= "z":
        return True
    before = text[max(start, mark - 40) : mark]
    if direct and character.isascii() and character not in _OPENING:
        return not (_WORD_AFTER.match(text, following) and _WORD_BEFORE.search(before))
    if before[-1] != ".":
        return False
    # Dots in a row are a Chinese pause, as in "我...不知道", like "……" itself.
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
    """Yield the places where sentences may end, stretch after stretch.

    A stretch starts where a sentence does, and what is found close to its end is left to the next one, which knows
    what comes after: so the places are those of the text as a whole. No sentence goes on after an empty line, or into
    a line that starts with a bullet.
    """
    begin = 0
    while begin < len(text):
        blank = _BREAK.search(text, begin, begin + _STRETCH)
        stop = blank.start() if blank else min(begin + _STRETCH, len(text))
        is_end = blank is not None or stop == len(text)
        limit = stop if is_end else stop - _STRETCH // 8
        known = begin
        for piece in _pieces(text, begin, stop, language):
            if piece.next_start > limit:
                # Nothing ends here for pages and pages: the marks inside are all there is.
                if known < begin + _STRETCH // 2:
                    yield from (place for place in piece.inner if place <= limit)
                    known = limit
                break
            yield from piece.inner
            yield piece.end
            known = piece.next_start
        begin = (blank.end() if blank else stop) if is_end else known


def _pieces(text: str, begin: int, stop: int, language: str) -> Iterator[_Piece]:
    masked = _mask(text[begin:stop])
    place = 0
    for part in _segment(language, masked):
        inner: list[int] = []
        if len(part) > _LONGEST_QUOTATION and _QUOTES.search(part):
            inner = _ends(_segment(language, _QUOTES.sub("A", part)), begin + place)[:-1]
        core = place + len(part.rstrip())
        place += len(part)
        yield _Piece(begin + place, begin + core, inner)


def _ends(parts: list[str], place: int) -> list[int]:
    ends = []
    for part in parts:
        ends.append(place + len(part.rstrip()))
        place += len(part)
    return ends


def _mask(stretch: str) -> str:
    """Replace, one for one, the characters that mislead the engine about where a sentence ends."""
    # With ")" a bracketed number makes the rest of the paragraph one item of a list.
    masked = stretch.replace(")", "]")
    # Straight quotation marks pair with whatever comes next, so that one too many turns all that follows inside out.
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
    # What comes before a mark is looked up as one word, from the last space on; Chinese has none. On other spaces
    # than the plain ones the engine stumbles.
    masked = _SPACE_LIKE.sub(" ", masked)
    # A bullet would make the rest of the paragraph one item of a list.
    masked = _BULLET.sub("·", masked)
    # After an ASCII mark a digit or a small letter goes on with the sentence; after "。" it does not.
    return _AFTER_CHINESE_MARK.sub(r"\1A", masked)


def _segment(language: str, masked: str) -> list[str]:
    """Call the engine; where it fails or loses a character, every mark may be an end."""
    try:
        parts: list[str] = sentencex.segment(language, masked)
    except BaseException as error:
        # A panic in Rust is not an Exception; everything else is not ours to keep.
        if type(error).__name__ != "PanicException":
            raise
        parts = []
    return parts if sum(map(len, parts)) == len(masked) else _PLAIN.findall(masked)
