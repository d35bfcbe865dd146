"""Build one shard from its text: sentences, ids and word starts of training and held-out documents.

This is the unit of work of ``cloze prepare``, in a worker process or a cluster job. Its only inputs are the text files
and the work folder: the plan, the vocabulary, the user's words, and the flags of documents to keep.

    documents (``corpus/documents.py``) -> sentences (``text/boundaries.py``) -> ids (``encode.py``)
        -> files, which appear complete or not at all
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from cloze.corpus.documents import Paragraph, ParagraphReader, named_errors
from cloze.corpus.preparation.deduplicate import ExactHasher, NearHasher
from cloze.corpus.preparation.encode import EncodedSentences, SentenceEncoder
from cloze.corpus.preparation.shard_plan import WORDS, ShardPlan, hashes_path, kept_path, shard_name, survey
from cloze.corpus.shards import ARRAYS, OFFSETS, SHARDS, SPLITS, Split, array_path, expected_sizes, file_digest
from cloze.errors import ClozeError, DataError
from cloze.files import flush, flush_tree, read_json, write_json
from cloze.text import Tokenizer, split_sentences
from cloze.text.segmentation import WordSplitter
from cloze.workers import Report

SHARD_INFO = "shard.json"
COUNTS = ("documents", "sentences", "tokens", "words", "unknown")
_MOST_TOKENS = 2**32 - 1  # offsets have 32 bits
# Characters encoded per call, a trade-off between speed and memory.
_ENCODED_TOGETHER = 400_000
_REPORT_EVERY = 2**16

# Text that is certainly a single sentence, because only its last character can end one. Corpora with one sentence per
# line consist mostly of such lines. A test compares this with the sentence splitter.
_SINGLE = re.compile('[A-Za-z0-9 ,;:\'()\\-‘’“”"—–]*[A-Za-z0-9][.!?]?["”’)]?')

Place = tuple[int, int]  # file and line at which a document starts
Task = dict[str, Any]


class ShardMaker:
    """Builds shards according to the plan of a work folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._plan = ShardPlan.read(folder)
        recipe = self._plan.recipe
        self._tokenizer = Tokenizer.from_folder(folder)
        dictionary = folder / WORDS if recipe["words"] else None
        self._encoder = SentenceEncoder(
            self._tokenizer, WordSplitter(dictionary), has_dictionary=dictionary is not None
        )
        self._reader = ParagraphReader(self._plan.paths, recipe["column"], recipe["on_bad_row"] == "skip")

    def make(self, shard: int, report: Report = lambda _: None) -> None:
        """Build a shard unless it exists; ``report`` is called with the bytes of text that are finished."""
        folder = self._folder / SHARDS / shard_name(shard)
        if read_shard_info(folder, self._plan.dtype) is not None:
            return
        shutil.rmtree(folder, ignore_errors=True)  # if the folder exists, it is damaged
        keep = self._kept(shard)
        with atomic_shard(folder) as temporary, ExitStack() as files:
            writers = {
                split: SplitWriter(temporary, split, self._plan.dtype, self._tokenizer.unknown_id, files)
                for split in SPLITS
            }
            buffer = _SentenceBuffer(self._encoder, writers, splits=self._plan.recipe["lines"] == "paragraphs")
            dropped = 0
            for index, (place, paragraphs) in enumerate(self._documents(shard, report)):
                if keep is not None and not keep[index]:
                    dropped += 1
                    continue
                held_out = is_held_out(place, self._plan.recipe["seed"], self._plan.recipe["held_out"])
                buffer.add("held_out" if held_out else "train", paragraphs)
            buffer.write()
            self._check_unchanged(shard)
            counts = {split: writer.finish() for split, writer in writers.items()}
            write_shard_info(temporary, shard_name(shard), counts, self._reader.bad_rows, dropped)

    def hash(self, shard: int, report: Report = lambda _: None) -> None:
        """Write the hashes of a shard's documents, for finding duplicates."""
        path = hashes_path(self._folder, shard)
        if path.exists():
            return
        hasher = ExactHasher() if self._plan.recipe["duplicates"] == "exact" else NearHasher()
        for _, paragraphs in self._documents(shard, report):
            hasher.add(paragraphs)
        self._check_unchanged(shard)
        with atomic_file(path) as temporary:
            hasher.finish().tofile(temporary)

    def close(self) -> None:
        """Close the files."""
        self._reader.close()

    def _check_unchanged(self, shard: int) -> None:
        self._plan.check_unchanged(piece.file for piece in self._plan.texts[shard])

    def _documents(self, shard: int, report: Report) -> Iterator[tuple[Place, Iterator[str]]]:
        """Yield the position (file and line) and the paragraphs of each document.

        Consume the paragraphs of a document before advancing to the next one.
        """
        for place, paragraphs in groupby(self._reader.read(self._plan.texts[shard]), _place):
            yield place, _reported(paragraphs, report)

    def _kept(self, shard: int) -> NDArray[np.bool_] | None:
        if self._plan.recipe["duplicates"] == "keep":
            return None
        return np.fromfile(kept_path(self._folder, shard), bool)


