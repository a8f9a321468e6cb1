"""One PPO step for the walk through it: a real iteration, and the same one without a KL penalty."""

import copy
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from rlhf.batches import PPOBatch, Rollout
from rlhf.compute import Compute
from rlhf.draws import draw_table
from rlhf.kl import full_kl
from rlhf.logits import response_logits
from rlhf.logprobs import token_logprobs
from rlhf.masked import sequence_sums
from rlhf.ppo import build_batch, compute_rewards
from rlhf.ppo_metrics import UpdateMetrics
from rlhf.ppo_update import PPOTraining, micro_batches, update
from rlhf.rollouts import collect_rollout, each_repeated
from rlhf.seeding import Seeds
from rlhf.walkthrough.models import World


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one KL coefficient makes of a rollout."""

    kl_coef: float
    rewards: Tensor
    batch: PPOBatch
    metrics: UpdateMetrics
    logprobs: Tensor
    """Of the rollout's tokens after the update."""
    kl: Tensor
    """Exact KL to the reference after the update, summed over each response's tokens."""


class Step(NamedTuple):
    """One PPO step at the configured KL coefficient, and at 0 on the same rollout."""

    rollout: Rollout
    exact_kl: Tensor
    """Before the update, per response."""
    configured: Outcome
    at_zero: Outcome


def take_step(world: World, *, compute: Compute, seeds: Seeds) -> Step:
    """Sample once, then do the rest of a PPO iteration twice, each time from the same weights."""
    rows = each_repeated(world.prompts, world.params.samples_per_prompt)
    rollout = collect_rollout(
        world.models,
        rows,
        world.params.sampling,
        world.tokens,
        micro_batches=micro_batches(len(rows), world.params, _last(world), compute, seeds),
        compute=compute,
        draws=draw_table(
            seeds.named("walkthrough", "sampling"),
            rows,
            world.params.sampling.max_new_tokens,
        ),
    )
    if world.rules is not None:
        rollout = world.rules.mix(rollout).rollout
    return Step(
        rollout,
        _exact_kl(world, rollout),
        _outcome(world, rollout, world.params.kl_coef, compute=compute, seeds=seeds),
        _outcome(world, rollout, 0.0, compute=compute, seeds=seeds),
    )


def _outcome(
    world: World, rollout: Rollout, kl_coef: float, *, compute: Compute, seeds: Seeds
) -> Outcome:
    moved = world.models._replace(actor=copy.deepcopy(world.models.actor))
    # Where the KL is in the loss, the update asks the controller.
    training = PPOTraining(moved, replace(world.params, kl_coef=kl_coef))
    rewards, _ = compute_rewards(rollout, world.params, kl_coef=kl_coef)
    batch = build_batch(rollout, rewards, world.params)
    metrics = update(training, batch, world.params, _last(world), compute=compute, seeds=seeds)
    after = replace(world, models=moved)
    with torch.no_grad():
        logits = response_logits(moved.actor.lm, *_tokens(rollout))
        logprobs = token_logprobs(
            logits, rollout.response_ids, temperature=world.params.sampling.temperature
        )
    return Outcome(kl_coef, rewards, batch, metrics, logprobs, _exact_kl(after, rollout))


def _last(world: World) -> int:
    """The last iteration of a round: behind the warm-up of the learning rate."""
    return max(world.params.iterations, 1) - 1


@torch.no_grad()
def _exact_kl(world: World, rollout: Rollout) -> Tensor:
    logits, ref_logits = (
        response_logits(model, *_tokens(rollout))
        for model in (world.models.actor.lm, world.models.reference)
    )
    kl = full_kl(logits, ref_logits, temperature=world.params.sampling.temperature)
    return sequence_sums(kl, rollout.response_mask)


def _tokens(rollout: Rollout) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return rollout.prompt_ids, rollout.prompt_mask, rollout.response_ids, rollout.response_mask
