"""All rungs together: what they leave unchanged, the rung of each word, and consistent ids from all methods."""

import pickle
import random
from dataclasses import replace
from itertools import pairwise

import pytest

from cloze.text import SPECIAL, Tokenizer
from cloze.text.boundaries import MAX_WINDOW
from cloze.text.encoding import RUNGS, Encoding, Word
from cloze.text.oov.ladder import Ladder
from tests.text import reference
from tests.text.generated import strings, wild_strings
from tests.text.laddered import drawn_ladder, drawn_text, drawn_tokenizer, extended, plain, resolve, rungs
from tests.text.passages import CHINESE, ENGLISH, MIXED

PIECES = [*SPECIAL, *"abcdefgh", *(f"##{letter}" for letter in "abcdefgh"), "1", "-", "北", "京", "the", "new", "york"]
SMALL = Tokenizer.from_vocabulary([*PIECES, "city", "[unused0]", "[unused1]"], lowercase=True)
ALL = extended(
    SMALL,
    words=["bead", "ab-1", "fade"],
    entities=[("new york", "city", "place"), ("fab cab dad", "city"), ("bead ☃", "the city")],
    characters=True,
    look_alikes=True,
)


def check_offsets(text: str, encoding: Encoding, words: list[Word]) -> None:
    previous = (0, 0)
    for start, end in encoding.offsets:
        assert 0 <= start < end <= len(text), text
        assert (start, end) >= previous, text
        previous = start, end
    assert [word.first for word in words] == sorted({word.first for word in words})
    assert [token for word in words for token in word.tokens] == encoding.tokens
    assert [number for word in words for number in word.ids] == encoding.ids
    assert [word.text for word in words] == [text[word.start : word.end] for word in words]
    assert all(word.end <= after.start for word, after in pairwise(words)), text


