"""The PPO round: rewards, batches, the update, its self-checks, seeds and resuming."""

import copy

import pytest
import torch

from rlhf.actor_critic import ActorCritic, PolicyStates, build_actor_critic
from rlhf.batches import PPOBatch, Rollout
from rlhf.logits import before_response, response_logits
from rlhf.logprobs import token_logprobs
from rlhf.masked import whiten
from rlhf.params.kl import AdaptiveKLParams
from rlhf.params.optimiser import OptimiserParams
from rlhf.params.sampling import SamplingParams
from rlhf.ppo import Iteration, build_batch, compute_rewards, train
from rlhf.ppo_update import PPOTraining
from rlhf.rollouts import PPOModels
from rlhf.seeding import Seeds
from rlhf.self_checks import fingerprint
from rlhf.stopping import NonFiniteError, SelfCheckError, TrainingStopped
from tests import tiny
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

# --- from a rollout to a batch -----------------------------------------------------------------


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
    ],
    ids=["subtract", "replace", "length", "clip"],
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


# --- the first step ----------------------------------------------------------------------------


def test_s26_before_the_first_step_the_ratio_is_1_and_the_policy_loss_0(assert_close):
    settings = params(**ONE_STEP)
    (metrics,) = metrics_of(run(fresh(settings, reference_seed=1), settings))
    assert_close(metrics.ratio, 1.0, rtol=0, atol=1e-6)
    assert_close(metrics.approx_kl, 0.0, rtol=0, atol=1e-9)
    assert metrics.clip_fraction == 0.0
    assert_close(metrics.policy_loss, 0.0, rtol=0, atol=1e-5)
    assert metrics.grad_norm > 1e-3


def test_s11_a_round_that_starts_at_the_reference_starts_without_kl(assert_close):
    settings = params(iterations=1)
    (metrics,) = metrics_of(run(fresh(settings), settings))
    assert_close(metrics.kl, 0.0, rtol=0, atol=1e-6)


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


def test_s37_the_value_warm_up_leaves_the_policy_alone_on_either_kind_of_trunk():
    for value_model in ("shared", "separate"):
        settings = params(value_warmup_iterations=1, value_model=value_model)
        training, start = fresh(settings), fresh(settings)
        head = training.models.actor.value_head.weight
        run(training, settings, stop=1)
        assert_same_weights(training.models.actor.lm, start.models.actor.lm)
        assert head.any()
        assert all(weight.grad is None for weight in training.models.actor.lm.parameters())
        run(training, settings)
        assert fingerprint(training.models.actor.lm) != fingerprint(start.models.actor.lm)


def test_s37_more_passes_of_the_value_function_leave_the_policy_as_it_would_be():
    trained = []
    for value_epochs in (None, 3):
        settings = params(iterations=1, epochs=1, value_epochs=value_epochs)
        training = fresh(settings)
        (metrics,) = metrics_of(run(training, settings))
        trained.append((training.models.actor, metrics.optimiser_steps))
    (plain, few), (longer, many) = trained
    assert (few, many) == (2, 6)
    assert_same_weights(plain.lm, longer.lm)
    assert not torch.equal(plain.value_head.weight, longer.value_head.weight)


def test_s31_the_entropy_bonus_raises_the_entropy():
    runs = []
    for coef in (0.0, 5.0):
        settings = params(iterations=4, entropy_coef=coef)
        runs.append([m.entropy for m in metrics_of(run(fresh(settings), settings))])
    plain, raised = runs
    assert raised[-1] > raised[0] + 0.05
    assert raised[-1] > plain[-1] + 0.05


def test_s34_the_value_optimiser_follows_its_own_schedule():
    """A warm-up of a billion steps: nothing may move yet."""
    slow = OptimiserParams(lr=3e-3, warmup_steps=10**9)
    settings = params(value_optimiser=slow)
    training = fresh(settings)
    run(training, settings)
    assert training.models.actor.value_head.weight.abs().max() < 1e-6


# --- what stops a round ------------------------------------------------------------------------


def test_s34_a_gradient_that_is_not_finite_stops_the_round_before_a_weight_moves():
    settings = params()
    training = fresh(settings)
    training.models.reward_model.head.weight.data.fill_(float("inf"))
    with pytest.raises(NonFiniteError, match="no weight was changed"):
        run(training, settings)
    assert_same_weights(training.models.actor, fresh(settings).models.actor)


def test_s34_a_value_gradient_that_is_not_finite_stops_before_the_policy_moves():
    settings = params(value_coef=3e38)
    training = fresh(settings)
    with pytest.raises(NonFiniteError, match="no weight was changed"):
        run(training, settings)
    assert_same_weights(training.models.actor, fresh(settings).models.actor)


