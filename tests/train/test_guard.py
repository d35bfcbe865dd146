import math

import pytest

from cloze.errors import DataError
from cloze.train.optimization import PATIENCE, SETTLING, DivergenceGuard


def settled(loss: float = 3.0) -> DivergenceGuard:
    guard = DivergenceGuard()
    for _ in range(SETTLING):
        assert guard.objection(loss, 1.0) is None
        guard.accept(loss)
    return guard


@pytest.mark.parametrize(
    ("loss", "norm", "message"),
    [
        (math.nan, 1.0, "the loss is nan"),
        (math.inf, 1.0, "the loss is inf"),
        (2.0, math.nan, "the gradient's norm is nan"),
        (2.0, math.inf, "the gradient's norm is inf"),
    ],
)
def test_what_is_not_finite_is_refused_from_the_first_step(loss: float, norm: float, message: str) -> None:
    assert DivergenceGuard().objection(loss, norm) == message


def test_tenfold_loss_is_a_spike_once_there_is_a_usual_one() -> None:
    assert DivergenceGuard().objection(1e6, 1.0) is None
    guard = settled(3.0)
    assert guard.objection(29.9, 1.0) is None
    assert guard.objection(30.1, 1.0) == "the loss is 30.1, more than 10 times the usual 3"


def test_usual_loss_follows_the_good_steps() -> None:
    guard = settled(10.0)
    for _ in range(200):
        guard.accept(1.0)
    assert guard.objection(11.0, 1.0) is not None


def test_a_row_that_is_still_wrong_is_learned_from_however_small_the_loss_has_become() -> None:
    guard = settled(0.7)
    for _ in range(400):
        guard.accept(0.001)
    assert guard.objection(0.6, 1.0) is None
    restored = DivergenceGuard()
    restored.load_state_dict(guard.state_dict())
    assert restored.objection(0.6, 1.0) is None
    assert restored.objection(7.1, 1.0) is not None


def test_bad_steps_are_told_and_a_row_of_them_is_the_end() -> None:
    guard = settled()
    told = guard.reject(41, "the loss is nan", 3e-4)
    assert told == "step 42: the loss is nan; batch skipped, weights unchanged"
    assert not guard.last_accepted
    guard.accept(3.0)
    assert guard.last_accepted
    for step in range(PATIENCE - 1):
        guard.reject(step, "the loss is nan", 3e-4)
    with pytest.raises(
        DataError, match=r"step 10: the loss is nan, for the 5th time in a row; .* learning_rate=0.0001 .*fresh=True"
    ):
        guard.reject(9, "the loss is nan", 3e-4)


def test_figures_survive_a_checkpoint() -> None:
    guard, restored = settled(2.5), DivergenceGuard()
    restored.load_state_dict(guard.state_dict())
    assert restored.state_dict() == guard.state_dict()
    assert restored.objection(26.0, 1.0) == guard.objection(26.0, 1.0) is not None
