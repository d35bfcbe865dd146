"""Quality of text vectors: their geometry, whitening, and a comparison of embedding methods.

The vectors of a pre-trained model lie in a narrow cone and share a few directions of large variance, so that all
cosines are high. ``geometry`` measures how vectors are distributed. Whitening (Su et al. 2021, "Whitening sentence
representations for better semantics and faster retrieval") centres the vectors and scales every direction to unit
variance, which separates them; directions with the least variance can be dropped.

``report_embeddings`` compares methods of embedding texts, contextual and static, and recommends the best one. The
static vectors are averages of the model's own token embeddings and of word2vec vectors.

Dimensions: N texts, D vector size, K remaining dimensions, H hidden size.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cloze.checkpoint import EmbeddingSettings, ModelFolder, Pooling
from cloze.checkpoint.pooling_files import Projection
from cloze.errors import RequestError
from cloze.model.batch import Batch
from cloze.predict.embeddings.pooling import POOL
from cloze.predict.model import Model
from cloze.tasks.similarity.kind import agreement

logger = logging.getLogger("cloze")

# Directions with less than this fraction of the largest variance are rounding noise, which whitening would amplify.
# The outputs of a LayerNorm have one such direction, since their features sum to zero before its weight and bias.
_LEAST_SHARE = 1e-7

# Fewer directions than this are kept only on request, because whitening on too few texts is usually a mistake.
_FEWEST_DIRECTIONS = 8

Vectors = NDArray[np.float32]


def fit_whitening(vectors: NDArray[np.float32], dimensions: int | None = None) -> Projection:
    """Return the linear map that transforms these vectors, (N, D), to zero mean and unit covariance.

    By default, all directions with variance are kept.
    """
    if len(vectors) < 2:
        raise RequestError(f"{len(vectors)} texts to fit whitening on; expected at least a few hundred")
    mean = vectors.mean(0, dtype=np.float64)
    variances, directions = np.linalg.eigh(np.cov(vectors.astype(np.float64), rowvar=False, bias=True))
    variances, directions = variances[::-1], directions[:, ::-1]  # largest first
    usable = int((variances > _LEAST_SHARE * variances[0]).sum())
    if not usable:
        raise RequestError(f"all {len(vectors)} texts to fit whitening on have the same vector; give different texts")
    kept = usable if dimensions is None else dimensions
    if isinstance(kept, bool) or not isinstance(kept, int):
        raise RequestError(f"dimensions is {kept!r}; expected a whole number")
    if not 1 <= kept <= vectors.shape[1]:
        raise RequestError(f"dimensions is {kept}; expected 1 to {vectors.shape[1]} (the size of a vector)")
    if kept > usable:
        raise RequestError(
            f"{len(vectors)} texts vary in {usable} directions, fewer than the {kept} requested; "
            f"give more texts, or {usable} dimensions or fewer"
        )
    if len(vectors) <= vectors.shape[1]:
        logger.warning(
            "whitening is fitted on %d texts, fewer than the %d dimensions of a vector: it keeps %d dimensions and "
            "overfits these texts; give more",
            *(len(vectors), vectors.shape[1], kept),
        )
    weight = (directions[:, :kept] / np.sqrt(variances[:kept])).T  # (K, D)
    return Projection(torch.from_numpy(weight).float(), torch.from_numpy(-weight @ mean).float())


def with_whitening(
    folder: ModelFolder,
    device: torch.device,
    texts: Sequence[str],
    dimensions: int | None = None,
    pooling: Pooling | None = None,
) -> ModelFolder:
    """Return the folder with whitening fitted on these texts, as the last of its projections."""
    before = folder.embedding
    if pooling is not None and (pooling != before.pooling or before.unsupported is not None):
        before = EmbeddingSettings(pooling, normalize=before.normalize)
    plain = replace(folder, embedding=replace(before, normalize=False))
    vectors = Model(plain, device=str(device)).embed(texts)
    fitted = fit_whitening(vectors, dimensions)
    kept, size = fitted.weight.shape
    if dimensions is None and kept < min(_FEWEST_DIRECTIONS, size):
        raise RequestError(
            f"{len(texts)} texts vary in only {kept} directions, so {kept} of the {size} dimensions would be kept; "
            f"give a few hundred texts, or set dimensions to confirm"
        )
    projections = (*before.projections, fitted)
    return replace(folder, embedding=replace(before, projections=projections))


@dataclass(frozen=True)
class Geometry:
    """The distribution of vectors.

    ``anisotropy`` is the mean cosine of random pairs, 0 for isotropic vectors (Ethayarajh 2019). ``first_share`` and
    ``first_ten_share`` are the fractions of the variance in the first direction and in the first ten. ``uniformity`` is
    the log of the mean Gaussian potential of pairs on the sphere; lower is more uniform (Wang and Isola 2020).
    """

    anisotropy: float
    first_share: float
    first_ten_share: float
    uniformity: float


def geometry(vectors: Vectors) -> Geometry:
    """Measure the geometry of at least two vectors, (N, D), over all pairs."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    units = vectors.astype(np.float64) / np.maximum(lengths, 1e-12)
    count = len(units)
    # The squared norm of the sum includes every pair twice, and every vector with itself.
    anisotropy = (np.square(units.sum(0)).sum() - np.square(units).sum()) / (count * (count - 1))
    centred = vectors - vectors.mean(0, dtype=np.float64)
    variances = np.square(np.linalg.svd(centred, compute_uv=False))
    total = max(float(variances.sum()), 1e-30)
    return Geometry(
        float(anisotropy), float(variances[0] / total), float(variances[:10].sum() / total), _uniformity(units[:2000])
    )


