"""Sentences -> ids, and where words start: what a shard holds.

``text.words.encode_words`` says what is right. This module says the same, several times faster, of sentences whose
every character is one that BERT's tokenizer and the segmenter see alike: such a sentence falls apart at its spaces, or
where the segmenter says, and a piece that was met before need not be tokenized again. All other sentences, and all
sentences where a ladder joins or spells out words, take the slow way. A test holds the two against each other.
"""

import re
import unicodedata
from array import array
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain, groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cloze.text import Tokenizer
from cloze.text.characters import starts_word
from cloze.text.words import WordSplitter, encode_words

# What is remembered of texts: pieces between spaces, and their characters; 100 to 200 bytes a piece.
MOST_PIECES = 300_000
MOST_CHARACTERS = 6_000_000
# Latin, Greek and Cyrillic: letters and digits that never end a word.
_LETTERS_END = 0x0500
_MARKS = ((0x21, 0x7F), (0x2010, 0x2028), (0x3001, 0x301C), (0xFF01, 0xFF66))
# Those of the blocks where every version of Unicode has none but ideographs.
_IDEOGRAPHS = "\u3400-\u4db5\u4e00-\u9fa5"


class Encoded(NamedTuple):
    """Sentences as arrays: their ids one after the other, whether each starts a word, and tokens by sentence."""

    ids: NDArray[np.int64]
    starts: NDArray[np.bool_]
    lengths: NDArray[np.int64]

    def cut(self, first: int, stop: int) -> "Encoded":
        """Some of the sentences."""
        start, end = int(self.lengths[:first].sum()), int(self.lengths[:stop].sum())
        return Encoded(self.ids[start:end], self.starts[start:end], self.lengths[first:stop])


class _Patterns(NamedTuple):
    known: re.Pattern[str]  # a whole sentence of characters of which no two programs think differently
    ascii: re.Pattern[str]  # the same, quicker, where all is ASCII
    word: re.Pattern[str]
    ideograph: re.Pattern[str]


