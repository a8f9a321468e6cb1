"""The 95 % interval of a share whose cases come in groups, such as pairs of one prompt.

Pairs of one prompt share its difficulty, and those made from a ranking their responses: they tell
less than as many pairs of different prompts. The variance is that of the groups' sums (Liang and
Zeger 1986), and n becomes the number of independent cases that have it (Korn and Graubard 1998):

    v = G/(G-1) Σ_g (Σ_i (x_gi - p))² / n²
    n* = (p (1-p) - d/4) / v · (z / t)², at most n

with G groups, the share d of ties, the normal quantile z and Student's t of G - 1 degrees of
freedom. The score interval takes n* for n: Wilson's, or with ties Tango's.
"""

import math
from collections.abc import Hashable, Sequence

from rlhf.intervals import (
    NORMAL_QUANTILE,
    Interval,
    hits_interval,
    score_ends,
    student_quantile,
)


def grouped_proportion(hits: Sequence[float], groups: Sequence[Hashable]) -> Interval:
    """Mean of hits, each 0, ½ (a tie) or 1, with the score interval for cases in groups.

    With one case in each group it is `hits_interval`. `n` of the result counts cases.

    Args:
        hits: one or more.
        groups: of each case, as many.
    """
    if len(hits) != len(groups):
        raise ValueError(f"expected a group for each of {len(hits)} cases, found {len(groups)}")
    n, sums = len(hits), dict.fromkeys(groups, 0.0)
    single = hits_interval(hits)
    if len(sums) == n:
        return single
    for hit, group in zip(hits, groups, strict=True):
        sums[group] += hit - single.mean
    tied = hits.count(0.5) / n
    spread = single.mean * (1 - single.mean) - tied / 4
    independent = _independent(spread, n, list(sums.values()))
    low, high = score_ends(single.mean, independent, tied=tied)
    return Interval(mean=single.mean, low=low, high=high, n=n)


def _independent(spread: float, n: int, sums: Sequence[float]) -> float:
    """Number of independent cases that tell as much; that of the groups where all are alike."""
    number = len(sums)
    if number == 1:
        return 1.0
    variance = number / (number - 1) * math.fsum(each * each for each in sums) / n**2
    found = spread / variance if variance > 0 < spread else float(number)
    return min(found, n) * (NORMAL_QUANTILE / student_quantile(number - 1)) ** 2
