"""The comparison helper itself must be able to fail."""

import math

import pytest
import torch


@pytest.mark.parametrize(("rtol", "atol"), [(1e6, 0.0), (0.0, 0.01), (-1.0, 0.0), (math.nan, 0.0)])
def test_a_tolerance_that_could_hide_an_error_is_refused(assert_close, rtol, atol):
    with pytest.raises(ValueError, match="tolerances"):
        assert_close(1.0, 1.0, rtol=rtol, atol=atol)


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (1.0, 1.01),
        (torch.tensor(math.nan), math.nan),
        (torch.ones(2), 1.0),
        ([1.0, 2.0], [2.0, 1.0]),
    ],
)
def test_numbers_that_differ_fail_the_comparison(assert_close, actual, expected):
    with pytest.raises(AssertionError):
        assert_close(actual, expected, rtol=1e-3, atol=1e-3)
