"""PPO rounds without a value function, and with several responses to a prompt."""

import copy
import dataclasses

import numpy as np
import pytest
import torch

from rlhf.batches import PPOBatch, Rollout
from rlhf.masked import whiten
from rlhf.params.kl import AdaptiveKLParams
from rlhf.ppo import build_batch, compute_rewards
from rlhf.ppo_guards import Flat, end_of_flat, is_flat
from rlhf.stopping import TrainingStopped
from tests.ppo_world import ONE_STEP, assert_same_weights, fresh, metrics_of, params, run

ALONE = ["rloo", "grpo", "reinforce_pp"]
"""The estimators that need no value function."""
PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12], [4], [3, 2, 13, 14, 15, 5, 6], [9, 9], [12, 3]]


def grouped(advantage: str = "rloo", samples: int = 4, **changes):
    return params(advantage=advantage, samples_per_prompt=samples, **changes)


def prompt_of(rollout: Rollout, row: int) -> tuple[int, ...]:
    return tuple(rollout.prompt_ids[row][rollout.prompt_mask[row]].tolist())


def responses_of(rollout: Rollout) -> dict[tuple[int, ...], list[list[int]]]:
    """Prompt -> its responses, in their order."""
    found: dict[tuple[int, ...], list[list[int]]] = {}
    for row in range(len(rollout)):
        response = rollout.response_ids[row][rollout.response_mask[row]].tolist()
        found.setdefault(prompt_of(rollout, row), []).append(response)
    return found


