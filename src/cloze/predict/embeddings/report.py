"""Which vectors of a model tell texts apart: the ways side by side, and what to do.

Dimensions: N texts, H hidden size.

Vectors without context, to compare with: averages of a model's own table, and of word2vec's.

Dimensions: N texts, H hidden size.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cloze.checkpoint import Pooling
from cloze.errors import RequestError
from cloze.model.batch import Batch
from cloze.predict.embeddings.pooling import POOL
from cloze.predict.embeddings.whitening import Geometry, fit_whitening, geometry
from cloze.predict.model import Model
from cloze.tasks.similarity.kind import agreement

Vectors = NDArray[np.float32]

_WORD = re.compile(r"\w+|[^\w\s]")
_SIZE, _WINDOW, _PASSES, _RAREST = 100, 5, 10, 2  # of word2vec


def static_vectors(model: Model, texts: Sequence[str]) -> Vectors:
    """The mean of a model's own table over the tokens of each text, (N, H): what it knows before it reads."""
    table = model.bert.token_table.weight.detach().float().cpu().numpy()
    return _means([table[ids] for ids in map(list, model.tokenizer.encode_ids(texts))], table.shape[1])


def train_word2vec(texts: Sequence[str], seed: int = 0) -> Callable[[Sequence[str]], Vectors] | None:
    """Learn word2vec (Mikolov et al. 2013) from texts; what it returns averages a text. None without gensim."""
    try:
        from gensim.models import Word2Vec
    except ImportError:
        return None
    # One worker: with more, the same text and seed give other vectors.
    learned = Word2Vec(
        [_words(text) for text in texts],
        vector_size=_SIZE,
        window=_WINDOW,
        min_count=_RAREST,
        epochs=_PASSES,
        seed=seed,
        workers=1,
    ).wv

    def average(asked: Sequence[str]) -> Vectors:
        known = [[learned[word] for word in _words(text) if word in learned] for text in asked]
        return _means([np.array(rows, np.float32).reshape(-1, _SIZE) for rows in known], _SIZE)

    return average


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _means(rows: Sequence[Vectors], size: int) -> Vectors:
    """The mean of each text's vectors; zeros where it has none."""
    means = [row.mean(0) if len(row) else np.zeros(size, np.float32) for row in rows]
    return np.stack(means) if means else np.zeros((0, size), np.float32)


# Dimensions that whitening keeps, and how many texts it wants to see for each.
_SIZES = (64, 256, 768)
_TEXTS_A_DIRECTION = 4
_WHITEN = "Whiten them: cloze embed --whiten TEXT --out FOLDER."
# Above, random texts look alike.
_NARROW = 0.5
# Points of Spearman's correlation (of 100) that are worth a change.
_WORTH = 0.01


@dataclass(frozen=True)
class Way:
    """One way to make vectors, and how it fares; ``spearman`` is None where nobody said how alike texts are."""

    name: str
    size: int
    geometry: Geometry
    spearman: float | None = None

    def row(self) -> dict[str, Any]:
        """As one flat row."""
        return {"vectors": self.name, "size": self.size, "spearman": self.spearman, **asdict(self.geometry)}


@dataclass(frozen=True)
class EmbeddingReport:
    """All ways, and advice in words."""

    ways: list[Way]
    advice: str


def report_embeddings(
    model: Model,
    firsts: Sequence[str],
    seconds: Sequence[str] = (),
    scores: Sequence[float] = (),
    fit_on: Sequence[str] = (),
) -> EmbeddingReport:
    """Compare ways on texts, or on pairs with scores; whitening and word2vec learn from ``fit_on``, if it is given."""
    texts = list(dict.fromkeys([*firsts, *seconds]))
    if len(texts) < 3:
        raise RequestError(f"{len(texts)} different texts to report on; some hundreds were expected")
    places = {text: place for place, text in enumerate(texts)}
    left, right = ([places[text] for text in side] for side in (firsts, seconds))
    ways = []
    for name, vectors in _all_vectors(model, texts, list(dict.fromkeys(fit_on))):
        spearman = agreement(vectors[left], vectors[right], scores) if scores else None
        ways.append(Way(name, vectors.shape[1], geometry(vectors), spearman))
    return EmbeddingReport(ways, advise(ways))


def _all_vectors(model: Model, texts: Sequence[str], fit_on: Sequence[str]) -> Iterator[tuple[str, Vectors]]:
    """The folder's own way, the usual ones, and those that need no context."""
    if model.embedding.unsupported is None:
        yield "as the folder says", model.embed(texts)
    layers = model.bert.config.layers
    views: dict[str, tuple[Pooling, tuple[int, ...]]] = {
        "cls": ("cls", (layers,)),
        "mean": ("mean", (layers,)),
        "second-to-last": ("mean", (max(0, layers - 1),)),
        "first and last": ("mean", (min(1, layers), layers)),
    }
    found = _views(model, texts, views)
    yield from found.items()
    base = _views(model, fit_on, {"mean": views["mean"]})["mean"] if fit_on else found["mean"]
    whitened = fit_whitening(base)(torch.from_numpy(found["mean"])).numpy()  # the directions that vary most come first
    most = min(whitened.shape[1], max(1, len(base) // _TEXTS_A_DIRECTION))
    for size in sorted({min(size, most) for size in _SIZES}):
        yield f"whitened, {size}", whitened[:, :size]
    yield "static (own table)", static_vectors(model, texts)
    word2vec = train_word2vec(fit_on) if fit_on else None
    if word2vec is not None:
        yield "static (word2vec)", word2vec(texts)


@torch.inference_mode()
def _views(
    model: Model, texts: Sequence[str], views: Mapping[str, tuple[Pooling, tuple[int, ...]]]
) -> dict[str, Vectors]:
    """Several poolings of several layers from one reading of the texts."""

    def step(batch: Batch) -> list[list[Vectors]]:
        states = model.bert.encode(batch.ids, batch.segments, batch.mask, keep_states=True).states
        made = [
            POOL[pooling](torch.stack([states[layer] for layer in layers]).mean(0), batch.real).float().cpu().numpy()
            for pooling, layers in views.values()
        ]
        return [list(row) for row in zip(*made, strict=True)]

    rows = model.run(model.tokenizer.encode_batch(texts), step)
    return {name: np.stack(list(vectors)) for name, vectors in zip(views, zip(*rows, strict=True), strict=True)}


def advise(ways: Sequence[Way]) -> str:
    """What follows from the figures, in a sentence or two."""
    own = ways[0]
    told = f"Two texts at random have a cosine of {own.geometry.anisotropy:.2f}"
    narrow = own.geometry.anisotropy > _NARROW
    told += ": the vectors lie in a narrow cone." if narrow else ": the vectors point many ways."
    if own.spearman is None:
        return f"{told} {_WHITEN}" if narrow else told
    best = max(ways, key=lambda way: way.spearman or 0.0)
    if (best.spearman or 0.0) - own.spearman < _WORTH:
        return f"{told} No other way agrees with the scores better by a point: leave it as it is."
    told += f" Best is {best.name} ({best.spearman:.3f}, against {own.spearman:.3f}). "
    if best.name.startswith("whitened"):
        return told + _WHITEN
    if best.name.startswith("static"):
        return told + "Its states are worse than words without context: train it with 'cloze finetune similarity'."
    return told + "Ask for it with --pooling and --layer, or train with 'cloze finetune similarity'."
