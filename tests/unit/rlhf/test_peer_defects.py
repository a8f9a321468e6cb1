"""The eleven defects found in today's peers, each as a test that their code would fail.

The numbers are those of the list in docs/correctness.md. Expected values are worked out by hand.
"""

import math

import pytest
import torch

from rlhf.actor_critic import build_actor_critic, load_value_function, save_value_function
from rlhf.advantages import gae
from rlhf.kl import KLController, kl_estimate
from rlhf.masked import masked_mean, whiten
from rlhf.params.kl import AdaptiveKLParams
from rlhf.ppo_losses import entropy_bonus, policy_loss
from rlhf.reward_shaping import shape_rewards
from rlhf.seeding import Seeds
from tests import tiny
from tests.ppo_world import fresh, metrics_of, params, run
from tests.tiny import EOS, PAD

ENDED = torch.tensor([[True, True, True, False]])
CUT = torch.ones(1, 4, dtype=torch.bool)
NOTHING = torch.zeros(1, 4)


def test_defect_01_the_end_token_is_in_the_mask_and_the_score_is_read_there(assert_close):
    """TRL with pad = end: the mask loses the end token, the score moves one token forward."""
    scorer = tiny.reward_model()
    ids, mask = torch.tensor([[5, 6, EOS, PAD]]), ENDED
    whole = torch.tensor([[5, 6, EOS]])
    assert_close(scorer(ids, mask), scorer(whole, torch.ones_like(whole).bool()), rtol=0, atol=1e-5)
    assert (scorer(ids, mask) - scorer(whole[:, :2], ENDED[:, :2])).abs() > 1e-3
    padded = torch.tensor([[5, 6, EOS, EOS]])
    assert torch.equal(scorer(padded, mask), scorer(ids, mask))


@pytest.mark.parametrize(("mask", "last"), [(ENDED, 2), (CUT, 3)], ids=["ended", "cut"])
def test_defect_02_the_score_stands_on_the_last_real_token_ended_or_cut(assert_close, mask, last):
    """TRL adds it one slot behind the end token, but on the last token of a cut answer."""
    rewards = shape_rewards(torch.tensor([3.0]), NOTHING, NOTHING, mask, kl_coef=0.1)
    expected = torch.zeros(1, 4)
    expected[0, last] = 3.0
    assert_close(rewards, expected, rtol=0, atol=0)
    values = torch.tensor([[1.0, 1.0, 1.0, 50.0]]).where(mask, torch.tensor(99.0))
    advantage = gae(rewards, values, mask, gamma=1.0, lam=0.5).advantages[0, last]
    assert_close(advantage, 3.0 - values[0, last], rtol=0, atol=1e-6)


def test_defect_03_padding_enters_no_figure(assert_close):
    """TRL writes 1.0 into the padding's log-probabilities: an entropy of 1.5 is logged as -1.5."""
    entropy = torch.tensor([[1.5, 1.5, 1.5, -9.0]])
    assert_close(entropy_bonus(entropy, ENDED), 1.5, rtol=0, atol=1e-6)
    logprobs = torch.tensor([[-1.0, -1.0, -1.0, 1.0]])
    old = torch.tensor([[-1.1, -1.1, -1.1, 5.0]])
    found = policy_loss(logprobs, old, torch.ones(1, 4), ENDED, clip_range=0.2)
    assert_close(found.approx_kl, math.exp(0.1) - 1 - 0.1, rtol=1e-3, atol=0)


def test_defect_04_minibatches_do_not_come_from_the_global_generator():
    """TRL draws the permutation from numpy's unseeded generator."""
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        found.append(torch.randperm(64, generator=Seeds(0).torch("ppo", "minibatches", 0, 0)))
    assert torch.equal(*found)
    other = torch.randperm(64, generator=Seeds(0).torch("ppo", "minibatches", 0, 1))
    assert not torch.equal(found[0], other)


@torch.no_grad()
def test_defect_05_the_critic_is_saved(tmp_path):
    """TRL throws the value model away when training ends."""
    actor = build_actor_critic(tiny.llama(), reward_model=tiny.reward_model(), separate=True)
    save_value_function(actor, tmp_path)
    again = build_actor_critic(tiny.llama(), reward_model=None, separate=True)
    load_value_function(again, tmp_path)
    for name, weight in actor.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name


