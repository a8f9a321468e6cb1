"""The average of a policy's weights over a round, which is resumed as if never stopped."""

import copy

import torch

from tests.ppo_world import assert_same_weights, fresh, params, policy, run


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
