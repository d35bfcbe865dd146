"""The data on the pages equal the model's: weights within the stated bound, neighbours, predictions and notes."""

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.metrics.pairwise import cosine_similarity
from transformers import BertForMaskedLM

from cloze.errors import ClozeError
from cloze.files import write_json
from cloze.inspect.relations import choose_positions, nearest_pieces, nearest_tokens
from cloze.inspect.views.data import (
    EXAMPLE,
    LEVELS,
    build_view,
    default_texts,
    dequantize,
    quantization_error,
    quantize_weights,
    read_summaries,
    summarize_heads,
    trace_forward,
    view_from_weights,
)
from cloze.predict import Attention, Model, load
from tests.model.made import SMALL, model_folder, saved

TEXT, PAIR = "the cat sat on [MASK] mat.", "a dog ran."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(model_folder(["mlm", "nsp"]), tmp_path_factory.mktemp("viewed") / "model")


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load(folder)


def softmax_weights(layers: int, heads: int, length: int) -> NDArray[np.float32]:
    """Return weights from nearly uniform to nearly one-hot."""
    source = np.random.default_rng(3)
    scores = source.normal(size=(layers, heads, length, length)) * np.linspace(0.1, 9, heads)[:, None, None]
    return torch.from_numpy(scores).softmax(-1).float().numpy()


