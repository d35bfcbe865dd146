"""Sentence splitting: lossless except for whitespace, with correct boundaries in English, Chinese and mixed text."""

import random
from collections.abc import Callable

import pytest
import sentencex

from cloze.text import boundaries, sentence_spans, split_sentences
from tests.text.generated import strings
from tests.text.passages import CHINESE, ENGLISH, MIXED

# All characters that the rules use, in any order.
ODD = "aB3 .!?。！？…”“\"'()（）[]\n\r，,;\x00\x85\ud800\u2028\u3000«»「」『』中文•■-`'"


def check(text: str, language: str | None = None) -> list[tuple[int, int]]:
    """Assert that the spans and the whitespace between them make up the text."""
    spans = list(sentence_spans(text, language))
    place = 0
    for start, end in spans:
        assert place <= start < end <= len(text), text
        assert not text[place:start].strip(), text
        assert text[start:end] == text[start:end].strip(), text
        place = end
    assert not text[place:].strip(), text
    return spans


@pytest.mark.parametrize("language", [None, "en", "zh", "ja", "no such language"])
def test_texts_reassemble(language: str | None) -> None:
    for text in (ENGLISH, CHINESE, MIXED, ENGLISH + CHINESE, *strings(2000, seed=8)):
        check(text, language)


def test_marks_in_any_order_reassemble(capfd: pytest.CaptureFixture[str]) -> None:
    source = random.Random(3)
    for _ in range(5000):
        check("".join(source.choices(ODD, k=source.randint(0, 60))))
    assert "panicked" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "sentences",
    [
        pytest.param(["Dr. Smith went home.", "He slept!", "Did he?", "Yes, at 3.5 p.m. he did."], id="marks"),
        pytest.param(["He said “Go.”", "Then he left.", "“Why?” she asked."], id="quotations"),
        pytest.param(["She said, 'I am here.'", "He didn't.", '"It\'s late."', "So they went."], id="straight"),
        pytest.param(["Ada nodded, too.", '"However, it is as near as we could hope.'], id="never closed"),
        pytest.param(["Let her go.\"'", "Then they left."], id="closing in a row"),
        pytest.param(["The row x ' [t] is here.", "The row y ' [t] is there."], id="stray"),
        pytest.param(["Mamma Mia!'s success was great.", "It went on."], id="apostrophe after a mark"),
        pytest.param(['It is null or ""'], id="empty"),
        pytest.param(["He left (at last!) and slept.", "It was late."], id="brackets"),
        pytest.param(["Mr. and Mrs. Brown met J. R. R. Tolkien, e.g. in Oxford.", "They talked."], id="abbreviations"),
        pytest.param(["Pi is 3.14159.", "Version 2.0.1 came out.", "It was $4.50."], id="numbers"),
        pytest.param(["Wait... what?!", "No way!!", "Well..."], id="ellipses"),
        pytest.param(["See https://a.org/b.html?X=1.", "Call Intl.DateTimeFormat.", "Ask me@a.org."], id="addresses"),
        pytest.param(["So showed Brady et al. [22] in mice.", "It held. [3]", "Nobody doubts it."], id="notes"),
        pytest.param(["1. First comes this.", "2. Then that."], id="list numbers"),
        pytest.param(["(ii) We do this.", "Then that follows.", "(iii) We rest."], id="list items"),
        pytest.param(["• One thing", "• Another.", "With two sentences."], id="bullets"),
    ],
)
def test_english(sentences: list[str]) -> None:
    glue = "\n" if sentences[0].startswith("•") else " "
    assert split_sentences(glue.join(sentences)) == sentences


