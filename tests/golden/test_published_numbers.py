"""Numbers from other projects' published tests, or derived by hand, with their sources.

The vectors lie in `ppo_numbers.json`, each with its source. Where another project bootstraps from a
value behind the end, we add the discounted value to the last reward, which is the same equation; a
discount of 0 ends an episode, so such rows are cut there.
"""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from rlhf.advantages import gae, grpo, reinforce_pp, rloo
from rlhf.kl import KLController, kl_estimate
from rlhf.masked import masked_mean, masked_variance, whiten
from rlhf.params.kl import AdaptiveKLParams
from rlhf.ppo_losses import policy_loss
from rlhf.preference_loss import preference_loss

NUMBERS = json.loads(Path(__file__).with_name("ppo_numbers.json").read_text(encoding="utf-8"))


def tensor(numbers: list) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def all_real(values: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(values, dtype=torch.bool)


def episodes(discounts: list[float]) -> list[slice]:
    """Stretches of steps that end with a discount of 0 or with the row."""
    ends = [step + 1 for step, discount in enumerate(discounts) if discount == 0]
    bounds = sorted({0, *ends, len(discounts)})
    return [slice(start, stop) for start, stop in pairwise(bounds)]


def gae_of_episode(rewards, discounts, values, lam):
    """Our GAE on one episode of another project's vectors (`values` has one more entry)."""
    steps = len(rewards)
    rewards = [*rewards[:-1], rewards[-1] + discounts[-1] * values[steps]]
    row = tensor([rewards])
    return gae(row, tensor([values[:steps]]), all_real(row), gamma=discounts[0], lam=lam)


@pytest.mark.parametrize("case", NUMBERS["gae_bootstrapped"], ids=lambda case: case["source"][:40])
def test_s20_gae_gives_the_published_advantages(assert_close, case):
    rows = zip(case["rewards"], case["discounts"], case["values"], case["advantages"], strict=True)
    for rewards, discounts, values, expected in rows:
        for part in episodes(discounts):
            behind = slice(part.start, part.stop + 1)
            found = gae_of_episode(rewards[part], discounts[part], values[behind], case["lam"])
            assert_close(found.advantages[0], expected[part], rtol=0.0, atol=case["atol"])


def test_s21_returns_at_lambda_one_are_the_published_discounted_returns(assert_close):
    case = NUMBERS["discounted_return"]
    values = [0.3, -0.7, 2.0, 0.0, 1.0, 4.0, -1.0, 0.5, 0.1, case["final_value"]]
    for part in episodes(case["discounts"]):
        behind = slice(part.start, part.stop + 1)
        found = gae_of_episode(case["rewards"][part], case["discounts"][part], values[behind], 1.0)
        assert_close(found.returns[0], case["returns"][part], rtol=0.0, atol=1e-6)


def test_s20_returns_are_the_published_lambda_returns(assert_close):
    """Discounts that vary: with scales c_{t+1} = c_t g_t the same recursion has a discount of 1."""
    case = NUMBERS["lambda_returns"]
    rewards, discounts = tensor(case["rewards"]), tensor(case["discounts"])
    next_values = tensor(case["next_values"])
    scales = torch.cat([torch.ones(2, 1, dtype=torch.float64), discounts.cumprod(dim=1)], dim=1)
    scaled_rewards, scaled_next = scales[:, :-1] * rewards, scales[:, 1:] * next_values
    scaled_rewards[:, -1] += scaled_next[:, -1]
    values = torch.cat([torch.full((2, 1), 7.0, dtype=torch.float64), scaled_next[:, :-1]], dim=1)
    found = gae(scaled_rewards, values, all_real(values), gamma=1.0, lam=case["lam"])
    assert_close(found.returns / scales[:, :-1], case["returns"], rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("row", [0, 1])
def test_s22_gae_steps_over_masked_positions(assert_close, row):
    case = NUMBERS["gae_over_holes"]
    mask = torch.tensor([case["mask"]])
    found = gae(
        tensor([case["rewards"]]),
        tensor([case["values"][row]]),
        mask,
        gamma=case["gamma"],
        lam=case["lam"],
    )
    assert_close(found.advantages[mask], case["advantages_at_mask"], rtol=0.0, atol=1e-6)


def test_s20_the_worked_gae_example(assert_close):
    case = NUMBERS["worked_gae"]
    rewards, values = tensor([case["rewards"]]), tensor([case["values"]])
    found = gae(rewards, values, all_real(values), gamma=case["gamma"], lam=case["lam"])
    assert_close(found.advantages[0], case["advantages"], rtol=0.0, atol=1e-6)
    expected = [a + v for a, v in zip(case["advantages"], case["values"], strict=True)]
    assert_close(found.returns[0], expected, rtol=0.0, atol=1e-6)


def per_response(returns: list[list[float]], shift: list[float] | None = None):
    """Responses of three tokens, whose rewards add up to these returns, plus one per prompt."""
    shifts = tensor(shift or [0.0] * len(returns)).unsqueeze(1)
    rewards = (tensor(returns) + shifts).view(-1, 1) * tensor([[0.5, -0.25, 0.75]])
    return rewards, all_real(rewards)


def test_s61_rloo_gives_the_published_advantages(assert_close):
    case = NUMBERS["rloo"]
    found = rloo(*per_response(case["returns"]), samples_per_prompt=4).advantages
    for column in found.unbind(1):
        assert_close(column.view(-1, 4), case["advantages"], rtol=0.0, atol=1e-9)
    for prompt, (sample, advantage) in case["written_out"].items():
        assert_close(found.view(3, 4, 3)[int(prompt), sample, 0], advantage, rtol=0.0, atol=1e-9)


@pytest.mark.parametrize("divided", [True, False])
def test_s62_grpo_gives_the_published_advantages(assert_close, divided):
    """Whatever the prompt's mean; they divide by the deviation of a sample and a small number."""
    case = NUMBERS["grpo"]
    rewards, mask = per_response(case["without_std"], shift=[7.0, -3.0])
    found = grpo(rewards, mask, samples_per_prompt=3, divide_by_std=divided).advantages
    expected = tensor(case["with_std" if divided else "without_std"])
    if divided:
        deviations = tensor(case["without_std"]).std(dim=1, keepdim=True, unbiased=True)
        expected = expected * (1 + case["epsilon"] / deviations)
    for column in found.unbind(1):
        assert_close(column.view(-1, 3), expected, rtol=0.0, atol=1e-5)


def test_s63_returns_of_reinforce_pp_are_the_published_discounted_returns(assert_close):
    case = NUMBERS["discounted_return"]
    for part in episodes(case["discounts"]):
        *rewards, last = case["rewards"][part]
        behind = case["discounts"][part][-1] * case["final_value"]
        row = tensor([[*rewards, last + behind]])
        found = reinforce_pp(row, all_real(row), gamma=case["discounts"][part][0])
        assert_close(found.advantages[0], case["returns"][part], rtol=0.0, atol=1e-6)
        assert torch.equal(found.returns, found.advantages)


def test_masked_mean_and_variance_are_those_of_the_kept_numbers(assert_close):
    case = NUMBERS["masked_statistics"]
    values, mask = tensor(case["values"]), torch.tensor(case["mask"])
    assert_close(masked_mean(values, mask), case["mean"], rtol=0.0, atol=1e-6)
    # Published divided by n - 1, ours by n.
    biased = case["variance_unbiased"] * (mask.sum().item() - 1) / mask.sum().item()
    assert_close(masked_variance(values, mask), biased, rtol=0.0, atol=1e-6)


def test_whitening_is_the_published_one_up_to_the_stated_biased_variance(assert_close):
    case = NUMBERS["masked_statistics"]
    values, mask = tensor([case["values"]]), torch.tensor([case["mask"]])
    bias = (2 / (2 - 1)) ** 0.5
    expected = [bias * number for number in case["whitened_unbiased"]]
    assert_close(whiten(values, mask)[mask], expected, rtol=0.0, atol=1e-6)


def test_the_mean_of_a_loss_is_over_tokens_not_over_sequences(assert_close):
    case = NUMBERS["token_mean"]
    found = masked_mean(tensor(case["values"]), torch.tensor(case["mask"]))
    assert_close(found, case["mean"], rtol=0.0, atol=1e-6)


def test_s28_policy_loss_is_the_derived_token_mean(assert_close):
    case = NUMBERS["policy_loss"]
    found = policy_loss(
        tensor(case["logprobs"]),
        tensor(case["old_logprobs"]),
        tensor(case["advantages"]),
        torch.tensor(case["mask"]),
        clip_range=case["clip_range"],
    )
    assert_close(found.loss, case["loss"], rtol=0.0, atol=1e-6)


def test_s28_the_clip_binds_in_two_of_four_corners_and_stops_the_gradient_there(assert_close):
    case = NUMBERS["policy_loss_corners"]
    logprobs = tensor([case["log_ratios"]]).requires_grad_()
    mask = all_real(logprobs)
    found = policy_loss(
        logprobs,
        torch.zeros_like(logprobs),
        tensor([case["advantages"]]),
        mask,
        clip_range=case["clip_range"],
    )
    found.loss.backward()
    assert_close(found.loss, sum(case["losses"]) / 4, rtol=0.0, atol=1e-6)
    assert_close(found.clip_fraction, case["clip_fraction"], rtol=0.0, atol=1e-6)
    assert (logprobs.grad[0] != 0).tolist() == case["has_gradient"]


@pytest.mark.parametrize("corner", range(4))
def test_s28_each_corner_has_its_derived_loss(assert_close, corner):
    case = NUMBERS["policy_loss_corners"]
    logprobs = tensor([[case["log_ratios"][corner]]])
    advantages = tensor([[case["advantages"][corner]]])
    found = policy_loss(
        logprobs, torch.zeros_like(logprobs), advantages, all_real(logprobs), clip_range=0.2
    )
    assert_close(found.loss, case["losses"][corner], rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_s12_kl_estimators_are_those_of_schulman(assert_close, estimator):
    case = NUMBERS["kl_estimators"]
    difference = tensor([case["differences"]])
    found = kl_estimate(difference - 2.0, torch.full_like(difference, -2.0), estimator=estimator)
    assert_close(found[0], case[estimator], rtol=0.0, atol=1e-6)


def test_s18_the_adaptive_coefficient_follows_the_derived_path(assert_close):
    case = NUMBERS["adaptive_kl"]
    params = AdaptiveKLParams(target=case["target"], horizon=case["horizon"])
    controller = KLController(coef=case["coef"], adaptive=params)
    path = []
    for kl in case["kls"]:
        controller.update(kl, case["episodes"])
        path.append(controller.coef)
    assert_close(path, case["coefs"], rtol=1e-9, atol=0.0)


def test_s40_bradley_terry_losses(assert_close):
    case = NUMBERS["bradley_terry"]
    for gap, expected in zip(case["gaps"], case["losses"], strict=True):
        found = preference_loss(tensor([gap]), tensor([0.0]))
        assert_close(found.loss, expected, rtol=0.0, atol=1e-6)
