"""GAE against the closed form, written as a double sum; the others against their definitions."""

import functools
import itertools
import math

import numpy as np
import pytest
import torch

from rlhf.advantages import explained_variance, gae, grpo, reinforce_pp, rloo
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


# --- without a value function ------------------------------------------------------------------


def random_responses(samples: int, seed: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Rewards of the responses to three prompts, of uneven lengths, with junk behind them."""
    numbers = np.random.default_rng(seed)
    rewards = numbers.normal(size=(3 * samples, 5))
    mask = np.arange(5) < numbers.integers(1, 6, size=3 * samples)[:, None]
    rewards[~mask] = 1e9
    return torch.from_numpy(rewards), torch.from_numpy(mask)


def sums_by_prompt(rewards: torch.Tensor, mask: torch.Tensor, samples: int) -> list[list[float]]:
    rows = [float(row[real].sum()) for row, real in zip(rewards, mask, strict=True)]
    return [rows[start : start + samples] for start in range(0, len(rows), samples)]


@pytest.mark.parametrize("samples", [2, 4])
def test_s61_rloo_is_a_return_less_the_mean_of_the_others_to_its_prompt(assert_close, samples):
    rewards, mask = random_responses(samples)
    expected = []
    for group in sums_by_prompt(rewards, mask, samples):
        for place, own in enumerate(group):
            others = [number for index, number in enumerate(group) if index != place]
            expected.append(own - sum(others) / len(others))
    found = rloo(rewards, mask, samples_per_prompt=samples)
    assert_close(found.advantages[:, 0], expected, rtol=1e-9, atol=1e-12)
    assert torch.equal(found.advantages, torch.where(mask, found.advantages[:, :1], 0.0))
    returns = [own for group in sums_by_prompt(rewards, mask, samples) for own in group]
    assert_close(found.returns[:, 0], returns, rtol=1e-9, atol=1e-12)


def test_s61_the_expected_gradient_of_rloo_is_that_of_the_expected_reward(assert_close):
    """All 27 triples of three one-token responses, each with its probability: no bias."""
    logits = torch.tensor([0.3, -0.5, 1.1], dtype=torch.float64)
    reward, p = torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64), logits.softmax(0)
    expected = p * (reward - p @ reward)
    found = torch.zeros(3, dtype=torch.float64)
    for triple in itertools.product(range(3), repeat=3):
        drawn = torch.tensor(triple)
        mask = torch.ones(3, 1, dtype=torch.bool)
        advantages = rloo(reward[drawn].unsqueeze(1), mask, samples_per_prompt=3).advantages
        gradients = torch.eye(3, dtype=torch.float64)[drawn] - p
        found += p[drawn].prod() * (advantages * gradients).mean(dim=0)
    assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("samples", [2, 4])
@pytest.mark.parametrize("divided", [True, False])
def test_s62_grpo_standardises_the_returns_of_a_prompt(assert_close, samples, divided):
    rewards, mask = random_responses(samples)
    expected = []
    for group in sums_by_prompt(rewards, mask, samples):
        mean = sum(group) / samples
        variance = sum((own - mean) ** 2 for own in group) / (samples - 1)
        expected += [(own - mean) / (variance**0.5 if divided else 1.0) for own in group]
    found = grpo(rewards, mask, samples_per_prompt=samples, divide_by_std=divided)
    assert_close(found.advantages[:, 0], expected, rtol=1e-9, atol=1e-12)
    assert torch.equal(found.advantages, torch.where(mask, found.advantages[:, :1], 0.0))


@pytest.mark.parametrize("divided", [True, False])
@pytest.mark.parametrize("level", [0.0, 0.1, -7.3])
def test_s62_responses_of_one_return_learn_nothing_of_each_other(assert_close, divided, level):
    """The same return by other rewards, so that only rounding differs; and never NaN."""
    rewards = torch.tensor([[level, 0.0, 0.0], [level / 3] * 3, [level - 5.0, 0.7, 4.3], [9, 1, 0]])
    mask = torch.ones(4, 3, dtype=torch.bool)
    twice = torch.cat([rewards[:2], rewards[2:].flip(0)]), mask
    found = grpo(*twice, samples_per_prompt=2, divide_by_std=divided).advantages
    assert_close(found[:2], torch.zeros(2, 3), rtol=0.0, atol=0.0 if divided else 1e-6)
    assert found[2:].abs().min() > 0.5


@pytest.mark.parametrize(
    "estimator", [rloo, functools.partial(grpo, divide_by_std=True)], ids=["rloo", "grpo"]
)
def test_s61_s62_a_prompt_is_compared_with_itself_only(estimator):
    """Another prompt's rewards, and which prompt comes first, change no bit."""
    rewards, mask = random_responses(4)
    before = estimator(rewards, mask, samples_per_prompt=4).advantages
    changed = rewards.clone()
    changed[:4] *= 100
    after = estimator(changed, mask, samples_per_prompt=4).advantages
    assert torch.equal(before[4:], after[4:])
    assert not torch.equal(before[:4], after[:4])
    order = torch.arange(12).view(3, 4)[[2, 0, 1]].flatten()
    moved = estimator(rewards[order], mask[order], samples_per_prompt=4).advantages
    assert torch.equal(moved, before[order])


def test_s62_a_prompt_with_returns_in_the_millions_leaves_the_others_what_they_learn(assert_close):
    """A function that gives -1e6 for what it cannot read, beside answers of 0 and 1."""
    rewards = torch.tensor([[-1e6], [0.0], [1.0], [0.0]])
    mask = torch.ones(4, 1, dtype=torch.bool)
    found = grpo(rewards, mask, samples_per_prompt=2, divide_by_std=True).advantages
    half = 0.5**0.5
    assert_close(found[:, 0], [-half, half, half, -half], rtol=1e-6, atol=0)


@pytest.mark.parametrize("samples", [1, 5])
def test_rows_that_make_no_whole_groups_are_refused(samples):
    rewards, mask = random_responses(4)
    for estimator in (rloo, functools.partial(grpo, divide_by_std=True)):
        with pytest.raises(
            ValueError, match=f"2 or more that divide 12 responses, found {samples}"
        ):
            estimator(rewards, mask, samples_per_prompt=samples)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_s63_reinforce_pp_is_the_discounted_return_from_each_token_on(assert_close, gamma):
    rewards, mask = random_responses(2)
    found = reinforce_pp(rewards, mask, gamma=gamma)
    for row, real, advantages in zip(rewards, mask, found.advantages, strict=True):
        kept = row[real].tolist()
        steps = range(len(kept))
        expected = [sum(gamma ** (k - t) * kept[k] for k in steps if k >= t) for t in steps]
        assert_close(advantages[real], expected, rtol=1e-9, atol=1e-12)
        assert not advantages[~real].any()
    assert torch.equal(found.returns, found.advantages)


def test_s25_estimators_without_values_carry_no_gradient():
    rewards, mask = random_responses(2)
    rewards.requires_grad_()
    for found in (
        rloo(rewards, mask, samples_per_prompt=2),
        grpo(rewards, mask, samples_per_prompt=2, divide_by_std=True),
        reinforce_pp(rewards, mask, gamma=1.0),
    ):
        assert not found.advantages.requires_grad
        assert not found.returns.requires_grad
        assert found.advantages.dtype == torch.float64
