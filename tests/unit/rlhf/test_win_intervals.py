"""Intervals of win rates with ties: published numbers, and the score test derived otherwise."""

import math
from functools import cache
from itertools import product

import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import multinomial

from rlhf.intervals import (
    Interval,
    TooFewValuesError,
    hits_interval,
    proportion_interval,
    win_interval,
    win_rate,
)

Z2 = 1.959963984540054**2


def interval(wins: float, ties: float, n: int) -> Interval:
    return win_interval(float(wins), float(ties), n)


@pytest.mark.parametrize(
    ("wins", "losses", "n", "low", "high"),
    [
        # Fagerland, Lydersen and Laake 2017, chapter 8: Tango's interval, of wins less losses.
        (1, 7, 21, -0.517, -0.026),
        (6, 16, 161, -0.124, -0.0054),
    ],
)
def test_the_intervals_are_those_published_for_paired_proportions(wins, losses, n, low, high):
    found = interval(wins, n - wins - losses, n)
    assert found.mean == pytest.approx((1 + (wins - losses) / n) / 2, abs=1e-15)
    assert (2 * found.low - 1, 2 * found.high - 1) == pytest.approx((low, high), abs=5e-4)


def pearson(counts: tuple[int, int, int], p: float) -> float:
    """Pearson's statistic of wins, ties and losses against the likeliest trinomial of mean p.

    For a multinomial it is Rao's score statistic; here the likelihood is maximised by search.
    """
    n = sum(counts)

    def chances(d: float) -> tuple[float, float, float]:
        return p - d / 2, d, 1 - p - d / 2

    def unlikely(d: float) -> float:
        return -sum(k * math.log(q) for k, q in zip(counts, chances(d), strict=True) if k)

    most = 2 * min(p, 1 - p)
    found = minimize_scalar(unlikely, bounds=(0, most), method="bounded", options={"xatol": 1e-11})
    expected = [n * q for q in chances(found.x)]
    return sum((k - e) ** 2 / e for k, e in zip(counts, expected, strict=True))


@pytest.mark.parametrize(
    "counts", [(3, 2, 1), (1, 9, 2), (20, 1, 4), (7, 7, 7), (340, 167, 5), (2, 500, 10)]
)
def test_the_ends_are_where_pearsons_statistic_has_the_quantile(counts):
    found = interval(counts[0], counts[1], sum(counts))
    for end in (found.low, found.high):
        assert pearson(counts, end) == pytest.approx(Z2, rel=1e-4)
    width = found.high - found.low
    inside = [found.low + width * step / 20 for step in range(1, 20)]
    assert all(pearson(counts, p) < Z2 for p in inside)
    outside = [found.low * step / 20 for step in range(1, 20)]
    outside += [1 - (1 - found.high) * step / 20 for step in range(1, 20)]
    assert all(pearson(counts, p) > Z2 for p in outside)


@pytest.mark.parametrize("n", [1, 5, 40])
def test_without_ties_it_is_wilsons_interval_to_the_bit(n):
    for wins in range(n + 1):
        assert interval(wins, 0, n) == proportion_interval(float(wins), n)


@cache
def intervals(n: int) -> dict[tuple[int, int, int], Interval]:
    """Of all counts of wins, ties and losses that n cases may have."""
    counts = [(w, t, n - w - t) for w in range(n + 1) for t in range(n + 1 - w)]
    return {each: interval(*each[:2], n) for each in counts}


def coverage(found: dict[tuple[int, int, int], Interval], p: float, d: float) -> float:
    """The exact chance that an interval holds p, where ties have the chance d."""
    held = [counts for counts, each in found.items() if each.low <= p <= each.high]
    return float(multinomial.pmf(held, sum(held[0]), [p - d / 2, d, 1 - p - d / 2]).sum())


def test_it_covers_in_95_of_100_by_enumeration():
    cases = [
        (p, d)
        for p, d in product((0.5, 0.6, 0.7, 0.8, 0.9), (0.1, 0.3, 0.5, 0.8))
        if p + d / 2 <= 1
    ]
    for n in (16, 32):
        covered = [coverage(intervals(n), *case) for case in cases]
        assert min(covered) > 0.94
        assert sum(covered) / len(covered) == pytest.approx(0.955, abs=0.005)


def test_wilsons_interval_covers_too_often_where_there_are_ties():
    wilson = {(w, t, k): proportion_interval(w + t / 2, 32) for w, t, k in intervals(32)}
    assert coverage(wilson, 0.5, 0.5) > 0.99
    assert coverage(intervals(32), 0.5, 0.5) == pytest.approx(0.95, abs=0.01)


def test_all_ties_have_the_width_that_no_win_among_n_leaves():
    """Below ½ the likeliest d is 2p, of variance p (½ - p): at the end n (½ - p) = z² p."""
    for n in (1, 10, 512):
        found = interval(0, n, n)
        low = n / 2 / (n + Z2)
        assert (found.low, found.mean, found.high) == pytest.approx((low, 0.5, 1 - low), abs=1e-12)


def test_the_sides_mirror_each_other_and_edges_stay_within_0_and_1():
    for (wins, ties, losses), found in intervals(16).items():
        other = intervals(16)[losses, ties, wins]
        assert (found.low, found.high) == pytest.approx((1 - other.high, 1 - other.low), abs=1e-12)
        assert 0 <= found.low <= found.mean <= found.high <= 1
        assert found.low < found.high


def test_scores_are_counted_and_ties_make_the_interval_narrower():
    ours, theirs = [1.0, 2.0, 3.0, 4.0] * 128, [0.0, 2.0, 5.0, 4.0] * 128
    found = win_rate(ours, theirs)
    assert found == interval(128, 256, 512) == hits_interval([1.0, 0.5, 0.0, 0.5] * 128)
    wilson = proportion_interval(256.0, 512)
    # Ties in half of the cases leave half of the variance.
    narrower = (found.high - found.low) / (wilson.high - wilson.low)
    assert narrower == pytest.approx(math.sqrt(0.5), rel=0.01)


@pytest.mark.parametrize(("wins", "ties"), [(-1, 2), (2, -1), (4, 2), (math.nan, 0), (0, math.nan)])
def test_counts_that_cannot_be_are_refused(wins, ties):
    with pytest.raises(ValueError, match="at most 5 wins and ties"):
        interval(wins, ties, 5)


def test_hits_are_0_a_half_and_1():
    with pytest.raises(ValueError, match=r"hits: expected 0, 0\.5 and 1, found 0\.25"):
        hits_interval([1.0, 0.25])
    with pytest.raises(TooFewValuesError, match="found 0"):
        hits_interval([])
