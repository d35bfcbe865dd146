"""Tables whose gradient lies in the same memory every time: the gradients of PyTorch's own."""

import copy

import pytest
import torch
from torch import Tensor

from cloze.model.tables import WordTable, table

ROWS, WIDTH, PADDING = 40, 8, 3


def two_tables(padding_id: int | None = PADDING) -> tuple[WordTable, torch.nn.Embedding]:
    """Ours and PyTorch's, with the same numbers."""
    ours, plain = WordTable(ROWS, WIDTH, padding_id).train(), table(ROWS, WIDTH, padding_id).train()
    with torch.no_grad():
        ours.weight.copy_(torch.randn(ROWS, WIDTH))
        plain.weight.copy_(ours.weight)
    return ours, plain


def gradient(module: torch.nn.Embedding, ids: Tensor, given: Tensor) -> Tensor:
    """Of the table, as an optimizer finds it."""
    module(ids).backward(given)
    assert module.weight.grad is not None
    return module.weight.grad


@pytest.mark.parametrize("padding_id", [None, PADDING])
def test_rows_and_gradients_are_those_of_pytorch(padding_id: int | None) -> None:
    torch.manual_seed(0)
    ours, plain = two_tables(padding_id)
    for _ in range(3):
        ids, given = torch.randint(0, ROWS, (4, 30)), torch.randn(4, 30, WIDTH)  # some rows many times, some never
        ours.zero_grad()
        plain.zero_grad()
        assert torch.equal(ours(ids), plain(ids))
        assert torch.equal(gradient(ours, ids, given), gradient(plain, ids, given))


def test_the_next_gradient_lies_where_the_last_one_lay() -> None:
    ours, _ = two_tables()
    places = set()
    for step in range(3):
        ours.zero_grad()
        places.add(gradient(ours, torch.tensor([[step]]), torch.ones(1, 1, WIDTH)).data_ptr())
    assert len(places) == 1


def test_a_gradient_that_somebody_holds_is_left_alone() -> None:
    ours, _ = two_tables()
    held = gradient(ours, torch.tensor([[1]]), torch.ones(1, 1, WIDTH))
    before = held.clone()
    ours.zero_grad()
    gradient(ours, torch.tensor([[2]]), torch.ones(1, 1, WIDTH))
    assert torch.equal(held, before)


def test_parts_of_a_batch_add_up() -> None:
    torch.manual_seed(0)
    ours, plain = two_tables()
    for _ in range(3):
        ids, given = torch.randint(0, ROWS, (2, 9)), torch.randn(2, 9, WIDTH)
        both = gradient(ours, ids, given), gradient(plain, ids, given)
    torch.testing.assert_close(*both, rtol=0, atol=0)


def test_a_table_that_is_also_a_head() -> None:
    """Masked words are told apart by the same table: both gradients are added."""
    torch.manual_seed(0)
    ours, plain = two_tables()
    ids = torch.randint(0, ROWS, (3, 5))
    for _ in range(2):
        for module in (ours, plain):
            module.zero_grad()
            (module(ids) @ module.weight.T).logsumexp(-1).sum().backward()
        assert ours.weight.grad is not None
        assert plain.weight.grad is not None
        assert torch.equal(ours.weight.grad, plain.weight.grad)


def test_a_frozen_table_has_none() -> None:
    ours, _ = two_tables()
    ours.weight.requires_grad_(False)
    states = ours(torch.tensor([[1, 2]]))
    assert not states.requires_grad


def test_a_copy_has_memory_of_its_own() -> None:
    ours, _ = two_tables()
    ids, given = torch.tensor([[1]]), torch.ones(1, 1, WIDTH)
    first = gradient(ours, ids, given)
    other = copy.deepcopy(ours)
    other.zero_grad()
    second = gradient(other, ids, 2 * given)
    assert torch.equal(second, 2 * first)
