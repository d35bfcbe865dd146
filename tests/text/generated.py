"""Random strings for tokenizer tests: seeded, in many scripts, with all kinds of difficult characters.

``strings`` draws characters of Unicode 3.2, and emoji and ideographs of later blocks: the tables of Python and of the
native tokenizer disagree on newer marks and punctuation, which ``test_unicode_tables`` covers. ``wild_strings`` draws
from all characters.
"""

import random
import unicodedata
from functools import cache
from itertools import chain

from tests.text.passages import CHINESE, ENGLISH, MIXED

# Characters whose category changed after Unicode 3.2, but in only one of the tables.
RECLASSIFIED = frozenset("\u166d\u1734\u1885\u1886")
# The published code lower-cases whole words, which gives a final sigma at the end; the native tokenizer works per
# character.
CAPITAL_SIGMA = "\u03a3"


def is_settled(character: str) -> bool:
    """Return whether all tables agree on this character and it is not in private use."""
    category = unicodedata.ucd_3_2_0.category(character)
    return category not in ("Cn", "Co", "Cs") and character not in RECLASSIFIED and character != CAPITAL_SIGMA


def _block(first: int, last: int) -> list[str]:
    return [character for character in map(chr, range(first, last + 1)) if is_settled(character)]


BLOCKS = {
    "ascii": _block(0x20, 0x7E),
    "letters": [*"abcdefghijklmnopqrstuvwxyz"] * 2 + [*"ABCDEFGHIJKLMNOPQRSTUVWXYZ"],
    "latin": _block(0xA0, 0x24F),
    "accents": _block(0x300, 0x36F),
    "greek": _block(0x370, 0x3FF) + _block(0x1F00, 0x1FFF),
    "cyrillic": _block(0x400, 0x4FF),
    "hebrew and arabic": _block(0x590, 0x6FF),
    "indic": _block(0x900, 0xDFF),
    "thai": _block(0xE00, 0xE7F),
    "vietnamese": _block(0x1E00, 0x1EFF),
    "hangul": _block(0xAC00, 0xD7A3)[::97] + _block(0x1100, 0x11FF),
    "kana": _block(0x3040, 0x30FF),
    "ideographs": _block(0x4E00, 0x9FA5)[::31] + _block(0x3400, 0x4DB5)[::97] + _block(0xF900, 0xFA2D),
    "extensions": [chr(code) for code in (0x20000, 0x2A6D6, 0x2A700, 0x2B740, 0x2B920, 0x2F800)],
    "punctuation": _block(0x2010, 0x205E) + _block(0x3000, 0x303F) + _block(0xFF00, 0xFFEF),
    "symbols": _block(0x20A0, 0x23FF) + _block(0x2460, 0x27BF),
    "emoji": [chr(code) for code in range(0x1F300, 0x1F650)] + ["\u200d", "\ufe0f"],
    "spaces": [*" \t\n\r\u00a0\u1680\u2003\u2009\u2028\u2029\u202f\u3000"],
    "controls": [*"\x00\x01\x08\x0b\x0c\x1b\x1f\x7f\x85\xad\u200b\u200d\u200e\u200f\u202e\u2066\ufeff\ufffd"],
}
_PASSAGE_WORDS = f"{ENGLISH} {CHINESE} {MIXED}".split()


def _word(source: random.Random) -> str:
    kind = source.random()
    if kind < 0.3:
        return source.choice(_PASSAGE_WORDS)
    if kind < 0.32:
        return source.choice("aé中") * source.choice((99, 100, 101, 102, 250))
    block = BLOCKS[source.choice(list(BLOCKS))]
    word = "".join(source.choices(block, k=source.randint(1, 8)))
    if kind < 0.5:
        place = source.randint(0, len(word))
        other = source.choice((*BLOCKS["controls"], *BLOCKS["accents"][:40], *BLOCKS["ascii"]))
        word = word[:place] + other + word[place:]
    return word


def strings(count: int, seed: int) -> list[str]:
    """Return ``count`` strings of up to a dozen words; reproducible by seed."""
    source = random.Random(seed)
    glue = ["", " ", " ", " ", "  ", "\n", "-", "\u3000"]
    made = []
    for _ in range(count):
        words = [_word(source) for _ in range(source.randint(0, 12))]
        made.append("".join(word + source.choice(glue) for word in words))
    return made


@cache
def _all_blocks() -> list[str]:
    """Return characters of every Unicode block (all in small blocks), including private, unassigned and surrogates."""
    codes = chain(
        range(0x3400),
        range(0x3400, 0xA000, 97),  # ideographs
        range(0xA000, 0xAC00),
        range(0xAC00, 0xD7A4, 97),  # Korean syllables
        range(0xD7B0, 0xD800),
        range(0xD800, 0xE000, 23),  # surrogates
        range(0xE000, 0xF900, 97),  # private use
        range(0xF900, 0x10000),
        (code for code in range(0x10000, 0x20000) if unicodedata.category(chr(code)) != "Cn"),
        range(0x20000, 0x110000, 997),
    )
    return list(map(chr, codes))


def wild_strings(count: int, seed: int) -> list[str]:
    """Return ``count`` strings of arbitrary characters; most words use neighbouring characters of one block."""
    source = random.Random(seed)
    everything = _all_blocks()
    made = []
    for _ in range(count):
        words = []
        for _ in range(source.randint(1, 10)):
            place = source.randrange(len(everything))
            near = everything[place : place + 40] if source.random() < 0.7 else everything
            words.append("".join(source.choices(near, k=source.randint(1, 9))))
        made.append(source.choice(["", " ", " "]).join(words))
    return made
