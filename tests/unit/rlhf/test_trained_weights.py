"""Which weights a round of PPO moves: the policy's, the value function's, and no others."""

from dataclasses import replace

import pytest
import torch

from rlhf.actor_critic import build_actor_critic
from rlhf.params.kl import AdaptiveKLParams
from rlhf.params.optimiser import OptimiserParams
from rlhf.ppo_update import PPOTraining
from rlhf.self_checks import fingerprint
from tests.ppo_world import assert_same_weights, fresh, metrics_of, params, policy, run


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


def test_s38_every_weight_of_the_actor_belongs_to_one_of_the_two_optimisers():
    for value_model in ("shared", "separate"):
        training = fresh(params(value_model=value_model))
        stepped = [*training.optimiser.weights, *training.value_optimiser.weights]
        assert sorted(map(id, stepped)) == sorted(map(id, training.models.actor.parameters()))


def test_s34_the_value_optimiser_follows_its_own_schedule():
    """A warm-up of a billion steps: nothing may move yet."""
    slow = OptimiserParams(lr=3e-3, warmup_steps=10**9)
    settings = params(value_optimiser=slow)
    training = fresh(settings)
    run(training, settings)
    assert training.models.actor.value_head.weight.abs().max() < 1e-6


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


def rates_of(training: PPOTraining) -> dict[str, list[float]]:
    """The fraction of its peak rate at which each optimiser will step, step after step."""
    found: dict[str, list[float]] = {"optimiser": [], "value_optimiser": []}
    for name, factors in found.items():
        optimiser = getattr(training, name)
        plain = optimiser.apply

        def noting(factor, plain=plain, factors=factors):
            factors.append(factor)
            plain(factor)

        optimiser.apply = noting
    return found


def test_the_policys_schedule_and_the_penalty_wait_for_its_first_step():
    """Two iterations train values alone; then warm-up over four steps begins, two an iteration."""
    rate = OptimiserParams(lr=1e-3, warmup_steps=4, schedule="constant")
    adaptive = AdaptiveKLParams(target=100.0, horizon=8)
    settings = params(
        iterations=5, epochs=1, value_warmup_iterations=2, optimiser=rate, value_optimiser=rate,
        kl_adaptive=adaptive,
    )  # fmt: skip
    training = fresh(settings)
    found = rates_of(training)
    run(training, settings, stop=2)
    assert found["optimiser"] == []
    assert training.controller.coef == settings.kl_coef
    run(training, settings)
    assert found["optimiser"] == [0.25, 0.25, 0.75, 0.75, 1, 1]
    assert found["value_optimiser"] == [0.25, 0.25, 0.75, 0.75, 1, 1, 1, 1, 1, 1]
    assert training.controller.coef < settings.kl_coef


def test_s34_each_schedule_ends_with_the_round_whenever_it_began_and_however_many_its_passes():
    """The policy has 2 steps in each of 3 iterations, the value function 6 in each of 5."""
    falling = OptimiserParams(lr=1e-3, warmup_steps=0, schedule="linear", final_fraction=0.0)
    settings = params(
        iterations=5, epochs=1, value_epochs=3, value_warmup_iterations=2, optimiser=falling,
        value_optimiser=replace(falling, warmup_steps=12),
    )  # fmt: skip
    training = fresh(settings)
    found = rates_of(training)
    run(training, settings)
    policy = [factor for factor in (1, 2 / 3, 1 / 3) for _ in range(2)]
    assert found["optimiser"] == pytest.approx(policy, rel=1e-12)
    values = [factor for factor in (1 / 12, 7 / 12, 1, 2 / 3, 1 / 3) for _ in range(6)]
    assert found["value_optimiser"] == pytest.approx(values, rel=1e-12)


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
