"""One part of the text -> one shard: sentences, ids, words, and which documents are held out.

This is the unit of work of every engine. All that it needs lies in the work folder and in the text files: the plan,
the vocabulary, the user's words, and the list of documents that are kept.
"""

import hashlib
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloze.corpus.documents import Paragraph, Span
from cloze.corpus.parts import Part, PartReader, Segment
from cloze.corpus.preparation.deduplicate import ExactHasher, NearHasher
from cloze.corpus.preparation.encode import SentenceEncoder
from cloze.corpus.preparation.shard_writer import SplitWriter, read_facts, write_facts, written_file, written_shard
from cloze.corpus.shards import SHARDS, SPLITS, Split
from cloze.errors import DataError
from cloze.files import OUR_JSON_LIMIT, read_json
from cloze.text import Tokenizer, split_sentences
from cloze.text.segmentation import WordSplitter

PLAN = "plan.json"
WORDS = "words.txt"
HASHES = "hashes"
# Characters that are encoded together: enough to be quick, little enough to be no memory.
_ENCODED_AT_ONCE = 400_000
_TOLD_EVERY = 2**16

# Text that needs no splitting, for it has no mark that could end a sentence but at its end. Text that comes a sentence
# a line is mostly of this kind. A test holds it against the splitter.
_SINGLE = re.compile('[A-Za-z0-9 ,;:\'()\\-‘’“”"—–]*[A-Za-z0-9][.!?]?["”’)]?')

Told = Callable[[int], None]
Place = tuple[int, int]  # file and line of a document's start


@dataclass(frozen=True)
class Plan:
    """What is to be done: the same for everybody who takes part."""

    paths: list[Path]
    parts: list[Part]
    recipe: dict[str, Any]
    dtype: str

    @classmethod
    def read(cls, folder: Path) -> "Plan":
        """Read the plan of a work folder."""
        told = read_json(folder / PLAN, DataError, OUR_JSON_LIMIT)
        parts = [
            tuple(Segment(file, Span(start, stop, first), size) for file, start, stop, first, size in part)
            for part in told["parts"]
        ]
        return cls([Path(path) for path in told["paths"]], parts, told["recipe"], told["dtype"])

    def as_json(self) -> dict[str, Any]:
        """What ``read`` reads."""
        return {
            "recipe": self.recipe,
            "dtype": self.dtype,
            "paths": [str(path) for path in self.paths],
            "parts": [[[one.file, *one.span, one.size] for one in part] for part in self.parts],
        }

    def size(self, part: int) -> int:
        """About how many bytes of text a part has."""
        return sum(segment.size for segment in self.parts[part])


def shard_name(part: int) -> str:
    """The name of a part's shard."""
    return f"{part:05d}"


class _Gathered:
    """Sentences of several documents that are encoded together, since arrays pay only if they are long."""

    def __init__(self, encoder: SentenceEncoder, writers: dict[Split, SplitWriter], *, splits: bool) -> None:
        self._encoder = encoder
        self._writers = writers
        self._splits = splits
        self._clear()

    def _clear(self) -> None:
        self._sentences: list[str] = []
        self._characters = 0
        self._runs: list[_Run] = []

    def add(self, split: Split, paragraphs: Iterable[str]) -> None:
        """Take a document, and write what there is whenever it is enough."""
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
            if self._characters >= _ENCODED_AT_ONCE:
                self.write()
                run = self._run(split)
        run.ends.append(run.count)

    def _run(self, split: Split) -> "_Run":
        if not self._runs or self._runs[-1].split != split:
            self._runs.append(_Run(split))
        return self._runs[-1]

    def write(self) -> None:
        """Encode what there is, and give every split its own."""
        encoded = self._encoder.encode(self._sentences)
        first = 0
        for run in self._runs:
            self._writers[run.split].add(encoded.cut(first, first + run.count), run.ends)
            first += run.count
        self._clear()


