"""Intervals against published tables and hand-worked numbers."""

import json
import math

import numpy as np
import pytest

from rlhf.intervals import (
    TooFewValuesError,
    mean_interval,
    proportion_interval,
    student_quantile,
    win_rate,
)


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [
        (1, 12.70620),
        (2, 4.30265),
        (4, 2.77645),
        (10, 2.22814),
        (11, 2.20099),
        (15, 2.13145),
        (30, 2.04227),
        (120, 1.97993),
        (1_000_000, 1.95997),
    ],
)
def test_student_quantiles_are_those_of_the_printed_tables(assert_close, degrees, quantile):
    assert_close(student_quantile(degrees), quantile, rtol=0.0, atol=1.2e-5)


def test_a_mean_has_the_student_interval(assert_close):
    """Five values: mean 3, s = sqrt(2.5), t(4) = 2.77645, half width 1.96324."""
    found = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert_close([found.low, found.mean, found.high], [1.03676, 3, 4.96324], rtol=0.0, atol=1e-5)
    assert found.n == 5


def test_with_many_values_the_student_interval_is_the_normal_one(assert_close):
    values = np.random.default_rng(0).normal(size=5000)
    half = 1.959964 * values.std(ddof=1) / math.sqrt(5000)
    found = mean_interval(values.tolist())
    assert_close(found.high - found.mean, half, rtol=1e-3, atol=0.0)
    assert_close(found.mean - found.low, half, rtol=1e-3, atol=0.0)


def test_the_interval_of_a_mean_covers_the_truth_in_95_percent_of_samples():
    samples = np.random.default_rng(1).normal(loc=2.0, size=(2000, 6))
    found = [mean_interval(row.tolist()) for row in samples]
    covered = np.mean([each.low <= 2.0 <= each.high for each in found])
    assert abs(covered - 0.95) < 3 * math.sqrt(0.95 * 0.05 / 2000)


def test_equal_values_have_an_interval_of_width_zero():
    found = mean_interval([0.5, 0.5, 0.5])
    assert (found.low, found.mean, found.high) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        (81.0, 263, 0.2553, 0.3662),  # Newcombe 1998, table I, method 3
        (15.0, 148, 0.0624, 0.1605),
        (0.0, 20, 0.0000, 0.1611),
        (1.0, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_intervals_are_those_published_by_newcombe(assert_close, successes, n, low, high):
    found = proportion_interval(successes, n)
    assert_close([found.low, found.high], [low, high], rtol=0.0, atol=5e-5)
    assert_close(found.mean, successes / n, rtol=1e-12, atol=0.0)


def test_a_proportion_of_zero_or_one_keeps_a_width_and_stays_in_bounds(assert_close):
    none, every = proportion_interval(0.0, 10), proportion_interval(10.0, 10)
    assert_close([none.low, every.high], [0.0, 1.0], rtol=0.0, atol=1e-12)
    assert none.low >= 0
    assert every.high <= 1
    assert 0.2 < none.high < 0.35
    assert 0.65 < every.low < 0.8


@pytest.mark.parametrize("successes", [-0.5, 10.5, math.nan])
def test_more_successes_than_trials_are_refused(successes):
    with pytest.raises(ValueError, match="successes"):
        proportion_interval(successes, 10)


def test_a_win_rate_counts_ties_as_half(assert_close):
    found = win_rate([1.0, 2.0, 3.0, 4.0], [0.0, 2.0, 5.0, 1.0])
    assert_close(found.mean, 2.5 / 4, rtol=1e-12, atol=0.0)
    assert found.n == 4


def test_a_policy_against_itself_wins_half(assert_close):
    found = win_rate([1.0, -2.0, 0.3], [1.0, -2.0, 0.3])
    assert_close(found.mean, 0.5, rtol=0.0, atol=0.0)
    assert found.low < 0.5 < found.high


def test_swapping_the_sides_mirrors_the_interval(assert_close):
    ours, theirs = [1.0, 2.0, 0.0, 4.0, 1.0], [0.0, 2.0, 3.0, 1.0, 0.5]
    forward, backward = win_rate(ours, theirs), win_rate(theirs, ours)
    assert_close(forward.low, 1 - backward.high, rtol=1e-12, atol=0.0)
    assert_close(forward.mean, 1 - backward.mean, rtol=1e-12, atol=0.0)


def test_winning_everywhere_is_no_certainty():
    found = win_rate([1.0] * 512, [0.0] * 512)
    assert found.mean == 1.0
    assert 0.985 < found.low < 0.995


@pytest.mark.parametrize("values", [[], [1.0]])
def test_an_interval_needs_two_values(values):
    with pytest.raises(TooFewValuesError, match=f"found {len(values)}"):
        mean_interval(values)


def test_a_proportion_of_nothing_is_an_error():
    with pytest.raises(TooFewValuesError, match="found 0"):
        win_rate([], [])


def test_unequal_sides_are_refused():
    with pytest.raises(ValueError, match=r"\(2\), found 1"):
        win_rate([1.0, 2.0], [1.0])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_named(bad):
    with pytest.raises(ValueError, match="value 1"):
        mean_interval([1.0, bad, 2.0])
    with pytest.raises(ValueError, match="value 0"):
        win_rate([0.0, 1.0], [bad, 1.0])


def test_an_interval_goes_into_a_metrics_file():
    found = mean_interval([1.0, 2.0, 3.0]).as_dict()
    assert list(found) == ["mean", "low", "high", "n"]
    assert json.loads(json.dumps(found)) == found