def is_held_out(place: Place, seed: int, share: float) -> bool:
    """Return whether a document is held out; this depends only on its position in the input and the seed."""
    digest = hashlib.sha256(f"{seed}:{place[0]}:{place[1]}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def _place(numbered: tuple[int, Paragraph]) -> Place:
    file, paragraph = numbered
    return file, paragraph.document


def _reported(paragraphs: Iterator[tuple[int, Paragraph]], report: Report) -> Iterator[str]:
    pending = 0
    for _, (_, text) in paragraphs:
        yield text
        # The number of characters approximates the bytes well enough for a progress bar.
        pending += len(text) + 1
        if pending > _REPORT_EVERY:
            report(pending)
            pending = 0
    report(pending)


@dataclass
class _Run:
    """Consecutive sentences of one split, and the numbers of sentences after which documents end."""

    split: Split
    count: int = 0
    ends: list[int] = field(default_factory=list)


class _SentenceBuffer:
    """Collects the sentences of several documents, because encoding is efficient only for many sentences at once."""

    def __init__(self, encoder: SentenceEncoder, writers: dict[Split, "SplitWriter"], *, splits: bool) -> None:
        self._encoder = encoder
        self._writers = writers
        self._splits = splits
        self._clear()

    def _clear(self) -> None:
        self._sentences: list[str] = []
        self._characters = 0
        self._runs: list[_Run] = []

    def add(self, split: Split, paragraphs: Iterable[str]) -> None:
        """Add a document; encode and write whenever enough text has been collected."""
        run = self._run(split)
        for text in paragraphs:
            if not self._splits or _SINGLE.fullmatch(text):
                self._sentences.append(text)
                run.count += 1
            else:
                sentences = split_sentences(text)
                self._sentences += sentences
                run.count += len(sentences)
            self._characters += len(text)
            if self._characters >= _ENCODED_TOGETHER:
                self.write()
                run = self._run(split)
        run.ends.append(run.count)

    def _run(self, split: Split) -> _Run:
        if not self._runs or self._runs[-1].split != split:
            self._runs.append(_Run(split))
        return self._runs[-1]

    def write(self) -> None:
        """Encode the collected sentences and pass each run to the writer of its split."""
        encoded = self._encoder.encode(self._sentences)
        first = 0
        for run in self._runs:
            self._writers[run.split].add(encoded.slice(first, first + run.count), run.ends)
            first += run.count
        self._clear()


class SplitWriter:
    """Writes one split of a shard: ids directly to disk, offsets to memory until ``finish``."""

    def __init__(self, folder: Path, split: Split, dtype: str, unknown_id: int, files: ExitStack) -> None:
        self.counts = dict.fromkeys(COUNTS, 0)
        self._name = folder.name.partition(".")[0]  # name of the shard; the folder still has a temporary name
        self._dtype = np.dtype(dtype)
        self._unknown_id = unknown_id
        # Opened for every split; ``finish`` removes the files of an empty split.
        self._paths = {name: array_path(folder, split, name) for name in ARRAYS}
        self._files: dict[str, BinaryIO] = {
            name: files.enter_context(self._paths[name].open("wb")) for name in ("tokens", "words")
        }
        self._pending_bits = np.zeros(0, bool)
        self._sentences = [np.zeros(1, OFFSETS)]
        self._documents = [0]

    def add(self, encoded: EncodedSentences, ends: Sequence[int]) -> None:
        """Add sentences; sentences and documents without tokens are dropped.

        Args:
            encoded: The sentences.
            ends: Numbers of sentences after which a document ends.
        """
        is_kept = encoded.lengths > 0
        if self.counts["tokens"] + len(encoded.ids) > _MOST_TOKENS:
            raise DataError(
                f"shard {self._name}: more than 4 billion tokens, because texts are split only between documents, and "
                "Parquet files only between row groups; put blank lines between documents, or write smaller row groups"
            )
        places = self.counts["tokens"] + np.cumsum(encoded.lengths[is_kept])
        self._sentences.append(places.astype(OFFSETS))
        self._end_documents(np.concatenate([[0], np.cumsum(is_kept)])[np.asarray(ends, np.int64)])
        self.counts["tokens"] += len(encoded.ids)
        self.counts["sentences"] += len(places)
        self.counts["words"] += int(encoded.starts.sum())
        self.counts["unknown"] += int((encoded.ids == self._unknown_id).sum())
        self._files["tokens"].write(encoded.ids.astype(self._dtype).tobytes())
        bits = np.concatenate([self._pending_bits, encoded.starts])
        whole = len(bits) - len(bits) % 8
        self._files["words"].write(np.packbits(bits[:whole], bitorder="little").tobytes())
        self._pending_bits = bits[whole:]

    def _end_documents(self, ends: NDArray[np.int64]) -> None:
        """Record the ends of documents, as numbers of sentences so far; documents without sentences are dropped."""
        for end in (self.counts["sentences"] + ends).tolist():
            if end > self._documents[-1]:
                self._documents.append(end)
                self.counts["documents"] += 1

    def finish(self) -> dict[str, int]:
        """Write the offsets and return the counts."""
        self._files["words"].write(np.packbits(self._pending_bits, bitorder="little").tobytes())
        for file in self._files.values():
            file.close()
        if not self.counts["tokens"]:
            for name in self._files:
                self._paths[name].unlink()
            return self.counts
        self._paths["sentences"].write_bytes(np.concatenate(self._sentences).tobytes())
        self._paths["documents"].write_bytes(np.asarray(self._documents, OFFSETS).tobytes())
        return self.counts


@contextmanager
def atomic_shard(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that is renamed to ``folder`` if the block succeeds, and removed otherwise.

    A shard under its final name is therefore complete, and resuming only needs to check names and sizes.
    """
    # The name has the process id, because a cluster may start the same job twice.
    temporary = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    with disk_errors(folder):
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            yield temporary
            flush_tree(temporary)
            try:
                temporary.rename(folder)
            except OSError:
                if not folder.exists():  # otherwise, another process has built the same shard in the meantime
                    raise
            flush(folder.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def disk_errors(place: Path) -> Iterator[None]:
    """Convert the errors of a full or read-only disk to a message with a remedy."""
    try:
        yield
    except OSError as error:
        raise ClozeError(
            f"{place}: cannot be written ({error.strerror or error}); the finished shards are saved: "
            "free some space or repair the disk, and run the same command to resume"
        ) from error


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary file name that is renamed to ``path`` if the block succeeds, and removed otherwise."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with disk_errors(path):
        try:
            yield temporary
            flush(temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def write_shard_info(folder: Path, name: str, splits: dict[Split, dict[str, int]], bad_rows: int, dropped: int) -> None:
    """Write the manifest entry of a shard."""
    files = sorted(path for path in folder.iterdir() if path.suffix == ".bin")
    info = {
        "name": name,
        "splits": splits,
        "bad_rows": bad_rows,
        "duplicates": dropped,
        "files": {path.name: {"bytes": path.stat().st_size, "sha256": file_digest(path)} for path in files},
    }
    write_json(folder / SHARD_INFO, info)


def read_shard_info(folder: Path, dtype: str) -> dict[str, Any] | None:
    """Return the manifest entry of a shard, or None if it is missing or its files do not have the expected sizes."""
    if not (folder / SHARD_INFO).is_file():
        return None
    try:
        info = read_json(folder / SHARD_INFO, DataError)
        for split in SPLITS:
            counts = info["splits"][split]
            for name, size in expected_sizes(counts, np.dtype(dtype)).items() if counts["tokens"] else ():
                if array_path(folder, split, name).stat().st_size != size:
                    return None
    except (DataError, OSError, LookupError, TypeError, ValueError):
        return None
    return info


class PreparationRunner:
    """Runs the tasks of a preparation: JSON objects with the kind of task in ``do`` and its arguments."""

    def __init__(self) -> None:
        self._makers: dict[str, ShardMaker] = {}  # makers by work folder

    def run(self, task: bytes, report: Report) -> bytes:
        """Run one task."""
        return json.dumps(self._run(json.loads(task), report)).encode()

    def _run(self, task: Task, report: Report) -> Any:
        match task["do"]:
            case "fingerprint":
                path = Path(task["path"])
                with named_errors(path):
                    return file_digest(path)
            case "survey":
                return survey(Path(task["path"]), task["file"], task["column"], task["slice_size"], report)
            case "hash":
                return self._maker(task["folder"]).hash(task["shard"], report)
            case "shard":
                return self._maker(task["folder"]).make(task["shard"], report)
        raise AssertionError(task)

    def _maker(self, folder: str) -> ShardMaker:
        if folder not in self._makers:
            self._makers[folder] = ShardMaker(Path(folder))
        return self._makers[folder]

    def finish(self) -> bytes:
        """Return an empty result, because each task has written its results to disk."""
        return b""

    def describe(self, task: bytes) -> str:
        """Return a short description of a task for messages."""
        return describe(json.loads(task))

    def close(self) -> None:
        """Close the files."""
        for maker in self._makers.values():
            maker.close()


def describe(task: Task) -> str:
    """Return a short description of a task for messages."""
    if "shard" in task:
        return f"shard {task['shard']:05d}" if task["do"] == "shard" else f"the hashes of shard {task['shard']:05d}"
    return f"reading {task['path']}"
