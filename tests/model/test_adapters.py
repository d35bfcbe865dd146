"""Houlsby adapters, and attaching and detaching parts of every kind."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cloze.errors import ConfigError
from cloze.model import Backbone, Bert, BertConfig, HeadName, preset
from cloze.model.adapters import (
    Adapter,
    Attachment,
    AttachmentKind,
    attach,
    install,
    new_parts,
    part_tensors,
    parts_of,
    without_attachment,
)
from cloze.model.encoder import Layer
from cloze.model.losses import task_logits
from tests.model.made import SMALL, random_bert

IDS = torch.tensor([[2, 7, 8, 9, 3], [2, 9, 7, 3, 0]])
SEGMENTS = torch.zeros_like(IDS)
MASK = IDS.ne(0)
HOULSBY = Attachment("houlsby", "sequence", 3, size=5)
LORA = Attachment("lora", "sequence", 3, size=2)
KINDS = [HOULSBY, LORA]
MINILM = BertConfig(hidden_size=384, layers=6, heads=12, feedforward_size=1536)
ALBERT = replace(SMALL, embedding_size=8, shared_layers=True)


def encode(bert: Backbone) -> Tensor:
    with torch.no_grad():
        last: Tensor = bert.eval()(IDS, SEGMENTS, MASK).last
    return last


def move(bert: Backbone) -> None:
    """Change the value of every trained parameter."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in bert.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))


@pytest.mark.parametrize("config", [SMALL, ALBERT], ids=["bert", "albert"])
@pytest.mark.parametrize("attachment", KINDS, ids=lambda one: one.kind)
def test_fresh_attachment_is_the_base_to_the_bit(attachment: Attachment, config: BertConfig) -> None:
    bert = random_bert(config, ["mlm", "nsp"])
    before, pooled = encode(bert), bert.pooled(encode(bert), None)
    attach(bert, attachment, seed=0)
    assert torch.equal(encode(bert), before)
    assert torch.equal(bert.pooled(before, None), pooled)
    assert bert.head_names == ("sequence",)
    move(bert)
    assert not torch.equal(encode(bert), before)


def test_adapters_stand_before_the_sum_and_the_norm() -> None:
    """Adapters are applied before the residual sum and the norm, as in figure 2 of the paper."""
    bert = random_bert(SMALL, ["sequence"])
    attach(bert, HOULSBY, seed=0)
    move(bert)
    layer, states = bert.encoder.layers[0], torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    assert isinstance(layer, Layer)
    with torch.no_grad():
        first, second = layer.attention_adapter, layer.feedforward_adapter
        assert isinstance(first, Adapter)
        assert isinstance(second, Adapter)
        attended, _ = layer.attention(states, None, False)
        changed = attended + first.up(torch.nn.functional.gelu(first.down(attended)))
        middle = layer.attention_norm(states + changed)
        transformed = layer.contract(layer.activation(layer.expand(middle)))
        expected = layer.feedforward_norm(
            middle + transformed + second.up(torch.nn.functional.gelu(second.down(transformed)))
        )
        found, _ = layer.eval()(states, None, False)
    torch.testing.assert_close(found, expected)


def trained(bert: Bert) -> set[str]:
    return {name for name, parameter in bert.named_parameters() if parameter.requires_grad}


def test_adapters_norms_and_head_are_trained_and_nothing_else() -> None:
    bert = random_bert(SMALL, ["mlm", "nsp"])
    parts = attach(bert, HOULSBY, seed=0)
    kinds = {name.replace(f".{number}.", ".N.") for number in range(3) for name in trained(bert)}
    kinds = {name for name in kinds if not any(f".{number}." in name for number in range(3))}
    assert {name.rpartition(".")[0] for name in kinds} == {
        "encoder.embeddings.norm",
        "encoder.layers.N.attention_norm",
        "encoder.layers.N.feedforward_norm",
        "encoder.layers.N.attention_adapter.down",
        "encoder.layers.N.attention_adapter.up",
        "encoder.layers.N.feedforward_adapter.down",
        "encoder.layers.N.feedforward_adapter.up",
        "heads.sequence.output",
    }
    assert part_tensors(parts).keys() == trained(bert)


