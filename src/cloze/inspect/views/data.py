"""A text and a model -> what the views show: one pass, then everything that a page needs and nothing more.

Dimensions: L layers, A heads, T tokens, S side of a small picture.

What the grid of heads says of each: the labels of a survey if there is one, else what this one text shows.

A survey (``cloze heads``) holds each score against chance over many sentences. One text cannot; then a head's note is
only the share of its attention on the next token, the one before, itself, the separators and the other sentence, how
even it is and how far it reaches, and the page says so.

Dimensions: L layers, A heads, T tokens.

Attention weights small enough for a page: a byte each, of their square roots, deflated layer by layer.

Most weights are small, and the eye compares small ones by their ratios; steps of the square root are fine where weights
are small and coarser where they are large. With n levels a weight w comes back within sqrt(w) / n + 1 / (4 n^2).

Dimensions: L layers, A heads, T tokens.
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
from cloze.inspect.views.layers import (
    LayerFills,
    Neighbours,
    choose_places,
    fill_layers,
    nearest_pieces,
    nearest_tokens,
)
from cloze.model.batch import collate
from cloze.predict import Attention, Model
from cloze.predict.results import row_distance, row_entropy
from cloze.text import Encoding

# From fine to coarse; the coarsest is still five bits.
LEVELS = (255, 127, 63, 31)
# What all layers together may take, deflated: 56 MB as base64 in a page of less than 60.
BUDGET = 42_000_000
# Deflating harder than this takes three times as long for a few per cent.
_EFFORT = 5


@dataclass(frozen=True)
class Quantised:
    """Weights as deflated bytes, (A, T, T) a layer, and how many steps there are between none and all."""

    levels: int
    layers: tuple[bytes, ...]

    @property
    def error(self) -> float:
        """The most that a weight may be off: that of a weight of one."""
        return bound(1.0, self.levels)


def bound(weight: float, levels: int) -> float:
    """How far off a weight may be after quantising."""
    return float(np.sqrt(weight)) / levels + 1 / (4 * levels**2)


def quantise(weights: NDArray[np.float32], budget: int = BUDGET) -> Quantised:
    """Quantise weights (L, A, T, T) as finely as the budget of bytes allows."""
    levels = _levels(weights, budget)
    return Quantised(levels, tuple(_deflate(layer, levels) for layer in weights))


def restore(layer: bytes, levels: int, heads: int, length: int) -> NDArray[np.float32]:
    """The weights of one layer, (A, T, T), as the page decodes them."""
    steps = np.frombuffer(zlib.decompress(layer), np.uint8).reshape(heads, length, length)
    return np.square(steps.astype(np.float32) / levels)


def to_steps(weights: NDArray[np.float32], levels: int) -> NDArray[np.uint8]:
    """Weights from 0 to 1 as whole steps of their square roots."""
    steps: NDArray[np.uint8] = np.rint(np.sqrt(np.clip(weights, 0, 1)) * levels).astype(np.uint8)
    return steps


def _levels(weights: NDArray[np.float32], budget: int) -> int:
    """The finest levels with which all layers fit, judged by three of them: deflating all takes seconds."""
    if weights.size <= budget:
        return LEVELS[0]
    sample = weights[np.unique(np.linspace(0, len(weights) - 1, 3).astype(int))]
    for levels in LEVELS:
        size = sum(len(_deflate(layer, levels)) for layer in sample) / len(sample) * len(weights)
        if size <= budget:
            return levels
    return LEVELS[-1]


def _deflate(layer: NDArray[np.float32], levels: int) -> bytes:
    return zlib.compress(to_steps(layer, levels).tobytes(), _EFFORT)


# A head that gives this share of its attention to one kind of target is called after it.
_SHARE = 0.4
# As much of the possible entropy is "about equally".
_EVEN = 0.85
_SEPARATORS = {"[CLS]", "[SEP]"}


@dataclass(frozen=True)
class HeadNote:
    """What is said of one head: a pattern's name, how much of it there is, and the figures behind."""

    label: str
    score: float
    entropy: float  # as a share of the possible
    distance: float  # in tokens


@dataclass(frozen=True)
class HeadNotes:
    """The notes of all heads, layer by layer, and where they are from: a survey, or this text alone."""

    source: str
    surveyed: bool
    notes: tuple[tuple[HeadNote, ...], ...]


