"""Relations between the tokens of a sequence: relatedness, predictiveness, and the states of every layer.

Two tokens are related if their input embeddings are close, or if a word list groups them. Input embeddings have no
context, so the measure is independent of the heads that it is used to judge. Closeness is CSLS (Conneau et al., 2018):
the cosine, corrected by the mean cosine of each token with its nearest neighbours. Without the correction, frequent
tokens such as "of" and "the" would count as related only because they lie in a dense region.

Predictive tokens are measured with the model itself, by masking. With a masked-LM head: mask token i, then mask
tokens i and j; the increase of the loss at i is the influence of j on i. Both directions of a pair come from one
forward pass. Without that head: mask token j; the influence is one minus the cosine between the last states at i with
and without the mask, which measures the effect on the model's states rather than on its predictions.

Layer by layer, for the pages of ``views``: the neighbours of a token are the tokens of the text with the most similar
states, and the vocabulary pieces with the most similar input embeddings. The logit lens applies the masked-LM head to
the states of every layer. The head was trained only on the last layer; its output for other layers shows where a word
is decided, but is not a prediction of the model.

Dimensions: B masked copies, T tokens, L layers, N ordinary tokens or positions, K neighbours, V vocabulary,
E embedding size, H hidden size.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from cloze.errors import DataError
from cloze.files import Lines, open_file
from cloze.inspect.patterns import BoolArray
from cloze.model import Backbone
from cloze.model.batch import TOKEN_BUDGET
from cloze.predict import Filled
from cloze.predict.model import Model
from cloze.text import Encoding, Tokenizer
from cloze.text.encoding import Word

# The threshold of closeness is a quantile over the pairs of at most this many tokens of the corpus.
_COMPARED = 2000
# Number of nearest neighbours in the CSLS correction.
_NEIGHBOURS = 10

WordGroups = Mapping[str, frozenset[int]]  # word -> line numbers of its groups
InfluenceMeasure = Literal["loss of masked words", "change of the last states"]


def read_related(path: Path) -> WordGroups:
    """Read groups of related words: one group per line, words separated by spaces."""
    groups: dict[str, frozenset[int]] = {}
    with open_file(path) as stream:
        lines = Lines(path, stream)
        for line in lines:
            words = line.casefold().split()
            if len(words) == 1:
                raise DataError(f"{lines.place}: {line[:50]!r} is one word; expected two or more that belong together")
            for word in words:
                groups[word] = groups.get(word, frozenset()) | {lines.number}
    if not groups:
        raise DataError(f"{path}: contains no words; expected groups of related words, one group per line")
    return groups


class Relatedness:
    """Decides which tokens are related.

    Args:
        vectors: The model's input embeddings, (V, E).
        encodings: The sequences of the corpus.
        share: Fraction of the pairs of different tokens, closest first, that count as related.
        groups: Words that always count as related.
        seed: Random seed for the sample of tokens that the threshold is estimated from.
    """

    def __init__(
        self,
        vectors: NDArray[np.float32],
        encodings: Sequence[Encoding],
        share: float,
        groups: WordGroups | None = None,
        seed: int = 0,
    ) -> None:
        used = np.unique(np.concatenate([encoding.ids for encoding in encodings]))
        compared = used
        if len(used) > _COMPARED:
            compared = np.sort(np.random.default_rng(seed).choice(used, _COMPARED, replace=False))
        # Subtract the mean, because embeddings share a common direction that does not distinguish them.
        centred = vectors - vectors[used].mean(0)
        self._vectors = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)  # (V, E)
        cosines = self._vectors[used] @ self._vectors[compared].T
        cosines[used[:, None] == compared] = -1.0  # a token is not its own neighbour
        self._density = np.zeros(len(vectors), np.float32)
        self._density[used] = np.sort(cosines, axis=1)[:, -_NEIGHBOURS:].mean(1)
        pairs = self._closeness(compared)[np.triu_indices(len(compared), k=1)]
        self.threshold = float(np.quantile(pairs, 1 - share)) if len(pairs) else np.inf
        self._groups = groups or {}

    def matrix(self, encoding: Encoding, words: Sequence[Word] = ()) -> BoolArray:
        """Return whether each pair of tokens of a sequence is the same or related, (T, T).

        Args:
            encoding: The sequence.
            words: Its words, which are looked up in the groups.
        """
        ids = np.array(encoding.ids)
        close = self._closeness(ids) > self.threshold
        listed = np.zeros_like(close)
        if self._groups:
            groups = [frozenset[int]()] * len(ids)
            for word in words:
                of_word = self._groups.get(word.text.casefold(), frozenset())
                groups[word.first : word.first + len(word.ids)] = [of_word] * len(word.ids)
            listed = np.array([[bool(row & column) for column in groups] for row in groups])
        related: BoolArray = (ids[:, None] == ids) | close | listed
        return related

    def _closeness(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the CSLS similarity of each pair of tokens, (N,) -> (N, N)."""
        cosines = self._vectors[ids] @ self._vectors[ids].T
        closeness: NDArray[np.float32] = 2 * cosines - self._density[ids][:, None] - self._density[ids]
        return closeness


