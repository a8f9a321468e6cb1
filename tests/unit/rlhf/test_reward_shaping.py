"""Reward shaping: what each token gets, and where the score goes."""

import math

import pytest
import torch

from rlhf.masked import EmptyMaskError, sequence_sums
from rlhf.reward_shaping import (
    clip_scores,
    penalise_length,
    penalise_missing_end,
    replace_missing_end,
    shape_rewards,
)

LOGPROBS = torch.tensor([[-1.0, -2.0, -0.5, 7.0], [-3.0, -0.1, -0.2, -0.4]], dtype=torch.float64)
REFERENCE = torch.tensor([[-1.5, -1.0, -1.0, -7.0], [-3.0, -0.3, -0.1, -1.4]], dtype=torch.float64)
MASK = torch.tensor([[True, True, True, False], [True, True, True, True]])
SCORES = torch.tensor([2.0, -1.0], dtype=torch.float64)


def test_s14_the_score_is_added_once_at_the_last_real_token(assert_close):
    """Also for the second row, which is cut off: peer defect 2 treats the two unequally."""
    rewards = shape_rewards(SCORES, LOGPROBS, REFERENCE, MASK, kl_coef=0.1)
    expected = [[-0.05, 0.1, -0.05 + 2.0, 0.0], [0.0, -0.02, 0.01, -0.1 - 1.0]]
    assert_close(rewards, expected, rtol=1e-9, atol=1e-12)


def test_s13_kl_enters_with_a_minus_on_every_token_including_the_last(assert_close):
    rewards = shape_rewards(torch.zeros_like(SCORES), LOGPROBS, REFERENCE, MASK, kl_coef=2.0)
    expected = [[-1.0, 2.0, -1.0, 0.0], [0.0, -0.4, 0.2, -2.0]]
    assert_close(rewards, expected, rtol=1e-9, atol=1e-12)


def test_s13_padding_gets_exactly_zero_whatever_stands_there():
    logprobs = LOGPROBS.clone()
    logprobs[0, 3] = math.nan
    rewards = shape_rewards(SCORES, logprobs, REFERENCE, MASK, kl_coef=0.1)
    assert rewards[0, 3].item() == 0.0


@pytest.mark.parametrize("kl_coef", [0.0, 0.3])
def test_s14_the_rewards_of_a_row_sum_to_score_minus_coefficient_times_kl(assert_close, kl_coef):
    rewards = shape_rewards(SCORES, LOGPROBS, REFERENCE, MASK, kl_coef=kl_coef)
    kl = [0.5 - 1.0 + 0.5, 0.0 + 0.2 - 0.1 + 1.0]
    expected = [2.0 - kl_coef * kl[0], -1.0 - kl_coef * kl[1]]
    assert_close(sequence_sums(rewards, MASK), expected, rtol=1e-9, atol=1e-12)


def test_s11_at_step_zero_the_only_reward_is_the_score():
    rewards = shape_rewards(SCORES, LOGPROBS, LOGPROBS, MASK, kl_coef=5.0)
    assert rewards.tolist() == [[0.0, 0.0, 2.0, 0.0], [0.0, 0.0, 0.0, -1.0]]


def test_s12_the_penalty_uses_the_estimator_asked_for(assert_close):
    logprobs = torch.tensor([[-1.0, -1.0]], dtype=torch.float64)
    reference = torch.tensor([[-1.5, -0.5]], dtype=torch.float64)
    mask, score = torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, dtype=torch.float64)
    expected = {
        "k1": [-0.5, 0.5],
        "k2": [-0.125, -0.125],
        "k3": [-(math.exp(-0.5) - 0.5), -(math.exp(0.5) - 1.5)],
    }
    for estimator, numbers in expected.items():
        found = shape_rewards(score, logprobs, reference, mask, kl_coef=1.0, estimator=estimator)
        assert_close(found, [numbers], rtol=1e-9, atol=0.0)


def test_s25_rewards_carry_no_gradient():
    tensors = [tensor.clone().requires_grad_() for tensor in (SCORES, LOGPROBS, REFERENCE)]
    assert not shape_rewards(*tensors, MASK, kl_coef=0.1).requires_grad


def test_s39_a_response_without_a_token_is_an_error():
    mask = MASK & torch.tensor([[False], [True]])
    with pytest.raises(EmptyMaskError, match=r"rows \[0\]"):
        shape_rewards(SCORES, LOGPROBS, REFERENCE, mask, kl_coef=0.1)


def test_peer_1_the_end_token_is_a_real_token_and_gets_the_score():
    """Pad differs from end, so the mask holds the end token (index 2), not the one before it."""
    ids, pad = torch.tensor([[5, 6, 2, 0, 0]]), 0
    mask = ids != pad
    zeros = torch.zeros(1, 5)
    rewards = shape_rewards(torch.tensor([3.0]), zeros, zeros, mask, kl_coef=0.1)
    assert rewards.tolist() == [[0.0, 0.0, 3.0, 0.0, 0.0]]


def test_s08_a_missing_end_costs_a_constant():
    ended = torch.tensor([True, False])
    assert penalise_missing_end(SCORES, ended, penalty=1.5).tolist() == [2.0, -2.5]


def test_s08_a_missing_end_replaces_the_score():
    ended = torch.tensor([False, True])
    assert replace_missing_end(SCORES, ended, replacement=-4.0).tolist() == [-4.0, -1.0]


def test_each_real_token_costs_the_length_penalty(assert_close):
    found = penalise_length(SCORES, MASK, per_token=0.1)
    assert_close(found, [2.0 - 0.3, -1.0 - 0.4], rtol=1e-9, atol=0.0)


def test_s16_the_clip_bounds_scores_and_reports_its_frequency(assert_close):
    scores = torch.tensor([-7.0, 0.5, 5.0, 9.0])
    clipped = clip_scores(scores, limit=5.0)
    assert clipped.scores.tolist() == [-5.0, 0.5, 5.0, 5.0]
    assert_close(clipped.clipped_fraction, 0.5, rtol=0.0, atol=1e-12)


def test_s16_the_clip_does_not_touch_the_kl_part(assert_close):
    scores = clip_scores(torch.tensor([50.0], dtype=torch.float64), limit=5.0).scores
    logprobs, reference = torch.zeros(1, 2).double(), torch.full((1, 2), -30.0).double()
    mask = torch.ones(1, 2, dtype=torch.bool)
    rewards = shape_rewards(scores, logprobs, reference, mask, kl_coef=1.0)
    assert_close(rewards, [[-30.0, -30.0 + 5.0]], rtol=1e-9, atol=0.0)


@pytest.mark.parametrize("limit", [0.0, -1.0, math.nan])
def test_a_clip_limit_that_is_not_positive_is_refused(limit):
    with pytest.raises(ValueError, match="limit"):
        clip_scores(SCORES, limit=limit)
