"""Text -> words, what whole-word masking hides together (Devlin et al. 2019, the published code's note of May 2019).

An English word is what BERT's basic tokenizer makes: a run of letters, or a mark on its own. BERT takes Chinese one
character at a time; which of them make a word (Cui et al. 2021, section 3.1) is the word of ``rjieba``, a port of the
segmenter jieba with its dictionary, to which a user may add. Either way a word is a run of whole tokens of BERT's.
"""

import re
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from cloze.errors import DataError
from cloze.text.characters import IDEOGRAPHS, replace_surrogates, starts_word, windows
from cloze.text.encoding import Mark, Pieces, word_spans
from cloze.text.tokenizer import Tokenizer

# Marks that the segmenter does not cut at: with letters, digits and ideographs they make up what it looks at as one.
_JOINING = "+#&._%-"
# No ordinary text goes on for so long without a comma or a space; one that does is cut here for the segmenter.
_LONGEST_CUT = 65_536
# The tokenizer reads no more than a million characters of one text.
_LONGEST_ENCODED = 500_000
# The whole of the segmenter's own dictionary counts sixty million.
_HIGHEST_FREQUENCY = 1_000_000_000
_ENGINE_LOADING = threading.Lock()


class _Entry(NamedTuple):
    """A line of a dictionary."""

    word: str
    frequency: int | None
    tag: str | None


class _Patterns(NamedTuple):
    """How a text falls into parts. ``part`` has groups: ideographs alone, letters alone, anything joined."""

    part: re.Pattern[str]
    token: re.Pattern[str]
    ideograph: re.Pattern[str]


