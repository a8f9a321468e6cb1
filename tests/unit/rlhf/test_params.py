"""The parameters of the algorithms: defaults that hold together, combinations that are refused."""

import dataclasses
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest
from annotated_types import Ge, Gt, Le, Lt

from rlhf.params.base import EmbeddedModelParams
from rlhf.params.evaluate import EvaluateParams
from rlhf.params.kl import AdaptiveKLParams
from rlhf.params.lora import LoraParams
from rlhf.params.optimiser import OptimiserParams
from rlhf.params.ppo import PPOParams
from rlhf.params.ranges import Count, CountOrZero, Fraction, NonNegative, OpenFraction, Positive
from rlhf.params.reward import RewardParams
from rlhf.params.rule_rewards import RewardMixParams
from rlhf.params.sampling import SamplingParams
from rlhf.params.sft import SFTParams

ALL = [
    EmbeddedModelParams,
    EvaluateParams,
    OptimiserParams,
    PPOParams,
    RewardMixParams,
    RewardParams,
    SFTParams,
    SamplingParams,
]
OF_FOUR = {"advantage": "rloo", "samples_per_prompt": 4}
NUMBERS = {"Gt": lambda v, r: v > r.gt, "Ge": lambda v, r: v >= r.ge}
NUMBERS |= {"Lt": lambda v, r: v < r.lt, "Le": lambda v, r: v <= r.le}


def test_the_default_ppo_round_holds_together():
    assert list(PPOParams().problems()) == []


@pytest.mark.parametrize("changes", [{"top_k": 5}, {"top_p": 0.9}, {"min_new_tokens": 2}])
def test_s05_ppo_refuses_to_sample_from_another_distribution_than_it_scores(changes):
    problems = dict(PPOParams(sampling=SamplingParams(**changes)).problems())
    assert list(problems) == ["sampling"]
    assert "the very distribution that it samples from" in problems["sampling"]


def test_s05_ppo_takes_any_temperature():
    assert list(PPOParams(sampling=SamplingParams(temperature=0.3)).problems()) == []


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ({"rollout_size": 10, "minibatches": 4}, "minibatches", "10 cannot be cut into 4 equal"),
        ({"rollout_size": 2, "minibatches": 4}, "minibatches", "2 cannot be cut into 4 equal"),
        ({"dual_clip": 1.0}, "dual_clip", r"above 1, found 1\.0"),
        ({"importance_cap": 0.9}, "importance_cap", r"must be 1 or more, .* found 0\.9"),
        ({"average_decay": 0.8, "lora": LoraParams()}, "average_decay", "impossible with lora"),
        ({"epochs": 3, "value_epochs": 2}, "value_epochs", r"2 is below epochs \(3\)"),
        (
            {"iterations": 3, "value_warmup_iterations": 3},
            "value_warmup_iterations",
            "3 of 3 iterations would leave none",
        ),
        ({"kl_in": "loss"}, "kl_estimator", "k2 or k3 where kl_in is loss"),
        ({"kl_limit": 5.0, "kl_budget": 5.0}, "kl_limit", r"5\.0 must be above kl_budget \(5\.0\)"),
        ({"samples_per_prompt": 3}, "samples_per_prompt", "128 cannot be cut into .* 3 responses"),
        ({"advantage": "rloo"}, "samples_per_prompt", "2 or more for rloo, .* found 1"),
        ({"advantage": "grpo"}, "samples_per_prompt", "2 or more for grpo, .* found 1"),
        ({**OF_FOUR, "gamma": 0.9}, "gamma", r"must be 1 for rloo, .* found 0\.9"),
        ({**OF_FOUR, "whiten_rewards": True}, "whiten_rewards", "impossible with rloo"),
        ({**OF_FOUR, "grpo_std": False}, "grpo_std", "false means nothing to rloo; take true"),
        ({**OF_FOUR, "value_epochs": 2}, "value_epochs", "rloo has none; take null"),
        ({**OF_FOUR, "value_warmup_iterations": 1}, "value_warmup_iterations", "none; take 0"),
        ({**OF_FOUR, "value_clip_range": 0.2}, "value_clip_range", "0.2 needs a value function"),
        ({**OF_FOUR, "value_huber_delta": 1.0}, "value_huber_delta", "needs a value function"),
    ],
)
def test_an_impossible_combination_names_its_key_and_what_was_found(changes, key, words):
    problems = list(PPOParams(**changes).problems())
    assert [found for found, _ in problems] == [key]
    with pytest.raises(ValueError, match=words):
        raise ValueError(problems[0][1])