def influence_measure(model: Model) -> InfluenceMeasure:
    """Return how the influence of tokens on each other is measured with this model."""
    return "loss of masked words" if "mlm" in model.heads else "change of the last states"


@torch.inference_mode()
def masking_influences(model: Model, encoding: Encoding) -> NDArray[np.float64]:
    """Measure the effect of masking the column's token on the row's token.

    Returns:
        The influences, (T, T); zero at special tokens and on the diagonal.
    """
    positions = [index for index, source in enumerate(encoding.sources) if source is not None]
    influence = np.zeros((len(encoding.ids),) * 2)
    if len(positions) > 1:
        measure = _loss_increases if "mlm" in model.heads else _state_changes
        influence[np.ix_(positions, positions)] = measure(model, encoding, torch.tensor(positions))
    np.fill_diagonal(influence, 0.0)
    return influence


def top_influences(influence: NDArray[np.float64], top: int) -> BoolArray:
    """Mark the ``top`` most influential tokens per row, among those with a positive influence, (T, T)."""
    order = np.argsort(-influence, axis=-1, kind="stable")[:, :top]
    selected = np.zeros(influence.shape, bool)
    np.put_along_axis(selected, order, True, axis=-1)
    return selected & (influence > 0)


def _loss_increases(model: Model, encoding: Encoding, positions: Tensor) -> NDArray[np.float64]:
    """Return the increase of the loss at the row's token when the column's token is masked too, (N, N)."""
    count = len(positions)
    first, second = torch.triu_indices(count, count)  # every pair, and each token with itself
    targets = torch.tensor(encoding.ids)[positions].to(model.device)
    losses = torch.zeros(count, count)  # loss at the row's token with the column's masked as well
    for part in _batch_slices(len(first), len(encoding.ids)):
        both = torch.stack([first[part], second[part]])  # (2, B)
        states = _masked_states(model, encoding, positions[both], for_words=True)  # (B, T, H)
        rows = torch.arange(states.shape[0])
        for predicted, other in (both, both.flip(0)):
            logits = model.bert.heads["mlm"](states[rows, positions[predicted]])  # (B, V)
            loss = functional.cross_entropy(logits.float(), targets[predicted], reduction="none")
            losses[predicted, other] = loss.cpu()
    increases: NDArray[np.float64] = (losses - losses.diagonal()[:, None]).double().numpy()
    return increases


def _state_changes(model: Model, encoding: Encoding, positions: Tensor) -> NDArray[np.float64]:
    """Return one minus the cosine of the row's last state with and without the column's token masked, (N, N)."""
    changes = torch.zeros(len(positions), len(positions))
    unmasked = _masked_states(model, encoding, torch.zeros(0, 1, dtype=torch.long))[:, positions]  # (1, N, H)
    for part in _batch_slices(len(positions), len(encoding.ids)):
        states = _masked_states(model, encoding, positions[part][None])[:, positions]  # (B, N, H)
        changes[:, part] = (1 - functional.cosine_similarity(states, unmasked, dim=-1)).T.cpu()
    result: NDArray[np.float64] = changes.double().numpy()
    return result


def _masked_states(model: Model, encoding: Encoding, masked: Tensor, *, for_words: bool = False) -> Tensor:
    """Return the last states of copies of a sequence, each with its column's tokens masked: (M, B) -> (B, T, H).

    ``for_words``: the states for the masked-word head, which differ in some architectures.
    """
    ids = torch.tensor(encoding.ids).repeat(masked.shape[1], 1)
    ids[torch.arange(masked.shape[1]), masked] = model.tokenizer.mask_id
    segments = torch.tensor(encoding.segments).expand_as(ids)
    ids, segments = ids.to(model.device), segments.to(model.device)
    if not for_words:
        return model.bert.encode(ids, segments).last
    blanks = ids.flatten().eq(model.tokenizer.mask_id).nonzero().flatten()
    return model.bert.word_states(ids, segments, None, blanks)


