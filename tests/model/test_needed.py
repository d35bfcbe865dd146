"""Computing only some of the last states gives the same states and gradients as computing all."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cloze.model import Bert, EncoderOutput, first_positions
from cloze.model.encoder import Layer
from tests.model.made import ATTACHED, SMALL, assert_close, attached_bert

QUIET = replace(SMALL, dropout=0.0, attention_dropout=0.0)
CONFIGS = {"bert": QUIET, "shared layers": replace(QUIET, embedding_size=10, shared_layers=True)}
WAYS = ["plain", "checkpointing", *ATTACHED]
IDS = torch.randint(1, SMALL.vocab_size, (3, 9), generator=torch.Generator().manual_seed(3))
MASK = torch.arange(9) < torch.tensor([[9], [4], [6]])
PLACES = torch.tensor([20, 0, 9, 10, 18])  # deliberately unordered


def make_model(name: str, way: str) -> Bert:
    model = attached_bert(CONFIGS[name], way).train()
    model.encoder.checkpointing = way == "checkpointing"
    return model


def states(model: Bert, needed: Tensor | None) -> Tensor:
    output: EncoderOutput = model(IDS, torch.zeros_like(IDS), MASK, needed)
    return output.last.flatten(0, 1)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CONFIGS)
def test_needed_states_and_their_gradients_are_those_of_all(name: str, way: str) -> None:
    weights = torch.randn(len(PLACES), SMALL.hidden_size, generator=torch.Generator().manual_seed(4))
    results = []
    for needed in (None, PLACES):
        model = make_model(name, way)
        found = states(model, needed)[PLACES]
        (found * weights).sum().backward()  # type: ignore[no-untyped-call]
        results.append([found.detach(), *(one.grad for one in model.parameters() if one.grad is not None)])
    assert len(results[0]) == len(results[1]) > 10
    for all_of_them, some in zip(*results, strict=True):
        assert_close(some, all_of_them)


def test_other_places_are_zero() -> None:
    found = states(make_model("bert", "plain").eval(), PLACES)
    others = torch.ones(IDS.numel(), dtype=torch.bool).index_fill(0, PLACES, False)
    assert not found[others].any()
    assert found[PLACES].all()


def test_none_needed() -> None:
    found = states(make_model("bert", "plain"), torch.empty(0, dtype=torch.long))
    assert not found.any()
    found.sum().backward()  # type: ignore[no-untyped-call]


def test_the_last_layer_does_less() -> None:
    model, rows = make_model("bert", "plain").eval(), []
    for module in model.modules():
        if isinstance(module, Layer):
            module.expand.register_forward_pre_hook(lambda _, inputs: rows.append(inputs[0].shape[:-1].numel()))
    states(model, first_positions(IDS))
    assert rows == [27, 27, 3]


def test_heads_use_the_needed_states() -> None:
    model = Bert(SMALL)
    assert first_positions(IDS).tolist() == [0, 9, 18]
    for head in ("sequence", "choice", "nsp", "sop"):
        places = model.needed_by(head, IDS, None)
        assert places is not None
        assert torch.equal(places, first_positions(IDS))
    assert model.needed_by("token", IDS, None) is None
    assert model.needed_by("span", IDS, None) is None
