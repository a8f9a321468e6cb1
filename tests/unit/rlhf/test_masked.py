"""Masked reductions against numpy on the kept numbers alone."""

import math

import numpy as np
import pytest
import torch

from rlhf.masked import (
    EmptyMaskError,
    keep,
    last_token_index,
    masked_mean,
    masked_sum,
    masked_variance,
    rescale,
    sequence_sums,
    whiten,
)

VALUES = torch.tensor([[4.0, 5.0, 9.0, 0.5], [6.0, 5.25, 7.0, 1.0]], dtype=torch.float64)
MASK = torch.tensor([[True, True, True, False], [True, True, False, False]])
KEPT = np.array([4.0, 5.0, 9.0, 6.0, 5.25])


def test_sum_mean_and_variance_see_only_the_kept_numbers(assert_close):
    assert_close(masked_sum(VALUES, MASK), KEPT.sum(), rtol=1e-12, atol=0.0)
    assert_close(masked_mean(VALUES, MASK), KEPT.mean(), rtol=1e-12, atol=0.0)
    assert_close(masked_variance(VALUES, MASK), KEPT.var(), rtol=1e-12, atol=0.0)


def test_the_variance_does_not_suffer_from_a_large_mean(assert_close):
    values = torch.tensor([[1e6, 1e6 + 1, 1e6 + 2]], dtype=torch.float32)
    mask = torch.ones_like(values, dtype=torch.bool)
    assert_close(masked_variance(values, mask), 2 / 3, rtol=1e-5, atol=0.0)


def test_half_precision_is_added_up_in_single_precision(assert_close):
    values = torch.full((1, 4096), 0.125, dtype=torch.bfloat16)
    values[0, 0] = 1024.0
    mask = torch.ones_like(values, dtype=torch.bool)
    assert masked_sum(values, mask).dtype == torch.float32
    assert_close(masked_sum(values, mask), 1024 + 4095 * 0.125, rtol=1e-6, atol=0.0)
    assert sequence_sums(values, mask).dtype == torch.float32


def test_sequence_sums_add_up_each_row_and_give_zero_for_an_empty_one(assert_close):
    mask = torch.cat([MASK, torch.zeros(1, 4, dtype=torch.bool)])
    values = torch.cat([VALUES, torch.full((1, 4), math.nan, dtype=torch.float64)])
    assert_close(sequence_sums(values, mask), [18.0, 11.25, 0.0], rtol=1e-12, atol=0.0)


def test_s24_whitened_values_have_mean_zero_and_biased_variance_one_over_the_mask(assert_close):
    """Peer defect 6: the values are centred, not only scaled (5.85 in must not stay 5.85)."""
    whitened = whiten(VALUES, MASK)
    expected = (KEPT - KEPT.mean()) / np.sqrt(np.mean((KEPT - KEPT.mean()) ** 2))
    assert_close(whitened[MASK], expected, rtol=1e-9, atol=1e-12)
    assert_close(masked_mean(whitened, MASK), 0.0, rtol=0.0, atol=1e-12)
    assert_close(whitened[MASK].var(unbiased=False), 1.0, rtol=1e-9, atol=0.0)


def test_s24_padding_is_exactly_zero_after_whitening():
    assert whiten(VALUES, MASK)[~MASK].tolist() == [0.0, 0.0, 0.0]
    assert rescale(VALUES, MASK)[~MASK].tolist() == [0.0, 0.0, 0.0]


