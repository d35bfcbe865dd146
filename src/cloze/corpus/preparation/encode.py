"""Encode sentences as ids and word starts, the content of a shard.

``text.segmentation.encode_words`` is the reference implementation. This module adds a fast path with the same results
for sentences that consist of well-known characters only, which BERT's tokenizer and the segmenter treat alike. The fast
path splits a sentence at whitespace and punctuation, and Chinese text at the segmenter's word boundaries, and caches
the ids of each word. Arrow splits the text and finds the distinct words, so Python handles each word once per block
instead of once per occurrence. All other sentences, and all sentences if an OOV ladder is active, use the reference
implementation. A test compares the two.
"""

import re
import unicodedata
from array import array
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain, groupby, repeat
from typing import Any, NamedTuple

import numpy as np
import pyarrow as arrow
import pyarrow.compute as kernels
from numpy.typing import NDArray

from cloze.text import Tokenizer
from cloze.text.boundaries import starts_word
from cloze.text.segmentation import WordSplitter, encode_words

# Limits of the word cache, which takes 100 to 200 bytes per word.
MAX_CACHED_WORDS = 300_000
MAX_CACHED_CHARACTERS = 6_000_000
# First code point after Latin, Greek and Cyrillic, whose letters and digits are never word boundaries.
_LETTERS_END = 0x0500
_PUNCTUATION_RANGES = ((0x21, 0x7F), (0x2010, 0x2028), (0x3001, 0x301C), (0xFF01, 0xFF66))
# Code points that are ideographs in every version of Unicode.
_IDEOGRAPHS = "\u3400-\u4db5\u4e00-\u9fa5"
_SEPARATOR = "\0"  # between sentences; not a well-known character


class EncodedSentences(NamedTuple):
    """Encoded sentences: concatenated ids, whether each id starts a word, and the number of ids per sentence."""

    ids: NDArray[np.int32] | NDArray[np.int64]
    starts: NDArray[np.bool_]
    lengths: NDArray[np.int64]

    def slice(self, first: int, stop: int) -> "EncodedSentences":
        """Return sentences ``first`` up to, but not including, ``stop``."""
        start, end = int(self.lengths[:first].sum()), int(self.lengths[:stop].sum())
        return EncodedSentences(self.ids[start:end], self.starts[start:end], self.lengths[first:stop])


class _Patterns(NamedTuple):
    known: re.Pattern[str]  # matches sentences of well-known characters only
    ascii: re.Pattern[str]  # the same for ASCII text, which is faster
    ideograph: re.Pattern[str]
    marks: str  # punctuation: each character is a word
    ascii_marks: str


class _WordCache:
    """Cache of the ids of words; new words are tokenized in batches by ``tokenize``."""

    def __init__(self, tokenize: Callable[[list[str]], EncodedSentences]) -> None:
        self._tokenize_new = tokenize
        self._clear()

    def _clear(self) -> None:
        self._numbers: dict[str, int] = {_SEPARATOR: 0, "": 1}  # "": Arrow's result for leading, trailing whitespace
        self._characters = 0
        self._ids = array("i")
        self._starts = array("b")
        self._begins = array("i", [0, 0, 0])  # offset of each word in _ids, and the end

    def encode(self, words: Any) -> EncodedSentences:
        """Encode an Arrow array of words with ``_SEPARATOR`` between sentences."""
        distinct = words.dictionary_encode()
        numbers = self._word_numbers(distinct.dictionary.to_pylist())[distinct.indices.to_numpy()]
        # All integers have 32 bits, because memory bandwidth dominates here.
        begins = np.frombuffer(self._begins, np.int32)
        firsts = begins[numbers]
        sizes = begins[numbers + 1] - firsts  # tokens of each word
        ends = np.cumsum(sizes, dtype=np.int32)
        total = int(ends[-1]) if len(ends) else 0
        places = np.arange(total, dtype=np.int32) + np.repeat(firsts - (ends - sizes), sizes)
        lengths = np.diff(np.concatenate([[0], ends[numbers == 0], [total]]))
        ids, starts = np.frombuffer(self._ids, np.int32), np.frombuffer(self._starts, bool)
        return EncodedSentences(ids[places], starts[places], lengths)

    def _word_numbers(self, words: list[str]) -> NDArray[np.int32]:
        if len(self._numbers) > MAX_CACHED_WORDS or self._characters > MAX_CACHED_CHARACTERS:
            self._clear()
        numbers = np.fromiter(map(self._numbers.get, words, repeat(-1)), np.int32, len(words))
        if len(unknown := np.flatnonzero(numbers < 0)):
            numbers[unknown] = np.arange(len(self._numbers), len(self._numbers) + len(unknown))
            self._add_words([words[place] for place in unknown])
        return numbers

    def _add_words(self, words: list[str]) -> None:
        encoded = self._tokenize_new(words)
        self._begins.extend((len(self._ids) + np.cumsum(encoded.lengths)).tolist())
        self._numbers.update(zip(words, range(len(self._numbers), len(self._numbers) + len(words)), strict=True))
        self._characters += sum(map(len, words))
        self._ids.extend(encoded.ids.tolist())
        self._starts.extend(encoded.starts.tolist())


