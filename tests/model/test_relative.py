"""Relative positions: the shift, and BERT with a vector per distance against an independent reference."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from cloze.checkpoint import load_folder
from cloze.checkpoint.names import hugging_face_names, to_hugging_face
from cloze.errors import CheckpointError, ConfigError
from cloze.model import Bert, BertConfig
from cloze.model.building_blocks import Slots, gather_distances, relative_shift
from cloze.model.losses import masked_word_logits, masked_word_loss
from cloze.model.surgery import with_positions
from cloze.options import PositionKind
from cloze.predict import load
from cloze.predict.quantization.quantize import quantize
from tests.model.made import assert_close
from tests.model.relatives import Draws, Inputs, random_model, save_ours

ORACLE: Any = transformers
TYPES: tuple[PositionKind, ...] = ("relative_key", "relative_key_query")


@pytest.mark.parametrize("length", [1, 2, 7])
def test_columns_become_keys(length: int) -> None:
    scores = torch.arange(length, -length, -1.0).expand(2, 3, length, 2 * length).contiguous()
    places = torch.arange(length)
    expected = (places[:, None] - places).float().expand(2, 3, length, length)
    assert torch.equal(relative_shift(scores), expected)
    queries = torch.stack([places, places.flip(0)])
    found = gather_distances(scores, queries, length)
    assert torch.equal(found[:, 0], (queries[:, :, None] - places).float())


def test_slots_keep_the_order_of_requests() -> None:
    needed = torch.tensor([9, 1, 14, 0, 8])  # of a (3, 5) batch
    slots = Slots.of(needed, 3, 5)
    states = torch.arange(15.0)[:, None]
    grid = slots.spread(states[slots.flat])
    assert grid.squeeze(-1).tolist() == [[0, 1], [8, 9], [14, 0]]
    assert slots.positions.tolist() == [[0, 1], [3, 4], [4, 0]]
    assert slots.collect(grid).squeeze(-1).tolist() == [0, 1, 8, 9, 14]
    assert needed[slots.order].tolist() == slots.flat.tolist()


class ReferenceAttention(nn.Module):
    """The scores of transformers 4 (BertSelfAttention), pair by pair."""

    def __init__(self, config: Any, kind: str) -> None:
        super().__init__()
        width, self.heads, self.reach = config.hidden_size, config.num_attention_heads, config.max_position_embeddings
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.distance_embedding = nn.Embedding(2 * self.reach - 1, width // self.heads)
        self.kind = kind

    def forward(self, states: Tensor, attention_mask: Tensor, **_: Any) -> tuple[Tensor, None]:
        length = states.shape[1]
        query, key, value = (
            part(states).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-1, -2)
        places = torch.arange(length)
        vectors = self.distance_embedding(places[:, None] - places + self.reach - 1)  # (T, T, D)
        scores = scores + torch.einsum("bhld,lrd->bhlr", query, vectors)
        if self.kind == "relative_key_query":
            scores = scores + torch.einsum("bhrd,lrd->bhlr", key, vectors)
        scores = (scores / query.shape[-1] ** 0.5).masked_fill(~attention_mask, -1e30)
        return (scores.softmax(-1) @ value).transpose(1, 2).flatten(2), None


def reference(config: Any, kind: str) -> Any:
    """Return transformers' BERT with the reference attention and without absolute positions."""
    theirs = ORACLE.BertForMaskedLM(config)
    for layer in theirs.bert.encoder.layer:
        layer.attention.self = ReferenceAttention(config, kind)
    return theirs


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("seed", range(5))
def test_states_loss_and_gradients(kind: PositionKind, seed: int) -> None:
    draws = Draws(seed)
    heads = draws.number(1, 4)
    sizes: dict[str, Any] = {"vocab_size": draws.number(30, 90), "hidden_size": heads * draws.number(2, 8)}
    layers, inner, positions = draws.number(1, 3), draws.number(5, 40), draws.number(20, 40)
    config = BertConfig(
        **sizes, layers=layers, heads=heads, feedforward_size=inner, positions=positions, position_kind=kind
    )
    ours = random_model(Bert, config, ["mlm"])
    assert ours.encoder.embeddings.position is None
    theirs = reference(
        ORACLE.BertConfig(
            **sizes,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=inner,
            max_position_embeddings=positions,
        ),
        kind,
    ).eval()
    tensors = to_hugging_face(ours.state_dict())
    absolute = "bert.embeddings.position_embeddings.weight"
    tensors[absolute] = torch.zeros_like(theirs.state_dict()[absolute])
    missing, unused = theirs.load_state_dict(tensors, strict=False)
    assert not unused
    assert {name.split(".")[2] for name in missing} <= {"decoder"}
    theirs.tie_weights()
    inputs = Inputs.of(draws, config.vocab_size, config.segments)
    output = theirs(
        inputs.ids,
        inputs.mask.bool()[:, None, None, :],
        inputs.segments,
        labels=inputs.labels,
        output_hidden_states=True,
    )
    found = ours.encode(inputs.ids, inputs.segments, inputs.mask, keep_states=True)
    inputs.assert_states(found.states, output.hidden_states)
    loss = masked_word_loss(
        masked_word_logits(ours, found.last, inputs.positions), inputs.labels.flatten()[inputs.positions]
    )
    assert_close(loss, output.loss)
    loss.backward()  # type: ignore[no-untyped-call]
    output.loss.backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        names = hugging_face_names(name)
        assert parameter.grad is not None
        for part, gradient in zip(names, parameter.grad.chunk(len(names)), strict=True):
            assert_close(gradient, gradients[part])


SMALL = BertConfig(vocab_size=60, hidden_size=16, layers=2, heads=2, feedforward_size=24, positions=32)


@pytest.mark.parametrize("kind", TYPES)
def test_a_folder_is_restored_and_runs_in_float32(kind: PositionKind, tmp_path: Path) -> None:
    config = replace(SMALL, position_kind=kind)
    folder = save_ours(random_model(Bert, config, ["mlm"]), tmp_path / "model")
    assert load_folder(folder).model.config == config
    model = load(folder, precision="auto")
    assert model.precision == "fp32"
    plain = load_folder(folder).model
    ids = torch.tensor([[2, 7, 9, 11, 3]])
    assert_close(model.bert(ids, torch.zeros_like(ids)).last, plain(ids, torch.zeros_like(ids)).last)
    assert len(model.fill("the [MASK] sat.", top=2)[0]) == 2
    for work in (lambda: load(folder, precision="int8"), lambda: quantize(folder, ["the cat"])):
        with pytest.raises(ConfigError, match=f"for models of type 'bert' with position_kind '{kind}'"):
            refuse(work)
    with pytest.raises(
        ConfigError, match="adding positions is not possible: this model has a vector for each distance"
    ):
        with_positions(plain, 64)


def refuse(work: Callable[[], object]) -> None:
    """Call a function that is to fail."""
    work()


def test_an_unknown_type_is_refused(tmp_path: Path) -> None:
    folder = save_ours(random_model(Bert, SMALL, ["mlm"]), tmp_path / "model")
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"position_embedding_type": "rotary"}))
    with pytest.raises(
        CheckpointError, match="position_kind is 'rotary'; expected learned or sinusoidal or relative_key"
    ):
        load_folder(folder)
