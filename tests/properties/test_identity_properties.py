"""Identities of the algorithms that hold for all inputs."""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import assume, given

from preferences.grouped_shares import grouped_share
from preferences.statistics import share
from rlhf.advantages import explained_variance, gae
from rlhf.grouped_intervals import grouped_proportion
from rlhf.intervals import hits_interval, mean_interval, proportion_interval, win_rate
from rlhf.kl import KLController, approx_kl, full_kl, kl_estimate
from rlhf.logprobs import token_logprobs, token_logprobs_and_entropy
from rlhf.masked import masked_mean, masked_variance, rescale, sequence_sums, whiten
from rlhf.params.kl import AdaptiveKLParams
from rlhf.ppo_losses import policy_loss, value_loss
from rlhf.preference_loss import preference_loss
from rlhf.reward_shaping import shape_rewards
from tests.properties.strategies import batches, numbers, seeds

fractions = st.floats(0.0, 1.0)
coefficients = st.floats(0.0, 2.0)
temperatures = st.floats(0.3, 3.0)
logits = seeds.map(lambda seed: numbers(seed, (2, 3, 4)))
scores = seeds.map(lambda seed: numbers(seed, (4,)))


@given(batch=batches(1))
def test_s24_whitened_values_have_mean_zero_and_variance_one(assert_close, batch):
    mask, (values,) = batch
    assume(values[mask].std(unbiased=False) > 1e-3)
    whitened = whiten(values, mask)
    assert_close(masked_mean(whitened, mask), 0.0, rtol=0.0, atol=1e-9)
    assert_close(masked_variance(whitened, mask), 1.0, rtol=1e-9, atol=0.0)


@given(batch=batches(1))
def test_s24_whitening_twice_is_whitening_once(assert_close, batch):
    mask, (values,) = batch
    once = whiten(values, mask)
    assert_close(whiten(once, mask), once, rtol=1e-9, atol=1e-9)


@given(batch=batches(1), scale=st.floats(0.1, 50.0), shift=st.floats(-20.0, 20.0))
def test_s24_whitening_forgets_scale_and_shift(assert_close, batch, scale, shift):
    mask, (values,) = batch
    assume(values[mask].std(unbiased=False) > 1e-3)
    expected = whiten(values, mask)
    assert_close(whiten(scale * values + shift, mask), expected, rtol=1e-7, atol=1e-7)


@given(batch=batches(1))
def test_s17_rescaling_keeps_the_mean(assert_close, batch):
    mask, (values,) = batch
    found = masked_mean(rescale(values, mask), mask)
    assert_close(found, values[mask].mean(), rtol=1e-9, atol=1e-9)


@given(batch=batches(2), gamma=fractions)
def test_s21_lambda_one_returns_do_not_depend_on_the_values(assert_close, batch, gamma):
    mask, (rewards, values) = batch
    found = gae(rewards, values, mask, gamma=gamma, lam=1.0).returns
    without = gae(rewards, torch.zeros_like(values), mask, gamma=gamma, lam=1.0).returns
    assert_close(found, without, rtol=1e-9, atol=1e-9)


@given(batch=batches(2, holes=False), gamma=fractions)
def test_s21_lambda_zero_advantages_are_the_td_errors(assert_close, batch, gamma):
    mask, (rewards, values) = batch
    found = gae(rewards, values, mask, gamma=gamma, lam=0.0).advantages
    real, mask = np.where(mask, values, 0.0), mask.numpy()
    following = np.concatenate([real[:, 1:], np.zeros((len(real), 1))], axis=1)
    expected = np.where(mask, rewards.numpy() + gamma * following - values.numpy(), 0.0)
    assert_close(found, expected, rtol=1e-9, atol=1e-9)


@given(batch=batches(2, holes=False), gamma=fractions, lam=fractions)
def test_s20_gae_satisfies_its_recursion_at_every_token(assert_close, batch, gamma, lam):
    mask, (rewards, values) = batch
    advantages = gae(rewards, values, mask, gamma=gamma, lam=lam).advantages.numpy()
    for row, steps in enumerate(mask.sum(dim=1).tolist()):
        for t in range(steps):
            last = t == steps - 1
            next_value = 0.0 if last else values[row, t + 1].item()
            next_advantage = 0.0 if last else advantages[row, t + 1]
            delta = rewards[row, t].item() + gamma * next_value - values[row, t].item()
            expected = delta + gamma * lam * next_advantage
            assert_close(advantages[row, t], expected, rtol=1e-9, atol=1e-9)


