"""Vocabulary extension: ids of added words, their initial vectors, and rejected input."""

import pytest

from cloze.errors import DataError
from cloze.text import SPECIAL, Tokenizer
from cloze.text.oov.extension import Additions, EntityRow, Extension, WordRow, extend_tokenizer
from cloze.text.oov.ladder import Entity
from tests.text.laddered import extended, rungs

PIECES = [
    *("[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused7]", "[unused2]"),
    *("co", "##vid", "##s", "run", "new", "york", "city", "town", "-", "19", "a", "##b", "é"),
]
PLAIN = Tokenizer.from_vocabulary(PIECES, lowercase=True)


def learn(tokenizer: Tokenizer, *words: str) -> Extension:
    return extend_tokenizer(
        tokenizer, Additions(words=[WordRow(f"list:{at}", word) for at, word in enumerate(words, 1)])
    )


def entity_rows(*entries: tuple[str, ...]) -> list[EntityRow]:
    return [EntityRow(f"map:{at}", Entity(*entry)) for at, entry in enumerate(entries, 1)]


def ids(*pieces: str, tokenizer: Tokenizer = PLAIN) -> tuple[int, ...]:
    found = [tokenizer.id(piece) for piece in pieces]
    assert None not in found
    return tuple(number for number in found if number is not None)


def test_unused_entries_first() -> None:
    done = learn(PLAIN, "covid", "sars", "run", "Covid", "mers", "ebola", "zika")
    # Unused entries are taken in order of their position; further words follow the last entry.
    assert [done.tokenizer.id(word) for word in ("covid", "sars", "mers", "ebola", "zika")] == [1, 6, 7, 21, 22]
    assert (done.tokenizer.size, done.known) == (23, ("run",))
    assert list(done.added) == [1, 6, 7, 21, 22]
    others = [number for number in range(PLAIN.size) if number not in (1, 6, 7)]
    assert [done.tokenizer.piece(number) for number in others] == [PLAIN.piece(number) for number in others]
    assert done.tokenizer.added_ids == {1, 6, 7, 21, 22}


def test_words_start_from_what_they_were() -> None:
    done = learn(PLAIN, "covid", "covids", "covid-19", "coé", "☃", "a☃b")
    assert list(done.added.values()) == [
        ids("co", "##vid"),
        ids("co", "##vid", "##s"),
        ids("co", "##vid", "-", "19"),
        ids("co"),  # "e" without its accent is not a piece in this vocabulary
        (PLAIN.unknown_id,),
        ids("a", "##b"),
    ]


def test_again_on_what_was_extended() -> None:
    first = learn(PLAIN, "covid", "sars").tokenizer
    done = learn(first, "covid", "covid-19", "long covid")
    assert done.known == ("covid",)
    assert done.added == {7: (1, *ids("-", "19")), 21: (1,)}
    assert done.tokenizer.settings.ladder.words == ("covid", "sars", "covid-19", "long covid")
    assert rungs(done.tokenizer, "Covid covids covid-19 SARS") == [
        ("Covid", "added", "covid"),
        ("covids", "pieces", "co ##vid ##s"),
        ("covid-19", "added", "covid-19"),
        ("SARS", "added", "sars"),
    ]


def test_rungs_stay_on_and_maps_grow() -> None:
    first = extended(PLAIN, entities=[("big apple", "city")], characters=True, similar=[("x", "a"), ("y", "a")])
    second = extended(first, ["covid"], [("gotham", "city", "name")], similar=[("y", "co")])
    ladder = second.settings.ladder
    assert (ladder.characters, ladder.look_alikes, ladder.similar) == (True, True, (("x", "a"), ("y", "co")))
    assert ladder.entities == (Entity("big apple", "city"), Entity("gotham", "city", "name"))


def test_new_entities_take_the_place_of_old_ones_with_their_surface() -> None:
    first = extended(PLAIN, entities=[("new york", "city"), ("☃ Land", "town")])
    second = extended(first, entities=[("New  York", "town"), ("☃ land", "city")])
    assert second.settings.ladder.entities == (Entity("New  York", "town"), Entity("☃ land", "city"))
    assert rungs(second, "new york ☃ land") == [("new york", "entity", "town"), ("☃ land", "entity", "city")]


def test_entities_do_not_read_each_other() -> None:
    first = extended(PLAIN, entities=[("new york", "city"), ("big apple", "city")])
    second = extended(first, entities=[("city", "town"), ("gotham", "new york")])
    assert [entity.surface for entity in second.settings.ladder.entities] == ["new york", "big apple", "city", "gotham"]
    assert rungs(second, "new york, city gotham")[2:] == [("city", "entity", "town"), ("gotham", "entity", "new york")]
    # Two surfaces with the same replacement remain separate entities.
    third = extended(first, entities=[("new york", "town"), ("big apple", "a")])
    assert [entity.words for entity in third.settings.ladder.entities] == ["town", "a"]


def test_entities_may_use_words_that_are_added_with_them() -> None:
    tokenizer = extended(PLAIN, ["zika"], [("zika virus", "zika"), ("zica", "zika")])
    assert rungs(tokenizer, "zika virus zica zika") == [
        ("zika virus", "entity", "zika"),
        ("zica", "entity", "zika"),
        ("zika", "added", "zika"),
    ]


def test_same_entity_twice_is_one() -> None:
    tokenizer = extended(PLAIN, entities=[("new york", "city"), ("NEW york", "city", "place")])
    assert tokenizer.settings.ladder.entities == (Entity("new york", "city"),)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("\u200b", r"^list:2: '\\u200b' consists of characters that the tokenizer removes; use other words$"),
        ("##s", r"^list:2: '##s' begins with ##, like pieces inside a word; use whole words$"),
        ("[MASK]", r"^list:2: '\[MASK\]' is a special or reserved entry; use ordinary words$"),
        ("[unused3]", r"^list:2: '\[unused3\]' is a special or reserved entry"),
        ("[UNUSED3]", r"^list:2: '\[UNUSED3\]' is a special or reserved entry"),
        ("x" * 101, r"^list:2: 'x{50}' has 101 characters; expected at most 100$"),
    ],
)
def test_refused_words(word: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        learn(PLAIN, "good", word)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (
            [("\u200b", "city")],
            r"^map:1: '\\u200b' consists of characters that the tokenizer removes; use another surface",
        ),
        ([("x", "☃")], r"^map:1: '☃' is not in this vocabulary; use known words$"),
        ([("x", "city ☃")], r"^map:1: 'city ☃' is not in this vocabulary"),
        ([("x", "\u200b")], r"^map:1: '\\u200b' is not in this vocabulary"),
        (
            [("New York", "city"), ("a", "b"), ("new york", "town")],
            r"^map:3: 'new york' stands for 'town' here, and for 'city' in map:1; keep one of them$",
        ),
        ([("Snow☃", "city"), ("snow☃", "town")], r"^map:2: 'snow☃' stands for 'town' here, and for 'city' in map:1"),
    ],
)
def test_refused_entities(entries: list[tuple[str, ...]], message: str) -> None:
    pieces = Tokenizer.from_vocabulary([*PIECES, "b"], lowercase=True)
    with pytest.raises(DataError, match=message):
        extend_tokenizer(pieces, Additions(entities=entity_rows(*entries)))


def test_cased_words_keep_their_case() -> None:
    cased = extended(Tokenizer.from_vocabulary([*SPECIAL, "A", "a"], lowercase=False), ["NASA"])
    assert [rung for _, rung, _ in rungs(cased, "NASA nasa")] == ["added", "unknown"]