class SentenceEncoder:
    """Encodes sentences with a tokenizer and a word splitter, caching the ids of words."""

    def __init__(self, tokenizer: Tokenizer, splitter: WordSplitter, *, has_dictionary: bool) -> None:
        self._tokenizer = tokenizer
        self._splitter = splitter
        self._has_dictionary = has_dictionary
        self._is_plain = tokenizer.settings.chinese and not tokenizer.settings.ladder
        self._patterns = _patterns()
        self._words = _WordCache(self._tokenize)
        self._segmented = _WordCache(self._tokenize_each)

    def encode(self, sentences: Sequence[str]) -> EncodedSentences:
        """Encode sentences, ideally 100,000 characters or more per call; a sentence without tokens has length 0."""
        if not sentences:
            return EncodedSentences(np.zeros(0, np.int64), np.zeros(0, bool), np.zeros(0, np.int64))
        # Most texts consist of well-known characters only, so check all sentences at once first.
        if self._is_well_known(" ".join(sentences)):
            return self._encode_cached(sentences)
        runs = groupby(sentences, self._is_well_known)
        encoded = [
            self._encode_cached(list(run)) if is_well_known else self._encode_reference(list(run))
            for is_well_known, run in runs
        ]
        return EncodedSentences(*(np.concatenate(arrays) for arrays in zip(*encoded, strict=True)))

    def _is_well_known(self, text: str) -> bool:
        pattern = self._patterns.ascii if text.isascii() else self._patterns.known
        return self._is_plain and pattern.fullmatch(text) is not None

    def _encode_reference(self, sentences: list[str]) -> EncodedSentences:
        found = encode_words(self._tokenizer, self._splitter, sentences)
        ids = np.fromiter(chain.from_iterable(ids for ids, _ in found), np.int64)
        words = np.fromiter(chain.from_iterable(numbers for _, numbers in found), np.int64)
        lengths = np.asarray([len(ids) for ids, _ in found], np.int64)
        starts = np.ones(len(ids), bool)
        starts[1:] = words[1:] != words[:-1]
        starts[(np.cumsum(lengths) - lengths)[lengths > 0]] = True  # word indices restart in each sentence
        return EncodedSentences(ids, starts, lengths)

    def _encode_cached(self, sentences: Sequence[str]) -> EncodedSentences:
        text = f" {_SEPARATOR} ".join(sentences)
        if not self._has_dictionary and (text.isascii() or not self._patterns.ideograph.search(text)):
            return self._words.encode(self._split_words(text))
        words = chain.from_iterable((_SEPARATOR, *self._splitter.words(sentence)) for sentence in sentences)
        return self._segmented.encode(arrow.array(list(words)[1:], arrow.string()))

    def _split_words(self, text: str) -> Any:
        """Return the words and punctuation marks of a text as an Arrow array."""
        if text.isascii() and self._tokenizer.settings.lowercase:
            text = text.lower()  # fewer distinct words
        for mark in self._patterns.ascii_marks if text.isascii() else self._patterns.marks:
            if mark in text:
                text = text.replace(mark, f" {mark} ")
        return kernels.ascii_split_whitespace(arrow.array([text])).values

    def _tokenize(self, words: list[str]) -> EncodedSentences:
        """Tokenize words as one text, several times faster than one by one, and split the ids at word starts."""
        (ids,) = self._tokenizer.encode_ids([" ".join(words)])
        starts = np.asarray(self._tokenizer.word_starts(ids), bool)
        lengths = np.diff(np.append(np.flatnonzero(starts), len(ids)))
        assert len(lengths) == len(words), "the tokenizer splits words differently"
        return EncodedSentences(np.asarray(ids, np.int64), starts, lengths)

    def _tokenize_each(self, words: list[str]) -> EncodedSentences:
        """Tokenize the segmenter's words one by one, because each may consist of several words for BERT."""
        found = self._tokenizer.encode_ids(words)
        lengths = np.asarray([len(ids) for ids in found], np.int64)
        starts = np.zeros(int(lengths.sum()), bool)
        starts[(np.cumsum(lengths) - lengths)[lengths > 0]] = True
        return EncodedSentences(np.fromiter(chain.from_iterable(found), np.int64), starts, lengths)


@cache
def _patterns() -> _Patterns:
    letters = "".join(chr(code) for code in range(_LETTERS_END) if _is_plain_letter(chr(code)))
    codes = chain.from_iterable(range(*marks) for marks in _PUNCTUATION_RANGES)
    marks = "".join(mark for mark in map(chr, codes) if starts_word(mark, chinese=False))
    return _Patterns(
        known=re.compile(f"[ \t{letters}{re.escape(marks)}{_IDEOGRAPHS}]*+"),
        ascii=re.compile("[ -~\t]*+"),
        ideograph=re.compile(f"[{_IDEOGRAPHS}]"),
        marks=marks,
        ascii_marks="".join(filter(str.isascii, marks)),
    )


def _is_plain_letter(character: str) -> bool:
    """Return whether a character is a letter or digit in old and new Unicode versions, with and without accents."""
    categories = {unicodedata.ucd_3_2_0.category(character), unicodedata.category(character)}
    bases = {unicodedata.category(part) for part in unicodedata.normalize("NFD", character)}
    return categories <= {"Lu", "Ll", "Nd"} and bases <= {"Lu", "Ll", "Nd", "Mn"}