@pytest.mark.parametrize(
    "changes",
    [
        {"dual_clip": 3.0},
        {"epochs": 2, "value_epochs": 2},
        {"epochs": 2, "value_epochs": 5},
        OF_FOUR,
        {**OF_FOUR, "advantage": "grpo", "grpo_std": False, "kl_in": "loss", "kl_estimator": "k3"},
        {**OF_FOUR, "advantage": "gae", "gamma": 0.9, "whiten_rewards": True, "value_epochs": 2},
        {"advantage": "reinforce_pp", "gamma": 0.9, "whiten_rewards": True},
        # What concerns a value function means nothing without one, also where it is impossible.
        {**OF_FOUR, "value_model": "shared"},
        {**OF_FOUR, "rewards": RewardMixParams(learned=0.0, length=1.0)},
    ],
)
def test_a_possible_combination_passes(changes):
    assert list(PPOParams(**changes).problems()) == []


def test_all_problems_are_reported_at_once():
    params = PPOParams(
        sampling=SamplingParams(top_k=1), rollout_size=7, minibatches=2, dual_clip=0.5
    )
    assert [key for key, _ in params.problems()] == ["sampling", "minibatches", "dual_clip"]


def test_s37_a_shared_trunk_cannot_start_at_the_reward_models_score():
    params = PPOParams(value_model="shared", value_init="reward")
    problems = dict(params.problems())
    assert list(problems) == ["value_init"]
    assert "value_model: separate" in problems["value_init"]
    assert not list(PPOParams(value_model="separate", value_init="reward").problems())


@pytest.mark.parametrize("params", ALL, ids=lambda params: params.__name__)
def test_every_default_lies_in_its_own_range(params):
    hints = get_type_hints(params, include_extras=True)
    values = params()
    checked = 0
    for field in dataclasses.fields(values):
        hint = hints[field.name]
        if get_origin(hint) is Annotated:
            value = getattr(values, field.name)
            for limit in get_args(hint)[1:]:
                assert NUMBERS[type(limit).__name__](value, limit), field.name
                checked += 1
    assert checked > 0


def test_the_ranges_have_the_bounds_that_their_names_say():
    bounds = {
        Count: (int, (Ge(1),)),
        CountOrZero: (int, (Ge(0),)),
        Positive: (float, (Gt(0),)),
        NonNegative: (float, (Ge(0),)),
        Fraction: (float, (Ge(0), Le(1))),
        OpenFraction: (float, (Ge(0), Lt(1))),
    }
    for annotated, (kind, limits) in bounds.items():
        assert get_args(annotated) == (kind, *limits)


@pytest.mark.parametrize("params", [*ALL, AdaptiveKLParams], ids=lambda params: params.__name__)
def test_parameters_cannot_be_changed_misspelt_or_given_by_position(params):
    required = {"target": 6.0, "horizon": 10} if params is AdaptiveKLParams else {}
    values = params(**required)
    name = dataclasses.fields(values)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(values, name, 1)
    with pytest.raises(TypeError):
        params(**required, no_such_key=1)
    with pytest.raises(TypeError):
        params(1)


def test_s50_the_number_of_epochs_of_the_reward_model_is_stated():
    assert RewardParams().epochs == 2


def test_s21_the_discount_is_1_by_default():
    assert PPOParams().gamma == 1.0