@given(batch=batches(4), gamma=fractions, lam=fractions, factor=st.floats(-3.0, 3.0))
def test_s20_gae_is_linear_in_rewards_and_values(assert_close, batch, gamma, lam, factor):
    mask, (rewards, values, more_rewards, more_values) = batch
    options = {"gamma": gamma, "lam": lam}
    one = gae(rewards, values, mask, **options)
    two = gae(more_rewards, more_values, mask, **options)
    both = gae(rewards + factor * more_rewards, values + factor * more_values, mask, **options)
    for name in ("advantages", "returns"):
        expected = getattr(one, name) + factor * getattr(two, name)
        assert_close(getattr(both, name), expected, rtol=1e-9, atol=1e-9)


@given(batch=batches(2), gamma=fractions, lam=fractions)
def test_s22_gae_of_a_row_with_holes_is_gae_of_the_row_without(assert_close, batch, gamma, lam):
    mask, (rewards, values) = batch
    found = gae(rewards, values, mask, gamma=gamma, lam=lam).advantages
    for row, real in enumerate(mask):
        short = gae(
            rewards[row, real].unsqueeze(0),
            values[row, real].unsqueeze(0),
            torch.ones(1, int(real.sum()), dtype=torch.bool),
            gamma=gamma,
            lam=lam,
        ).advantages[0]
        assert_close(found[row, real], short, rtol=1e-12, atol=1e-12)


@given(batch=batches(1))
def test_s20_exact_values_leave_no_advantage(assert_close, batch):
    mask, (rewards,) = batch
    to_go = gae(rewards, torch.zeros_like(rewards), mask, gamma=0.9, lam=1.0).returns
    found = gae(rewards, to_go, mask, gamma=0.9, lam=0.7).advantages
    assert_close(found, torch.zeros_like(rewards), rtol=0.0, atol=1e-9)


@given(batch=batches(2))
def test_s35_explained_variance_ignores_a_constant_error_and_is_at_most_one(assert_close, batch):
    mask, (values, returns) = batch
    found = explained_variance(values, returns, mask)
    assert found <= 1
    assert_close(explained_variance(values + 3, returns, mask), found, rtol=1e-7, atol=1e-7)


@given(batch=batches(2))
def test_s12_k2_and_k3_are_never_negative_and_k1_changes_sign_with_its_arguments(batch):
    _, (policy, reference) = batch
    assert kl_estimate(policy, reference, estimator="k2").min() >= 0
    assert kl_estimate(policy, reference, estimator="k3").min() >= 0
    forward = kl_estimate(policy, reference, estimator="k1")
    assert torch.equal(forward, -kl_estimate(reference, policy, estimator="k1"))


@given(batch=batches(2))
def test_s35_approx_kl_is_never_negative_and_is_k3_the_other_way_round(assert_close, batch):
    mask, (new, old) = batch
    found = approx_kl(new, old, mask)
    assert found >= 0
    k3 = kl_estimate(old, new, estimator="k3")
    assert_close(found, masked_mean(k3, mask), rtol=1e-9, atol=1e-12)


@given(policy=logits, reference=logits, temperature=temperatures)
def test_s12_the_policy_mean_of_k1_and_k3_is_the_full_kl(
    assert_close, policy, reference, temperature
):
    """Over all tokens, weighted by their probability: unbiased exactly, not only on average."""
    exact = full_kl(policy, reference, temperature=temperature)
    assert exact.min() >= -1e-12
    for estimator in ("k1", "k3"):
        mean = torch.zeros_like(exact)
        for token in range(policy.shape[-1]):
            ids = torch.full(exact.shape, token)
            logprobs = token_logprobs(policy, ids, temperature=temperature)
            ref_logprobs = token_logprobs(reference, ids, temperature=temperature)
            mean += logprobs.exp() * kl_estimate(logprobs, ref_logprobs, estimator=estimator)
        assert_close(mean, exact, rtol=1e-9, atol=1e-9)