def test_s24_the_scope_of_whitening_is_all_tokens_given():
    """Each half of a batch alone gives other numbers than the whole batch."""
    whole = whiten(VALUES, MASK)[:1]
    half = whiten(VALUES[:1], MASK[:1])
    assert not torch.allclose(whole, half, rtol=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("constant", [0.0, 0.1, 5.031, -1e4])
def test_constant_values_whiten_to_zero_and_rescale_to_themselves(assert_close, constant, dtype):
    """Their deviation is rounding noise, which must not be blown up to a deviation of 1."""
    values = torch.full((3, 7), constant, dtype=dtype)
    mask = torch.ones_like(values, dtype=torch.bool)
    assert whiten(values, mask).abs().max().item() == 0.0
    assert_close(rescale(values, mask), values, rtol=1e-6, atol=0.0)


def test_a_small_deviation_is_still_scaled_to_one(assert_close):
    values = torch.tensor([[1e-7, 2e-7, 3e-7]], dtype=torch.float32)
    whitened = whiten(values, torch.ones_like(values, dtype=torch.bool))
    assert_close(whitened, [[-math.sqrt(1.5), 0.0, math.sqrt(1.5)]], rtol=1e-4, atol=1e-5)


def test_a_single_token_whitens_to_zero_without_nan():
    mask = torch.tensor([[False, True]])
    assert whiten(torch.tensor([[2.0, 3.0]]), mask).tolist() == [[0.0, 0.0]]


def test_s17_rescaled_rewards_keep_their_mean_and_get_deviation_one(assert_close):
    rescaled = rescale(VALUES, MASK)[MASK]
    expected = (KEPT - KEPT.mean()) / KEPT.std() + KEPT.mean()
    assert_close(rescaled, expected, rtol=1e-9, atol=0.0)
    assert_close(rescaled.mean(), KEPT.mean(), rtol=1e-9, atol=0.0)
    assert_close(rescaled.var(unbiased=False), 1.0, rtol=1e-9, atol=0.0)


def test_the_last_token_is_the_last_real_one_also_behind_holes_and_left_padding():
    mask = torch.tensor(
        [
            [True, True, False, False],
            [True, True, True, True],
            [False, True, False, True],
            [False, True, True, False],
            [True, False, False, False],
        ]
    )
    assert last_token_index(mask).tolist() == [1, 3, 3, 2, 0]


def test_s39_an_empty_row_has_no_last_token_and_is_named():
    mask = torch.tensor([[True, False], [False, False], [True, True], [False, False]])
    with pytest.raises(EmptyMaskError, match=r"rows \[1, 3\]"):
        last_token_index(mask)


@pytest.mark.parametrize("reduction", [masked_mean, masked_variance, whiten, rescale])
def test_s39_an_empty_mask_is_an_error_and_never_nan(reduction):
    with pytest.raises(EmptyMaskError, match=r"\(2, 4\)"):
        reduction(VALUES, torch.zeros_like(MASK))


def test_the_variance_of_one_value_is_zero():
    assert masked_variance(torch.tensor([[1.0, 2.0]]), torch.tensor([[True, False]])).item() == 0.0


def test_a_normaliser_takes_the_place_of_the_count(assert_close):
    assert_close(masked_mean(VALUES, MASK, normaliser=10), KEPT.sum() / 10, rtol=1e-12, atol=0.0)
    assert masked_mean(VALUES, torch.zeros_like(MASK), normaliser=10).item() == 0.0


def test_no_gradient_flows_into_the_padding():
    values = torch.tensor([[2.0, math.inf, math.nan]], requires_grad=True)
    keep(values, torch.tensor([[True, False, False]])).square().sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [[4.0, 0.0, 0.0]]


def test_a_mask_of_another_shape_is_refused():
    """One test for all: jaxtyping checks what has shapes while the tests run."""
    with pytest.raises(Exception, match="shape") as error:
        masked_mean(VALUES, MASK[:, :3])
    assert type(error.value).__name__ == "TypeCheckError"


def test_a_mask_of_numbers_is_refused():
    with pytest.raises(Exception, match="mask") as error:
        masked_mean(VALUES, MASK.double())
    assert type(error.value).__name__ == "TypeCheckError"


def test_s24_junk_behind_the_mask_spoils_no_gradient_of_whitening():
    values = torch.tensor([[1.0, 2.0, 4.0, math.nan]], requires_grad=True)
    mask = torch.tensor([[True, True, True, False]])
    (whiten(values, mask) * torch.tensor([[1.0, 2.0, 3.0, 4.0]])).sum().backward()
    assert values.grad.isfinite().all()
    assert values.grad[0, 3] == 0
    values.grad = None
    masked_variance(values, mask).backward()
    assert values.grad.isfinite().all()


def test_negative_values_that_differ_by_rounding_only_are_constant_beside_padding(assert_close):
    """The noise is measured by the largest size, whatever its sign, and not by the padding's 0."""
    values = torch.tensor([[-1e6, -1e6 + 0.0625, -1e6 + 0.125, 0.0]])
    mask = torch.tensor([[True, True, True, False]])
    assert masked_variance(values, mask) > 0
    assert_close(whiten(values, mask), torch.zeros(1, 4), rtol=0, atol=0)
