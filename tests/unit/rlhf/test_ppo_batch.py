"""From a rollout to the batch that PPO trains on: penalties, rewards, returns, advantages."""

import copy

import pytest
import torch

from rlhf.batches import Rollout
from rlhf.masked import whiten
from rlhf.ppo import build_batch, compute_rewards
from tests.ppo_world import ONE_STEP, fresh, params, run


def rollout() -> Rollout:
    """Two answers: one of three tokens that ended, one of four that was cut."""
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]], dtype=torch.bool)
    return Rollout(
        prompt_ids=torch.tensor([[5, 6], [7, 8]]),
        prompt_mask=torch.ones(2, 2, dtype=torch.bool),
        response_ids=torch.tensor([[3, 4, 1, 0], [3, 4, 5, 6]]),
        response_mask=mask,
        logprobs=torch.tensor([[-1.0, -2.0, -0.5, 99.0], [-1.0, -1.0, -3.0, -2.0]]),
        sampler_logprobs=torch.tensor([[-1.0, -2.0, -0.5, 99.0], [-1.0, -1.0, -3.0, -2.0]]),
        ref_logprobs=torch.tensor([[-1.5, -1.0, -0.6, -99.0], [-1.0, -1.4, -2.0, -2.2]]),
        values=torch.tensor([[0.3, -0.2, 0.5, 77.0], [1.0, 0.0, -1.0, 2.0]]),
        scores=torch.tensor([4.0, -3.0]),
        ended=torch.tensor([True, False]),
    )


K1 = torch.tensor([[0.5, -1.0, 0.1, 0.0], [0.0, 0.4, -1.0, 0.2]])


def test_s14_the_score_falls_on_the_last_real_token_whether_it_ended_or_was_cut(assert_close):
    """Peer defect 2: one slot behind the end token, but on the last token of a cut answer."""
    rewards, _ = compute_rewards(rollout(), params(missing_end_penalty=0.0), kl_coef=0.1)
    expected = -0.1 * K1
    expected[0, 2] += 4.0
    expected[1, 3] -= 3.0
    assert_close(rewards, expected, rtol=0, atol=1e-6)
    assert_close(rewards.sum(dim=1), [4.0 + 0.04, -3.0 + 0.04], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"missing_end_penalty": 1.5}, [4.0, -4.5]),
        ({"missing_end": "replace", "missing_end_penalty": 1.5}, [4.0, -1.5]),
        ({"missing_end_penalty": 0.0, "length_penalty": 0.5}, [2.5, -5.0]),
        ({"missing_end_penalty": 1.0, "score_clip": 2.0}, [2.0, -3.0]),
        (
            {"missing_end": "replace", "missing_end_penalty": 1.5, "length_penalty": 0.5},
            [2.5, -3.5],
        ),
        ({"missing_end": "replace", "missing_end_penalty": 5.0, "score_clip": 2.0}, [2.0, -5.0]),
    ],
    ids=["subtract", "replace", "length", "clip", "replace and length", "clip and replace"],
)
def test_s08_s16_penalties_and_clipping_concern_the_score_and_not_the_kl(
    assert_close, changes, expected
):
    rewards, _ = compute_rewards(rollout(), params(**changes), kl_coef=0.1)
    assert_close((rewards + 0.1 * K1).sum(dim=1), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("limit", "share"), [(None, 0.0), (3.5, 0.5), (2.0, 1.0)])
def test_s16_the_share_of_clipped_scores_is_reported(limit, share):
    _, clipped = compute_rewards(rollout(), params(score_clip=limit), kl_coef=0.1)
    assert clipped == share


def test_s17_whitened_rewards_keep_their_mean(assert_close):
    plain, _ = compute_rewards(rollout(), params(), kl_coef=0.1)
    found, _ = compute_rewards(rollout(), params(whiten_rewards=True), kl_coef=0.1)
    mask = rollout().response_mask
    assert_close(found[mask].mean(), plain[mask].mean(), rtol=1e-5, atol=0)
    assert_close(found[mask].var(unbiased=False), 1.0, rtol=1e-5, atol=0)


