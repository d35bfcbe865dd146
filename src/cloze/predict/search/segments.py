"""The files of an index: immutable segments, and a manifest that names the current ones.

    index.json                      the manifest: model, settings, segments; replaced atomically
    segments/000001/                documents with their passages
        documents.arrow             id, text, digest and fields of each document
        passages.npy                document, start and end of each passage, (P, 3)
        vectors.npy                 the vectors, scaled to unit length, (P, D)
        graph.usearch               the approximate index, in large segments only
        terms.bin, ...              postings for BM25 (tasks/retrieval/ranking.py)
    segments/000001.deleted-3.npy   rows of deleted documents; the number is that of the generation

Every file is written and flushed before the manifest names it, and the manifest records its size and checksum. Readers
map the files into memory; a file that a writer removes stays readable while it is mapped. A part of an unfinished job
is one Arrow file with documents, passages and vectors.
"""

import itertools
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import google_crc32c
import numpy as np
import pyarrow as arrow
from numpy.typing import NDArray

from cloze.errors import DataError
from cloze.files import flush, flush_tree, plain_name, read_json, replaced_file
from cloze.tasks.retrieval.ranking import Postings, PostingsWriter

Floats = NDArray[np.float32]
MANIFEST, SEGMENTS, FORMAT = "index.json", "segments", 1
DOCUMENTS, PASSAGES, VECTORS, GRAPH = "documents.arrow", "passages.npy", "vectors.npy", "graph.usearch"
# Segments with fewer passages are searched exactly, which takes a few milliseconds and needs no graph.
EXACT_BELOW = 50_000
# HNSW: edges per node, and candidates during construction and search; docs/experiments/65-index-choices.md.
CONNECTIVITY, BUILD_WIDTH, SEARCH_WIDTH = 16, 128, 128
FIELD = "field."  # prefix of the columns of user fields
_ARROW = {"bool": arrow.bool_(), "int": arrow.int64(), "float": arrow.float64(), "text": arrow.large_string()}
_BLOCK = 2**22
_DOCUMENTS_AT_ONCE = 4096
# Segments without a graph are merged from this number on, and a segment with this share of deleted documents.
_MOST_SMALL, _MOST_DELETED = 8, 0.3
_BROKEN = (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, arrow.ArrowException)


@dataclass(frozen=True)
class Rows:
    """Documents with their passages and vectors, in memory or mapped."""

    documents: Any  # an Arrow table
    passages: NDArray[np.int64]  # (P, 3): row of the document, start, end
    vectors: Floats  # (P, D)


def documents_schema(kinds: Mapping[str, str]) -> Any:
    """Return the Arrow schema of documents whose fields have these types."""
    columns = [("id", arrow.large_string()), ("text", arrow.large_string()), ("digest", arrow.int64())]
    return arrow.schema([*columns, *((FIELD + name, _ARROW[kind or "text"]) for name, kind in kinds.items())])


def kind_of_column(schema: Any, name: str) -> str:
    """Return the type of a column as the manifest calls it."""
    return next(kind for kind, stored in _ARROW.items() if stored == schema.field(name).type)


def write_part(path: Path, rows: Rows) -> None:
    """Write the file of one part, atomically."""
    counts = np.bincount(rows.passages[:, 0], minlength=len(rows.documents))
    ends = np.cumsum([0, *counts])
    spans = arrow.ListArray.from_arrays(2 * ends, arrow.array(rows.passages[:, 1:].reshape(-1)))
    width = rows.vectors.shape[1] * 4
    content = arrow.py_buffer(np.ascontiguousarray(rows.vectors, np.float32))
    offsets = arrow.py_buffer((width * ends).astype(np.int64))
    vectors = arrow.LargeBinaryArray.from_buffers(arrow.large_binary(), len(counts), [None, offsets, content])
    table = rows.documents.append_column("spans", spans).append_column("vectors", vectors)
    with replaced_file(path) as temporary, arrow.ipc.new_file(str(temporary), table.schema) as writer:
        writer.write_table(table)