@dataclass
class _Run:
    """Sentences one after the other that go to the same split, and after how many of them documents end."""

    split: Split
    count: int = 0
    ends: list[int] = field(default_factory=list)


class ShardMaker:
    """Makes one shard after the other from the plan of a work folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._plan = Plan.read(folder)
        recipe = self._plan.recipe
        self._tokenizer = Tokenizer.from_folder(folder)
        dictionary = folder / WORDS if recipe["words"] else None
        self._encoder = SentenceEncoder(
            self._tokenizer, WordSplitter(dictionary), has_dictionary=dictionary is not None
        )
        self._reader = PartReader(self._plan.paths, recipe["column"], recipe["on_bad_row"] == "skip")

    def make(self, part: int, told: Told = lambda _: None) -> None:
        """Make the shard of a part, unless it is there; ``told`` hears of bytes of text as they are done."""
        folder = self._folder / SHARDS / shard_name(part)
        if read_facts(folder, self._plan.dtype) is not None:
            return
        shutil.rmtree(folder, ignore_errors=True)  # what is there was damaged
        keep = self._kept(part)
        with written_shard(folder) as temporary, ExitStack() as files:
            writers = {
                split: SplitWriter(temporary, split, self._plan.dtype, self._tokenizer.unknown_id, files)
                for split in SPLITS
            }
            gathered = _Gathered(self._encoder, writers, splits=self._plan.recipe["lines"] == "paragraphs")
            dropped = 0
            for index, (place, paragraphs) in enumerate(self._documents(part, told)):
                if keep is not None and not keep[index]:
                    dropped += 1
                    continue
                held_out = is_held_out(place, self._plan.recipe["seed"], self._plan.recipe["held_out"])
                gathered.add("held_out" if held_out else "train", paragraphs)
            gathered.write()
            counts = {split: writer.finish() for split, writer in writers.items()}
            write_facts(temporary, shard_name(part), counts, self._reader.bad_rows, dropped)

    def hash(self, part: int, told: Told = lambda _: None) -> None:
        """Write down the hashes of a part's documents, by which duplicates are found."""
        path = hashes_path(self._folder, part)
        if path.exists():
            return
        hasher = ExactHasher() if self._plan.recipe["duplicates"] == "exact" else NearHasher()
        for _, paragraphs in self._documents(part, told):
            hasher.add(paragraphs)
        with written_file(path) as temporary:
            hasher.finish().tofile(temporary)

    def close(self) -> None:
        """Release the files."""
        self._reader.close()

    def _documents(self, part: int, told: Told) -> Iterator[tuple[Place, Iterator[str]]]:
        """Yield each document's place and paragraphs, to be read one after the other."""
        for place, paragraphs in groupby(self._reader.read(self._plan.parts[part]), lambda one: (one[0], one[1][0])):
            yield place, _counted(paragraphs, told)

    def _kept(self, part: int) -> NDArray[np.bool_] | None:
        if self._plan.recipe["duplicates"] == "keep":
            return None
        return np.fromfile(kept_path(self._folder, part), bool)


def hashes_path(folder: Path, part: int) -> Path:
    """Where the hashes of a part's documents are."""
    return folder / HASHES / f"{shard_name(part)}.hashes"


def kept_path(folder: Path, part: int) -> Path:
    """Where it is said which documents of a part are kept."""
    return folder / HASHES / f"{shard_name(part)}.kept"


def is_held_out(place: Place, seed: int, share: float) -> bool:
    """Whether a document is held out: a coin that depends on its place in the input and the seed alone."""
    digest = hashlib.sha256(f"{seed}:{place[0]}:{place[1]}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def _counted(paragraphs: Iterator[tuple[int, Paragraph]], told: Told) -> Iterator[str]:
    pending = 0
    for _, (_, text) in paragraphs:
        yield text
        # Bytes of UTF-8, but for what only a bar of progress would notice.
        pending += len(text) + 1
        if pending > _TOLD_EVERY:
            told(pending)
            pending = 0
    told(pending)
