"""The bound on agreement: compared with the nearer end of an interval, which noise widens."""

import numpy as np
import pytest

from preferences.overview import _agreement
from preferences.statistics import Votes

AGREE = [{"x": "a", "y": "a"}, {"x": "b", "y": "b"}]
DIFFER = [{"x": "a", "y": "b"}, {"x": "b", "y": "a"}]
UNITS = [*AGREE, *AGREE, *DIFFER, *DIFFER, {"x": "a", "y": "b", "z": "tie"}]


def agreement_of(units):
    votes = Votes()
    votes.units = units
    return _agreement(votes)["agreement"]


def test_the_interval_of_agreement_narrows_with_the_number_of_pairs():
    alpha, near, n = agreement_of(UNITS)
    # The first two votes: 5 of 9 pairs differ, chance 2 * 9 * 9 / (18 * 17).
    assert (alpha, n) == (pytest.approx(1 - (5 / 9) / (162 / 306)), 9)
    assert alpha < 0.2 < near < 1
    alpha, near, n = agreement_of(UNITS * 200)
    assert alpha < near < 0.2
    assert agreement_of(UNITS * 200) == (alpha, near, n)


def test_the_interval_is_as_wide_as_theory_has_it():
    # Half of 400 pairs agree: alpha is near 0, its standard error 2 * sqrt(0.25 / 400) = 0.05.
    alpha, near, _ = agreement_of((AGREE + DIFFER) * 100)
    assert near - alpha == pytest.approx(1.96 * 0.05, rel=0.1)


def test_annotators_who_always_agree_do_so_in_every_draw():
    assert agreement_of(AGREE * 3) == (1.0, 1.0, 6)


@pytest.mark.parametrize("pairs", [1, 2, 5, 8])
def test_a_few_pairs_say_little_of_agreement(pairs):
    """Annotators whose alpha is the limit, 0.2: each is right in 0.5 + √0.2 / 2."""
    draws = np.random.default_rng(0)
    truth = draws.random((500, pairs)) < 0.5
    right = draws.random((2, 500, pairs)) < 0.5 + 0.2**0.5 / 2
    flagged = 0
    for said in np.where(truth == right, "a", "b").swapaxes(0, 1):
        votes = Votes()
        votes.units = [{"x": x, "y": y} for x, y in said.T.tolist()]
        flagged += _agreement(votes).get("agreement", (1, 1, 0))[1] < 0.2
    # By a bootstrap alone 0.42, 0.17, 0.19 and 0.10 were.
    assert flagged / 500 < 0.06
