"""Files of words, entities and similar characters: accepted formats, and errors with line numbers."""

import gzip
import re
from pathlib import Path

import pytest

from cloze.errors import DataError
from cloze.text.oov.extension import read_entities, read_similar_characters, read_word_list
from cloze.text.oov.ladder import Entity

HEADED = b"word\tcount\tpieces\tsaves\ncovid\t9\t3\t18\nsars\t4\t2\t4\n"


def write(folder: Path, content: bytes, name: str = "file.tsv") -> Path:
    (folder / name).write_bytes(content)
    return folder / name


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"covid\nsars", {1: "covid", 2: "sars"}),
        (b"\xef\xbb\xbfcovid\r\n\r\n  new york \r\n", {1: "covid", 3: "new york"}),
        (HEADED, {2: "covid", 3: "sars"}),
        ("北京\n#1\n".encode(), {1: "北京", 2: "#1"}),
        (b"\t5\ncovid\t\n", {2: "covid"}),
        (b"word\n", {1: "word"}),
    ],
)
def test_words(content: bytes, words: dict[int, str], tmp_path: Path) -> None:
    path = write(tmp_path, content)
    assert {row.place: row.word for row in read_word_list(path)} == {f"{path}:{at}": word for at, word in words.items()}


def test_compressed(tmp_path: Path) -> None:
    assert [row.word for row in read_word_list(write(tmp_path, gzip.compress(b"covid\n"), "words.txt.gz"))] == ["covid"]
    rows = read_entities(write(tmp_path, gzip.compress(b'{"surface": "x", "words": "cat"}\n'), "map.jsonl.gz"))
    assert rows[0].entity == Entity("x", "cat")


def test_entities_in_both_forms(tmp_path: Path) -> None:
    expected = [Entity("new york", "city", "place"), Entity("猫", "cat"), Entity("sp ace", "a b")]
    tabbed = "surface\twords\ttype\nnew york\tcity\tplace\n\n猫\tcat\t \n sp ace \t a b\n"
    objects = (
        '{"surface": "new york", "words": "city", "type": "place"}\n'
        '{"surface": "猫", "words": "cat", "type": "  "}\n{"words": " a b", "surface": "sp ace ", "type": null}\n'
    )
    assert [row.entity for row in read_entities(write(tmp_path, tabbed.encode()))] == expected
    rows = read_entities(write(tmp_path, objects.encode(), "map.jsonl"))
    assert [row.entity for row in rows] == expected
    assert [row.place for row in rows] == [f"{tmp_path}/map.jsonl:{line}" for line in (1, 2, 3)]


def test_similar(tmp_path: Path) -> None:
    pairs = read_similar_characters(write(tmp_path, "\ufeff發\t发 髮\r\n\n€\teuro\n".encode()))
    assert pairs == [("發", "发"), ("€", "euro")]


WORDS, ENTITIES, SIMILAR = read_word_list, read_entities, read_similar_characters


@pytest.mark.parametrize(
    ("read", "name", "content", "message"),
    [
        (WORDS, "w.txt", b"\n \n", r"w.txt: contains no words; expected a word per line$"),
        (WORDS, "w.txt", b"word\tcount\n", r"w.txt: contains no words; expected a word per line$"),
        (WORDS, "w.txt", b"", r"w.txt is empty"),
        (WORDS, "w.txt", b"a\n\xff\n", r"w.txt:2: byte 1 \(0xff\) is not UTF-8"),
        (WORDS, "w.txt", b"a\nb\x00\n", r"w.txt:2: a NUL character at byte 2"),
        (ENTITIES, "m.tsv", b"\n", r"m.tsv: contains no entities; expected a surface form, a tab and words per line$"),
        (ENTITIES, "m.tsv", b"surface\twords\n", r"m.tsv: contains no entities"),
        (
            ENTITIES,
            "m.tsv",
            b"x\tcat\nalone\n",
            r"m.tsv:2: 'alone' has 1 fields; expected a surface form, a tab, words ",
        ),
        (ENTITIES, "m.tsv", b"x\t\n", r"m.tsv:1: 'x\\t' has 2 fields; expected"),
        (ENTITIES, "m.tsv", b"\tcat\n", r"m.tsv:1: '\\tcat' has 2 fields; expected"),
        (ENTITIES, "m.tsv", b"a\tb\tc\td\n", r"m.tsv:1: 'a\\tb\\tc\\td' has 4 fields; expected"),
        (ENTITIES, "m.jsonl", b"{\n", r"m.jsonl:1: not JSON \(.*\); expected one JSON object per line$"),
        (ENTITIES, "m.jsonl", b"[" * 100_000, r"m.jsonl:1: not JSON"),
        (ENTITIES, "m.jsonl", b'\n["x"]\n', r"m.jsonl:2: '\[\"x\"\]'; expected {\"surface\": .*the type optional$"),
        (ENTITIES, "m.jsonl", b'{"surface": "x", "word": "y"}', r"m.jsonl:1: .*; expected {"),
        (ENTITIES, "m.jsonl", b'{"surface": "x"}', r"m.jsonl:1: .*; expected {"),
        (ENTITIES, "m.jsonl", b'{"surface": 1, "words": "y"}', r"m.jsonl:1: .*; expected {"),
        (ENTITIES, "m.jsonl", b'{"surface": " ", "words": "y"}', r"m.jsonl:1: .*; expected {"),
        (ENTITIES, "m.jsonl", b'{"surface": "\\ud800", "words": "y"}', r"m.jsonl:1: .*; expected {"),
        (ENTITIES, "m.jsonl", b'{"surface": "x", "words": "y", "type": 3}', r"m.jsonl:1: type is '3'; expected {"),
        (
            ENTITIES,
            "m.jsonl",
            b'{"surface": "x", "words": "y", "type": "\\udfff"}',
            r"m.jsonl:1: type is .*; expected {",
        ),
        (
            SIMILAR,
            "s.tsv",
            b"\n",
            r"s.tsv: contains no characters; expected a character, a tab, and its replacement per ",
        ),
        (
            SIMILAR,
            "s.tsv",
            b"a\tb\nab\tc\n",
            r"s.tsv:2: 'ab\\tc'; expected one character, a tab, and its replacement$",
        ),
        (SIMILAR, "s.tsv", b"a b\n", r"s.tsv:1: 'a b'; expected one character"),
        (SIMILAR, "s.tsv", b"a\t\n", r"s.tsv:1: 'a\\t'; expected one character"),
        (SIMILAR, "s.tsv", b"a\tb\tc\n", r"s.tsv:1: 'a\\tb\\tc'; expected one character"),
    ],
)
def test_complaints(read: object, name: str, content: bytes, message: str, tmp_path: Path) -> None:
    assert callable(read)
    with pytest.raises(DataError) as caught:
        read(write(tmp_path, content, name))
    assert re.search(message, str(caught.value))
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path))


@pytest.mark.parametrize("read", [WORDS, ENTITIES, SIMILAR])
def test_no_file(read: object, tmp_path: Path) -> None:
    assert callable(read)
    with pytest.raises(DataError, match=r"none\.tsv does not exist"):
        read(tmp_path / "none.tsv")
    with pytest.raises(DataError, match="is a folder"):
        read(tmp_path)
