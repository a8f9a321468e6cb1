"""Spreads and fits against SciPy and against simulation."""

import math

import numpy as np
import pytest
from scipy import optimize, stats

from experiments.statistics import fit_log, fit_square, spread
from rlhf.intervals import TooFewValuesError

GOLD = [8.45, 8.51, 8.79, 9.02, 8.13, 8.66, 8.9, 8.4]


def test_the_interval_of_a_new_seed_is_students_with_the_draw_of_the_seed_in_it():
    found = spread(GOLD)
    scale = np.std(GOLD, ddof=1) * math.sqrt(1 + 1 / 8)
    wanted = stats.t.interval(0.95, df=7, loc=np.mean(GOLD), scale=scale)

    assert (found.next_low, found.next_high) == pytest.approx(wanted, abs=1e-6)
    assert (found.worst, found.best) == (8.13, 9.02)
    mean = stats.t.interval(0.95, df=7, loc=np.mean(GOLD), scale=stats.sem(GOLD))
    assert (found.mean.low, found.mean.high) == pytest.approx(mean, abs=1e-6)


def test_a_new_seed_lands_in_its_interval_as_often_as_it_says():
    draws = np.random.default_rng(3)
    hits = 0
    for _ in range(4000):
        *seen, new = draws.normal(8.5, 0.3, size=9)
        found = spread(seen)
        hits += found.next_low <= new <= found.next_high
    assert hits / 4000 == pytest.approx(0.95, abs=0.015)


def test_one_seed_has_no_interval():
    with pytest.raises(TooFewValuesError):
        spread([8.0])


@pytest.mark.parametrize(
    ("fit", "form"),
    [
        (fit_square, lambda d, a, b: d * (a - b * d)),
        (fit_log, lambda d, a, b: d * (a - b * np.log(d))),
    ],
)
def test_a_fit_is_that_of_a_general_optimiser(fit, form):
    kl = np.array([0.3, 0.9, 1.5, 3.0, 5.5, 9.0, 16.0])
    noise = np.random.default_rng(0).normal(0, 0.2, size=7)
    gain = form(np.sqrt(kl), 3.1, 0.6) + noise
    wanted, _ = optimize.curve_fit(form, np.sqrt(kl), gain, p0=(1.0, 1.0))

    found = fit(list(kl), list(gain))

    assert (found.alpha, found.beta) == pytest.approx(tuple(wanted), abs=1e-5)
    left = form(np.sqrt(kl), *wanted) - gain
    assert found.residual == pytest.approx(math.sqrt(np.mean(left**2)), abs=1e-7)


def test_a_policy_that_has_not_moved_cannot_be_fitted():
    with pytest.raises(ValueError, match="above 0"):
        fit_log([0.0, 1.0, 2.0], [0.0, 1.0, 2.0])


def test_policies_at_one_distance_cannot_be_fitted():
    """Any alpha has a beta that goes through their mean."""
    with pytest.raises(ValueError, match="two distances"):
        fit_square([2.0, 2.0, 2.0], [1.0, 2.0, 3.0])
