"""The targets of each pattern on the example that defines the patterns."""

import numpy as np
import pytest

from cloze.inspect.patterns import DESCRIPTIONS, PATTERNS, Pattern, make_layout, targets
from cloze.text import Tokenizer
from tests.model.made import vocabulary

WORDS = ["i", "went", "to", "store", "at", "bought", "fresh", "straw", "##berries"]
FIRST, SECOND = "I went to the store.", "At the store, I bought fresh strawberries."


def named(name: Pattern, origin: int) -> list[str]:
    """Return the targets of a pattern for one token of the example."""
    tokenizer = Tokenizer.from_vocabulary([*vocabulary(40), *WORDS], lowercase=True)
    encoding = tokenizer(FIRST, SECOND)
    ids = np.array(encoding.ids)
    predictive = np.zeros((len(ids), len(ids)), bool)
    predictive[15, 16] = predictive[16, 15] = True  # straw, ##berries
    found = targets(make_layout(encoding, ids[:, None] == ids, predictive))[PATTERNS.index(name)]
    return [f"{encoding.tokens[place]}@{place}" for place in np.flatnonzero(found[origin])]


# [CLS] i went to the store . [SEP] at the store , i bought fresh straw ##berries . [SEP]
#   0   1  2   3  4    5    6   7   8   9   10  11 12  13     14   15     16      17  18
@pytest.mark.parametrize(
    ("name", "origin", "expected"),
    [
        ("next", 1, ["went@2"]),
        ("next", 6, []),  # the last token of the sentence
        ("next", 0, []),  # [CLS] is not a word
        ("previous", 2, ["i@1"]),
        ("previous", 8, []),  # the first token of the sentence
        ("same", 5, ["store@10"]),
        ("same", 2, []),
        ("other", 10, ["store@5"]),
        ("predictive", 15, ["##berries@16"]),
        ("predictive", 1, []),
        ("separators", 5, ["[CLS]@0", "[SEP]@7", "[SEP]@18"]),
        ("separators", 7, []),
        ("self", 5, ["store@5"]),
        ("self", 18, []),
    ],
)
def test_targets(name: Pattern, origin: int, expected: list[str]) -> None:
    assert named(name, origin) == expected


def test_same_covers_both_sentences_and_other_only_one() -> None:
    tokenizer = Tokenizer.from_vocabulary(vocabulary(40), lowercase=True)
    encoding = tokenizer("the cat the", "the dog")
    ids = np.array(encoding.ids)
    same, other = targets(make_layout(encoding, ids[:, None] == ids))[[PATTERNS.index("same"), PATTERNS.index("other")]]
    assert np.flatnonzero(same[1]).tolist() == [3, 5]
    assert np.flatnonzero(other[1]).tolist() == [5]


def test_every_label_is_described() -> None:
    assert set(DESCRIPTIONS) == {*PATTERNS, "broad", "mixed"}
