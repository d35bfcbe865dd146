"""The texts of distillation on raw text: sentences or passages as token ids in memory-mapped files, and their batches.

text files or a prepared corpus -> sentences -> ids for the student, and for a teacher with another vocabulary its own
-> texts of at most the maximum length, each once -> batches whose order depends on the seed and the epoch only

Dimensions: N texts, B texts of a batch, T tokens.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import groupby, islice, pairwise
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cloze.corpus.documents import WHOLE, CorpusSlice, ParagraphReader
from cloze.corpus.shards import MANIFEST, Corpus, file_digest, read_manifest, verify_corpus
from cloze.errors import ClozeError, ConfigError, DataError, format_option
from cloze.files import read_json, replace_json
from cloze.model.batch import Batch, collate
from cloze.progress import Progress
from cloze.text import Tokenizer, split_sentences
from cloze.train.finetuning.objective import BATCHES_PER_BUCKET, shuffle_batches

Ids = list[int]
# Sentences that are encoded at once.
_BLOCK = 4096
_RECORD = "texts.json"
# Fewest texts for a training, and fewest and most that are held out.
FEWEST, FEWEST_HELD_OUT, MOST_HELD_OUT = 50, 10, 2000


@dataclass(frozen=True)
class TextSources:
    """The files to read, and how their texts are encoded.

    Attributes:
        paths: Plain text, JSONL or Parquet files, or folders of prepared corpora.
        column: The column with the texts in JSONL and Parquet files.
        split: Whether a text is a sentence, or as many consecutive sentences as fit.
        max_length: Maximum length of a text in tokens of the student.
        student: The student's tokenizer.
        teacher: The teacher's tokenizer if it is another one; None if both encode texts alike.
    """

    paths: Sequence[Path]
    column: str
    split: Literal["sentences", "passages"]
    max_length: int
    student: Tokenizer
    teacher: Tokenizer | None = None

    def recorded(self) -> dict[str, Any]:
        """Return the facts that determine the texts; files are identified by their names and contents."""
        files = [[path.name, file_digest(path / MANIFEST if path.is_dir() else path)] for path in self.paths]
        vocabularies = [self.student.digest, None if self.teacher is None else self.teacher.digest]
        return {"files": files, "vocabularies": vocabularies, "split": self.split, "column": self.column}

    def check(self) -> None:
        """Raise an error if a file is missing, or a prepared corpus does not fit the vocabularies."""
        for path in self.paths:
            if not path.exists():
                raise DataError(f"{path}: no such file or folder")
            if not path.is_dir():
                continue
            read_manifest(path)
            verify_corpus(path)
            if self.teacher is not None or not Tokenizer.from_folder(path).is_equivalent(self.student):
                raise DataError(
                    f"{path}: is prepared with another vocabulary than that of the student or the teacher; give the "
                    "text files"
                )

    def __iter__(self) -> Iterator[tuple[Ids, Ids]]:
        """Yield the ids of each text for the student and for the teacher, without special tokens."""
        most = self.max_length - 2  # [CLS] and [SEP]
        for _, sentences in groupby(self._sentences(most), lambda numbered: numbered[0]):
            passage, seen = Ids(), Ids()
            for _, ids, teacher_ids in sentences:
                if passage and (self.split == "sentences" or len(passage) + len(ids) > most):
                    yield passage, seen
                    passage, seen = Ids(), Ids()
                passage, seen = passage + ids, seen + teacher_ids
            yield passage, seen

    def _sentences(self, most: int) -> Iterator[tuple[Any, Ids, Ids]]:
        """Yield the document, the student's ids and the teacher's ids of each sentence of at most ``most`` tokens."""
        for number, path in enumerate(self.paths):
            if path.is_dir():
                yield from _corpus_sentences(path, number, most)
                continue
            numbered = self._read(number)
            while block := list(islice(numbered, _BLOCK)):
                yield from self._encode(block, most)

    def _read(self, number: int) -> Iterator[tuple[Any, str]]:
        with closing(ParagraphReader(self.paths, self.column, skip_bad_rows=False)) as reader:
            for _, paragraph in reader.read((CorpusSlice(number, WHOLE, 0),)):
                for sentence in split_sentences(paragraph.text):
                    yield (number, paragraph.document), sentence

    def _encode(self, block: Sequence[tuple[Any, str]], most: int) -> Iterator[tuple[Any, Ids, Ids]]:
        texts = [text for _, text in block]
        student = self.student.encode_ids(texts)
        teacher = student if self.teacher is None else self.teacher.encode_ids(texts)
        for (document, text), ids, teacher_ids in zip(block, student, teacher, strict=True):
            if len(ids) > most and len(text) > 1:
                yield from self._encode([(document, half) for half in _halves(text)], most)
            elif ids and teacher_ids:
                yield document, ids[:most], teacher_ids


def _halves(text: str) -> tuple[str, str]:
    """Split a text at the space nearest to its middle, or in the middle if there is none."""
    middle = len(text) // 2
    places = [place for place in (text.rfind(" ", 1, middle), text.find(" ", middle, -1)) if place > 0]
    place = min(places, key=lambda one: abs(one - middle), default=middle)
    return text[:place], text[place:]


def _corpus_sentences(folder: Path, number: int, most: int) -> Iterator[tuple[Any, Ids, Ids]]:
    """Yield the sentences of the training part of a prepared corpus."""
    corpus = Corpus.open(folder)
    for document in range(corpus.document_count):
        first, last = corpus.documents[document : document + 2]
        bounds = corpus.sentences[first : last + 1].tolist()
        for start, end in pairwise(bounds):
            for place in range(start, end, most):
                ids = corpus.read(place, min(end, place + most)).tolist()
                yield (number, document), ids, ids


class EncodedTexts:
    """Token ids of texts in a memory-mapped file, with ``[CLS]`` and ``[SEP]``; behaves like a list of sequences."""

    def __init__(self, path: Path, tokenizer: Tokenizer, max_length: int, ends: NDArray[np.int64]) -> None:
        self._ids = np.memmap(path, _id_type(tokenizer), mode="r").view(np.ndarray)
        self._starts = np.concatenate([[0], ends])
        self._tokenizer, self._most = tokenizer, max_length - 2
        self.pad_id = tokenizer.pad_id
        self.lengths: NDArray[np.int64] = np.minimum(np.diff(self._starts), self._most) + 2

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> "TextIds":
        start, end = self._starts[index : index + 2]
        ids = self._ids[start : min(end, start + self._most)].tolist()
        return TextIds([self._tokenizer.cls_id, *ids, self._tokenizer.sep_id])

    def batch(self, indices: Sequence[int] | NDArray[np.int64], device: torch.device) -> Batch:
        """Return the texts at these indices as a padded batch."""
        return collate([self[index] for index in indices], self.pad_id, device)


@dataclass(frozen=True, slots=True)
class TextIds:
    """One sequence of token ids in segment 0."""

    ids: Ids

    @property
    def segments(self) -> Ids:
        """Segment id of each token."""
        return [0] * len(self.ids)


@dataclass(frozen=True)
class TextSet:
    """All texts, encoded for the student and for the teacher, and which of them are held out."""

    student: EncodedTexts
    teacher: EncodedTexts
    train: NDArray[np.int64]
    held_out: NDArray[np.int64]

    @classmethod
    def open(cls, sources: TextSources, folder: Path, held_out: float, seed: int, progress: Progress) -> "TextSet":
        """Encode the texts into files, or open the files if an interrupted run has written them.

        Raises:
            DataError: If there are too few texts.
        """
        if not (folder / _RECORD).is_file():
            try:
                _write(sources, folder, progress)
            except OSError as error:  # errors of reading name the file that was read
                raise ClozeError(
                    f"{folder}: cannot be written ({error.strerror}); free some space and run the same command again"
                ) from error
        ends = np.fromfile(folder / "student-ends.bin", np.int64)
        student = EncodedTexts(folder / "student-ids.bin", sources.student, sources.max_length, ends)
        teacher = student
        if sources.teacher is not None:
            ends = np.fromfile(folder / "teacher-ends.bin", np.int64)
            longest = sources.teacher.max_length
            teacher = EncodedTexts(folder / "teacher-ids.bin", sources.teacher, longest, ends)
        if read_json(folder / _RECORD, DataError)["texts"] != len(student):
            raise DataError(f"{folder}: is damaged; start over with {format_option('fresh', True)}")
        order = np.random.default_rng(seed).permutation(len(student))
        count = min(max(round(held_out * len(order)), FEWEST_HELD_OUT), MOST_HELD_OUT)
        return cls(student, teacher, np.sort(order[count:]), np.sort(order[:count]))


def _write(sources: TextSources, folder: Path, progress: Progress) -> None:
    """Write the ids and the end of each text; the record, which is written last, marks the files as complete."""
    folder.mkdir(exist_ok=True)
    names = ["student"] if sources.teacher is None else ["student", "teacher"]
    tokenizers = [sources.student, sources.teacher or sources.student]
    seen: set[bytes] = set()
    ends: list[list[int]] = [[0] for _ in names]
    with ExitStack() as stack:
        files: list[BinaryIO] = [stack.enter_context((folder / f"{name}-ids.bin").open("wb")) for name in names]
        for texts in sources:
            digest = hashlib.blake2b(np.array(texts[0], np.uint32).tobytes(), digest_size=8).digest()
            if digest in seen:  # a repeated text would be trained on several times, and held out as well
                continue
            seen.add(digest)
            for number, file in enumerate(files):
                file.write(np.array(texts[number], _id_type(tokenizers[number])).tobytes())
                ends[number].append(ends[number][-1] + len(texts[number]))
            if len(seen) % _BLOCK == 0:
                progress.advance("encoding texts", len(seen), None)
    if len(seen) < FEWEST:
        place = ", ".join(path.name for path in sources.paths)
        raise DataError(
            f"{place}: {len(seen)} different texts; expected at least {FEWEST}, and some hundred thousand for a good "
            "student"
        )
    for name, places in zip(names, ends, strict=True):
        (folder / f"{name}-ends.bin").write_bytes(np.array(places[1:], np.int64).tobytes())
    replace_json(folder / _RECORD, {"texts": len(seen)})
    progress.advance("encoding texts", len(seen), len(seen))


def _id_type(tokenizer: Tokenizer) -> type[np.unsignedinteger[Any]]:
    return np.uint16 if tokenizer.size <= 2**16 else np.uint32


@dataclass(frozen=True)
class TextBatch:
    """A batch of texts, and the teacher's vectors if the student learns vectors."""

    inputs: Batch
    targets: Tensor | None = None  # (B, K)

    @property
    def counts(self) -> Mapping[str, int]:
        """The numbers over which the losses are averaged."""
        return {"texts": len(self.inputs.ids), "tokens": self.token_count}

    @property
    def token_count(self) -> int:
        """The number of tokens without padding."""
        return int(self.inputs.real.sum())


