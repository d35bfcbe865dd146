"""A plain implementation of the original BERT data preparation, the reference for ``prepare.py``.

It is written from the published description. Input: one sentence per line, a blank line between documents. Stages:
basic tokenization, longest-match WordPiece, segment pairs, masking, one after the other on one core. Examples are
created once (``dupe_factor`` 1), converted to ids, and counted instead of written.
"""

import random
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MOST_HIDDEN, RATE, SHORT = 20, 0.15, 0.1


class Instance(NamedTuple):
    """One example, with the fields of the original."""

    tokens: list[str]
    segments: list[int]
    is_random: bool
    positions: list[int]
    labels: list[str]


def is_control(character: str) -> bool:
    return character not in "\t\n\r" and unicodedata.category(character) in ("Cc", "Cf")


def is_space(character: str) -> bool:
    return character in " \t\n\r" or unicodedata.category(character) == "Zs"


def is_punctuation(character: str) -> bool:
    code = ord(character)
    if 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126:
        return True
    return unicodedata.category(character).startswith("P")


def is_ideograph(code: int) -> bool:
    return (
        0x4E00 <= code <= 0x9FFF
        or 0x3400 <= code <= 0x4DBF
        or 0x20000 <= code <= 0x2A6DF
        or 0x2A700 <= code <= 0x2CEAF
        or 0xF900 <= code <= 0xFAFF
        or 0x2F800 <= code <= 0x2FA1F
    )


def basic_tokens(text: str) -> list[str]:
    """Clean the text, separate ideographs, lowercase, strip accents and split at punctuation."""
    cleaned: list[str] = []
    for character in text:
        if ord(character) in (0, 0xFFFD) or is_control(character):
            continue
        if is_ideograph(ord(character)):
            cleaned.extend((" ", character, " "))
        else:
            cleaned.append(" " if is_space(character) else character)
    tokens: list[str] = []
    for word in "".join(cleaned).split():
        decomposed = unicodedata.normalize("NFD", word.lower())
        plain = "".join(character for character in decomposed if unicodedata.category(character) != "Mn")
        parts: list[list[str]] = []
        new = True
        for character in plain:
            if is_punctuation(character):
                parts.append([character])
                new = True
            else:
                if new:
                    parts.append([])
                new = False
                parts[-1].append(character)
        tokens.extend("".join(part) for part in parts)
    return tokens


def word_pieces(word: str, vocabulary: dict[str, int]) -> list[str]:
    """Split a word into the longest matching pieces, from the left."""
    if len(word) > 200:
        return ["[UNK]"]
    pieces: list[str] = []
    start = 0
    while start < len(word):
        end = len(word)
        found = None
        while start < end:
            piece = word[start:end] if start == 0 else "##" + word[start:end]
            if piece in vocabulary:
                found = piece
                break
            end -= 1
        if found is None:
            return ["[UNK]"]
        pieces.append(found)
        start = end
    return pieces


def read_documents(path: Path, vocabulary: dict[str, int]) -> list[list[list[str]]]:
    documents: list[list[list[str]]] = [[]]
    with path.open(encoding="utf-8") as file:
        for line in file:
            stripped = line.strip()
            if not stripped:
                documents.append([])
                continue
            tokens = [piece for word in basic_tokens(stripped) for piece in word_pieces(word, vocabulary)]
            if tokens:
                documents[-1].append(tokens)
    return [document for document in documents if document]


def instances_of(
    documents: list[list[list[str]]], index: int, length: int, words: list[str], draw: random.Random
) -> Iterator[Instance]:
    """Return the examples of one document."""
    document, room = documents[index], length - 3
    target = draw.randint(2, room) if draw.random() < SHORT else room
    chunk: list[list[str]] = []
    gathered = position = 0
    while position < len(document):
        chunk.append(document[position])
        gathered += len(document[position])
        if position == len(document) - 1 or gathered >= target:
            split = draw.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
            first = [token for sentence in chunk[:split] for token in sentence]
            second: list[str] = []
            is_random = len(chunk) == 1 or draw.random() < 0.5
            if is_random:
                other = index
                for _ in range(10):
                    other = draw.randint(0, len(documents) - 1)
                    if other != index:
                        break
                for sentence in documents[other][draw.randint(0, len(documents[other]) - 1) :]:
                    second.extend(sentence)
                    if len(second) >= target - len(first):
                        break
                position -= len(chunk) - split
            else:
                second = [token for sentence in chunk[split:] for token in sentence]
            while len(first) + len(second) > room:
                longer = first if len(first) > len(second) else second
                if draw.random() < 0.5:
                    del longer[0]
                else:
                    longer.pop()
            tokens = ["[CLS]", *first, "[SEP]", *second, "[SEP]"]
            segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)
            hidden, positions, labels = mask(tokens, words, draw)
            yield Instance(hidden, segments, is_random, positions, labels)
            chunk, gathered = [], 0
        position += 1


def mask(tokens: list[str], words: list[str], draw: random.Random) -> tuple[list[str], list[int], list[str]]:
    places = [place for place, token in enumerate(tokens) if token not in ("[CLS]", "[SEP]")]
    draw.shuffle(places)
    hidden = list(tokens)
    chosen = sorted(places[: min(MOST_HIDDEN, max(1, round(len(tokens) * RATE)))])
    for place in chosen:
        if draw.random() < 0.8:
            hidden[place] = "[MASK]"
        elif draw.random() >= 0.5:
            hidden[place] = words[draw.randint(0, len(words) - 1)]
    return hidden, chosen, [tokens[place] for place in chosen]


def make_examples(path: Path, vocabulary: list[str], length: int = 128) -> int:
    """Create every example of a file once; return the total number of tokens."""
    ids = {piece: number for number, piece in enumerate(vocabulary)}
    documents = read_documents(path, ids)
    draw = random.Random(12345)
    draw.shuffle(documents)
    count = 0
    for index in range(len(documents)):
        for instance in instances_of(documents, index, length, vocabulary, draw):
            # Padded, as in the files of the original.
            numbers = [ids[token] for token in instance.tokens]
            numbers += [0] * (length - len(numbers))
            labels = [ids[token] for token in instance.labels]
            count += len(instance.tokens) + 0 * len(labels)
    return count
