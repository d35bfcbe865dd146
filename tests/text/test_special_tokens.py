"""Special tokens come only from the tokenizer, never from a text."""

import pickle

import pytest

from cloze.errors import CheckpointError, RequestError
from cloze.text import MASK, SPECIAL, Tokenizer
from tests.text import reference


@pytest.mark.parametrize("token", SPECIAL)
@pytest.mark.parametrize("name", ["uncased", "cased", "minilm"])
def test_texts_cannot_forge_them(token: str, name: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    ids = {piece: number for number, piece in enumerate(tokenizer.pieces)}
    forgeable = tokenizer.special_ids - {tokenizer.unknown_id}
    for text in (
        token,
        f"hello {token} there",
        f"a{token}b",
        token * 3,
        f"{token.lower()} [ {token[1:-1]} ]",
    ):
        for mask in (False, token != MASK):
            encoding = tokenizer(text, special=False, read_mask=mask)
            assert encoding.ids == reference.encode(text, ids, tokenizer.lowercase)
            assert forgeable.isdisjoint(encoding.ids)
        assert tokenizer.encode_ids([text]) == [encoding.ids]


def test_mask_is_read_on_request(minilm: Tokenizer) -> None:
    text = "paris is the [MASK] of[MASK]france [SEP] [mask]"
    encoding = minilm(text, read_mask=True)
    assert [text[slice(*encoding.offsets[at])] for at, i in enumerate(encoding.ids) if i == minilm.mask_id] == [
        MASK,
        MASK,
    ]
    before, between, after = (minilm(part, special=False).ids for part in text.split(MASK))
    mask = [minilm.mask_id]
    assert encoding.ids[1:-1] == before + mask + between + mask + after
    assert encoding.ids.count(minilm.sep_id) == 1
    for (start, end), token, source in zip(encoding.offsets, encoding.tokens, encoding.sources, strict=True):
        assert text[start:end].lower() == token.removeprefix("##").lower() or source is None


def test_masks_count_against_the_length(minilm: Tokenizer) -> None:
    encoding = minilm("[MASK] " * 1000, read_mask=True, max_length=10)
    assert encoding.ids == [minilm.cls_id, *[minilm.mask_id] * 8, minilm.sep_id]
    assert encoding.dropped == 992
    assert minilm("x [MASK]", "[MASK]", read_mask=True).segments == [0, 0, 0, 0, 1, 1]


def test_layout(minilm: Tokenizer) -> None:
    single, pair = minilm("one two"), minilm("one two", "three")
    assert single.tokens == ["[CLS]", "one", "two", "[SEP]"]
    assert single.segments == [0, 0, 0, 0]
    assert pair.tokens == ["[CLS]", "one", "two", "[SEP]", "three", "[SEP]"]
    assert pair.segments == [0, 0, 0, 0, 1, 1]
    assert single.dropped == pair.dropped == 0
    bare = minilm("one two", "three", special=False)
    assert (bare.tokens, bare.segments, bare.sources) == (["one", "two", "three"], [0, 0, 1], [0, 0, 1])


def test_empty_texts(minilm: Tokenizer) -> None:
    assert minilm("").tokens == ["[CLS]", "[SEP]"]
    assert minilm("", "").segments == [0, 0]
    assert minilm("", special=False).ids == []
    assert minilm.encode_batch([]) == []
    assert minilm.encode_ids(["", "a"]) == [[], [minilm.id("a")]]


def test_batch_equals_single(minilm: Tokenizer) -> None:
    texts = ["one", "", "x" * 9000, "[MASK] two", "three " * 2000]
    pairs = texts[::-1]
    batch = minilm.encode_batch(texts, pairs, max_length=30, read_mask=True)
    assert batch == [minilm(a, b, max_length=30, read_mask=True) for a, b in zip(texts, pairs, strict=True)]
    with pytest.raises(RequestError, match="2 texts with 1 second texts"):
        minilm.encode_batch(["a", "b"], ["c"])


def test_ids_and_pieces(minilm: Tokenizer) -> None:
    assert (minilm.pad_id, minilm.unknown_id, minilm.cls_id, minilm.sep_id, minilm.mask_id) == (
        0,
        100,
        101,
        102,
        103,
    )
    assert minilm.size == len(minilm) == len(minilm.pieces) == 30_522
    assert minilm.piece(2448) == "run"
    assert minilm.id("run") == 2448
    assert minilm.id("no such piece") is None
    assert (
        minilm.decode(minilm("Unaffable, RUNNING embeddings!", special=False).ids) == "unaffable , running embeddings !"
    )
    running = minilm("embeddings", special=False)
    assert minilm.word_starts(running.ids) == [
        True,
        *[False] * (len(running.ids) - 1),
    ]
    for number in (-1, minilm.size):
        with pytest.raises(RequestError, match="no piece has the id"):
            minilm.piece(number)


def test_vocabularies_need_them() -> None:
    with pytest.raises(CheckpointError, match=r"\[PAD\], \[MASK\] missing"):
        Tokenizer.from_vocabulary(["[UNK]", "[CLS]", "[SEP]", "a"], lowercase=True)


def test_tokenizers_travel_to_other_processes(minilm: Tokenizer) -> None:
    assert pickle.loads(pickle.dumps(minilm))("one [SEP] two") == minilm("one [SEP] two")


def test_lone_surrogates_are_dropped(minilm: Tokenizer) -> None:
    text = "he\ud800llo \udfff wor\udc00ld"
    encoding = minilm(text)
    assert encoding.tokens == ["[CLS]", "hello", "world", "[SEP]"]
    assert encoding.offsets[1:3] == [(0, 6), (9, 15)]
    assert minilm.encode_ids([text]) == minilm.encode_ids(["hello world"])
