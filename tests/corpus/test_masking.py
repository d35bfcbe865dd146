from math import sqrt

import numpy as np
import pytest

from cloze.corpus.masking import Flags, Ids, choose, hide
from cloze.corpus.settings import MaskSettings
from cloze.errors import ConfigError

MASK = 4
ORDINARY = np.arange(5, 1005)


def candidates_of(lengths: Ids, width: int) -> Flags:
    """Everything between a special token at either end."""
    columns = np.arange(width)
    return (columns > 0) & (columns < lengths[:, None] - 1)


@pytest.mark.parametrize("rate", [0.01, 0.15, 0.4, 0.99])
def test_count_is_the_rounded_share_and_at_least_one(rate: float) -> None:
    lengths = np.arange(3, 129)
    candidates = candidates_of(lengths, 128)
    chosen = choose(candidates, lengths, rate, np.random.default_rng(0))
    assert not (chosen & ~candidates).any()
    expected = [min(max(1, round(length * rate)), length - 2) for length in lengths.tolist()]
    assert chosen.sum(1).tolist() == expected


def test_every_candidate_is_as_likely() -> None:
    lengths = np.full(20_000, 42)
    chosen = choose(candidates_of(lengths, 42), lengths, 0.15, np.random.default_rng(0))
    share = 6 / 40  # round(42 * 0.15) of 40 candidates
    bound = 4.5 * sqrt(20_000 * share * (1 - share))
    assert (np.abs(chosen.sum(0)[1:41] - 20_000 * share) < bound).all()


def test_fates_are_eighty_ten_ten() -> None:
    generator = np.random.default_rng(0)
    ids = generator.choice(ORDINARY, (600, 500))
    chosen = generator.random(ids.shape) < 0.8  # 240,000 of them
    seen = hide(ids, chosen, MASK, ORDINARY, MaskSettings(), generator)
    assert (seen[~chosen] == ids[~chosen]).all()
    total = int(chosen.sum())
    masked = seen[chosen] == MASK
    replaced = ~masked & (seen[chosen] != ids[chosen])
    # A random word is the original one once in a thousand.
    shares = {0.8: masked, 0.1 * 0.999: replaced, 0.1 + 0.1 * 0.001: ~masked & ~replaced}
    assert total > 200_000
    for share, fate in shares.items():
        assert abs(int(fate.sum()) - total * share) < 4 * sqrt(total * share * (1 - share))
    # Random words are any ordinary ones, and never special.
    words, counts = np.unique(seen[chosen][replaced], return_counts=True)
    assert words.tolist() == ORDINARY.tolist()
    assert counts.max() < 2 * counts.mean()


@pytest.mark.parametrize(
    ("mix", "expected"), [((1, 0, 0), [MASK] * 6), ((0, 1, 0), [7] * 6), ((0, 0, 1), [5, 6, 5, 6, 5, 6])]
)
def test_fates_can_be_one_alone(mix: tuple[float, float, float], expected: list[int]) -> None:
    ids = np.array([[5, 6, 5, 6, 5, 6]])
    settings = MaskSettings(mix=mix)
    seen = hide(ids, np.ones_like(ids, bool), MASK, np.array([7]), settings, np.random.default_rng(0))
    assert seen.tolist() == [expected]


def test_masks_follow_from_the_generator() -> None:
    lengths = np.full(50, 60)
    candidates = candidates_of(lengths, 60)
    first, again, other = (choose(candidates, lengths, 0.15, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert (first == again).all()
    assert (first != other).any()


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, float("nan")])
def test_rate_out_of_bounds_is_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match=f"mask rate is {rate}; a share between 0 and 1 was expected"):
        MaskSettings(rate)


@pytest.mark.parametrize("mix", [(0.8, 0.1, 0.2), (1.1, -0.1, 0.0), (0.9, 0.1), (float("nan"), 0.5, 0.5)])
def test_mix_that_is_none_is_refused(mix: tuple[float, float, float]) -> None:
    with pytest.raises(ConfigError, match=r"mask mix is \(.*\); three shares that add up to 1 were expected"):
        MaskSettings(mix=mix)