class ScoredByAnother(ActorCritic):
    """A defect to be found: samples from one policy and scores with another."""

    def __init__(self, lm, other):
        super().__init__(lm, torch.nn.Linear(32, 1), None)
        self.other = [other]

    def states(self, *batch, **_):
        hidden = before_response(self.other[0].base_model, batch)
        return PolicyStates(hidden, torch.zeros_like(hidden[..., 0]))


def test_s19_a_kl_far_below_zero_stops_the_round_and_says_why():
    settings = params(kl_alarm=0.5, value_model="shared")
    actor = ScoredByAnother(tiny.gpt2(0, spread=12.0), tiny.gpt2(1, spread=12.0))
    models = PPOModels(actor, tiny.gpt2(0, spread=12.0), tiny.reward_model())
    with pytest.raises(TrainingStopped, match="sampled and scored differently"):
        run(PPOTraining(models, settings), settings)


def test_s10_dropout_in_the_policy_is_found_at_the_first_ratio():
    settings = params(value_model="shared", kl_alarm=1e9)
    lm = tiny.gpt2(dropout=0.3)
    actor = build_actor_critic(lm, reward_model=None, separate=False)
    actor.train()
    models = PPOModels(actor, tiny.gpt2(), tiny.reward_model())
    with pytest.raises(SelfCheckError, match="self-check 'first ratio is 1' failed"):
        run(PPOTraining(models, settings), settings)


def test_a_round_ends_after_the_iteration_that_used_up_its_kl_budget_and_says_so():
    for budget, iterations in ((1e-6, 1), (1e6, 2), (None, 2)):
        settings = params(kl_budget=budget)
        training = fresh(settings, reference_seed=1)
        result = run(training, settings)
        assert result[0].metrics.kl > 1e-3
        assert len(result) == training.iteration == iterations
        if iterations == 1:
            assert result[0].end == training.end
            assert "the KL budget is used up" in result[0].end
            assert "after 1 of 2 iterations" in result[0].end
        else:
            assert [one.end for one in result] == [None, None]


def test_s55_a_round_that_ended_by_its_budget_does_not_go_on_when_resumed():
    settings = params(kl_budget=1e-6)
    first, second = fresh(settings, reference_seed=1), fresh(settings, reference_seed=1)
    run(first, settings)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert run(second, settings) == []


# --- the KL coefficient ------------------------------------------------------------------------


def test_s18_the_adaptive_coefficient_follows_the_kl_per_response_and_is_reported(assert_close):
    adaptive = AdaptiveKLParams(target=1.0, horizon=40)
    settings = params(iterations=4, kl_coef=0.2, kl_adaptive=adaptive)
    result = metrics_of(run(fresh(settings, reference_seed=1), settings))
    coef = 0.2
    for metrics in result:
        assert_close(metrics.kl_coef, coef, rtol=1e-6, atol=0)
        coef *= 1 + max(-0.2, min(0.2, metrics.kl / 1.0 - 1)) * 8 / 40
    assert coef != 0.2


def test_s13_the_penalty_uses_the_coefficient_of_the_iteration(assert_close):
    settings = params(iterations=1, kl_coef=0.7, missing_end_penalty=0.0)
    (metrics,) = metrics_of(run(fresh(settings, reference_seed=1), settings))
    assert abs(metrics.kl) > 1e-2
    assert_close(metrics.reward, metrics.score - 0.7 * metrics.kl, rtol=1e-4, atol=1e-5)


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


# --- what may not change, seeds and resuming ----------------------------------------------------


@pytest.mark.parametrize("value_model", ["shared", "separate"])
def test_s38_the_reference_and_the_reward_model_are_bit_identical_after_a_round(value_model):
    settings = params(value_model=value_model)
    models = fresh(settings).models
    if value_model == "separate":
        actor = build_actor_critic(policy(), reward_model=models.reward_model, separate=True)
        models = models._replace(actor=actor)
    parts = (models.actor, models.reference, models.reward_model)
    before = [fingerprint(model) for model in parts]
    run(PPOTraining(models, settings), settings)
    after = [fingerprint(model) for model in parts]
    assert before[1:] == after[1:]
    assert before[0] != after[0]


def test_s38_every_trained_weight_moves():
    settings = params()
    training = fresh(settings)
    run(training, settings)
    start = fresh(settings).models.actor.state_dict()
    for name, weight in training.models.actor.named_parameters():
        assert not torch.equal(weight, start[name]), name


