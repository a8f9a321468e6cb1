"""The PPO round: its first step, its update, prompts, seeds and resuming."""

import copy
import itertools

import pytest
import torch

from rlhf.batches import PPOBatch
from rlhf.logits import response_logits
from rlhf.logprobs import token_logprobs
from rlhf.params.kl import AdaptiveKLParams
from rlhf.params.optimiser import OptimiserParams
from rlhf.params.sampling import SamplingParams
from rlhf.ppo import Iteration, build_batch, compute_rewards, train
from rlhf.seeding import Seeds
from rlhf.self_checks import fingerprint
from tests.ppo_world import (
    ONE_STEP,
    PLAIN,
    assert_same_weights,
    fresh,
    metrics_of,
    params,
    policy,
    run,
)
from tests.tiny import COMPUTE, EOS, PAD, PROMPTS, TOKENS

# --- the first step ----------------------------------------------------------------------------


def test_s26_before_the_first_step_the_ratio_is_1_and_the_policy_loss_0(assert_close):
    settings = params(**ONE_STEP)
    (metrics,) = metrics_of(run(fresh(settings, reference_seed=1), settings))
    assert_close(metrics.ratio, 1.0, rtol=0, atol=1e-6)
    assert_close(metrics.approx_kl, 0.0, rtol=0, atol=1e-9)
    assert metrics.clip_fraction == 0.0
    assert_close(metrics.policy_loss, 0.0, rtol=0, atol=1e-5)
    assert metrics.grad_norm > 1e-3


def test_s35_the_metrics_of_an_iteration_are_those_of_its_rollout(assert_close):
    settings = params(iterations=1)
    (result,) = run(fresh(settings, reference_seed=1), settings)
    metrics, found = result.metrics, result.rollout
    rows = list(zip(found.logprobs - found.ref_logprobs, found.response_mask, strict=True))
    per_answer = [gap[mask].sum().item() for gap, mask in rows]
    assert_close(metrics.kl, sum(per_answer) / 8, rtol=1e-4, atol=1e-6)
    assert_close(metrics.score, found.scores.mean(), rtol=1e-6, atol=0)
    lengths = [int(mask.sum()) for _, mask in rows]
    assert len(set(lengths)) > 1
    assert (metrics.length, metrics.tokens) == (sum(lengths) / 8, sum(lengths))
    assert metrics.finished == found.ended.float().mean().item() < 1
    scores = found.scores - 1.0 * ~found.ended
    expected = scores.mean().item() - 0.05 * sum(per_answer) / 8
    assert_close(metrics.reward, expected, rtol=1e-4, atol=1e-5)


def test_s35_the_explained_variance_is_the_share_of_the_returns_that_the_values_explain(
    assert_close,
):
    settings = params(iterations=3, kl_coef=0.0, missing_end_penalty=0.0, lam=1.0)
    for one in run(fresh(settings), settings):
        mask, values = one.rollout.response_mask, one.rollout.values.double()
        # Undiscounted, without a KL: every token's return is the score.
        returns = one.rollout.scores.double()[:, None].expand_as(values)[mask]
        left = (returns - values[mask]).var(unbiased=False) / returns.var(unbiased=False)
        assert_close(one.metrics.explained_variance, 1 - left, rtol=1e-4, atol=1e-6)
    assert values[mask].var() > 0


@torch.no_grad()
def test_s31_entropy_is_that_of_the_sampling_temperature_over_real_tokens(assert_close):
    """Peer defects 3 and 8: the padding's included, at another temperature than the logprobs."""
    settings = params(**ONE_STEP, sampling=SamplingParams(max_new_tokens=4, temperature=0.6))
    with torch.enable_grad():
        ((result),) = run(fresh(settings), settings)
    found = result.rollout
    batch = (found.prompt_ids, found.prompt_mask, found.response_ids, found.response_mask)
    log_p = (response_logits(policy(), *batch) / 0.6).log_softmax(-1)[found.response_mask]
    expected = -(log_p.exp() * log_p).sum(-1).mean()
    assert_close(result.metrics.entropy, expected, rtol=1e-4, atol=0)


# --- one update --------------------------------------------------------------------------------


