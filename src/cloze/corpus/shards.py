"""Prepared text on disk: token ids in one flat file, with the places where sentences and documents begin.

    manifest.json  vocab.txt ...      what it is, and the vocabulary that it was made with
    train/     tokens.bin             ids, one after the other, 16 bits each where the vocabulary allows it
               sentences.npy          where each sentence starts in tokens.bin, and the end
               documents.npy          which sentence each document starts with, and the end
    held_out/  the same               whole documents that training never sees

Files are mapped into memory, not read: opening is instant, and processes share the pages.
"""

from dataclasses import dataclass
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
