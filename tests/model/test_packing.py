"""Prediction and training without padding: the same states and gradients in fewer rows."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cloze.model import Bert, EncoderOutput, first_positions
from cloze.model.batch import Packing
from cloze.model.encoder import Layer
from tests.model.made import ATTACHED, SMALL, assert_close, attached_bert, random_bert

CONFIGS = {"bert": SMALL, "shared layers": replace(SMALL, embedding_size=10, shared_layers=True)}
LENGTHS = [9, 4, 4, 6, 4, 1]
IDS = torch.randint(1, SMALL.vocab_size, (6, 9), generator=torch.Generator().manual_seed(3))
SEGMENTS = (torch.arange(9) > 4).long().expand_as(IDS)
MASK = torch.arange(9) < torch.tensor(LENGTHS)[:, None]


def make_model(name: str, way: str) -> Bert:
    return attached_bert(CONFIGS[name], way).eval()


def padded_and_packed(model: Bert, mask: Tensor, needed: Tensor | None = None) -> tuple[EncoderOutput, EncoderOutput]:
    """Return the padded output (used on accelerators and when gradients are enabled) and the packed one."""
    padded = model.requires_grad_(False).encoder(IDS, SEGMENTS, mask, needed=needed, keep_states=True)
    with torch.no_grad():
        packed = model.encoder(IDS, SEGMENTS, mask, needed=needed, keep_states=True)
    return padded, packed


@pytest.mark.parametrize("way", ["plain", *ATTACHED])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_same_states(name: str, way: str) -> None:
    padded, packed = padded_and_packed(make_model(name, way), MASK)
    assert len(padded.states) == len(packed.states) == SMALL.layers + 1
    for one, other in zip([padded.last, *padded.states], [packed.last, *packed.states], strict=True):
        assert_close(other[MASK], one[MASK])
        assert not other[~MASK].any()
    assert packed.last is packed.states[-1]


@pytest.mark.parametrize("mask", [MASK.flip(1), torch.rand(6, 9, generator=torch.Generator().manual_seed(1)) > 0.4])
def test_tokens_may_stand_anywhere(mask: Tensor) -> None:
    padded, packed = padded_and_packed(make_model("bert", "plain"), mask)
    assert_close(packed.last[mask], padded.last[mask])


def test_with_some_places_needed() -> None:
    places = torch.cat([first_positions(IDS), torch.tensor([10, 3, 30])])
    padded, packed = padded_and_packed(make_model("bert", "plain"), MASK, places)
    assert_close(packed.last, padded.last)
    assert (packed.last.flatten(0, 1).abs().sum(1) > 0).sum() == len(places)


def test_padding_is_not_computed() -> None:
    model, rows = make_model("bert", "plain"), []
    for module in model.modules():
        if isinstance(module, Layer):
            module.expand.register_forward_pre_hook(lambda _, inputs: rows.append(inputs[0].shape[:-1].numel()))
    padded_and_packed(model, MASK)
    assert rows == [54] * 3 + [sum(LENGTHS)] * 3


def test_the_batch_does_not_matter() -> None:
    """A sequence has the same states in any batch, except for the last digit.

    Matrix products of one row and of many rows may be summed in a different order.
    """
    model = make_model("bert", "plain")
    with torch.inference_mode():
        together = model(IDS, SEGMENTS, MASK).last
        for row, length in enumerate(LENGTHS):
            alone = model(IDS[row : row + 1, :length], SEGMENTS[row : row + 1, :length]).last
            torch.testing.assert_close(together[row, :length], alone[0], atol=2e-6, rtol=0.0)


def test_a_row_without_tokens() -> None:
    mask = MASK.clone()
    mask[2] = False
    assert [group.shape for group in Packing.of(mask).groups] == [(1, 9), (1, 4), (1, 6), (1, 4), (1, 1)]
    _, packed = padded_and_packed(make_model("bert", "plain"), mask)
    assert not packed.last[2].any()
    assert packed.last[mask].all()


def test_attention_weights_are_those_of_whole_batches() -> None:
    with torch.inference_mode():
        found = make_model("bert", "plain").encoder(IDS, SEGMENTS, MASK, keep_attentions=True).attentions
    assert {tuple(weights.shape) for weights in found} == {(6, SMALL.heads, 9, 9)}


@pytest.mark.parametrize("neighbours", [1, 2, 4, 8])
@pytest.mark.parametrize("needed", [None, torch.tensor([0, 9, 10, 3, 30])])
@pytest.mark.parametrize("way", ["plain", *ATTACHED])
def test_training_has_the_same_gradients(
    monkeypatch: pytest.MonkeyPatch, way: str, needed: Tensor | None, neighbours: int
) -> None:
    monkeypatch.setattr("cloze.model.batch.TRAINING_GROUP", neighbours)
    model = attached_bert(replace(SMALL, dropout=0.0, attention_dropout=0.0), way)
    found = []
    for training in (False, True):  # padded, packed
        model.train(training).zero_grad()
        last = model.encoder(IDS, SEGMENTS, MASK, needed=needed).last
        (last * last.detach().cos())[MASK].sum().backward()
        gradients = [one.grad.clone() for one in model.parameters() if one.grad is not None]
        found.append([last.detach()[MASK], *gradients])
    assert len(found[0]) == len(found[1]) > 30
    for padded, packed in zip(*found, strict=True):
        torch.testing.assert_close(packed, padded, atol=1e-4, rtol=1e-4)


def test_training_skips_padding_and_batches_attention() -> None:
    model, rows, parts = make_model("bert", "plain").train(), list[int](), list[tuple[int, int]]()
    first = model.encoder.layers[0]
    assert isinstance(first, Layer)
    first.expand.register_forward_pre_hook(lambda _, inputs: rows.append(inputs[0].shape[1]))
    first.attention.register_forward_pre_hook(lambda _, inputs: parts.extend(part.shape for part in inputs[1]))
    model.encoder(IDS, SEGMENTS, MASK)
    assert rows == [sum(LENGTHS)]
    assert parts == [(6, 9)]


def test_gradients_are_the_same_to_the_bit_at_any_number_of_threads() -> None:
    """Gradients of repeated positions are bit-identical for any number of threads.

    If threads added their gradients concurrently, the sums would differ from run to run.
    """
    config = replace(SMALL, hidden_size=320, heads=4, dropout=0.0)
    embeddings, threads = random_bert(config).encoder.embeddings.train(), torch.get_num_threads()
    generator = torch.Generator().manual_seed(0)
    ids, positions = (torch.randint(1, 32, (4000,), generator=generator) for _ in range(2))
    weights = torch.randn(4000, 320, generator=generator)
    found = list[Tensor]()
    torch.set_num_threads(2)
    try:
        for _ in range(10):
            embeddings.zero_grad()
            states = embeddings(ids[None], torch.zeros_like(ids)[None], positions)
            (states[0] * weights).sum().backward()
            assert embeddings.position.weight.grad is not None
            found.append(embeddings.position.weight.grad.clone())
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, found[0]) for one in found)