def test_pooler_is_trained_as_a_copy_that_starts_as_the_bases() -> None:
    bert = random_bert(SMALL, ["sequence"])
    own = bert.pooler
    assert own is not None
    before = {name: tensor.clone() for name, tensor in own.state_dict().items()}
    parts = attach(bert, replace(LORA, pooler=True), seed=0)
    assert {name for name in trained(bert) if "pooler" in name} == {"pooler.dense.weight", "pooler.dense.bias"}
    copied = bert.pooler
    assert copied is not None
    assert copied is parts["pooler"] is not own
    for name, tensor in copied.state_dict().items():
        assert torch.equal(tensor, before[name])
        tensor.add_(1)
        assert torch.equal(own.state_dict()[name], before[name]), "the base has its own"


def test_missing_pooler_is_initialized_randomly() -> None:
    bert = random_bert(SMALL, pooler=False)
    assert bert.pooler is None
    attach(bert, replace(LORA, pooler=True), seed=0)
    assert bert.pooler is not None
    assert float(bert.pooler.state_dict()["dense.weight"].std()) > 0.01


@pytest.mark.parametrize("pooler", [False, True])
@pytest.mark.parametrize("attachment", [replace(HOULSBY, size=64), replace(LORA, size=8)], ids=lambda one: one.kind)
@pytest.mark.parametrize("config", [MINILM, preset("base")], ids=["minilm", "base"])
def test_at_most_four_per_cent_are_trained(config: BertConfig, attachment: Attachment, pooler: bool) -> None:
    with torch.device("meta"):
        bert = Bert(config, ["sequence"], labels=3)
        whole = bert.parameter_count()
        parts = new_parts(bert, replace(attachment, pooler=pooler))
    share = sum(tensor.numel() for tensor in part_tensors(parts).values()) / whole
    assert share <= 0.04
    assert share > (0.02 if attachment.kind == "houlsby" else 0.001)


@pytest.mark.parametrize("attachment", KINDS, ids=lambda one: one.kind)
def test_every_trained_parameter_gets_a_gradient_and_no_other(attachment: Attachment) -> None:
    bert = random_bert(SMALL, ["sequence"])
    attach(bert, attachment, seed=0)
    move(bert)  # parameters that start at zero block the gradients of earlier ones for one step
    bert.heads["sequence"](bert.pooled(bert(IDS, SEGMENTS, MASK).last, MASK)).square().sum().backward()
    for name, parameter in bert.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name
        assert parameter.grad is None or parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("head", ["sequence", "token", "span", "choice"])
@pytest.mark.parametrize("kind", ["houlsby", "lora", "features"])
def test_every_head_stands_on_every_kind(kind: AttachmentKind, head: HeadName) -> None:
    bert = random_bert(SMALL, [head], labels=3)
    expected = task_logits(bert, head, encode(bert), [2]).shape
    attach(bert, replace(HOULSBY, kind=kind, head=head, reads="last4", feature_head="lstm"), seed=0)
    assert task_logits(bert, head, encode(bert), [2]).shape == expected


def test_attached_parts_are_detached() -> None:
    bert = random_bert(SMALL, ["mlm", "nsp"])
    before, state = encode(bert), bert.state_dict()
    parts = new_parts(bert, HOULSBY)
    removed = install(bert, parts)
    assert set(bert.heads) == {"sequence"}
    assert parts_of(bert, HOULSBY) == parts
    assert install(bert, removed) == parts
    assert set(bert.heads) == {"mlm", "nsp"}
    assert torch.equal(encode(bert), before)
    after = bert.state_dict()
    assert after.keys() == state.keys()
    assert all(after[name].data_ptr() == state[name].data_ptr() for name in state), "weights are shared, not copied"


def test_seed_decides_the_start() -> None:
    starts = [part_tensors(attach(random_bert(SMALL, ["sequence"]), HOULSBY, seed)) for seed in (0, 0, 1)]
    name = "encoder.layers.0.attention_adapter.down.weight"
    assert torch.equal(starts[0][name], starts[1][name])
    assert not torch.equal(starts[0][name], starts[2][name])


def test_adapters_cannot_be_merged() -> None:
    bert = random_bert(SMALL, ["sequence"])
    assert without_attachment(bert) is bert
    attach(bert, HOULSBY, seed=0)
    with pytest.raises(ConfigError, match="a houlsby adapter, unlike lora, cannot be merged"):
        without_attachment(bert)