@pytest.mark.parametrize(
    "sentences",
    [
        pytest.param(["你好。", "今天天气很好！", "真的吗？！", "是的；我看见了。"], id="marks"),
        pytest.param(["他说：“是的。”", "然后走了。", "「好。」", "她说。", "『走？』", "不。"], id="quotations"),
        pytest.param(['他说:"是的。"', "然后走了。", '她说"好。"', "又来了。"], id="straight"),
        pytest.param(["他来了（很晚！）又走了。", "【注意。】", "好。"], id="brackets"),
        pytest.param(["圆周率是3.14。", "2010年，他走了。", "版本是3.11。", "iPhone很好。"], id="numbers"),
        pytest.param(["我……不知道。", "我...不知道。", "真的？……", "好。"], id="ellipses"),
        pytest.param(["见https://a.org/b.html?X=1。", "用Intl.DateTimeFormat。", "完。"], id="addresses"),
        pytest.param(["“什么？”、“为什么？”，他都问了。", "没人答。"], id="commas"),
        pytest.param(["好!", "走?", "来.", "去"], id="half width"),
        pytest.param(["1.第一条。", "2.第二条。", "一、第三条。"], id="list numbers"),
        pytest.param(["第一句｡", "第二句｡"], id="half-width stop"),
    ],
)
def test_chinese(sentences: list[str]) -> None:
    assert split_sentences("".join(sentences)) == sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("他来了。He saw it. 他走了！", ["他来了。", "He saw it.", "他走了！"]),
        ("我遇到Mr. Smith。他走了！Dr. Lee来了。", ["我遇到Mr. Smith。", "他走了！", "Dr. Lee来了。"]),
        ("他来了.He left. Then 好。", ["他来了.", "He left.", "Then 好。"]),
        ('He said "你好。" Then he left！ok', ['He said "你好。"', "Then he left！", "ok"]),
        ("The word 是。It means “to be.” 对吗？Yes.", ["The word 是。", "It means “to be.”", "对吗？", "Yes."]),
        ("He went home.He slept.", ["He went home.", "He slept."]),
    ],
)
def test_both_in_one_paragraph(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


def test_lines() -> None:
    assert split_sentences("A line\nbroken here. And\n\nthere. \n\ngone\r\n\r\n好\n \n，了") == [
        "A line\nbroken here.",
        "And",
        "there.",
        "gone",
        "好",
        "，了",
    ]


@pytest.mark.parametrize("quote", ["“{}”", '"{}"', "「{}」", "（{}）"])
def test_long_quotations_are_split_inside(quote: str) -> None:
    inside = [f"This is sentence number {number} of them." for number in range(20)]
    assert split_sentences(quote.format(" ".join(inside[:3]))) == [quote.format(" ".join(inside[:3]))]
    found = split_sentences(quote.format(" ".join(inside)))
    assert [sentence.strip('“”"「」（）') for sentence in found] == inside
    # An unclosed quotation does not include the rest of the text.
    assert len(split_sentences(quote[0] + " ".join(inside))) == len(inside)


def test_empty_and_odd_texts() -> None:
    assert split_sentences("") == []
    assert split_sentences(" \n\t ") == []
    assert split_sentences("One. Two.", "no such language") == ["One.", "Two."]
    assert split_sentences("a\ud800b") == ["a\ufffdb"]
    assert list(sentence_spans(" a\ud800b ")) == [(1, 4)]


@pytest.mark.parametrize(
    "text", ["\x00. \x00!", "A.\u2028B. \u2028", "。\u3000。", "\r\n\r\n.", "J.\u00a0R. R. Tolkien. He."]
)
def test_characters_that_the_engine_stumbles_over(text: str, capfd: pytest.CaptureFixture[str]) -> None:
    check(text)
    assert "panicked" not in capfd.readouterr().err


class PanicException(BaseException):
    """The name of a Rust panic in Python."""


def _panics(language: str, text: str) -> list[str]:
    raise PanicException


def _loses(language: str, text: str) -> list[str]:
    return [part.strip() for part in text.split(".")]


@pytest.mark.parametrize("engine", [_panics, _loses])
def test_engine_that_fails_loses_nothing(
    engine: Callable[[str, str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sentencex, "segment", engine)
    for text in (ENGLISH, CHINESE, MIXED, "no mark", "."):
        check(text)
    assert split_sentences("One is here. Two is there! 好。") == ["One is here.", "Two is there!", "好。"]


def test_other_errors_of_the_engine_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(language: str, text: str) -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(sentencex, "segment", interrupt)
    with pytest.raises(KeyboardInterrupt):
        split_sentences("One.")


@pytest.mark.parametrize("glue", [" ", "\n", "\n\n"])
def test_stretches_do_not_show(glue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = random.Random(4)
    parts = [
        *split_sentences(ENGLISH),
        *split_sentences(CHINESE),
        "他说：“好。”",
        '"No," she said. "Never."',
        "它是3.5。",
    ]
    text = glue.join(source.choice(parts) for _ in range(3000))
    spans = check(text)
    assert len(spans) > 3000
    for size in (4096, 10_000, 100_000, 10_000_000):
        monkeypatch.setattr(boundaries, "_CHUNK", size)
        assert check(text) == spans


@pytest.mark.parametrize(
    "unit", ["a", "好", ".", " ", "\n", "”", "a. ", "“a. B ", '"a. ', "(a. B ", "Dr. X ", "好，", "1."]
)
def test_no_stretch_is_longer_than_the_limit(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    segment = sentencex.segment

    def watch(language: str, text: str) -> list[str]:
        seen.append(len(text))
        parts: list[str] = segment(language, text)
        return parts

    monkeypatch.setattr(sentencex, "segment", watch)
    text = unit * (200_000 // len(unit))
    check(text)
    assert max(seen, default=0) <= boundaries._CHUNK
    # Each character is processed at most a few times: in a chunk, in its quotation, and where chunks overlap.
    assert sum(seen) < 5 * len(text)
