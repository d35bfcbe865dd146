"""Sentences -> ids, and where words start: what a shard holds.

``text.words.encode_words`` says what is right. This module says the same, several times faster, of sentences whose
every character is one that BERT's tokenizer and the segmenter see alike: such a sentence falls apart at its spaces and
marks, or where the segmenter says, and a word that was met before need not be tokenized again. Arrow parts the text and
finds what is distinct in it, so that Python sees each word once a block and not once an occurrence. All other
sentences, and all sentences where a ladder joins or spells out words, take the slow way. A test holds the two against
each other.
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
from cloze.text.characters import starts_word
from cloze.text.segmentation import WordSplitter, encode_words

# What is remembered of texts: words and their characters; 100 to 200 bytes a word.
MOST_WORDS = 300_000
MOST_CHARACTERS = 6_000_000
# Latin, Greek and Cyrillic: letters and digits that never end a word.
_LETTERS_END = 0x0500
_MARKS = ((0x21, 0x7F), (0x2010, 0x2028), (0x3001, 0x301C), (0xFF01, 0xFF66))
# Those of the blocks where every version of Unicode has none but ideographs.
_IDEOGRAPHS = "\u3400-\u4db5\u4e00-\u9fa5"


_BETWEEN = "\0"  # stands between sentences; no known sentence has it


class Encoded(NamedTuple):
    """Sentences as arrays: their ids one after the other, whether each starts a word, and tokens by sentence."""

    ids: NDArray[np.int32] | NDArray[np.int64]
    starts: NDArray[np.bool_]
    lengths: NDArray[np.int64]

    def cut(self, first: int, stop: int) -> "Encoded":
        """Some of the sentences."""
        start, end = int(self.lengths[:first].sum()), int(self.lengths[:stop].sum())
        return Encoded(self.ids[start:end], self.starts[start:end], self.lengths[first:stop])


class _Patterns(NamedTuple):
    known: re.Pattern[str]  # a whole sentence of characters of which no two programs think differently
    ascii: re.Pattern[str]  # the same, quicker, where all is ASCII
    ideograph: re.Pattern[str]
    marks: str  # characters that are words of their own
    ascii_marks: str


class _Memory:
    """Words that were met, with their ids; what is new is learned once."""

    def __init__(self, learn: Callable[[list[str]], Encoded]) -> None:
        self._learn = learn
        self._forget()

    def _forget(self) -> None:
        self._numbers: dict[str, int] = {_BETWEEN: 0, "": 1}  # the empty word: what Arrow finds beside outer spaces
        self._characters = 0
        self._ids = array("i")
        self._starts = array("b")
        self._begins = array("i", [0, 0, 0])  # of each word in _ids, and the end

    def encode(self, words: Any) -> Encoded:
        """Encode the words of sentences, an array of Arrow's with ``_BETWEEN`` between sentences."""
        met = words.dictionary_encode()
        numbers = self._number(met.dictionary.to_pylist())[met.indices.to_numpy()]
        # Narrow numbers all the way: what is moved here is most of what there is to do.
        begins = np.frombuffer(self._begins, np.int32)
        firsts = begins[numbers]
        sizes = begins[numbers + 1] - firsts  # tokens of each word
        ends = np.cumsum(sizes, dtype=np.int32)
        total = int(ends[-1]) if len(ends) else 0
        places = np.arange(total, dtype=np.int32) + np.repeat(firsts - (ends - sizes), sizes)
        lengths = np.diff(np.concatenate([[0], ends[numbers == 0], [total]]))
        ids, starts = np.frombuffer(self._ids, np.int32), np.frombuffer(self._starts, bool)
        return Encoded(ids[places], starts[places], lengths)

    def _number(self, words: list[str]) -> NDArray[np.int32]:
        if len(self._numbers) > MOST_WORDS or self._characters > MOST_CHARACTERS:
            self._forget()
        numbers = np.fromiter(map(self._numbers.get, words, repeat(-1)), np.int32, len(words))
        if len(unknown := np.flatnonzero(numbers < 0)):
            numbers[unknown] = np.arange(len(self._numbers), len(self._numbers) + len(unknown))
            self._note([words[place] for place in unknown])
        return numbers

    def _note(self, words: list[str]) -> None:
        learned = self._learn(words)
        self._begins.extend((len(self._ids) + np.cumsum(learned.lengths)).tolist())
        self._numbers.update(zip(words, range(len(self._numbers), len(self._numbers) + len(words)), strict=True))
        self._characters += sum(map(len, words))
        self._ids.extend(learned.ids.tolist())
        self._starts.extend(learned.starts.tolist())


