"""What ends a round: each guard is tripped by breaking what it watches, and says what to try."""

import copy
import math
import re
from dataclasses import replace

import pytest
import torch

from rlhf.actor_critic import ActorCritic, PolicyStates, build_actor_critic
from rlhf.logits import before_response
from rlhf.ppo_guards import check_first_step, check_losses
from rlhf.ppo_update import PPOTraining
from rlhf.rollouts import PPOModels
from rlhf.rule_rewards import RuleRewards
from rlhf.stopping import NonFiniteError, SelfCheckError, TrainingStopped
from tests import tiny
from tests.ppo_world import assert_same_weights, fresh, params, run


def broken(model) -> None:
    next(iter(model.parameters())).data.view(-1)[0] = math.nan


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("policy", "the policy's logits are not finite"),
        ("reference", "the reference's log-probabilities are not all finite"),
        ("reward model", "the scores are not all finite"),
        ("values", "the values are not all finite"),
    ],
)
def test_a_model_with_a_broken_weight_stops_the_round_before_anything_moves(part, words):
    settings = params()
    training = fresh(settings)
    models = training.models
    broken(
        {
            "policy": models.actor.lm,
            "reference": models.reference,
            "reward model": models.reward_model.classifier.score,
            "values": models.actor.value_head,
        }[part]
    )
    before = copy.deepcopy(models.actor)
    with pytest.raises(NonFiniteError, match=words):
        run(training, settings)
    for name, weight in models.actor.state_dict().items():
        assert torch.equal(weight.nan_to_num(7.0), before.state_dict()[name].nan_to_num(7.0)), name
    assert training.iteration == 0


def test_an_infinite_score_is_named_with_its_iteration_and_what_to_try():
    settings = params()
    training = fresh(settings)
    run(training, settings, stop=1)
    training.models.reward_model.head.weight.data.fill_(math.inf)
    weights = copy.deepcopy(training.models.actor)
    with pytest.raises(
        NonFiniteError, match=r"iteration 2: the scores .* of 8\); .* lower learning"
    ):
        run(training, settings)
    assert_same_weights(training.models.actor, weights)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_named(bad):
    with pytest.raises(NonFiniteError, match=f"iteration 3: value_loss is {bad}; no weight"):
        check_losses({"policy_loss": 0.1, "value_loss": bad}, 2)


def test_finite_losses_pass():
    check_losses({"policy_loss": -1e30, "value_loss": 0.0}, 0)


def test_s19_a_kl_above_its_limit_stops_the_round_before_a_weight_moves():
    settings = params(kl_limit=1e-6)
    training = fresh(settings, reference_seed=1)
    with pytest.raises(TrainingStopped, match=r"above 1e-06 \(kl_limit\).* higher kl_coef"):
        run(training, settings)
    assert_same_weights(training.models.actor, fresh(settings).models.actor)


def test_a_kl_below_its_limit_passes():
    settings = params(kl_limit=1e6)
    assert len(run(fresh(settings, reference_seed=1), settings)) == 2


def flat_training(settings):
    training = fresh(settings)
    training.models.reward_model.head.weight.data.zero_()
    return training


@pytest.mark.parametrize(("limit", "done"), [(1, 0), (3, 2), (None, 5)])
def test_scores_that_do_not_differ_stop_the_round(limit, done):
    settings = params(iterations=5, flat_rollouts=limit)
    training = flat_training(settings)
    if limit is None:
        run(training, settings)
    else:
        words = f"the last {limit} rollouts gave every response the same score .*another reward "
        with pytest.raises(TrainingStopped, match=words):
            run(training, settings)
    assert training.iteration == done


def test_equal_scores_are_not_flat_where_length_costs_something():
    settings = params(iterations=3, flat_rollouts=1, length_penalty=0.1)
    done = run(flat_training(settings), settings)
    assert len(done) == 3
    lengths = done[0].rollout.response_mask.sum(dim=1)
    assert lengths.min() < lengths.max()


