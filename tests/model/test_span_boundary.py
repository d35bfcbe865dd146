"""The span-boundary head depends exactly on the states at the span's boundaries and on the position."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from cloze.model import Bert, BertConfig
from cloze.model.heads import SPAN_PLACE_SIZE, SPAN_PLACES
from cloze.model.losses import masked_word_loss, span_boundary_logits
from tests.model.made import SMALL, assert_close, random_bert
from tests.model.test_albert import SHARED

# Flat positions in two sequences of nine: the token before, the token after, the position in the span.
BOUNDARIES = torch.tensor([[1, 4, 0], [1, 4, 1], [10, 17, 5], [0, 2, 0]])


@pytest.fixture
def last() -> Tensor:
    return torch.randn(2, 9, SMALL.hidden_size, generator=torch.Generator().manual_seed(4))


def by_the_paper(model: Bert, last: Tensor, boundaries: Tensor) -> Tensor:
    """Compute the equations of section 3.2 for one target at a time."""
    head = model.heads["sbo"].state_dict()
    rows = []
    for before, after, place in boundaries.tolist():
        hidden = torch.cat([last[before // 9, before % 9], last[after // 9, after % 9], head["place.weight"][place]])
        for layer in ("first", "second"):
            hidden = functional.gelu(head[f"{layer}.weight"] @ hidden + head[f"{layer}.bias"])
            scale, shift = head[f"{layer}_norm.weight"], head[f"{layer}_norm.bias"]
            hidden = functional.layer_norm(hidden, hidden.shape, scale, shift, model.config.norm_epsilon)
        rows.append(model.encoder.embeddings.token.weight @ hidden + head["bias"])
    return torch.stack(rows)


@pytest.mark.parametrize("config", [SMALL, SHARED], ids=["bert", "albert"])
def test_equations(config: BertConfig, last: Tensor) -> None:
    model = random_bert(config, ["mlm", "sbo"])
    logits = span_boundary_logits(model, last, BOUNDARIES)
    assert logits.shape == (4, config.vocab_size)
    assert_close(logits, by_the_paper(model, last, BOUNDARIES))


def test_states_inside_the_span_are_not_used(last: Tensor) -> None:
    model = random_bert(heads=["sbo"])
    before = span_boundary_logits(model, last, BOUNDARIES[:2])
    changed = last.clone()
    changed[0, 2:4] += 1
    assert torch.equal(span_boundary_logits(model, changed, BOUNDARIES[:2]), before)
    changed[0, 4] += 1
    assert not torch.isclose(span_boundary_logits(model, changed, BOUNDARIES[:2]), before).all()


def test_places_behind_the_last_are_the_last(last: Tensor) -> None:
    model = random_bert(heads=["sbo"])
    far = torch.tensor([[1, 4, SPAN_PLACES - 1], [1, 4, SPAN_PLACES], [1, 4, 500]])
    logits = span_boundary_logits(model, last, far)
    assert torch.equal(logits[1], logits[0])
    assert torch.equal(logits[2], logits[0])


def test_every_parameter_learns_and_the_table_is_tied(last: Tensor) -> None:
    model = random_bert(heads=["sbo"])
    assert model.heads["sbo"].place.weight.shape == (SPAN_PLACES, SPAN_PLACE_SIZE)  # type: ignore[union-attr]
    targets = torch.tensor([7, 8, 9, 10])
    masked_word_loss(span_boundary_logits(model, last, BOUNDARIES), targets).backward()  # type: ignore[no-untyped-call]
    for name, parameter in model.heads["sbo"].named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 1e-8, name
    assert model.encoder.embeddings.token.weight.grad is not None


def test_no_spans_are_no_loss(last: Tensor) -> None:
    model = random_bert(heads=["sbo"])
    nothing = torch.zeros((0, 3), dtype=torch.long)
    loss = masked_word_loss(span_boundary_logits(model, last, nothing), nothing[:, 0])
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss == 0
