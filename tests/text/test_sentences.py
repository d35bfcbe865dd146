"""Sentences: nothing lost but white space, in English, Chinese and both."""

import pytest

from cloze.text import split_sentences
from cloze.text.sentences import guess_language
from tests.text.generated import strings
from tests.text.passages import CHINESE, ENGLISH, MIXED


def bare(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize("text", [ENGLISH, CHINESE, MIXED, ENGLISH + CHINESE, *strings(200, seed=8)])
def test_nothing_is_lost(text: str) -> None:
    for language in (None, "en", "zh"):
        sentences = split_sentences(text, language)
        assert bare("".join(sentences)) == bare(text)
        assert all(sentence and sentence == sentence.strip() for sentence in sentences)


def test_english() -> None:
    assert split_sentences("Dr. Smith went home.  He slept!\nDid he? Yes, at 3.5 p.m. he did.") == [
        "Dr. Smith went home.",
        "He slept!",
        "Did he?",
        "Yes, at 3.5 p.m. he did.",
    ]


def test_chinese() -> None:
    assert split_sentences("你好。今天天气很好！他说：“是的。”然后走了。") == [
        "你好。",
        "今天天气很好！",
        "他说：“是的。”",
        "然后走了。",
    ]


def test_mixed() -> None:
    assert split_sentences("他来了。He saw it. 他走了！") == ["他来了。", "He saw it.", "他走了！"]


@pytest.mark.parametrize(
    ("text", "language"),
    [(ENGLISH, "en"), (CHINESE, "zh"), (MIXED, "en"), ("我用 Python 3.11。", "zh"), ("", "en")],
)
def test_language_is_guessed(text: str, language: str) -> None:
    assert guess_language(text) == language


def test_empty_and_odd_texts() -> None:
    assert split_sentences("") == []
    assert split_sentences(" \n\t ") == []
    assert split_sentences("a\ud800b") == ["a\ufffdb"]
    assert split_sentences("One. Two.", "no such language") == ["One.", "Two."]
