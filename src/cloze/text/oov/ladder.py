"""The out-of-vocabulary ladder: five methods for words that are not in the vocabulary, and their settings file.

    1  word, pieces   WordPiece, as in BERT (text/encoding.py)
    2  characters     a word that would be [UNK] is spelled with known pieces and characters (text/oov/spelling.py)
    3  added          words added to the vocabulary after training (``cloze extend``)
    4  entity         names are replaced with known words (text/oov/resolver.py)
    5  look-alike     unknown characters are replaced with similar known ones (text/oov/spelling.py)
       unknown        [UNK]

Levels are numbered by the effort for the user, not by precedence: added words and entities (3, 4) take precedence over
WordPiece. All levels but the first are off unless ``ladder.json`` in the model folder activates them. Training and
serving therefore agree, and published models tokenize as before. Other libraries ignore the file.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloze.errors import CheckpointError
from cloze.text.characters import replace_surrogates
from cloze.text.vocabulary import CONTINUATION, SPECIAL

LADDER_FILE = "ladder.json"
FORMAT = 1
# A hundred thousand entities take about ten megabytes.
LARGEST_FILE = 64_000_000
_KEYS = {"format", "characters", "look_alikes", "similar", "words", "entities"}


@dataclass(frozen=True)
class Entity:
    """A name: its surface form in texts, the words that replace it, and its type."""

    surface: str
    words: str
    kind: str | None = None


@dataclass(frozen=True)
class Ladder:
    """The active levels and their data."""

    characters: bool = False
    look_alikes: bool = False
    similar: tuple[tuple[str, str], ...] = ()  # a character and its replacement, such as its simplified form
    words: tuple[str, ...] = ()  # as written in the vocabulary
    entities: tuple[Entity, ...] = ()

    def __bool__(self) -> bool:
        return self != Ladder()


def read_ladder(folder: Path, pieces: Sequence[str]) -> Ladder:
    """Read the ladder of a folder; without the file, only the first level is active."""
    path = folder / LADDER_FILE
    if not path.exists():
        return Ladder()
    data = _read_json(path)
    if data.get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: format is {str(data.get('format'))[:50]!r}; this version of cloze supports {FORMAT}"
        )
    if unknown := sorted(set(data) - _KEYS):
        raise CheckpointError(f"{path}: {unknown[0][:50]!r} is not a setting of the ladder; it has {sorted(_KEYS)}")
    words = _read_entries(data, "words", 1, path)
    known = set(pieces)
    if missing := [word for (word,) in words if word not in known]:
        raise CheckpointError(f"{path}: the added word {missing[0][:50]!r} is not in the vocabulary of its folder")
    if wrong := [word for (word,) in words if word in SPECIAL or word.startswith(CONTINUATION)]:
        raise CheckpointError(f"{path}: {wrong[0][:50]!r} cannot be an added word; remove it")
    return Ladder(
        characters=_read_flag(data, "characters", path),
        look_alikes=_read_flag(data, "look_alikes", path),
        similar=tuple((character, other) for character, other in _read_entries(data, "similar", 2, path)),
        words=tuple(word for (word,) in words),
        entities=tuple(Entity(*entry) for entry in _read_entries(data, "entities", 3, path)),
    )


def write_ladder(folder: Path, ladder: Ladder) -> None:
    """Write the ladder, one entry per line; write no file if only the first level is active."""
    if not ladder:
        (folder / LADDER_FILE).unlink(missing_ok=True)  # left over from an earlier tokenizer, if it exists
        return
    entities = [[entity.surface, entity.words, *([entity.kind] if entity.kind else [])] for entity in ladder.entities]
    values: dict[str, Any] = {
        "format": FORMAT,
        "characters": ladder.characters,
        "look_alikes": ladder.look_alikes,
        "similar": [list(pair) for pair in ladder.similar],
        "words": list(ladder.words),
        "entities": entities,
    }
    lines = ",\n".join(f"  {json.dumps(key)}: {_format_value(value)}" for key, value in values.items())
    (folder / LADDER_FILE).write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def _format_value(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return json.dumps(value)
    return "[\n" + ",\n".join(f"    {json.dumps(entry, ensure_ascii=False)}" for entry in value) + "\n  ]"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        size = path.stat().st_size
        if size > LARGEST_FILE:
            raise CheckpointError(f"{path}: {size:,} bytes; expected at most {LARGEST_FILE:,}")
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON ({str(error)[:100]}); write it again with 'cloze extend'") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: holds a {type(data).__name__}; expected an object with the ladder's settings")
    return data


def _read_flag(data: dict[str, Any], key: str, path: Path) -> bool:
    value = data.get(key, False)
    if not isinstance(value, bool):
        raise CheckpointError(f"{path}: {key} is {str(value)[:50]!r}; expected true or false")
    return value


def _read_entries(data: dict[str, Any], key: str, width: int, path: Path) -> list[list[str]]:
    """Read a list of entries of ``width`` non-empty strings; with width 3, the last string is optional."""
    entries = data.get(key, [])
    if not isinstance(entries, list):
        raise CheckpointError(f"{path}: {key} is a {type(entries).__name__}; expected a list")
    widths = (2, 3) if width == 3 else (width,)
    result: list[list[str]] = []
    for number, entry in enumerate(entries):
        parts = [entry] if width == 1 else entry
        is_valid = isinstance(parts, list) and len(parts) in widths and all(isinstance(part, str) for part in parts)
        if not is_valid or not all(part.strip() and replace_surrogates(part) == part for part in parts):
            raise CheckpointError(
                f"{path}: {key}, entry {number}: {json.dumps(entry)[:80]}; "
                f"expected {'a string' if width == 1 else f'{widths[-1]} strings' if width == 2 else '2 or 3 strings'}"
            )
        result.append(parts)
    return result
