"""Attention that depends on the distance of two tokens, shared by BERT's ablation, DeBERTa and XLNet.

BERT adds a learned vector for each absolute position to the embeddings. The relatives in this package add terms to the
attention scores instead, such as a dot product of the query at position i with a vector for the distance i - j (Shaw et
al., 2018, "Self-attention with relative position representations"; Huang et al., 2020).

Computed naively, such a term needs the vector of every pair (i, j), a tensor of T * T * D numbers per head. Instead,
the query is multiplied with the vectors of the 2 T possible distances, which gives a (T, 2 T) matrix, and row i of it
is shifted so that column j holds the distance i - j (``relative_shift``; Dai et al., 2019, "Transformer-XL", appendix
B):

    column c: distance T - c        row i, columns T - i to 2 T - 1 - i        result, column j: distance i - j
    [ 3  2  1  0 -1 -2]             row 0:          [ 0 -1 -2]                 [ 0 -1 -2]
    [ 3  2  1  0 -1 -2]      ->     row 1:       [ 1  0 -1]             ->     [ 1  0 -1]
    [ 3  2  1  0 -1 -2]             row 2:    [ 2  1  0]                       [ 2  1  0]

``DistanceAttention`` is the attention of a BERT whose ``position_kind`` is ``relative_key`` or
``relative_key_query``, as in the ``transformers`` library up to version 4. It shows what relative positions alone
contribute, so that DeBERTa and XLNet do not get the credit for it. Unlike there, the model has no unused table of
absolute positions.

Dimensions: B sequences, T tokens, A heads, D head size, P queries per sequence, M requested positions, H hidden size.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from cloze.model.building_blocks import table
from cloze.model.config import BertConfig
from cloze.model.encoder import DistanceTerms, SelfAttention, masked_softmax


def relative_shift(scores: Tensor) -> Tensor:
    """Move each row so that columns are keys instead of distances: (..., T, 2 T) -> (..., T, T).

    Column c of the input belongs to the distance T - c, so column 0 is never used. The result is a view: in memory, the
    element for query i and key j is at i * 2 T + (T - i + j) = T + i * (2 T - 1) + j, so it suffices to skip T elements
    and read rows of 2 T - 1.
    """
    length = scores.shape[-2]
    rows = scores.flatten(-2)[..., length:]  # (..., T * (2 T - 1))
    return rows.view(*rows.shape[:-1], length, 2 * length - 1)[..., :length]


def distances(length: int, device: torch.device) -> Tensor:
    """Return the distances T, T - 1, ..., -T of a sequence: (2 T + 1,).

    The first 2 T are the columns that ``relative_shift`` expects for the distance i - j of query i and key j. The last
    2 T in reverse are those for j - i.
    """
    return torch.arange(length, -length - 1, -1, device=device)


def log_buckets(away: Tensor, buckets: int, reach: int) -> Tensor:
    """Replace far distances by the number of their bucket, of any shape.

    For DeBERTa 2. Distances of up to half of ``buckets`` are kept. The other half of the numbers is divided among the
    distances up to ``reach`` in proportion to their logarithm.
    """
    middle = buckets // 2
    far = torch.where(away.abs() < middle, middle - 1, away.abs())
    # The order of operations is that of Microsoft's code: ceil is sensitive to the last bit.
    share = torch.log(far / middle) / torch.log(torch.tensor((reach - 1) / middle))
    bucket = (torch.ceil(share * (middle - 1)) + middle).long()
    return torch.where(far <= middle, away, bucket * away.sign())


def gather_distances(scores: Tensor, positions: Tensor, length: int) -> Tensor:
    """Select the distance of each query to each key, for queries at any positions.

    Args:
        scores: Scores by distance, (B, A, P, 2 T) or wider; column c belongs to the distance T - c.
        positions: Position of each query in its sequence, (B, P).
        length: T.

    Returns:
        Scores by key, (B, A, P, T).
    """
    columns = length - positions[:, :, None] + torch.arange(length, device=positions.device)  # (B, P, T)
    return scores.gather(-1, columns[:, None].expand(-1, scores.shape[1], -1, -1))


@dataclass(frozen=True)
class Slots:
    """Requested positions of a batch arranged as a rectangle: one row per sequence, P slots each."""

    order: Tensor  # (M,), indices that sort the requested positions
    places: Tensor  # (M,), flat indices of the sorted positions in (B, P)
    positions: Tensor  # (B, P), position of each slot in its sequence; 0 in unused slots
    flat: Tensor  # (M,), the sorted requested positions

    @classmethod
    def of(cls, needed: Tensor, batch: int, length: int) -> "Slots":
        """Arrange unique flat positions (M,) of a (B, T) batch."""
        flat, order = needed.sort()
        rows = flat // length  # (M,)
        counts = torch.bincount(rows, minlength=batch)  # (B,)
        starts = counts.cumsum(0) - counts
        size = int(counts.max()) if len(flat) else 0
        places = rows * size + torch.arange(len(flat), device=flat.device) - starts[rows]
        positions = flat.new_zeros(batch * size).index_copy_(0, places, flat % length)
        return cls(order, places, positions.view(batch, size), flat)

    def spread(self, states: Tensor) -> Tensor:
        """Arrange states of the sorted positions: (M, H) -> (B, P, H), zero in unused slots."""
        grid = states.new_zeros(self.positions.numel(), states.shape[-1]).index_copy_(0, self.places, states)
        return grid.view(*self.positions.shape, -1)

    def collect(self, grid: Tensor) -> Tensor:
        """Return the states of the used slots in sorted order: (B, P, H) -> (M, H)."""
        return grid.flatten(0, 1).index_select(0, self.places)


class DistanceAttention(SelfAttention):
    """BERT's self-attention with a learned vector for each distance, (2 P - 1, D) for P positions, in every layer.

    With ``relative_key`` the score of query i and key j is (q_i k_j + q_i d_ij) / sqrt(D), and ``relative_key_query``
    adds k_j d_ij, where d_ij is the vector for the distance i - j.
    """

    def __init__(self, config: BertConfig, *, causal: bool = False) -> None:
        super().__init__(config, causal=causal)
        self.reach = config.positions - 1  # the largest distance
        self.distance = table(2 * config.positions - 1, config.head_size)
        self.reads_keys = config.position_kind == "relative_key_query"

    def distance_terms(self, length: int) -> DistanceTerms:
        """Return the vectors of the distances T, ..., -T: (2 T + 1, D)."""
        rows = (distances(length, self.distance.weight.device) + self.reach).clamp(0, 2 * self.reach)
        return (functional.embedding(rows, self.distance.weight),)

    def weights(self, query: Tensor, key: Tensor, mask: Tensor | None, terms: DistanceTerms) -> Tensor:
        """Return the attention weights: queries and keys (B, A, T, D) -> (B, A, T, T)."""
        assert terms is not None
        length = query.shape[-2]
        vectors = central(terms[0], length)  # (2 T + 1, D), for a group shorter than the longest
        query = query * self.head_size**-0.5
        scores = query @ key.transpose(-2, -1)
        scores = scores + relative_shift(query @ vectors[:-1].T)
        if self.reads_keys:
            # Row j, then column i: the distance i - j is the negative of the one that the shift produces.
            by_key = key * self.head_size**-0.5 @ vectors[1:].flip(0).T  # (B, A, T, 2 T)
            scores = scores + relative_shift(by_key).transpose(-2, -1)
        return masked_softmax(scores, mask)


def central(rows: Tensor, length: int) -> Tensor:
    """Return the rows for the distances T to -T of rows for N to -N: (..., 2 N + 1, D) -> (..., 2 T + 1, D)."""
    longest = rows.shape[-2] // 2
    return rows[..., longest - length : longest + length + 1, :]
