"""PPO and next-token losses: formulas in numpy, gradients, and micro-batching."""

import math

import numpy as np
import pytest
import torch

from rlhf.language_model_loss import language_model_loss
from rlhf.masked import EmptyMaskError, whiten
from rlhf.ppo_losses import (
    entropy_bonus,
    policy_loss,
    value_loss,
)

MASK = torch.tensor([[True, True, True, False], [True, True, False, False]])
LOGPROBS = torch.tensor([[-1.0, -0.4, -2.0, 5.0], [-0.3, -1.1, 5.0, 5.0]], dtype=torch.float64)
OLD_LOGPROBS = torch.tensor(
    [[-1.5, -0.3, -1.2, -9.0], [-0.3, -1.0, -9.0, -9.0]], dtype=torch.float64
)
ADVANTAGES = torch.tensor([[1.0, -2.0, 0.5, 8.0], [-1.0, 3.0, 8.0, 8.0]], dtype=torch.float64)


def one_token(number: float) -> torch.Tensor:
    return torch.tensor([[number]], dtype=torch.float64)


ONE = torch.ones(1, 1, dtype=torch.bool)


def test_s28_policy_loss_is_the_masked_mean_of_the_clipped_surrogate(assert_close):
    found = policy_loss(LOGPROBS, OLD_LOGPROBS, ADVANTAGES, MASK, clip_range=0.2)
    mask = MASK.numpy()
    ratio = np.exp(LOGPROBS.numpy()[mask] - OLD_LOGPROBS.numpy()[mask])
    advantage = ADVANTAGES.numpy()[mask]
    objective = np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
    assert_close(found.loss, -objective.mean(), rtol=1e-12, atol=0.0)
    binding = ((advantage > 0) & (ratio > 1.2)) | ((advantage < 0) & (ratio < 0.8))
    assert_close(found.clip_fraction, binding.mean(), rtol=1e-12, atol=0.0)
    assert_close(found.approx_kl, (ratio - 1 - np.log(ratio)).mean(), rtol=1e-9, atol=0.0)


def test_s26_at_ratio_one_nothing_is_clipped_and_the_loss_is_minus_the_mean_advantage(assert_close):
    advantages = whiten(ADVANTAGES, MASK)
    found = policy_loss(LOGPROBS, LOGPROBS, advantages, MASK, clip_range=0.2)
    assert_close(found.loss, 0.0, rtol=0.0, atol=1e-12)
    assert (found.clip_fraction.item(), found.approx_kl.item()) == (0.0, 0.0)
    unwhitened = policy_loss(LOGPROBS, LOGPROBS, ADVANTAGES, MASK, clip_range=0.2)
    assert_close(unwhitened.loss, -ADVANTAGES[MASK].mean(), rtol=1e-12, atol=0.0)


def test_s26_at_ratio_one_the_gradient_is_the_plain_policy_gradient(assert_close):
    logprobs = LOGPROBS.clone().requires_grad_()
    policy_loss(logprobs, LOGPROBS, ADVANTAGES, MASK, clip_range=0.2).loss.backward()
    expected = np.where(MASK, -ADVANTAGES, 0.0) / 5
    assert_close(logprobs.grad, expected, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "has_gradient"),
    [
        (0.3, 1.0, False),
        (0.3, -1.0, True),
        (-0.3, 1.0, True),
        (-0.3, -1.0, False),
        (0.1, 1.0, True),
        (0.1, -1.0, True),
        (-0.1, 1.0, True),
        (-0.1, -1.0, True),
    ],
)
def test_s28_the_gradient_is_zero_where_clipped_and_the_sign_says_so(
    assert_close, log_ratio, advantage, has_gradient
):
    logprobs = one_token(log_ratio).requires_grad_()
    found = policy_loss(logprobs, one_token(0.0), one_token(advantage), ONE, clip_range=0.2)
    found.loss.backward()
    expected = -advantage * math.exp(log_ratio) if has_gradient else 0.0
    assert_close(logprobs.grad, [[expected]], rtol=1e-9, atol=0.0)
    assert found.clip_fraction.item() == float(not has_gradient)


