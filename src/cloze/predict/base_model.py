"""The part of ``Model`` that all predictions share: the loaded folder, its adapters, batching, vectors and logits.

``run`` computes sequences in batches of similar length. The result of a text does not depend on the rest of its batch.

Dimensions: B sequences, T tokens, N texts, H hidden size.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from cloze.checkpoint import EmbeddingSettings, ModelFolder, Pooling, find_source, save_folder
from cloze.checkpoint.adapter_folder import AttachedAdapters
from cloze.checkpoint.folder import fingerprint
from cloze.hardware import choose_device
from cloze.model import Backbone, HeadName
from cloze.model.batch import Batch, Result, TokenSequence, collate, join_logits, join_vectors, run_batched
from cloze.model.surgery import Head, prune_heads, without_heads
from cloze.options import LongTexts, PrecisionName
from cloze.predict.embeddings.pooling import (
    cut_vectors,
    kept_size,
    layer_indices,
    make_vectors,
    mean_states,
)
from cloze.predict.fill_mask import Floats
from cloze.predict.preprocessing import (
    InputWarnings,
    adds_columns,
    put_in_front,
    read_texts,
    require_head,
    require_pairs,
)
from cloze.predict.quantization.precision import precision_of, set_precision, use_products
from cloze.predict.results import describe_model
from cloze.tasks.kind import TaskKind, TaskLabels
from cloze.tasks.registry import find_kind
from cloze.text import Encoding, Tokenizer
from cloze.threads import AdaptiveThreads

if TYPE_CHECKING:
    from cloze.predict.corrector import Corrector


class BaseModel:
    """An encoder with its tokenizer, its heads and the steps that all predictions share; see ``Model``."""

    def __init__(
        self, folder: ModelFolder, *, device: str | None = None, precision: PrecisionName | None = None
    ) -> None:
        self._folder, self._adapters = folder, AttachedAdapters(folder)
        self._before_batch: Callable[[], object] | None = None
        self._corrector: Corrector | None = None
        self.warnings, self._threads = InputWarnings(), AdaptiveThreads()
        self.device = choose_device(device)
        self.bert: Backbone = folder.model.to(self.device).eval()
        if precision is not None:  # by default, the model is used in its current precision
            set_precision(folder, precision, self.device)

    def __repr__(self) -> str:
        return describe_model(self, self._folder)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model."""
        return self._folder.tokenizer

    @property
    def heads(self) -> tuple[HeadName, ...]:
        """The names of the model's heads."""
        return self.bert.head_names

    @property
    def task(self) -> TaskLabels | None:
        """Labels and settings of the fine-tuned head; None if there is none."""
        return self._folder.task

    @property
    def kind(self) -> TaskKind | None:
        """The kind of task that the model was fine-tuned for; None for a pre-trained model."""
        return None if self.task is None else find_kind(self.task.kind)

    @property
    def correcting(self) -> float | None:
        """Confidence threshold of a model that was fine-tuned for correction; None for all other models."""
        return self._folder.correcting

    @property
    def embedding(self) -> EmbeddingSettings:
        """The embedding settings: pooling, normalization and projections."""
        return self._folder.embedding

    @property
    def precision(self) -> PrecisionName:
        """The precision of the layers: fp32, bf16 or int8."""
        return precision_of(self.bert)

    @property
    def fingerprint(self) -> str:
        """A hash of everything that affects results: weights, vocabulary and settings."""
        return fingerprint(self._folder)

    def save(self, folder: str | Path) -> None:
        """Write the model to a folder that ``cloze``, ``transformers`` and ``sentence-transformers`` can load.

        Args:
            folder: The folder to write to.

        Example:
            >>> cloze.load().save("copy")
        """
        save_folder(self._folder, Path(folder))

    # -- adapters ----------------------------------------------------------------------------------------------------

    def attach(self, name: str, folder: str | Path) -> None:
        """Load an adapter that was trained on this model; ``use`` activates it.

        Args:
            name: A name for the adapter.
            folder: The folder or run of the adapter.

        Raises:
            CheckpointError: If the adapter was trained on another model.

        Example:
            >>> model = cloze.load("base")
            >>> model.attach("reviews", "runs/adapter")
            >>> model.use("reviews")
        """
        self._adapters.attach(name, find_source(folder), self.device)

    def use(self, name: str | None) -> None:
        """Activate an attached adapter. Not safe while another thread uses the model.

        Args:
            name: The name given to ``attach``; None for the base model.

        Example:
            >>> cloze.load().use(None)
        """
        self._folder = self._adapters.use(name)

    # -- vectors and logits ------------------------------------------------------------------------------------------

    @adds_columns()
    def embed(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        pooling: Pooling | None = None,
        layer: int | Sequence[int] = -1,
        long_texts: LongTexts = "cut",
        prompt: str | None = None,
        dimensions: int | None = None,
    ) -> Floats:
        """Embed texts, or pairs of texts, as vectors.

        Args:
            texts: Texts, or a data frame.
            pairs: One second text for each.
            pooling: cls, mean, max, mean_max, mean_words or pooler; by default, the model's own.
            layer: The layer to pool, 0 for the embeddings and -1 for the last; several are averaged.
            long_texts: Treatment of texts beyond the maximum length: cut truncates them, head-tail keeps both ends,
                and windows averages the vectors of windows, weighted by their tokens.
            prompt: query or document: put the model's prefix for such texts before each of them, if it has one; or the
                prefix itself, such as "search: ".
            dimensions: Keep only this many values per vector, for models trained for it (Matryoshka).

        Returns:
            One vector per text, (N, H).

        Example:
            >>> cloze.load().embed(["a ship at sea", "a boat"], pooling="mean").shape
            (2, 256)
        """
        if prefix := "" if prompt is None else self.embedding.prompt(prompt):
            texts = put_in_front(prefix, texts)
        return self.embed_encoded(self._encode_long(texts, pairs, long_texts), pooling, layer, dimensions)

    @torch.inference_mode()
    def embed_encoded(
        self,
        windows: Sequence[Sequence[Encoding]],
        pooling: Pooling | None = None,
        layer: int | Sequence[int] = -1,
        dimensions: int | None = None,
    ) -> Floats:
        """Embed tokenized texts; see ``embed``.

        Args:
            windows: The sequences of each text: one, or several windows.
            pooling: The pooling; by default, the model's own.
            layer: The layer to pool.
            dimensions: Number of values to keep per vector.

        Returns:
            One vector per text, (N, H).

        Example:
            >>> model = cloze.load()
            >>> model.embed_encoded([[model.tokenizer("a boat")]]).shape
            (1, 256)
        """
        layers = layer_indices(layer, self.bert.config.layers)
        make = make_vectors(self._folder, pooling, last=layers == (self.bert.config.layers,))
        size = kept_size(dimensions, make.width(self.bert.config.hidden_size))

        def step(batch: Batch) -> list[Floats]:
            return list(make(mean_states(self.bert, batch, layers), batch).cpu().numpy())

        rows = self.run([window for text in windows for window in text], step)
        if not rows:
            return np.zeros((0, size), np.float32)
        return cut_vectors(join_vectors(windows, rows, normalize=make.normalize), size, normalize=make.normalize)

    def logits(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Floats:
        """Return the raw outputs of the sequence head.

        Args:
            texts: Texts.
            pairs: One second text for each.

        Returns:
            The logits, (N, labels); for texts that are split into windows, their mean.

        Example:
            >>> logits = cloze.load("runs/reviews").logits(["A wonderful film."])
        """
        require_head(self.bert, "sequence")
        return self.logits_encoded(self._encode_long(texts, pairs))

    @torch.inference_mode()
    def logits_encoded(self, windows: Sequence[Sequence[Encoding]]) -> Floats:
        """Return the raw outputs of the sequence head for tokenized texts; see ``logits``.

        Args:
            windows: The sequences of each text: one, or several windows.

        Returns:
            The logits, (N, labels).

        Example:
            >>> model = cloze.load("runs/reviews")
            >>> logits = model.logits_encoded([[model.tokenizer("A wonderful film.")]])
        """
        require_head(self.bert, "sequence")

        def step(batch: Batch) -> list[Floats]:
            return list(self._pooled_logits("sequence", batch).cpu().numpy())

        rows = self.run([window for text in windows for window in text], step)
        if not rows:
            return np.zeros((0, self.bert.labels), np.float32)
        return join_logits(windows, rows)

    # -- attention heads ---------------------------------------------------------------------------------------------

    def without_heads(self, heads: Collection[Head]) -> AbstractContextManager[None]:
        """Disable attention heads while a ``with`` block runs.

        Args:
            heads: The heads as (layer, head), counted from 0.

        Returns:
            A context manager.

        Example:
            >>> model = cloze.load()
            >>> with model.without_heads([(0, 1), (2, 3)]):
            ...     words = model.fill("He shook his [MASK].")
        """
        return without_heads(self.bert, heads)

    def prune_heads(self, heads: Collection[Head]) -> None:
        """Remove attention heads permanently by setting their weights to zero; a saved folder stays compatible.

        Args:
            heads: The heads as (layer, head), counted from 0.

        Example:
            >>> cloze.load().prune_heads([(0, 1)])
        """
        prune_heads(self.bert, heads)
        # Layers of lower precision use copies of the weights, which must be created again.
        use_products(self.bert, self.precision, {})

    # -- shared steps ------------------------------------------------------------------------------------------------

    def _encode(self, texts: Sequence[str], pairs: Sequence[str] | None) -> list[Encoding]:
        return [encoding for (encoding,) in self._encode_long(texts, pairs, "cut")]

    def _encode_long(
        self, texts: Sequence[str], pairs: Sequence[str] | None, how: LongTexts | None = None
    ) -> list[list[Encoding]]:
        """Encode each text as one or more sequences, and warn about truncation and unknown tokens.

        Long texts are handled as ``how`` specifies; by default, as in fine-tuning.
        """
        if how is None:
            require_pairs(self.bert.pooling == "separate", pairs)
            how = self.task.long_texts if self.task else "cut"
        encoded = read_texts(self.tokenizer, texts, pairs, how, segments=self.bert.config.segments)
        self.warnings.check(self.tokenizer, encoded, texts, pairs)
        return encoded

    def _collate(self, encodings: Sequence[Encoding]) -> Batch:
        return collate(encodings, self.tokenizer.pad_id, self.device)

    def run(self, encodings: Sequence[TokenSequence], step: Callable[[Batch], Sequence[Result]]) -> list[Result]:
        """Apply a function to batches of sequences.

        Args:
            encodings: The sequences.
            step: Maps a batch to one result per sequence.

        Returns:
            One result per sequence, in the order of ``encodings``.

        Example:
            >>> model = cloze.load()
            >>> model.run([model.tokenizer("a boat")], lambda batch: [row.tolist() for row in batch.ids])
            [[...]]
        """

        def checked_step(batch: Batch) -> Sequence[Result]:
            if self._before_batch is not None:
                self._before_batch()
            return self._threads.run(step, batch)

        return run_batched(encodings, self.tokenizer.pad_id, self.device, checked_step)

    @contextmanager
    def before_each_batch(self, check: Callable[[], object]) -> Iterator[None]:
        """Call a function before each batch while a ``with`` block runs, for example to cancel long computations.

        Args:
            check: The function. An exception that it raises stops the computation. It may itself compute with the
                model, in a nested block.

        Returns:
            A context manager.

        Example:
            >>> model = cloze.load()
            >>> with model.before_each_batch(lambda: None):
            ...     vectors = model.embed(["a boat"])
        """
        outer, self._before_batch = self._before_batch, check
        try:
            yield
        finally:
            self._before_batch = outer

    def _pooled_logits(self, head: HeadName, batch: Batch) -> Tensor:
        """Return the float32 logits, (B, labels), of a head on the pooled vector."""
        logits: Tensor = self.bert.heads[head](self.bert.head_input(head, batch.ids, batch.segments, batch.mask))
        return logits.float()

    @torch.inference_mode()
    def _sentences(self, head: HeadName, firsts: Sequence[str], seconds: Sequence[str]) -> list[float]:
        def step(batch: Batch) -> list[float]:
            return self._pooled_logits(head, batch).softmax(-1)[:, 0].tolist()

        return self.run(self._encode(firsts, seconds), step)
