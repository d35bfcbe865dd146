"""``ladder.json``: written only if there is something to store, restored exactly, and rejected in one line."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as draw

from cloze.errors import CheckpointError
from cloze.text import SPECIAL, Tokenizer
from cloze.text.oov import ladder
from cloze.text.oov.ladder import Entity, Ladder, read_ladder, write_ladder
from tests.text.generated import strings
from tests.text.laddered import extended, rungs

PIECES = [*SPECIAL, "a", "b", "##s", "cat", "covid", "[unused0]"]
PLAIN = Tokenizer.from_vocabulary(PIECES, lowercase=True)
FULL = extended(
    PLAIN,
    words=["sars", "il-6", "New York"],
    entities=[("felis catus", "cat", "animal"), ("κατ", "cat")],
    characters=True,
    similar=[("發", "a"), ("é", "b s")],
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    PLAIN.save(tmp_path / "model")
    return tmp_path / "model"


def refusal(folder: Path, content: Any) -> str:
    """Return the one-line error message for a folder, which starts with the file."""
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    (folder / "ladder.json").write_bytes(raw)
    with pytest.raises(CheckpointError) as caught:
        Tokenizer.from_folder(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < len(str(folder)) + 300
    return message.removeprefix(f"{folder / 'ladder.json'}: ").removeprefix("ladder.json: ")


def test_nothing_is_written_where_nothing_is_on(folder: Path, tmp_path: Path) -> None:
    assert not (folder / "ladder.json").exists()
    assert Tokenizer.from_folder(folder).settings.ladder == Ladder()
    FULL.save(folder)
    assert (folder / "ladder.json").exists()
    PLAIN.save(folder)  # overwrites a folder that had one
    assert Tokenizer.from_folder(folder).settings == PLAIN.settings


def test_round_trip(folder: Path) -> None:
    FULL.save(folder)
    again = Tokenizer.from_folder(folder)
    assert again.settings == FULL.settings
    assert again.is_equivalent(FULL)
    assert not again.is_equivalent(PLAIN)
    text = "SARS felis catus ΚΑΤ il-6 發☃ new york"
    assert rungs(again, text) == rungs(FULL, text)
    assert [rung for _, rung, _ in rungs(again, text)] == [
        "added",
        "entity",
        "entity",
        "added",
        "look-alike",
        "unknown",
        "added",
    ]


def test_file_is_for_people_too(folder: Path) -> None:
    FULL.save(folder)
    lines = (folder / "ladder.json").read_text(encoding="utf-8").splitlines()
    assert '    ["felis catus", "cat", "animal"],' in lines
    assert '    ["發", "a"],' in lines
    assert '    "sars",' in lines


def test_what_is_left_out_is_off(folder: Path) -> None:
    (folder / "ladder.json").write_text('{"format": 1}', encoding="utf-8")
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.settings == PLAIN.settings
    assert tokenizer.encode_batch(strings(50, seed=3)) == PLAIN.encode_batch(strings(50, seed=3))
    (folder / "ladder.json").write_text('{"format": 1, "characters": true}', encoding="utf-8")
    assert Tokenizer.from_folder(folder).settings.ladder == Ladder(characters=True)


FORMAT = {"format": 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", r"^not JSON \(.*\); write it again with 'cloze extend'$"),
        (b"", r"^not JSON"),
        (b"\xff\xfe", r"^not JSON"),
        (b"[" * 200_000, r"^not JSON"),
        (b'{"format": ' + b"9" * 5000 + b"}", r"^not JSON"),
        ([], r"^holds a list; expected an object with the ladder's settings$"),
        ({}, r"^format is 'None'; this version of cloze supports 1$"),
        ({"format": 2}, r"^format is '2'; this version of cloze supports 1$"),
        (FORMAT | {"wrods": []}, r"^'wrods' is not a setting of the ladder; it has \['characters', .*'words'\]$"),
        (FORMAT | {"characters": 1}, r"^characters is '1'; expected true or false$"),
        (FORMAT | {"look_alikes": "no"}, r"^look_alikes is 'no'; expected true or false$"),
        (FORMAT | {"words": "cat"}, r"^words is a str; expected a list$"),
        (FORMAT | {"words": ["cat", 3]}, r"^words, entry 1: 3; expected a string$"),
        (FORMAT | {"words": [" "]}, r"^words, entry 0: \" \"; expected a string$"),
        (FORMAT | {"words": ["\ud800"]}, r"^words, entry 0: \"\\ud800\"; expected a string$"),
        (FORMAT | {"words": ["dog"]}, r"^the added word 'dog' is not in the vocabulary of its folder$"),
        (FORMAT | {"words": ["[UNK]"]}, r"^'\[UNK\]' cannot be an added word; remove it$"),
        (FORMAT | {"words": ["##s"]}, r"^'##s' cannot be an added word; remove it$"),
        (FORMAT | {"similar": [["a"]]}, r"^similar, entry 0: \[\"a\"\]; expected 2 strings$"),
        (FORMAT | {"similar": {"a": "b"}}, r"^similar is a dict; expected a list$"),
        (FORMAT | {"entities": [["x", "cat"], ["x"]]}, r"^entities, entry 1: \[\"x\"\]; expected 2 or 3 strings$"),
        (FORMAT | {"entities": [["x", "cat", ""]]}, r"^entities, entry 0: .*; expected 2 or 3 strings$"),
        (
            FORMAT | {"entities": [["x", "dog"]]},
            r"^the entity 'x' stands for 'dog', which is not in the vocabulary; ",
        ),
        (
            FORMAT | {"entities": [["\u200b", "cat"]]},
            r"^'\\u200b' consists of characters that the tokenizer removes; remove it$",
        ),
    ],
)
def test_hostile_files(folder: Path, content: Any, message: str) -> None:
    assert re.search(message, refusal(folder, content))


def test_sizes_and_kinds_of_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "LARGEST_FILE", 20)
    assert refusal(folder, FORMAT | {"words": []}) == "26 bytes; expected at most 20"
    monkeypatch.undo()
    (folder / "ladder.json").unlink()
    (folder / "ladder.json").mkdir()
    with pytest.raises(CheckpointError, match=r"ladder.json: cannot be read \(Is a directory\)$"):
        Tokenizer.from_folder(folder)


JSON = draw.recursive(
    draw.none()
    | draw.booleans()
    | draw.integers()
    | draw.sampled_from(["cat", "a", "", "☃", "[MASK]", "##s", "\ud800"]),
    lambda inner: draw.lists(inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(
    values=draw.fixed_dictionaries(
        {"format": draw.just(1)}, optional=dict.fromkeys(sorted(ladder._KEYS - {"format"}), JSON)
    )
)
def test_whatever_it_holds_it_is_read_or_refused(
    values: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("drawn")
    PLAIN.save(folder)
    (folder / "ladder.json").write_text(json.dumps(values), encoding="utf-8")
    try:
        tokenizer = Tokenizer.from_folder(folder)
    except CheckpointError:
        return
    text = "cat cats ☃ a☃"
    assert tokenizer.encode_ids([text]) == [tokenizer(text, special=False).ids]


def test_ladder_is_read_with_the_pieces_of_its_folder(tmp_path: Path) -> None:
    write_ladder(tmp_path, Ladder(words=("covid",), entities=(Entity("x", "cat"),)))
    assert read_ladder(tmp_path, PIECES).words == ("covid",)
    with pytest.raises(CheckpointError, match="the added word 'covid'"):
        read_ladder(tmp_path, SPECIAL)
