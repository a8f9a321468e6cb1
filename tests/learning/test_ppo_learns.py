"""PPO in seconds: it raises what the reward model likes, and KL holds it back.

The reward model scores the share of one token in prompt and answer, so "right" is known exactly.
"""

from functools import cache

import pytest
import torch

from rlhf.evaluation import kl_to_reference
from rlhf.params.evaluate import EvaluateParams
from rlhf.params.optimiser import OptimiserParams
from rlhf.params.ppo import PPOParams
from rlhf.params.sampling import SamplingParams
from rlhf.ppo import train
from rlhf.ppo_actor import build_actor
from rlhf.ppo_update import PPOTraining
from rlhf.responses import respond
from rlhf.rollouts import PPOModels
from rlhf.seeding import Seeds
from tests import tiny
from tests.tiny import COMPUTE, TOKENS

LIKED = 5
SAMPLING = SamplingParams(max_new_tokens=8)
MEASURE = EvaluateParams(batch_size=256, sampling=SAMPLING)


def prompts(count: int, seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(6, tiny.VOCABULARY, (count, 3), generator=generator).tolist()


def params(kl_coef: float, **changes) -> PPOParams:
    settings = {
        "iterations": 12,
        "rollout_size": 64,
        "epochs": 2,
        "minibatches": 2,
        "micro_batch_size": 64,
        "sampling": SAMPLING,
        "optimiser": OptimiserParams(lr=2e-3, warmup_steps=0, schedule="constant"),
        "value_optimiser": OptimiserParams(lr=5e-3, warmup_steps=0, schedule="constant"),
        "value_model": "separate",
        "value_init": "zero",
    }
    return PPOParams(kl_coef=kl_coef, **{**settings, **changes})


def run(settings: PPOParams):
    """Metrics of the round, the policy after it and the reference."""
    policy, reference = tiny.llama(), tiny.llama()
    actor = build_actor(policy, settings)
    scorer = tiny.share_of_token_reward_model(LIKED)
    training = PPOTraining(PPOModels(actor, reference, scorer), settings)
    steps = train(training, prompts(64, 0), settings, TOKENS, compute=COMPUTE, seeds=Seeds(0))
    return [step.metrics for step in steps], policy, reference


@cache
def trained(kl_coef: float):
    """A round of which only the KL coefficient differs."""
    return run(params(kl_coef))


def responses(policy) -> list[list[int]]:
    """To prompts that no training has seen."""
    return respond(
        policy, prompts(256, 1), SAMPLING, TOKENS, batch_size=256, compute=COMPUTE, seed=9
    )


def share_of_liked(policy) -> float:
    rows = responses(policy)
    tokens = [token for row in rows for token in row]
    return tokens.count(LIKED) / len(tokens)


def kl(policy, reference) -> float:
    held_out, rows = prompts(256, 1), responses(policy)
    values = kl_to_reference(policy, reference, held_out, rows, MEASURE, TOKENS, compute=COMPUTE)
    return sum(values) / len(values)


def test_ppo_raises_the_share_of_the_token_that_the_reward_model_likes():
    metrics, policy, reference = trained(0.0)
    assert share_of_liked(reference) < 0.15
    assert share_of_liked(policy) > 0.6
    assert metrics[-1].score > metrics[0].score + 3


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"advantage": "rloo", "samples_per_prompt": 4}, marks=pytest.mark.long),
        {"advantage": "grpo", "samples_per_prompt": 4},
        pytest.param(
            {"advantage": "grpo", "samples_per_prompt": 4, "grpo_std": False},
            marks=pytest.mark.long,
        ),
        pytest.param({"advantage": "reinforce_pp"}, marks=pytest.mark.long),
        pytest.param({"advantage": "gae", "samples_per_prompt": 4}, marks=pytest.mark.long),
    ],
    ids=["rloo", "grpo", "dr_grpo", "reinforce_pp", "gae"],
)
def test_every_estimator_raises_the_share_of_the_token_that_the_reward_model_likes(changes):
    metrics, policy, _ = run(params(0.0, **changes))
    assert share_of_liked(policy) > 0.5
    assert metrics[-1].score > metrics[0].score + 3


@pytest.mark.long
def test_the_critic_learns_to_foresee_the_reward_while_the_policy_stands_still():
    """The share of the token so far tells a good part of the share at the end."""
    settings = params(0.0, value_warmup_iterations=12, value_epochs=4)
    metrics, policy, reference = run(settings)
    assert share_of_liked(policy) == share_of_liked(reference)
    late = [step.explained_variance for step in metrics[6:]]
    assert metrics[0].explained_variance < 0.1
    assert sum(late) / len(late) > 0.2


@pytest.mark.long
def test_a_huge_kl_coefficient_keeps_the_policy_at_the_reference():
    """Adam takes steps of full size even where the gradient is noise, so "at" means near."""
    _, free, reference = trained(0.0)
    _, held, _ = trained(1000.0)
    assert kl(free, reference) > 5
    assert kl(held, reference) < 0.5
    assert abs(share_of_liked(held) - share_of_liked(reference)) < 0.05
