"""The teacher's sentence vectors of all texts: computed once by the prediction engine and cached in the run's folder.

The cache is a file of float16 vectors in the order of the texts, appended block by block. An interrupted run continues
after the last complete block. ``teacher.json`` beside it has the key of the cache, a digest of everything that the
vectors depend on, and the precision in which they were computed.

Dimensions: N texts, K size of a vector, D size of the student's pooled vector.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cloze.checkpoint import ModelFolder, Pooling
from cloze.errors import ClozeError, ConfigError, DataError, format_option
from cloze.files import flush, read_json, replace_json
from cloze.hardware import format_bytes
from cloze.model.batch import Batch
from cloze.options import PrecisionName
from cloze.predict import Model
from cloze.predict.embeddings.pooling import make_vectors
from cloze.predict.quantization.precision import set_precision, use_without_int8
from cloze.progress import Interrupted, Progress, heard_at_once
from cloze.tasks.metrics import spearman
from cloze.train.distillation.raw_text import EncodedTexts

Vectors = NDArray[np.float32]
# Texts per block of the cache, the unit of work that is repeated after an interruption.
BLOCK = 2048
_STORED = np.dtype("<f2")
_RECORD, _CACHE, _COMPONENTS = "teacher.json", "vectors.f16", "components.npy"
# Largest absolute value of a float16.
_LARGEST = 65504.0
# Number of texts that PCA is fitted to, and of held-out texts whose pairwise cosines are compared.
_FITTED, _MOST_COMPARED = 10_000, 1000


class TeacherVectors:
    """The vectors of a teacher, cached or computed on request, and optionally reduced by PCA."""

    def __init__(
        self,
        teacher: ModelFolder,
        texts: EncodedTexts,
        folder: Path,
        *,
        pooling: Pooling | None,
        key: Mapping[str, Any],
        device: torch.device,
        precision: PrecisionName = "auto",
    ) -> None:
        """Load the teacher for prediction.

        Args:
            teacher: The teacher.
            texts: The texts, encoded for the teacher.
            folder: The folder for the cache.
            pooling: Its pooling; None for that of its folder.
            key: Everything that the vectors depend on; a cache with another key is computed again.
            device: Where to compute.
            precision: The teacher's precision; auto never uses int8.
        """
        self._texts, self._folder = texts, folder
        self._make = make_vectors(teacher, pooling, last=True)
        self.width = self._make.width(teacher.model.config.hidden_size)
        self._model = Model(teacher, device=str(device))
        self._components: Vectors | None = None  # (K, D)
        self._cached: NDArray[np.float16] | None = None
        self._key = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()
        self._choose_precision(teacher, device, precision)

    @property
    def path(self) -> Path:
        """The file of the cache."""
        return self._folder / _CACHE

    @property
    def size(self) -> int:
        """The size of the complete cache in bytes."""
        return len(self._texts) * self.width * _STORED.itemsize

    def _choose_precision(self, teacher: ModelFolder, device: torch.device, precision: PrecisionName) -> None:
        """Use the recorded precision, because another one would change the vectors; else the given one."""
        record = self._folder / _RECORD
        found = read_json(record, DataError) if record.is_file() else {}
        if found.get("key") == self._key:
            set_precision(teacher, found["precision"], device)
            return
        for path in (self.path, self._folder / _COMPONENTS):
            path.unlink(missing_ok=True)
        if precision != "auto":
            set_precision(teacher, precision, device)
        elif teacher.model.fused_kernels:
            use_without_int8(teacher, device)
        replace_json(record, {"key": self._key, "precision": self._model.precision})

    @torch.inference_mode()
    def compute(self, indices: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float16]:
        """Return the vectors of texts as they are cached, (B, K)."""

        def step(batch: Batch) -> list[Vectors]:
            states = self._model.bert.encode(batch.ids, batch.segments, batch.mask).last
            return list(self._make(states, batch).cpu().numpy())

        vectors = np.stack(self._model.run([self._texts[index] for index in indices], step))
        if not np.abs(vectors).max() <= _LARGEST:
            raise DataError(
                f"the teacher's vectors have values beyond {_LARGEST:g}, the range of float16; check the teacher"
            )
        return vectors.astype(_STORED)

    def fill_cache(self, progress: Progress) -> None:
        """Compute the vectors that are not in the cache yet, and open it.

        Raises:
            ConfigError: If the disk has too little space.
            Interrupted: If a signal arrives; the finished blocks are used when the run is resumed.
        """
        row, total = self.width * _STORED.itemsize, len(self._texts)
        complete = self.path.stat().st_size // row if self.path.is_file() else 0
        # After a power cut, the last block may have its size but not its content.
        done = total if complete == total else max(0, complete // BLOCK - 1) * BLOCK
        if done < total:
            self._require_space(self.size - done * row)
            progress.say(
                f"cache of the teacher's vectors: {total:,} x {self.width} numbers in float16, "
                f"{format_bytes(self.size)} in {self.path}; {format_option('cache', False)} computes them in every step"
            )
            self._append(done, progress)
        self._cached = np.memmap(self.path, _STORED, mode="r", shape=(total, self.width)).view(np.ndarray)

    def _append(self, done: int, progress: Progress) -> None:
        total = len(self._texts)
        try:
            with heard_at_once(), self.path.open("ab") as file:
                file.truncate(done * self.width * _STORED.itemsize)
                while done < total:
                    stop = min(done + BLOCK, total)
                    file.write(self.compute(range(done, stop)).tobytes())
                    file.flush()
                    os.fsync(file.fileno())
                    done = stop
                    progress.advance("teacher vectors", done, total)
            flush(self._folder)
        except Interrupted as stop_signal:
            message = f"stopped after the teacher's vectors of {done:,} texts; run the same command to resume"
            raise Interrupted(stop_signal.number, message) from stop_signal
        except OSError as error:
            raise ClozeError(
                f"{self.path}: cannot be written ({error.strerror}); free some space and run the same command to resume"
            ) from error

    def _require_space(self, needed: int) -> None:
        free = shutil.disk_usage(self._folder).free
        if needed > free:
            raise ConfigError(
                f"{self._folder}: the cache of the teacher's vectors needs {format_bytes(needed)}, but "
                f"{format_bytes(free)} are free; free some space, or use {format_option('cache', False)}"
            )

    def reduce(self, width: int, train: NDArray[np.int64]) -> None:
        """Reduce the vectors to their ``width`` principal directions, fitted to training texts.

        The vectors are not centred, so that the dot products between them change as little as possible.
        """
        path = self._folder / _COMPONENTS
        if not path.is_file():
            vectors = self._raw(train[:: max(1, len(train) // _FITTED)]).astype(np.float64)
            _, directions = np.linalg.eigh(vectors.T @ vectors)
            with path.with_suffix(".partial").open("wb") as file:
                np.save(file, directions[:, ::-1][:, :width].astype(np.float32))  # largest first
            path.with_suffix(".partial").replace(path)
        self._components, self.width = np.load(path), width

    def _raw(self, indices: NDArray[np.int64]) -> NDArray[np.float16]:
        return self.compute(indices) if self._cached is None else self._cached[indices]

    def rows(self, indices: NDArray[np.int64]) -> Tensor:
        """Return the targets of texts, (B, K) or (B, D)."""
        vectors = self._raw(indices).astype(np.float32)
        if self._components is not None:
            vectors = vectors @ self._components
            if self._make.normalize:
                vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return torch.from_numpy(vectors)


def agreement_with_teacher(vectors: Vectors, targets: Vectors) -> dict[str, float]:
    """Return the mean cosine of each vector to the teacher's, and how alike the cosines of all pairs are ordered.

    Args:
        vectors: The student's vectors, (N, K).
        targets: The teacher's vectors of the same texts, (N, K).
    """
    ours, theirs = (
        each / np.maximum(np.linalg.norm(each, axis=1, keepdims=True), 1e-12) for each in (vectors, targets)
    )
    most = min(len(ours), _MOST_COMPARED)
    pairs = np.triu_indices(most, 1)
    cosines = [(each[:most] @ each[:most].T)[pairs] for each in (ours, theirs)]
    return {
        "cosine": float((ours * theirs).sum(1).mean()),
        "spearman": spearman(cosines[1].tolist(), cosines[0].tolist()),
    }
