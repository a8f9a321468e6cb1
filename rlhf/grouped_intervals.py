"""The 95 % interval of a proportion whose cases come in groups, such as pairs of one prompt.

Pairs of one prompt share its difficulty, and those made from a ranking their responses: they tell
less than as many pairs of different prompts. The variance is that of the groups' sums (Liang and
Zeger 1986), and n becomes the number of independent cases that have it (Korn and Graubard 1998):

    v = G/(G-1) Σ_g (Σ_i (x_gi - p))² / n²
    n* = p (1-p) / v · (z / t)², at most n

with G groups, the normal quantile z and Student's t of G - 1 degrees of freedom. Wilson's interval
takes n* for n.
"""

import math
from collections.abc import Hashable, Sequence

from rlhf.intervals import (
    NORMAL_QUANTILE,
    Interval,
    TooFewValuesError,
    proportion_interval,
    student_quantile,
)


def grouped_proportion(successes: Sequence[float], groups: Sequence[Hashable]) -> Interval:
    """Share of successes (0 to 1 each), with Wilson's interval for cases that come in groups.

    With one case in each group it is `proportion_interval`. `n` of the result counts cases.

    Args:
        successes: one or more.
        groups: of each case, as many.
    """
    if len(successes) != len(groups):
        raise ValueError(
            f"expected a group for each of {len(successes)} cases, found {len(groups)}"
        )
    n, sums = len(successes), dict.fromkeys(groups, 0.0)
    if n == 0:
        raise TooFewValuesError("expected 1 case or more for a proportion, found 0")
    total = math.fsum(successes)
    if len(sums) == n:
        return proportion_interval(total, n)
    mean = min(1.0, total / n)
    for success, group in zip(successes, groups, strict=True):
        sums[group] += success - mean
    independent = _independent(mean, n, list(sums.values()))
    low, high = _wilson(mean, independent)
    return Interval(mean=mean, low=low, high=high, n=n)


def _independent(mean: float, n: int, sums: Sequence[float]) -> float:
    """Number of independent cases that tell as much; that of the groups where all are alike."""
    number = len(sums)
    if number == 1:
        return 1.0
    variance = number / (number - 1) * math.fsum(each * each for each in sums) / n**2
    spread = mean * (1 - mean)
    found = spread / variance if variance > 0 < spread else float(number)
    return min(found, n) * (NORMAL_QUANTILE / student_quantile(number - 1)) ** 2


def _wilson(mean: float, n: float) -> tuple[float, float]:
    z_squared = NORMAL_QUANTILE**2
    centre = mean + z_squared / (2 * n)
    half = NORMAL_QUANTILE * math.sqrt(mean * (1 - mean) / n + z_squared / (4 * n * n))
    scale = 1 + z_squared / n
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)
