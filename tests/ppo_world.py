"""A tiny PPO round: parameters, models and a loop that runs them, for whatever tests PPO."""

from dataclasses import asdict

import torch

from rlhf.params.optimiser import OptimiserParams
from rlhf.params.ppo import PPOParams
from rlhf.params.sampling import SamplingParams
from rlhf.ppo import Iteration, train
from rlhf.ppo_actor import build_actor
from rlhf.ppo_update import PPOTraining
from rlhf.rollouts import PPOModels
from rlhf.seeding import Seeds
from rlhf.sharding import Held
from tests import tiny
from tests.tiny import COMPUTE, PROMPTS, TOKENS

RATE = OptimiserParams(lr=3e-3, warmup_steps=0, schedule="constant")
# A step is g / (|g| + 1): two results differ by no more than their gradients do.
PLAIN = OptimiserParams(
    lr=1.0, beta1=0.0, beta2=0.0, eps=1.0, warmup_steps=0, schedule="constant", max_grad_norm=1e9
)


def params(**changes) -> PPOParams:
    settings = {
        "iterations": 2,
        "rollout_size": 8,
        "epochs": 2,
        "minibatches": 2,
        "micro_batch_size": 8,
        "sampling": SamplingParams(max_new_tokens=4),
        "optimiser": RATE,
        "value_optimiser": RATE,
        "value_model": "separate",
        "value_init": "zero",
        "kl_coef": 0.05,
        "kl_alarm": 100.0,
    }
    return PPOParams(**{**settings, **changes})


ONE_STEP = {"iterations": 1, "epochs": 1, "minibatches": 1}


def policy(seed: int = 0, vocabulary: int = tiny.VOCABULARY):
    """Two of these differ by several nats per answer."""
    return tiny.llama(seed, vocabulary, spread=10.0)


def fresh(
    params: PPOParams,
    *,
    seed: int = 0,
    reference_seed: int = 0,
    vocabulary: int = tiny.VOCABULARY,
    divided: bool = False,
) -> PPOTraining:
    scorer = tiny.reward_model(vocabulary=vocabulary)
    scorer.set_normaliser(0.1, 0.5)
    actor = build_actor(policy(seed, vocabulary), params)
    reference = policy(reference_seed, vocabulary)
    held = Held(actor, divided=divided)
    return PPOTraining(PPOModels(actor, reference, scorer), params, held)


def run(
    training, params, *, prompts=PROMPTS, seed=0, stop=None, compute=COMPUTE, rules=None
) -> list[Iteration]:
    result = []
    for iteration in train(
        training, prompts, params, TOKENS, compute=compute, seeds=Seeds(seed), rules=rules
    ):
        result.append(iteration)
        if training.iteration == stop:
            break
    return result


def metrics_of(result: list[Iteration]):
    return [iteration.metrics for iteration in result]


def assert_same_weights(one, other) -> None:
    for name, weight in one.state_dict().items():
        assert torch.equal(weight, other.state_dict()[name]), name


def numbers_of(result: list[Iteration]) -> list[list[float]]:
    """What each iteration measured, without what it counted."""
    return [
        [value for value in asdict(each).values() if isinstance(value, float)]
        for each in metrics_of(result)
    ]
