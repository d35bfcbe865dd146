"""Activation checkpointing: bit-identical loss and gradients with less stored memory."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cloze.model import Bert, BertConfig
from cloze.model.losses import masked_word_logits, masked_word_loss, next_sentence_loss
from tests.model.made import SMALL, random_bert

CONFIGS = {
    "dropout": SMALL,
    "no dropout": replace(SMALL, dropout=0.0, attention_dropout=0.0),
    "shared layers": replace(SMALL, embedding_size=10, shared_layers=True),
}
IDS = torch.randint(1, SMALL.vocab_size, (3, 9), generator=torch.Generator().manual_seed(3))
MASK = torch.arange(9) < torch.tensor([[9], [4], [6]])


def loss_of(model: Bert) -> Tensor:
    torch.manual_seed(11)
    last = model(IDS, torch.zeros_like(IDS), MASK).last
    words = masked_word_loss(masked_word_logits(model, last, torch.tensor([1, 10, 20])), torch.tensor([5, 6, 7]))
    return words + next_sentence_loss(model, last, torch.tensor([0, 1, 0]))[0]


def kept_bytes(model: Bert) -> int:
    """Return the bytes that autograd stores for one forward pass, without parameters, counting shared storage once."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss_of(model)
    return sum(tensor.untyped_storage().nbytes() for place, tensor in kept.items() if place not in own)


@pytest.mark.parametrize("name", CONFIGS)
def test_same_loss_and_gradients(name: str) -> None:
    config = CONFIGS[name]
    results = []
    for checkpointing in (False, True):
        model = random_bert(config, ["mlm", "nsp"]).train()
        model.encoder.checkpointing = checkpointing
        loss = loss_of(model)
        loss.backward()  # type: ignore[no-untyped-call]
        results.append([loss.detach(), *(parameter.grad for parameter in model.parameters())])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("name", CONFIGS)
def test_less_is_kept(name: str) -> None:
    model = random_bert(replace(CONFIGS[name], layers=8), ["mlm", "nsp"]).train()
    plain = kept_bytes(model)
    model.encoder.checkpointing = True
    assert kept_bytes(model) < 0.2 * plain


def test_evaluation_takes_no_detour() -> None:
    model = random_bert(BertConfig(60, 16, 2, 2, 24, 32), ["mlm", "nsp"])
    plain = kept_bytes(model)
    model.encoder.checkpointing = True
    assert kept_bytes(model) == plain
    # Explicit attention weights work with checkpointing as well.
    output = model.train().encoder(IDS, torch.zeros_like(IDS), MASK, keep_attentions=True, keep_states=True)
    assert [len(output.attentions), len(output.states)] == [2, 3]
