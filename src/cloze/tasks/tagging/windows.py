"""Split sentences into windows for token classification, and record which words each window predicts.

A word is predicted at its first token. A sentence that is too long is split into overlapping windows, and each word is
predicted in the window with the most context around it, so that every word is predicted exactly once. With document
context, a window contains as many whole sentences of a document as fit and predicts all of them; the remaining room is
filled with the text before and after.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from cloze.errors import ConfigError
from cloze.text import Encoding, Pieces, Tokenizer, window_spans
from cloze.text.encoding import word_spans

# Token ids of a sentence, by word.
WordIds = list[list[int]]


@dataclass(frozen=True)
class Served:
    """Consecutive words of a row, starting with ``first``, and the position of each one's first token in the window."""

    row: int
    first: int
    places: list[int]


@dataclass(frozen=True)
class TagWindow:
    """A sequence and the words that are predicted from it."""

    encoding: Encoding
    served: list[Served]


def read_words(tokenizer: Tokenizer, sentences: Sequence[Sequence[str]]) -> list[WordIds]:
    """Return the token ids of each word; a word without tokens, such as a control character, becomes [UNK]."""
    distinct = list({word: None for words in sentences for word in words})
    found = tokenizer.encode_pieces(distinct)
    ids = {word: pieces.ids or [tokenizer.unknown_id] for word, pieces in zip(distinct, found, strict=True)}
    return [[ids[word] for word in words] for words in sentences]


def split_text(tokenizer: Tokenizer, pieces: Pieces) -> tuple[list[tuple[int, int]], WordIds]:
    """Return the words of a running text as the tokenizer splits it: their spans in characters, and their ids."""
    spans = list(word_spans(tokenizer.word_starts(pieces.ids), pieces.marks))
    places = [(pieces.offsets[start][0], pieces.offsets[stop - 1][1]) for start, stop in spans]
    return places, [pieces.ids[start:stop] for start, stop in spans]


def split_characters(text: str) -> tuple[list[str], list[tuple[int, int]]]:
    """Return the characters of a running text except whitespace, each as a word, and their spans."""
    places = [(place, place + 1) for place, character in enumerate(text) if not character.isspace()]
    return [text[start:stop] for start, stop in places], places


def tag_windows(
    tokenizer: Tokenizer,
    sentences: Sequence[WordIds],
    groups: Sequence[Sequence[int]] | None = None,
    step: int | None = None,
) -> list[TagWindow]:
    """Return the windows of some rows.

    Args:
        tokenizer: The tokenizer, which determines the length of a window.
        sentences: The token ids of each row, by word.
        groups: Rows that follow each other in a document and are encoded together; by default every row by itself.
        step: Tokens from one window of a long sentence to the next; half of a window's room by default.
    """
    room = tokenizer.content_length(1)
    if room < 1:
        raise ConfigError(
            f"length is {tokenizer.max_length}; expected at least 3, for a token between two special tokens"
        )
    step = max(1, min(step or room // 2, room))
    if groups is None:
        groups = [[row] for row in range(len(sentences))]
    return [window for rows in groups for window in _read_group(tokenizer, sentences, rows, step)]


def _read_group(
    tokenizer: Tokenizer, sentences: Sequence[WordIds], rows: Sequence[int], step: int
) -> Iterator[TagWindow]:
    room = tokenizer.content_length(1)
    ids = [number for row in rows for word in sentences[row] for number in word]
    ends = [0]
    for row in rows:
        ends.append(ends[-1] + sum(map(len, sentences[row])))
    first = 0
    while first < len(rows):
        start, last = ends[first], first + 1
        if ends[last] - start > room:
            yield from _read_long(tokenizer, sentences[rows[first]], rows[first], step)
            first = last
            continue
        while last < len(rows) and ends[last + 1] - start <= room:
            last += 1
        stop = ends[last]
        spare = room - (stop - start)
        left = min(start, max(spare // 2, spare - (len(ids) - stop)))
        served, place = list[Served](), left + 1  # after [CLS]
        for row in rows[first:last]:
            served.append(Served(row, 0, _places(sentences[row], place)))
            place += sum(map(len, sentences[row]))
        yield TagWindow(_assemble(tokenizer, ids[start - left : stop + spare - left]), served)
        first = last


def _read_long(tokenizer: Tokenizer, sentence: WordIds, row: int, step: int) -> list[TagWindow]:
    room = tokenizer.content_length(1)
    ids = [number for word in sentence for number in word]
    places = window_spans(len(ids), room, step)
    words = _places(sentence, 0)
    chosen = [_best_window(word, places, room, step) for word in words]
    served: dict[int, list[Served]] = {}
    for window, numbers in groupby(range(len(words)), chosen.__getitem__):
        first, *others = numbers
        inside = [words[number] - places[window][0] + 1 for number in (first, *others)]  # after [CLS]
        served.setdefault(window, []).append(Served(row, first, inside))
    # Windows that are not the best for any word are left out, such as one within a word.
    return [TagWindow(_assemble(tokenizer, ids[slice(*places[window])]), served[window]) for window in sorted(served)]


def _best_window(word: int, places: Sequence[tuple[int, int]], room: int, step: int) -> int:
    """Return the window of a token with the most text on its shorter side; ties go to the first."""
    earliest = max(0, -(-(word - room + 1) // step))
    latest = min(word // step, len(places) - 1)
    return max(
        range(earliest, latest + 1), key=lambda window: min(word - places[window][0], places[window][1] - 1 - word)
    )


def _places(sentence: WordIds, start: int) -> list[int]:
    """Return the position of each word's first token, in a sentence that starts at position ``start``."""
    places = []
    for word in sentence:
        places.append(start)
        start += len(word)
    return places


def _assemble(tokenizer: Tokenizer, ids: list[int]) -> Encoding:
    return tokenizer.assemble(Pieces(ids, [(0, 0)] * len(ids)))