@pytest.mark.parametrize("micro", [1, 3])
@pytest.mark.parametrize("value_model", ["shared", "separate"])
def test_s32_the_micro_batch_size_changes_no_gradient(assert_close, micro, value_model):
    """Answers have different lengths, so a mean of the micro-batches' means would differ."""
    weights, metrics = [], []
    for size in (99, micro):
        settings = params(
            **ONE_STEP,
            micro_batch_size=size,
            value_model=value_model,
            entropy_coef=0.1,
            kl_in="loss",
            kl_estimator="k2",
            value_huber_delta=0.5,
            optimiser=PLAIN,
            value_optimiser=PLAIN,
        )
        training = fresh(settings, reference_seed=1)
        (result,) = run(training, settings)
        assert len(set(result.rollout.response_mask.sum(dim=1).tolist())) > 1
        metrics.append(result.metrics)
        weights.append(training.models.actor.state_dict())
    for name, weight in weights[0].items():
        assert_close(weights[1][name], weight, rtol=0, atol=1e-6)
    for name in ("entropy", "kl_loss", "value_loss", "grad_norm", "value_grad_norm"):
        assert_close(getattr(metrics[1], name), getattr(metrics[0], name), rtol=1e-4, atol=1e-6)


def test_s33_every_response_is_in_one_minibatch_of_each_pass_in_a_new_seeded_order(monkeypatch):
    """Peer defect 4: the permutation must not come from the global generator."""
    chosen: list[list[int]] = []
    select = PPOBatch.select

    def watched(batch: PPOBatch, rows: torch.Tensor) -> PPOBatch:
        if len(batch) == 8:  # the whole rollout
            chosen.append(rows.tolist())
        return select(batch, rows)

    monkeypatch.setattr(PPOBatch, "select", watched)
    settings = params(epochs=3)

    def passes(global_seed: int) -> list[list[int]]:
        chosen.clear()
        torch.manual_seed(global_seed)
        run(fresh(settings), settings)
        assert [len(rows) for rows in chosen] == [4] * 12
        return [first + second for first, second in zip(chosen[::2], chosen[1::2], strict=True)]

    found = passes(1)
    assert all(sorted(rows) == list(range(8)) for rows in found)
    assert len({tuple(rows) for rows in found}) == 6
    assert passes(2) == found


def test_s36_an_update_that_moves_too_far_skips_its_remaining_passes():
    far, near = params(target_approx_kl=1e-9), params(target_approx_kl=1e9)
    for settings, expected in ((far, (2, 1)), (near, (4, 0))):
        found = metrics_of(run(fresh(settings), settings))
        assert [(m.optimiser_steps, m.skipped_passes) for m in found] == [expected] * 2


def test_s36_a_pass_has_moved_as_far_as_the_mean_of_its_own_minibatches(monkeypatch):
    """Two of 0.075 nats a token, with a step of 0.1 or more in each; the third is of 0.105."""
    moved = iter([0.0, 0.15, 0.05, 0.1, 0.15, 0.06])
    monkeypatch.setattr(
        "rlhf.ppo_update._optimise",
        lambda *_: {"ratio": 1.0, "clip_fraction": 0.0, "approx_kl": next(moved)},
    )
    settings = params(iterations=1, epochs=5, minibatches=2, target_approx_kl=0.1)
    (found,) = metrics_of(run(fresh(settings), settings))
    assert (found.optimiser_steps, found.skipped_passes) == (6, 2)


def test_s31_the_entropy_bonus_raises_the_entropy():
    runs = []
    for coef in (0.0, 5.0):
        settings = params(iterations=4, entropy_coef=coef)
        runs.append([m.entropy for m in metrics_of(run(fresh(settings), settings))])
    plain, raised = runs
    assert raised[-1] > raised[0] + 0.05
    assert raised[-1] > plain[-1] + 0.05


# --- prompts -----------------------------------------------------------------------------------


def prompt_rows(result: list[Iteration]) -> list[int]:
    rows = [row for one in result for row in one.rollout.prompt_ids[:, -1].tolist()]
    return [token - 2 for token in rows]


def test_every_prompt_is_used_once_before_any_is_used_again():
    prompts = [[9, token] for token in range(2, 8)]
    settings = params(iterations=3, rollout_size=4)
    rows = prompt_rows(run(fresh(settings), settings, prompts=prompts))
    assert sorted(rows[:6]) == sorted(rows[6:]) == list(range(6))
    assert rows[:6] != rows[6:]


def test_fewer_prompts_than_a_rollout_are_used_again_within_it():
    prompts = [[9, token] for token in range(2, 5)]
    settings = params(iterations=1)
    rows = prompt_rows(run(fresh(settings), settings, prompts=prompts))
    assert sorted(rows[:3]) == sorted(rows[3:6]) == [0, 1, 2]
    assert len(set(rows[6:])) == 2


