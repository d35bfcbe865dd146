"""The merge loop, compared with a plain version that recounts everything in each step."""

import random
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import pytest

from cloze.text.vocabulary import learn_merges
from tests.text.generated import strings


def _alphabet(letters: str) -> list[str]:
    return [*sorted(letters), *sorted(f"##{letter}" for letter in letters)]


def _plainly(counts: dict[str, int], alphabet: list[str], minimum: int) -> Iterator[tuple[int, str]]:
    """Learn merges with a full recount in each step."""
    words = {word: [word[0], *(f"##{letter}" for letter in word[1:])] for word in counts}
    words = {word: spelled for word, spelled in words.items() if set(spelled) <= set(alphabet)}
    order = {piece: number for number, piece in enumerate(alphabet)}
    while True:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, spelled in words.items():
            for pair in pairwise(spelled):
                pairs[pair] += counts[word]
        if not pairs or max(pairs.values()) < minimum:
            return
        best = min(pairs, key=lambda pair: (-pairs[pair], order[pair[0]], order[pair[1]]))
        piece = best[0] + best[1].removeprefix("##")
        words = {word: _join(spelled, best, piece) for word, spelled in words.items()}
        if piece not in order:
            order[piece] = len(order)
            yield pairs[best], piece


def _join(spelled: list[str], pair: tuple[str, str], piece: str) -> list[str]:
    joined: list[str] = []
    for part in spelled:
        if joined and (joined[-1], part) == pair:
            joined[-1] = piece
        else:
            joined.append(part)
    return joined


@pytest.mark.parametrize("seed", range(40))
def test_merges_equal_a_plain_count(seed: int) -> None:
    """Merges equal those of a full recount on two or three letters; pairs overlap, recur and form equal pieces."""
    draw = random.Random(seed)
    letters = "abc"[: draw.choice((1, 2, 3))]
    counts = {
        "".join(draw.choices(letters, k=draw.randint(1, 14))): draw.choice((1, 1, 2, 3, 7, 100)) for _ in range(60)
    }
    minimum = draw.choice((1, 2, 5))
    alphabet = _alphabet(letters)
    if seed % 4 == 0:
        alphabet.remove("##a")  # words with this letter are ignored
    assert list(learn_merges(counts.items(), alphabet, minimum)) == list(_plainly(counts, alphabet, minimum))


def test_merges_of_words_of_many_scripts() -> None:
    counts = Counter(word for text in strings(60, seed=9) for word in text.split() if word.isalpha())
    alphabet = _alphabet("".join(sorted(set("".join(counts)))))
    assert list(learn_merges(counts.items(), alphabet, 2)) == list(_plainly(counts, alphabet, 2))


def test_frequent_pieces_come_first() -> None:
    counts = {"low": 5, "lower": 2, "newest": 6, "widest": 3}
    merges = list(learn_merges(counts.items(), _alphabet("lowernstid"), 2))
    # The example of Sennrich et al.: es 9, est 9, lo 7, low 7, then the pieces of the word newest.
    assert merges[:4] == [(9, "##es"), (9, "##est"), (7, "lo"), (7, "low")]
    assert [count for count, _ in merges] == sorted((count for count, _ in merges), reverse=True)


def test_repeated_letters_merge_without_overlap() -> None:
    merges = list(learn_merges({"aaaaa": 3}.items(), ["a", "##a"], 1))
    # a ##a ##a ##a ##a -> a ##aa ##aa -> aaa ##aa -> aaaaa
    assert merges == [(9, "##aa"), (3, "aaa"), (3, "aaaaa")]


def test_order_of_the_words_is_nothing() -> None:
    draw = random.Random(3)
    counts = [("".join(draw.choices("abcd", k=draw.randint(2, 9))), draw.randint(1, 5)) for _ in range(300)]
    counts = list(dict(counts).items())
    expected = list(learn_merges(counts, _alphabet("abcd"), 2))
    draw.shuffle(counts)
    assert list(learn_merges(counts, _alphabet("abcd"), 2)) == expected
