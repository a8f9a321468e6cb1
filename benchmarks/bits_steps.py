"""Times training steps of the default size with the bits of the `params.yaml` in this folder.

Run by `benchmarks.bits`. Prints a JSON object: CPU seconds of each SFT step and PPO iteration.
"""
# ruff: noqa: I001 (tasks comes first: it chooses the bits before torch is imported)

import tasks  # noqa: F401

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from rlhf import ppo, sft
from rlhf.bits import require
from rlhf.compute import Compute, make_deterministic
from rlhf.actor_critic import build_actor_critic
from rlhf.reward_models import RewardModel
from rlhf.optimisers import Optimiser, Training
from rlhf.ppo_update import PPOTraining
from rlhf.rollouts import PPOModels
from rlhf.seeding import Seeds
from rlhf.special_ids import SpecialIds
from tasks.params.loading import Params, load_params

SFT_STEPS, PPO_ITERATIONS = 12, 3
"""The first of each is a warm-up and is not counted."""

TOKENS = SpecialIds(eos=1, pad=0)
COMPUTE = Compute(torch.device("cpu"), "float32")


def main() -> None:
    """Train on random tokens with random weights; what is computed is as much as in earnest."""
    params = load_params(Path("params.yaml"))
    bits = require(params.run.bits)
    make_deterministic(params.run.threads)
    seconds = {"sft": timed(sft_steps(params)), "ppo": timed(ppo_iterations(params))}
    json.dump({"bits": bits, "seconds": seconds}, sys.stdout)


def timed(steps: Iterator[object]) -> list[float]:
    """CPU seconds of each step but the first."""
    next(steps)
    found = []
    began = time.process_time()
    for _ in steps:
        found.append(time.process_time() - began)
        began = time.process_time()
    return found


def sft_steps(params: Params) -> Iterator[object]:
    """Steps on examples of about the lengths of the support desk's."""
    draws = torch.Generator().manual_seed(1)
    examples = [
        sft.Example(random_ids(20, 80, draws), [*random_ids(8, 40, draws), TOKENS.eos])
        for _ in range(SFT_STEPS * params.sft.batch_size)
    ]
    model = policy(params)
    training = Training(model, Optimiser(params.sft.optimiser, model.named_parameters()))
    return sft.train(
        training, examples, params.sft, pad_id=TOKENS.pad, compute=COMPUTE, seeds=Seeds(0)
    )


def ppo_iterations(params: Params) -> Iterator[object]:
    """Whole iterations: rollout, scores, update."""
    draws = torch.Generator().manual_seed(2)
    settings = replace(params.ppo, iterations=PPO_ITERATIONS, kl_alarm=1e9)
    prompts = [random_ids(20, 80, draws) for _ in range(settings.rollout_size)]
    scorer = RewardModel(LlamaForSequenceClassification(configuration(params)).eval())
    scorer.set_normaliser(0.0, 1.0)
    actor = build_actor_critic(
        policy(params), reward_model=scorer, separate=settings.value_model == "separate"
    )
    training = PPOTraining(PPOModels(actor, policy(params), scorer), settings)
    return ppo.train(training, prompts, settings, TOKENS, compute=COMPUTE, seeds=Seeds(0))


def policy(params: Params) -> LlamaForCausalLM:
    """Of the size of the embedded model."""
    torch.manual_seed(0)
    return LlamaForCausalLM(configuration(params)).eval()


def configuration(params: Params) -> LlamaConfig:
    """The embedded model's."""
    size = params.base.embedded
    return LlamaConfig(
        vocab_size=size.vocabulary_size,
        hidden_size=size.hidden_size,
        intermediate_size=size.mlp_size,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        tie_word_embeddings=True,
        num_labels=1,
        pad_token_id=TOKENS.pad,
        eos_token_id=TOKENS.eos,
    )


def random_ids(least: int, most: int, draws: torch.Generator) -> list[int]:
    """Ordinary tokens, as many as drawn."""
    count = int(torch.randint(least, most + 1, (), generator=draws))
    return torch.randint(2, 1536, (count,), generator=draws).tolist()


if __name__ == "__main__":
    main()