def test_a_prompt_that_comes_again_is_answered_with_other_draws():
    """By a policy that has not moved: its warm-up takes a billion steps."""
    slow = OptimiserParams(lr=1e-9, warmup_steps=10**9)
    settings = params(iterations=3, optimiser=slow, value_optimiser=slow)
    prompts = [[9, token] for token in range(2, 10)]
    answers: list[dict[int, tuple[int, ...]]] = []
    for one in run(fresh(settings), settings, prompts=prompts):
        rows = zip(one.rollout.prompt_ids[:, -1].tolist(), one.rollout.response_ids, strict=True)
        answers.append({token: tuple(ids.tolist()) for token, ids in rows})
    assert [len(one) for one in answers] == [8, 8, 8]
    for one, other in itertools.combinations(answers, 2):
        assert sum(one[token] != other[token] for token in one) >= 6


# --- seeds and resuming ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value_model", [pytest.param("shared", marks=pytest.mark.long), "separate"]
)
def test_s55_a_round_resumes_from_its_state_as_if_never_stopped(value_model):
    """Peer defects 7 and 11: the KL controller and the random streams come back too."""
    settings = params(
        iterations=4,
        value_model=value_model,
        kl_adaptive=AdaptiveKLParams(target=1.0, horizon=20),
        optimiser=OptimiserParams(name="muon", warmup_steps=6),
    )
    whole, first, second = fresh(settings), fresh(settings), fresh(settings, seed=5)
    expected = metrics_of(run(whole, settings))
    found = metrics_of(run(first, settings, stop=2))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    torch.manual_seed(99)
    found += metrics_of(run(second, settings))
    assert found == expected
    assert second.iteration == 4
    assert_same_weights(second.models.actor, whole.models.actor)


def test_s57_the_same_seed_gives_the_same_metrics_and_another_seed_others():
    settings = params()
    torch.manual_seed(1)
    first = metrics_of(run(fresh(settings), settings))
    torch.manual_seed(2)
    assert metrics_of(run(fresh(settings), settings)) == first
    assert metrics_of(run(fresh(settings), settings, seed=1)) != first


# --- what the losses are made of ---------------------------------------------------------------


@pytest.mark.parametrize("delta", [None, 0.5])
def test_s30_the_value_loss_is_squared_or_hubers(assert_close, delta):
    """Values start at 0, so the errors are the returns."""
    settings = params(**ONE_STEP, value_huber_delta=delta)
    (result,) = run(fresh(settings), settings)
    rewards, _ = compute_rewards(result.rollout, settings, kl_coef=0.05)
    batch = build_batch(result.rollout, rewards, settings)
    errors = batch.returns[batch.response_mask].abs().double()
    assert errors.max() > 0.5
    expected = errors.square() / 2
    if delta is not None:
        expected = torch.where(errors > delta, delta * (errors - delta / 2), expected)
    assert_close(result.metrics.value_loss, expected.mean(), rtol=1e-5, atol=0)


def test_s27_old_logprobs_are_bit_for_bit_those_of_the_training_forward_pass():
    """Decoding with a cache rounds differently, so its log-probabilities would not do."""
    settings = params(**ONE_STEP)
    (result,) = run(fresh(settings), settings)
    found = result.rollout
    batch = (found.prompt_ids, found.prompt_mask, found.response_ids, found.response_mask)
    logits = fresh(settings).models.actor(*batch).logits
    again = token_logprobs(logits, found.response_ids, temperature=settings.sampling.temperature)
    mask = found.response_mask
    assert torch.equal(again[mask], found.logprobs[mask])


def test_s01_padding_that_is_the_end_token_changes_no_bit():
    """Nor does padding with any other id: no mask is made from ids."""
    settings = params(iterations=3, sampling=SamplingParams(max_new_tokens=8))
    found = []
    for pad in (PAD, EOS, 9):
        training = fresh(settings)
        steps = train(training, PROMPTS, settings, TOKENS._replace(pad=pad), compute=COMPUTE,
                      seeds=Seeds(0))  # fmt: skip
        result = list(steps)
        ended = torch.cat([one.rollout.ended for one in result])
        found.append((metrics_of(result), fingerprint(training.models.actor)))
    assert 0 < ended.sum() < len(ended)
    assert found[0] == found[1] == found[2]
