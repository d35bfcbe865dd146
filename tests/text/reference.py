"""A plain implementation of BERT's tokenizer from its authors' description: slow and without offsets.

Basic tokenization: drop control characters, normalize whitespace, isolate ideographs, split at whitespace, lower-case
and strip accents if the model is uncased, split at punctuation. Then WordPiece: the longest matching piece from the
left; a word that cannot be spelled, or has more than 100 characters, is ``[UNK]``.
"""

import unicodedata
from collections.abc import Mapping
from functools import cache

_IDEOGRAPHS = (
    range(0x4E00, 0xA000),
    range(0x3400, 0x4DC0),
    range(0x20000, 0x2A6E0),
    range(0x2A700, 0x2B740),
    range(0x2B740, 0x2B820),
    range(0x2B820, 0x2CEB0),
    range(0xF900, 0xFB00),
    range(0x2F800, 0x2FA20),
)


@cache
def is_ideograph(character: str) -> bool:
    return any(ord(character) in block for block in _IDEOGRAPHS)


@cache
def is_control(character: str) -> bool:
    return character not in "\t\n\r" and unicodedata.category(character) in ("Cc", "Cf")


@cache
def is_space(character: str) -> bool:
    return character in " \t\n\r" or unicodedata.category(character) == "Zs"


@cache
def is_punctuation(character: str) -> bool:
    if character.isascii():
        # Symbols such as ^ and $ count as punctuation, whatever their Unicode category.
        return character.isprintable() and character != " " and not character.isalnum()
    return unicodedata.category(character).startswith("P")


def clean(text: str) -> str:
    kept = (character for character in text if character not in "\0\ufffd" and not is_control(character))
    return "".join(" " if is_space(character) else character for character in kept)


def strip_accents(text: str) -> str:
    decomposed = unicodedata.normalize("NFD", text)
    return "".join(character for character in decomposed if unicodedata.category(character) != "Mn")


def basic_tokens(text: str, lowercase: bool) -> list[str]:
    spaced = (f" {character} " if is_ideograph(character) else character for character in clean(text))
    tokens: list[str] = []
    for word in "".join(spaced).split():
        plain = strip_accents(word.lower()) if lowercase else word
        marked = (f" {character} " if is_punctuation(character) else character for character in plain)
        tokens.extend("".join(marked).split())
    return tokens


def word_pieces(word: str, ids: Mapping[str, int], longest: int = 100) -> list[str]:
    if len(word) > longest:
        return ["[UNK]"]
    pieces: list[str] = []
    start = 0
    while start < len(word):
        prefix = "##" if start else ""
        ends = range(len(word), start, -1)
        end = next((end for end in ends if prefix + word[start:end] in ids), None)
        if end is None:
            return ["[UNK]"]
        pieces.append(prefix + word[start:end])
        start = end
    return pieces


def tokenize(text: str, ids: Mapping[str, int], lowercase: bool) -> list[str]:
    return [piece for word in basic_tokens(text, lowercase) for piece in word_pieces(word, ids)]


def encode(text: str, ids: Mapping[str, int], lowercase: bool) -> list[int]:
    return [ids[piece] for piece in tokenize(text, ids, lowercase)]


def truncate_pair(first: list[int], second: list[int], budget: int) -> None:
    """Truncate both lists in place, always the longer one, or the second if they are equal."""
    while len(first) + len(second) > budget:
        (first if len(first) > len(second) else second).pop()