class WordSplitter:
    """A segmenter with its dictionary: texts to words.

    ``dictionary`` is a file in jieba's format or its lines: a word, and if wanted its frequency and its tag, separated
    by spaces. A word without a frequency gets one high enough to be found. Words with marks or spaces in them are
    refused, for the segmenter cuts there first.

    The segmenter is loaded with the first Chinese text, which takes a third of a second. After that nothing changes:
    a splitter may be used by several threads, and one sent to another process gives the same words there.
    """

    def __init__(self, dictionary: Path | str | Iterable[str] | None = None) -> None:
        self._entries = _read_dictionary(dictionary)
        self._own = frozenset(entry.word for entry in self._entries)
        # Words such as "covid-19", for which parts without any ideograph have to be looked at.
        self._joins_letters = any(not _patterns().ideograph.search(word) for word in self._own)
        self._engine: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_engine": None}

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield where each word starts and ends, in code points of the text as it was given.

        Spans are in order and never empty, with nothing but white space between them.
        """
        for found in _patterns().part.finditer(text):
            kind = found.lastindex
            if kind == 1:
                place, end = found.span()
                for word in self._cut(text, place, end):
                    yield place, (place := place + len(word))
            elif kind == 3:
                yield from self._split_joined(text, found.start(), found.end())
            else:
                yield found.span()

    def words(self, text: str) -> list[str]:
        """Return the words themselves."""
        return [text[start:end] for start, end in self.spans(text)]

    def _split_joined(self, text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Split a run without spaces in which letters, ideographs and joining marks may meet.

        BERT's tokens are the ground; those within one Chinese word ("T恤", "卡拉OK") or one of the user's go together.
        """
        patterns = _patterns()
        tokens = patterns.token.finditer(text, start, end)
        if not self._joins_letters and not patterns.ideograph.search(text, start, end):
            yield from (token.span() for token in tokens)
            return
        words = self._long_words(text, start, end)
        first = last = word_start = word_end = start
        for token in tokens:
            place = token.start()
            while word_end <= place:
                word_start, word_end = next(words, (end, end + 1))
            if first < place and not word_start < place:
                yield first, last
                first = place
            last = token.end()
        yield first, last

    def _long_words(self, text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the segmenter's words that may be longer than one token: Chinese ones and the user's."""
        place, ideograph = start, _patterns().ideograph
        for word in self._cut(text, start, end):
            if len(word) > 1 and (word in self._own or ideograph.search(word)):
                yield place, place + len(word)
            place += len(word)

    def _cut(self, text: str, start: int, end: int) -> Iterable[str]:
        cut = (self._engine or self._load()).cut
        if end - start <= _LONGEST_CUT:
            words: list[str] = cut(replace_surrogates(text[start:end]))
            return words
        parts = (text[first : min(first + _LONGEST_CUT, end)] for first in range(start, end, _LONGEST_CUT))
        return (word for part in parts for word in cut(replace_surrogates(part)))

    def _load(self) -> Any:
        # Not at the top: importing it reads the dictionary.
        import rjieba

        with _ENGINE_LOADING:
            if self._engine is None:
                # An object of our own: words added to the module's would be in everyone's dictionary.
                engine = rjieba.Jieba()
                # Suggested frequencies outweigh what the dictionary holds by then: parts come before the whole.
                for entry in sorted(self._entries, key=lambda entry: (entry.frequency is None, len(entry.word))):
                    engine.add_word(entry.word, entry.frequency, entry.tag)
                self._engine = engine
            return self._engine


def word_indices(offsets: Iterable[tuple[int, int]], spans: Iterable[tuple[int, int]]) -> list[int]:
    """Number the word that each token belongs to; -1 for special tokens, whose offsets are empty.

    ``offsets`` are those of the tokens of one text, as in ``Encoding.offsets``, and ``spans`` its words.
    """
    numbers: list[int] = []
    words = iter(spans)
    number, word_end = -1, 0
    for start, end in offsets:
        if start == end:
            numbers.append(-1)
            continue
        while word_end <= start:
            _, word_end = next(words, (0, sys.maxsize))
            number += 1
        numbers.append(number)
    if word_end == sys.maxsize:
        raise DataError(
            f"a token ends at character {max(end for _, end in offsets):,}, after the last word; "
            "give the offsets and the words of the same text"
        )
    return numbers


def encode_words(
    tokenizer: Tokenizer, splitter: WordSplitter, texts: Sequence[str]
) -> list[tuple[list[int], list[int]]]:
    """Return each text's ids, without special tokens or truncation, and the number of each id's word."""
    found = tokenizer.encode_pieces([text if len(text) <= _LONGEST_ENCODED else "" for text in texts])
    results = []
    for text, whole in zip(texts, found, strict=True):
        pieces = whole if len(text) <= _LONGEST_ENCODED else _encode_long(tokenizer, text)
        numbers = word_indices(pieces.offsets, splitter.spans(text))
        # Most are together already. A tokenizer that leaves ideographs together continues a word where the segmenter
        # starts one, and the ladder makes one of words that the text has apart.
        for first, stop in word_spans(tokenizer.word_starts(pieces.ids), pieces.marks):
            if numbers[first] != numbers[stop - 1]:
                numbers[first:stop] = [numbers[first]] * (stop - first)
        results.append((pieces.ids, numbers))
    return results


def _encode_long(tokenizer: Tokenizer, text: str) -> Pieces:
    ids: list[int] = []
    offsets: list[tuple[int, int]] = []
    marks: list[Mark | None] = []
    for start, end, _ in windows(text, _LONGEST_ENCODED, chinese=tokenizer.settings.chinese):
        (found,) = tokenizer.encode_pieces([text[start:end]])
        ids.extend(found.ids)
        offsets.extend((start + first, start + last) for first, last in found.offsets)
        marks.extend(found.marks or [None] * len(found.ids))
    return Pieces(ids, offsets, marks=marks)


def _read_dictionary(dictionary: Path | str | Iterable[str] | None) -> tuple[_Entry, ...]:
    if dictionary is None:
        return ()
    if not isinstance(dictionary, Path | str):
        return tuple(_read_lines(dictionary, "the dictionary, entry"))
    path = Path(dictionary)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from None
    return tuple(_read_lines(text.split("\n"), f"{path}, line"))


def _read_lines(lines: Iterable[str], place: str) -> Iterator[_Entry]:
    for number, line in enumerate(lines, start=1):
        word, *rest = line.split() or [""]
        if not word:
            continue
        frequency = rest.pop(0) if rest and not _TAG.fullmatch(rest[0]) else None
        tag = rest.pop(0) if rest and _TAG.fullmatch(rest[0]) else None
        flaw = None
        if rest:
            flaw = f"{' '.join(rest)[:50]!r} is too much; expected a word, its frequency and its tag"
        elif not _word_pattern().fullmatch(word):
            flaw = (
                f"{word[:50]!r} can never be found, for texts are cut at its marks first; "
                f"expected ideographs, letters a to z, digits and {_JOINING}"
            )
        elif frequency is not None and not _is_frequency(frequency):
            flaw = f"{frequency[:50]!r} is no frequency; expected a whole number from 1 to {_HIGHEST_FREQUENCY:,}"
        if flaw is not None:
            raise DataError(f"{place} {number}: {flaw}")
        yield _Entry(word, int(frequency) if frequency else None, tag)


_TAG = re.compile(r"[a-z]+")


def _is_frequency(value: str) -> bool:
    return value.isascii() and value.isdecimal() and len(value) < 20 and 1 <= int(value) <= _HIGHEST_FREQUENCY


@cache
def _word_pattern() -> re.Pattern[str]:
    return re.compile(f"[{_ideograph_ranges()}A-Za-z0-9{re.escape(_JOINING)}]+")


@cache
def _patterns() -> _Patterns:
    """Put BERT's rules of where words start into patterns."""
    alone = [chr(code) for code in range(0x10000) if starts_word(chr(code), chinese=False)]
    space = re.escape("".join(character for character in alone if character.isspace()))
    mark = re.escape("".join(character for character in alone if not character.isspace()))
    cutting = re.escape("".join(character for character in alone if character not in _JOINING))
    joining, ideograph = re.escape(_JOINING), _ideograph_ranges()
    letters = f"[^{space}{mark}{ideograph}]"
    return _Patterns(
        part=re.compile(
            f"([{ideograph}]++)(?![^{cutting}])|({letters}++)(?![{joining}{ideograph}])|([^{cutting}]++)|[^{space}]"
        ),
        token=re.compile(f"[{ideograph}]|[{mark}]|{letters}+"),
        ideograph=re.compile(f"[{ideograph}]"),
    )


def _ideograph_ranges() -> str:
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in IDEOGRAPHS)