class SentenceEncoder:
    """A tokenizer and a segmenter, with what they have met."""

    def __init__(self, tokenizer: Tokenizer, splitter: WordSplitter, *, has_dictionary: bool) -> None:
        self._tokenizer = tokenizer
        self._splitter = splitter
        self._has_dictionary = has_dictionary
        self._is_plain = tokenizer.settings.chinese and not tokenizer.settings.ladder
        self._patterns = _patterns()
        self._forget()

    def _forget(self) -> None:
        self._numbers: dict[str, int] = {}
        self._characters = 0
        self._ids = array("q")
        self._starts = array("b")
        self._begins = array("q", [0])  # of each piece of text in _ids, and the end

    def encode(self, sentences: Sequence[str]) -> Encoded:
        """Encode sentences, of some hundred thousand characters together; those without a token have length 0."""
        runs = groupby(sentences, self._is_known)
        encoded = [self._quickly(list(run)) if is_known else self._slowly(list(run)) for is_known, run in runs]
        if not encoded:
            return Encoded(np.zeros(0, np.int64), np.zeros(0, bool), np.zeros(0, np.int64))
        return Encoded(*(np.concatenate(arrays) for arrays in zip(*encoded, strict=True)))

    def _is_known(self, sentence: str) -> bool:
        pattern = self._patterns.ascii if sentence.isascii() else self._patterns.known
        return self._is_plain and pattern.fullmatch(sentence) is not None

    def _slowly(self, sentences: list[str]) -> Encoded:
        found = encode_words(self._tokenizer, self._splitter, sentences)
        ids = np.fromiter(chain.from_iterable(ids for ids, _ in found), np.int64)
        words = np.fromiter(chain.from_iterable(numbers for _, numbers in found), np.int64)
        lengths = np.asarray([len(ids) for ids, _ in found], np.int64)
        starts = np.ones(len(ids), bool)
        starts[1:] = words[1:] != words[:-1]
        starts[(np.cumsum(lengths) - lengths)[lengths > 0]] = True  # each sentence numbers its words anew
        return Encoded(ids, starts, lengths)

    def _quickly(self, sentences: list[str]) -> Encoded:
        pieces = [self._cut(sentence) for sentence in sentences]
        counts = np.asarray([len(one) for one in pieces], np.int64)
        numbers = self._number(list(chain.from_iterable(pieces)))
        begins = np.frombuffer(self._begins, np.int64)
        sizes = begins[numbers + 1] - begins[numbers]  # tokens of each piece
        ends = np.cumsum(sizes)
        places = np.arange(sizes.sum()) + np.repeat(begins[numbers] - (ends - sizes), sizes)
        until = np.concatenate([[0], ends])[np.concatenate([[0], np.cumsum(counts)])]
        ids, starts = np.frombuffer(self._ids, np.int64), np.frombuffer(self._starts, bool)
        return Encoded(ids[places], starts[places], np.diff(until))

    def _cut(self, sentence: str) -> list[str]:
        """Cut at spaces; with ideographs, where the segmenter says."""
        if not self._has_dictionary and (sentence.isascii() or not self._patterns.ideograph.search(sentence)):
            return sentence.split()
        return self._splitter.words(sentence)

    def _number(self, pieces: list[str]) -> NDArray[np.int64]:
        if len(self._numbers) > MOST_PIECES or self._characters > MOST_CHARACTERS:
            self._forget()
        numbers = list(map(self._numbers.get, pieces))
        if None in numbers:
            self._learn(list({piece: None for piece, number in zip(pieces, numbers, strict=True) if number is None}))
            numbers = list(map(self._numbers.get, pieces))
        return np.asarray(numbers, np.int64)

    def _learn(self, pieces: list[str]) -> None:
        ideograph = self._patterns.ideograph
        words = [piece for piece in pieces if self._has_dictionary or ideograph.search(piece)]
        others = [] if len(words) == len(pieces) else [piece for piece in pieces if not ideograph.search(piece)]
        for piece, ids, starts in chain(self._read_words(words), self._read_others(others)):
            self._numbers[piece] = len(self._numbers)
            self._characters += len(piece)
            self._ids.extend(ids)
            self._starts.extend(starts)
            self._begins.append(len(self._ids))

    def _read_words(self, words: list[str]) -> Iterator[tuple[str, list[int], list[bool]]]:
        """Tokenize what the segmenter cut: each is one word."""
        for word, ids in zip(words, self._tokenizer.encode_ids(words), strict=True):
            yield word, ids, [True] + [False] * (len(ids) - 1)

    def _read_others(self, pieces: list[str]) -> Iterator[tuple[str, list[int], list[bool]]]:
        """Tokenize what stood between spaces, all as one text: a word for each of its marks and runs of letters."""
        (ids,) = self._tokenizer.encode_ids([" ".join(pieces)])
        starts = self._tokenizer.word_starts(ids)
        places = [place for place, is_start in enumerate(starts) if is_start]
        places.append(len(ids))
        word = 0
        for piece in pieces:
            first = places[word]
            word += len(self._patterns.word.findall(piece))
            yield piece, ids[first : places[word]], starts[first : places[word]]
        assert word == len(places) - 1, "a text has other words than its pieces"


@cache
def _patterns() -> _Patterns:
    letters = "".join(chr(code) for code in range(_LETTERS_END) if _is_plain_letter(chr(code)))
    codes = chain.from_iterable(range(*marks) for marks in _MARKS)
    marks = re.escape("".join(mark for mark in map(chr, codes) if starts_word(mark, chinese=False)))
    return _Patterns(
        known=re.compile(f"[ \t{letters}{marks}{_IDEOGRAPHS}]*+"),
        ascii=re.compile("[ -~\t]*+"),
        word=re.compile(f"[{letters}]+|[{marks}]"),
        ideograph=re.compile(f"[{_IDEOGRAPHS}]"),
    )


def _is_plain_letter(character: str) -> bool:
    """Whether it is a letter or a digit, was one in old tables, and stays one when accents are taken away."""
    categories = {unicodedata.ucd_3_2_0.category(character), unicodedata.category(character)}
    bases = {unicodedata.category(part) for part in unicodedata.normalize("NFD", character)}
    return categories <= {"Lu", "Ll", "Nd"} and bases <= {"Lu", "Ll", "Nd", "Mn"}