class TextBatches:
    """Shuffled batches of the training texts; the order depends on the seed and the epoch only."""

    def __init__(
        self,
        texts: TextSet,
        batch_size: int,
        seed: int,
        device: torch.device,
        targets: Callable[[NDArray[np.int64]], Tensor] | None = None,
    ) -> None:
        """Create the batches.

        Args:
            texts: The encoded texts.
            batch_size: Texts per batch.
            seed: Seed of the order.
            device: The device of the tensors.
            targets: Returns the teacher's vectors of texts, (B, K). Without it, tokens are compared in padded batches,
                so that texts of similar length are grouped.
        """
        if batch_size > len(texts.train):
            raise ConfigError(f"batch_size is {batch_size}, but there are only {len(texts.train)} training texts")
        self._texts, self._batch_size, self._seed, self._device = texts, batch_size, seed, device
        self._targets, self._batches_per_bucket = targets, BATCHES_PER_BUCKET if targets is None else 1
        self._lengths = texts.student.lengths[texts.train]
        self.steps_per_epoch = -(-len(texts.train) // batch_size)
        self._epoch, self._batches = -1, list[NDArray[np.int64]]()

    def at(self, step: int, part: int = 0, parts: int = 1, progress: float = 0.0) -> TextBatch | None:  # noqa: ARG002
        """Return a part of the batch of a step, both counted from 0; None if the batch has fewer texts than parts."""
        epoch, index = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._batches = epoch, self._shuffled(epoch)
        rows = np.array_split(self._batches[index], parts)[part]
        if not len(rows):
            return None
        indices = self._texts.train[rows]
        inputs = self._texts.student.batch(indices, self._device)
        return TextBatch(inputs, None if self._targets is None else self._targets(indices).to(self._device))

    def largest_part(self, parts: int) -> tuple[int, int]:
        """Return the tokens of the largest part of the first epoch's batches, and of the longest sequence."""
        rows = [part for batch in self._shuffled(0) for part in np.array_split(batch, parts)]
        return max(int(self._lengths[part].sum()) for part in rows), int(self._lengths.max())

    def _shuffled(self, epoch: int) -> list[NDArray[np.int64]]:
        generator = np.random.default_rng([self._seed, epoch])
        return shuffle_batches(self._lengths, self._batch_size, generator, self._batches_per_bucket)
