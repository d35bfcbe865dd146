"""Read and write tokenizer settings: ``tokenizer.json``, ``vocab.txt`` and related files of a model folder.

``tokenizer.json`` is the format of the ``tokenizers`` library; BERT uses a narrow subset of it. Files are never passed
to the library itself, which can panic on them and accepts two pieces with the same id. Instead, they are parsed as
plain JSON, every component is checked against an allow-list (any other component would change the ids), and the engine
is rebuilt from the few remaining settings. Any problem with a folder raises ``CheckpointError``.

If files disagree, the precedence is that of ``transformers`` and ``sentence-transformers``: the vocabulary of
``tokenizer.json`` before ``vocab.txt``, the casing of ``tokenizer_config.json`` before ``tokenizer.json``, and the
maximum length of ``sentence_bert_config.json`` before ``tokenizer_config.json``. Truncation settings in
``tokenizer.json`` are ignored.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cloze.errors import CheckpointError
from cloze.models import named_folder
from cloze.text.oov.ladder import LADDER_FILE, Ladder, read_ladder, write_ladder
from cloze.text.vocabulary import (
    CLS,
    CONTINUATION,
    LARGEST_FILE,
    MASK,
    PAD,
    SEP,
    SPECIAL,
    UNKNOWN,
    check_pieces,
    read_vocabulary,
    write_vocabulary,
)

# The files that a tokenizer writes. A folder without other files may be overwritten.
TOKENIZER_FILES = frozenset({"vocab.txt", "tokenizer.json", "tokenizer_config.json", LADDER_FILE})
_VOCABULARY_FILES = ("vocab.txt", "tokenizer.json")
# Files of other tokenizers.
_FOREIGN = ("spm.model", "spiece.model", "sentencepiece.bpe.model", "vocab.json", "bpe_encoder.bin")
_RUN_MODEL = "model"  # the model's folder inside a training run
DEFAULT_LENGTH = 512
DEFAULT_SEGMENTS = 2
_SEGMENTS_KEY = "cloze_segments"
# Larger values mean "no limit": transformers writes 10^30, and no BERT has this many positions.
_NO_LIMIT = 1_000_000
_COMPONENTS = {
    "normalizer": ("BertNormalizer",),
    "pre_tokenizer": ("BertPreTokenizer",),
    "post_processor": ("TemplateProcessing", "BertProcessing"),
    "decoder": ("WordPiece",),
}
# May be missing, because special tokens and decoding are implemented here.
_OPTIONAL = ("post_processor", "decoder")

Json = Mapping[str, Any]


@dataclass(frozen=True)
class TokenizerSettings:
    """Everything that determines the ids of a text.

    Attributes:
        pieces: The vocabulary, in the order of the ids.
        lowercase: Whether texts are lower-cased.
        max_length: Maximum number of tokens of a sequence.
        strip_accents: Whether accents are removed; None means the same as ``lowercase``.
        chinese: Whether every CJK ideograph is a separate word.
        longest_word: Words of more characters become ``[UNK]``.
        ladder: Settings for out-of-vocabulary words.
        segments: Maximum number of texts in a sequence.
    """

    pieces: tuple[str, ...]
    lowercase: bool
    max_length: int = DEFAULT_LENGTH
    strip_accents: bool | None = None
    chinese: bool = True
    longest_word: int = 100
    ladder: Ladder = field(default_factory=Ladder)
    segments: int = DEFAULT_SEGMENTS

    def with_defaults(self) -> "TokenizerSettings":
        """Return these settings with ``strip_accents`` filled in."""
        return replace(self, strip_accents=self.lowercase if self.strip_accents is None else self.strip_accents)


def read_settings(folder: Path, positions: int | None = None) -> TokenizerSettings:
    """Read the tokenizer settings of a folder; ``positions`` (of the model) limits the maximum length."""
    config_path, sentence_path = folder / "tokenizer_config.json", folder / "sentence_bert_config.json"
    config, sentence = _read_json(config_path), _read_json(sentence_path)
    settings = _from_tokenizer_json(folder) or _from_vocabulary(folder)
    settings = replace(
        settings,
        lowercase=_read_flag(config, "do_lower_case", config_path, settings.lowercase),
        strip_accents=_read_flag(config, "strip_accents", config_path, settings.strip_accents),
        chinese=bool(_read_flag(config, "tokenize_chinese_chars", config_path, settings.chinese)),
        max_length=_read_max_length(folder, config, sentence, positions),
        ladder=read_ladder(folder, settings.pieces),
        segments=_read_segments(config, config_path),
    )
    if _read_flag(sentence, "do_lower_case", sentence_path, False) and not settings.lowercase:
        # sentence-transformers lower-cases the text before a cased tokenizer, so accents are kept.
        settings = replace(settings, lowercase=True, strip_accents=bool(settings.strip_accents))
    return settings


def find_vocabulary(path: Path) -> Path:
    """Return the folder with the vocabulary: that of a model known by name, of the model in a run, or the path."""
    folder = named_folder(path) or path
    has_one = any((folder / name).is_file() for name in _VOCABULARY_FILES)
    return folder / _RUN_MODEL if not has_one and (folder / _RUN_MODEL).is_dir() else folder


def write_settings(folder: Path, settings: TokenizerSettings) -> None:
    """Write the three files from which transformers builds the same tokenizer, and ``ladder.json`` if needed."""
    folder.mkdir(parents=True, exist_ok=True)
    write_vocabulary(folder / "vocab.txt", settings.pieces)
    _write_tokenizer_json(
        folder / "tokenizer.json",
        settings.pieces,
        lowercase=settings.lowercase,
        strip_accents=settings.strip_accents,
        chinese=settings.chinese,
        longest_word=settings.longest_word,
    )
    write_ladder(folder, settings.ladder)
    config = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": settings.lowercase,
        "strip_accents": settings.strip_accents,
        "tokenize_chinese_chars": settings.chinese,
        "model_max_length": settings.max_length,
        "pad_token": PAD,
        "unk_token": UNKNOWN,
        "cls_token": CLS,
        "sep_token": SEP,
        "mask_token": MASK,
    }
    if settings.segments != DEFAULT_SEGMENTS:
        config[_SEGMENTS_KEY] = settings.segments
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def _from_tokenizer_json(folder: Path) -> TokenizerSettings | None:
    path = folder / "tokenizer.json"
    data = _read_json(path)
    if data is None:
        return None
    return TokenizerSettings(**_read_tokenizer_json(data, path))


def _from_vocabulary(folder: Path) -> TokenizerSettings:
    path = folder / "vocab.txt"
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder; give a model folder, or one that 'cloze vocab' has written")
    foreign = next((name for name in _FOREIGN if (folder / name).exists()), None)
    if not path.exists() and foreign is not None:
        raise CheckpointError(
            f"{folder}: has {foreign} of a BPE or SentencePiece tokenizer; only WordPiece vocabularies are supported "
            "(vocab.txt or tokenizer.json)"
        )
    if not path.exists():
        raise CheckpointError(
            f"{folder}: contains neither tokenizer.json nor vocab.txt; a model folder needs one of them"
        )
    pieces = tuple(read_vocabulary(path))
    # Early checkpoints specify casing only in their names; capitals in the vocabulary indicate a cased model.
    has_capitals = any(piece.isalpha() and piece != piece.lower() for piece in pieces)
    return TokenizerSettings(pieces=pieces, lowercase=not has_capitals)


def _read_max_length(folder: Path, config: Json | None, sentence: Json | None, positions: int | None) -> int:
    length = _read_token_count(sentence, "max_seq_length", folder / "sentence_bert_config.json")
    if length is None:
        length = _read_token_count(config, "model_max_length", folder / "tokenizer_config.json")
    if length is None:
        length = positions if positions is not None else DEFAULT_LENGTH
    return length if positions is None else min(length, positions)


def _read_token_count(data: Json | None, key: str, path: Path) -> int | None:
    value = None if data is None else data.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 3:
        # [CLS] A [SEP] B [SEP] has three special tokens.
        raise CheckpointError(f"{path}: {key} is {str(value)[:50]!r}; expected a number of tokens, 3 or more")
    return None if value > _NO_LIMIT else int(value)


def _read_segments(config: Json | None, path: Path) -> int:
    value = DEFAULT_SEGMENTS if config is None else config.get(_SEGMENTS_KEY, DEFAULT_SEGMENTS)
    if isinstance(value, bool) or not isinstance(value, int) or not DEFAULT_SEGMENTS <= value <= _NO_LIMIT:
        raise CheckpointError(f"{path}: {_SEGMENTS_KEY} is {str(value)[:50]!r}; expected a number of texts, 2 or more")
    return value


def _read_flag(data: Json | None, key: str, path: Path, default: bool | None) -> Any:
    value = None if data is None else data.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise CheckpointError(f"{path}: {key} is {str(value)[:50]}; expected true or false")
    return value


def _read_json(path: Path) -> Json | None:
    """Read a JSON object from a small file; return None if the file does not exist."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise CheckpointError(f"{path}: larger than {LARGEST_FILE:,} bytes, too large for a tokenizer file")
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:  # bad UTF-8 or JSON, too many digits, nesting too deep
        raise CheckpointError(f"{path}: not JSON ({error})") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: holds a {type(data).__name__}; expected an object with settings")
    return data