def weights_after(settings, iterations: int) -> list[dict[str, torch.Tensor]]:
    """The policy's weights after each iteration."""
    training, kept = fresh(settings), []
    for stop in range(1, iterations + 1):
        run(training, settings, stop=stop)
        kept.append(copy.deepcopy(training.models.actor.lm.state_dict()))
    return kept


def test_the_average_is_that_of_the_iterations_that_trained_the_policy():
    """Weights 1/4, 1/2 and 1 for decay 1/2, in double precision; the first iteration trains V."""
    settings = params(iterations=4, value_warmup_iterations=1)
    states = weights_after(settings, 4)
    averaged = params(iterations=4, value_warmup_iterations=1, average_decay=0.5)
    training = fresh(averaged)
    run(training, averaged)
    assert_same_weights(training.models.actor.lm, fresh_with(states[-1]))
    training.average.publish()
    for name, weight in training.models.actor.lm.named_parameters():
        one, two, three = (state[name].double() for state in states[1:])
        wanted = (one / 4 + two / 2 + three) / 1.75
        assert torch.allclose(weight.double(), wanted, rtol=0, atol=1e-6), name
        assert (weight.double() - three).abs().max() > 1e-4, name


def fresh_with(state: dict[str, torch.Tensor]):
    model = policy()
    model.load_state_dict(state)
    return model


def test_a_round_without_an_iteration_publishes_what_it_started_from():
    settings = params(iterations=0, average_decay=0.5)
    training = fresh(settings)
    run(training, settings)
    training.average.publish()
    assert_same_weights(training.models.actor.lm, policy())


def test_the_average_resumes_as_if_never_stopped():
    settings = params(iterations=4, average_decay=0.8)
    whole, first, second = fresh(settings), fresh(settings), fresh(settings, seed=5)
    run(whole, settings)
    run(first, settings, stop=2)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    run(second, settings)
    for training in (whole, second):
        training.average.publish()
    assert_same_weights(second.models.actor, whole.models.actor)


@pytest.mark.parametrize("value_model", ["shared", "separate"])
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


# --- options -----------------------------------------------------------------------------------


def test_s13_a_penalty_in_the_loss_leaves_the_rewards_alone(assert_close):
    in_loss = params(kl_in="loss", kl_estimator="k2", missing_end_penalty=0.0)
    rewards, _ = compute_rewards(rollout(), in_loss, kl_coef=0.1)
    assert_close(rewards, [[0, 0, 4, 0], [0, 0, 0, -3]], rtol=0, atol=0)


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_s12_the_penalty_in_the_loss_is_the_mean_over_real_tokens(assert_close, estimator):
    settings = params(**ONE_STEP, kl_in="loss", kl_estimator=estimator)
    (result,) = run(fresh(settings, reference_seed=1), settings)
    found = result.rollout
    gaps = (found.logprobs - found.ref_logprobs)[found.response_mask].double()
    formulas = {"k2": gaps.square() / 2, "k3": (-gaps).exp() - 1 + gaps}
    assert_close(result.metrics.kl_loss, formulas[estimator].mean(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_s13_a_penalty_in_the_loss_pulls_the_policy_back_to_the_reference(estimator):
    settings = params(
        iterations=6, rollout_size=32, kl_in="loss", kl_estimator=estimator, kl_coef=20.0
    )
    result = metrics_of(run(fresh(settings, reference_seed=1), settings))
    assert result[0].kl > 1.0
    assert result[-1].kl < 0.7 * result[0].kl


def test_the_penalty_is_in_one_place_only(assert_close):
    settings = params(iterations=1)
    (metrics,) = metrics_of(run(fresh(settings, reference_seed=1), settings))
    assert metrics.kl_loss == 0.0


def test_s24_advantages_are_clipped_after_whitening(assert_close):
    rewards, _ = compute_rewards(rollout(), params(), kl_coef=0.1)
    whole = build_batch(rollout(), rewards, params()).advantages
    clipped = build_batch(rollout(), rewards, params(advantage_clip=0.8))
    assert whole.max() > 0.8
    assert whole.min() < -0.8
    expected = whole.minimum(torch.tensor(0.8)).maximum(torch.tensor(-0.8))
    assert_close(clipped.advantages, expected, rtol=0, atol=0)
    assert_close(clipped.returns, build_batch(rollout(), rewards, params()).returns, rtol=0, atol=0)


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


def test_s38_every_weight_of_the_actor_belongs_to_one_of_the_two_optimisers():
    for value_model in ("shared", "separate"):
        training = fresh(params(value_model=value_model))
        stepped = [*training.optimiser.weights, *training.value_optimiser.weights]
        assert sorted(map(id, stepped)) == sorted(map(id, training.models.actor.parameters()))


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
