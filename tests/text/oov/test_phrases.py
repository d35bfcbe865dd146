"""Rung 4: word sequences that are replaced by others."""

import random
from collections.abc import Sequence

import pytest

from cloze.text import SPECIAL, Tokenizer
from cloze.text.encoding import Mark
from cloze.text.oov.resolver import Phrase, PhraseMatcher
from tests.text.laddered import extended, rungs

WORDS = [
    "new",
    "york",
    "city",
    "c",
    "state",
    "big",
    "town",
    "u",
    "s",
    "a",
    ".",
    "-",
    ",",
    "##s",
    "##ity",
    "we",
    "6",
    "il",
]
IDEOGRAPHS = ["北", "京", "大", "学", "的", "市"]
CAPITALS = ["New", "York", "NEW", "YORK"]
UNCASED = Tokenizer.from_vocabulary([*SPECIAL, *WORDS, *IDEOGRAPHS, "##0"], lowercase=True)
CASED = Tokenizer.from_vocabulary([*SPECIAL, *WORDS, *CAPITALS], lowercase=False)


def replaced(entities: Sequence[tuple[str, ...]], text: str, tokenizer: Tokenizer = UNCASED) -> str:
    """Return the text's tokens, each with its surface if it was replaced."""
    encoding = extended(tokenizer, entities=entities)(text, special=False)
    places = zip(encoding.tokens, encoding.offsets, strict=True)
    return " ".join(
        token if token.removeprefix("##") == text[start:end].lower() else f"{token}<{text[start:end]}>"
        for token, (start, end) in places
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("we new york we", "we town<new york> we"),
        ("new york city", "big<new york city> town<new york city>"),
        ("new york c", "state<new york c>"),
        ("new york cs", "town<new york> c ##s"),
        ("new york citys", "town<new york> city ##s"),
        ("new yorks", "new york ##s"),
        ("new new york", "new town<new york>"),
        ("new york new york city new", "town<new york> big<new york city> town<new york city> new"),
        ("york new", "york new"),
        ("NEW  York", "town<NEW  York>"),
        ("new-york", "new - york"),
        ("néw york", "town<néw york>"),
        ("new\u200b york.", "town<new\u200b york> ."),
        ("", ""),
    ],
)
def test_longest_first(text: str, expected: str) -> None:
    entities = [("new york", "town"), ("new york city", "big town"), ("new york c", "state")]
    assert replaced(entities, text) == expected
    assert replaced(entities[::-1], text) == expected


def test_case_matters_in_cased_models() -> None:
    entities = [("New York", "town")]
    assert replaced(entities, "New York, new york", CASED) == "town<New York> , new york"
    assert replaced(entities, "New York, NEW YORK") == "town<New York> , town<NEW YORK>"


def test_phrases_over_punctuation() -> None:
    entities = [("u.s.a.", "state"), ("u.s.", "town"), ("new-york", "city")]
    assert replaced(entities, "u.s.a. u.s. new-york, new - york") == (
        "state<u.s.a.> town<u.s.> city<new-york> , city<new - york>"
    )


def test_chinese_phrases() -> None:
    entities = [("北京", "大"), ("北京大学", "学"), ("大学", "北")]
    assert replaced(entities, "北京的大学,北京大学北京大") == "大<北京> 的 北<大学> , 学<北京大学> 大<北京> 大"


def test_surfaces_unknown_to_the_vocabulary() -> None:
    """Surfaces with identical ids (unknown words) are distinguished by their words."""
    entities = [("☃ man", "town"), ("☃", "city"), ("zürich", "state"), ("new ☃", "big town")]
    text = "☃ man ☃ ☀ Zürich zurich zuerich new ☃ new ☀"
    assert replaced(entities, text) == (
        "town<☃ man> city<☃> [UNK]<☀> state<Zürich> state<zurich> [UNK]<zuerich> big<new ☃> town<new ☃> new [UNK]<☀>"
    )
    tokenizer = extended(UNCASED, entities=entities)
    assert tokenizer.encode_ids([text]) == [tokenizer(text, special=False).ids]


