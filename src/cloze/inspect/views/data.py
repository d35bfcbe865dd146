"""The data behind the attention views: run a model on a text, then collect everything that a page shows.

``trace_forward`` runs the model once. ``build_view`` derives the page's data from it, in three parts:

- Facts, as JSON: tokens, thumbnails of all heads, neighbours, the logit lens.
- A summary of each head, from a survey (``cloze heads``) if there is one. A survey compares scores with chance over
  many sentences, which is impossible for one text. Without a survey, the summary has the fraction of attention on the
  next token, the previous token, the token itself and separators, the entropy and the distance; the page says so.
- The attention weights, quantized to one byte each and deflated layer by layer. Quantization is linear in the square
  root of a weight, since most weights are small and their ratios matter. With n levels, a weight w is restored within
  sqrt(w) / n + 1 / (4 n^2).

Dimensions: L layers, A heads, T tokens, H hidden size.
"""

import base64
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cloze.errors import DataError, RequestError
from cloze.files import read_json
from cloze.inspect.patterns import DESCRIPTIONS
from cloze.inspect.relations import (
    LayerFills,
    Neighbours,
    choose_positions,
    fill_layers,
    nearest_pieces,
    nearest_tokens,
)
from cloze.model.batch import collate
from cloze.predict import Attention, Model
from cloze.predict.results import row_distance, row_entropy
from cloze.text import Encoding

# Numbers of quantization levels, from fine to coarse; the coarsest still has five bits.
LEVELS = (255, 127, 63, 31)
# Maximum deflated size of all layers in bytes; this is 56 MB as base64.
BUDGET = 42_000_000
# A higher compression level takes three times as long and saves a few per cent.
_COMPRESSION = 5
# A head with at least this fraction of its attention on one kind of target has it as its label.
_LABEL_SHARE = 0.4
# A head with at least this fraction of the maximum entropy is labelled broad.
_BROAD_ENTROPY = 0.85
_SEPARATORS = {"[CLS]", "[SEP]"}
# Maximum side of a head's thumbnail: enough to recognize its pattern, at a kilobyte per head.
_THUMBNAIL = 32
# The pair of sentences with which BERT's attention patterns were first illustrated.
EXAMPLE = ("I went to the store.", "At the store, I bought fresh strawberries.")


@dataclass(frozen=True)
class QuantizedWeights:
    """Attention weights as deflated bytes, (A, T, T) per layer, and the number of quantization levels."""

    levels: int
    layers: tuple[bytes, ...]

    @property
    def error(self) -> float:
        """Return the largest possible error, which is that of a weight of 1."""
        return quantization_error(1.0, self.levels)


def quantization_error(weight: float, levels: int) -> float:
    """Return the largest possible error of a weight after quantization."""
    return float(np.sqrt(weight)) / levels + 1 / (4 * levels**2)


def quantize_weights(weights: NDArray[np.float32], budget: int = BUDGET) -> QuantizedWeights:
    """Quantize weights (L, A, T, T) as finely as ``budget`` bytes allow."""
    levels = _finest_levels(weights, budget)
    return QuantizedWeights(levels, tuple(_deflate(layer, levels) for layer in weights))


def dequantize(layer: bytes, levels: int, heads: int, length: int) -> NDArray[np.float32]:
    """Decode the weights of one layer, (A, T, T), as the page does."""
    steps = np.frombuffer(zlib.decompress(layer), np.uint8).reshape(heads, length, length)
    return np.square(steps.astype(np.float32) / levels)


def to_levels(weights: NDArray[np.float32], levels: int) -> NDArray[np.uint8]:
    """Quantize weights in [0, 1], linearly in their square root."""
    steps: NDArray[np.uint8] = np.rint(np.sqrt(np.clip(weights, 0, 1)) * levels).astype(np.uint8)
    return steps


