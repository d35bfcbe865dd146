"""Split text into words, the units of whole-word masking (published code of Devlin et al. 2019, note of May 2019).

An English word is a token of BERT's basic tokenizer: a run of letters or a single punctuation mark. BERT tokenizes
Chinese by character, so Chinese words come from ``rjieba``, a port of the segmenter jieba (Cui et al. 2021, section
3.1). Users can extend its dictionary. In both languages, a word consists of whole BERT tokens.
"""

import re
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from cloze.errors import DataError
from cloze.text.boundaries import IDEOGRAPHS, replace_surrogates, starts_word, windows
from cloze.text.encoding import Mark, Pieces, word_spans
from cloze.text.tokenizer import Tokenizer

# Punctuation at which jieba does not split: it processes a run of these marks, letters, digits and ideographs at once.
_JOINING = "+#&._%-"
# Maximum number of characters per jieba call. Ordinary texts have punctuation or whitespace long before this limit.
_MAX_CUT = 65_536
# ``Tokenizer.encode_pieces`` encodes at most a million characters of a text.
_MAX_ENCODED = 500_000
# For comparison, the frequencies in jieba's dictionary add up to sixty million.
_MAX_FREQUENCY = 1_000_000_000
_TAG = re.compile(r"[a-z]+")  # part of speech
_LOAD_LOCK = threading.Lock()


class _Entry(NamedTuple):
    """An entry of a user dictionary."""

    word: str
    frequency: int | None
    tag: str | None


class _Patterns(NamedTuple):
    """Patterns that split a text. The groups of ``part``: ideographs only, letters only, a mixed run."""

    part: re.Pattern[str]
    token: re.Pattern[str]
    ideograph: re.Pattern[str]


class WordSplitter:
    """Splits texts into words with jieba and an optional user dictionary.

    The first Chinese text loads jieba, which takes a third of a second. The splitter can be pickled and used from
    several threads.

    Args:
        dictionary: A file in jieba's format, or its lines: a word and optionally its frequency and tag, separated by
            spaces. A word without a frequency gets one that is high enough for the word to be found. Words with
            punctuation or spaces are rejected, because jieba always splits there.
    """

    def __init__(self, dictionary: Path | str | Iterable[str] | None = None) -> None:
        self._entries = _read_dictionary(dictionary)
        self._user_words = frozenset(entry.word for entry in self._entries)
        # User words such as "covid-19" require that runs without ideographs are segmented too.
        self._joins_letters = any(not _patterns().ideograph.search(word) for word in self._user_words)
        self._engine: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_engine": None}

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the start and end of each word, in code points of the original text.

        Spans are in order and never empty, with only whitespace between them.
        """
        for part in _patterns().part.finditer(text):
            group = part.lastindex
            if group == 1:
                start, end = part.span()
                for word in self._cut(text, start, end):
                    yield start, (start := start + len(word))
            elif group == 3:
                yield from self._split_mixed(text, part.start(), part.end())
            else:
                yield part.span()

    def words(self, text: str) -> list[str]:
        """Return the words of a text."""
        return [text[start:end] for start, end in self.spans(text)]

    def _split_mixed(self, text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Split a run of letters, ideographs and joining punctuation without spaces.

        Starts from BERT's tokens and merges those inside a Chinese word ("T恤", "卡拉OK") or a user word.
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
        """Yield the spans of jieba's words that may have several tokens: Chinese words and user words."""
        place, ideograph = start, _patterns().ideograph
        for word in self._cut(text, start, end):
            if len(word) > 1 and (word in self._user_words or ideograph.search(word)):
                yield place, place + len(word)
            place += len(word)

    def _cut(self, text: str, start: int, end: int) -> Iterable[str]:
        cut = (self._engine or self._load()).cut
        if end - start <= _MAX_CUT:
            words: list[str] = cut(replace_surrogates(text[start:end]))
            return words
        parts = (text[first : min(first + _MAX_CUT, end)] for first in range(start, end, _MAX_CUT))
        return (word for part in parts for word in cut(replace_surrogates(part)))

    def _load(self) -> Any:
        # Deferred import, because it loads the dictionary.
        import rjieba

        with _LOAD_LOCK:
            if self._engine is None:
                # A separate instance, because words added to the module-level one would affect all splitters.
                engine = rjieba.Jieba()
                # A suggested frequency outweighs only the entries that are already present, so add short words first.
                for entry in sorted(self._entries, key=lambda entry: (entry.frequency is None, len(entry.word))):
                    engine.add_word(entry.word, entry.frequency, entry.tag)
                self._engine = engine
            return self._engine


