"""A text and a model -> what the views show: one pass, then everything that a page needs and nothing more.

Dimensions: L layers, A heads, T tokens, S side of a small picture.
"""

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cloze.errors import RequestError
from cloze.inspect.patterns import DESCRIPTIONS
from cloze.inspect.views.head_notes import HeadNotes, notes_of_text, read_notes
from cloze.inspect.views.layer_fills import LayerFills, choose_places, fill_layers
from cloze.inspect.views.neighbours import Neighbours, nearest_pieces, nearest_tokens
from cloze.inspect.views.quantize import LEVELS, Quantised, quantise, to_steps
from cloze.predict import Attention, Model
from cloze.predict.batching import collate
from cloze.text import Encoding

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
