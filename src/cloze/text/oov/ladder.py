"""The out-of-vocabulary ladder: what becomes of a word that the vocabulary does not hold whole.

    1  word, pieces   WordPiece, as BERT has always done (text/wordpiece.py)
    2  characters     a word that would be [UNK] is spelled by what is known of it (text/oov/spelling.py)
    3  added          words with entries of their own, added after training (``cloze extend``)
    4  entity         names that stand for words which the vocabulary knows (text/oov/phrases.py)
    5  look-alike     other forms of the same characters, before giving up (text/oov/spelling.py)
       unknown        [UNK]

Rungs are numbered by what they cost a user, not by the order in which they are tried: what somebody has
said of a word (3, 4) goes before what WordPiece makes of it. All but the first are off unless a model
folder's ``ladder.json`` turns them on, so that training and serving agree, and so that the models of others
read text as they always did. Other libraries ignore the file.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloze.errors import CheckpointError
from cloze.text.characters import replace_surrogates
from cloze.text.vocabulary import CONTINUATION, SPECIAL

FILE = "ladder.json"
FORMAT = 1
# A hundred thousand entities take some ten megabytes.
LARGEST_FILE = 64_000_000
_KEYS = {"format", "characters", "look_alikes", "similar", "words", "entities"}


@dataclass(frozen=True)
class Entity:
    """A name as texts have it, the words that stand for it, and what kind of thing it is."""

    surface: str
    words: str
    kind: str | None = None


@dataclass(frozen=True)
class Ladder:
    """Which rungs are on, and what they know."""

    characters: bool = False
    look_alikes: bool = False
    similar: tuple[tuple[str, str], ...] = ()  # a character and what to read for it, such as the simplified one
    words: tuple[str, ...] = ()  # as they stand in the vocabulary
    entities: tuple[Entity, ...] = ()

    def __bool__(self) -> bool:
        return self != Ladder()


def read_ladder(folder: Path, pieces: Sequence[str]) -> Ladder:
    """Read a folder's ladder; without the file, only the first rung is there."""
    path = folder / FILE
    if not path.exists():
        return Ladder()
    data = _read_object(path)
    if data.get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: format is {str(data.get('format'))[:50]!r}; this version of cloze reads {FORMAT}"
        )
    if unknown := sorted(set(data) - _KEYS):
        raise CheckpointError(f"{path}: {unknown[0][:50]!r} is not a setting of the ladder; it has {sorted(_KEYS)}")
    words = _strings(data, "words", 1, path)
    known = set(pieces)
    if missing := [word for (word,) in words if word not in known]:
        raise CheckpointError(f"{path}: the added word {missing[0][:50]!r} is not in the vocabulary of its folder")
    if wrong := [word for (word,) in words if word in SPECIAL or word.startswith(CONTINUATION)]:
        raise CheckpointError(f"{path}: {wrong[0][:50]!r} is not a word that can have been added; take it out")
    return Ladder(
        characters=_flag(data, "characters", path),
        look_alikes=_flag(data, "look_alikes", path),
        similar=tuple((character, other) for character, other in _strings(data, "similar", 2, path)),
        words=tuple(word for (word,) in words),
        entities=tuple(Entity(*entry) for entry in _strings(data, "entities", 3, path)),
    )


def write_ladder(folder: Path, ladder: Ladder) -> None:
    """Write the ladder, an entry a line; nothing where only the first rung is on."""
    if not ladder:
        (folder / FILE).unlink(missing_ok=True)  # that of a tokenizer which was here before
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
    lines = ",\n".join(f"  {json.dumps(key)}: {_shown(value)}" for key, value in values.items())
    (folder / FILE).write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def _shown(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return json.dumps(value)
    return "[\n" + ",\n".join(f"    {json.dumps(entry, ensure_ascii=False)}" for entry in value) + "\n  ]"


def _read_object(path: Path) -> dict[str, Any]:
    try:
        size = path.stat().st_size
        if size > LARGEST_FILE:
            raise CheckpointError(f"{path}: {size:,} bytes; at most {LARGEST_FILE:,} were expected")
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON ({str(error)[:100]}); write it anew with 'cloze extend'") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: holds a {type(data).__name__}; expected an object with the ladder's settings")
    return data


def _flag(data: dict[str, Any], key: str, path: Path) -> bool:
    value = data.get(key, False)
    if not isinstance(value, bool):
        raise CheckpointError(f"{path}: {key} is {str(value)[:50]!r}; expected true or false")
    return value


def _strings(data: dict[str, Any], key: str, width: int, path: Path) -> list[list[str]]:
    """Read a list of strings, or of lists of two, or of two or three of them; none empty."""
    entries = data.get(key, [])
    if not isinstance(entries, list):
        raise CheckpointError(f"{path}: {key} is a {type(entries).__name__}; expected a list")
    widths = (2, 3) if width == 3 else (width,)
    read: list[list[str]] = []
    for number, entry in enumerate(entries):
        parts = [entry] if width == 1 else entry
        good = isinstance(parts, list) and len(parts) in widths and all(isinstance(part, str) for part in parts)
        if not good or not all(part.strip() and replace_surrogates(part) == part for part in parts):
            raise CheckpointError(
                f"{path}: {key}, entry {number}: {json.dumps(entry)[:80]}; "
                f"expected {'a text' if width == 1 else f'{widths[-1]} texts' if width == 2 else '2 or 3 texts'}"
            )
        read.append(parts)
    return read
