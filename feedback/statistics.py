"""Intervals, tests and agreement coefficients, from their formulas."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_Z95 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Share:
    """`hits` of `n`, with the 95 % interval of Wilson (1927)."""

    hits: float
    n: int

    @property
    def mean(self) -> float:
        """The share itself; one half when there is nothing."""
        return self.hits / self.n if self.n else 0.5

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self._centre() - self._half()

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self._centre() + self._half()

    def _centre(self) -> float:
        z2 = _Z95**2
        return (self.hits + z2 / 2) / (self.n + z2)

    def _half(self) -> float:
        z2 = _Z95**2
        spread = self.n * self.mean * (1 - self.mean) + z2 / 4
        return _Z95 / (self.n + z2) * math.sqrt(spread)


def binomial_two_sided(hits: int, n: int) -> float:
    """P value of `hits` of `n` against one half: twice the smaller exact tail, at most 1."""
    smaller = min(hits, n - hits)
    tail = sum(math.comb(n, k) for k in range(smaller + 1))
    return min(1.0, float(2 * tail / 2**n))


def cohen_kappa(first: Sequence[str], second: Sequence[str]) -> float | None:
    """Agreement of two annotators beyond chance (Cohen 1960).

    kappa = (p_o - p_e) / (1 - p_e), p_o the share of equal labels, p_e that of two who draw from
    the same two distributions independently. None without labels, or where only one label occurs.
    """
    n = len(first)
    if n == 0:
        return None
    observed = sum(x == y for x, y in zip(first, second, strict=True)) / n
    of_first, of_second = Counter(first), Counter(second)
    expected = sum(of_first[label] * of_second[label] for label in of_first) / n**2
    return None if expected == 1 else (observed - expected) / (1 - expected)


def krippendorff_alpha(units: Sequence[Sequence[str]]) -> float | None:
    """Agreement of any number of annotators with gaps, nominal labels (Krippendorff 2011).

    alpha = 1 - D_o / D_e. D_o: share of unequal label pairs within units, each unit weighted by
    1 / (labels - 1); D_e: the same over all labels. Units with one label say nothing. None where
    there is nothing to compare or only one label occurs.
    """
    counts = [Counter(unit) for unit in units if len(unit) > 1]
    total: Counter[str] = Counter()
    for count in counts:
        total += count
    n = sum(total.values())
    expected = n * n - sum(c * c for c in total.values())
    if expected == 0:
        return None
    observed = sum(
        (unit.total() ** 2 - sum(c * c for c in unit.values())) / (unit.total() - 1)
        for unit in counts
    )
    return 1 - (n - 1) * observed / expected
