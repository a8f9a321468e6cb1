"""Calibration of a reward model: do its probabilities mean what they say?

A gap is score(chosen) - score(rejected) in raw units, so that sigmoid(gap) is the probability that
the model assigns to the label.
"""

import math
from collections.abc import Sequence


def negative_log_likelihood(gaps: Sequence[float]) -> float:
    """Mean of -log sigmoid(gap) in nats; ln 2 for a model that knows nothing."""
    return sum(_softplus(-gap) for gap in gaps) / len(gaps)


def reliability(gaps: Sequence[float], bins: int = 10) -> list[tuple[float, float, int]]:
    """Per bin of confidence from 1/2 to 1: mean confidence, accuracy, number of pairs.

    Confidence is the probability of the side the model prefers; empty bins are left out.
    """
    sure = [_confidence(gap) for gap in gaps]
    hits = [1.0 if gap > 0 else 0.5 if gap == 0 else 0.0 for gap in gaps]
    table = []
    for pairs in confidence_bins(gaps, bins):
        n = len(pairs)
        table.append((sum(sure[at] for at in pairs) / n, sum(hits[at] for at in pairs) / n, n))
    return table


def confidence_bins(gaps: Sequence[float], bins: int = 10) -> list[list[int]]:
    """The places of the pairs in each bin of `reliability`."""
    members: list[list[int]] = [[] for _ in range(bins)]
    for place, gap in enumerate(gaps):
        members[min(int((_confidence(gap) - 0.5) * 2 * bins), bins - 1)].append(place)
    return [pairs for pairs in members if pairs]


def expected_calibration_error(gaps: Sequence[float], bins: int = 10) -> float:
    """Mean distance of accuracy from confidence over the bins, by pairs (Guo et al. 2017)."""
    table = reliability(gaps, bins)
    return sum(abs(hits - sure) * count for sure, hits, count in table) / len(gaps)


def _confidence(gap: float) -> float:
    return 1 / (1 + math.exp(-min(abs(gap), 700.0)))


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))