class SentenceEncoder:
    """A tokenizer and a segmenter, with the words that they have met."""

    def __init__(self, tokenizer: Tokenizer, splitter: WordSplitter, *, has_dictionary: bool) -> None:
        self._tokenizer = tokenizer
        self._splitter = splitter
        self._has_dictionary = has_dictionary
        self._is_plain = tokenizer.settings.chinese and not tokenizer.settings.ladder
        self._patterns = _patterns()
        self._words = _Memory(self._tokenize)
        self._segmented = _Memory(self._tokenize_each)

    def encode(self, sentences: Sequence[str]) -> Encoded:
        """Encode sentences, of some hundred thousand characters together; those without a token have length 0."""
        if not sentences:
            return Encoded(np.zeros(0, np.int64), np.zeros(0, bool), np.zeros(0, np.int64))
        # Most texts are known from end to end, which one look tells.
        if self._is_known(" ".join(sentences)):
            return self._quickly(sentences)
        runs = groupby(sentences, self._is_known)
        encoded = [self._quickly(list(run)) if is_known else self._slowly(list(run)) for is_known, run in runs]
        return Encoded(*(np.concatenate(arrays) for arrays in zip(*encoded, strict=True)))

    def _is_known(self, text: str) -> bool:
        pattern = self._patterns.ascii if text.isascii() else self._patterns.known
        return self._is_plain and pattern.fullmatch(text) is not None

    def _slowly(self, sentences: list[str]) -> Encoded:
        found = encode_words(self._tokenizer, self._splitter, sentences)
        ids = np.fromiter(chain.from_iterable(ids for ids, _ in found), np.int64)
        words = np.fromiter(chain.from_iterable(numbers for _, numbers in found), np.int64)
        lengths = np.asarray([len(ids) for ids, _ in found], np.int64)
        starts = np.ones(len(ids), bool)
        starts[1:] = words[1:] != words[:-1]
        starts[(np.cumsum(lengths) - lengths)[lengths > 0]] = True  # each sentence numbers its words anew
        return Encoded(ids, starts, lengths)

    def _quickly(self, sentences: Sequence[str]) -> Encoded:
        text = f" {_BETWEEN} ".join(sentences)
        if not self._has_dictionary and (text.isascii() or not self._patterns.ideograph.search(text)):
            return self._words.encode(self._parted(text))
        words = chain.from_iterable((_BETWEEN, *self._splitter.words(sentence)) for sentence in sentences)
        return self._segmented.encode(arrow.array(list(words)[1:], arrow.string()))

    def _parted(self, text: str) -> Any:
        """The words and marks of a text."""
        if text.isascii() and self._tokenizer.settings.lowercase:
            text = text.lower()  # fewer words to know
        for mark in self._patterns.ascii_marks if text.isascii() else self._patterns.marks:
            if mark in text:
                text = text.replace(mark, f" {mark} ")
        return kernels.ascii_split_whitespace(arrow.array([text])).values

    def _tokenize(self, words: list[str]) -> Encoded:
        """Tokenize words as one text, which is several times faster than one by one: each starts with its start."""
        (ids,) = self._tokenizer.encode_ids([" ".join(words)])
        starts = np.asarray(self._tokenizer.word_starts(ids), bool)
        lengths = np.diff(np.append(np.flatnonzero(starts), len(ids)))
        assert len(lengths) == len(words), "the tokenizer sees other words"
        return Encoded(np.asarray(ids, np.int64), starts, lengths)

    def _tokenize_each(self, words: list[str]) -> Encoded:
        """Tokenize what the segmenter cut: one word each, of several tokens that BERT holds for words."""
        found = self._tokenizer.encode_ids(words)
        lengths = np.asarray([len(ids) for ids in found], np.int64)
        starts = np.zeros(int(lengths.sum()), bool)
        starts[(np.cumsum(lengths) - lengths)[lengths > 0]] = True
        return Encoded(np.fromiter(chain.from_iterable(found), np.int64), starts, lengths)


@cache
def _patterns() -> _Patterns:
    letters = "".join(chr(code) for code in range(_LETTERS_END) if _is_plain_letter(chr(code)))
    codes = chain.from_iterable(range(*marks) for marks in _MARKS)
    marks = "".join(mark for mark in map(chr, codes) if starts_word(mark, chinese=False))
    return _Patterns(
        known=re.compile(f"[ \t{letters}{re.escape(marks)}{_IDEOGRAPHS}]*+"),
        ascii=re.compile("[ -~\t]*+"),
        ideograph=re.compile(f"[{_IDEOGRAPHS}]"),
        marks=marks,
        ascii_marks="".join(filter(str.isascii, marks)),
    )


def _is_plain_letter(character: str) -> bool:
    """Whether it is a letter or a digit, was one in old tables, and stays one when accents are taken away."""
    categories = {unicodedata.ucd_3_2_0.category(character), unicodedata.category(character)}
    bases = {unicodedata.category(part) for part in unicodedata.normalize("NFD", character)}
    return categories <= {"Lu", "Ll", "Nd"} and bases <= {"Lu", "Ll", "Nd", "Mn"}