@given(policy=logits, temperature=temperatures, shift=st.floats(-50.0, 50.0))
def test_s05_probabilities_sum_to_one_and_forget_a_shift(assert_close, policy, temperature, shift):
    total = torch.zeros(2, 3, dtype=torch.float64)
    for token in range(4):
        ids = torch.full((2, 3), token)
        logprobs = token_logprobs(policy, ids, temperature=temperature)
        shifted = token_logprobs(policy + shift, ids, temperature=temperature)
        assert_close(shifted, logprobs, rtol=1e-9, atol=1e-9)
        total += logprobs.exp()
    assert_close(total, torch.ones(2, 3), rtol=1e-9, atol=0.0)


@given(policy=logits, low=temperatures, high=temperatures)
def test_s31_entropy_is_bounded_and_grows_with_temperature(policy, low, high):
    assume(low <= high)
    ids = torch.zeros(policy.shape[:2], dtype=torch.long)
    cold, warm = (
        token_logprobs_and_entropy(policy, ids, temperature=t).entropy for t in (low, high)
    )
    assert cold.min() >= 0
    assert warm.max() <= math.log(4) + 1e-12
    assert (warm - cold).min() >= -1e-9


@given(batch=batches(2), kl_coef=coefficients, estimator=st.sampled_from(["k1", "k2", "k3"]))
def test_s14_rewards_of_a_row_sum_to_score_minus_weighted_kl(
    assert_close, batch, kl_coef, estimator
):
    mask, (logprobs, ref_logprobs) = batch
    row_scores = torch.arange(1.0, len(mask) + 1, dtype=torch.float64)
    rewards = shape_rewards(
        row_scores, logprobs, ref_logprobs, mask, kl_coef=kl_coef, estimator=estimator
    )
    kl = sequence_sums(kl_estimate(logprobs, ref_logprobs, estimator=estimator), mask)
    assert_close(sequence_sums(rewards, mask), row_scores - kl_coef * kl, rtol=1e-9, atol=1e-9)


@given(batch=batches(3), clip_range=st.floats(0.01, 0.9))
def test_s28_the_clipped_loss_is_never_below_the_unclipped_one(batch, clip_range):
    """The surrogate is a pessimistic bound (Schulman et al. 2017, section 3)."""
    mask, (new, old, advantages) = batch
    clipped = policy_loss(new, old, advantages, mask, clip_range=clip_range).loss
    unclipped = -masked_mean((new - old).exp() * advantages, mask)
    assert clipped >= unclipped - 1e-9


@given(batch=batches(3), dual_clip=st.floats(1.1, 5.0))
def test_s29_the_dual_clip_only_lowers_the_loss_and_only_for_negative_advantages(
    assert_close, batch, dual_clip
):
    mask, (new, old, advantages) = batch
    plain = policy_loss(new, old, advantages, mask, clip_range=0.2).loss
    dual = policy_loss(new, old, advantages, mask, clip_range=0.2, dual_clip=dual_clip).loss
    assert dual <= plain + 1e-12
    positive = policy_loss(new, old, advantages.abs(), mask, clip_range=0.2, dual_clip=dual_clip)
    expected = policy_loss(new, old, advantages.abs(), mask, clip_range=0.2)
    assert_close(positive.loss, expected.loss, rtol=1e-12, atol=0.0)


@given(batch=batches(3), clip_range=st.floats(0.01, 2.0))
def test_s30_the_clipped_value_loss_is_never_below_the_unclipped_one(batch, clip_range):
    mask, (values, old_values, returns) = batch
    clipped = value_loss(values, old_values, returns, mask, clip_range=clip_range)
    unclipped = value_loss(values, old_values, returns, mask, clip_range=None)
    assert clipped.loss >= unclipped.loss - 1e-12
    assert 0 <= clipped.clip_fraction <= 1


@given(chosen=scores, rejected=scores, shift=st.floats(-100.0, 100.0))
def test_s40_the_preference_loss_forgets_a_common_shift(assert_close, chosen, rejected, shift):
    found = preference_loss(chosen + shift, rejected + shift).loss
    assert_close(found, preference_loss(chosen, rejected).loss, rtol=1e-9, atol=1e-9)


@given(chosen=scores, rejected=scores)
def test_s40_swapping_every_pair_adds_the_margin_to_the_loss(assert_close, chosen, rejected):
    """log sigma(x) - log sigma(-x) = x."""
    forward, backward = preference_loss(chosen, rejected), preference_loss(rejected, chosen)
    assert_close(backward.loss - forward.loss, forward.margin, rtol=1e-9, atol=1e-9)
    assert_close(forward.accuracy + backward.accuracy, 1.0, rtol=1e-9, atol=0.0)


