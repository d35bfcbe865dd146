"""The methods of ``Model`` about vectors beyond ``embed``: words, hidden states, whitening and reranking.

Dimensions: N texts, T tokens, H hidden size, L layers.
"""

from collections.abc import Sequence
from typing import Self

import numpy as np
import torch

from cloze.checkpoint import Pooling
from cloze.checkpoint.pooling_files import DOCUMENT, QUERY
from cloze.errors import RequestError
from cloze.predict.base_model import BaseModel
from cloze.predict.embeddings.pooling import token_states, word_vector
from cloze.predict.fill_mask import Floats
from cloze.predict.results import Ranked


class VectorModel(BaseModel):
    """An encoder with the methods about vectors; see ``Model``."""

    def word(self, word: str, text: str, occurrence: int = 1, layer: int | Sequence[int] = -1) -> Floats:
        """Return the contextual vector of a word in a text, (H,): the mean over its pieces.

        Args:
            word: The word, as it occurs in the text.
            text: The text.
            occurrence: Which occurrence of the word, counted from 1.
            layer: The layer, 0 for the embeddings and -1 for the last; several are averaged.

        Returns:
            One vector.

        Example:
            >>> cloze.load().word("bank", "They sat on the bank of the river.").shape
            (256,)
        """
        return word_vector(self, word, text, occurrence, layer)

    @torch.inference_mode()
    def hidden(self, text: str, pair: str | None = None, layer: int | None = -1) -> Floats:
        """Return the hidden states of the tokens of a text or of a pair of texts.

        Args:
            text: The text.
            pair: A second text.
            layer: The layer, 0 for the embeddings and -1 for the last; None for all.

        Returns:
            The states, (T, H); of all layers, (L + 1, T, H).

        Example:
            >>> cloze.load().hidden("a ship").shape  # [CLS] a ship [SEP]
            (4, 256)
        """
        (encoding,) = self._encode([text], None if pair is None else [pair])
        return token_states(self.bert, self._collate([encoding]), layer)

    def whiten(self, texts: Sequence[str], dimensions: int | None = None, pooling: Pooling | None = None) -> Self:
        """Return the same model with whitened vectors, optionally with fewer dimensions.

        Args:
            texts: A few hundred texts to fit whitening on.
            dimensions: Number of dimensions to keep; by default, all with variance.
            pooling: A pooling other than the model's own; its other embedding settings are then dropped.

        Returns:
            A model with the same weights.

        Example:
            >>> texts = ["a ship at sea", "a boat", "the price of bread", "a loaf", "sailors far from land"]
            >>> cloze.load().whiten(texts, dimensions=2).embed(["a harbour"]).shape
            (1, 2)
        """
        from cloze.predict.embeddings.vector_quality import with_whitening

        return type(self)(
            with_whitening(self._folder, self.device, texts, dimensions, pooling), device=str(self.device)
        )

    # -- reranking ---------------------------------------------------------------------------------------------------

    @property
    def is_cross_encoder(self) -> bool:
        """Whether the model has a head with one output, which scores a query and a document together."""
        return "sequence" in self.bert.heads and self.bert.labels == 1

    def rerank(self, query: str, documents: Sequence[str], top: int | None = None) -> list[Ranked]:
        """Sort documents by their relevance to a query.

        A cross-encoder, as trained by ``cloze finetune rerank``, reads query and document together, and scores from 0
        to 1. With any other model without a task head, the score is the cosine of the two vectors.

        Args:
            query: The query.
            documents: The documents.
            top: Number of documents to return; by default, all.

        Returns:
            The documents with their scores and indices, the best first; equal scores keep their order.

        Raises:
            RequestError: If the model has a head for another task, or ``top`` is less than 1.

        Example:
            >>> best = cloze.load().rerank("Where is the ship?", ["It is at sea.", "Bread is dear."], top=1)[0]
        """
        if top is not None and top < 1:
            raise RequestError(f"top is {top}; expected at least 1")
        scores = self.rerank_scores([query] * len(documents), documents)
        order = np.argsort(-scores, kind="stable")[:top]
        return [Ranked(int(index), float(scores[index]), documents[index]) for index in order]

    def rerank_scores(self, queries: Sequence[str], documents: Sequence[str]) -> Floats:
        """Return the relevance of each document to its query; see ``rerank``.

        Args:
            queries: The queries.
            documents: One document for each.

        Returns:
            The scores, (N,): probabilities of a cross-encoder, or cosines.

        Example:
            >>> scores = cloze.load().rerank_scores(["Where is the ship?"], ["It is at sea."])
        """
        if self.is_cross_encoder:
            logits = self.logits(queries, documents)[:, 0].astype(np.float64)
            return (1 / (1 + np.exp(-logits))).astype(np.float32)
        if self.task is not None:
            raise RequestError(
                f"this model was fine-tuned for {self.task.kind}; use a cross-encoder made with cloze finetune rerank, "
                "or a model of text vectors"
            )
        if len(queries) != len(documents):
            raise RequestError(f"{len(queries)} queries, but {len(documents)} documents; expected one for each")
        # Each different query is encoded only once.
        rows = {query: row for row, query in enumerate(dict.fromkeys(queries))}
        firsts = _unit(self.embed(list(rows), prompt=QUERY))[[rows[query] for query in queries]]
        return (firsts * _unit(self.embed(documents, prompt=DOCUMENT))).sum(1)  # type: ignore[no-any-return]


def _unit(vectors: Floats) -> Floats:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(lengths, 1e-12)  # type: ignore[no-any-return]