def _batch_slices(count: int, length: int) -> Iterator[slice]:
    """Split copies of a sequence into batches of at most ``TOKEN_BUDGET`` tokens."""
    size = max(1, TOKEN_BUDGET // length)
    return (slice(start, start + size) for start in range(0, count, size))


# -- states of every layer ---------------------------------------------------------------------------------------------


# Maximum number of positions; each takes L + 1 products with the embedding table, which take a few milliseconds each.
MAX_POSITIONS = 128
TOP_WORDS = 5
# The number of neighbours that fits on a screen.
NEIGHBOURS = 8


@dataclass(frozen=True)
class LayerFills:
    """The most likely words at some positions, for the embeddings and every layer."""

    places: tuple[int, ...]  # N token indices
    words: tuple[tuple[tuple[Filled, ...], ...], ...]  # L + 1 tuples of N tuples of words


@dataclass(frozen=True)
class Neighbours:
    """The nearest other tokens of each token, nearest first, for the embeddings and every layer."""

    places: NDArray[np.int64]  # (L + 1, T, K), token indices
    cosines: NDArray[np.float32]  # (L + 1, T, K)


def choose_positions(ids: Sequence[int], mask_id: int, most: int = MAX_POSITIONS) -> list[int]:
    """Return the positions to apply the lens to, in order: all, or in a long text, preferably the blanks."""
    blanks = [index for index, piece in enumerate(ids) if piece == mask_id]
    others = [index for index, piece in enumerate(ids) if piece != mask_id]
    return sorted([*blanks, *others][:most])


@torch.inference_mode()
def fill_layers(
    bert: Backbone, tokenizer: Tokenizer, states: Sequence[Tensor], places: Sequence[int], top: int = TOP_WORDS
) -> LayerFills:
    """Apply the masked-LM head to the states of every layer.

    Args:
        bert: A model with a masked-LM head.
        tokenizer: Its tokenizer.
        states: L + 1 tensors (T, H), the embeddings first.
        places: Indices of the tokens to predict.
        top: Number of words per place.
    """
    layers = []
    for state in states:  # one layer at a time, to hold only (N, V) probabilities
        probabilities = bert.heads["mlm"](state[list(places)]).float().softmax(-1)[:, : tokenizer.size]  # (N, V)
        best = probabilities.topk(min(top, tokenizer.size))
        rows = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        layers.append(
            tuple(
                tuple(Filled(tokenizer.piece(piece), value) for value, piece in zip(values, pieces, strict=True))
                for values, pieces in rows
            )
        )
    return LayerFills(tuple(places), tuple(layers))


def nearest_tokens(states: NDArray[np.float32], count: int = NEIGHBOURS) -> Neighbours:
    """Return the nearest other tokens by cosine: (L + 1, T, H) -> (L + 1, T, K), K < ``count`` in short texts."""
    kept = min(count, states.shape[1] - 1)
    places, cosines = [], []
    for layer in states:
        directions = _normalize(layer)
        similarities = directions @ directions.T  # (T, T)
        np.fill_diagonal(similarities, -np.inf)  # a token is not its own neighbour
        order = np.argsort(-similarities, axis=1, kind="stable")[:, :kept]
        places.append(order)
        cosines.append(np.take_along_axis(similarities, order, axis=1))
    return Neighbours(np.stack(places), np.stack(cosines).astype(np.float32))


def nearest_pieces(
    table: NDArray[np.float32], ids: Sequence[int], left_out: Sequence[int] = (), count: int = NEIGHBOURS
) -> dict[int, list[tuple[int, float]]]:
    """Return the pieces with the nearest input embeddings, by cosine.

    Args:
        table: The embedding table, (V, E).
        ids: Pieces to find the neighbours of.
        left_out: Pieces that are never neighbours, such as special tokens.
        count: Number of neighbours per piece.

    Returns:
        Piece id -> (piece id, cosine) pairs, nearest first.
    """
    unique = sorted(set(ids))
    directions = _normalize(table)
    similarities = directions[unique] @ directions.T  # (unique pieces, V)
    similarities[:, list(left_out)] = -np.inf
    similarities[np.arange(len(unique)), unique] = -np.inf
    kept = min(count, table.shape[0] - len(set(left_out)) - 1)
    if kept < 1:
        return {piece: [] for piece in unique}
    order = np.argsort(-similarities, axis=1, kind="stable")[:, :kept]
    cosines = np.take_along_axis(similarities, order, axis=1)
    return {
        piece: list(zip(nearest.tolist(), values.tolist(), strict=True))
        for piece, nearest, values in zip(unique, order, cosines, strict=True)
    }


def _normalize(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale vectors to unit length; zero vectors, such as that of [PAD], stay zero."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    directions: NDArray[np.float32] = vectors / np.maximum(lengths, 1e-12)
    return directions