# --- the rollout -------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [1, 2, 4])
def test_a_rollout_has_as_many_responses_as_ever_and_each_prompts_stand_together(samples):
    settings = grouped("gae", samples, iterations=1)
    (result,) = run(fresh(settings), settings, prompts=PROMPTS)
    prompts = [prompt_of(result.rollout, row) for row in range(8)]
    assert len(set(prompts)) == min(8 // samples, len(PROMPTS))
    for start in range(0, 8, samples):
        assert len(set(prompts[start : start + samples])) == 1


def test_the_responses_to_a_prompt_differ():
    settings = grouped("gae", 8, iterations=1)
    (result,) = run(fresh(settings), settings, prompts=PROMPTS)
    (responses,) = responses_of(result.rollout).values()
    assert len({tuple(response) for response in responses}) > 4


def test_a_response_depends_on_prompt_and_sample_and_not_on_what_else_is_in_the_rollout():
    """The first samples of a prompt are those of a rollout with fewer samples or other prompts."""
    found = []
    for size, samples in ((4, 1), (8, 2), (4, 4), (16, 4)):
        settings = grouped("gae", samples, rollout_size=size, iterations=1)
        (result,) = run(fresh(settings), settings, prompts=PROMPTS)
        found.append(responses_of(result.rollout))
    most = found[-1]
    assert len(most) == 4
    for fewer in found[:-1]:
        assert fewer.keys() <= most.keys()
        for prompt, responses in fewer.items():
            assert responses == most[prompt][: len(responses)]


def test_every_prompt_is_used_once_before_any_is_used_again():
    settings = grouped("gae", 4, iterations=3)
    result = run(fresh(settings), settings, prompts=PROMPTS)
    prompts = [prompt_of(one.rollout, row) for one in result for row in (0, 4)]
    assert sorted(prompts) == sorted(map(tuple, PROMPTS))


# --- from a rollout to its advantages ----------------------------------------------------------


def leave_one_out(rollout: Rollout, sums: np.ndarray) -> list[float]:
    """By the prompts' own ids, wherever their responses stand."""
    prompts = [prompt_of(rollout, row) for row in range(len(rollout))]
    return [
        sums[row] - np.mean([sums[k] for k, p in enumerate(prompts) if p == prompt and k != row])
        for row, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize("micro", [1, 3, 8])
@pytest.mark.parametrize("kl_in", ["reward", "loss"])
def test_s61_the_group_survives_micro_batches_and_minibatches(
    assert_close, monkeypatch, micro, kl_in
):
    """What each minibatch trains on is the leave-one-out advantage of the row's own response."""
    trained: list[PPOBatch] = []
    select = PPOBatch.select

    def watched(batch: PPOBatch, rows: torch.Tensor) -> PPOBatch:
        chosen = select(batch, rows)
        if len(batch) == 8:  # the whole rollout
            trained.append(chosen)
        return chosen

    monkeypatch.setattr(PPOBatch, "select", watched)
    settings = grouped(
        micro_batch_size=micro, kl_in=kl_in, kl_estimator="k2", iterations=1, kl_coef=0.3
    )
    (result,) = run(fresh(settings, reference_seed=1), settings, prompts=PROMPTS)
    rollout = result.rollout
    gaps = torch.where(rollout.response_mask, rollout.logprobs - rollout.ref_logprobs, 0.0).double()
    kl = (gaps.square() / 2).sum(dim=1)
    sums = rollout.scores.double() - 1.0 * ~rollout.ended
    sums = sums - 0.3 * kl if kl_in == "reward" else sums
    assert kl.max() > 0.1
    expected = leave_one_out(rollout, sums.numpy())

    by_tokens = {
        (prompt_of(rollout, row), *rollout.response_ids[row].tolist()): expected[row]
        for row in range(8)
    }
    assert [len(batch) for batch in trained] == [4] * 4
    for batch in trained:
        for row in range(4):
            prompt = tuple(batch.prompt_ids[row][batch.prompt_mask[row]].tolist())
            wanted = by_tokens[(prompt, *batch.response_ids[row].tolist())]
            found = batch.advantages[row][batch.response_mask[row]]
            assert_close(found, torch.full_like(found, wanted), rtol=1e-4, atol=1e-4)


def sampled(settings) -> tuple[Rollout, torch.Tensor]:
    """A rollout with its rewards."""
    (result,) = run(fresh(settings, reference_seed=1), settings, prompts=PROMPTS)
    rewards, _ = compute_rewards(result.rollout, settings, kl_coef=settings.kl_coef)
    return result.rollout, rewards


@pytest.mark.parametrize("advantage", ["rloo", "grpo"])
def test_s24_advantages_within_a_prompt_are_not_whitened(assert_close, advantage):
    settings = grouped(advantage, iterations=1)
    rollout, rewards = sampled(settings)
    found = build_batch(rollout, rewards, settings).advantages
    plain = dataclasses.replace(settings, whiten_advantages=False)
    assert torch.equal(found, build_batch(rollout, rewards, plain).advantages)
    first = found[:, 0].view(-1, 4)
    assert_close(first.sum(dim=1), [0.0, 0.0], rtol=0, atol=1e-5)
    if advantage == "grpo":
        assert_close(first.var(dim=1), [1.0, 1.0], rtol=1e-5, atol=0)


def test_s62_the_division_by_the_deviation_can_be_left_out(assert_close):
    settings = grouped("grpo", grpo_std=False, iterations=1)
    rollout, rewards = sampled(settings)
    found = build_batch(rollout, rewards, settings).advantages
    rloo = build_batch(rollout, rewards, grouped("rloo")).advantages
    assert_close(found, rloo * 3 / 4, rtol=0, atol=1e-6)
    assert (found[:, 0].view(-1, 4).var(dim=1) - 1).abs().min() > 0.01


@pytest.mark.parametrize("samples", [1, 4])
def test_s63_reinforce_pp_whitens_the_returns_from_each_token_on(assert_close, samples):
    """With the KL of every token in the rewards; over the whole rollout, not within a prompt."""
    settings = grouped("reinforce_pp", samples, gamma=0.9, iterations=1, kl_coef=0.3)
    rollout, rewards = sampled(settings)
    batch = build_batch(rollout, rewards, settings)
    mask = rollout.response_mask
    to_go, behind = torch.zeros_like(rewards), torch.zeros(8)
    for column in reversed(range(rewards.shape[1])):
        behind = torch.where(mask[:, column], rewards[:, column] + 0.9 * behind, 0.0)
        to_go[:, column] = behind
    assert_close(batch.advantages, whiten(to_go, mask), rtol=0, atol=1e-5)
    assert_close(batch.advantages[mask].var(unbiased=False), 1.0, rtol=1e-5, atol=0)
    plain = build_batch(rollout, rewards, dataclasses.replace(settings, whiten_advantages=False))
    assert_close(plain.advantages, to_go, rtol=0, atol=1e-5)


def test_gae_takes_several_samples_to_a_prompt_as_it_takes_any_responses():
    """What it makes of a row does not depend on which rows are of the same prompt."""
    settings = grouped("gae", 4, iterations=1)
    rollout, rewards = sampled(settings)
    found = build_batch(rollout, rewards, settings)
    single = build_batch(rollout, rewards, dataclasses.replace(settings, samples_per_prompt=1))
    assert torch.equal(found.advantages, single.advantages)
    assert torch.equal(found.returns, single.returns)


# --- no value function -------------------------------------------------------------------------


@pytest.mark.parametrize("advantage", ALONE)
def test_s64_nothing_of_a_value_function_is_built_trained_kept_or_measured(advantage):
    settings = grouped(advantage, iterations=1)
    training = fresh(settings)
    (metrics,) = metrics_of(run(training, settings, prompts=PROMPTS))
    assert (training.models.actor.value_head, training.models.actor.value_trunk) == (None, None)
    assert training.value_optimiser is None
    state = training.state_dict()
    assert state["value_optimiser"] is None
    assert set(state["actor"]) == {f"lm.{name}" for name in training.models.actor.lm.state_dict()}
    curves = metrics.curves()
    assert [name for name in curves if name.startswith("value/")] == []
    assert {"objective/score", "objective/kl", "policy/loss", "policy/grad_norm"} <= curves.keys()


@pytest.mark.parametrize("advantage", ALONE)
def test_s64_the_weights_in_training_are_the_policys_alone(advantage):
    alone, separate = fresh(grouped(advantage)), fresh(params())
    assert sum(w.numel() for w in alone.models.actor.parameters()) == sum(
        w.numel() for w in alone.models.actor.lm.parameters()
    )
    both = sum(w.numel() for w in separate.models.actor.parameters())
    assert 2 * sum(w.numel() for w in alone.optimiser.weights) < both


@pytest.mark.parametrize(
    ("advantage", "samples"),
    [
        pytest.param("gae", 4, marks=pytest.mark.long),
        pytest.param("rloo", 4, marks=pytest.mark.long),
        ("grpo", 2),
        ("reinforce_pp", 1),
    ],
)
def test_s55_a_round_of_any_estimator_resumes_as_if_never_stopped(advantage, samples):
    settings = grouped(
        advantage, samples, iterations=4, kl_adaptive=AdaptiveKLParams(target=1.0, horizon=20)
    )
    whole, first, second = fresh(settings), fresh(settings), fresh(settings, seed=5)
    expected = metrics_of(run(whole, settings, prompts=PROMPTS))
    found = metrics_of(run(first, settings, prompts=PROMPTS, stop=2))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    torch.manual_seed(99)
    found += metrics_of(run(second, settings, prompts=PROMPTS))
    assert found == expected
    assert_same_weights(second.models.actor, whole.models.actor)


@pytest.mark.parametrize("advantage", ALONE)
def test_s32_the_micro_batch_size_changes_no_gradient_without_values(assert_close, advantage):
    weights = []
    for micro in (8, 3):
        settings = grouped(advantage, micro_batch_size=micro, **ONE_STEP)
        training = fresh(settings, reference_seed=1)
        (metrics,) = metrics_of(run(training, settings, prompts=PROMPTS))
        weights.append(metrics.grad_norm)
    assert weights[0] > 1e-3
    assert_close(weights[1], weights[0], rtol=1e-3, atol=0)


def test_s64_a_kl_in_the_loss_is_the_same_term_whatever_the_estimator(assert_close):
    found = []
    for advantage in ("gae", *ALONE):
        settings = grouped(advantage, kl_in="loss", kl_estimator="k3", **ONE_STEP)
        (metrics,) = metrics_of(run(fresh(settings, reference_seed=1), settings, prompts=PROMPTS))
        found.append(metrics.kl_loss)
    assert found[0] > 1e-3
    assert_close(found, [found[0]] * 4, rtol=1e-6, atol=0)


# --- what stops a round ------------------------------------------------------------------------


def scored(scores: list[float]) -> Rollout:
    """One-token responses with these scores."""
    column = torch.ones(len(scores), 1)
    return Rollout(
        prompt_ids=column.int(), prompt_mask=column.bool(), response_ids=column.int(),
        response_mask=column.bool(), logprobs=-column, sampler_logprobs=-column,
        ref_logprobs=-column, values=0 * column,
        scores=torch.tensor(scores), ended=column[:, 0].bool(),
    )  # fmt: skip


@pytest.mark.parametrize("advantage", ["rloo", "grpo"])
def test_scores_that_differ_between_prompts_only_are_flat_where_responses_are_compared(advantage):
    settings = grouped(advantage, samples=2, flat_rollouts=1)
    by_prompt, within = scored([3.0, 3.0, -1.0, -1.0]), scored([3.0, 3.0, -1.0, -2.0])
    assert is_flat(by_prompt, settings)
    assert not is_flat(within, settings)
    words = r"same score as the others to its prompt \(1\).* larger samples_per_prompt"
    with pytest.raises(TrainingStopped, match=words):
        end_of_flat(by_prompt, Flat(1, 1.0), 1, settings)
    for other in ("gae", "reinforce_pp"):
        assert not is_flat(by_prompt, grouped(other, samples=2, flat_rollouts=2))
    # What is rounding beside a million is none beside 1.
    assert not is_flat(scored([-1e6, -1e6, 0.0, 1.0]), settings)