def test_scores_that_differ_again_are_counted_anew():
    settings = params(iterations=4, flat_rollouts=3)
    training = flat_training(settings)
    run(training, settings, stop=2)
    assert training.flat.in_a_row == 2
    training.models.reward_model.head.weight.data.normal_(
        generator=torch.Generator().manual_seed(0)
    )
    run(training, settings)
    assert training.flat.in_a_row == 0


class Judged(RuleRewards):
    """Rules whose scores are given: of the first response, and of all others."""

    def __init__(self, *given: tuple[float, float]):
        object.__setattr__(self, "given", iter(given))  # It is frozen.

    def __repr__(self) -> str:
        return "rules"

    def mix(self, rollout):
        first, others = next(self.given)
        scores = torch.full_like(rollout.scores, others)
        scores[0] = first
        return replace(rollout, scores=scores), {}


@pytest.mark.parametrize(
    ("means", "end"),
    [
        # Right answers to all: what was learnt is kept.
        ([(1, 0), (1, 1), (1, 1), (1, 1)], r"the last 2 rollouts .* \(1\), 0\.125 in the first: .*"
         r"after 3 of 4 iterations"),
        # In the last iteration there is nothing to end early.
        ([(1, 0), (0, 1), (1, 1), (1, 1)], None),
        # No better than at the beginning: it is lost, or was never there.
        ([(1, 0), (0, 0), (0, 0), (0, 0)], TrainingStopped),
        ([(1, 1), (1, 1), (1, 1), (1, 1)], TrainingStopped),
        ([(0, 0), (1, 1), (1, 1), (1, 1)], TrainingStopped),
    ],
)  # fmt: skip
def test_a_policy_that_has_learnt_what_there_was_ends_its_round_and_stays(means, end):
    settings = params(iterations=4, flat_rollouts=2)
    training = fresh(settings)
    if end is TrainingStopped:
        with pytest.raises(TrainingStopped, match="so there is nothing to learn"):
            run(training, settings, rules=Judged(*means))
        return
    done = run(training, settings, rules=Judged(*means))
    assert len(done) == training.iteration == (4 if end is None else 3)
    assert (training.end is None) == (end is None)
    assert end is None or re.fullmatch(f"{end}", training.end), training.end
    assert done[-1].end == training.end


def test_s54_how_many_rollouts_were_flat_is_in_the_checkpoint():
    settings = params(iterations=5, flat_rollouts=3)
    first, second = flat_training(settings), flat_training(settings)
    run(first, settings, stop=2)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    with pytest.raises(TrainingStopped, match="iteration 3: the last 3 rollouts"):
        run(second, settings)


SOUND = {"ratio": 1.0, "approx_kl": 0.0, "clip_fraction": 0.0}


def test_s26_a_sound_first_step_passes():
    check_first_step(SOUND, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"ratio": 1.01},
        {"ratio": 0.99},
        {"ratio": math.nan},
        {"approx_kl": 1e-3},
        {"approx_kl": math.nan},
        {"clip_fraction": 0.01},
    ],
    ids=str,
)
def test_s26_a_first_step_at_which_something_has_moved_is_named(changes):
    with pytest.raises(SelfCheckError, match="'first ratio is 1' failed in iteration 1"):
        check_first_step({**SOUND, **changes}, 0)


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


def test_a_round_whose_last_iteration_uses_up_the_budget_has_not_ended_early():
    settings = params(iterations=1, kl_budget=1e-6)
    training = fresh(settings, reference_seed=1)
    (result,) = run(training, settings)
    assert result.metrics.kl > 1e-3
    assert result.end is training.end is None


def test_s55_a_round_that_ended_by_its_budget_does_not_go_on_when_resumed():
    settings = params(kl_budget=1e-6)
    first, second = fresh(settings, reference_seed=1), fresh(settings, reference_seed=1)
    run(first, settings)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert run(second, settings) == []