def test_s25_advantages_and_old_logprobs_get_no_gradient():
    tensors = [tensor.clone().requires_grad_() for tensor in (LOGPROBS, OLD_LOGPROBS, ADVANTAGES)]
    found = policy_loss(tensors[0], tensors[1].detach(), tensors[2], MASK, clip_range=0.2)
    found.loss.backward()
    assert tensors[2].grad is None
    assert not found.approx_kl.requires_grad
    assert not found.clip_fraction.requires_grad
    other = policy_loss(LOGPROBS, tensors[1], ADVANTAGES, MASK, clip_range=0.2)
    assert not other.approx_kl.requires_grad


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "expected"),
    [
        (2.0, -0.5, 3.0 * 0.5),  # e^2 > 3: capped at -c A
        (1.0, -0.5, math.e * 0.5),  # below the cap
        (2.0, 0.5, -1.2 * 0.5),  # A > 0: the ordinary clip
        (-2.0, -0.5, 0.8 * 0.5),  # A < 0, small ratio: the ordinary clip
    ],
)
def test_s29_dual_clip_caps_the_loss_of_negative_advantages_only(
    assert_close, log_ratio, advantage, expected
):
    logprobs = one_token(log_ratio).requires_grad_()
    found = policy_loss(
        logprobs, one_token(0.0), one_token(advantage), ONE, clip_range=0.2, dual_clip=3.0
    )
    found.loss.backward()
    assert_close(found.loss, expected, rtol=1e-9, atol=0.0)
    active = math.isclose(expected, -advantage * math.exp(log_ratio), rel_tol=1e-9)
    assert (logprobs.grad.item() != 0) == active


@pytest.mark.parametrize("dual_clip", [1.0, 0.5])
def test_a_dual_clip_that_would_cut_into_ratio_one_is_refused(dual_clip):
    with pytest.raises(ValueError, match="dual_clip"):
        policy_loss(LOGPROBS, OLD_LOGPROBS, ADVANTAGES, MASK, clip_range=0.2, dual_clip=dual_clip)


