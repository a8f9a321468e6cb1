"""The KL penalty of a PPO round: its coefficient, and its place in the rewards or the loss."""

import pytest

from rlhf.params.kl import AdaptiveKLParams
from tests.ppo_world import ONE_STEP, PLAIN, assert_same_weights, fresh, metrics_of, params, run


def test_s11_a_round_that_starts_at_the_reference_starts_without_kl(assert_close):
    settings = params(iterations=1)
    (metrics,) = metrics_of(run(fresh(settings), settings))
    assert_close(metrics.kl, 0.0, rtol=0, atol=1e-6)


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


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_s12_the_penalty_in_the_loss_is_the_mean_over_real_tokens(assert_close, estimator):
    settings = params(**ONE_STEP, kl_in="loss", kl_estimator=estimator)
    (result,) = run(fresh(settings, reference_seed=1), settings)
    found = result.rollout
    gaps = (found.logprobs - found.ref_logprobs)[found.response_mask].double()
    formulas = {"k2": gaps.square() / 2, "k3": (-gaps).exp() - 1 + gaps}
    assert_close(result.metrics.kl_loss, formulas[estimator].mean(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("estimator", ["k2", pytest.param("k3", marks=pytest.mark.long)])
def test_s13_a_penalty_in_the_loss_pulls_the_policy_back_to_the_reference(estimator):
    settings = params(
        iterations=6, rollout_size=32, kl_in="loss", kl_estimator=estimator, kl_coef=20.0
    )
    result = metrics_of(run(fresh(settings, reference_seed=1), settings))
    assert result[0].kl > 1.0
    assert result[-1].kl < 0.7 * result[0].kl


def test_s18_the_coefficient_that_was_reached_weighs_the_penalty_in_the_loss_too():
    """One step at a coefficient of 3 is that of a round whose fixed one is 3."""
    in_loss = {**ONE_STEP, "kl_in": "loss", "kl_estimator": "k2", "optimiser": PLAIN}
    trained = []
    for coef, adaptive in ((3.0, None), (0.2, AdaptiveKLParams(target=1.0, horizon=40))):
        settings = params(**in_loss, kl_coef=coef, kl_adaptive=adaptive)
        training = fresh(settings, reference_seed=1)
        training.controller.load_state_dict({"coef": 3.0})
        (metrics,) = metrics_of(run(training, settings))
        assert metrics.kl_loss > 0.1
        trained.append(training.models.actor)
    assert_same_weights(*trained)


def test_the_penalty_is_in_one_place_only():
    settings = params(iterations=1)
    (metrics,) = metrics_of(run(fresh(settings, reference_seed=1), settings))
    assert metrics.kl_loss == 0.0
