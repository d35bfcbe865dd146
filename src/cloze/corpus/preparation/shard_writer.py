"""Writing one shard: ids straight to the disk, offsets in memory until the end.

The folder gets its name when all of it is on the disk: a shard that has its name is whole, and whoever takes up the
work again need look at no more than names and sizes.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from cloze.corpus.preparation.encode import Encoded
from cloze.corpus.shards import ARRAYS, OFFSETS, SPLITS, Split, array_path, expected_sizes, file_digest
from cloze.errors import ClozeError, DataError
from cloze.files import flush, flush_tree, read_json, write_json

FACTS = "shard.json"
COUNTS = ("documents", "sentences", "tokens", "words", "unknown")
_MOST_TOKENS = 2**32 - 1


class SplitWriter:
    """One split of a shard that is being written."""

    def __init__(self, folder: Path, split: Split, dtype: str, unknown_id: int, files: ExitStack) -> None:
        self.counts = dict.fromkeys(COUNTS, 0)
        self._name = folder.name.partition(".")[0]  # of the shard, whose folder is not finished
        self._dtype = np.dtype(dtype)
        self._unknown_id = unknown_id
        # Opened for every shard: an empty one costs nothing, and is taken away at the end.
        self._paths = {name: array_path(folder, split, name) for name in ARRAYS}
        self._files: dict[str, BinaryIO] = {
            name: files.enter_context(self._paths[name].open("wb")) for name in ("tokens", "words")
        }
        self._half_byte = np.zeros(0, bool)
        self._sentences = [np.zeros(1, OFFSETS)]
        self._documents = [0]

    def add(self, encoded: Encoded, ends: Sequence[int]) -> None:
        """Add sentences, after which of them documents end; what is without tokens vanishes."""
        is_kept = encoded.lengths > 0
        if self.counts["tokens"] + len(encoded.ids) > _MOST_TOKENS:
            raise DataError(
                f"shard {self._name}: more than 4 billion tokens, since texts are divided between documents only, and "
                "Parquet files between row groups; put blank lines between documents, or write smaller row groups"
            )
        places = self.counts["tokens"] + np.cumsum(encoded.lengths[is_kept])
        self._sentences.append(places.astype(OFFSETS))
        self._end_documents(np.concatenate([[0], np.cumsum(is_kept)])[np.asarray(ends, np.int64)])
        self.counts["tokens"] += len(encoded.ids)
        self.counts["sentences"] += len(places)
        self.counts["words"] += int(encoded.starts.sum())
        self.counts["unknown"] += int((encoded.ids == self._unknown_id).sum())
        self._files["tokens"].write(encoded.ids.astype(self._dtype).tobytes())
        bits = np.concatenate([self._half_byte, encoded.starts])
        whole = len(bits) - len(bits) % 8
        self._files["words"].write(np.packbits(bits[:whole], bitorder="little").tobytes())
        self._half_byte = bits[whole:]

    def _end_documents(self, ends: NDArray[np.int64]) -> None:
        """Note where documents end, counted from what was written before; those without a sentence vanish."""
        for end in (self.counts["sentences"] + ends).tolist():
            if end > self._documents[-1]:
                self._documents.append(end)
                self.counts["documents"] += 1

    def finish(self) -> dict[str, int]:
        """Write the offsets, and return how much there is of everything."""
        self._files["words"].write(np.packbits(self._half_byte, bitorder="little").tobytes())
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
def written_shard(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes ``folder`` when the block ends well, and vanishes when it does not."""
    # The number of the process, since a cluster may start the same job twice.
    temporary = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    with telling_of_disk(folder):
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            yield temporary
            flush_tree(temporary)
            try:
                temporary.rename(folder)
            except OSError:
                if not folder.exists():  # otherwise somebody else has made it meanwhile, and the same
                    raise
            flush(folder.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def telling_of_disk(place: Path) -> Iterator[None]:
    """Turn what a full or read-only disk raises into a line that says what to do."""
    try:
        yield
    except OSError as error:
        raise ClozeError(
            f"{place}: cannot be written ({error.strerror or error}); the finished shards are kept: "
            "free some space or mend the disk, and give the same command again"
        ) from error


@contextmanager
def written_file(path: Path) -> Iterator[Path]:
    """Yield the name of a file that becomes ``path`` when the block ends well, and vanishes when it does not."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with telling_of_disk(path):
        try:
            yield temporary
            flush(temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def write_facts(folder: Path, name: str, splits: dict[Split, dict[str, int]], bad_rows: int, dropped: int) -> None:
    """Write what the manifest will say of a shard."""
    files = sorted(path for path in folder.iterdir() if path.suffix == ".bin")
    facts = {
        "name": name,
        "splits": splits,
        "bad_rows": bad_rows,
        "duplicates": dropped,
        "files": {path.name: {"bytes": path.stat().st_size, "sha256": file_digest(path)} for path in files},
    }
    write_json(folder / FACTS, facts)


def read_facts(folder: Path, dtype: str) -> dict[str, Any] | None:
    """What a shard says of itself, if it is whole: its files have the sizes that follow from its counts."""
    if not (folder / FACTS).is_file():
        return None
    try:
        facts = read_json(folder / FACTS, DataError)
        for split in SPLITS:
            counts = facts["splits"][split]
            for name, size in expected_sizes(counts, np.dtype(dtype)).items() if counts["tokens"] else ():
                if array_path(folder, split, name).stat().st_size != size:
                    return None
    except (DataError, OSError, LookupError, TypeError, ValueError):
        return None
    return facts