VALUES = torch.tensor([[0.5, 2.0, -1.0, 9.0], [3.0, 0.2, 9.0, 9.0]], dtype=torch.float64)
OLD_VALUES = torch.tensor([[0.0, 1.9, -1.0, -9.0], [1.0, 0.5, -9.0, -9.0]], dtype=torch.float64)
RETURNS = torch.tensor([[1.0, 1.0, 2.0, 0.0], [0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)


def test_s30_value_loss_is_half_the_masked_mean_of_the_larger_squared_error(assert_close):
    found = value_loss(VALUES, OLD_VALUES, RETURNS, MASK, clip_range=0.2)
    mask = MASK.numpy()
    values, old, returns = (t.numpy()[mask] for t in (VALUES, OLD_VALUES, RETURNS))
    near = np.clip(values, old - 0.2, old + 0.2)
    expected = np.mean(np.maximum((values - returns) ** 2, (near - returns) ** 2)) / 2
    assert_close(found.loss, expected, rtol=1e-12, atol=0.0)
    worse = (near - returns) ** 2 > (values - returns) ** 2
    assert 0 < worse.mean() < 1
    assert_close(found.clip_fraction, worse.mean(), rtol=1e-12, atol=0.0)


def test_s30_without_a_clip_it_is_half_the_mean_squared_error(assert_close):
    found = value_loss(VALUES, OLD_VALUES, RETURNS, MASK, clip_range=None)
    expected = np.mean((VALUES - RETURNS).numpy()[MASK.numpy()] ** 2) / 2
    assert_close(found.loss, expected, rtol=1e-12, atol=0.0)
    assert found.clip_fraction.item() == 0.0


def test_s30_the_gradient_stops_where_the_clipped_error_is_the_larger(assert_close):
    values = torch.tensor([[1.0, 1.0]], dtype=torch.float64, requires_grad=True)
    old, returns = torch.tensor([[0.0, 0.0]]).double(), torch.tensor([[2.0, -2.0]]).double()
    mask = torch.ones(1, 2, dtype=torch.bool)
    value_loss(values, old, returns, mask, clip_range=0.5).loss.backward()
    assert_close(values.grad, [[0.0, 1.5]], rtol=1e-12, atol=0.0)


@pytest.mark.parametrize(("error", "loss"), [(0.5, 0.125), (-1.0, 0.5), (3.0, 2.5), (-4.0, 3.5)])
def test_huber_is_squared_within_delta_and_linear_beyond(assert_close, error, loss):
    found = value_loss(
        one_token(error), one_token(0.0), one_token(0.0), ONE, clip_range=None, huber_delta=1.0
    )
    assert_close(found.loss, loss, rtol=1e-12, atol=0.0)


def test_huber_also_measures_the_clipped_error(assert_close):
    """The clip leaves the value at 0.5, 4.5 away: linear, though it is the larger error."""
    found = value_loss(
        one_token(4.0),
        one_token(0.0),
        one_token(5.0),
        ONE,
        clip_range=0.5,
        huber_delta=1.0,
    )
    assert_close(found.loss, 4.5 - 0.5, rtol=1e-12, atol=0.0)
    assert found.clip_fraction.item() == 1.0


def test_the_slope_beyond_delta_is_delta(assert_close):
    values = one_token(9.0).requires_grad_()
    found = value_loss(
        values, one_token(0.0), one_token(1.0), ONE, clip_range=None, huber_delta=0.3
    )
    found.loss.backward()
    assert_close(values.grad, [[0.3]], rtol=1e-12, atol=0.0)


def test_s25_returns_and_old_values_get_no_gradient():
    old, returns = OLD_VALUES.clone().requires_grad_(), RETURNS.clone().requires_grad_()
    values = VALUES.clone().requires_grad_()
    value_loss(values, old, returns, MASK, clip_range=0.2).loss.backward()
    assert (old.grad, returns.grad) == (None, None)
    assert values.grad is not None


def test_s31_entropy_bonus_is_the_masked_mean(assert_close):
    entropies = torch.tensor([[1.0, 2.0, 0.5, math.nan]], dtype=torch.float64)
    assert_close(entropy_bonus(entropies, MASK[:1]), 3.5 / 3, rtol=1e-12, atol=0.0)


LOSSES = {
    "policy": lambda mask, n: policy_loss(
        LOGPROBS, OLD_LOGPROBS, ADVANTAGES, mask, clip_range=0.2, normaliser=n
    ),
    "value": lambda mask, n: value_loss(
        VALUES, OLD_VALUES, RETURNS, mask, clip_range=0.2, normaliser=n
    ),
    "entropy": lambda mask, n: (entropy_bonus(VALUES, mask, normaliser=n),),
    "language model": lambda mask, n: (
        language_model_loss(VALUES.unsqueeze(2).expand(2, 4, 3), IDS, mask, normaliser=n),
    ),
}
IDS = torch.zeros(2, 4, dtype=torch.long)


@pytest.mark.parametrize("loss", LOSSES)
def test_s39_an_empty_mask_is_an_error(loss):
    with pytest.raises(EmptyMaskError):
        LOSSES[loss](torch.zeros_like(MASK), None)


@pytest.mark.parametrize("loss", LOSSES)
def test_s39_an_empty_micro_batch_adds_zero_to_its_step(loss):
    results = LOSSES[loss](torch.zeros_like(MASK), 5)
    assert [result.item() for result in results] == [0.0] * len(results)


@pytest.mark.parametrize("loss", LOSSES)
def test_s32_the_normaliser_divides_every_result(assert_close, loss):
    own, wide = LOSSES[loss](MASK, None), LOSSES[loss](MASK, 20)
    for mean, part in zip(own, wide, strict=True):
        assert_close(part, mean * 5 / 20, rtol=1e-12, atol=0.0)


def test_s32_averaging_the_means_of_uneven_micro_batches_would_be_wrong(assert_close):
    """3 tokens and 2: the mean of their means is not the mean over 5; sums over 5 are."""

    def loss(rows: slice, normaliser: int | None) -> torch.Tensor:
        return policy_loss(
            LOGPROBS[rows],
            OLD_LOGPROBS[rows],
            ADVANTAGES[rows],
            MASK[rows],
            clip_range=0.2,
            normaliser=normaliser,
        ).loss

    whole = loss(slice(0, 2), None)
    assert_close(loss(slice(0, 1), 5) + loss(slice(1, 2), 5), whole, rtol=1e-12, atol=0.0)
    averaged = (loss(slice(0, 1), None) + loss(slice(1, 2), None)) / 2
    assert abs(averaged - whole) > 0.01
