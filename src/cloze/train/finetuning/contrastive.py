"""Contrastive training of text vectors with large batches in bounded memory.

Each query must identify its own document among all documents of the batch (InfoNCE; ``MultipleNegativesRankingLoss`` in
sentence-transformers). More documents make better negatives, but every vector of a batch enters the loss, so the
activations of the whole batch would have to be in memory. Gradient caching (Gao et al. 2021, "Scaling Deep Contrastive
Learning Batch Size under Memory Limited Setup", section 3) avoids that. The texts are encoded in chunks:

1. Encode each chunk and keep only its vectors.
2. Compute the loss of all vectors, and its gradient with respect to each vector.
3. Encode each chunk again and continue backwards from the gradients of its vectors.

The gradients are exact. Both passes over a chunk seed its random numbers in the same way, so that dropout zeroes the
same elements. The last chunk keeps its activations, and a batch of one chunk is encoded once.

Documents that are known to answer a query are never its negatives, nor are copies of the query itself.

Dimensions: B queries, C different documents of a batch, H size of a vector, K negatives of a row.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from cloze.model import Backbone
from cloze.model.batch import Batch, TokenSequence, collate
from cloze.model.cost import count_activations
from cloze.predict.embeddings.pooling import Pool
from cloze.train.finetuning.objective import shuffle_batches
from cloze.train.loop import ObjectiveOutput

# Default memory for the activations of a chunk.
_CHUNK_BYTES = 2 * 2**30
# Sequences whose estimated memory determines the number of tokens per chunk.
_EXAMPLE_ROWS, _EXAMPLE_TOKENS = 8, 128


# -- losses ------------------------------------------------------------------------------------------------------------


def contrast(
    queries: Tensor, documents: Tensor, temperature: float, targets: Tensor | None = None, ignored: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the summed loss of unit vectors, and how many queries are closest to their own document.

    Args:
        queries: Vectors of the queries, (B, H).
        documents: Vectors of the documents, (C, H).
        temperature: Divisor of the cosines.
        targets: The index of each query's document, (B,); by default, document i belongs to query i.
        ignored: True at documents that are not negatives of a query, (B, C).
    """
    own = torch.arange(len(queries), device=queries.device) if targets is None else targets
    # Not in bfloat16, which rounds off the digits in which cosines differ.
    with torch.autocast(queries.device.type, enabled=False):
        cosines = queries @ documents.T / temperature  # (B, C)
    if ignored is not None:
        cosines = cosines.masked_fill(ignored, float("-inf"))
    return functional.cross_entropy(cosines, own, reduction="sum"), cosines.argmax(-1).eq(own).sum()


def margin_mse(queries: Tensor, documents: Tensor, temperature: float, columns: Tensor, scores: Tensor) -> Tensor:
    """Return the summed squared error of the margins between the first and each other document of a row.

    Distillation from a reranker (Hofstätter et al. 2020): the difference of two scores must be that of the teacher.

    Args:
        queries: Vectors of the queries, (B, H).
        documents: Vectors of the documents, (C, H).
        temperature: Divisor of the cosines, which gives them the range of a teacher's logits.
        columns: Indices of the documents of each row, the positive first, (B, 1 + K).
        scores: The teacher's scores of the same documents, (B, 1 + K); NaN where a row has fewer negatives.
    """
    with torch.autocast(queries.device.type, enabled=False):
        # An embedding lookup, not an index: rows may share a document, and the gradient of an index is summed by
        # threads in no fixed order.
        found = (queries[:, None] * functional.embedding(columns, documents)).sum(-1) / temperature  # (B, 1 + K)
    errors = (found[:, :1] - found[:, 1:]) - (scores[:, :1] - scores[:, 1:])
    known = ~scores[:, 1:].isnan()
    squares = errors.nan_to_num().square().masked_fill(~known, 0.0)
    return (squares.sum(-1) / known.sum(-1).clamp(min=1)).sum()


# -- batches -----------------------------------------------------------------------------------------------------------


class TokenIds(NamedTuple):
    """The ids of one sequence; smaller than an ``Encoding``, of which a corpus would have millions."""

    ids: list[int]
    segments: list[int]