def test_s23_returns_are_unwhitened_advantages_plus_values(assert_close):
    rewards, _ = compute_rewards(rollout(), params(), kl_coef=0.1)
    batch = build_batch(rollout(), rewards, params(lam=1.0))
    to_go = rewards.flip(1).cumsum(1).flip(1)
    assert_close(batch.returns[batch.response_mask], to_go[batch.response_mask], rtol=0, atol=1e-5)
    plain = build_batch(rollout(), rewards, params(lam=1.0, whiten_advantages=False))
    expected = (to_go - rollout().values)[batch.response_mask]
    assert_close(plain.advantages[batch.response_mask], expected, rtol=0, atol=1e-5)


def test_s24_advantages_are_whitened_over_the_rollouts_real_tokens(assert_close):
    rewards, _ = compute_rewards(rollout(), params(), kl_coef=0.1)
    batch = build_batch(rollout(), rewards, params())
    real = batch.advantages[batch.response_mask]
    assert_close(real.mean(), 0.0, rtol=0, atol=1e-6)
    assert_close(real.var(unbiased=False), 1.0, rtol=1e-5, atol=0)
    assert not batch.advantages[~batch.response_mask].any()


def test_s20_the_batch_holds_the_worked_example(assert_close):
    """Rewards 1 to 4, values 10 to 13, gamma 0.9, lambda 0.95, terminal value 0."""
    one = rollout().select(torch.tensor([1]))
    one = copy.copy(one)
    object.__setattr__(one, "values", torch.tensor([[10.0, 11.0, 12.0, 13.0]]))
    settings = params(gamma=0.9, lam=0.95, whiten_advantages=False)
    batch = build_batch(one, torch.tensor([[1.0, 2.0, 3.0, 4.0]]), settings)
    expected = [[-1.212470, -2.470725, -4.995000, -9.000000]]
    assert_close(batch.advantages, expected, rtol=0, atol=2e-6)


def test_s13_a_penalty_in_the_loss_leaves_the_rewards_alone(assert_close):
    in_loss = params(kl_in="loss", kl_estimator="k2", missing_end_penalty=0.0)
    rewards, _ = compute_rewards(rollout(), in_loss, kl_coef=0.1)
    assert_close(rewards, [[0, 0, 4, 0], [0, 0, 0, -3]], rtol=0, atol=0)


def test_s24_advantages_are_clipped_after_whitening(assert_close):
    rewards, _ = compute_rewards(rollout(), params(), kl_coef=0.1)
    whole = build_batch(rollout(), rewards, params()).advantages
    clipped = build_batch(rollout(), rewards, params(advantage_clip=0.8))
    assert whole.max() > 0.8
    assert whole.min() < -0.8
    expected = whole.minimum(torch.tensor(0.8)).maximum(torch.tensor(-0.8))
    assert_close(clipped.advantages, expected, rtol=0, atol=0)
    assert_close(clipped.returns, build_batch(rollout(), rewards, params()).returns, rtol=0, atol=0)


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_s24_whitening_is_the_same_however_the_rollout_is_cut(assert_close, parts):
    """The reference adds up counts, sums and squares of shards, as several processes would."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(6) < torch.randint(1, 7, (8, 1), generator=generator)
    values = torch.randn(8, 6, generator=generator) * 3 + 5
    order = torch.randperm(8, generator=generator)
    shards = [(values[rows].double(), mask[rows]) for rows in order.split(8 // parts)]
    count = sum(int(m.sum()) for _, m in shards)
    mean = sum(v[m].sum() for v, m in shards) / count
    square = sum((v[m] - mean).square().sum() for v, m in shards) / count
    whole = whiten(values, mask)
    for rows, (shard, shard_mask) in zip(order.split(8 // parts), shards, strict=True):
        expected = torch.where(shard_mask, (shard - mean) / square.sqrt(), 0.0)
        assert_close(whole[rows], expected, rtol=0, atol=5e-6)
    assert_close(whiten(values[order], mask[order]), whole[order], rtol=0, atol=5e-6)
    alone = torch.cat([whiten(v.float(), m) for v, m in shards])
    assert (alone - whole[order]).abs().max() > 1e-3


def test_s24_the_micro_batches_that_were_scored_change_no_advantage(assert_close):
    found = []
    for size in (8, 3):
        settings = params(**ONE_STEP, micro_batch_size=size)
        (result,) = run(fresh(settings, reference_seed=1), settings)
        rewards, _ = compute_rewards(result.rollout, settings, kl_coef=0.05)
        found.append(build_batch(result.rollout, rewards, settings).advantages)
    assert_close(found[1], found[0], rtol=0, atol=1e-4)
