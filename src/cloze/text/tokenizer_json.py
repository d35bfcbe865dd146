"""The file ``tokenizer.json``: the engine's own format, of which BERT needs one narrow form.

Read with an allow-list, written by hand: the form is small, and what is not in it would change the ids of a
text.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cloze.errors import CheckpointError
from cloze.text.vocabulary import CLS, CONTINUATION, SEP, SPECIAL, UNKNOWN, check_pieces

_COMPONENTS = {
    "normalizer": ("BertNormalizer",),
    "pre_tokenizer": ("BertPreTokenizer",),
    "post_processor": ("TemplateProcessing", "BertProcessing"),
    "decoder": ("WordPiece",),
}
# Without effect on what we make of the file: special tokens and decoding are our own.
_OPTIONAL = ("post_processor", "decoder")


def read_tokenizer_json(data: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return what a ``tokenizer.json`` sets: pieces, lowercase, strip_accents, chinese, longest_word."""
    model = _object(data, "model", path)
    # Old files leave the type of the model out.
    if model.get("type", "WordPiece") != "WordPiece":
        raise CheckpointError(f"{path}: model type is {str(model['type'])[:50]!r}; only WordPiece (BERT) can be read")
    for name, types in _COMPONENTS.items():
        if name in _OPTIONAL and data.get(name) is None:
            continue
        found = _object(data, name, path).get("type")
        if found not in types:
            raise CheckpointError(f"{path}: {name} is {str(found)[:50]!r}; BERT has {' or '.join(types)}")
    _expect(model, "unk_token", UNKNOWN, path)
    _expect(model, "continuing_subword_prefix", CONTINUATION, path)
    normalizer = _object(data, "normalizer", path)
    _expect(normalizer, "clean_text", True, path)
    pieces = _read_pieces(model, path)
    _check_added(data.get("added_tokens"), pieces, path)
    _check_template(data, path)
    strip = normalizer.get("strip_accents")
    return {
        "pieces": pieces,
        "lowercase": _boolean(normalizer, "lowercase", path),
        "strip_accents": None if strip is None else _boolean(normalizer, "strip_accents", path),
        "chinese": _boolean(normalizer, "handle_chinese_chars", path),
        "longest_word": _read_longest_word(model, path),
    }


def write_tokenizer_json(
    path: Path,
    pieces: Sequence[str],
    *,
    lowercase: bool,
    strip_accents: bool | None,
    chinese: bool,
    longest_word: int,
) -> None:
    """Write the file as the engine would, without truncation or padding: those are the caller's."""
    ids = {piece: number for number, piece in enumerate(pieces)}
    data = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(ids[piece], piece) for piece in sorted(SPECIAL, key=ids.__getitem__)],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": chinese,
            "strip_accents": strip_accents,
            "lowercase": lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": _template(ids),
        "decoder": {"type": "WordPiece", "prefix": CONTINUATION, "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": UNKNOWN,
            "continuing_subword_prefix": CONTINUATION,
            "max_input_chars_per_word": longest_word,
            "vocab": ids,
        },
    }
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _added_token(number: int, piece: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": piece, **flags, "special": True}


def _template(ids: Mapping[str, int]) -> dict[str, Any]:
    def special(piece: str, segment: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": piece, "type_id": segment}}

    def sequence(name: str, segment: int) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": segment}}

    single = [special(CLS, 0), sequence("A", 0), special(SEP, 0)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, sequence("B", 1), special(SEP, 1)],
        "special_tokens": {piece: {"id": piece, "ids": [ids[piece]], "tokens": [piece]} for piece in (CLS, SEP)},
    }


def _read_pieces(model: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    vocabulary = _object(model, "vocab", path)
    slots: list[str | None] = [None] * len(vocabulary)
    for piece, number in vocabulary.items():
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(slots):
            raise CheckpointError(
                f"{path}: {piece[:50]!r} has the id {str(number)[:50]}; "
                f"{len(slots):,} pieces have 0 to {len(slots) - 1}"
            )
        if slots[number] is not None:
            raise CheckpointError(f"{path}: {slots[number]!r} and {piece!r} have the same id, {number}")
        slots[number] = piece
    pieces = tuple(piece for piece in slots if piece is not None)
    check_pieces(pieces, path)
    return pieces


def _check_added(added: Any, pieces: tuple[str, ...], path: Path) -> None:
    """Refuse added tokens that the vocabulary lacks: without them a text would get other ids."""
    if added is None:
        return
    if not isinstance(added, list):
        raise CheckpointError(f"{path}: added_tokens is a {type(added).__name__}; expected a list")
    for token in added:
        content, number = (token.get("content"), token.get("id")) if isinstance(token, dict) else (None, None)
        is_known = isinstance(number, int) and 0 <= number < len(pieces) and pieces[number] == content
        if not is_known:
            raise CheckpointError(
                f"{path}: the added token {str(content)[:50]!r} with id {str(number)[:50]} is not in the "
                "vocabulary; tokens added beside it are not supported"
            )


def _check_template(data: Mapping[str, Any], path: Path) -> None:
    """Refuse a template other than ``[CLS] A [SEP]``, ``[CLS] A [SEP] B [SEP]``: we write no other."""
    processor = data.get("post_processor")
    if not isinstance(processor, dict) or processor["type"] != "TemplateProcessing":
        return
    expected = _template(dict.fromkeys(SPECIAL, 0))
    for name in ("single", "pair"):
        if processor.get(name) != expected[name]:
            raise CheckpointError(
                f"{path}: the {name} template of post_processor is not BERT's [CLS] A [SEP] (B [SEP])"
            )


def _read_longest_word(model: Mapping[str, Any], path: Path) -> int:
    value = model.get("max_input_chars_per_word", 100)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10_000:
        raise CheckpointError(f"{path}: max_input_chars_per_word is {str(value)[:50]}; expected 1 to 10,000")
    return value


def _object(data: Mapping[str, Any], key: str, path: Path) -> Mapping[str, Any]:
    value = data.get(key)
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: {key} is missing or not an object; this is not a BERT tokenizer")
    return value


def _expect(data: Mapping[str, Any], key: str, expected: Any, path: Path) -> None:
    value = data.get(key, expected)
    if type(value) is not type(expected) or value != expected:
        raise CheckpointError(f"{path}: {key} is {str(value)[:50]!r}; BERT has {expected!r}")


def _boolean(data: Mapping[str, Any], key: str, path: Path) -> bool:
    value = data.get(key, True)
    if not isinstance(value, bool):
        raise CheckpointError(f"{path}: {key} is {str(value)[:50]!r}; expected true or false")
    return value
