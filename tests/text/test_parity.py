"""Token ids compared with two independent implementations: the plain reference, and transformers."""

from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.text import SPECIAL, Tokenizer, encode_long
from tests.text import reference
from tests.text.generated import BLOCKS, is_settled, strings
from tests.text.passages import CHINESE, ENGLISH, MIXED

PASSAGES = (ENGLISH, CHINESE, MIXED)
ALL = "".join(dict.fromkeys(character for block in BLOCKS.values() for character in block))


def oracle(tokenizer: Tokenizer) -> Any:
    vocabulary = {piece: number for number, piece in enumerate(tokenizer.pieces)}
    return transformers.BertTokenizer(vocab=vocabulary, do_lower_case=tokenizer.lowercase)


def names_special_token(text: str) -> bool:
    return any(token in text for token in SPECIAL)


@pytest.mark.parametrize("name", ["uncased", "cased", "minilm"])
def test_generated_strings(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    ids = {piece: number for number, piece in enumerate(tokenizer.pieces)}
    texts = [*strings(7000, seed=len(name)), *PASSAGES]
    found = tokenizer.encode_ids(texts)
    assert found == [encoding.ids for encoding in tokenizer.encode_batch(texts, special=False, max_length=9999)]
    theirs = oracle(tokenizer)(texts, add_special_tokens=False)["input_ids"]
    known = 0
    for text, ours, others in zip(texts, found, theirs, strict=True):
        assert ours == reference.encode(text, ids, tokenizer.lowercase), text
        assert names_special_token(text) or ours == others, text
        known += sum(number != tokenizer.unknown_id for number in ours)
    # A vocabulary without known words would agree trivially.
    assert known > 0.5 * sum(map(len, found))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(text=st.text(alphabet=st.sampled_from(ALL)) | st.text(alphabet=st.characters()))
def test_any_string(uncased: Tokenizer, text: str) -> None:
    ids = uncased.encode_ids([text])[0]
    assert uncased(text, special=False, max_length=9999).ids == ids
    if all(map(is_settled, text)):
        vocabulary = {piece: number for number, piece in enumerate(uncased.pieces)}
        assert ids == reference.encode(text, vocabulary, lowercase=True)


@pytest.mark.parametrize("text", PASSAGES)
def test_passages_are_spelled(text: str, uncased: Tokenizer) -> None:
    assert uncased.unknown_id not in uncased(text, max_length=9999).ids


def test_pairs_and_segments(minilm: Tokenizer, minilm_folder: Path) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(minilm_folder)(ENGLISH, MIXED, truncation=False)
    ours = minilm(ENGLISH, MIXED, max_length=9999)
    assert ours.ids == theirs["input_ids"]
    assert ours.segments == theirs["token_type_ids"]


@pytest.mark.parametrize("second", ["", " ", "\u200b\t"])
def test_a_second_text_without_tokens_is_none(minilm: Tokenizer, minilm_folder: Path, second: str) -> None:
    """The second [SEP] is omitted if B has no tokens, as in the published code and in transformers for ""."""
    ours = minilm("the cat", second)
    assert ours.tokens == ["[CLS]", "the", "cat", "[SEP]"]
    assert ours == minilm("the cat")
    theirs = transformers.AutoTokenizer.from_pretrained(minilm_folder)("the cat", "")
    assert ours.ids == theirs["input_ids"]
    # The first text gets the space of the second [SEP].
    longer = minilm("the cat sat on the mat", second, max_length=5)
    assert longer == minilm("the cat sat on the mat", max_length=5)
    assert minilm.encode_batch(["the cat", "the cat"], [second, "a"])[0] == ours
    for way in ("head-tail", "windows"):
        assert encode_long(minilm, ["the cat"], [second], way) == [[ours]]


def test_lower_cased_final_sigma_equals_transformers() -> None:
    """A final sigma is not special, as in transformers and models trained with it, unlike in the published code."""
    pieces = [*SPECIAL, "οδος", "οδοσ"]
    tokenizer = Tokenizer.from_vocabulary(pieces, lowercase=True)
    assert reference.basic_tokens("ΟΔΟΣ", lowercase=True) == ["οδος"]
    assert tokenizer("ΟΔΟΣ", special=False).tokens == ["οδοσ"]
    assert oracle(tokenizer).tokenize("ΟΔΟΣ") == ["οδοσ"]
