"""Removed heads: gates and zeroed weights are equivalent, and other libraries load the pruned model."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import BertModel

from cloze.errors import ConfigError
from cloze.model import Bert
from cloze.model.encoder import SelfAttention
from cloze.model.surgery import gated_heads, prune_heads, without_heads
from cloze.predict import load
from tests.model.made import SMALL, assert_close, model_folder, random_bert, saved

IDS = torch.randint(5, SMALL.vocab_size, (3, 9), generator=torch.Generator().manual_seed(1))
SEGMENTS = torch.zeros_like(IDS)
HEADS = [(0, 1), (2, 0)]


def last(bert: Bert) -> torch.Tensor:
    with torch.no_grad():
        states: torch.Tensor = bert(IDS, SEGMENTS).last
    return states


def test_head_that_is_left_out_is_a_sum_without_it() -> None:
    """The first layer without a head equals the sum over its other heads."""
    bert = random_bert()
    attention, size = bert.encoder.layers[0].attention, SMALL.head_size
    assert isinstance(attention, SelfAttention)
    with torch.no_grad():
        hidden = bert.encoder.embeddings(IDS, SEGMENTS)
        projected = attention.query_key_value(hidden)
        query, key, value = (part[..., :size] for part in projected.split(SMALL.hidden_size, -1))  # only head 0
        weights = (query @ key.transpose(-1, -2) / size**0.5).softmax(-1)
        output = attention.output
        expected = (weights @ value) @ output.weight[:, :size].T + output.bias
        with without_heads(bert, [(0, 1)]):
            found: dict[str, torch.Tensor] = {}
            handle = output.register_forward_hook(lambda _module, _input, result: found.update(first=result))
            last(bert)
            handle.remove()
    assert_close(found["first"], expected)


def test_gates_zeros_and_both_attentions_agree() -> None:
    bert = random_bert()
    whole = last(bert)
    with without_heads(bert, HEADS):
        gated = last(bert)
        explicit = bert.encoder(IDS, SEGMENTS, keep_attentions=True).last
    assert_close(last(bert), whole)  # after the block, the head is active again
    assert (gated - whole).abs().max() > 0.01
    assert_close(explicit, gated)
    prune_heads(bert, HEADS)
    assert_close(last(bert), gated)


def test_gates_of_one_are_neutral_and_gates_are_per_sequence() -> None:
    bert = random_bert()
    gates = torch.ones(3, SMALL.layers, SMALL.heads)
    with gated_heads(bert, gates):
        assert torch.equal(last(bert), bert(IDS, SEGMENTS).last)
        assert_close(last(bert), random_bert()(IDS, SEGMENTS).last)
    gates[1, 0, 1] = gates[1, 2, 0] = 0.0
    with gated_heads(bert, gates):
        mixed = last(bert)
    whole = last(bert)
    prune_heads(bert, HEADS)
    pruned = last(bert)
    assert_close(mixed, torch.stack([whole[0], pruned[1], whole[2]]))


def test_gate_gradient_equals_finite_differences() -> None:
    bert = random_bert().double()
    gates = torch.ones(SMALL.layers, SMALL.heads, dtype=torch.float64, requires_grad=True)

    def loss(values: torch.Tensor) -> torch.Tensor:
        with gated_heads(bert, values):
            return bert(IDS, SEGMENTS).last[..., 0].square().mean()  # type: ignore[no-any-return]

    assert torch.autograd.gradcheck(loss, (gates,))


def test_gates_go_when_something_fails() -> None:
    bert = random_bert()
    whole = last(bert)
    with pytest.raises(ZeroDivisionError), without_heads(bert, HEADS):
        _ = 1 / 0
    assert torch.equal(last(bert), whole)


def test_pruned_folder_is_the_same_to_transformers(tmp_path: Path) -> None:
    model = load(saved(model_folder(), tmp_path / "whole"))
    with model.without_heads(HEADS):
        expected = model.hidden("the cats sat on a mat")
    model.prune_heads(HEADS)
    model.save(tmp_path / "pruned")
    oracle = BertModel.from_pretrained(tmp_path / "pruned", add_pooling_layer=False).eval()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        ids = torch.tensor([model.tokenizer("the cats sat on a mat").ids])
        assert_close(oracle(input_ids=ids).last_hidden_state[0], expected)
    assert_close(load(tmp_path / "pruned").hidden("the cats sat on a mat"), expected)


def test_shared_layers_are_gated_separately_and_not_pruned() -> None:
    config = replace(SMALL, shared_layers=True, embedding_size=8)
    bert = random_bert(config)
    whole = last(bert)
    found = []
    for layer in range(config.layers):
        with without_heads(bert, [(layer, 0)]):
            found.append(last(bert))
    assert all((one - whole).abs().max() > 1e-3 for one in found)
    assert (found[0] - found[1]).abs().max() > 1e-3
    with pytest.raises(ConfigError, match="the layers of this model share their weights"):
        prune_heads(bert, [(0, 0)])


@pytest.mark.parametrize("head", [(3, 0), (0, 2), (-1, 0), (0, -1)])
def test_heads_that_are_not_there(head: tuple[int, int]) -> None:
    bert = random_bert()
    message = rf"layer {head[0]}, head {head[1]}: this model has layers 0 to 2 with heads 0 to 1"
    with pytest.raises(ConfigError, match=message), without_heads(bert, [head]):
        pass
    with pytest.raises(ConfigError, match=message):
        prune_heads(bert, [head])
