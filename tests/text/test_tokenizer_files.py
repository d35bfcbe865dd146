"""Tokenizer folders: which files are read, what is rejected, and compatibility with other libraries."""

import copy
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers

from cloze.errors import CheckpointError
from cloze.text import SPECIAL, Tokenizer, write_vocabulary
from tests.text.generated import strings
from tests.text.passages import CHINESE, ENGLISH, MIXED

PIECES = [*SPECIAL, "the", "The", "##s", "é", "e", "中"]


def write(folder: Path, name: str, content: Any) -> None:
    (folder / name).write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that contains only a vocabulary."""
    write_vocabulary(tmp_path / "vocab.txt", PIECES)
    return tmp_path


@pytest.fixture
def base(tmp_path: Path) -> dict[str, Any]:
    """The content of a valid tokenizer.json."""
    Tokenizer.from_vocabulary(PIECES, lowercase=True).save(tmp_path / "good")
    content: dict[str, Any] = json.loads((tmp_path / "good" / "tokenizer.json").read_text(encoding="utf-8"))
    return content


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("strip_accents", [None, True, False])
@pytest.mark.parametrize("chinese", [True, False])
def test_saved_folders_are_read_alike(
    lowercase: bool,
    strip_accents: bool | None,
    chinese: bool,
    tmp_path: Path,
    uncased: Tokenizer,
    cased: Tokenizer,
) -> None:
    ours = Tokenizer.from_vocabulary(
        (uncased if lowercase else cased).pieces,
        lowercase=lowercase,
        strip_accents=strip_accents,
        chinese=chinese,
        max_length=77,
    )
    ours.save(tmp_path)
    assert Tokenizer.from_folder(tmp_path).settings == ours.settings
    texts = [text for text in strings(300, seed=21) if not any(token in text for token in SPECIAL)]
    expected = ours.encode_ids([*texts, ENGLISH, CHINESE, MIXED])
    for reader in (transformers.AutoTokenizer, transformers.BertTokenizer):
        theirs = reader.from_pretrained(tmp_path)
        assert theirs([*texts, ENGLISH, CHINESE, MIXED], add_special_tokens=False)["input_ids"] == expected
        assert theirs(ENGLISH, truncation=True)["input_ids"] == ours(ENGLISH).ids
        assert theirs.model_max_length == 77
        assert theirs.mask_token_id == ours.mask_id


def test_the_engine_reads_our_file_itself(tmp_path: Path, uncased: Tokenizer) -> None:
    uncased.save(tmp_path)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert theirs.encode(ENGLISH, MIXED).ids == uncased(ENGLISH, MIXED, max_length=9999).ids


def test_published_folder(minilm: Tokenizer, minilm_folder: Path, tmp_path: Path) -> None:
    """The maximum length of sentence-transformers (256) overrides that of tokenizer.json (128)."""
    assert (minilm.max_length, minilm.lowercase) == (256, True)
    assert Tokenizer.from_folder(minilm_folder, positions=64).max_length == 64
    shutil.copy(minilm_folder / "vocab.txt", tmp_path)
    shutil.copy(minilm_folder / "tokenizer_config.json", tmp_path)
    plain = Tokenizer.from_folder(tmp_path)
    assert plain.max_length == 512
    assert plain.pieces == minilm.pieces
    assert plain(MIXED).ids == minilm(MIXED).ids


@pytest.mark.parametrize(
    ("config", "sentence", "positions", "expected"),
    [
        (None, None, None, 512),
        (None, None, 128, 128),
        ({"model_max_length": 1000000000000000019884624838656}, None, None, 512),
        ({"model_max_length": 1e30}, None, 300, 300),
        ({"model_max_length": 64}, None, 128, 64),
        ({"model_max_length": 512}, None, 128, 128),
        ({"model_max_length": 512}, {"max_seq_length": 256}, 512, 256),
        ({"model_max_length": 64}, {"max_seq_length": 256}, None, 256),
        ({"model_max_length": 64}, {"max_seq_length": None}, None, 64),
    ],
)
def test_source_of_the_maximum_length(
    config: Any, sentence: Any, positions: int | None, expected: int, folder: Path
) -> None:
    for name, content in (("tokenizer_config.json", config), ("sentence_bert_config.json", sentence)):
        if content is not None:
            write(folder, name, content)
    assert Tokenizer.from_folder(folder, positions).max_length == expected


def test_source_of_the_casing(folder: Path, base: dict[str, Any]) -> None:
    assert not Tokenizer.from_folder(folder).lowercase  # the vocabulary has capitals
    write_vocabulary(folder / "vocab.txt", [*SPECIAL, "the"])
    assert Tokenizer.from_folder(folder).lowercase
    base["normalizer"]["lowercase"] = False
    write(folder, "tokenizer.json", base)
    assert not Tokenizer.from_folder(folder).lowercase
    write(folder, "tokenizer_config.json", {"do_lower_case": True, "strip_accents": False})
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer("THE É", special=False).tokens == ["the", "é"]
    write(folder, "tokenizer_config.json", {"do_lower_case": False})
    write(folder, "sentence_bert_config.json", {"do_lower_case": True})
    assert Tokenizer.from_folder(folder)("THE É", special=False).tokens == ["the", "é"]


def test_word_length_of_the_file_is_honoured(folder: Path, base: dict[str, Any]) -> None:
    base["model"]["max_input_chars_per_word"] = 3
    write(folder, "tokenizer.json", base)
    assert Tokenizer.from_folder(folder)("the thes", special=False).tokens == ["the", "[UNK]"]


def at(*keys: str, to: Any) -> Callable[[dict[str, Any]], None]:
    """Return a change that sets one entry, or removes it if ``to`` is ``...``."""

    def change(data: dict[str, Any]) -> None:
        for key in keys[:-1]:
            data = data[key]
        if to is ...:
            del data[keys[-1]]
        else:
            data[keys[-1]] = to

    return change


HOSTILE = {
    "no model": (at("model", to=...), "model is missing"),
    "model a list": (at("model", to=[]), "model is missing or not an object"),
    "another model": (at("model", "type", to="BPE"), "model type is 'BPE'"),
    "model type a list": (at("model", "type", to=["WordPiece"]), "only WordPiece"),
    "no vocabulary": (at("model", "vocab", to=...), "vocab is missing"),
    "vocabulary a list": (at("model", "vocab", to=[["a", 0]]), "vocab is missing or not an object"),
    "empty vocabulary": (at("model", "vocab", to={}), "missing; a BERT vocabulary"),
    "huge id": (at("model", "vocab", "the", to=2**31), "has the id 2147483648"),
    "huger id": (at("model", "vocab", "the", to=10**40), "has the id 1000"),
    "negative id": (at("model", "vocab", "the", to=-1), "has the id -1"),
    "fractional id": (at("model", "vocab", "the", to=5.0), "has the id 5.0"),
    "id a string": (at("model", "vocab", "the", to="5"), "has the id 5"),
    "id a boolean": (at("model", "vocab", "the", to=True), "has the id True"),
    "id null": (at("model", "vocab", "the", to=None), "has the id None"),
    "two with one id": (at("model", "vocab", "the", to=6), "have the same id, 6"),
    "a gap": (at("model", "vocab", "the", to=...), "has the id 10; 10 pieces must have ids from 0 to 9"),
    "no mask": (
        at("model", "vocab", to={piece: n for n, piece in enumerate(SPECIAL[:4])}),
        r"\[MASK\] missing",
    ),
    "newline in a piece": (at("model", "vocab", "a\nb", to=11), "is not a piece"),
    "empty piece": (at("model", "vocab", "", to=11), "is not a piece"),
    "surrogate in a piece": (at("model", "vocab", "\ud800", to=11), "not valid Unicode"),
    "unknown token": (at("model", "unk_token", to="<unk>"), "unk_token is '<unk>'"),
    "prefix": (at("model", "continuing_subword_prefix", to="@@"), "continuing_subword_prefix is '@@'"),
    "prefix a number": (at("model", "continuing_subword_prefix", to=7), "continuing_subword_prefix is '7'"),
    "word length zero": (at("model", "max_input_chars_per_word", to=0), "max_input_chars_per_word is 0"),
    "word length huge": (
        at("model", "max_input_chars_per_word", to=2**64),
        "max_input_chars_per_word is 1844",
    ),
    "word length text": (
        at("model", "max_input_chars_per_word", to="100"),
        "max_input_chars_per_word is 100",
    ),
    "no normalizer": (at("normalizer", to=None), "normalizer is missing"),
    "another normalizer": (at("normalizer", to={"type": "NFKC"}), "normalizer is 'NFKC'"),
    "a normalizer with a pattern": (
        at("normalizer", to={"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "b"}),
        "normalizer is 'Replace'",
    ),
    "a precompiled normalizer": (
        at("normalizer", to={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        "normalizer is 'Precompiled'",
    ),
    "normalizer a string": (at("normalizer", to="BertNormalizer"), "normalizer is missing or not an object"),
    "text not cleaned": (at("normalizer", "clean_text", to=False), "clean_text is 'False'"),
    "casing a string": (at("normalizer", "lowercase", to="yes"), "lowercase is 'yes'"),
    "accents a number": (at("normalizer", "strip_accents", to=1), "strip_accents is '1'"),
    "chinese null": (at("normalizer", "handle_chinese_chars", to=None), "handle_chinese_chars is 'None'"),
    "another splitter": (at("pre_tokenizer", to={"type": "ByteLevel"}), "pre_tokenizer is 'ByteLevel'"),
    "no splitter": (at("pre_tokenizer", to=...), "pre_tokenizer is missing"),
    "splitter without a type": (at("pre_tokenizer", to={}), "pre_tokenizer is 'None'"),
    "another processor": (
        at("post_processor", to={"type": "RobertaProcessing"}),
        "post_processor is 'Roberta",
    ),
    "processor a list": (at("post_processor", to=[1]), "post_processor is missing or not an object"),
    "another template": (at("post_processor", "single", to=[]), "the single template"),
    "template a number": (at("post_processor", "pair", to=3), "the pair template"),
    "another decoder": (at("decoder", to={"type": "Metaspace"}), "decoder is 'Metaspace'"),
    "added token beyond": (
        at("added_tokens", to=[{"id": 11, "content": "<x>"}]),
        "added token '<x>' with id 11",
    ),
    "added token elsewhere": (at("added_tokens", to=[{"id": 3, "content": "the"}]), "added token 'the'"),
    "added token a number": (at("added_tokens", to=[7]), "added token 'None'"),
    "added tokens a number": (at("added_tokens", to=7), "added_tokens is a int"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_tokenizer_json(name: str, folder: Path, base: dict[str, Any]) -> None:
    change, message = HOSTILE[name]
    change(base)
    write(folder, "tokenizer.json", base)
    with pytest.raises(CheckpointError, match=message) as caught:
        Tokenizer.from_folder(folder)
    assert "tokenizer.json" in str(caught.value)
    assert len(str(caught.value)) < 400 + len(str(folder))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"\x00" * 100,
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"model": ' + b"9" * 5000 + b"}",
        b" " * 16_000_001,
    ],
    ids=["empty", "open", "list", "null", "bytes", "zeros", "deep lists", "deep objects", "digits", "large"],
)
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "sentence_bert_config.json"])
def test_files_that_are_not_settings(name: str, content: bytes, folder: Path) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{name}: (not JSON|holds a|larger than 16,000,000|model is missing)"):
        Tokenizer.from_folder(folder)


def test_mutations_raise_nothing_else(folder: Path, base: dict[str, Any]) -> None:
    source = random.Random(3)
    good = json.dumps(base, ensure_ascii=False).encode()
    outcomes = set()
    for _ in range(600):
        data = bytearray(good)
        for _ in range(source.randint(1, 3)):
            place = source.randrange(len(data))
            data[place : place + source.randint(0, 4)] = source.randbytes(source.randint(0, 3))
        (folder / "tokenizer.json").write_bytes(data)
        try:
            Tokenizer.from_folder(folder)(MIXED)
            outcomes.add("read")
        except CheckpointError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


def test_defaults_of_old_files(folder: Path, base: dict[str, Any]) -> None:
    """Early files that lack some keys, or have the older BertProcessing template, get the right defaults."""
    old = copy.deepcopy(base)
    for key in ("type", "max_input_chars_per_word", "continuing_subword_prefix"):
        del old["model"][key]
    old["post_processor"] = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
    del old["added_tokens"], old["decoder"], old["truncation"]
    write(folder, "tokenizer.json", old)
    assert Tokenizer.from_folder(folder)("the").tokens == ["[CLS]", "the", "[SEP]"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer_config.json", {"do_lower_case": "no"}, "do_lower_case is no"),
        ("tokenizer_config.json", {"strip_accents": 0}, "strip_accents is 0"),
        ("tokenizer_config.json", {"model_max_length": "512"}, "model_max_length is '512'"),
        ("tokenizer_config.json", {"model_max_length": 2}, "model_max_length is '2'"),
        ("tokenizer_config.json", {"model_max_length": float("nan")}, "model_max_length is 'nan'"),
        ("tokenizer_config.json", {"model_max_length": True}, "model_max_length is 'True'"),
        ("sentence_bert_config.json", {"max_seq_length": [256]}, r"max_seq_length is '\[256\]'"),
        ("sentence_bert_config.json", {"do_lower_case": 1}, "do_lower_case is 1"),
    ],
)
def test_settings_of_the_wrong_kind(name: str, content: Any, message: str, folder: Path) -> None:
    write(folder, name, content)
    with pytest.raises(CheckpointError, match=f"{name}: {message}"):
        Tokenizer.from_folder(folder)


def test_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"neither tokenizer.json nor vocab.txt"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(CheckpointError, match="cannot be read"):
        Tokenizer.from_folder(tmp_path)