def _finest_levels(weights: NDArray[np.float32], budget: int) -> int:
    """Return the finest levels that fit the budget, estimated from three layers because deflating all is slow."""
    if weights.size <= budget:
        return LEVELS[0]
    sample = weights[np.unique(np.linspace(0, len(weights) - 1, 3).astype(int))]
    for levels in LEVELS:
        size = sum(len(_deflate(layer, levels)) for layer in sample) / len(sample) * len(weights)
        if size <= budget:
            return levels
    return LEVELS[-1]


def _deflate(layer: NDArray[np.float32], levels: int) -> bytes:
    return zlib.compress(to_levels(layer, levels).tobytes(), _COMPRESSION)


@dataclass(frozen=True)
class HeadSummary:
    """A head's label and its score, entropy and distance."""

    label: str
    score: float
    entropy: float  # as a fraction of its maximum
    distance: float  # mean distance of attention in tokens


@dataclass(frozen=True)
class HeadSummaries:
    """The summaries of all heads, by layer, and their source: a survey, or only this text."""

    source: str
    surveyed: bool
    notes: tuple[tuple[HeadSummary, ...], ...]


def summarize_heads(attention: Attention) -> HeadSummaries:
    """Summarize each head on one text, which need not be typical of the head."""
    length = len(attention.tokens)
    weights = attention.weights
    shares = {
        name: np.einsum("laij,ij->la", weights, mask.astype(np.float32)) / length
        for name, mask in _target_masks(attention).items()
    }
    entropy, distance = _mean_entropy(weights), _mean_distance(weights)
    rows = []
    for layer in range(weights.shape[0]):
        row = []
        for head in range(weights.shape[1]):
            of_head = {name: float(share[layer, head]) for name, share in shares.items()}
            label, score = _label(of_head, float(entropy[layer, head]))
            row.append(HeadSummary(label, score, float(entropy[layer, head]), float(distance[layer, head])))
        rows.append(tuple(row))
    return HeadSummaries("this text alone", False, tuple(rows))


def _target_masks(attention: Attention) -> dict[str, NDArray[np.bool_]]:
    """Return the targets of each kind, (T, T)."""
    length = len(attention.tokens)
    special = np.array([token in _SEPARATORS for token in attention.tokens])
    following = np.eye(length, k=1, dtype=bool)
    return {
        "next": following & ~special,
        "previous": following.T & ~special,
        "self": np.eye(length, dtype=bool) & ~special,
        "separators": np.broadcast_to(special, (length, length)),
    }


def _label(shares: dict[str, float], entropy: float) -> tuple[str, float]:
    best = max(shares, key=lambda name: shares[name])
    if shares[best] >= _LABEL_SHARE:
        return best, shares[best]
    return ("broad", entropy) if entropy >= _BROAD_ENTROPY else ("mixed", shares[best])


def _mean_entropy(weights: NDArray[np.float32]) -> NDArray[np.float64]:
    """Average the entropy over rows, as a fraction of its maximum: (L, A, T, T) -> (L, A)."""
    length = weights.shape[-1]
    # Computed layer by layer: the logarithms of all weights of a large model would take another 500 MB.
    rows = np.array([row_entropy(layer).mean(-1) for layer in weights], np.float64)
    return np.divide(rows, max(np.log(length), 1e-9))


def _mean_distance(weights: NDArray[np.float32]) -> NDArray[np.float64]:
    """Average the distance of attention in tokens over rows: (L, A, T, T) -> (L, A)."""
    positions = np.arange(weights.shape[-1])
    return np.array([row_distance(layer, positions).mean(-1) for layer in weights], np.float64)