@dataclass(frozen=True)
class ContrastiveBatch:
    """Queries and the different documents of a batch, in chunks of similar length."""

    chunks: tuple[Batch, ...]
    order: Tensor  # (B + C,), the index of each text, queries first, among the texts of all chunks
    targets: Tensor  # (B,), the document of each query
    ignored: Tensor  # (B, C), True at documents that are not negatives of a query
    columns: Tensor | None = None  # (B, 1 + K), for margins: the documents of each row
    scores: Tensor | None = None  # (B, 1 + K), the teacher's scores

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of queries, over which the loss is averaged."""
        return {"targets": len(self.targets)}

    @property
    def token_count(self) -> int:
        """The number of tokens without padding."""
        return sum(int(chunk.real.sum()) for chunk in self.chunks)


@dataclass(frozen=True)
class ContrastiveRows:
    """Encoded training rows: indices into the different queries and documents.

    Attributes:
        texts: All different texts, encoded; queries and documents have different prefixes, so both may occur.
        queries: The text of each row's query, (N,).
        positives: The text of each row's document, (N,).
        negatives: The texts of each row's negatives.
        known: For each query, the documents that must not be its negatives: all that answer it, and its copies.
        scores: The teacher's scores of each row: of the positive, then of the negatives.
    """

    texts: Sequence[TokenSequence]
    queries: NDArray[np.int64]
    positives: NDArray[np.int64]
    negatives: Sequence[Sequence[int]]
    known: Mapping[int, frozenset[int]]
    scores: Sequence[Sequence[float]] | None = None


class ContrastiveBatches:
    """Shuffled batches; order and choice of negatives depend only on the seed and the epoch."""

    def __init__(
        self,
        rows: ContrastiveRows,
        batch_size: int,
        negatives: int,
        chunk_tokens: int,
        seed: int,
        pad_id: int,
        device: torch.device,
    ) -> None:
        """Create the batches; ``negatives`` is the number of hard negatives that are drawn per row and epoch."""
        self.rows, self._batch_size, self._negatives, self._seed = rows, batch_size, negatives, seed
        self._chunk_tokens, self._pad_id, self._device = chunk_tokens, pad_id, device
        self._lengths = np.array([len(text.ids) for text in rows.texts])
        self.steps_per_epoch = -(-len(rows.queries) // batch_size)
        self._epoch, self._batches = -1, list[NDArray[np.int64]]()

    def at(self, step: int, part: int = 0, parts: int = 1, progress: float = 0.0) -> ContrastiveBatch:  # noqa: ARG002
        """Return the batch of a step, which cannot be divided into parts."""
        assert parts == 1, "the documents of a batch are compared with all of its queries"
        return self._collate(self.batch_rows(step), np.random.default_rng([self._seed, 1, step]))

    def batch_rows(self, step: int) -> NDArray[np.int64]:
        """Return the rows of the batch of a step."""
        epoch, index = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._batches = epoch, self._shuffled(epoch)
        return self._batches[index]

    def largest_part(self, parts: int) -> tuple[int, int]:  # noqa: ARG002
        """Return the tokens of the largest chunk, and of the longest sequence."""
        longest = int(self._lengths.max())
        row_texts = 2 + min(self._negatives, max(map(len, self.rows.negatives), default=0))
        return min(self._chunk_tokens, longest * self._batch_size * row_texts), longest

    def _shuffled(self, epoch: int) -> list[NDArray[np.int64]]:
        lengths = self._lengths[self.rows.positives]
        return shuffle_batches(lengths, self._batch_size, np.random.default_rng([self._seed, 0, epoch]))

    def _collate(self, chosen: NDArray[np.int64], generator: np.random.Generator) -> ContrastiveBatch:
        rows = self.rows
        places = [self._choose_negatives(int(row), generator) for row in chosen]
        documents: dict[int, int] = {}
        columns = np.zeros((len(chosen), 1 + max(map(len, places))), np.int64)
        scores = np.full(columns.shape, np.nan, np.float32)
        for line, (row, kept) in enumerate(zip(chosen, places, strict=True)):
            found = [int(rows.positives[row]), *(rows.negatives[row][place] for place in kept)]
            columns[line, : len(found)] = [documents.setdefault(document, len(documents)) for document in found]
            if rows.scores is not None:
                scores[line, : len(found)] = [rows.scores[row][place] for place in (0, *(one + 1 for one in kept))]
        queries = rows.queries[chosen]
        ignored = np.zeros((len(chosen), len(documents)), bool)
        for line, query in enumerate(queries.tolist()):
            ignored[line, [documents[one] for one in rows.known.get(query, ()) if one in documents]] = True
        ignored[np.arange(len(chosen)), columns[:, 0]] = False
        chunks, order = self._chunk([*queries.tolist(), *documents])
        made = [torch.from_numpy(one).to(self._device) for one in (order, columns[:, 0].copy(), ignored)]
        if rows.scores is None:
            return ContrastiveBatch(chunks, *made)
        return ContrastiveBatch(chunks, *made, *(torch.from_numpy(one).to(self._device) for one in (columns, scores)))

    def _choose_negatives(self, row: int, generator: np.random.Generator) -> Sequence[int]:
        """Return the places of the negatives to use of a row, in ascending order."""
        count = len(self.rows.negatives[row])
        if count <= self._negatives:
            return range(count)
        return sorted(generator.choice(count, self._negatives, replace=False).tolist())

    def _chunk(self, texts: Sequence[int]) -> tuple[tuple[Batch, ...], NDArray[np.int64]]:
        """Collate texts in chunks of similar length; return the chunks and where each text is."""
        lengths = self._lengths[list(texts)]
        by_length = np.argsort(lengths, kind="stable")
        ends = list(_chunk_ends(lengths[by_length], self._chunk_tokens))
        chunks = tuple(
            collate([self.rows.texts[texts[place]] for place in part], self._pad_id, self._device)
            for part in np.split(by_length, ends)
        )
        order = np.empty(len(texts), np.int64)
        order[by_length] = np.arange(len(texts))
        return chunks, order


def _chunk_ends(lengths: NDArray[np.int64], tokens: int) -> Iterator[int]:
    """Yield where a new chunk begins, so that each has at most ``tokens`` tokens, or one longer text."""
    total = 0
    for place, length in enumerate(lengths.tolist()):
        if place and total + length > tokens:
            yield place
            total = 0
        total += length


def default_chunk_tokens(model: Backbone) -> int:
    """Return the number of tokens whose activations take about 2 GiB; it depends only on the configuration."""
    needed = count_activations(
        model.config, (), _EXAMPLE_ROWS, _EXAMPLE_TOKENS, chosen=1.0, explicit=True, checkpointing=False
    )
    return max(_EXAMPLE_TOKENS, _CHUNK_BYTES * _EXAMPLE_ROWS * _EXAMPLE_TOKENS // needed)


# -- objective ---------------------------------------------------------------------------------------------------------


class ContrastiveObjective(nn.Module):
    """The contrastive loss of a batch, or the margins of a teacher, with gradient caching."""

    def __init__(
        self,
        model: Backbone,
        pool: Pool,
        temperature: float,
        *,
        symmetric: bool = False,
        margins: bool = False,
        sizes: Sequence[int | None] = (None,),
    ) -> None:
        """Create the objective.

        Args:
            model: The encoder.
            pool: The pooling of its states.
            temperature: Divisor of the cosines.
            symmetric: Whether each document must also identify its query.
            margins: Whether to learn the margins between a teacher's scores, instead of contrasting.
            sizes: Numbers of values to which the vectors are cut (Matryoshka, Kusupati et al. 2022); None for all. The
                loss is the mean over the sizes.
        """
        super().__init__()
        self.model, self._pool, self._temperature, self._sizes = model, pool, temperature, sizes
        self._symmetric, self._margins = symmetric, margins

    def forward(self, batch: ContrastiveBatch, totals: Mapping[str, int]) -> ObjectiveOutput:
        """Return the loss of a batch; its backward pass computes the gradients chunk by chunk."""
        if len(batch.chunks) == 1:
            return self.loss(self._encode(batch.chunks[0]), batch, totals)
        encode = _SeededChunks(self._encode, batch.chunks)
        # Detached one by one: the activations of only one chunk are in memory.
        found = [encode(index).detach() for index in range(len(batch.chunks) - 1)]
        last = encode(len(batch.chunks) - 1)
        vectors = torch.cat([*found, last.detach()]).requires_grad_()
        output = self.loss(vectors, batch, totals)
        (gradient,) = torch.autograd.grad(output.loss, vectors)
        gradients = torch.split(gradient, [len(chunk.ids) for chunk in batch.chunks])
        loss = output.loss.detach().requires_grad_()

        def backward(scale: Tensor) -> None:
            last.backward(scale * gradients[-1])  # type: ignore[no-untyped-call]
            for index, part in enumerate(gradients[:-1]):
                with torch.enable_grad():
                    again = encode(index)
                again.backward(scale * part)  # type: ignore[no-untyped-call]

        loss.register_hook(backward)  # type: ignore[no-untyped-call]
        return ObjectiveOutput(loss, {name: value.detach() for name, value in output.metrics.items()})

    def loss(self, vectors: Tensor, batch: ContrastiveBatch, totals: Mapping[str, int]) -> ObjectiveOutput:
        """Return the loss of the vectors of all chunks, (B + C, H), in the order of the chunks."""
        count = len(batch.targets)
        ordered = vectors.index_select(0, batch.order)
        queries, documents = ordered[:count], ordered[count:]
        losses, right = [], torch.zeros((), device=vectors.device)
        for size in self._sizes:
            found, right = self._loss_of_size(queries[:, :size], documents[:, :size], batch)
            losses.append(found)
        share = 1 / max(1, totals["targets"])
        return ObjectiveOutput(torch.stack(losses).mean() * share, {"accuracy": right * share})

    def _loss_of_size(self, queries: Tensor, documents: Tensor, batch: ContrastiveBatch) -> tuple[Tensor, Tensor]:
        queries, documents = (functional.normalize(vectors, dim=-1) for vectors in (queries, documents))
        loss, right = contrast(queries, documents, self._temperature, batch.targets, batch.ignored)
        if self._margins:
            assert batch.columns is not None
            assert batch.scores is not None
            return margin_mse(queries, documents, self._temperature, batch.columns, batch.scores), right
        if self._symmetric:
            back, _ = contrast(
                functional.embedding(batch.targets, documents),
                queries,
                self._temperature,
                # Another query that the document answers is not a negative of the document.
                ignored=(batch.ignored.T | self._answered(batch))[batch.targets] & ~_diagonal(batch.targets),
            )
            loss = (loss + back) / 2
        return loss, right

    @staticmethod
    def _answered(batch: ContrastiveBatch) -> Tensor:
        """Return which document belongs to which query in this batch, (C, B)."""
        return torch.arange(batch.ignored.shape[1], device=batch.targets.device)[:, None] == batch.targets

    def _encode(self, inputs: Batch) -> Tensor:
        """Return the vectors of a chunk in float32: (n, T) -> (n, H)."""
        last = self.model(inputs.ids, inputs.segments, inputs.mask).last
        return self._pool(last, Batch(inputs.ids, inputs.segments, inputs.real)).float()


def _diagonal(targets: Tensor) -> Tensor:
    return torch.eye(len(targets), dtype=torch.bool, device=targets.device)


class _SeededChunks:
    """Encodes chunks, with the same random numbers and in the same precision each time."""

    def __init__(self, encode: Callable[[Batch], Tensor], chunks: Sequence[Batch]) -> None:
        self._encode, self._chunks = encode, chunks
        # The loop seeds the generator for each part of a batch, so the seeds of the chunks follow from that seed.
        self._seed = torch.initial_seed()
        # The backward pass runs outside of the loop's autocast block.
        self._device = chunks[0].ids.device.type
        self._autocast = torch.is_autocast_enabled(self._device)
        self._dtype = torch.get_autocast_dtype(self._device)

    def __call__(self, index: int) -> Tensor:
        """Return the vectors of a chunk."""
        # SeedSequence mixes both numbers, so that no two chunks share a stream of random numbers.
        seed = np.random.SeedSequence([self._seed, index]).generate_state(1, np.uint64)[0] >> np.uint64(1)
        torch.manual_seed(int(seed))
        # Without a graph, other kernels would compute the states, and draw other random numbers for dropout.
        with torch.autocast(self._device, dtype=self._dtype, enabled=self._autocast):
            return self._encode(self._chunks[index])
