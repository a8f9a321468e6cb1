"""Shares of pairs of which several may have one prompt, with 95 % intervals that know it.

Pairs of one prompt tell less than as many pairs of different prompts. As in
`rlhf.grouped_intervals`, whose formulas these are, Wilson's interval takes the number of
independent cases that have the variance of the prompts' sums (Liang and Zeger 1986, Korn and
Graubard 1998). What counts as half leaves the interval on the wide side.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import stdtrit

from preferences.records import Preference
from preferences.statistics import Z95, Share, share, wilson


def grouped_share(
    hits: Sequence[float] | NDArray[np.float64],
    groups: Sequence[int] | Sequence[str] | NDArray[np.int64],
) -> Share | None:
    """The share of hits (0 to 1 each) among cases in groups, one group for each; None without any.

    With one case in each group it is `share`. `n` of the result counts cases.
    """
    values, places = np.asarray(hits, dtype=np.float64), pd.factorize(np.asarray(groups))[0]
    n, number = len(values), int(places.max(initial=-1)) + 1
    if n == number:
        return share(float(values.sum()), n)
    mean = min(1.0, float(values.mean()))
    independent = _independent(mean, n, np.bincount(places, values - mean).astype(np.float64))
    return Share(mean, *wilson(mean, independent), n)


def longer_wins(preferences: Iterable[Preference]) -> Share | None:
    """How often the longer response (in characters) was chosen; equal lengths are left out."""
    more = [(len(row.chosen) - len(row.rejected), row.prompt_id) for row in preferences]
    unequal = [(float(d > 0), prompt) for d, prompt in more if d != 0]
    return grouped_share([hit for hit, _ in unequal], [prompt for _, prompt in unequal])


def _independent(mean: float, n: int, sums: NDArray[np.float64]) -> float:
    """Number of independent cases that tell as much; that of the groups where all are alike."""
    number = len(sums)
    if number == 1:
        return 1.0
    variance = number / (number - 1) * float(sums @ sums) / n**2
    spread = mean * (1 - mean)
    found = spread / variance if variance > 0 < spread else float(number)
    return min(found, n) * (Z95 / float(stdtrit(number - 1, 0.975))) ** 2
