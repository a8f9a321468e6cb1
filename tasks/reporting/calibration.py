"""The calibration error that a calibrated model would have on as many pairs."""

import math
from collections.abc import Sequence

from tasks.reporting.data import ConfidenceBin


def error_by_chance(bins: Sequence[ConfidenceBin]) -> float:
    """Mean calibration error of a model whose probabilities are right, 0 to 1/2.

    In a bin of n independent pairs the number of labels that agree is binomial with the bin's mean
    confidence p, and its mean distance from n p is 2 m C(n, m) p^m (1-p)^(n-m+1) with
    m = ⌊n p⌋ + 1 (De Moivre 1730). Pairs that share prompts are less even still.
    """
    total = sum(one.pairs for one in bins)
    return math.fsum(_distance(one.pairs, one.confidence) for one in bins) / total


def _distance(n: int, p: float) -> float:
    """Mean distance of a binomial number from its mean."""
    if not 0 < p < 1:
        return 0.0
    m = min(n, math.floor(n * p) + 1)
    ways = math.lgamma(n + 1) - math.lgamma(m + 1) - math.lgamma(n - m + 1)
    return 2 * m * math.exp(ways + m * math.log(p) + (n - m + 1) * math.log1p(-p))
