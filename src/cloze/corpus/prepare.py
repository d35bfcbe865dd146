"""``cloze prepare``: text -> sentences -> ids -> a folder that training maps into memory."""

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from cloze.corpus.documents import open_text, read_documents
from cloze.corpus.settings import PrepareSettings
from cloze.corpus.shards import FORMAT, MANIFEST, read_manifest
from cloze.errors import DataError
from cloze.files import replaced_folder, write_json
from cloze.progress import Progress, Silent
from cloze.text import Tokenizer, split_sentences

SPLITS = ("train", "held_out")
# Sentences that are tokenized together: enough to keep the Rust side busy, little enough to be no memory.
CHUNK = 4096


def prepare(
    texts: Sequence[str | Path],
    vocab: str | Path,
    out: str | Path,
    *,
    settings: PrepareSettings | None = None,
    progress: Progress | None = None,
) -> Path:
    """Prepare text files with the vocabulary of a folder; done already, it returns at once."""
    settings, progress = settings or PrepareSettings(), progress or Silent()
    paths, folder = [Path(text) for text in texts], Path(out)
    tokenizer = Tokenizer.from_folder(Path(vocab))
    recipe = _recipe(paths, tokenizer, settings)
    if folder.exists() and not _is_empty(folder):
        _check_same(folder, recipe)
        return folder
    with replaced_folder(folder) as temporary, ExitStack() as files:
        writers = {split: _Writer(temporary / split, _id_type(tokenizer), files) for split in SPLITS}
        for number, document in enumerate(_tokenized(paths, tokenizer)):
            split = "held_out" if _held_out(number, settings) else "train"
            writers[split].add(document)
            if number % 100 == 0:
                progress.advance("preparing", number, None, tokens=float(writers["train"].token_count))
        facts = {split: writer.finish() for split, writer in writers.items()}
        if not facts["train"]["tokens"]:
            raise DataError(f"{', '.join(map(str, paths))}: no text found; nothing was prepared")
        tokenizer.save(temporary)
        write_json(
            temporary / MANIFEST,
            {"format": FORMAT, "dtype": _id_type(tokenizer), "splits": facts, "recipe": recipe},
        )
    return folder


def _tokenized(paths: Sequence[Path], tokenizer: Tokenizer) -> Iterator[list[list[int]]]:
    """Documents as lists of sentences of ids; sentences without a single known character vanish."""
    pending: list[list[str]] = []
    count = 0
    for paragraphs in read_documents(paths):
        pending.append([sentence for paragraph in paragraphs for sentence in split_sentences(paragraph)])
        count += len(pending[-1])
        if count >= CHUNK:
            yield from _encode(pending, tokenizer)
            pending, count = [], 0
    yield from _encode(pending, tokenizer)


def _encode(documents: list[list[str]], tokenizer: Tokenizer) -> Iterator[list[list[int]]]:
    ids = iter(tokenizer.encode_ids([sentence for document in documents for sentence in document]))
    for document in documents:
        yield [sentence for sentence in (next(ids) for _ in document) if sentence]


def _held_out(number: int, settings: PrepareSettings) -> bool:
    """Whether a document is held out: a coin that depends on its number and the seed alone."""
    digest = hashlib.sha256(f"{settings.seed}:{number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < settings.held_out * 2**64


def _id_type(tokenizer: Tokenizer) -> str:
    return "uint16" if tokenizer.size <= 2**16 else "int32"


def _recipe(paths: Sequence[Path], tokenizer: Tokenizer, settings: PrepareSettings) -> dict[str, Any]:
    """Everything that the result depends on."""
    rules = tokenizer.settings
    vocabulary = [*rules.pieces, rules.lowercase, rules.strip_accents, rules.chinese, rules.longest_word]
    if rules.ladder:
        vocabulary.append(str(rules.ladder))
    return {
        # A list: the order decides which documents are held out, and two files may have one name.
        "texts": [[path.name, _fingerprint(path)] for path in paths],
        "vocabulary": hashlib.sha256("\n".join(map(str, vocabulary)).encode()).hexdigest(),
        "held_out": settings.held_out,
        "seed": settings.seed,
    }


def _fingerprint(path: Path) -> str:
    digest = hashlib.sha256()
    with open_text(path) as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def _check_same(folder: Path, recipe: dict[str, Any]) -> None:
    """Accept a folder that holds just this; refuse to overwrite anything else."""
    if not (folder / MANIFEST).is_file():
        raise DataError(f"{folder}: exists and is not a prepared corpus; choose another --out")
    recorded = read_manifest(folder).get("recipe")
    if recorded != recipe:
        changed = [key for key in recipe if not isinstance(recorded, dict) or recorded.get(key) != recipe[key]]
        raise DataError(
            f"{folder}: was prepared otherwise ({', '.join(changed)} differ); choose another --out or delete it"
        )


@dataclass
class _Writer:
    """One split being written: ids straight to the disk, offsets in memory until the end."""

    folder: Path
    id_type: str
    files: ExitStack  # closes what is open, however the work ends
    sentences: "array[int]" = field(default_factory=lambda: array("q", [0]))
    documents: "array[int]" = field(default_factory=lambda: array("q", [0]))
    _file: BinaryIO = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self._file = self.files.enter_context((self.folder / "tokens.bin").open("wb"))

    @property
    def token_count(self) -> int:
        return self.sentences[-1]

    def add(self, document: list[list[int]]) -> None:
        if not document:
            return
        for sentence in document:
            self._file.write(np.asarray(sentence, dtype=self.id_type).tobytes())
            self.sentences.append(self.sentences[-1] + len(sentence))
        self.documents.append(len(self.sentences) - 1)

    def finish(self) -> dict[str, int]:
        self._file.close()
        np.save(self.folder / "sentences.npy", np.asarray(self.sentences, dtype=np.int64))
        np.save(self.folder / "documents.npy", np.asarray(self.documents, dtype=np.int64))
        return {
            "documents": len(self.documents) - 1,
            "sentences": len(self.sentences) - 1,
            "tokens": self.token_count,
        }
