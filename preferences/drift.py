"""How far this round's data have drifted from earlier rounds, beyond chance.

The low end of a distance is what remains after subtracting the noise of samples of these sizes.
Bounds apply to the low end, so a small round is not flagged for noise.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

_KS95 = 1.358
"""Kolmogorov's 95 % point: D exceeds it times sqrt(1/n + 1/m) in 5 % of identical samples."""
_SIGMAS = 4.0
"""Standard errors within which each of a few thousand shares stays (two-sided, 1 in 16,000)."""


@dataclass(frozen=True, slots=True)
class Distance:
    """Distance of two samples, 0 (identical) to 1, and how much of it is beyond chance."""

    value: float
    low: float
    n: int
    """Size of the fresh sample."""


def ks_distance(one: NDArray[np.float64], other: NDArray[np.float64]) -> Distance | None:
    """Largest difference of the two distribution functions (Kolmogorov-Smirnov); None if empty.

    Args:
        one: sample from this round, shape (n,).
        other: sample from earlier rounds, shape (m,).
    """
    if not len(one) or not len(other):
        return None
    one, other = np.sort(one), np.sort(other)
    places = np.concatenate([one, other])
    below = np.searchsorted(one, places, side="right") / len(one)
    other_below = np.searchsorted(other, places, side="right") / len(other)
    value = float(np.abs(below - other_below).max())
    noise = _KS95 * sqrt(1 / len(one) + 1 / len(other))
    return Distance(value, max(0.0, value - noise), len(one))


def share_distance(
    one: NDArray[np.int64], n: int, other: NDArray[np.int64], m: int
) -> Distance | None:
    """Largest change among many shares: `one` of n cases against `other` of m; None if empty.

    The low end belongs to the share that changed most beyond chance.
    """
    if not n or not m:
        return None
    change = np.abs(one / n - other / m)
    pooled = (one + other) / (n + m)
    noise = _SIGMAS * np.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m))
    return Distance(float(change.max()), max(0.0, float((change - noise).max())), n)
