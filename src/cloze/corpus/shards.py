"""Prepared text on disk: token ids in one flat file, with the places where sentences and documents begin.

    manifest.json  vocab.txt ...      what it is, and the vocabulary that it was made with
    train/     tokens.bin             ids, one after the other, 16 bits each where the vocabulary allows it
               sentences.npy          where each sentence starts in tokens.bin, and the end
               documents.npy          which sentence each document starts with, and the end
    held_out/  the same               whole documents that training never sees

Files are mapped into memory, not read: opening is instant, and processes share the pages.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloze.errors import DataError
from cloze.files import read_json

MANIFEST = "manifest.json"
FORMAT = 1

Split = str


@dataclass(frozen=True)
class Corpus:
    """One split of a prepared corpus."""

    tokens: NDArray[np.integer[Any]]
    sentences: NDArray[np.int64]  # (S + 1,)
    documents: NDArray[np.int64]  # (D + 1,)
    words: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))  # a bit a token: starts a word

    @classmethod
    def of(cls, documents: Sequence[Sequence[Sequence[int]]], starts: Sequence[bool] | None = None) -> "Corpus":
        """A corpus in memory: documents of sentences of ids; without ``starts``, every token is a word of its own."""
        flat = [sentence for document in documents for sentence in document]
        tokens = np.asarray([token for sentence in flat for token in sentence], dtype=np.int32)
        bits = np.ones(len(tokens), bool) if starts is None else np.asarray(starts, bool)
        return cls(
            tokens,
            np.cumsum([0, *map(len, flat)], dtype=np.int64),
            np.cumsum([0, *map(len, documents)], dtype=np.int64),
            np.packbits(bits, bitorder="little"),
        )

    def read(self, start: int, stop: int) -> NDArray[np.integer[Any]]:
        """The ids of a range of tokens."""
        return self.tokens[start:stop]

    def word_starts(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Whether each token of a range is the first of a word."""
        first = start // 8
        bits = np.unpackbits(self.words[first : -(-stop // 8)], bitorder="little")
        return bits[start - 8 * first : stop - 8 * first].astype(bool)

    @property
    def document_count(self) -> int:
        """How many documents there are."""
        return len(self.documents) - 1

    @classmethod
    def open(cls, folder: Path, split: Split = "train") -> "Corpus":
        """Map a split into memory, after checking that it is what its manifest says."""
        manifest = read_manifest(folder)
        try:
            facts = manifest["splits"][split]
            place = folder / split
            dtype = np.dtype(str(manifest["dtype"]))
            empty = facts["tokens"] == 0  # an empty file cannot be mapped
            tokens = np.zeros(0, dtype) if empty else np.memmap(place / "tokens.bin", dtype=dtype, mode="r")
            corpus = cls(tokens, np.load(place / "sentences.npy"), np.load(place / "documents.npy"))
            whole = corpus.matches(facts)
        except (OSError, EOFError, LookupError, TypeError, ValueError) as error:
            raise DataError(f"{folder}: the {split} part is damaged ({error}); prepare the text again") from error
        if not whole:
            raise DataError(f"{folder}: the {split} part does not match its manifest; prepare the text again")
        return corpus

    def matches(self, facts: dict[str, int]) -> bool:
        """Whether sizes are the recorded ones and the offsets lead nowhere outside."""
        return (
            self.sentences.ndim == self.documents.ndim == 1
            and self.sentences[0] == self.documents[0] == 0
            and len(self.tokens) == facts["tokens"] == self.sentences[-1]
            and len(self.sentences) - 1 == facts["sentences"] == self.documents[-1]
            and self.document_count == facts["documents"]
            and bool((np.diff(self.sentences) > 0).all())
            and bool((np.diff(self.documents) > 0).all())
        )


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a prepared corpus says of itself."""
    if not (folder / MANIFEST).is_file():
        raise DataError(f"{folder}: not a prepared corpus (no {MANIFEST}); make one with 'cloze prepare'")
    manifest = read_json(folder / MANIFEST, DataError)
    if manifest.get("format") != FORMAT:
        raise DataError(
            f"{folder}: prepared in format {manifest.get('format')}, but {FORMAT} is read; prepare it again"
        )
    return manifest
