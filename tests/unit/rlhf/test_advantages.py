"""GAE against the closed form, written as a double sum in numpy."""

import math

import numpy as np
import pytest
import torch

from rlhf.advantages import explained_variance, gae
from rlhf.masked import EmptyMaskError, whiten

GAMMA, LAM = 0.97, 0.9
LENGTHS = [6, 1, 4]


def random_rows(seed: int = 3) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rewards, values and a right-padded mask with junk behind it."""
    numbers = np.random.default_rng(seed)
    rewards, values = numbers.normal(size=(3, 6)), numbers.normal(size=(3, 6))
    mask = np.arange(6) < np.array(LENGTHS)[:, None]
    rewards[~mask], values[~mask] = 1e9, -1e9
    return torch.from_numpy(rewards), torch.from_numpy(values), torch.from_numpy(mask)


def closed_form(rewards: np.ndarray, values: np.ndarray, gamma: float, lam: float) -> np.ndarray:
    """A_t = sum over l of (gamma lambda)^l delta_{t+l} for one unpadded episode."""
    steps = len(rewards)
    next_values = np.append(values[1:], 0.0)
    deltas = rewards + gamma * next_values - values
    return np.array(
        [sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, steps)) for t in range(steps)]
    )


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (GAMMA, LAM), (0.5, 1.0), (1.0, 0.0)])
def test_s20_gae_equals_closed_form(assert_close, gamma, lam):
    rewards, values, mask = random_rows()
    found = gae(rewards, values, mask, gamma=gamma, lam=lam)
    for row, steps in enumerate(LENGTHS):
        expected = closed_form(
            rewards[row, :steps].numpy(), values[row, :steps].numpy(), gamma, lam
        )
        assert_close(found.advantages[row, :steps], expected, rtol=1e-9, atol=1e-12)


def test_s20_gae_equals_an_associative_scan(assert_close):
    """The recursion A = δ + c A' as a product of 2x2 matrices, combined pair by pair."""
    rewards, values, mask = random_rows()
    rewards, values = rewards[0].numpy(), values[0].numpy()
    deltas = rewards + GAMMA * np.append(values[1:], 0.0) - values
    steps = [np.array([[GAMMA * LAM, delta], [0.0, 1.0]]) for delta in deltas]

    def combined(parts: list[np.ndarray]) -> np.ndarray:
        middle = len(parts) // 2
        return parts[0] if middle == 0 else combined(parts[:middle]) @ combined(parts[middle:])

    expected = [combined(steps[start:])[0, 1] for start in range(len(steps))]
    found = gae(*(tensor[:1] for tensor in random_rows()), gamma=GAMMA, lam=LAM)
    assert mask[0].all()
    assert_close(found.advantages[0], expected, rtol=1e-9, atol=1e-12)


def test_s21_lambda_one_returns_are_the_discounted_rewards_to_go(assert_close):
    rewards, values, mask = random_rows()
    found = gae(rewards, values, mask, gamma=GAMMA, lam=1.0)
    for row, steps in enumerate(LENGTHS):
        episode = rewards[row, :steps].numpy()
        expected = [
            sum(GAMMA ** (k - t) * episode[k] for k in range(t, steps)) for t in range(steps)
        ]
        assert_close(found.returns[row, :steps], expected, rtol=1e-9, atol=1e-12)


