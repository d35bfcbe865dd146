"""Bundled sample texts for calibrating a model: of every kind, with words that its vocabulary has."""

from cloze.predict import load
from cloze.predict.quantization.precision import (
    CHARACTERS,
    CHINESE,
    WORDS,
    is_chinese,
    odd_texts,
    reads_chinese,
    running_texts,
)
from cloze.text import SPECIAL, Tokenizer

SIGNS_OF_CHINESE = sorted(set("".join(CHINESE)))
PARAGRAPHS = ["It was a dark night.", "The ship had gone."]


def tokenizer(pieces: list[str]) -> Tokenizer:
    return Tokenizer.from_vocabulary([*SPECIAL, *pieces], lowercase=True, max_length=32)


def test_english_vocabulary() -> None:
    shipped = load().tokenizer
    assert not is_chinese(shipped)
    assert not reads_chinese(shipped)
    assert running_texts(shipped, PARAGRAPHS) == {"paragraphs": PARAGRAPHS}
    found = odd_texts(shipped)
    assert len(set(found["single words"])) == WORDS
    assert all(shipped.id(word) is not None for word in found["single words"])
    assert all(found.values()), "every kind has a text"


def test_chinese_vocabulary() -> None:
    own = tokenizer([*SIGNS_OF_CHINESE, *(f"##{sign}" for sign in SIGNS_OF_CHINESE)])
    assert is_chinese(own)
    assert list(odd_texts(own)) == ["Chinese characters", "numbers", "signs"]
    assert len(set(odd_texts(own)["Chinese characters"])) == CHARACTERS
    ((kind, texts),) = running_texts(own, PARAGRAPHS).items()
    assert kind == "Chinese sentences"
    assert set(CHINESE) <= set(texts)
    assert not any(own(text).unknown for text in texts)


def test_a_vocabulary_of_both() -> None:
    words = [f"{one}{other}word" for one in "abcdefghijklmnopqrstuvwxyz" for other in "abcdefghijklmnopqrstuvwxyz"]
    both = tokenizer([*SIGNS_OF_CHINESE, *words])
    assert (reads_chinese(both), is_chinese(both)) == (True, False)
    assert list(running_texts(both, PARAGRAPHS)) == ["paragraphs", "Chinese sentences"]
    few = tokenizer([*SIGNS_OF_CHINESE[:100], *words])
    assert not reads_chinese(few)
    assert odd_texts(few)["Chinese characters"]


def test_the_first_and_the_last_word_are_among_them() -> None:
    words = [f"{one}{other}" for one in "abcdefghij" for other in "klmnopqrst"]
    chosen = odd_texts(tokenizer(words))["single words"]
    assert (chosen[0], chosen[-1], len(chosen)) == ("ak", "jt", WORDS)
    assert odd_texts(tokenizer(words[:5]))["single words"] == words[:5]