@pytest.mark.parametrize("levels", LEVELS)
def test_weights_come_back_within_the_bound(levels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = softmax_weights(2, 4, 20)
    monkeypatch.setattr("cloze.inspect.views.data.LEVELS", (levels,))
    quantised = quantize_weights(weights)
    assert quantised.levels == levels
    found = np.stack([dequantize(layer, levels, 4, 20) for layer in quantised.layers])
    allowed = np.vectorize(quantization_error)(weights.astype(np.float64), levels)
    assert (np.abs(found - weights) <= allowed + 1e-7).all()
    assert quantised.error == pytest.approx(1 / levels, rel=0.01)
    # The bound is tight: half of it would be exceeded.
    assert (np.abs(found - weights) > allowed / 2).any()


def test_levels_are_as_fine_as_the_budget_allows() -> None:
    weights = softmax_weights(5, 4, 40)
    assert quantize_weights(weights).levels == 255
    sizes = {}
    for budget in (26_000, 20_000, 15_000, 1):
        quantised = quantize_weights(weights, budget)
        sizes[quantised.levels] = sum(map(len, quantised.layers))
    assert list(sizes) == sorted(sizes, reverse=True)
    assert len(sizes) >= 3
    assert list(sizes)[-1] == LEVELS[-1]  # the coarsest level is used for any smaller budget
    assert list(sizes.values()) == sorted(sizes.values(), reverse=True)


def test_nearest_tokens_are_those_of_another_library() -> None:
    states = np.random.default_rng(0).normal(size=(3, 12, 7)).astype(np.float32)
    found = nearest_tokens(states, 5)
    for layer, state in enumerate(states):
        similar = cosine_similarity(state)
        for token in range(12):
            order = [other for other in np.argsort(-similar[token]) if other != token][:5]
            assert found.places[layer, token].tolist() == order
            np.testing.assert_allclose(found.cosines[layer, token], similar[token][order], atol=1e-6)


def test_nearest_pieces_are_those_of_another_library() -> None:
    table = np.random.default_rng(1).normal(size=(30, 6)).astype(np.float32)
    table[4] = 0  # a zero row, like that of [PAD]
    found = nearest_pieces(table, [7, 9, 7], left_out=[0, 1], count=4)
    assert list(found) == [7, 9]
    similar = cosine_similarity(table)
    for piece, nearest in found.items():
        order = [int(other) for other in np.argsort(-similar[piece]) if other not in (piece, 0, 1)][:4]
        assert [other for other, _ in nearest] == order
    assert nearest_pieces(table[:2], [1], left_out=[0]) == {1: []}


def test_layers_fill_as_transformers_would(model: Model, folder: Path) -> None:
    looked = trace_forward(model, TEXT, PAIR)
    fills = build_view(looked).facts["fills"]
    theirs: Any = BertForMaskedLM.from_pretrained(folder)
    theirs.eval()
    with torch.inference_mode():
        inputs = {
            "input_ids": torch.tensor([looked.encoding.ids]),
            "token_type_ids": torch.tensor([looked.encoding.segments]),
        }
        states = theirs.bert(**inputs, output_hidden_states=True).hidden_states
        expected = [theirs.cls(state)[0].softmax(-1) for state in states]
    assert fills["places"] == list(range(len(looked.encoding.ids)))
    assert len(fills["words"]) == SMALL.layers + 1
    for row, probabilities in zip(fills["words"], expected, strict=True):
        for place, words in enumerate(row):
            values, pieces = probabilities[place].topk(5)
            assert [word for word, _ in words] == [model.tokenizer.piece(piece) for piece in pieces.tolist()]
            np.testing.assert_allclose([share for _, share in words], values, atol=1e-4)
    blank = looked.encoding.tokens.index("[MASK]")
    assert [word for word, _ in fills["words"][-1][blank]] != [word for word, _ in fills["words"][1][blank]]


def test_last_layer_fills_as_the_model_does(model: Model) -> None:
    looked = trace_forward(model, TEXT)
    fills = build_view(looked).facts["fills"]
    blank = looked.encoding.tokens.index("[MASK]")
    (expected,) = model.fill(TEXT)
    assert [tuple(word) for word in fills["words"][-1][blank]] == [
        (word.token, round(word.probability, 4)) for word in expected
    ]


def test_blanks_are_kept_in_truncated_texts() -> None:
    assert choose_positions([5, 6, 7], mask_id=4, most=9) == [0, 1, 2]
    assert choose_positions([5, 6, 7, 4, 8, 4], mask_id=4, most=3) == [0, 3, 5]


def test_weights_and_neighbours_are_those_of_the_model(model: Model) -> None:
    view = build_view(trace_forward(model, "the cat sat.", PAIR), name="made")
    attention = model.attend("the cat sat.", PAIR)
    facts = view.facts
    assert (facts["tokens"], facts["segments"]) == (attention.tokens, attention.segments)
    length = len(attention.tokens)
    found = np.stack([dequantize(layer, facts["levels"], facts["heads"], length) for layer in view.weights.layers])
    np.testing.assert_allclose(found, attention.weights, atol=facts["error"])
    states = model.hidden("the cat sat.", PAIR, layer=None)
    assert facts["neighbours"]["places"] == nearest_tokens(states).places.tolist()
    assert (facts["model"], facts["texts"], facts["cut"]) == ("made", ["the cat sat.", PAIR], 0)
    assert all(name in facts["pieces"] for name in attention.tokens)


def test_pictures_keep_the_largest_weights() -> None:
    weights = softmax_weights(1, 2, 70)
    attention = Attention([str(number) for number in range(70)], [0] * 70, weights)
    picture = view_from_weights(attention).facts["pictures"]
    side = picture["side"]
    found = np.frombuffer(base64.b64decode(picture["data"]), np.uint8).reshape(1, 2, side, side)
    edges = [number * 70 // side for number in range(side)] + [70]
    for row in (0, 11, side - 1):
        for column in (0, 5, side - 1):
            patch = weights[0, 1, edges[row] : edges[row + 1], edges[column] : edges[column + 1]]
            assert found[0, 1, row, column] == round(255 * float(np.sqrt(patch.max())))


def steered(kind: str, length: int = 8) -> Attention:
    """Return one head with a known pattern."""
    tokens = ["[CLS]", *(f"w{number}" for number in range(length - 2)), "[SEP]"]
    rows = np.full((length, length), 0.1 / length, np.float32)
    for place in range(length):
        target = {"next": place + 1, "previous": place - 1, "self": place, "separators": 0, "broad": None}[kind]
        if target is not None:
            rows[place, target % length] += 0.9
    rows /= rows.sum(-1, keepdims=True)
    return Attention(tokens, [0] * length, rows[None, None])


@pytest.mark.parametrize("kind", ["next", "previous", "self", "separators", "broad"])
def test_heads_are_described_by_their_pattern(kind: str) -> None:
    notes = summarize_heads(steered(kind))
    ((note,),) = notes.notes
    assert note.label == kind
    assert note.score > 0.6
    assert not notes.surveyed
    attention = steered(kind)
    assert note.distance == pytest.approx(float(attention.distance.mean()), rel=1e-5)
    assert note.entropy == pytest.approx(float(attention.entropy.mean() / np.log(8)), rel=1e-5)


def test_head_that_does_nothing_much_is_mixed() -> None:
    parts = np.stack([steered(kind).weights for kind in ("next", "previous", "self")])
    ((note,),) = summarize_heads(replace(steered("next"), weights=parts.mean(0))).notes
    assert note.label == "mixed"


def surveyed(layers: int = 3, heads: int = 2) -> dict[str, Any]:
    """Return the part of heads.json that the page uses."""
    return {
        "heads": [
            {
                "layer": layer,
                "head": head,
                "label": "mixed" if head else "next",
                "scores": {"next": 0.8, "self": 0.1, "predictive": None, "broad": 0.9},
                "entropy": 0.5,
                "distance": 2.5,
            }
            for layer in range(layers)
            for head in range(heads)
        ]
    }


def test_labels_of_a_survey(model: Model, tmp_path: Path) -> None:
    write_json(tmp_path / "heads.json", surveyed())
    notes = read_summaries(tmp_path / "heads.json", 3, 2)
    assert [[note.label for note in row] for row in notes.notes] == [["next", "mixed"]] * 3
    assert (notes.notes[0][0].score, notes.notes[0][1].score, notes.surveyed) == (0.8, 0.8, True)
    facts = build_view(trace_forward(model, "the cat"), heads_file=tmp_path / "heads.json").facts["notes"]
    assert facts["surveyed"]
    assert facts["heads"][1][0] == ["next", 0.8, 0.5, 2.5]


def invalid_facts(change: str) -> dict[str, Any]:
    value = surveyed()
    head = value["heads"][3]
    if change == "missing":
        value["heads"].pop()
    elif change == "none":
        value["heads"] = 7
    elif change == "form":
        del head["scores"]
    elif change == "label":
        head["label"] = "<b>"
        head["scores"]["<b>"] = 1
    else:
        head["distance"] = float("nan")
    return value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("missing", "5 heads, but the model has 3 layers of 2; give the heads.json that 'cloze heads' wrote"),
        ("none", "0 heads, but the model has 3 layers of 2"),
        ("form", r"a head does not have the format that 'cloze heads' writes \('scores'\); write the file again"),
        ("label", "unknown label '<b>'; the labels are next, previous"),
        ("number", "a value for layer 1, head 1 is not a finite number; run 'cloze heads' again"),
    ],
)
def test_bad_surveys_are_refused(change: str, message: str, tmp_path: Path) -> None:
    write_json(tmp_path / "heads.json", invalid_facts(change))
    with pytest.raises(ClozeError, match=f"heads.json: {message}"):
        read_summaries(tmp_path / "heads.json", 3, 2)


def test_tokens_and_weights_must_fit() -> None:
    attention = steered("next")
    with pytest.raises(ClozeError, match="7 tokens, but weights for 8; expected one row per token"):
        view_from_weights(replace(attention, tokens=attention.tokens[1:]))


def test_models_with_one_segment(tmp_path: Path) -> None:
    single = load(saved(model_folder([], config=replace(SMALL, segments=1)), tmp_path / "one"))
    assert default_texts(single) == (EXAMPLE[0], None)
    with pytest.raises(ClozeError, match="has only one segment type"):
        trace_forward(single, "the cat", "a dog")
    facts = build_view(trace_forward(single, "the cat")).facts
    assert facts["fills"] is None
    assert set(facts["segments"]) == {0}


def test_texts_that_are_cut_are_counted(model: Model) -> None:
    assert default_texts(model) == EXAMPLE
    assert build_view(trace_forward(model, "the cat " * 30)).facts["cut"] == 30
