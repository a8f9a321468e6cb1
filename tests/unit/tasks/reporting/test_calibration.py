"""What a calibrated model's calibration error is by chance alone."""

from pathlib import Path

import numpy as np
import pytest

from tasks.reporting.calibration import error_by_chance
from tasks.reporting.data import ConfidenceBin
from tests.unit.tasks.reporting.conftest import report


def bins(*given: tuple[float, int]) -> list[ConfidenceBin]:
    return [
        ConfidenceBin(confidence=sure, accuracy=0.0, low=0.0, high=1.0, pairs=pairs)
        for sure, pairs in given
    ]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # One pair: off by 1 - p with probability p, by p otherwise.
        ([(0.7, 1)], 2 * 0.7 * 0.3),
        # Two pairs at 3/4: 0, 1 or 2 labels agree in 1, 6 and 9 of 16 cases.
        ([(0.75, 2)], (1 * 0.75 + 6 * 0.25 + 9 * 0.25) / 16),
        # Bins count by their pairs.
        ([(0.7, 1), (0.75, 2)], (0.42 + 2 * 0.28125) / 3),
        # A bin at the ends is never off.
        ([(1.0, 50), (0.5, 1)], 0.5 / 51),
        ([(0.999999, 1)], 2 * 0.999999 * 0.000001),
    ],
)
def test_small_bins_by_hand(given: list[tuple[float, int]], expected: float) -> None:
    assert error_by_chance(bins(*given)) == pytest.approx(expected, rel=1e-9)


def test_it_is_the_mean_error_of_drawn_labels() -> None:
    given = [(0.55, 280), (0.75, 90), (0.98, 250)]
    draws = np.random.default_rng(0)
    off = sum(abs(draws.binomial(n, p, size=40_000) - n * p) for p, n in given) / 620
    assert error_by_chance(bins(*given)) == pytest.approx(off.mean(), abs=4 * off.std() / 200)


def test_the_report_shows_it_beside_the_error(world: Path) -> None:
    text = report(world)
    # The world's bins: 120 pairs at 0.6 and 380 at 0.9; by the normal distribution about
    # sqrt(2/pi) (sqrt(120 * 0.24) + sqrt(380 * 0.09)) / 500 = 0.0179.
    assert text.count('0.040 <span class="small">(by chance 0.018)</span>') == 3
    assert "“By chance”: the calibration error that a calibrated model would have" in text