def word_indices(offsets: Iterable[tuple[int, int]], spans: Iterable[tuple[int, int]]) -> list[int]:
    """Return the word index of each token; -1 for special tokens, whose offsets are empty.

    Args:
        offsets: Offsets of the tokens of one text, as in ``Encoding.offsets``.
        spans: Spans of the words of the same text, from ``WordSplitter.spans``.
    """
    indices: list[int] = []
    words = iter(spans)
    index, word_end = -1, 0
    for start, end in offsets:
        if start == end:
            indices.append(-1)
            continue
        while word_end <= start:
            _, word_end = next(words, (0, sys.maxsize))
            index += 1
        indices.append(index)
    if word_end == sys.maxsize:
        raise DataError(
            f"a token ends at character {max(end for _, end in offsets):,}, after the last word; "
            "pass the offsets and the words of the same text"
        )
    return indices


def encode_words(
    tokenizer: Tokenizer, splitter: WordSplitter, texts: Sequence[str]
) -> list[tuple[list[int], list[int]]]:
    """Return the ids of each text, without special tokens or truncation, and the word index of each id."""
    encoded = tokenizer.encode_pieces([text if len(text) <= _MAX_ENCODED else "" for text in texts])
    results = []
    for text, whole in zip(texts, encoded, strict=True):
        pieces = whole if len(text) <= _MAX_ENCODED else _encode_in_windows(tokenizer, text)
        indices = word_indices(pieces.offsets, splitter.spans(text))
        # A word of the tokenizer must not be split. It may span several words of the splitter if the tokenizer does not
        # split ideographs, or if the ladder merges words.
        for first, stop in word_spans(tokenizer.word_starts(pieces.ids), pieces.marks):
            if indices[first] != indices[stop - 1]:
                indices[first:stop] = [indices[first]] * (stop - first)
        results.append((pieces.ids, indices))
    return results


def _encode_in_windows(tokenizer: Tokenizer, text: str) -> Pieces:
    ids: list[int] = []
    offsets: list[tuple[int, int]] = []
    marks: list[Mark | None] = []
    for start, end, _ in windows(text, _MAX_ENCODED, chinese=tokenizer.settings.chinese):
        (pieces,) = tokenizer.encode_pieces([text[start:end]])
        ids.extend(pieces.ids)
        offsets.extend((start + first, start + last) for first, last in pieces.offsets)
        marks.extend(pieces.marks or [None] * len(pieces.ids))
    return Pieces(ids, offsets, marks=marks)


def _read_dictionary(dictionary: Path | str | Iterable[str] | None) -> tuple[_Entry, ...]:
    if dictionary is None:
        return ()
    if not isinstance(dictionary, Path | str):
        return tuple(_parse_entries(dictionary, "the dictionary, entry"))
    path = Path(dictionary)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from None
    return tuple(_parse_entries(text.split("\n"), f"{path}, line"))


def _parse_entries(lines: Iterable[str], place: str) -> Iterator[_Entry]:
    for number, line in enumerate(lines, start=1):
        word, *rest = line.split() or [""]
        if not word:
            continue
        frequency = rest.pop(0) if rest and not _TAG.fullmatch(rest[0]) else None
        tag = rest.pop(0) if rest and _TAG.fullmatch(rest[0]) else None
        flaw = None
        if rest:
            flaw = f"unexpected {' '.join(rest)[:50]!r}; expected a word, its frequency and its tag"
        elif not _word_pattern().fullmatch(word):
            flaw = (
                f"{word[:50]!r} can never be found, because texts are split at its punctuation first; "
                f"expected ideographs, letters a to z, digits and {_JOINING}"
            )
        elif frequency is not None and not _is_frequency(frequency):
            flaw = f"{frequency[:50]!r} is not a frequency; expected a whole number from 1 to {_MAX_FREQUENCY:,}"
        if flaw is not None:
            raise DataError(f"{place} {number}: {flaw}")
        yield _Entry(word, int(frequency) if frequency else None, tag)


def _is_frequency(value: str) -> bool:
    return value.isascii() and value.isdecimal() and len(value) < 20 and 1 <= int(value) <= _MAX_FREQUENCY


@cache
def _word_pattern() -> re.Pattern[str]:
    return re.compile(f"[{_ideograph_ranges()}A-Za-z0-9{re.escape(_JOINING)}]+")


@cache
def _patterns() -> _Patterns:
    """Return BERT's word boundaries as regular expressions."""
    starts = [chr(code) for code in range(0x10000) if starts_word(chr(code), chinese=False)]
    space = re.escape("".join(character for character in starts if character.isspace()))
    mark = re.escape("".join(character for character in starts if not character.isspace()))
    cutting = re.escape("".join(character for character in starts if character not in _JOINING))
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