def _read_tokenizer_json(data: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the settings in a ``tokenizer.json``: pieces, lowercase, strip_accents, chinese, longest_word."""
    model = _object(data, "model", path)
    # Old files omit the model type.
    if model.get("type", "WordPiece") != "WordPiece":
        raise CheckpointError(f"{path}: model type is {str(model['type'])[:50]!r}; only WordPiece (BERT) is supported")
    for name, types in _COMPONENTS.items():
        if name in _OPTIONAL and data.get(name) is None:
            continue
        component = _object(data, name, path).get("type")
        if component not in types:
            raise CheckpointError(f"{path}: {name} is {str(component)[:50]!r}; BERT has {' or '.join(types)}")
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


def _write_tokenizer_json(
    path: Path,
    pieces: Sequence[str],
    *,
    lowercase: bool,
    strip_accents: bool | None,
    chinese: bool,
    longest_word: int,
) -> None:
    """Write the file in the form of ``tokenizers``, without truncation or padding."""
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
                f"{len(slots):,} pieces must have ids from 0 to {len(slots) - 1}"
            )
        if slots[number] is not None:
            raise CheckpointError(f"{path}: {slots[number]!r} and {piece!r} have the same id, {number}")
        slots[number] = piece
    pieces = tuple(piece for piece in slots if piece is not None)
    check_pieces(pieces, path)
    return pieces


def _check_added(added: Any, pieces: tuple[str, ...], path: Path) -> None:
    """Raise an error if an added token is not in the vocabulary: ignoring it would change the ids of texts."""
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
                "vocabulary; added tokens outside the vocabulary are not supported"
            )


def _check_template(data: Mapping[str, Any], path: Path) -> None:
    """Raise an error for a template other than ``[CLS] A [SEP]`` and ``[CLS] A [SEP] B [SEP]``."""
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
