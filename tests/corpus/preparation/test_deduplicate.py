import random

import numpy as np
import pytest

import cloze.corpus.preparation.deduplicate as module
from cloze.corpus.preparation.deduplicate import ExactHasher, NearHasher, keep_exact, keep_near

WORDS = [f"word{number}" for number in range(2000)]


def random_texts(count: int, length: int, seed: int) -> list[list[str]]:
    draw = random.Random(seed)
    return [draw.choices(WORDS, k=length) for _ in range(count)]


def changed(words: list[str], changes: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    copy = list(words)
    for place in draw.sample(range(len(copy)), changes):
        copy[place] = "other"
    return copy


def similarity(first: list[str], second: list[str]) -> float:
    """Return the Jaccard similarity of five-word shingles, computed directly."""
    runs = [{tuple(words[place : place + 5]) for place in range(len(words) - 4)} for words in (first, second)]
    return len(runs[0] & runs[1]) / len(runs[0] | runs[1])


def kept(texts: list[list[str]], near: bool) -> list[bool]:
    """Return which documents, given as paragraphs, are kept."""
    hasher = NearHasher() if near else ExactHasher()
    for paragraphs in texts:
        hasher.add(iter(paragraphs))
    keep = keep_near(hasher.finish()) if isinstance(hasher, NearHasher) else keep_exact(hasher.finish())
    return [bool(flag) for flag in keep]


def test_exact_duplicates_differ_in_case_and_spaces_alone() -> None:
    texts = [["One two.", "Three."], ["ONE  two.\tthree."], ["One two three."], ["One two.", "Three."], ["STRASSE"]]
    assert kept([*texts, ["straße"]], near=False) == [True, False, True, False, True, False]
    assert kept([["ab c"], ["a bc"], ["abc"]], near=False) == [True, True, True]


def test_near_duplicates_are_found_and_others_are_not() -> None:
    originals, others = random_texts(200, 300, seed=0), random_texts(200, 300, seed=1)
    near = [changed(words, 4, seed) for seed, words in enumerate(originals)]
    far = [changed(words, 25, seed) for seed, words in enumerate(others)]
    assert min(similarity(*pair) for pair in zip(originals, near, strict=True)) > 0.85
    assert max(similarity(*pair) for pair in zip(others, far, strict=True)) < 0.65
    found = kept([[" ".join(words)] for words in [*originals, *others, *near, *far]], near=True)
    assert found[:400] == [True] * 400
    assert sum(found[400:600]) <= 2  # the estimate has a standard deviation of 0.03
    assert sum(found[600:]) >= 198


def test_estimates_follow_the_similarity() -> None:
    (words,) = random_texts(1, 2000, seed=3)
    hasher = NearHasher()
    others = [changed(words, changes, seed) for seed, changes in enumerate((0, 20, 80, 200, 500))]
    for each in (words, *others):
        hasher.add([" ".join(each)])
    signatures = hasher.finish()
    for other, signature in zip(others, signatures[1:], strict=True):
        estimate = float((signatures[0] == signature).mean())
        assert estimate == pytest.approx(similarity(words, other), abs=0.15)


def test_similarity_is_transitive() -> None:
    (first,) = random_texts(1, 400, seed=5)
    second = changed(first, 7, seed=1)
    third = changed(second, 7, seed=2)
    assert kept([[" ".join(words)] for words in (first, second, third)], near=True) == [True, False, False]


def test_paragraphs_and_pieces_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    (words,) = random_texts(1, 1000, seed=6)
    whole, parts = [" ".join(words)], [" ".join(words[start : start + 7]) for start in range(0, 1000, 7)]
    assert kept([whole, parts], near=False) == [True, False]
    signatures = []
    for at_once in (4096, 1, 3, 100):
        monkeypatch.setattr(module, "_HASHED_AT_ONCE", at_once)
        for paragraphs in (whole, parts):
            hasher = NearHasher()
            hasher.add(paragraphs)
            signatures.append(hasher.finish())
    assert all(np.array_equal(signatures[0], other) for other in signatures)


def test_short_and_wordless_documents() -> None:
    texts = [["One."], ["one"], ["Two."], ["* * *"], ["***"], ["* *  *"], ["二三"], ["二 三"]]
    assert kept(texts, near=True) == [True, False, True, True, True, False, True, False]


@pytest.mark.parametrize("near", [True, False])
def test_no_document_and_many_equal_ones(near: bool) -> None:
    assert kept([], near=near) == []
    assert kept([["same words in every one of them"]] * 500, near=near) == [True] + [False] * 499


def test_chance_to_meet_is_as_promised() -> None:
    assert 1 - (1 - 0.8**module.ROWS) ** module.BANDS > 0.995
