"""Dropout from sixteen random bits: rate, scale and gradient equal standard dropout."""

import math

import pytest
import torch
from torch import Tensor

from cloze.model.building_blocks import Dropout, random_bits

SIZES: list[tuple[int, ...]] = [(), (1,), (3,), (5, 7), (2, 3, 11), (4, 4)]


def dropped(probability: float, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    return Dropout(probability).train()(torch.ones(shape))  # type: ignore[no-any-return]


@pytest.mark.parametrize("probability", [0.001, 0.1, 0.5, 0.9, 0.999])
def test_share_that_is_dropped(probability: float) -> None:
    count = 1_000_000
    zeros = int((dropped(probability, (count,)) == 0).sum())
    # Five standard deviations of a binomial, plus the error of rounding the rate to sixteen bits.
    bound = 5 * math.sqrt(count * probability * (1 - probability)) + count / 2**17
    assert abs(zeros - count * probability) < bound


def test_places_in_a_draw_are_alike_and_independent() -> None:
    """The four elements that share a draw of 64 bits have the same dropout rate and are uncorrelated."""
    zeros = (dropped(0.5, (250_000, 4), seed=1) == 0).double()
    assert ((zeros.mean(0) - 0.5).abs() < 5 * math.sqrt(0.25 / 250_000)).all()
    together = torch.corrcoef(zeros.T) - torch.eye(4)
    assert together.abs().max() < 5 / math.sqrt(250_000)


def test_every_bit_is_used() -> None:
    torch.manual_seed(0)
    bits = random_bits(torch.Size((40_000, 4)))
    for bit in range(16):
        shares = ((bits >> bit) & 1).double().mean(0)  # dropout rate at each of the four positions
        assert ((shares - 0.5).abs() < 5 * math.sqrt(0.25 / 40_000)).all(), bit


@pytest.mark.parametrize("probability", [0.1, 0.25, 0.9])
def test_kept_values_are_scaled(probability: float) -> None:
    values = dropped(probability, (10_000,))
    kept = values[values != 0]
    assert len(kept) > 500
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - probability)))


@pytest.mark.parametrize("probability", [0.1, 0.25, 0.9])
def test_bfloat16_drops_the_same_elements(probability: float) -> None:
    wide = dropped(probability, (10_000,))
    torch.manual_seed(0)
    narrow = Dropout(probability).train()(torch.ones(10_000, dtype=torch.bfloat16))
    assert narrow.dtype == torch.bfloat16
    assert torch.equal(narrow, wide.bfloat16())


def test_gradient_uses_the_same_mask() -> None:
    values = torch.randn(50, 9, requires_grad=True)
    torch.manual_seed(5)
    output = Dropout(0.3).train()(values)
    output.backward(torch.full_like(output, 2.0))
    assert values.grad is not None
    expected = torch.where(output == 0, 0.0, torch.tensor(2 / 0.7))
    torch.testing.assert_close(values.grad, expected)


@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_any_size(shape: tuple[int, ...]) -> None:
    assert dropped(0.5, shape).shape == shape
    assert dropped(0.5, (0, 3)).shape == (0, 3)


def test_same_seed_same_mask() -> None:
    one, same, other = (dropped(0.5, (999,), seed) for seed in (3, 3, 4))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize(("probability", "training"), [(0.5, False), (0.0, True)])
def test_zero_dropout_returns_the_input(probability: float, training: bool) -> None:
    values, state = torch.randn(7), torch.get_rng_state()
    assert Dropout(probability).train(training)(values) is values
    assert torch.equal(torch.get_rng_state(), state)


def test_printed() -> None:
    assert repr(Dropout(0.1)) == "Dropout(0.1)"
