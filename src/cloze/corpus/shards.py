"""Prepared corpora on disk, accessed as one flat array of token ids regardless of the number of shards.

    manifest.json  vocab.txt ...        settings, vocabulary, and the SHA-256 of every file
    shards/00000/  shard.json           entry of this shard in the manifest
                   train-tokens.bin     token ids, 16 bits each if the vocabulary is small enough, otherwise 32
                   train-words.bin      one bit per token: whether it starts a word
                   train-sentences.bin  token offset of each sentence, and the end; 32 bits each
                   train-documents.bin  index of the first sentence of each document, and the end; 32 bits each
                   held_out-...         the same arrays for held-out documents
    shards/00001/  ...

Token files are memory-mapped, so opening a corpus takes the same time for any size, and processes share the pages.

Dimensions: S sentences, D documents.
"""

import hashlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloze.errors import DataError
from cloze.files import OUR_JSON_LIMIT, plain_name, read_json
from cloze.text import Tokenizer

MANIFEST = "manifest.json"
SHARDS = "shards"
FORMAT = 2
SPLITS = ("train", "held_out")
OFFSETS = np.dtype("<u4")
ARRAYS = ("tokens", "words", "sentences", "documents")
# Each mapped file uses a file descriptor; the limit is often 1024 per process.
_MAX_MAPPED = 200

Split = str
Tokens = NDArray[np.integer[Any]]


class ShardedArray:
    """One array that is stored in several shards and memory-mapped on demand; supports only ``array[start:stop]``."""

    def __init__(self, paths: Sequence[Path], ends: NDArray[np.int64], dtype: np.dtype[Any], *, bits: bool) -> None:
        self.dtype = dtype
        self._paths = paths
        self._bounds: list[int] = [0, *ends.tolist()]  # first token of each shard; a list, because bisect is faster
        self._bits = bits
        self._mapped: OrderedDict[int, NDArray[Any]] = OrderedDict()

    def __len__(self) -> int:
        return self._bounds[-1]

    def __getitem__(self, place: slice) -> NDArray[Any]:
        start, stop, step = place.indices(self._bounds[-1])
        assert step == 1, "only plain ranges can be read"
        if start >= stop:
            return np.zeros(0, self.dtype)
        shard = bisect_right(self._bounds, start) - 1
        if stop <= self._bounds[shard + 1]:
            return self._read(shard, start, stop)
        return np.concatenate(list(self._pieces(shard, start, stop)))

    def _pieces(self, shard: int, start: int, stop: int) -> Iterator[NDArray[Any]]:
        while start < stop:
            end = min(stop, self._bounds[shard + 1])
            yield self._read(shard, start, end)
            start, shard = end, shard + 1

    def _read(self, shard: int, start: int, stop: int) -> NDArray[Any]:
        first, mapped = self._bounds[shard], self._map(shard)
        return unpack_bits(mapped, start - first, stop - first) if self._bits else mapped[start - first : stop - first]

    def _map(self, shard: int) -> NDArray[Any]:
        if shard in self._mapped:
            self._mapped.move_to_end(shard)
            return self._mapped[shard]
        if len(self._mapped) >= _MAX_MAPPED:
            self._mapped.popitem(last=False)
        dtype = np.dtype(np.uint8) if self._bits else self.dtype
        self._mapped[shard] = _open_mapped(self._paths[shard], dtype)
        return self._mapped[shard]