def read_part(path: Path, width: int) -> Rows:
    """Map the file of a part."""
    with _damage(path):
        table = arrow.ipc.open_file(arrow.memory_map(str(path))).read_all().combine_chunks()
        spans, vectors = (table.column(name).combine_chunks() for name in ("spans", "vectors"))
        places = np.asarray(spans.flatten()).reshape(-1, 2)
        counts = np.diff(np.asarray(spans.offsets)) // 2
        owners = np.repeat(np.arange(len(counts)), counts)
        content = np.frombuffer(vectors.buffers()[2], np.float32, count=len(places) * width).reshape(-1, width)
        return Rows(table.drop_columns(["spans", "vectors"]), np.column_stack([owners, places]), content)


def write_segment(folder: Path, parts: Iterable[Rows], total: int, width: int, exact_below: int) -> dict[str, Any]:
    """Write a segment into an empty folder.

    Args:
        folder: The folder.
        parts: The documents, in parts that are in memory one at a time.
        total: Number of passages of all parts.
        width: Number of dimensions.
        exact_below: Number of passages from which on a graph is built.

    Returns:
        The entry of the segment in the manifest.
    """
    vectors = np.lib.format.open_memmap(folder / VECTORS, mode="w+", dtype=np.float32, shape=(total, width))
    postings, passages, rows, writer = PostingsWriter(), [np.zeros((0, 3), np.int64)], 0, None
    done = 0
    for part in parts:
        writer = writer or arrow.ipc.new_file(str(folder / DOCUMENTS), part.documents.schema)
        writer.write_table(part.documents)
        texts = part.documents.column("text").to_pylist()
        postings.add(texts[row][start:end] for row, start, end in part.passages.tolist())
        vectors[done : done + len(part.vectors)] = part.vectors
        passages.append(part.passages + np.array([rows, 0, 0]))
        rows, done = rows + len(texts), done + len(part.vectors)
    assert writer is not None, "a segment has documents"
    writer.close()
    vectors.flush()
    np.save(folder / PASSAGES, np.concatenate(passages))
    postings.write(folder)
    if total >= exact_below:
        build_graph(vectors, folder / GRAPH)
    flush_tree(folder)
    files = {path.name: [path.stat().st_size, checksum(path)] for path in sorted(folder.iterdir())}
    return {"name": folder.name, "documents": rows, "passages": total, "deleted": None, "files": files}


