"""Means, proportions and win rates with their 95 % confidence intervals."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

NORMAL_QUANTILE = 1.959963984540054
"""97.5 % quantile of the standard normal distribution."""

STUDENT_QUANTILES = (
    12.706204736, 4.302652730, 3.182446305, 2.776445105, 2.570581836,
    2.446911851, 2.364624252, 2.306004135, 2.262157163, 2.228138852,
)  # fmt: skip
"""97.5 % quantiles of Student's t distribution for 1 to 10 degrees of freedom."""

MIN_VALUES = 2
"""Fewest values that have a spread."""


class TooFewValuesError(ValueError):
    """There are not enough values for an interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate with the ends of its 95 % confidence interval."""

    mean: float
    low: float
    high: float
    n: int
    """Number of independent observations behind it."""

    def as_dict(self) -> dict[str, float | int]:
        """The four numbers by name, for a metrics file."""
        return asdict(self)


def mean_interval(values: Sequence[float]) -> Interval:
    """Mean with the interval mean ± t s / √n (Student 1908; s with n - 1).

    Student's t with n - 1 degrees of freedom is wide for small n and approaches the normal
    quantile. Needs two values or more, all finite; equal values give an interval of width 0.
    """
    n = len(values)
    if n < MIN_VALUES:
        raise TooFewValuesError(f"expected {MIN_VALUES} values or more for an interval, found {n}")
    _refuse_non_finite(values)
    mean = math.fsum(values) / n
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    half = student_quantile(n - 1) * math.sqrt(variance / n)
    return Interval(mean=mean, low=mean - half, high=mean + half, n=n)


def proportion_interval(successes: float, n: int) -> Interval:
    """Proportion of successes with the score interval of Wilson 1927.

        (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n)

    It stays within [0, 1] and keeps a width at 0 and n successes. Every trial is a success or none;
    where there are ties, `win_interval` is narrower.
    """
    if n < 1:
        raise TooFewValuesError(f"expected 1 trial or more for a proportion, found {n}")
    if not 0 <= successes <= n:
        raise ValueError(f"successes: expected a number from 0 to {n}, found {successes}")
    mean = successes / n
    low, high = score_ends(mean, float(n))
    return Interval(mean=mean, low=low, high=high, n=n)


def win_interval(wins: float, ties: float, n: int) -> Interval:
    """Share of wins, a tie counting as half of one, with the score interval of Tango 1998.

    It is his interval of the difference of paired proportions, (1 + δ) / 2 for its δ. Without ties
    it is Wilson's. Counts may have fractions, as expected ones do.

    Args:
        wins: trials that were won.
        ties: trials that were neither won nor lost.
        n: all trials.
    """
    if n < 1:
        raise TooFewValuesError(f"expected 1 case or more for a win rate, found {n}")
    if not (wins >= 0 and ties >= 0 and wins + ties <= n):
        raise ValueError(f"expected at most {n} wins and ties, none below 0; found {wins}, {ties}")
    mean = (wins + ties / 2) / n
    low, high = score_ends(mean, float(n), tied=ties / n)
    return Interval(mean=mean, low=low, high=high, n=n)


def hits_interval(hits: Sequence[float]) -> Interval:
    """Mean of hits, each 0, ½ (a tie) or 1, with the interval of `win_interval`."""
    if others := set(hits) - {0.0, 0.5, 1.0}:
        raise ValueError(f"hits: expected 0, 0.5 and 1, found {min(others)}")
    return win_interval(float(hits.count(1.0)), float(hits.count(0.5)), len(hits))


def score_ends(mean: float, n: float, *, tied: float = 0.0) -> tuple[float, float]:
    """The ends of the score interval for a mean of n hits, of which the share `tied` is ½.

    A hit has the variance p (1-p) - d/4, with a tie's probability d. The interval holds
    each p that the score test does not reject with the d that is likeliest there (Tango 1998):

        n (mean - p)² <= z² (p (1-p) - d/4)
        d² - 2 (tied + (1-p) won + p lost) d + 4 p (1-p) tied = 0, the lesser root

    Without ties it is Wilson's interval, whose ends have a closed form.
    """
    if tied == 0:
        return _wilson(mean, n)
    return _end_with_ties(0.0, mean, n, tied), _end_with_ties(1.0, mean, n, tied)


def _end_with_ties(outside: float, mean: float, n: float, tied: float) -> float:
    """The end between `outside` and the mean, by bisection to the last bit."""
    inside, won, lost = mean, mean - tied / 2, 1 - mean - tied / 2
    while (p := (outside + inside) / 2) not in (outside, inside):
        half, product = tied + (1 - p) * won + p * lost, 4 * p * (1 - p) * tied
        likeliest = product / (half + math.sqrt(max(0.0, half * half - product)))
        if n * (mean - p) ** 2 > NORMAL_QUANTILE**2 * (p * (1 - p) - likeliest / 4):
            outside = p
        else:
            inside = p
    return inside


def _wilson(mean: float, n: float) -> tuple[float, float]:
    z_squared = NORMAL_QUANTILE**2
    centre = mean + z_squared / (2 * n)
    half = NORMAL_QUANTILE * math.sqrt(mean * (1 - mean) / n + z_squared / (4 * n * n))
    scale = 1 + z_squared / n
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def win_rate(candidate: Sequence[float], baseline: Sequence[float]) -> Interval:
    """Share of prompts on which the candidate's score is the higher one; a tie counts as half.

    The two sequences hold scores of the same prompts in the same order. The interval is that of
    `win_interval` over the prompts.
    """
    if len(candidate) != len(baseline):
        raise ValueError(
            f"expected as many baseline scores as candidate scores ({len(candidate)}), "
            f"found {len(baseline)}"
        )
    _refuse_non_finite(candidate)
    _refuse_non_finite(baseline)
    return hits_interval([hit(*pair) for pair in zip(candidate, baseline, strict=True)])


def hit(ours: float, theirs: float) -> float:
    """1 where our score is the higher one, ½ for equal scores, else 0."""
    return 1.0 if ours > theirs else 0.5 if ours == theirs else 0.0


def student_quantile(degrees: int) -> float:
    """97.5 % quantile of Student's t distribution, right to 1e-5.

    From a table up to 10 degrees of freedom, then by the Cornish-Fisher expansion about the
    normal quantile (Abramowitz and Stegun 1964, 26.7.5).
    """
    if degrees < 1:
        raise TooFewValuesError(f"expected 1 degree of freedom or more, found {degrees}")
    if degrees <= len(STUDENT_QUANTILES):
        return STUDENT_QUANTILES[degrees - 1]
    z = NORMAL_QUANTILE
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum(term / float(degrees) ** power for power, term in enumerate(terms))


def _refuse_non_finite(values: Sequence[float]) -> None:
    for index, value in enumerate(values):
        if not math.isfinite(value):
            raise ValueError(f"value {index}: expected a finite number, found {value}")