def notes_of_text(attention: Attention) -> HeadNotes:
    """What one text shows of each head; no more than a description of this text."""
    length = len(attention.tokens)
    weights = attention.weights
    shares = {
        name: np.einsum("laij,ij->la", weights, mask.astype(np.float32)) / length
        for name, mask in _masks(attention).items()
    }
    entropy, distance = _evenness(weights), _reach(weights)
    rows = []
    for layer in range(weights.shape[0]):
        row = []
        for head in range(weights.shape[1]):
            here = {name: float(share[layer, head]) for name, share in shares.items()}
            label, score = _label(here, float(entropy[layer, head]))
            row.append(HeadNote(label, score, float(entropy[layer, head]), float(distance[layer, head])))
        rows.append(tuple(row))
    return HeadNotes("this text alone", False, tuple(rows))


def _masks(attention: Attention) -> dict[str, NDArray[np.bool_]]:
    """The targets of each kind, (T, T)."""
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
    if shares[best] >= _SHARE:
        return best, shares[best]
    return ("broad", entropy) if entropy >= _EVEN else ("mixed", shares[best])


def _evenness(weights: NDArray[np.float32]) -> NDArray[np.float64]:
    """The mean entropy of a head's rows, as a share of the possible: (L, A, T, T) -> (L, A)."""
    length = weights.shape[-1]
    # Layer by layer: the logarithms of all weights of a large model would take another half a gigabyte.
    rows = np.array([row_entropy(layer).mean(-1) for layer in weights], np.float64)
    return np.divide(rows, max(np.log(length), 1e-9))


def _reach(weights: NDArray[np.float32]) -> NDArray[np.float64]:
    """The mean distance in tokens that a head attends over: (L, A, T, T) -> (L, A)."""
    places = np.arange(weights.shape[-1])
    return np.array([row_distance(layer, places).mean(-1) for layer in weights], np.float64)


def read_notes(path: Path, layers: int, heads: int) -> HeadNotes:
    """Read what ``cloze heads`` has written, for a model of this many layers and heads."""
    try:
        value = read_json(path, DataError)
    except DataError as error:
        raise DataError(f"{path}: cannot be read as what cloze heads writes; give its heads.json") from error
    rows: dict[tuple[int, int], HeadNote] = {}
    for entry in value.get("heads", ()) if isinstance(value.get("heads"), list) else ():
        layer, head, note = _read_head(entry, path)
        rows[layer, head] = note
    wanted = {(layer, head) for layer in range(layers) for head in range(heads)}
    if rows.keys() != wanted:
        raise DataError(
            f"{path}: {len(rows)} heads, but the model has {layers} layers of {heads}; "
            "give the heads.json that 'cloze heads' wrote for this model"
        )
    notes = tuple(tuple(rows[layer, head] for head in range(heads)) for layer in range(layers))
    return HeadNotes(path.name, True, notes)