def build_graph(vectors: Floats, path: Path) -> None:
    """Build and save the approximate index of vectors of unit length, in bfloat16; candidates are scored again."""
    from torch import get_num_threads
    from usearch.index import Index

    graph = Index(
        ndim=vectors.shape[1],
        metric="ip",
        dtype="bf16",
        connectivity=CONNECTIVITY,
        expansion_add=BUILD_WIDTH,
        enable_key_lookups=False,
    )
    for start in range(0, len(vectors), _BLOCK // 64):
        block = np.ascontiguousarray(vectors[start : start + _BLOCK // 64])
        graph.add(np.arange(start, start + len(block)), block, threads=get_num_threads())
    graph.save(str(path))


def checksum(path: Path) -> int:
    """Return the CRC-32C of a file."""
    value = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            value = google_crc32c.extend(value, block)
    return value


class _damage:  # noqa: N801 (a context manager, used like a function)
    """Convert an error of reading an index file to one line that names it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: object) -> None:
        if isinstance(error, _BROKEN) and not isinstance(error, FileNotFoundError):
            reason = str(error).splitlines()[0][:100] if str(error) else type(error).__name__
            raise damaged(self._path, reason) from error


def damaged(path: Path, reason: str) -> DataError:
    """Return the error for a file of an index that cannot be read."""
    return DataError(f"{path}: damaged or truncated ({reason}); restore it from a copy, or build the index again")


@dataclass(eq=False)
class Segment:
    """A mapped segment, and which of its documents are deleted."""

    folder: Path
    entry: Mapping[str, Any]
    passages: NDArray[np.int64]
    vectors: Floats
    documents: Any
    postings: Postings
    alive: NDArray[np.bool_] | None  # by document; None if nothing is deleted
    _graph: Any = field(default=None, repr=False)

    @classmethod
    def open(cls, root: Path, entry: Mapping[str, Any]) -> "Segment":
        """Map the files of a segment, after checking their sizes."""
        name = plain_name(entry.get("name"), root / MANIFEST)
        folder = root / SEGMENTS / name
        for file, (size, _) in entry["files"].items():
            path = folder / plain_name(file, root / MANIFEST)
            actual = path.stat().st_size
            if actual != size:
                raise damaged(path, f"{actual} bytes, expected {size}")
        with _damage(folder):
            passages, vectors = (np.load(folder / file, mmap_mode="r") for file in (PASSAGES, VECTORS))
            documents = arrow.ipc.open_file(arrow.memory_map(str(folder / DOCUMENTS))).read_all()
            segment = cls(folder, entry, passages, vectors, documents, Postings(folder), None)
            segment.alive = segment._read_deleted(root)
            if not len(passages) == len(vectors) == entry["passages"] == len(segment.postings.lengths):
                raise ValueError("its files have different numbers of passages")
        return segment

    def _read_deleted(self, root: Path) -> NDArray[np.bool_] | None:
        name = self.entry["deleted"]
        if name is None:
            return None
        alive = np.ones(len(self.documents), bool)
        alive[np.load(root / SEGMENTS / plain_name(name, root / MANIFEST))] = False
        return alive

    @property
    def graph(self) -> Any:
        """The approximate index; None in a small segment."""
        if self._graph is None and GRAPH in self.entry["files"]:
            from usearch.index import Index

            path = self.folder / GRAPH
            # The library reads the file without checks, so a damaged one could crash the process.
            if checksum(path) != self.entry["files"][GRAPH][1]:
                raise damaged(path, "wrong checksum")
            self._graph = Index.restore(str(path), view=True)
            self._graph.expansion_search = SEARCH_WIDTH
        return self._graph

    @cached_property
    def ids(self) -> list[str]:
        """The id of each document."""
        return cast("list[str]", self.documents.column("id").to_pylist())

    @property
    def deleted(self) -> int:
        """The number of deleted documents."""
        return 0 if self.alive is None else int(len(self.alive) - self.alive.sum())

    def check(self) -> None:
        """Compare the checksum of every file, so that damage is not copied into another segment."""
        for file, (_, expected) in self.entry["files"].items():
            if checksum(self.folder / file) != expected:
                raise damaged(self.folder / file, "wrong checksum")

    def live_passages(self) -> NDArray[np.bool_] | None:
        """Return which passages belong to documents that are not deleted; None for all."""
        return None if self.alive is None else self.alive[self.passages[:, 0]]

    def live_parts(self, schema: Any) -> Iterator[Rows]:
        """Yield the documents that are not deleted, with the columns and types of a schema."""
        owners = np.asarray(self.passages[:, 0])
        for first in range(0, len(self.documents), _DOCUMENTS_AT_ONCE):
            table = self.documents.slice(first, _DOCUMENTS_AT_ONCE)
            keep = np.ones(len(table), bool) if self.alive is None else self.alive[first : first + len(table)]
            if not keep.any():
                continue
            start, stop = np.searchsorted(owners, [first, first + len(table)])
            own = owners[start:stop] - first
            chosen = keep[own]
            passages = np.array(self.passages[start:stop][chosen])
            passages[:, 0] = (np.cumsum(keep) - 1)[own[chosen]]
            columns = [_cast_column(table, name, schema) for name in schema.names]
            rows = arrow.Table.from_arrays(columns, schema=schema).filter(arrow.array(keep))
            yield Rows(rows.combine_chunks(), passages, np.array(self.vectors[start:stop][chosen]))


def _cast_column(table: Any, name: str, schema: Any) -> Any:
    kind = schema.field(name).type
    if name not in table.column_names:
        return arrow.nulls(len(table), kind)
    column = table.column(name)
    if column.type == kind:
        return column
    if arrow.types.is_large_string(kind):
        return arrow.chunked_array([arrow.array([None if v is None else str(v) for v in column.to_pylist()], kind)])
    return column.cast(kind)


def read_manifest(root: Path) -> dict[str, Any]:
    """Read the manifest of an index.

    Raises:
        DataError: There is no index, it is damaged, or a later version of cloze has written it.
    """
    path = root / MANIFEST
    if not path.is_file():
        reason = "is not an index (it has no index.json)" if root.is_dir() else "no such index"
        raise DataError(f"{root}: {reason}; build one with cloze index FILES --out {root}")
    manifest = read_json(path, DataError, 2**28)
    if manifest.get("format") != FORMAT:
        raise DataError(f"{path}: format {manifest.get('format')!r:.20}, but this version reads {FORMAT}; update cloze")
    missing = [name for name in ("generation", "model", "settings", "kinds", "segments") if name not in manifest]
    if missing or not isinstance(manifest["segments"], list):
        raise damaged(path, f"no {', '.join(missing) or 'list of segments'}")
    return manifest


def open_segments(root: Path, manifest: Mapping[str, Any]) -> list[Segment]:
    """Map all segments of a manifest."""
    with _damage(root / MANIFEST):
        return [Segment.open(root, entry) for entry in manifest["segments"]]


def remove_others(root: Path, manifest: Mapping[str, Any]) -> None:
    """Remove what the manifest does not name: the work of a killed writer, and segments that were merged."""
    known = {entry["name"] for entry in manifest["segments"]} | {entry["deleted"] for entry in manifest["segments"]}
    for path in list((root / SEGMENTS).iterdir()):
        if path.name not in known:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def chained(segments: Sequence[Segment], schema: Any) -> Iterator[Rows]:
    """Yield the live documents of several segments."""
    return itertools.chain.from_iterable(segment.live_parts(schema) for segment in segments)


def known_documents(segments: Sequence[Segment]) -> dict[str, tuple[int, int, int]]:
    """Return segment, row and digest of each document by its id."""
    known = {}
    for number, segment in enumerate(segments):
        digests = segment.documents.column("digest").to_pylist()
        for row, (name, digest) in enumerate(zip(segment.ids, digests, strict=True)):
            if segment.alive is None or segment.alive[row]:
                known[name] = number, row, digest
    return known


def delete_documents(
    segments: Sequence[Segment], gone: Mapping[str, tuple[int, int, int]], generation: int
) -> list[dict[str, Any]]:
    """Write the rows of deleted documents to new files; return the entries of the segments with these files."""
    rows: dict[int, list[int]] = {}
    for number, row, _ in gone.values():
        rows.setdefault(number, []).append(row)
    entries = []
    for number, segment in enumerate(segments):
        entry = dict(segment.entry)
        if number in rows:
            before = [] if segment.alive is None else np.flatnonzero(~segment.alive).tolist()
            entry["deleted"] = f"{entry['name']}.deleted-{generation}.npy"
            path = segment.folder.parent / entry["deleted"]
            np.save(path, np.array(sorted({*before, *rows[number]}), np.int64))
            flush(path)
        entries.append(entry)
    return entries


def to_merge(segments: Sequence[Segment]) -> list[Segment]:
    """Return the segments to merge: small ones if there are many, and those with many deleted documents."""
    small = [segment for segment in segments if GRAPH not in segment.entry["files"]]
    passages = sum(segment.entry["passages"] for segment in small)
    many = len(small) > 1 and (len(small) > _MOST_SMALL or passages >= EXACT_BELOW)
    return [one for one in segments if one.deleted > _MOST_DELETED * len(one.documents) or (many and one in small)]


def merge(chosen: Sequence[Segment], schema: Any, folder: Path, width: int) -> list[dict[str, Any]]:
    """Write the live documents of segments as one segment; return its entry, or nothing if no document is left."""
    for segment in chosen:
        segment.check()
    masks = [(segment, segment.live_passages()) for segment in chosen]
    total = sum(len(segment.passages) if mask is None else int(mask.sum()) for segment, mask in masks)
    if not total:
        return []
    folder.mkdir()
    return [write_segment(folder, chained(chosen, schema), total, width, EXACT_BELOW)]