def test_defect_06_whitened_advantages_are_centred(assert_close):
    """torchtune adds the mean back: 5.031 in, 5.031 out."""
    values = torch.tensor([[4.031, 5.031, 6.031, 99.0]])
    white = whiten(values, ENDED)
    assert_close(masked_mean(white, ENDED), 0.0, rtol=0, atol=1e-5)
    assert_close(white, [[-math.sqrt(1.5), 0.0, math.sqrt(1.5), 0.0]], rtol=0, atol=1e-5)


def test_defect_07_the_kl_target_counts_responses_and_the_controller_is_in_the_state():
    """verl's default target of 0.1 is a mean per token; and a resume starts the controller anew."""
    plain = params(iterations=1, kl_coef=0.2)
    (metrics,) = metrics_of(run(fresh(plain, reference_seed=1), plain))
    assert metrics.length > 2
    adaptive = AdaptiveKLParams(target=metrics.kl / 1.1, horizon=40)
    settings = params(iterations=1, kl_coef=0.2, kl_adaptive=adaptive)
    training = fresh(settings, reference_seed=1)
    run(training, settings)
    # A tenth above the target, 8 of 40 answers; per token it would lie far below.
    assert training.controller.coef == pytest.approx(0.2 * (1 + 0.1 * 8 / 40), rel=1e-5)
    resumed = fresh(settings, reference_seed=1)
    resumed.load_state_dict(training.state_dict())
    assert resumed.controller.coef == training.controller.coef != 0.2


def test_defect_08_a_cut_response_keeps_its_last_token_and_has_no_end():
    """OpenRLHF writes an end token over it, so that over-long answers look complete."""
    settings = params(iterations=1)
    (result,) = run(fresh(settings), settings)
    rollout = result.rollout
    cut = ~rollout.ended
    assert cut.any()
    ids, mask = rollout.response_ids[cut], rollout.response_mask[cut]
    assert mask.all()
    assert not (ids == EOS).any()


def test_defect_09_prompts_longer_than_a_response_are_kept_whole():
    """LHPD's PyTorch script cuts prompts at the length of a response."""
    settings = params(iterations=1)
    long = list(range(2, 16))
    assert len(long) > settings.sampling.max_new_tokens
    (result,) = run(fresh(settings), settings, prompts=[long])
    assert result.rollout.prompt_ids.tolist() == [long] * 8


def test_defect_10_the_kl_of_a_token_may_be_negative(assert_close):
    """alpaca_farm clamps it at 0, which pays for nothing and charges for everything."""
    logprobs, reference = torch.tensor([[-3.0, -1.0]]), torch.tensor([[-1.0, -3.0]])
    assert_close(kl_estimate(logprobs, reference, estimator="k1"), [[-2.0, 2.0]], rtol=0, atol=1e-6)
    mask = torch.ones(1, 2, dtype=torch.bool)
    rewards = shape_rewards(torch.zeros(1), logprobs, reference, mask, kl_coef=0.5)
    assert_close(rewards, [[1.0, -1.0]], rtol=0, atol=1e-6)


def test_defect_11_a_resumed_round_draws_the_same_random_numbers():
    """NeMo-RL, OpenRLHF and TRL save no random state. Ours has none beyond seed and iteration."""
    settings = params(iterations=2)
    whole, first, second = fresh(settings), fresh(settings), fresh(settings)
    expected = run(whole, settings)[-1]
    run(first, settings, stop=1)
    second.load_state_dict(first.state_dict())
    torch.manual_seed(12345)
    (found,) = run(second, settings)
    assert torch.equal(found.rollout.response_ids, expected.rollout.response_ids)
    assert found.metrics == expected.metrics


def test_the_adaptive_controller_is_one_that_adapts():
    """Defect 8 again: OpenRLHF's cannot be used."""
    controller = KLController(coef=0.1, adaptive=AdaptiveKLParams(target=1.0, horizon=10))
    controller.update(2.0, 10)
    assert controller.coef > 0.1
