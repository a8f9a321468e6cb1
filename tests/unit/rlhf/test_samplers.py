"""Rollouts that another sampler has made: whose responses, and what corrects for it."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from rlhf.batches import Rollout
from rlhf.distributed import rank
from rlhf.importance_weights import importance_weights
from rlhf.ppo import build_batch, compute_rewards
from rlhf.ppo_losses import policy_loss
from rlhf.samplers import SampledElsewhere
from tests import ppo_world
from tests.forked import run_together

TEMPERATURE = 0.9


def rows_of(rollout: Rollout) -> list[tuple[list[int], list[int]]]:
    """Prompt and response of each row."""
    return [
        (rollout.prompt_ids[i][rollout.prompt_mask[i]].tolist(),
         rollout.response_ids[i][rollout.response_mask[i]].tolist())
        for i in range(len(rollout))
    ]  # fmt: skip


@torch.no_grad()
def by_transformers(lm, prompt: list[int], response: list[int], temperature: float) -> list[float]:
    """Log-probabilities of a response by the library alone, in float64."""
    logits = lm(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1].double()
    every = (logits / temperature).log_softmax(-1)
    return [float(every[place, token]) for place, token in enumerate(response)]


class Replaying:
    """Gives the responses of other rollouts, one after the other, as if a server had sampled them.

    It says of them what the policy would at its own temperature, in float64.
    """

    def __init__(self, rollouts: list[Rollout], temperature: float = TEMPERATURE):
        self.rollouts, self.temperature = list(rollouts), temperature
        self.asked = 0

    def __call__(self, lm, prompts, sampling, draws) -> SampledElsewhere:
        self.asked += 1
        rows = rows_of(self.rollouts.pop(0))
        assert [prompt for prompt, _ in rows] == list(prompts)
        assert sampling.temperature == TEMPERATURE
        assert len(draws) == len(prompts)
        told = [by_transformers(lm, *row, self.temperature) for row in rows]
        return SampledElsewhere([response for _, response in rows], told)


def with_sampler(settings, sampler):
    training = ppo_world.fresh(settings, reference_seed=1)
    training.models = training.models._replace(sampler=sampler)
    return training


@pytest.fixture(scope="module")
def local():
    settings = ppo_world.params(iterations=2)
    training = ppo_world.fresh(settings, reference_seed=1)
    return training, ppo_world.run(training, settings)


def test_a_sampler_that_is_the_policy_trains_the_same_policy(local, assert_close):
    """Its log-probabilities come from another computation, so they differ by rounding."""
    expected, iterations = local
    settings = ppo_world.params(iterations=2)
    training = with_sampler(settings, Replaying([i.rollout for i in iterations]))
    found = ppo_world.run(training, settings)

    for name, weight in training.models.actor.state_dict().items():
        assert_close(weight, expected.models.actor.state_dict()[name], rtol=0, atol=2e-4)
    for ours, theirs in zip(found, iterations, strict=True):
        assert torch.equal(ours.rollout.response_ids, theirs.rollout.response_ids)
        assert torch.equal(ours.rollout.ended, theirs.rollout.ended)
        assert ours.metrics.truncated_weights == 0
        assert 0 < ours.metrics.sampler_gap < 1e-5
        assert (theirs.metrics.truncated_weights, theirs.metrics.sampler_gap) == (None, None)


def test_where_it_says_nothing_a_token_counts_as_the_policys_own(local):
    """A server may leave out the stop id: not one bit of the training differs then."""
    expected, iterations = local

    def silent(*given) -> SampledElsewhere:
        ids, told = replaying(*given)
        return SampledElsewhere(ids, [[math.nan] * len(row) for row in told])

    replaying = Replaying([i.rollout for i in iterations])
    settings = ppo_world.params(iterations=2)
    training = with_sampler(settings, silent)
    found = ppo_world.run(training, settings)
    ppo_world.assert_same_weights(training.models.actor, expected.models.actor)
    assert [i.metrics.sampler_gap for i in found] == [0.0, 0.0]


def test_a_sampler_at_another_temperature_gets_the_weights_that_numpy_gives(local, assert_close):
    _, (first, _) = local
    cap = 1.25
    settings = ppo_world.params(iterations=1, importance_cap=cap)
    training = with_sampler(settings, Replaying([first.rollout], temperature=1.8))
    policy = ppo_world.policy()
    (found,) = ppo_world.run(training, settings)

    rollout, ratios, gaps = found.rollout, [], []
    for prompt, response in rows_of(rollout):
        ours, theirs = (
            np.array(by_transformers(policy, prompt, response, t)) for t in (TEMPERATURE, 1.8)
        )
        ratios.append(np.exp(ours - theirs))
        gaps.append(np.abs(ours - theirs))
    every = np.concatenate(ratios)
    assert 0.1 < (every > cap).mean() < 0.9
    assert found.metrics.truncated_weights == pytest.approx((every > cap).mean())
    assert found.metrics.sampler_gap == pytest.approx(np.concatenate(gaps).mean(), rel=1e-4)

    rewards, _ = compute_rewards(rollout, settings, kl_coef=settings.kl_coef)
    weighted = build_batch(rollout, rewards, settings)
    own = dataclasses.replace(rollout, sampler_logprobs=rollout.logprobs)
    plain = build_batch(own, rewards, settings)
    for row, ratio in enumerate(ratios):
        share = weighted.advantages[row, : len(ratio)] / plain.advantages[row, : len(ratio)]
        assert_close(share, np.minimum(ratio, cap), rtol=1e-4, atol=0)
    assert torch.equal(weighted.returns, plain.returns)
    assert torch.equal(weighted.old_logprobs, plain.old_logprobs)


@pytest.mark.parametrize("dual_clip", [None, 1.5])
def test_a_weight_on_the_advantage_is_a_weight_on_the_loss_of_the_token(assert_close, dual_clip):
    generator = torch.Generator().manual_seed(0)
    new, old, advantages = torch.randn(3, 4, 50, generator=generator, dtype=torch.float64)
    weights = torch.rand(4, 50, generator=generator, dtype=torch.float64) * 2
    mask = torch.rand(4, 50, generator=generator) < 0.8
    ratio = (new - old).exp()
    losses = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2))
    if dual_clip is not None:
        losses = torch.where(advantages < 0, torch.minimum(losses, -dual_clip * advantages), losses)
    found = policy_loss(new, old, advantages * weights, mask, clip_range=0.2, dual_clip=dual_clip)
    assert_close(found.loss, (weights * losses)[mask].mean(), rtol=1e-12, atol=0)


def test_a_weight_is_the_ratio_up_to_the_cap_and_1_in_the_padding(assert_close):
    """By hand: 0.3 / 0.1 = 3, 0.2 / 0.4 = 1 / 2, 0.5 / 0.5 = 1; and a token that the sampler says
    is nearly impossible has a ratio beyond any number."""
    mask = torch.tensor([[True, True, True, True, False]])
    ours = torch.tensor([[0.3, 0.2, 0.5, 0.9, 0.0]]).log()
    theirs = torch.tensor([[math.log(0.1), math.log(0.4), math.log(0.5), -9999.0, math.nan]])
    found = importance_weights(ours, theirs, mask, cap=2.0)
    assert_close(found.weights, [[2.0, 0.5, 1.0, 2.0, 1.0]], rtol=1e-6, atol=0)
    assert found.truncated.item() == 0.5


def test_of_several_processes_the_first_asks_and_all_have_the_rollout(local):
    _, (first, _) = local
    settings = ppo_world.params(iterations=1, epochs=1)

    def work():
        sampler = Replaying([first.rollout])
        training = with_sampler(settings, sampler)
        (found,) = ppo_world.run(training, settings)
        rollout = found.rollout
        return rank(), sampler.asked, rows_of(rollout), rollout.sampler_logprobs.tolist()

    (_, asked, rows, told), (_, other, same_rows, same_told) = run_together(work)
    assert (asked, other) == (1, 0)
    assert rows == same_rows == rows_of(first.rollout)
    assert told == same_told
