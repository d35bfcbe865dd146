"""The file formats of word2vec: a line with both sizes, then one word with its vector per row, as text or binary.

``gensim`` and the original programs of word2vec, GloVe and fastText (``.vec``) read and write them. In the binary form,
a word is followed by a space and its numbers as little-endian float32; word2vec adds a line feed, ``gensim`` does not.
GloVe's text files lack the first line, which is accepted.

Dimensions: V words, H vector size.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from cloze.errors import CheckpointError
from cloze.files import replaced_file

Floats = NDArray[np.float32]
TEXT_SUFFIXES, BINARY_SUFFIX = (".txt", ".vec"), ".bin"
SUFFIXES = (*TEXT_SUFFIXES, BINARY_SUFFIX)
_LONGEST_WORD = 1000  # bytes
_WIDEST = 2**16


def write_word2vec(path: Path, words: Sequence[str], vectors: Floats) -> None:
    """Write vectors, (V, H), atomically: binary if the name ends in ``.bin``, otherwise text.

    Raises:
        CheckpointError: If a word contains whitespace, which separates the fields.
    """
    for word in words:
        if not word or any(character.isspace() for character in word):
            raise CheckpointError(f"{path}: the word {word!r} is empty or contains whitespace, which separates fields")
    with replaced_file(path) as temporary, temporary.open("wb") as file:
        file.write(f"{len(words)} {vectors.shape[1]}\n".encode())
        for word, vector in zip(words, vectors.astype("<f4"), strict=True):
            if path.suffix == BINARY_SUFFIX:
                file.write(f"{word} ".encode() + vector.tobytes())
            else:
                file.write(f"{word} {' '.join(map(str, vector))}\n".encode())


def read_word2vec(path: Path) -> tuple[list[str], Floats]:
    """Read vectors: binary if the name ends in ``.bin``, otherwise text.

    Returns:
        The words, and their vectors (V, H).

    Raises:
        CheckpointError: If the file is damaged; for a text file, with the number of the line.
    """
    try:
        with path.open("rb") as file:
            words, vectors = (_read_binary if path.suffix == BINARY_SUFFIX else _read_text)(path, file)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    if not np.isfinite(vectors).all():
        row = int(np.flatnonzero(~np.isfinite(vectors).all(1))[0])
        raise CheckpointError(f"{path}: the vector of {words[row]!r} is not finite; fetch or write the file again")
    if len(set(words)) < len(words):
        seen: set[str] = set()
        twice = next(word for word in words if word in seen or seen.add(word))  # type: ignore[func-returns-value]
        raise CheckpointError(f"{path}: the word {twice!r} occurs twice; expected one vector per word")
    return words, vectors


def _read_sizes(path: Path, line: bytes) -> tuple[int, int]:
    try:
        count, width = map(int, line.split())
    except ValueError as error:
        raise CheckpointError(
            f"{path}:1: {line[:40]!r}; expected the number of words and the size of the vectors"
        ) from error
    if not (count >= 1 and 1 <= width <= _WIDEST):
        raise CheckpointError(f"{path}:1: {count} words and vectors of size {width}; expected 1 to {_WIDEST} numbers")
    return count, width


def _read_binary(path: Path, file: IO[bytes]) -> tuple[list[str], Floats]:
    count, width = _read_sizes(path, file.readline(_LONGEST_WORD))
    # Checked before any memory is allocated: the sizes are not trusted.
    if count * (4 * width + 2) > path.stat().st_size:
        raise CheckpointError(f"{path}: {count} vectors of size {width} do not fit into the file; fetch it again")
    words, vectors = [], np.empty((count, width), np.float32)
    buffered = file if isinstance(file, io.BufferedReader) else io.BufferedReader(cast("io.RawIOBase", file))
    for row in range(count):
        word = bytearray()
        while (byte := buffered.read(1)) not in (b" ", b""):
            if byte != b"\n":
                word += byte
            if len(word) > _LONGEST_WORD:
                break
        numbers = buffered.read(4 * width)
        if len(numbers) < 4 * width or not word or len(word) > _LONGEST_WORD:
            raise CheckpointError(f"{path}: damaged at word {row + 1} of {count}; fetch or write the file again")
        words.append(_decode(path, bytes(word), row + 1))
        vectors[row] = np.frombuffer(numbers, "<f4")
    return words, vectors


def _read_text(path: Path, file: IO[bytes]) -> tuple[list[str], Floats]:
    first = file.readline()
    has_sizes = len(first.split()) == 2
    count, width = _read_sizes(path, first) if has_sizes else (0, len(first.split()) - 1)
    if width < 1:
        raise CheckpointError(f"{path}:1: {first[:40]!r}; expected a word and its vector, or both sizes")
    words, rows = [], []
    lines = file if has_sizes else [first, *file]
    for number, line in enumerate(lines, start=2 if has_sizes else 1):
        word, *numbers = line.rstrip(b"\n").rstrip(b" ").split(b" ")
        try:
            rows.append(np.array(numbers, np.float32))
        except ValueError as error:
            raise CheckpointError(f"{path}:{number}: not a number in the vector of {word[:40]!r}") from error
        if len(numbers) != width:
            raise CheckpointError(f"{path}:{number}: {len(numbers)} numbers; expected {width}, as in the first line")
        words.append(_decode(path, word, number))
    if has_sizes and len(words) != count:
        raise CheckpointError(f"{path}: {len(words)} words; the first line announces {count}: fetch the file again")
    return words, np.stack(rows)


def _decode(path: Path, word: bytes, number: int) -> str:
    try:
        return word.decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: word {number} is not UTF-8: {word[:40]!r}") from error
