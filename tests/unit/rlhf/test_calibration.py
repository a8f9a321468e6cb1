"""Calibration metrics against numbers worked out by hand."""

import math

import pytest

from rlhf.calibration import expected_calibration_error, negative_log_likelihood, reliability


def gap(confidence: float) -> float:
    return math.log(confidence / (1 - confidence))


# Confidences .95 .95 .75 .75 .55, of which the second and the last are wrong.
GAPS = [gap(0.95), -gap(0.95), gap(0.75), gap(0.75), -gap(0.55)]


def test_s48_a_bin_holds_mean_confidence_accuracy_and_count(assert_close):
    expected = [(0.55, 0.0, 1), (0.75, 1.0, 2), (0.95, 0.5, 2)]
    assert_close(reliability(GAPS), expected, rtol=1e-12, atol=0)


def test_s48_the_calibration_error_is_the_mean_distance_by_pairs(assert_close):
    expected = (1 * 0.55 + 2 * 0.25 + 2 * 0.45) / 5
    assert_close(expected_calibration_error(GAPS), expected, rtol=1e-12, atol=0)


def test_s48_the_likelihood_is_of_the_labels(assert_close):
    expected = -math.log(0.95 * 0.05 * 0.75 * 0.75 * 0.45) / 5
    assert_close(negative_log_likelihood(GAPS), expected, rtol=1e-12, atol=0)


def test_s48_a_model_that_knows_nothing_has_likelihood_ln_2_and_half_the_hits(assert_close):
    assert_close(negative_log_likelihood([0.0, 0.0]), math.log(2), rtol=1e-12, atol=0)
    assert reliability([0.0, 0.0]) == [(0.5, 0.5, 2)]


def test_s48_confidences_in_one_bin_are_averaged(assert_close):
    found = reliability([gap(0.6), -gap(0.9)], bins=1)
    assert_close(found, [(0.75, 0.5, 2)], rtol=1e-12, atol=0)


def test_s48_ten_bins_lie_between_one_half_and_one(assert_close):
    """Their ends are .55, .60 and so on."""
    sure = (0.54, 0.56, 0.61, 0.64, 0.99)
    expected = [(0.54, 1.0, 1), (0.56, 1.0, 1), (0.625, 1.0, 2), (0.99, 1.0, 1)]
    assert_close(reliability([gap(one) for one in sure]), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("size", [1e3, 1e6])
def test_s40_huge_gaps_neither_overflow_nor_leave_the_last_bin(size):
    assert negative_log_likelihood([-size, size]) == size / 2
    assert reliability([-size, size]) == [(1.0, 0.5, 2)]
