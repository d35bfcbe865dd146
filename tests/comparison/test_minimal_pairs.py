"""The bundled minimal pairs: what the script writes, and that neither frequency nor length of words decides them."""

import lzma
import re
from collections import Counter
from importlib.resources import files

import pytest

from cloze.comparison.yardsticks import MinimalPair, minimal_pairs, score_pairs
from cloze.predict import load
from make_minimal_pairs import COUPLES, OUT, PHENOMENA, make

PAIRS = minimal_pairs()


def words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def critical(pair: MinimalPair) -> tuple[str, str]:
    """Return the two words by which the sentences differ."""
    different = [both for both in zip(words(pair.good), words(pair.bad), strict=True) if len(set(both)) > 1]
    assert len(different) == 1, pair
    return different[0]


def of(phenomenon: str) -> list[MinimalPair]:
    return [pair for pair in PAIRS if pair.phenomenon == phenomenon]


@pytest.fixture(scope="module")
def frequencies() -> Counter[str]:
    data = files("cloze.demo").joinpath("data", "books.txt.xz").read_bytes()
    return Counter(words(lzma.decompress(data).decode("utf-8")))


def test_file_is_what_the_script_writes() -> None:
    assert lzma.decompress(OUT.read_bytes()) == lzma.decompress(make())
    assert OUT.stat().st_size < 20_000


def test_phenomena_have_the_same_number_of_pairs() -> None:
    assert len(PAIRS) >= 1000
    assert Counter(pair.phenomenon for pair in PAIRS) == dict.fromkeys(PHENOMENA, 2 * COUPLES)
    assert len(PHENOMENA) == 8


def test_pairs_differ_in_one_word_and_occur_once() -> None:
    for pair in PAIRS:
        critical(pair)
        assert re.fullmatch(r"[A-Z][A-Za-z ]*\.", pair.good)
    good = [pair.good for pair in PAIRS]
    assert len(set(good)) == len(good)
    assert not set(good) & {pair.bad for pair in PAIRS}


@pytest.mark.parametrize("phenomenon", PHENOMENA)
def test_right_and_wrong_words_are_the_same_words(phenomenon: str) -> None:
    right, wrong = zip(*map(critical, of(phenomenon)), strict=True)
    assert Counter(right) == Counter(wrong)
    # In each couple, the two words exchange their roles.
    pairs = of(phenomenon)
    for first, second in zip(pairs[::2], pairs[1::2], strict=True):
        assert critical(first) == critical(second)[::-1]


@pytest.mark.parametrize("phenomenon", PHENOMENA)
def test_frequency_and_length_get_half_of_the_pairs(phenomenon: str, frequencies: Counter[str]) -> None:
    for measure in (lambda word: frequencies[word], len):
        compared = [(measure(right), measure(wrong)) for right, wrong in map(critical, of(phenomenon))]
        assert sum((right > wrong) + 0.5 * (right == wrong) for right, wrong in compared) == COUPLES


def test_words_are_common(frequencies: Counter[str]) -> None:
    used = {word for pair in PAIRS for word in words(pair.good)}
    assert min(frequencies[word] for word in used) >= 15, sorted(used, key=frequencies.__getitem__)[:5]
    assert len(used) > 150


def test_a_trained_model_prefers_the_grammatical_sentences() -> None:
    rows, phenomena = score_pairs(load("cloze-mini"), minimal_pairs(128))
    assert len(rows) == 64  # couples
    # A noun of the other number between subject and verb misleads small models: they agree with the nearest noun.
    assert phenomena.pop("agreement across a noun") < 0.5
    assert min(phenomena.values()) > 0.8


def test_a_part_has_as_many_pairs_of_each_phenomenon() -> None:
    part = minimal_pairs(40)
    assert Counter(pair.phenomenon for pair in part) == dict.fromkeys(PHENOMENA, 4)
    assert part[:4] == PAIRS[:4]
    assert minimal_pairs(10**6) == PAIRS
