"""Intervals of proportions over pairs of which several have one prompt."""

import numpy as np
import pytest

from rlhf.grouped_intervals import grouped_proportion
from rlhf.intervals import TooFewValuesError, hits_interval, proportion_interval


def test_one_case_in_each_group_gives_the_interval_of_as_many_cases_to_the_bit() -> None:
    hits = [1.0, 0.0, 0.5, 1.0, 1.0, 0.0, 1.0]
    assert grouped_proportion(hits, range(7)) == hits_interval(hits)
    assert grouped_proportion([1.0, 0.0, 1.0], range(3)) == proportion_interval(2.0, 3)


def test_groups_that_agree_within_count_once_each() -> None:
    """Forty groups of five equal cases: v = p (1-p) / 40 · 40/39, so n* = 39 (z / t_39)²."""
    hits = [float(group % 4 > 0) for group in range(40) for _ in range(5)]
    found = grouped_proportion(hits, [group for group in range(40) for _ in range(5)])
    z, t = 1.959963984540054, 2.0226909200367595
    n = 39 * (z / t) ** 2
    half = z * np.sqrt(0.75 * 0.25 / n + z**2 / (4 * n * n)) / (1 + z**2 / n)
    assert (found.mean, found.n) == (0.75, 200)
    assert found.high - found.low == pytest.approx(2 * half, rel=1e-4)


def test_groups_that_differ_within_count_no_more_than_their_cases() -> None:
    """Twenty prompts with two pairs, one right and one wrong in all but two: v is a fifth of that
    of 40 pairs of 40 prompts, and all the same n* = 40 (z / t_19)²."""
    hits = [1.0, 0.0] * 18 + [1.0, 1.0] * 2
    found = grouped_proportion(hits, [number // 2 for number in range(40)])
    z, t = 1.959963984540054, 2.093024054408263
    n = 40 * (z / t) ** 2
    half = z * np.sqrt(0.55 * 0.45 / n + z**2 / (4 * n * n)) / (1 + z**2 / n)
    assert (found.mean, found.n) == (pytest.approx(0.55), 40)
    assert found.high - found.low == pytest.approx(2 * half, rel=1e-4)


def test_groups_that_agree_within_count_their_ties_once_each() -> None:
    """Forty groups of five equal cases, half of them tied: the interval is that of 39 (z / t_39)²
    cases by Pearson's statistic, with chances p - d/2, d and 1 - p - d/2 found by search."""
    hits = [(1.0, 0.5, 0.0, 0.5)[group % 4] for group in range(40) for _ in range(5)]
    found = grouped_proportion(hits, [group for group in range(40) for _ in range(5)])
    n = 39 * (1.959963984540054 / 2.0226909200367595) ** 2
    d = np.linspace(1e-6, 2 * found.low - 1e-6, 200_001)
    chances = np.array([found.low - d / 2, d, 1 - found.low - d / 2])
    shares = np.array([[0.25], [0.5], [0.25]])
    likeliest = (shares * np.log(chances)).sum(axis=0).argmax()
    statistic = n * ((shares - chances) ** 2 / chances).sum(axis=0)[likeliest]
    assert statistic == pytest.approx(1.959963984540054**2, rel=1e-4)
    assert (found.mean, found.n) == (0.5, 200)
    assert found.high == pytest.approx(1 - found.low)


@pytest.mark.parametrize("prompts", [12, 60])
def test_with_ties_it_covers_in_95_of_100(prompts: int) -> None:
    """Three pairs of each prompt, whose difference varies by prompt; four in ten are ties."""
    draws = np.random.default_rng(0)

    def judged(count: int) -> tuple[list[float], list[int]]:
        better = draws.normal(0.6, 1.0, size=(count, 1)) + draws.normal(size=(count, 3))
        hits = np.where(abs(better) < 0.8, 0.5, better > 0).ravel()
        return hits.tolist(), np.repeat(range(count), 3).tolist()

    truth = np.mean(judged(100_000)[0])
    found = [grouped_proportion(*judged(prompts)) for _ in range(400)]
    covered = sum(each.low <= truth <= each.high for each in found)
    # Three standard errors of a share of 400.
    assert 0.95 - 0.033 < covered / 400 < 0.95 + 0.033


@pytest.mark.parametrize("prompts", [12, 60])
def test_the_interval_over_rankings_of_seven_covers_in_95_of_100(prompts: int) -> None:
    """A scorer whose skill differs by prompt, on the 21 pairs of each ranking of seven responses.

    Wilson's interval over the pairs covers in 75 of 100.
    """
    draws = np.random.default_rng(0)

    def ranked(count: int) -> tuple[list[float], list[int]]:
        quality = draws.normal(size=(count, 7))
        skill = draws.normal(0.8, 0.5, size=(count, 1))
        score = skill * quality + draws.normal(size=(count, 7))
        one, other = np.triu_indices(7, 1)
        right = (quality[:, one] - quality[:, other]) * (score[:, one] - score[:, other]) > 0
        return right.ravel().astype(float).tolist(), np.repeat(range(count), 21).tolist()

    truth = np.mean(ranked(100_000)[0])
    found = [grouped_proportion(*ranked(prompts)) for _ in range(400)]
    covered = sum(each.low <= truth <= each.high for each in found)
    # Three standard errors of a share of 400.
    assert 0.95 - 0.033 < covered / 400 < 0.95 + 0.033
    naive = [proportion_interval(each.mean * each.n, each.n) for each in found]
    assert sum(each.low <= truth <= each.high for each in naive) < 0.85 * 400


def test_edges_keep_a_width_and_stay_within_0_and_1() -> None:
    right = grouped_proportion([1.0] * 6, "aabbcc")
    assert right.high == right.mean == 1
    assert right.low < proportion_interval(3.0, 3).low
    alone = grouped_proportion([1.0, 0.0, 1.0], "aaa")
    assert 0 < alone.low < 0.2
    assert 0.9 < alone.high < 1
    # Groups more alike than chance has them: no narrower than as many independent cases.
    even = grouped_proportion([1.0, 0.0] * 30, [case // 2 for case in range(60)])
    assert (
        even.high - even.low
        >= proportion_interval(30.0, 60).high - proportion_interval(30.0, 60).low
    )


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(TooFewValuesError, match="found 0"):
        grouped_proportion([], [])
    with pytest.raises(ValueError, match="a group for each of 2 cases, found 1"):
        grouped_proportion([1.0, 0.0], [1])