def _uniformity(units: NDArray[np.float64]) -> float:
    squared = 2 - 2 * units @ units.T
    pairs = squared[np.triu_indices(len(units), 1)]
    return float(np.log(np.exp(-2 * pairs).mean()))


# -- comparison of embedding methods -----------------------------------------------------------------------------------


_WORD = re.compile(r"\w+|[^\w\s]")
_SIZE, _WINDOW, _PASSES, _RAREST = 100, 5, 10, 2  # settings of word2vec
# Numbers of dimensions to try for whitening, and texts needed per dimension.
_SIZES = (64, 256, 768)
_TEXTS_A_DIRECTION = 4
_WHITEN = "Whiten them: cloze embed --whiten TEXT --out FOLDER."
# Anisotropy above which random texts look alike.
_NARROW = 0.5
# Minimum gain in Spearman's correlation for recommending a change.
_WORTH = 0.01


def static_vectors(model: Model, texts: Sequence[str]) -> Vectors:
    """Average a model's own token embeddings over each text, without context, (N, H)."""
    table = model.bert.token_table.weight.detach().float().cpu().numpy()
    return _means([table[ids] for ids in map(list, model.tokenizer.encode_ids(texts))], table.shape[1])


def train_word2vec(texts: Sequence[str], seed: int = 0) -> Callable[[Sequence[str]], Vectors] | None:
    """Train word2vec (Mikolov et al. 2013) and return a function that averages it over texts; None without gensim."""
    try:
        from gensim.models import Word2Vec
    except ImportError:
        return None
    # One worker, because several are not deterministic.
    learned = Word2Vec(
        [_words(text) for text in texts],
        vector_size=_SIZE,
        window=_WINDOW,
        min_count=_RAREST,
        epochs=_PASSES,
        seed=seed,
        workers=1,
    ).wv

    def average(queries: Sequence[str]) -> Vectors:
        known = [[learned[word] for word in _words(text) if word in learned] for text in queries]
        return _means([np.array(rows, np.float32).reshape(-1, _SIZE) for rows in known], _SIZE)

    return average


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _means(rows: Sequence[Vectors], size: int) -> Vectors:
    """Return the mean of each text's vectors, or zeros if it has none."""
    means = [row.mean(0) if len(row) else np.zeros(size, np.float32) for row in rows]
    return np.stack(means) if means else np.zeros((0, size), np.float32)


@dataclass(frozen=True)
class EmbeddingMethod:
    """One embedding method and its measurements; ``spearman`` is None without scored pairs."""

    name: str
    size: int
    geometry: Geometry
    spearman: float | None = None

    def row(self) -> dict[str, Any]:
        """Return the measurements as one flat row."""
        return {"vectors": self.name, "size": self.size, "spearman": self.spearman, **asdict(self.geometry)}