def test_many_unknown_surfaces_need_one_lookup_each() -> None:
    """Thousands of surfaces in an unknown script share an id and are looked up once, not one by one."""
    lookups = []

    def words_at(start: int, stop: int) -> tuple[str, ...]:
        lookups.append((start, stop))
        return ("name999",)

    phrases = PhraseMatcher([Phrase((1,), (number,), Mark("entity"), (f"name{number}",)) for number in range(1000)])
    (match,) = phrases.find([1], phrases.candidate_starts([[1]])[0], lambda _: True, words_at)
    assert match.replacement == (999,)
    assert lookups == [(0, 1)]


def test_phrases_begin_and_end_with_words() -> None:
    # If the surface is only known as a continuation piece, it matches only as a whole word.
    inside = Tokenizer.from_vocabulary([*SPECIAL, "caf", "##é", "new", "york", "cat", "##z", "a"], lowercase=False)
    tokenizer = extended(inside, entities=[("é", "cat"), ("new york", "cat"), ("☃", "new")], characters=True)
    assert rungs(tokenizer, "café é new york z a☃ ☃") == [
        ("café", "pieces", "caf ##é"),
        ("é", "entity", "cat"),
        ("new york", "entity", "cat"),
        ("z", "characters", "##z"),
        ("a☃", "unknown", "a [UNK]"),
        ("☃", "entity", "new"),
    ]
    assert tokenizer.encode_ids(["café é"]) == [tokenizer("café é", special=False).ids]


def test_phrase_at_the_very_end() -> None:
    """The end of a text may be the start of a longer phrase and a shorter phrase itself."""
    entities = [("york", "a"), ("york new big town", "c"), ("york new", "s")]
    assert replaced(entities, "york new big") == "s<york new> big"
    assert replaced(entities, "york new") == "s<york new>"
    assert replaced(entities, "we york") == "we a<york>"


def test_types_are_returned() -> None:
    text = "new york, the u.s."
    tokenizer = extended(UNCASED, entities=[("new york", "town", "place"), ("u.s.", "state")])
    words = tokenizer.words(tokenizer(text), text)
    assert [(word.text, word.rung, word.kind) for word in words if word.rung == "entity"] == [
        ("new york", "entity", "place"),
        ("u.s.", "entity", None),
    ]


def test_added_words_of_several() -> None:
    tokenizer = extended(UNCASED, words=["il-6", "big york", "北京"], entities=[("il-6 new", "town")])
    assert rungs(tokenizer, "IL-6 il-60 il-6 new big york 北京市") == [
        ("IL-6", "added", "il-6"),
        ("il", "word", "il"),
        ("-", "word", "-"),
        ("60", "pieces", "6 ##0"),
        ("il-6 new", "entity", "town"),
        ("big york", "added", "big york"),
        ("北京", "added", "北京"),
        ("市", "word", "市"),
    ]


@pytest.mark.parametrize("seed", range(5))
def test_many_phrases_match_like_single_ones(seed: int) -> None:
    source = random.Random(seed)
    made = {tuple(source.choices(range(6), k=source.randint(1, 5))) for _ in range(300)}
    phrases = PhraseMatcher([Phrase(ids, (99,), Mark("entity")) for ids in sorted(made)])
    ids = source.choices(range(7), k=400)
    starts = [source.random() < 0.8 for _ in ids]
    expected, place = [], 0
    while place < len(ids):
        stops = [
            place + len(one)
            for one in made
            if tuple(ids[place : place + len(one)]) == one
            and starts[place]
            and (place + len(one) == len(ids) or starts[place + len(one)])
        ]
        if stops:
            expected.append((place, max(stops)))
        place = max(stops, default=place + 1)
    found = phrases.find(ids, phrases.candidate_starts([ids])[0], starts.__getitem__, lambda *_: None)
    assert [(match.start, match.stop) for match in found] == expected
