"""Best-of-n against enumeration, and its bound against the exact KL of distributions."""

import itertools
import math
import statistics

import pytest

from rlhf.best_of_n import best_of_n, kl_bound

SCORES = [0.3, -1.2, 2.5, 0.3, 0.9, 2.5, -0.1, 2.5]
"""Twice two and once three are tied, one of them the highest."""
VALUES = [4.0, 7.5, 1.25, -3.0, 10.0, 6.5, 0.0, 3.0]


def enumerated(scores: list[float], values: list[float], n: int) -> float:
    """The mean over every subset; of responses that share its highest score, each as often."""
    means = []
    for subset in itertools.combinations(range(len(scores)), n):
        highest = max(scores[row] for row in subset)
        means.append(statistics.fmean(values[row] for row in subset if scores[row] == highest))
    return statistics.fmean(means)


@pytest.mark.parametrize("n", range(1, 9))
def test_the_mean_is_that_of_all_subsets_also_with_equal_scores(assert_close, n: int) -> None:
    expected = enumerated(SCORES, VALUES, n)
    assert_close(best_of_n(SCORES, VALUES, n=n), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("n", [1, 3, 10])
def test_sixteen_responses_without_equal_scores(assert_close, n: int) -> None:
    scores = [math.sin(7 * row) for row in range(16)]
    values = [math.cos(3 * row) for row in range(16)]
    expected = enumerated(scores, values, n)
    assert_close(best_of_n(scores, values, n=n), expected, rtol=0, atol=1e-9)


def test_three_responses_by_hand(assert_close) -> None:
    """Of {1, 2}, {1, 3} and {2, 3} two have the third as their best."""
    found = [best_of_n([1.0, 3.0, 2.0], [10.0, 30.0, 20.0], n=n) for n in (1, 2, 3)]
    assert_close(found, [20.0, 80 / 3, 30.0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_over_all_draws_of_a_distribution_the_mean_is_that_of_n_draws(assert_close, n: int) -> None:
    """Unbiased: three responses with probabilities, drawn four times in every possible way."""
    chances, scores, values = [0.5, 0.3, 0.2], [0.0, 1.0, 2.0], [6.0, 1.0, 9.0]
    mean = math.fsum(
        math.prod(chances[one] for one in draw)
        * best_of_n([scores[one] for one in draw], [values[one] for one in draw], n=n)
        for draw in itertools.product(range(3), repeat=4)
    )
    upto = [0.0, 0.5, 0.8, 1.0]
    exact = sum((upto[k + 1] ** n - upto[k] ** n) * values[k] for k in range(3))
    assert_close(mean, exact, rtol=0, atol=1e-12)


@pytest.mark.parametrize("n", [0, 9])
def test_more_responses_than_there_are_or_none_are_refused(n: int) -> None:
    with pytest.raises(ValueError, match="from 1 to 8 responses"):
        best_of_n(SCORES, VALUES, n=n)


def test_a_value_is_needed_for_each_score() -> None:
    with pytest.raises(ValueError, match="each of 8 scores, found 7"):
        best_of_n(SCORES, VALUES[1:], n=2)


def exact_kl(chances: list[float], n: int) -> float:
    """KL of best-of-n to the distribution itself, whose outcomes are in the order of their scores.

    The best of n is outcome k with probability (P_1 + ... + P_k)^n - (P_1 + ... + P_{k-1})^n.
    """
    total, below = 0.0, 0.0
    for chance in chances:
        best = (below + chance) ** n - below**n
        total += best * math.log(best / chance) if best else 0.0
        below += chance
    return total


@pytest.mark.parametrize("n", [1, 2, 4, 16, 64])
def test_the_bound_is_the_kl_of_a_distribution_of_many_small_parts(assert_close, n: int) -> None:
    assert_close(kl_bound(n), exact_kl([1 / 50_000] * 50_000, n), rtol=0, atol=1e-3)


@pytest.mark.parametrize("n", [2, 4, 16, 64])
@pytest.mark.parametrize("chances", [[0.5, 0.3, 0.2], [0.2, 0.3, 0.5], [0.01, 0.98, 0.01]])
def test_where_few_responses_are_likely_it_is_an_upper_bound(chances: list[float], n: int) -> None:
    assert 0 < exact_kl(chances, n) < kl_bound(n)


def test_the_bound_begins_at_zero_and_rises_with_n(assert_close) -> None:
    bounds = [kl_bound(n) for n in range(1, 200)]
    assert bounds[0] == 0
    assert_close(bounds[63], 3.1745080, rtol=0, atol=1e-6)
    assert all(lower < higher for lower, higher in itertools.pairwise(bounds))
    with pytest.raises(ValueError, match="1 or more"):
        kl_bound(0)
