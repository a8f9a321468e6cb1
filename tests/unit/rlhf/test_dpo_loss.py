"""The loss of DPO against numbers by hand, and its gradient against the paper's."""

import math

import pytest
import torch

from rlhf.dpo_loss import PairLogprobs, dpo_loss


def logprobs(chosen: list[float], rejected: list[float], *, grad: bool = False) -> PairLogprobs:
    rows = (torch.tensor(side, dtype=torch.float64) for side in (chosen, rejected))
    return PairLogprobs(*(row.requires_grad_(grad) for row in rows))


def test_the_loss_is_that_of_the_odds_by_hand(assert_close) -> None:
    """Two pairs; π/π_ref as probabilities, whose beta-th powers are the odds of the chosen side.

    Pair 1: chosen 0.2 from 0.1, rejected 0.1 from 0.4: (2 / 0.25)^0.5 = 8^0.5.
    Pair 2: chosen 0.3 from 0.6, rejected 0.5 from 0.5: (0.5 / 1)^0.5 = 0.5^0.5.
    """
    log = math.log
    found = dpo_loss(
        logprobs([log(0.2), log(0.3)], [log(0.1), log(0.5)]),
        logprobs([log(0.1), log(0.6)], [log(0.4), log(0.5)]),
        beta=0.5,
    )
    chances = [odds**0.5 / (1 + odds**0.5) for odds in (8, 0.5)]
    assert_close(found.loss, -(log(chances[0]) + log(chances[1])) / 2, rtol=1e-12, atol=0)
    assert_close(found.loss, 0.5920534, rtol=0, atol=1e-6)
    assert_close(found.margin, 0.25 * (log(8) + log(0.5)), rtol=1e-12, atol=0)
    assert found.accuracy == 0.5


@pytest.mark.parametrize("beta", [0.01, 0.1, 3.0])
def test_where_policy_and_reference_are_one_the_loss_is_log_two(assert_close, beta: float) -> None:
    rows = logprobs([-12.5, -40.0, -3.0], [-20.0, -7.0, -3.0])
    found = dpo_loss(rows, rows, beta=beta)
    assert_close(found.loss, math.log(2), rtol=1e-12, atol=0)
    assert (found.accuracy, found.margin) == (0.5, 0.0)


def test_the_gradient_is_beta_times_the_chance_of_the_wrong_order(assert_close) -> None:
    """Rafailov et al. 2023, section 4: up the chosen side, down the rejected one by as much."""
    policy = logprobs([-9.0], [-11.0], grad=True)
    reference = logprobs([-10.0], [-8.0], grad=True)
    dpo_loss(policy, reference, beta=0.3).loss.backward()
    wrong = 1 / (1 + math.exp(0.3 * ((-9 + 10) - (-11 + 8))))
    assert policy.chosen.grad is not None
    assert policy.rejected.grad is not None
    assert_close(policy.chosen.grad, [-0.3 * wrong], rtol=1e-12, atol=0)
    assert_close(policy.rejected.grad, [0.3 * wrong], rtol=1e-12, atol=0)
    assert reference.chosen.grad is reference.rejected.grad is None


def test_weights_and_soft_labels_are_those_of_the_reward_model(assert_close) -> None:
    policy, reference = logprobs([-1.0, -2.0], [-3.0, -1.0]), logprobs([-2.0, -2.0], [-2.0, -2.0])
    found = dpo_loss(
        policy,
        reference,
        beta=1.0,
        weights=torch.tensor([3.0, 1.0], dtype=torch.float64),
        soft_labels=torch.tensor([1.0, 0.25], dtype=torch.float64),
    )

    def surprise(gap: float) -> float:
        return math.log1p(math.exp(-gap))

    expected = 0.75 * surprise(2.0) + 0.25 * (0.25 * surprise(-1.0) + 0.75 * surprise(1.0))
    assert_close(found.loss, expected, rtol=1e-12, atol=0)