@dataclass(frozen=True)
class EmbeddingReport:
    """The compared methods, and a recommendation in words."""

    methods: list[EmbeddingMethod]
    advice: str


def report_embeddings(
    model: Model,
    firsts: Sequence[str],
    seconds: Sequence[str] = (),
    scores: Sequence[float] = (),
    fit_on: Sequence[str] = (),
) -> EmbeddingReport:
    """Compare methods on texts or on scored pairs.

    Args:
        model: The model.
        firsts: Texts, or the first texts of the pairs.
        seconds: The second texts of the pairs.
        scores: The similarity scores of the pairs.
        fit_on: Texts to fit whitening and word2vec on; without them, whitening is fitted on ``firsts`` and ``seconds``.

    Returns:
        The measurements of each method and a recommendation.
    """
    texts = list(dict.fromkeys([*firsts, *seconds]))
    if len(texts) < 3:
        raise RequestError(f"{len(texts)} different texts to report on; expected at least a few hundred")
    places = {text: place for place, text in enumerate(texts)}
    left, right = ([places[text] for text in side] for side in (firsts, seconds))
    methods = []
    for name, vectors in _all_vectors(model, texts, list(dict.fromkeys(fit_on))):
        spearman = agreement(vectors[left], vectors[right], scores) if scores else None
        methods.append(EmbeddingMethod(name, vectors.shape[1], geometry(vectors), spearman))
    return EmbeddingReport(methods, advise(methods))


def _all_vectors(model: Model, texts: Sequence[str], fit_on: Sequence[str]) -> Iterator[tuple[str, Vectors]]:
    """Yield the vectors of the folder's own pooling, the usual alternatives, and static vectors."""
    if model.embedding.unsupported is None:
        yield "as the folder says", model.embed(texts)
    layers = model.bert.config.layers
    views: dict[str, tuple[Pooling, tuple[int, ...]]] = {
        "cls": ("cls", (layers,)),
        "mean": ("mean", (layers,)),
        "second-to-last": ("mean", (max(0, layers - 1),)),
        "first and last": ("mean", (min(1, layers), layers)),
    }
    pooled = _views(model, texts, views)
    yield from pooled.items()
    base = _views(model, fit_on, {"mean": views["mean"]})["mean"] if fit_on else pooled["mean"]
    whitened = fit_whitening(base)(torch.from_numpy(pooled["mean"])).numpy()  # largest variance first
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
    """Compute several poolings of several layers in one pass over the texts."""

    def step(batch: Batch) -> list[list[Vectors]]:
        states = model.bert.encode(batch.ids, batch.segments, batch.mask, keep_states=True).states
        made = [
            POOL[pooling](torch.stack([states[layer] for layer in layers]).mean(0), batch.real).float().cpu().numpy()
            for pooling, layers in views.values()
        ]
        return [list(row) for row in zip(*made, strict=True)]

    rows = model.run(model.tokenizer.encode_batch(texts), step)
    return {name: np.stack(list(vectors)) for name, vectors in zip(views, zip(*rows, strict=True), strict=True)}


def advise(methods: Sequence[EmbeddingMethod]) -> str:
    """Return a recommendation from the measurements, in a sentence or two."""
    current = methods[0]
    advice = f"Two random texts have a cosine of {current.geometry.anisotropy:.2f}"
    narrow = current.geometry.anisotropy > _NARROW
    advice += ": the vectors lie in a narrow cone." if narrow else ": the vectors point in many directions."
    if current.spearman is None:
        return f"{advice} {_WHITEN}" if narrow else advice
    best = max(methods, key=lambda method: method.spearman or 0.0)
    if (best.spearman or 0.0) - current.spearman < _WORTH:
        return f"{advice} No other method agrees better with the scores: keep the current one."
    advice += f" The best method is {best.name} ({best.spearman:.3f}; the current one has {current.spearman:.3f}). "
    if best.name.startswith("whitened"):
        return advice + _WHITEN
    if best.name.startswith("static"):
        return advice + "The model is worse than words without context: train it with 'cloze finetune similarity'."
    return advice + "Select it with --pooling and --layer, or train the model with 'cloze finetune similarity'."
