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

    It stays within [0, 1] and keeps a width at 0 and n successes. A tie may count as half a
    success: the variance is then below p(1 - p), and the interval errs on the wide side.
    """
    if n < 1:
        raise TooFewValuesError(f"expected 1 trial or more for a proportion, found {n}")
    if not 0 <= successes <= n:
        raise ValueError(f"successes: expected a number from 0 to {n}, found {successes}")
    p = successes / n
    z_squared = NORMAL_QUANTILE**2
    centre = p + z_squared / (2 * n)
    half = NORMAL_QUANTILE * math.sqrt(p * (1 - p) / n + z_squared / (4 * n * n))
    scale = 1 + z_squared / n
    return Interval(
        mean=p, low=max(0.0, (centre - half) / scale), high=min(1.0, (centre + half) / scale), n=n
    )


def win_rate(candidate: Sequence[float], baseline: Sequence[float]) -> Interval:
    """Share of prompts on which the candidate's score is the higher one; a tie counts as half.

    The two sequences hold scores of the same prompts in the same order. The interval is Wilson's
    over the prompts with their outcomes 0, ½ and 1.
    """
    if len(candidate) != len(baseline):
        raise ValueError(
            f"expected as many baseline scores as candidate scores ({len(candidate)}), "
            f"found {len(baseline)}"
        )
    _refuse_non_finite(candidate)
    _refuse_non_finite(baseline)
    pairs = zip(candidate, baseline, strict=True)
    wins = math.fsum(1.0 if ours > theirs else 0.5 * (ours == theirs) for ours, theirs in pairs)
    return proportion_interval(wins, len(candidate))


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
