"""What a few seeds say: spreads, paired differences, and fits of gold against KL."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlhf.intervals import Interval, mean_interval, student_quantile


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """One figure over seeds."""

    mean: Interval
    """With the 95 % interval of the mean."""
    worst: float
    best: float
    next_low: float
    next_high: float
    """The 95 % prediction interval: where the next seed will land."""


def spread(values: Sequence[float]) -> Spread:
    """Mean, extremes and m ± t s √(1 + 1/n), in which a new seed lands with 95 % probability.

    Both intervals take the seeds for independent draws from one normal distribution.

    Raises:
        TooFewValuesError: there are fewer than two values.
    """
    mean = mean_interval(values)
    n = len(values)
    half = student_quantile(n - 1) * statistics.stdev(values) * math.sqrt(1 + 1 / n)
    return Spread(
        mean=mean,
        worst=min(values),
        best=max(values),
        next_low=mean.mean - half,
        next_high=mean.mean + half,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Two coefficients of a form, and what it leaves unexplained."""

    alpha: float
    beta: float
    residual: float
    """Root of the mean squared residual."""


def fit_square(kl: Sequence[float], gain: Sequence[float]) -> Fit:
    """R(d) = d (alpha - beta d) with d = √KL: best-of-n's form in Gao et al. (2023)."""
    d = _distances(kl)
    return _least_squares(np.stack([d, -(d**2)], axis=1), gain)


def fit_log(kl: Sequence[float], gain: Sequence[float]) -> Fit:
    """R(d) = d (alpha - beta log d) with d = √KL: the form for RL in Gao et al. (2023)."""
    d = _distances(kl)
    return _least_squares(np.stack([d, -d * np.log(d)], axis=1), gain)


def _distances(kl: Sequence[float]) -> np.ndarray:
    if min(kl) <= 0:
        raise ValueError(f"expected every KL above 0, found {min(kl)}")
    return np.sqrt(np.asarray(kl, dtype=np.float64))


def _least_squares(columns: np.ndarray, gain: Sequence[float]) -> Fit:
    wanted = np.asarray(gain, dtype=np.float64)
    solution, _, rank, _ = np.linalg.lstsq(columns, wanted, rcond=None)
    if rank < 2:
        raise ValueError("expected policies at two distances or more")
    residual = math.sqrt(float(np.mean((columns @ solution - wanted) ** 2)))
    return Fit(alpha=float(solution[0]), beta=float(solution[1]), residual=residual)