def read_summaries(path: Path, layers: int, heads: int) -> HeadSummaries:
    """Read the summaries that ``cloze heads`` wrote for a model of this many layers and heads."""
    try:
        value = read_json(path, DataError)
    except DataError as error:
        raise DataError(f"{path}: was not written by 'cloze heads'; give its heads.json") from error
    rows: dict[tuple[int, int], HeadSummary] = {}
    for entry in value.get("heads", ()) if isinstance(value.get("heads"), list) else ():
        layer, head, note = _read_head(entry, path)
        rows[layer, head] = note
    expected = {(layer, head) for layer in range(layers) for head in range(heads)}
    if rows.keys() != expected:
        raise DataError(
            f"{path}: {len(rows)} heads, but the model has {layers} layers of {heads}; "
            "give the heads.json that 'cloze heads' wrote for this model"
        )
    notes = tuple(tuple(rows[layer, head] for head in range(heads)) for layer in range(layers))
    return HeadSummaries(path.name, True, notes)


def _read_head(entry: Any, path: Path) -> tuple[int, int, HeadSummary]:
    try:
        label = str(entry["label"])
        # Unmeasured scores are None. A head without a label shows its largest score.
        scores = {name: value for name, value in entry["scores"].items() if value is not None}
        score = scores[label] if label != "mixed" else max(scores[name] for name in scores if name != "broad")
        note = HeadSummary(label, float(score), float(entry["entropy"]), float(entry["distance"]))
        place = int(entry["layer"]), int(entry["head"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{path}: a head does not have the format that 'cloze heads' writes ({str(error)[:60]}); write the file "
            f"again"
        ) from error
    if label not in DESCRIPTIONS:
        raise DataError(f"{path}: unknown label {label[:40]!r}; the labels are {', '.join(DESCRIPTIONS)}")
    if not all(np.isfinite([note.score, note.entropy, note.distance])):
        raise DataError(
            f"{path}: a value for layer {place[0]}, head {place[1]} is not a finite number; run 'cloze heads' again"
        )
    return *place, note


@dataclass(frozen=True)
class View:
    """The data of a page: facts as JSON, and the weights, which are large and loaded layer by layer."""

    facts: dict[str, Any]
    weights: QuantizedWeights


def default_texts(model: Model) -> tuple[str, str | None]:
    """Return the example pair, or only its first sentence for a model with one segment."""
    return EXAMPLE if model.bert.config.segments > 1 else (EXAMPLE[0], None)


@dataclass(frozen=True)
class ForwardTrace:
    """One forward pass over a text: the attention, and the states before and after each layer."""

    model: Model
    texts: list[str]
    encoding: Encoding
    attention: Attention
    states: list[Tensor]  # L + 1 of (T, H)


@torch.inference_mode()
def trace_forward(model: Model, text: str, pair: str | None = None, *, read_mask: bool = True) -> ForwardTrace:
    """Run the model on a text or a pair of texts, and return its attention and states.

    Args:
        model: The model.
        text: The first text.
        pair: The second text, if any.
        read_mask: Treat ``[MASK]`` in the text as a blank.
    """
    if pair is not None and model.bert.config.segments < 2:
        raise RequestError(
            "this model has only one segment type and does not support pairs of texts; give a single text"
        )
    encoding = model.tokenizer(text, pair, read_mask=read_mask)
    batch = collate([encoding], model.tokenizer.pad_id, model.device)
    output = model.bert.encode(batch.ids, batch.segments, keep_states=True, keep_attentions=True)
    weights = torch.cat(output.attentions).float().cpu().numpy()  # L of (1, A, T, T) -> (L, A, T, T)
    attention = Attention(encoding.tokens, encoding.segments, weights)
    return ForwardTrace(
        model, [text] if pair is None else [text, pair], encoding, attention, [state[0] for state in output.states]
    )


def build_view(trace: ForwardTrace, *, name: str = "", heads_file: Path | None = None) -> View:
    """Build the data of a page.

    Args:
        trace: The forward pass to show.
        name: The model's name.
        heads_file: The ``heads.json`` that ``cloze heads`` wrote for this model.
    """
    return _view(build_facts(trace, name, heads_file), trace.attention.weights)


def build_facts(trace: ForwardTrace, name: str = "", heads_file: Path | None = None) -> dict[str, Any]:
    """Build the facts of a page; the weights and their quantization are not included."""
    model, encoding, attention = trace.model, trace.encoding, trace.attention
    summaries = None if heads_file is None else read_summaries(heads_file, *attention.weights.shape[:2])
    facts = _facts(attention, summaries or summarize_heads(attention))
    facts |= {"model": name, "texts": trace.texts, "cut": encoding.dropped}
    states = torch.stack(trace.states).float().cpu().numpy()  # (L + 1, T, H)
    facts |= {"neighbours": _neighbours_json(nearest_tokens(states)), "pieces": _nearest_pieces(model, encoding)}
    if "mlm" in model.heads and not model.bert.words_apart:  # the states of lower layers are no input of such a head
        positions = choose_positions(encoding.ids, model.tokenizer.mask_id)
        facts["fills"] = _fills_json(fill_layers(model.bert, model.tokenizer, trace.states, positions))
    return facts


def view_from_weights(attention: Attention) -> View:
    """Build the data of a page only from attention weights, without the model."""
    if len(attention.tokens) != attention.weights.shape[-1] or not attention.tokens:
        raise RequestError(
            f"{len(attention.tokens)} tokens, but weights for {attention.weights.shape[-1]}; expected one row per token"
        )
    return _view(_facts(attention, summarize_heads(attention)), attention.weights)


def _view(facts: dict[str, Any], weights: NDArray[np.float32]) -> View:
    quantized = quantize_weights(weights)
    return View(facts | {"levels": quantized.levels, "error": quantized.error}, quantized)


def _facts(attention: Attention, summaries: HeadSummaries) -> dict[str, Any]:
    layers, heads = attention.weights.shape[:2]
    rows = [[[head.label, head.score, head.entropy, head.distance] for head in row] for row in summaries.notes]
    return {
        "model": "",
        "texts": [],
        "cut": 0,
        "tokens": attention.tokens,
        "segments": attention.segments,
        "layers": layers,
        "heads": heads,
        "pictures": _thumbnails(attention.weights),
        "notes": {
            "source": summaries.source,
            "surveyed": summaries.surveyed,
            "heads": rows,
            "descriptions": DESCRIPTIONS,
        },
        "neighbours": None,
        "pieces": {},
        "fills": None,
    }


def _thumbnails(weights: NDArray[np.float32]) -> dict[str, Any]:
    """Downsample every head by the maximum of each patch, so that thin lines stay visible."""
    length = weights.shape[-1]
    side = min(length, _THUMBNAIL)
    starts = np.arange(side) * length // side
    maxima = [np.maximum.reduceat(np.maximum.reduceat(layer, starts, -1), starts, -2) for layer in weights]
    levels = to_levels(np.stack(maxima), LEVELS[0])
    return {"side": side, "data": base64.b64encode(levels.tobytes()).decode()}


def _neighbours_json(neighbours: Neighbours) -> dict[str, Any]:
    cosines = np.round(neighbours.cosines.astype(np.float64), 3)
    return {"places": neighbours.places.tolist(), "cosines": cosines.tolist()}


def _nearest_pieces(model: Model, encoding: Encoding) -> dict[str, list[list[Any]]]:
    """Return, for each token, the vocabulary pieces with the nearest input embeddings."""
    tokenizer = model.tokenizer
    table = model.bert.token_table.weight[: tokenizer.size].detach().float().cpu().numpy()
    neighbours = nearest_pieces(table, encoding.ids, sorted(tokenizer.special_ids))
    return {
        tokenizer.piece(piece): [[tokenizer.piece(other), round(cosine, 3)] for other, cosine in nearest]
        for piece, nearest in neighbours.items()
    }


def _fills_json(fills: LayerFills) -> dict[str, Any]:
    words = [[[[word.token, round(word.probability, 4)] for word in best] for best in layer] for layer in fills.words]
    return {"places": list(fills.places), "words": words}