@given(chosen=scores, rejected=scores, label=fractions)
def test_s43_a_soft_label_mixes_the_two_orders(assert_close, chosen, rejected, label):
    soft = preference_loss(chosen, rejected, soft_labels=torch.full_like(chosen, label)).loss
    forward, backward = preference_loss(chosen, rejected), preference_loss(rejected, chosen)
    expected = label * forward.loss + (1 - label) * backward.loss
    assert_close(soft, expected, rtol=1e-9, atol=1e-9)


@given(
    target=st.floats(0.1, 50.0),
    horizon=st.integers(1, 10_000),
    steps=st.lists(st.tuples(st.floats(-100.0, 1000.0), st.integers(1, 4096)), max_size=20),
)
def test_s18_the_coefficient_stays_positive_and_moves_towards_the_target(target, horizon, steps):
    params = AdaptiveKLParams(target=target, horizon=horizon)
    controller = KLController(coef=0.2, adaptive=params)
    for kl, episodes in steps:
        before = controller.coef
        controller.update(kl, episodes)
        assert controller.coef > 0
        assert (controller.coef - before) * (kl - target) >= 0
        assert abs(controller.coef / before - 1) <= 0.2 * episodes / horizon + 1e-12


@given(values=st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=40))
def test_an_interval_of_a_mean_lies_around_it(values):
    found = mean_interval(values)
    assert found.low <= found.mean <= found.high
    assert min(values) - 1e-9 <= found.mean <= max(values) + 1e-9


@given(n=st.integers(1, 2000), share=fractions)
def test_wilson_solves_its_quadratic(assert_close, n, share):
    """Its ends are the proportions p at which (p_hat - p)^2 = z^2 p (1 - p) / n."""
    found = proportion_interval(share * n, n)
    assert 0 <= found.low <= found.mean + 1e-12
    assert found.mean - 1e-12 <= found.high <= 1
    for end in (found.low, found.high):
        expected = 1.959964**2 * end * (1 - end) / n
        assert_close((found.mean - end) ** 2, expected, rtol=1e-4, atol=1e-9)


@given(n=st.integers(1, 5000), share_of_n=fractions)
def test_the_wilson_intervals_of_rlhf_and_preferences_agree(n, share_of_n):
    """Why there are two is in docs/decisions/0008-two-wilson-intervals.md."""
    hits = int(share_of_n * n)
    one, other = proportion_interval(float(hits), n), share(hits, n)
    assert other is not None
    assert (one.mean, one.n) == (other.mean, other.n)
    assert max(abs(one.low - other.low), abs(one.high - other.high)) <= 1e-8


@given(cases=st.lists(st.tuples(st.sampled_from([0.0, 1.0]), st.integers(0, 9)), min_size=1))
def test_the_grouped_intervals_of_rlhf_and_preferences_agree_without_ties(cases):
    hits, groups = ([case[side] for case in cases] for side in (0, 1))
    one, other = grouped_proportion(hits, groups), grouped_share(hits, groups)
    assert other is not None
    assert (one.mean, one.n) == (pytest.approx(other.mean, abs=1e-12), other.n)
    assert max(abs(one.low - other.low), abs(one.high - other.high)) <= 2e-5


@given(hits=st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=60))
def test_ties_make_no_interval_wider(hits):
    """A tie's probability takes from the variance at each p, so Wilson's ends lie further out."""
    found, wilson = hits_interval(hits), proportion_interval(sum(hits), len(hits))
    assert wilson.low - 1e-12 <= found.low <= found.mean + 1e-12
    assert found.mean - 1e-12 <= found.high <= wilson.high + 1e-12


@given(pairs=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_win_rates_of_the_two_sides_add_up_to_one(assert_close, pairs):
    ours, theirs = ([float(score) for score in side] for side in zip(*pairs, strict=True))
    total = win_rate(ours, theirs).mean + win_rate(theirs, ours).mean
    assert_close(total, 1.0, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("function", [whiten, rescale])
@given(batch=batches(1))
def test_standardising_is_the_same_in_both_precisions(assert_close, function, batch):
    mask, (values,) = batch
    single = function(values.float(), mask)
    assert_close(single, function(values, mask), rtol=1e-4, atol=1e-4)