def _read_head(entry: Any, path: Path) -> tuple[int, int, HeadNote]:
    try:
        label = str(entry["label"])
        # A head without a label is told by the largest share of its attention; what was not measured is None.
        known = {name: value for name, value in entry["scores"].items() if value is not None}
        score = known[label] if label != "mixed" else max(known[name] for name in known if name != "broad")
        note = HeadNote(label, float(score), float(entry["entropy"]), float(entry["distance"]))
        place = int(entry["layer"]), int(entry["head"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{path}: a head is not as 'cloze heads' writes it ({str(error)[:60]}); write the file again"
        ) from error
    if label not in DESCRIPTIONS:
        raise DataError(f"{path}: unknown label {label[:40]!r}; the labels are {', '.join(DESCRIPTIONS)}")
    if not all(np.isfinite([note.score, note.entropy, note.distance])):
        raise DataError(f"{path}: a figure of layer {place[0]}, head {place[1]} is no number; write the file again")
    return *place, note


# The pair with which the original notes on attention were illustrated.
EXAMPLE = ("I went to the store.", "At the store, I bought fresh strawberries.")
# A head's picture in the grid: enough to tell its pattern, at a kilobyte a head.
_PICTURE = 32


@dataclass(frozen=True)
class View:
    """What a page shows: facts that JSON can hold, and the weights, which are large and read layer by layer."""

    facts: dict[str, Any]
    weights: Quantised


def default_texts(model: Model) -> tuple[str, str | None]:
    """The example pair; its first sentence where a model tells no second text from a first."""
    return EXAMPLE if model.bert.config.segments > 1 else (EXAMPLE[0], None)


@dataclass(frozen=True)
class Look:
    """One pass of a model over a text: the attention, and the states before and after each layer."""

    model: Model
    texts: list[str]
    encoding: Encoding
    attention: Attention
    states: list[Tensor]  # L + 1 of (T, H)


@torch.inference_mode()
def look(model: Model, text: str, pair: str | None = None, *, read_mask: bool = True) -> Look:
    """Read a text, or two; with ``read_mask`` a ``[MASK]`` in it is a blank."""
    if pair is not None and model.bert.config.segments < 2:
        raise RequestError("this model tells no second text from a first (it has one segment); give a single text")
    encoding = model.tokenizer(text, pair, read_mask=read_mask)
    batch = collate([encoding], model.tokenizer.pad_id, model.device)
    output = model.bert.encoder(batch.ids, batch.segments, keep_states=True, keep_attentions=True)
    weights = torch.cat(output.attentions).float().cpu().numpy()  # L of (1, A, T, T) -> (L, A, T, T)
    attention = Attention(encoding.tokens, encoding.segments, weights)
    return Look(
        model, [text] if pair is None else [text, pair], encoding, attention, [state[0] for state in output.states]
    )


def make_view(looked: Look, *, name: str = "", heads_file: Path | None = None) -> View:
    """Everything about a text that was read; ``heads_file`` is what ``cloze heads`` has written for the model."""
    return _view(make_facts(looked, name, heads_file), looked.attention.weights)


def make_facts(looked: Look, name: str = "", heads_file: Path | None = None) -> dict[str, Any]:
    """The same without the weights and how they are quantised."""
    model, encoding, attention = looked.model, looked.encoding, looked.attention
    notes = None if heads_file is None else read_notes(heads_file, *attention.weights.shape[:2])
    facts = _facts(attention, notes or notes_of_text(attention))
    facts |= {"model": name, "texts": looked.texts, "cut": encoding.dropped}
    states = torch.stack(looked.states).float().cpu().numpy()  # (L + 1, T, H)
    facts |= {"neighbours": _told_neighbours(nearest_tokens(states)), "pieces": _pieces(model, encoding)}
    if "mlm" in model.heads:
        places = choose_places(encoding.ids, model.tokenizer.mask_id)
        facts["fills"] = _told_fills(fill_layers(model.bert, model.tokenizer, looked.states, places))
    return facts


def view_of(attention: Attention) -> View:
    """The views that need nothing but weights, for attention without the model that it is from."""
    if len(attention.tokens) != attention.weights.shape[-1] or not attention.tokens:
        raise RequestError(
            f"{len(attention.tokens)} tokens, weights of {attention.weights.shape[-1]}; a row for each was expected"
        )
    return _view(_facts(attention, notes_of_text(attention)), attention.weights)


def _view(facts: dict[str, Any], weights: NDArray[np.float32]) -> View:
    quantised = quantise(weights)
    return View(facts | {"levels": quantised.levels, "error": quantised.error}, quantised)


def _facts(attention: Attention, notes: HeadNotes) -> dict[str, Any]:
    layers, heads = attention.weights.shape[:2]
    rows = [[[note.label, note.score, note.entropy, note.distance] for note in row] for row in notes.notes]
    return {
        "model": "",
        "texts": [],
        "cut": 0,
        "tokens": attention.tokens,
        "segments": attention.segments,
        "layers": layers,
        "heads": heads,
        "pictures": _pictures(attention.weights),
        "notes": {"source": notes.source, "surveyed": notes.surveyed, "heads": rows, "descriptions": DESCRIPTIONS},
        "neighbours": None,
        "pieces": {},
        "fills": None,
    }


def _pictures(weights: NDArray[np.float32]) -> dict[str, Any]:
    """Every head as a small square: the largest weight of each patch, so that thin lines stay visible."""
    length = weights.shape[-1]
    side = min(length, _PICTURE)
    starts = np.arange(side) * length // side
    small = [np.maximum.reduceat(np.maximum.reduceat(layer, starts, -1), starts, -2) for layer in weights]
    steps = to_steps(np.stack(small), LEVELS[0])
    return {"side": side, "data": base64.b64encode(steps.tobytes()).decode()}


def _told_neighbours(found: Neighbours) -> dict[str, Any]:
    return {"places": found.places.tolist(), "cosines": np.round(found.cosines.astype(np.float64), 3).tolist()}


def _pieces(model: Model, encoding: Encoding) -> dict[str, list[list[Any]]]:
    """The vocabulary's words with the nearest vectors, by token."""
    tokenizer = model.tokenizer
    table = model.bert.encoder.embeddings.token.weight[: tokenizer.size].detach().float().cpu().numpy()
    found = nearest_pieces(table, encoding.ids, sorted(tokenizer.special_ids))
    return {
        tokenizer.piece(piece): [[tokenizer.piece(other), round(value, 3)] for other, value in nearest]
        for piece, nearest in found.items()
    }


def _told_fills(fills: LayerFills) -> dict[str, Any]:
    words = [[[[word.token, round(word.probability, 4)] for word in one] for one in row] for row in fills.words]
    return {"places": list(fills.places), "words": words}
