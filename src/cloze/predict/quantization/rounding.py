"""A model -> the int8 weights of its layers, with the features that come in made alike before they are rounded.

Behind a LayerNorm a few features are some ten times as large as the others, in every token; they decide the step of the
row, and what the others say is lost between two steps. So each feature is divided by a factor and its column of the
weight multiplied with it, which changes nothing but the rounding: the geometric mean of what is large in the states and
what is small in the weight shares the difference between both ("SmoothQuant", Xiao et al., 2023). How large features
become is a property of the model rather than of the texts, and random tokens show it: no text is needed, and a model
rounded while loading is the same as one rounded before. Where there is no LayerNorm before it, it was measured to help
little.

Texts to try a model's numbers on, where nobody brings any: easy ones, and the hard ones that users bring in the end.

What rounding does to the tokens of a paragraph evens out in its vector. A text of one word, number or sign has nothing
to even it out with, and a sign that the model has hardly met has the largest states of all. So both kinds are tried,
with words and characters of the model's own vocabulary: whatever its language, they are words to it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from cloze.checkpoint.quantized_file import Int8Weight, is_evened, layer_products, steps_of
from cloze.model import Backbone
from cloze.text import Tokenizer
from cloze.text.characters import is_ideograph
from cloze.text.vocabulary import CONTINUATION

SEQUENCES, LENGTH = 32, 16
# No feature is taken for smaller than this part of the largest: random tokens may never have stirred it.
SMALLEST_PART = 1e-3


def round_products(bert: Backbone) -> dict[str, Int8Weight]:
    """The rounded weights by their places in the model, whose products must be plain ones."""
    largest = largest_features(bert)
    return {place: round_product(place, linear, largest.get(place)) for place, linear in layer_products(bert)}


def round_product(place: str, linear: nn.Linear, largest: Tensor | None = None) -> Int8Weight:
    """One of them, (N, K), by its place and by how large each feature that comes in becomes, (K,)."""
    weight = linear.weight.detach().float()
    if largest is None:
        return Int8Weight.of(weight, steps_of(place))
    return Int8Weight.of(weight, steps_of(place), (_floored(largest) / _floored(weight.abs().amax(0))).sqrt())


def _floored(sizes: Tensor) -> Tensor:
    return sizes.clamp(min=max(float(sizes.max()) * SMALLEST_PART, 1e-12))


def largest_features(bert: Backbone) -> dict[str, Tensor]:
    """The largest size of each feature, (K,), that comes into the products behind a LayerNorm, on random tokens."""
    config, found = bert.config, dict[str, Tensor]()
    shape = SEQUENCES, min(LENGTH, config.positions)
    ids = torch.randint(config.vocab_size, shape, generator=torch.Generator().manual_seed(0))
    with _watched(bert, found), torch.no_grad():
        bert.encode(ids, torch.zeros_like(ids))
    return found


@contextmanager
def _watched(bert: Backbone, found: dict[str, Tensor]) -> Iterator[None]:
    """While it lasts, the model drops nothing and ``found`` learns what comes into its products."""

    def watch(place: str, _: nn.Module, given: tuple[Tensor, ...]) -> None:
        sizes = given[0].abs().flatten(0, -2).amax(0)  # (B, T, K) -> (K,)
        # A layer that is gone through many times has its largest of all.
        found[place] = torch.maximum(found.get(place, sizes), sizes)

    training = bert.training
    hooks = [
        linear.register_forward_pre_hook(partial(watch, place))
        for place, linear in layer_products(bert)
        if is_evened(place)
    ]
    try:
        bert.eval()
        yield
    finally:
        bert.train(training)
        for hook in hooks:
            hook.remove()


WORDS, CHARACTERS = 48, 24
NUMBERS = ("0", "7", "13", "100", "1999", "3.14", "1,000,000", "2024-02-29", "50 %", "1/2", "12:30", "1e-9")
SIGNS = (*".,;:?!-()[]/*&#@$%+=\"'_~|^<>\\", "...", "--", "—", "…", "«»", "“”", "。", "？", "！", "、")
# Ours. A dozen, as people write them: of the day, of work, of what happened.
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
# A few of all kinds, for a look that must not take long; the first two stand for the others.
FEW_TEXTS = (
    "The ship left the harbour before the sun was up.",
    "?",
    "1999",
    CHINESE[1],
    "word",
    "Über den Häusern: 3,14 %!",
)
# From so many of our characters on, a vocabulary reads Chinese; from such a share of its pieces on, little else.
_READS_CHINESE, _IS_CHINESE = 0.9, 0.25


def running_texts(tokenizer: Tokenizer, paragraphs: Sequence[str]) -> dict[str, list[str]]:
    """What models are there for, by its kind: these paragraphs of English, or Chinese sentences, or both."""
    found: dict[str, list[str]] = {}
    mostly_chinese = is_chinese(tokenizer)
    if not mostly_chinese:
        found["paragraphs"] = list(paragraphs)
    if mostly_chinese or reads_chinese(tokenizer):
        found["Chinese sentences"] = [*CHINESE, *("".join(CHINESE[start : start + 4]) for start in range(0, 12, 4))]
    return found


def odd_texts(tokenizer: Tokenizer) -> dict[str, list[str]]:
    """Short texts by their kind: single words and ideographs of the vocabulary, numbers, signs."""
    pieces = tokenizer.pieces
    words = [piece for piece in pieces if len(piece) > 1 and piece.isalpha() and not any(map(is_ideograph, piece))]
    characters = [piece for piece in pieces if len(piece) == 1 and is_ideograph(piece)]
    found = {
        "single words": _spread(words, WORDS),
        "Chinese characters": _spread(characters, CHARACTERS),
        "numbers": list(NUMBERS),
        "signs": list(SIGNS),
    }
    return {kind: texts for kind, texts in found.items() if texts}


def reads_chinese(tokenizer: Tokenizer) -> bool:
    """Whether a vocabulary has the characters of Chinese text."""
    needed = set(filter(is_ideograph, "".join(CHINESE)))
    known = sum(tokenizer.id(character) is not None for character in needed)
    return known >= _READS_CHINESE * len(needed)


def is_chinese(tokenizer: Tokenizer) -> bool:
    """Whether a vocabulary is one of Chinese, rather than of many languages."""
    own = sum(any(map(is_ideograph, piece.removeprefix(CONTINUATION))) for piece in tokenizer.pieces)
    return own >= _IS_CHINESE * tokenizer.size


def _spread(pieces: Sequence[str], count: int) -> list[str]:
    """So many, from the first to the last: vocabularies have what is common first, or go by the alphabet."""
    if len(pieces) <= count:
        return list(pieces)
    return [pieces[number * (len(pieces) - 1) // (count - 1)] for number in range(count)]