@pytest.mark.parametrize("name", ["uncased", "cased"])
def test_unmatched_entries_change_nothing(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    texts = [*strings(400, seed=31), *wild_strings(200, seed=32)]
    expected = tokenizer.encode_batch(texts, max_length=9999)
    assert all(encoding.marks is None for encoding in expected)
    # If the added entries do not occur in any text, every step runs but must not change anything.
    waiting = extended(tokenizer, words=["qqqqzzzz"], entities=[("zzzz qqqq", "a")])
    assert waiting.encode_ids(texts) == tokenizer.encode_ids(texts)
    for old, new in zip(expected, waiting.encode_batch(texts, max_length=9999), strict=True):
        assert replace(new, marks=None) == old


@pytest.mark.parametrize("name", ["uncased", "cased"])
def test_known_words_are_unchanged(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    climbing = extended(tokenizer, characters=True, look_alikes=True)
    texts = strings(500, seed=33)
    known = [encoding.unknown == 0 for encoding in tokenizer.encode_batch(texts)]
    assert 50 < sum(known) < 450
    for text, whole in zip(texts, known, strict=True):
        if whole:
            assert climbing(text) == tokenizer(text)


def test_rungs_have_names_and_numbers() -> None:
    text = "the cafe bead beads ab-1 new york hé🎈 🎈 ｂ-ｈ" + " " + "b" * 101
    assert [(word, rung) for word, rung, _ in rungs(ALL, text)] == [
        ("the", "word"),
        ("cafe", "pieces"),
        ("bead", "added"),
        ("beads", "unknown"),
        ("ab-1", "added"),
        ("new york", "entity"),
        ("hé🎈", "unknown"),
        ("🎈", "unknown"),
        ("ｂ", "look-alike"),
        ("-", "word"),
        ("ｈ", "look-alike"),
        ("b" * 101, "characters"),
    ]
    assert RUNGS == {
        "word": 1,
        "pieces": 1,
        "characters": 2,
        "added": 3,
        "entity": 4,
        "look-alike": 5,
        "unknown": 5,
    }


@pytest.mark.parametrize(
    ("on", "expected"),
    [
        ({}, "[UNK] [UNK] b ##e ##a ##d new york"),
        ({"characters": True}, "a [UNK] [UNK] b ##e ##a ##d new york"),
        ({"words": ["bead"]}, "[UNK] [UNK] bead new york"),
        ({"entities": [("new york", "the city")]}, "[UNK] [UNK] b ##e ##a ##d the city"),
        ({"look_alikes": True}, "[UNK] b b ##e ##a ##d new york"),
    ],
    ids=["none", "characters", "added", "entity", "look-alike"],
)
def test_each_rung_alone(on: dict[str, bool], expected: str) -> None:
    assert " ".join(extended(SMALL, **on)("a☃ ｂ bead new york", special=False).tokens) == expected  # type: ignore[arg-type]


def test_unknown_neighbours_stay_two_words() -> None:
    assert rungs(ALL, "a☃ b☃ ☃☃") == [
        ("a☃", "unknown", "a [UNK]"),
        ("b☃", "unknown", "b [UNK]"),
        ("☃☃", "unknown", "[UNK]"),
    ]
    assert [text for text, _, _ in rungs(ALL, "new york new york")] == ["new york", "new york"]
    # The second word starts with a continuation piece, because its character is known in no other form.
    only = extended(Tokenizer.from_vocabulary([*SPECIAL, "a", "##é"], lowercase=False), characters=True)
    assert rungs(only, "aaaé é éa") == [
        ("aaaé", "characters", "a a a ##é"),
        ("é", "characters", "##é"),
        ("éa", "characters", "##é a"),
    ]


def test_added_words_match_whole_only() -> None:
    assert rungs(ALL, "beaded xbead bead. BEAD") == [
        ("beaded", "pieces", "b ##e ##a ##d ##e ##d"),
        ("xbead", "unknown", "[UNK] ##b ##e ##a ##d"),
        ("bead", "added", "bead"),
        (".", "unknown", "[UNK]"),
        ("BEAD", "added", "bead"),
    ]
    # A greedy match in "bead" would leave a remainder that cannot be spelled.
    narrow = Tokenizer.from_vocabulary([*SPECIAL, "be", "##adx"], lowercase=True)
    assert extended(narrow, words=["bead"])("beadx", special=False).tokens == ["be", "##adx"]


def test_words_long_by_deleted_marks_are_split_as_before() -> None:
    text = "bead" + "\u0301" * 2000 + "ed"
    assert ALL(text, special=False).ids == SMALL(text, special=False).ids == ALL.encode_ids([text])[0]


@pytest.mark.parametrize("characters", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_ladder_is_the_plain_one(seed: int, characters: bool) -> None:
    """The rungs equal the plain implementation, in vocabularies where nearly every word needs them."""
    source = random.Random(seed)
    tokenizer = drawn_ladder(source, drawn_tokenizer(source), characters=characters)
    ladder = tokenizer.settings.ladder
    parts = [*ladder.words, *(entity.surface for entity in ladder.entities), "北京"]
    texts = [drawn_text(source, parts) for _ in range(100)]
    expected = [resolve(text, tokenizer) for text in texts]
    assert tokenizer.encode_ids(texts) == expected
    for text, encoding, ids in zip(texts, tokenizer.encode_batch(texts, special=False), expected, strict=True):
        assert encoding.ids == ids, text
        check_offsets(text, encoding, tokenizer.words(encoding, text))


@pytest.mark.parametrize("seed", range(12))
def test_nothing_matches_inside_a_longer_word(seed: int) -> None:
    """A text without added words, entities and unknown words has unchanged ids."""
    source = random.Random(100 + seed)
    tokenizer = drawn_ladder(source, drawn_tokenizer(source), characters=True)
    before, ladder = plain(tokenizer), tokenizer.settings.ladder
    looked_for = [*ladder.words, *(entity.surface for entity in ladder.entities)]
    firsts = {reference.basic_tokens(one, lowercase=True)[0] for one in looked_for}
    checked = 0
    for _ in range(300):
        text = drawn_text(source, [f"{word}{source.choice('abc')}" for word in looked_for])
        words = reference.basic_tokens(text, lowercase=True)
        old = before(text, special=False)
        if old.unknown or firsts & set(words):
            continue
        checked += bool(words)
        assert replace(tokenizer(text, special=False), marks=None) == old, text
        assert tokenizer.encode_ids([text]) == [old.ids]
    assert checked > 10


@pytest.mark.parametrize("name", ["uncased", "cased"])
def test_two_ways_on_all_kinds_of_text(name: str, request: pytest.FixtureRequest) -> None:
    """Ids alone and ids with offsets are computed by different code and must agree."""
    tokenizer: Tokenizer = request.getfixturevalue(name)
    texts = [*strings(500, seed=41), *wild_strings(400, seed=42), ENGLISH, CHINESE, MIXED]
    seen = [word.text for text in texts for word in tokenizer.words(tokenizer(text), text)]
    source = random.Random(5)
    phrases = [f"{first} {second}" for first, second in pairwise(seen)]
    climbing = extended(
        tokenizer,
        words=[word for word in source.sample(seen, 300) if 1 < len(word) < 100 and word.isalpha()],
        entities=[(phrase, "the") for phrase in source.sample(phrases, 100)],
        characters=True,
        look_alikes=True,
    )
    encodings = climbing.encode_batch(texts, special=False, max_length=9999)
    assert climbing.encode_ids(texts) == [encoding.ids for encoding in encodings]
    found = set()
    for text, encoding in zip(texts, encodings, strict=True):
        words = climbing.words(encoding, text)
        check_offsets(text, encoding, words)
        found |= {word.rung for word in words}
    assert found == set(RUNGS)


def test_batches_equal_single_texts() -> None:
    texts = ["a☃ new york", "bead", "", "ab-1 ☃"]
    for text, encoding in zip(texts, ALL.encode_batch(texts), strict=True):
        alone = ALL(text)
        assert replace(encoding, marks=None) == replace(alone, marks=None)
        assert [mark and mark.rung for mark in encoding.marks or []] == [
            mark and mark.rung for mark in alone.marks or []
        ]


def test_pairs_have_their_own_words() -> None:
    words = ALL.words(ALL("a☃ new york", "☃ bead"), "a☃ new york", "☃ bead")
    assert [(word.source, word.text, word.start, word.rung, word.kind) for word in words] == [
        (0, "a☃", 0, "unknown", None),
        (0, "new york", 3, "entity", "place"),
        (1, "☃", 0, "unknown", None),
        (1, "bead", 2, "added", None),
    ]
    bare = ALL("a☃", "☃", special=False)
    assert [word.text for word in ALL.words(bare, "a☃", "☃")] == ["a☃", "☃"]


def test_truncation_takes_the_marks_along() -> None:
    encoding = ALL("a☃ new york bead", max_length=4)
    assert (encoding.tokens, encoding.dropped) == (["[CLS]", "a", "[UNK]", "[SEP]"], 2)
    assert encoding.marks is not None
    assert [mark and mark.rung for mark in encoding.marks] == [None, "unknown", "unknown", None]
    assert encoding.unknown == 1


def test_blanks_among_rungs() -> None:
    text = "new york[MASK]a☃ bead[MASK]s new [MASK] york"
    encoding = ALL(text, read_mask=True, special=False)
    assert encoding.tokens == ["city", "[MASK]", "a", "[UNK]", "bead", "[MASK]", "[UNK]", "new", "[MASK]", "york"]
    assert [text[start:end] for start, end in encoding.offsets[:3]] == ["new york", "[MASK]", "a"]
    check_offsets(text, encoding, ALL.words(encoding, text))


@pytest.mark.parametrize("unit", ["new york ", "new york a☃ ", "bead beads ", "the new york-", "b" * 101 + " "])
def test_long_texts_are_processed_as_far_as_needed(unit: str) -> None:
    text = unit * (66_000 // len(unit))
    full = ALL.encode_ids([text])[0]
    assert full == ALL.encode_ids([unit])[0] * (66_000 // len(unit))
    for length in (16, 511, 10**6):
        encoding = ALL(text, special=False, max_length=length)
        assert encoding.ids == full[:length]
        assert (encoding.dropped > 0) == (len(full) > length)
        assert encoding.dropped <= max(len(full) - length, 0)
        check_offsets(text, encoding, ALL.words(encoding, text))


@pytest.mark.parametrize("letter", ["a", "☃"])
@pytest.mark.parametrize("phrase", ["new york", "fab cab dad"])
@pytest.mark.parametrize("size", [8192, MAX_WINDOW])
def test_phrases_reach_over_windows(letter: str, phrase: str, size: int) -> None:
    """A phrase is found wherever a window ends: before, inside or after it, and at any maximum length."""
    rest = f"{letter}{' ' * 62}" * (size // 63)
    for place in (size - 12, size - 9, size - 6, size - 4, size - 1, size):
        start = rest.ljust(place)[:place]
        text = f"{start} {phrase} {rest}"
        before, city, after = ALL.encode_ids([start, phrase, rest])
        assert city == [ALL.id("city")]
        assert ALL.encode_ids([text]) == [[*before, *city, *after]]
        for length in (len(before), len(before) + 1):
            assert ALL(text, special=False, max_length=length).ids == [*before, *city][:length]


def test_no_token_is_lost_silently_when_entities_shrink_a_text() -> None:
    """If entities shrink the first windows below the limit, further text is encoded, and no token is lost silently."""
    text = "new york " * 3000
    encoding = ALL(text, special=False, max_length=3000)
    assert (len(encoding.ids), encoding.dropped) == (3000, 0)
    assert ALL(f"{text}a", special=False, max_length=3000).dropped == 1
    assert ALL("new york " * 200_000, special=False, max_length=512).dropped > 0


def test_ladders_travel_to_other_processes() -> None:
    there = pickle.loads(pickle.dumps(ALL))
    assert there.settings == ALL.settings
    assert rungs(there, "a☃ new york beads bead") == rungs(ALL, "a☃ new york beads bead")
    assert there.encode_ids(["beads ☃"]) == ALL.encode_ids(["beads ☃"])


def test_another_limit_keeps_the_ladder() -> None:
    assert ALL.with_max_length(4)("new york").tokens == ["[CLS]", "city", "[SEP]"]
    assert not Ladder()
    assert ALL.settings.ladder