def test_s21_lambda_zero_returns_are_one_step_targets(assert_close):
    rewards, values, mask = random_rows()
    found = gae(rewards, values, mask, gamma=GAMMA, lam=0.0)
    for row, steps in enumerate(LENGTHS):
        following = np.append(values[row, 1:steps].numpy(), 0.0)
        expected = rewards[row, :steps].numpy() + GAMMA * following
        assert_close(found.returns[row, :steps], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("junk", [0.0, 1e30, math.nan, math.inf])
def test_s22_nothing_is_bootstrapped_from_behind_the_last_token(assert_close, junk):
    """Peer defect 2: with lambda below 1 the end token's advantage read the value of padding."""
    rewards = torch.tensor([[0.0, 2.0, junk]], dtype=torch.float64)
    values = torch.tensor([[0.5, 1.5, junk]], dtype=torch.float64)
    found = gae(rewards, values, torch.tensor([[True, True, False]]), gamma=1.0, lam=0.5)
    assert_close(found.advantages, [[1.0 + 0.5 * 0.5, 0.5, 0.0]], rtol=1e-12, atol=0.0)
    assert_close(found.returns, [[1.75, 2.0, 0.0]], rtol=1e-12, atol=0.0)


def test_s22_ended_and_cut_off_responses_are_treated_alike():
    """A full row gives what the same row gives with room behind it."""
    rewards, values = torch.tensor([[0.1, 0.2, 1.0]]), torch.tensor([[0.3, 0.4, 0.5]])
    full = gae(rewards, values, torch.ones(1, 3, dtype=torch.bool), gamma=0.9, lam=0.8)
    room = torch.full((1, 2), 9.0)
    wide_mask = torch.tensor([[True, True, True, False, False]])
    padded = gae(
        torch.cat([rewards, room], dim=1),
        torch.cat([values, room], dim=1),
        wide_mask,
        gamma=0.9,
        lam=0.8,
    )
    assert torch.equal(padded.advantages[:, :3], full.advantages)
    assert torch.equal(padded.returns[:, :3], full.returns)


def test_s22_padding_is_exactly_zero():
    found = gae(*random_rows(), gamma=GAMMA, lam=LAM)
    mask = random_rows()[2]
    assert found.advantages[~mask].abs().max().item() == 0.0
    assert found.returns[~mask].abs().max().item() == 0.0


def test_s22_masked_positions_within_a_row_cost_no_discount(assert_close):
    rewards = torch.tensor([[1.0, 50.0, 2.0, 50.0, 50.0, 3.0]], dtype=torch.float64)
    values = torch.tensor([[0.5, -9.0, 0.7, -9.0, -9.0, 0.2]], dtype=torch.float64)
    mask = torch.tensor([[True, False, True, False, False, True]])
    found = gae(rewards, values, mask, gamma=GAMMA, lam=LAM)
    expected = closed_form(rewards[mask].numpy(), values[mask].numpy(), GAMMA, LAM)
    assert_close(found.advantages[mask], expected, rtol=1e-9, atol=1e-12)


def test_s23_returns_are_unwhitened_advantages_plus_values(assert_close):
    rewards, values, mask = random_rows()
    found = gae(rewards, values, mask, gamma=GAMMA, lam=LAM)
    difference = (found.returns - values)[mask]
    assert_close(difference, found.advantages[mask], rtol=1e-9, atol=1e-12)
    assert not torch.allclose(difference, whiten(found.advantages, mask)[mask], rtol=0.01)


def test_s25_advantages_and_returns_carry_no_gradient():
    rewards, values, mask = random_rows()
    found = gae(rewards.requires_grad_(), values.requires_grad_(), mask, gamma=1.0, lam=0.95)
    assert not found.advantages.requires_grad
    assert not found.returns.requires_grad


def test_float64_in_gives_float64_out_and_leaves_its_inputs_alone():
    rewards, values, mask = random_rows()
    before = rewards.clone(), values.clone()
    found = gae(rewards, values, mask, gamma=1.0, lam=0.95)
    assert found.advantages.dtype == found.returns.dtype == torch.float64
    assert torch.equal(rewards, before[0])
    assert torch.equal(values, before[1])


RETURNS = torch.tensor([[1.0, 2.0, 4.0], [3.0, 99.0, math.nan]], dtype=torch.float64)
RETURNS_MASK = torch.tensor([[True, True, True], [True, False, False]])


def test_s35_explained_variance_is_one_minus_the_ratio_of_variances(assert_close):
    values = torch.tensor([[0.5, 2.5, 3.0], [3.5, -7.0, math.inf]], dtype=torch.float64)
    kept, guesses = np.array([1.0, 2.0, 4.0, 3.0]), np.array([0.5, 2.5, 3.0, 3.5])
    expected = 1 - np.var(kept - guesses) / np.var(kept)
    found = explained_variance(values, RETURNS, RETURNS_MASK)
    assert_close(found, expected, rtol=1e-9, atol=0.0)


def test_s35_a_perfect_critic_explains_all_and_a_constant_one_nothing(assert_close):
    perfect = RETURNS + 5.0
    assert_close(explained_variance(perfect, RETURNS, RETURNS_MASK), 1.0, rtol=1e-9, atol=0.0)
    constant = torch.full_like(RETURNS, 2.0)
    assert_close(explained_variance(constant, RETURNS, RETURNS_MASK), 0.0, rtol=0.0, atol=1e-9)


def test_s35_a_critic_of_the_wrong_sign_explains_less_than_nothing(assert_close):
    found = explained_variance(-RETURNS, RETURNS, RETURNS_MASK)
    assert_close(found, -3.0, rtol=1e-9, atol=0.0)


@pytest.mark.parametrize("constant", [0.0, 0.1])
def test_s35_constant_returns_give_zero_and_never_nan(constant):
    returns = torch.full((2, 5), constant)
    mask = torch.ones(2, 5, dtype=torch.bool)
    assert explained_variance(torch.randn(2, 5), returns, mask).item() == 0.0


def test_s39_no_real_token_is_an_error():
    with pytest.raises(EmptyMaskError):
        explained_variance(RETURNS, RETURNS, torch.zeros_like(RETURNS_MASK))