def _open_mapped(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    # A view as a plain array: slicing a memmap creates another memmap, which is ten times slower.
    return np.memmap(path, dtype=dtype, mode="r").view(np.ndarray)


def unpack_bits(bits: NDArray[np.uint8], start: int, stop: int) -> NDArray[np.bool_]:
    """Return the bits in ``[start, stop)`` as booleans."""
    first = start // 8
    unpacked = np.unpackbits(bits[first : -(-stop // 8)], bitorder="little")
    return unpacked[start - 8 * first : stop - 8 * first].astype(bool)


@dataclass(frozen=True)
class Corpus:
    """One split of a prepared corpus."""

    tokens: Tokens | ShardedArray
    sentences: NDArray[np.int64]  # (S + 1,) first token of each sentence, and the end
    documents: NDArray[np.int64]  # (D + 1,) first sentence of each document, and the end
    # Whether each token starts a word: packed bits, or booleans if there are several shards.
    words: NDArray[np.uint8] | ShardedArray = field(default_factory=lambda: np.zeros(0, np.uint8))

    @classmethod
    def from_documents(
        cls, documents: Sequence[Sequence[Sequence[int]]], starts: Sequence[bool] | None = None
    ) -> "Corpus":
        """Build a corpus in memory from documents (lists of sentences of ids); by default, each token is a word."""
        flat = [sentence for document in documents for sentence in document]
        tokens = np.asarray([token for sentence in flat for token in sentence], dtype=np.int32)
        bits = np.ones(len(tokens), bool) if starts is None else np.asarray(starts, bool)
        return cls(
            tokens,
            np.cumsum([0, *map(len, flat)], dtype=np.int64),
            np.cumsum([0, *map(len, documents)], dtype=np.int64),
            np.packbits(bits, bitorder="little"),
        )

    def read(self, start: int, stop: int) -> Tokens:
        """Return the ids of a range of tokens."""
        return self.tokens[start:stop]

    def word_starts(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Return whether each token of a range starts a word."""
        return self.words[start:stop] if isinstance(self.words, ShardedArray) else unpack_bits(self.words, start, stop)

    @property
    def document_count(self) -> int:
        """The number of documents."""
        return len(self.documents) - 1

    @property
    def token_count(self) -> int:
        """The number of tokens."""
        return int(self.sentences[-1])

    @classmethod
    def open(cls, folder: Path, split: Split = "train") -> "Corpus":
        """Check the file sizes of a split against the manifest and memory-map it."""
        folder = Path(folder)
        manifest = read_manifest(folder)
        try:
            facts = [(_shard_folder(folder, shard), shard["splits"][split]) for shard in manifest["shards"]]
            shards = [_Shard.open(place, split, counts, manifest["dtype"]) for place, counts in facts]
            corpus = _concatenate_shards(
                [shard for shard in shards if shard.counts["tokens"]], np.dtype(manifest["dtype"])
            )
            whole = corpus.matches(manifest["splits"][split])
        except (OSError, EOFError, LookupError, TypeError, ValueError) as error:
            raise DataError(f"{folder}: the {split} part is damaged ({error}); prepare the text again") from error
        if not whole:
            raise DataError(f"{folder}: the {split} part does not match its manifest; prepare the text again")
        return corpus

    def matches(self, facts: dict[str, int]) -> bool:
        """Return whether the numbers of tokens, sentences and documents match the manifest."""
        return (
            self.token_count == facts["tokens"] == len(self.tokens)
            and len(self.sentences) - 1 == facts["sentences"] == self.documents[-1]
            and self.document_count == facts["documents"]
        )


@dataclass(frozen=True)
class _Shard:
    """The offsets of one split of a shard, read and checked. For the larger files, only the sizes are checked."""

    folder: Path
    split: Split
    counts: dict[str, int]
    sentences: NDArray[np.uint32]
    documents: NDArray[np.uint32]

    @classmethod
    def open(cls, folder: Path, split: Split, counts: dict[str, int], dtype: str) -> "_Shard":
        empty = np.zeros(1, OFFSETS)
        if not counts["tokens"]:
            return cls(folder, split, counts, empty, empty)
        expected = expected_sizes(counts, np.dtype(dtype))
        for name in ARRAYS:
            path = array_path(folder, split, name)
            if path.stat().st_size != expected[name]:
                raise ValueError(f"{path.name} has {path.stat().st_size} bytes, not {expected[name]}")
        sentences = _read_offsets(array_path(folder, split, "sentences"), counts["tokens"])
        documents = _read_offsets(array_path(folder, split, "documents"), counts["sentences"])
        return cls(folder, split, counts, sentences, documents)


def array_path(folder: Path, split: Split, name: str) -> Path:
    """Return the path of an array of a shard."""
    return folder / f"{split}-{name}.bin"


def expected_sizes(counts: dict[str, int], dtype: np.dtype[Any]) -> dict[str, int]:
    """Return the expected size in bytes of each array of a split."""
    return {
        "tokens": counts["tokens"] * dtype.itemsize,
        "words": -(-counts["tokens"] // 8),
        "sentences": (counts["sentences"] + 1) * OFFSETS.itemsize,
        "documents": (counts["documents"] + 1) * OFFSETS.itemsize,
    }


def _read_offsets(path: Path, end: int) -> NDArray[np.uint32]:
    offsets = np.fromfile(path, OFFSETS)
    if offsets[0] != 0 or offsets[-1] != end or not bool((offsets[1:] > offsets[:-1]).all()):
        raise ValueError(f"{path.name} does not ascend from 0 to {end}")
    return offsets


def _concatenate_shards(shards: Sequence[_Shard], dtype: np.dtype[Any]) -> Corpus:
    sentences = _concatenate_offsets([shard.sentences for shard in shards])
    documents = _concatenate_offsets([shard.documents for shard in shards])
    places = {name: [array_path(shard.folder, shard.split, name) for shard in shards] for name in ("tokens", "words")}
    if not shards:  # an empty file cannot be mapped
        return Corpus(np.zeros(0, dtype), sentences, documents)
    if len(shards) == 1:
        words = _open_mapped(places["words"][0], np.dtype(np.uint8))
        return Corpus(_open_mapped(places["tokens"][0], dtype), sentences, documents, words)
    ends = np.cumsum([shard.counts["tokens"] for shard in shards], dtype=np.int64)
    return Corpus(
        ShardedArray(places["tokens"], ends, dtype, bits=False),
        sentences,
        documents,
        ShardedArray(places["words"], ends, np.dtype(bool), bits=True),
    )


def _concatenate_offsets(offsets: Sequence[NDArray[np.uint32]]) -> NDArray[np.int64]:
    """Concatenate the offsets of several shards, each starting at 0, into one ascending array."""
    joined = np.zeros(1 + sum(len(each) - 1 for each in offsets), np.int64)
    place = 1
    for each in offsets:
        joined[place : place + len(each) - 1] = each[1:]
        joined[place : place + len(each) - 1] += joined[place - 1]
        place += len(each) - 1
    return joined


def _shard_folder(folder: Path, shard: dict[str, Any]) -> Path:
    return folder / SHARDS / plain_name(shard["name"], folder / MANIFEST)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a prepared corpus."""
    if not (folder / MANIFEST).is_file():
        raise DataError(f"{folder}: not a prepared corpus (no {MANIFEST}); create one with 'cloze prepare'")
    manifest = read_json(folder / MANIFEST, DataError, OUR_JSON_LIMIT)
    if manifest.get("format") != FORMAT:
        raise DataError(
            f"{folder}: prepared in format {manifest.get('format')}, but {FORMAT} is supported; prepare it again"
        )
    return manifest


def verify_corpus(folder: Path) -> int:
    """Verify every shard and the vocabulary against the manifest; return the number of verified bytes."""
    folder, size = Path(folder), 0
    manifest = read_manifest(folder)
    if Tokenizer.from_folder(folder).digest != manifest["recipe"]["vocabulary"]:
        raise DataError(
            f"{folder}: its vocabulary differs from the one that the text was prepared with; prepare it again, with "
            f"--fresh"
        )
    for shard in manifest["shards"]:
        for name, recorded in shard["files"].items():
            path = _shard_folder(folder, shard) / plain_name(name, folder / MANIFEST)
            try:
                digest = file_digest(path)
            except OSError as error:
                raise DataError(
                    f"{path}: cannot be read ({error.strerror}); prepare the text again, with --fresh"
                ) from error
            if digest != recorded["sha256"]:
                raise DataError(
                    f"{path}: shard {shard['name']} was damaged after it was written (SHA-256 {digest[:12]}..., but "
                    f"{recorded['sha256'][:12]}... was recorded); prepare the text again, with --fresh"
                )
            size += recorded["bytes"]
    return size


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
