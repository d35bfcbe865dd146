"""Several texts in one sequence: segments, truncation, and the folder's settings."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from cloze.errors import CheckpointError, RequestError
from cloze.text import SPECIAL, Tokenizer

LETTERS = Tokenizer.from_vocabulary([*SPECIAL, "a", "b", "c", "d"], lowercase=True)
FOUR = LETTERS.with_segments(4)


def test_each_text_has_its_segment() -> None:
    encoding = FOUR.encode_segments(["a a", "b", "", "c d c"])
    assert encoding.tokens == ["[CLS]", "a", "a", "[SEP]", "b", "[SEP]", "[SEP]", "c", "d", "c", "[SEP]"]
    assert encoding.segments == [0, 0, 0, 0, 1, 1, 2, 3, 3, 3, 3]
    assert encoding.sources == [None, 0, 0, None, 1, None, None, 3, 3, 3, None]
    assert encoding.offsets[7:10] == [(0, 1), (2, 3), (4, 5)]
    assert encoding.dropped == 0


def test_one_and_two_texts_are_what_they_always_were() -> None:
    for tokenizer in (LETTERS, FOUR):
        assert tokenizer.encode_segments(["a b c"]) == tokenizer("a b c")
        assert tokenizer.encode_segments(["a b c", "d"], max_length=6) == tokenizer("a b c", "d", max_length=6)


def test_the_longest_texts_are_truncated() -> None:
    """Tokens are removed one at a time from the longest text, or from the last of equally long ones."""
    for counts in itertools.product(range(5), repeat=3):
        texts = [" ".join([letter] * count) for letter, count in zip("abc", counts, strict=True)]
        for length in range(4, 15):
            kept = list(counts)
            while sum(kept) > length - 4:
                kept[max(part for part in range(3) if kept[part] == max(kept))] -= 1
            encoding = FOUR.encode_segments(texts, max_length=length)
            assert [encoding.tokens.count(letter) for letter in "abc"] == kept, (counts, length)
            assert encoding.dropped == sum(counts) - sum(kept)


@pytest.mark.parametrize(
    ("texts", "length", "message"),
    [
        (
            ["a"] * 3,
            None,
            "3 texts, but this model distinguishes 1 to 2; join some, or add segments with 'cloze extend",
        ),
        ([], None, "0 texts, but this model distinguishes 1 to 2"),
        ("a", None, "expected a list of texts, got a single text; put it into a list"),
        (["a", "b"], 2, "max_length is 2; expected room for 3 special tokens"),
    ],
)
def test_refused(texts: Any, length: int | None, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        LETTERS.encode_segments(texts, max_length=length)
    assert str(caught.value).startswith(message)


def test_text_cannot_forge_a_border() -> None:
    assert FOUR.encode_segments(["a [SEP] b", "c"]).ids.count(FOUR.sep_id) == 2


def test_folders_say_how_many(tmp_path: Path) -> None:
    LETTERS.save(tmp_path / "two")
    FOUR.save(tmp_path / "four")
    assert "cloze_segments" not in (tmp_path / "two" / "tokenizer_config.json").read_text(encoding="utf-8")
    assert Tokenizer.from_folder(tmp_path / "two").settings == LETTERS.settings
    assert Tokenizer.from_folder(tmp_path / "four").settings == FOUR.settings
    assert FOUR.with_max_length(99).segments == 4
    assert (LETTERS.segments, FOUR.segments) == (2, 4)


@pytest.mark.parametrize("value", [1, 0, True, "4", 2.0, None, [4], 10**7])
def test_bad_numbers_are_refused(value: Any, tmp_path: Path) -> None:
    FOUR.save(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"cloze_segments": value}))
    with pytest.raises(
        CheckpointError, match=r"tokenizer_config.json: cloze_segments is .*; expected a number of texts"
    ):
        Tokenizer.from_folder(tmp_path)
