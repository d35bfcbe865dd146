"""Texts to compare precisions on when the user brings none: ordinary ones, and the hard ones that users bring later.

Rounding errors of the tokens of a paragraph average out in its vector. A text of one word, number or sign has nothing
to average with, and a sign that the model has rarely seen has the largest states of all. So both kinds are tried, with
words and characters of the model's own vocabulary, whatever its language.
"""

from collections.abc import Sequence

from cloze.text import Tokenizer
from cloze.text.characters import is_ideograph
from cloze.text.vocabulary import CONTINUATION

WORDS, CHARACTERS = 48, 24
NUMBERS = ("0", "7", "13", "100", "1999", "3.14", "1,000,000", "2024-02-29", "50 %", "1/2", "12:30", "1e-9")
SIGNS = (*".,;:?!-()[]/*&#@$%+=\"'_~|^<>\\", "...", "--", "—", "…", "«»", "“”", "。", "？", "！", "、")
# Written for this project.
CHINESE = (
    "今天早上下了一场大雨，路上的行人都撑着伞。",
    "他把书放回书架，轻轻地关上了门。",
    "这家小店的面条很好吃，价钱也不贵。",
    "火车晚点了二十分钟，大家只好在站台上等。",
    "老师说，学习语言最重要的是每天都读一点。",
    "奶奶在院子里种了许多花，春天的时候特别好看。",
    "会议改到星期三下午三点，请各位准时参加。",
    "孩子们在河边放风筝，笑声传得很远。",
    "医生建议他多休息，少喝咖啡。",
    "这座桥建于一百多年以前，现在仍然有人走。",
    "我昨天给你写了一封信，不知道你收到没有。",
    "天黑以后，山里的气温下降得很快。",
)
# A few of all kinds, for a quick comparison; the first two alone for large models.
FEW_TEXTS = (
    "The ship left the harbour before the sun was up.",
    "?",
    "1999",
    CHINESE[1],
    "word",
    "Über den Häusern: 3,14 %!",
)
# Share of the characters of CHINESE that a vocabulary must have to read Chinese, and share of Chinese pieces from which
# it is a Chinese vocabulary rather than a multilingual one.
_READS_CHINESE, _IS_CHINESE = 0.9, 0.25


def running_texts(tokenizer: Tokenizer, paragraphs: Sequence[str]) -> dict[str, list[str]]:
    """Return ordinary texts by kind: these English paragraphs, Chinese sentences, or both, as the vocabulary reads."""
    texts: dict[str, list[str]] = {}
    mostly_chinese = is_chinese(tokenizer)
    if not mostly_chinese:
        texts["paragraphs"] = list(paragraphs)
    if mostly_chinese or reads_chinese(tokenizer):
        texts["Chinese sentences"] = [*CHINESE, *("".join(CHINESE[start : start + 4]) for start in range(0, 12, 4))]
    return texts


def odd_texts(tokenizer: Tokenizer) -> dict[str, list[str]]:
    """Return short texts by kind: single words and ideographs of the vocabulary, numbers, signs."""
    pieces = tokenizer.pieces
    words = [piece for piece in pieces if len(piece) > 1 and piece.isalpha() and not any(map(is_ideograph, piece))]
    characters = [piece for piece in pieces if len(piece) == 1 and is_ideograph(piece)]
    by_kind = {
        "single words": _spread(words, WORDS),
        "Chinese characters": _spread(characters, CHARACTERS),
        "numbers": list(NUMBERS),
        "signs": list(SIGNS),
    }
    return {kind: texts for kind, texts in by_kind.items() if texts}


def reads_chinese(tokenizer: Tokenizer) -> bool:
    """Return whether a vocabulary has the characters of Chinese text."""
    needed = set(filter(is_ideograph, "".join(CHINESE)))
    known = sum(tokenizer.id(character) is not None for character in needed)
    return known >= _READS_CHINESE * len(needed)


def is_chinese(tokenizer: Tokenizer) -> bool:
    """Return whether a vocabulary is Chinese rather than multilingual."""
    ideographic = sum(any(map(is_ideograph, piece.removeprefix(CONTINUATION))) for piece in tokenizer.pieces)
    return ideographic >= _IS_CHINESE * tokenizer.size


def _spread(pieces: Sequence[str], count: int) -> list[str]:
    """Sample evenly from first to last: vocabularies are sorted by frequency or alphabetically."""
    if len(pieces) <= count:
        return list(pieces)
    return [pieces[number * (len(pieces) - 1) // (count - 1)] for number in range(count)]
