"""Risk-coverage curves and thresholds for abstaining: brute force, guarantees on simulated rows, and messages."""

import numpy as np
import pytest
from scipy.stats import binom

from cloze.errors import ConfigError, DataError
from cloze.tasks.metrics import binomial_upper_bound, choose_abstention, risk_coverage


def test_curve_equals_brute_force() -> None:
    draw = np.random.default_rng(0)
    for _ in range(20):
        confidences = draw.random(30)
        correct = draw.random(30) < confidences
        curve = risk_coverage(confidences.tolist(), correct.tolist())
        risks = [1 - correct[confidences >= value].mean() for value in np.sort(confidences)[::-1]]
        np.testing.assert_allclose(curve.risk, risks, atol=1e-12)
        np.testing.assert_allclose(curve.coverage, np.arange(1, 31) / 30)
        assert curve.area == pytest.approx(np.mean(risks))
        perfect = risk_coverage(correct.astype(float).tolist(), correct.tolist())
        assert curve.best_area <= curve.area
        assert perfect.risk[-1] == pytest.approx(1 - correct.mean())


def test_rows_of_equal_confidence_are_answered_together() -> None:
    curve = risk_coverage([0.9, 0.5, 0.5, 0.5], [True, False, True, True])
    assert curve.coverage.tolist() == [0.25, 1.0]
    assert curve.risk.tolist() == [0.0, 0.25]
    # The order of equal rows does not matter: each counts as a third of an error.
    assert curve.area == pytest.approx(np.mean([0, (1 / 3) / 2, (2 / 3) / 3, 1 / 4]))
    assert risk_coverage([0.9, 0.5, 0.5, 0.5], [True, True, True, False]).area == pytest.approx(curve.area)
    assert curve.best_area == pytest.approx(1 / 16)


@pytest.mark.parametrize(("errors", "rows", "failure"), [(0, 59, 0.05), (3, 200, 0.01), (40, 100, 0.005)])
def test_bound_is_exact(errors: int, rows: int, failure: float) -> None:
    bound = binomial_upper_bound(errors, rows, failure)
    assert binom.cdf(errors, rows, bound) == pytest.approx(failure)
    assert binomial_upper_bound(rows, rows, failure) == 1.0


def test_error_rate_on_new_rows_is_kept() -> None:
    """Rows whose error rate is 1 - confidence: the true error rate above each threshold is known."""
    draw, broken, coverages = np.random.default_rng(1), 0, []
    for _ in range(100):
        confidences = draw.uniform(0.5, 1, 4000)
        found = choose_abstention(confidences.tolist(), (draw.random(4000) < confidences).tolist(), 0.1)
        true_risk = 1 - (found.below + 1) / 2  # answers have confidences from the threshold to 1
        broken += true_risk > 0.1
        coverages.append(found.coverage)
        assert found.risk <= found.bound <= 0.1
        assert found.coverage == pytest.approx((confidences >= found.below).mean())
    assert broken <= 100 * 0.05  # the plain empirical rate would break it about half of the time
    assert np.mean(coverages) > 0.25  # at best 0.4


def test_all_rows_are_answered_if_the_errors_are_few() -> None:
    found = choose_abstention(np.linspace(0.6, 0.9, 500).tolist(), [True] * 500, 0.05)
    assert found.coverage == 1
    assert found.below == pytest.approx(0.6)
    assert found.risk == 0


def test_mistakes() -> None:
    with pytest.raises(
        ConfigError, match=r"the error rate to abstain at is 1.5; expected a fraction above 0 and below 1$"
    ):
        choose_abstention([0.5], [True], 1.5)
    with pytest.raises(
        DataError, match=r"20 rows do not show that .* below 0.05: that needs at least 104 rows without"
    ):
        choose_abstention([0.5] * 20, [True] * 20, 0.05)
