"""Sentences -> ids, and where words start: what a shard holds.

``text.words.encode_words`` says what is right. This module says the same, several times faster, of sentences whose
every character is one that BERT's tokenizer and the segmenter see alike: such a sentence falls apart at its spaces, or
where the segmenter says, and a piece that was met before need not be tokenized again. All other sentences, and all
sentences where a ladder joins or spells out words, take the slow way. A test holds the two against each other.
"""

import re
import unicodedata
from array import array
from collections.abc import Sequence
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
        if new := dict.fromkeys(pieces).keys() - self._numbers.keys():
            self._learn(list(new))
        return np.fromiter(map(self._numbers.__getitem__, pieces), np.int64, len(pieces))

    def _learn(self, pieces: list[str]) -> None:
        search = self._patterns.ideograph.search
        words = [piece for piece in pieces if self._has_dictionary or (not piece.isascii() and search(piece))]
        if words:
            # What the segmenter cut is one word each.
            found = self._tokenizer.encode_ids(words)
            starts = [flag for ids in found for flag in [True] + [False] * (len(ids) - 1)]
            self._note(words, list(chain.from_iterable(found)), starts, np.cumsum([len(ids) for ids in found]))
        if len(words) < len(pieces):
            self._learn_others(list(set(pieces) - set(words)))

    def _learn_others(self, pieces: list[str]) -> None:
        """Tokenize what stood between spaces, all as one text: a word for each of its marks and runs of letters."""
        (ids,) = self._tokenizer.encode_ids([" ".join(pieces)])
        starts = self._tokenizer.word_starts(ids)
        find = self._patterns.word.findall
        counts = [1 if piece.isalnum() else len(find(piece)) for piece in pieces]
        ends = np.append(np.flatnonzero(starts), len(ids))
        assert sum(counts) == len(ends) - 1, "a text has other words than its pieces"
        self._note(pieces, ids, starts, ends[np.cumsum(counts)])

    def _note(self, pieces: list[str], ids: list[int], starts: list[bool], ends: NDArray[np.int64]) -> None:
        """Remember pieces of text, whose tokens end at these places."""
        self._numbers.update(zip(pieces, range(len(self._numbers), len(self._numbers) + len(pieces)), strict=True))
        self._characters += sum(map(len, pieces))
        self._begins.extend((len(self._ids) + ends).tolist())
        self._ids.extend(ids)
        self._starts.extend(starts)


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
