"""Which tokens of a sequence are the same or related: by their vectors, and by a list of words if there is one.

The vectors are those of the model's own table, which know no context: what a head makes of it is not in the measure
that the head is judged by. Closeness is the cosine less what each of the two tokens has with its own neighbours
(CSLS: Conneau et al., 2018): frequent tokens lie in a crowd, and would have "of" related to "the" by nothing but that.

Dimensions: T tokens, V vocabulary, E table width.

Which tokens predict a token: measured by the model itself, by masking.

With a masked-word head: token i is masked, and its loss is compared with that when token j is masked as well. The rise
is what j tells of i. Both losses of a pair come from one pass. Without that head: token j is masked, and the turn of
the last state at i (one minus the cosine) is taken; that is what the model makes of j, not what a prediction needs.

Dimensions: B masked copies, T tokens, N ordinary tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from cloze.errors import DataError
from cloze.inspect.patterns import Bools
from cloze.lines import Lines, open_file
from cloze.predict.batching import TOKEN_BUDGET
from cloze.predict.model import Model
from cloze.text import Encoding
from cloze.text.encoding import Word

# Pairs among so many tokens of the corpus settle what is close.
_COMPARED = 2000
# The nearest tokens that tell how crowded it is around one.
_NEIGHBOURS = 10

Groups = Mapping[str, frozenset[int]]  # a word, and the numbers of the lines that name it


def read_related(path: Path) -> Groups:
    """Read words that belong together, a group a line, with spaces between them."""
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
        raise DataError(f"{path}: no word in it; expected words that belong together, a group a line")
    return groups


class Relatedness:
    """Tells which tokens are related: the closest pairs of different tokens of a corpus, and those of a list."""

    def __init__(
        self,
        vectors: NDArray[np.float32],
        encodings: Sequence[Encoding],
        share: float,
        groups: Groups | None = None,
        seed: int = 0,
    ) -> None:
        used = np.unique(np.concatenate([encoding.ids for encoding in encodings]))
        compared = used
        if len(used) > _COMPARED:
            compared = np.sort(np.random.default_rng(seed).choice(used, _COMPARED, replace=False))
        # Tables have a direction that all vectors share, and which says nothing about any of them.
        centred = vectors - vectors[used].mean(0)
        self._vectors = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)  # (V, E)
        cosines = self._vectors[used] @ self._vectors[compared].T
        cosines[used[:, None] == compared] = -1.0  # nobody's own neighbour
        self._crowding = np.zeros(len(vectors), np.float32)
        self._crowding[used] = np.sort(cosines, axis=1)[:, -_NEIGHBOURS:].mean(1)
        among = self._closeness(compared)
        pairs = among[np.triu_indices(len(compared), k=1)]
        self.threshold = float(np.quantile(pairs, 1 - share)) if len(pairs) else np.inf
        self._groups = groups or {}

    def matrix(self, encoding: Encoding, words: Sequence[Word] = ()) -> Bools:
        """True where two tokens of a sequence are the same or related, (T, T); ``words`` are the sequence's."""
        ids = np.array(encoding.ids)
        close = self._closeness(ids) > self.threshold
        listed = np.zeros_like(close)
        if self._groups:
            groups = [frozenset[int]()] * len(ids)
            for word in words:
                named = self._groups.get(word.text.casefold(), frozenset())
                groups[word.first : word.first + len(word.ids)] = [named] * len(word.ids)
            listed = np.array([[bool(one & other) for other in groups] for one in groups])
        related: Bools = (ids[:, None] == ids) | close | listed
        return related

    def _closeness(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """How close tokens are to each other for those in their place, (N,) -> (N, N)."""
        cosines = self._vectors[ids] @ self._vectors[ids].T
        closeness: NDArray[np.float32] = 2 * cosines - self._crowding[ids][:, None] - self._crowding[ids]
        return closeness


Measure = Literal["loss of masked words", "change of the last states"]


def measure_of(model: Model) -> Measure:
    """How this model can tell which tokens predict which."""
    return "loss of masked words" if "mlm" in model.heads else "change of the last states"


@torch.inference_mode()
def influences(model: Model, encoding: Encoding) -> NDArray[np.float64]:
    """What masking the column's token does to the row's, (T, T); zero at special tokens and on the diagonal."""
    places = [place for place, source in enumerate(encoding.sources) if source is not None]
    found = np.zeros((len(encoding.ids),) * 2)
    if len(places) > 1:
        rise = _loss_rises if "mlm" in model.heads else _state_turns
        found[np.ix_(places, places)] = rise(model, encoding, torch.tensor(places))
    np.fill_diagonal(found, 0.0)
    return found


def strongest(influence: NDArray[np.float64], top: int) -> Bools:
    """True at the ``top`` tokens that matter most to each, of those that matter at all."""
    order = np.argsort(-influence, axis=-1, kind="stable")[:, :top]
    found = np.zeros(influence.shape, bool)
    np.put_along_axis(found, order, True, axis=-1)
    return found & (influence > 0)


def _loss_rises(model: Model, encoding: Encoding, places: Tensor) -> NDArray[np.float64]:
    count = len(places)
    first, second = torch.triu_indices(count, count)  # every pair, and each token with itself
    targets = torch.tensor(encoding.ids)[places].to(model.device)
    losses = torch.zeros(count, count)  # of the row's token, with the column's masked as well
    for part in _parts(len(first), len(encoding.ids)):
        both = torch.stack([first[part], second[part]])  # (2, B)
        states = _masked_states(model, encoding, places[both])  # (B, T, H)
        rows = torch.arange(states.shape[0])
        for one, other in (both, both.flip(0)):
            logits = model.bert.heads["mlm"](states[rows, places[one]])  # (B, V)
            losses[one, other] = functional.cross_entropy(logits.float(), targets[one], reduction="none").cpu()
    rises: NDArray[np.float64] = (losses - losses.diagonal()[:, None]).double().numpy()
    return rises


def _state_turns(model: Model, encoding: Encoding, places: Tensor) -> NDArray[np.float64]:
    turns = torch.zeros(len(places), len(places))
    whole = _masked_states(model, encoding, torch.zeros(0, 1, dtype=torch.long))[:, places]  # (1, N, H)
    for part in _parts(len(places), len(encoding.ids)):
        states = _masked_states(model, encoding, places[part][None])[:, places]  # (B, N, H)
        turns[:, part] = (1 - functional.cosine_similarity(states, whole, dim=-1)).T.cpu()
    found: NDArray[np.float64] = turns.double().numpy()
    return found


def _masked_states(model: Model, encoding: Encoding, masked: Tensor) -> Tensor:
    """The last states of copies of a sequence, each with the tokens of its column masked: (M, B) -> (B, T, H)."""
    ids = torch.tensor(encoding.ids).repeat(masked.shape[1], 1)
    ids[torch.arange(masked.shape[1]), masked] = model.tokenizer.mask_id
    segments = torch.tensor(encoding.segments).expand_as(ids)
    states: Tensor = model.bert(ids.to(model.device), segments.to(model.device)).last
    return states


def _parts(count: int, length: int) -> Iterator[slice]:
    """Stretches of so many copies as fill a batch."""
    size = max(1, TOKEN_BUDGET // length)
    return (slice(start, start + size) for start in range(0, count, size))
