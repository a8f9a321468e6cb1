"""Proximal policy optimisation of a language model against a reward model, one round.

For each rollout (notation of Schulman et al. 2017):

    responses  y ~ pi(. | x)                        rlhf.rollouts
    scores     s = reward model(x, y)               normalised, once, by the model itself;
                                                    or a mix with rules, rlhf.rule_rewards
    rewards    r_t = -kl_coef (log pi - log ref)_t, and s is added at the last real token
               (kl_in: loss makes the KL a term of the update's loss instead)
    values     V_t; advantages A_t by GAE, then whitened over the rollout; returns R_t = A_t + V_t
               (advantage: rloo, grpo or reinforce_pp make do without values, rlhf.advantages)
    update     several passes of minibatches on the clipped policy loss and the value loss,
               rlhf.ppo_update; where a server has sampled the responses (rlhf.samplers), each
               token has a truncated importance weight (rlhf.importance_weights)

A rollout has rollout_size responses, samples_per_prompt to each of its prompts, one behind the
other; they stay a group until their advantages are known.

Where this differs from common implementations: the score falls on the last real token whether or
not the response was cut; every mean is over real tokens of the whole optimiser step; values are not
clipped by default; log-probabilities of the rollout come from the training forward pass. All
randomness comes from named seeds, so a round can resume at any iteration.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from rlhf.advantages import Advantages, explained_variance, gae, grpo, reinforce_pp, rloo
from rlhf.batches import PPOBatch, Rollout
from rlhf.compute import Compute
from rlhf.draws import draw_table
from rlhf.importance_weights import ImportanceWeights, importance_weights
from rlhf.masked import masked_mean, rescale, sequence_sums, whiten
from rlhf.params.ppo import PPOParams
from rlhf.ppo_guards import check_finite, check_kl, end_of_flat
from rlhf.ppo_metrics import PPOMetrics
from rlhf.ppo_update import PPOTraining, micro_batches, update
from rlhf.reward_shaping import (
    clip_scores,
    penalise_length,
    penalise_missing_end,
    replace_missing_end,
    shape_rewards,
)
from rlhf.rollouts import collect_rollout, each_repeated
from rlhf.rule_rewards import RuleRewards
from rlhf.seeding import Seeds
from rlhf.special_ids import SpecialIds


@dataclass(frozen=True, slots=True)
class Iteration:
    """What the loop yields: metrics, and the rollout for callers that read samples."""

    metrics: PPOMetrics
    rollout: Rollout
    end: str | None
    """Why the round ends here although iterations are left; None where it does not."""


def train(
    training: PPOTraining,
    prompts: Sequence[Sequence[int]],
    params: PPOParams,
    tokens: SpecialIds,
    *,
    compute: Compute,
    seeds: Seeds,
    rules: RuleRewards | None = None,
) -> Iterator[Iteration]:
    """Run the round; yields after each iteration. `rules` turns learned scores into mixed ones.

    A round whose KL budget is used up, or that has learnt what its reward tells apart, ends; its
    last iteration says so.

    Raises:
        TrainingStopped: the KL alarm or limit, or scores that do not differ, and are no higher than
            at the beginning.
        SelfCheckError: something had moved before an update's first step.
        NonFiniteError: a score, log-probability, loss, gradient or weight was not finite.
    """
    while training.iteration < params.iterations and training.end is None:
        iteration = training.iteration
        chosen = _choose_prompts(prompts, params, iteration, seeds)
        rollout = collect_rollout(
            training.sampling_models(compute),
            chosen,
            params.sampling,
            tokens,
            micro_batches=micro_batches(len(chosen), params, iteration, compute, seeds),
            compute=compute,
            draws=draw_table(
                seeds.named("ppo", "sampling", iteration), chosen, params.sampling.max_new_tokens
            ),
        )
        components: dict[str, float] = {}
        if rules is not None:
            rollout, components = rules.mix(rollout)
        check_finite(rollout, iteration)
        training.flat.take(rollout, params)
        learnt = end_of_flat(rollout, training.flat, iteration + 1, params)
        kl_coef = training.controller.coef
        rewards, clipped = compute_rewards(rollout, params, kl_coef=kl_coef)
        batch = build_batch(rollout, rewards, params)
        kl = _sequence_kl(rollout)
        check_kl(kl, iteration, params)
        updated = update(training, batch, params, iteration, compute=compute, seeds=seeds)
        training.finish_iteration(kl, len(rollout))
        training.end = learnt or _budget_used(kl, training.iteration, params)
        metrics = PPOMetrics(
            **({} if training.models.sampler is None else _sampled_elsewhere(rollout, params)),
            kl=kl,
            kl_coef=kl_coef,
            reward=sequence_sums(rewards, rollout.response_mask).mean().item(),
            clipped_scores=clipped,
            components=components,
            **_measured(rollout, batch, params),
            **asdict(updated),
        )
        yield Iteration(metrics, rollout, training.end)


def _measured(rollout: Rollout, batch: PPOBatch, params: PPOParams) -> dict[str, Any]:
    """The metrics that a rollout and its values give by themselves."""
    mask, explained = rollout.response_mask, None
    if params.has_value_function():
        explained = explained_variance(batch.old_values, batch.returns, mask).item()
    return {
        "score": rollout.scores.mean().item(),
        "length": mask.sum(dim=1).float().mean().item(),
        "finished": rollout.ended.float().mean().item(),
        "explained_variance": explained,
        "tokens": int(mask.sum()),
    }


def _sampled_elsewhere(rollout: Rollout, params: PPOParams) -> dict[str, Any]:
    """How far who sampled the rollout is from the policy."""
    gaps = (rollout.logprobs - rollout.sampler_logprobs).abs()
    return {
        "sampler_gap": masked_mean(gaps, rollout.response_mask).item(),
        "truncated_weights": _importance(rollout, params).truncated.item(),
    }


def _importance(rollout: Rollout, params: PPOParams) -> ImportanceWeights:
    return importance_weights(
        rollout.logprobs,
        rollout.sampler_logprobs,
        rollout.response_mask,
        cap=params.importance_cap,
    )


def compute_rewards(rollout: Rollout, params: PPOParams, *, kl_coef: float) -> tuple[Tensor, float]:
    """Per-token rewards (batch, response) and the fraction of scores that were clipped.

    Clipping and penalties concern the score, never the KL part.
    """
    scores, clipped = rollout.scores, 0.0
    if params.score_clip is not None:
        result = clip_scores(scores, limit=params.score_clip)
        scores, clipped = result.scores, result.clipped_fraction.item()
    if params.missing_end == "subtract":
        scores = penalise_missing_end(scores, rollout.ended, penalty=params.missing_end_penalty)
    else:
        scores = replace_missing_end(scores, rollout.ended, replacement=-params.missing_end_penalty)
    scores = penalise_length(scores, rollout.response_mask, per_token=params.length_penalty)
    rewards = shape_rewards(
        scores,
        rollout.logprobs,
        rollout.ref_logprobs,
        rollout.response_mask,
        kl_coef=kl_coef if params.kl_in == "reward" else 0.0,
        estimator=params.kl_estimator,
    )
    return (rescale(rewards, rollout.response_mask) if params.whiten_rewards else rewards), clipped


def build_batch(rollout: Rollout, rewards: Tensor, params: PPOParams) -> PPOBatch:
    """What the update trains on: advantages (whitened over the rollout) and returns (never).

    Whitening comes before clipping, and over the whole rollout: neither the micro-batches that were
    scored nor the minibatches that follow affect it. Advantages among the responses to a prompt are
    not whitened.
    """
    mask = rollout.response_mask
    result = _estimated(rewards, rollout, params)
    advantages = result.advantages
    if params.whiten_advantages and not params.compares_responses():
        advantages = whiten(advantages, mask)
    if params.advantage_clip is not None:
        advantages = advantages.clamp(-params.advantage_clip, params.advantage_clip)
    return PPOBatch(
        prompt_ids=rollout.prompt_ids,
        prompt_mask=rollout.prompt_mask,
        response_ids=rollout.response_ids,
        response_mask=mask,
        old_logprobs=rollout.logprobs,
        ref_logprobs=rollout.ref_logprobs,
        old_values=rollout.values,
        # The policy's loss is proportional to them, clipped or not: its tokens get these weights.
        advantages=advantages * _importance(rollout, params).weights,
        returns=result.returns,
    )


def _estimated(rewards: Tensor, rollout: Rollout, params: PPOParams) -> Advantages:
    mask, samples = rollout.response_mask, params.samples_per_prompt
    match params.advantage:
        case "gae":
            return gae(rewards, rollout.values, mask, gamma=params.gamma, lam=params.lam)
        case "rloo":
            return rloo(rewards, mask, samples_per_prompt=samples)
        case "grpo":
            std = params.grpo_std
            return grpo(rewards, mask, samples_per_prompt=samples, divide_by_std=std)
        case "reinforce_pp":
            return reinforce_pp(rewards, mask, gamma=params.gamma)


def _choose_prompts(
    prompts: Sequence[Sequence[int]], params: PPOParams, iteration: int, seeds: Seeds
) -> list[Sequence[int]]:
    """The iteration's slice of an endless order, reshuffled whenever it has been used up.

    Each prompt as often as it is to be responded to.
    """
    chosen: list[Sequence[int]] = []
    count = params.rollout_size // params.samples_per_prompt
    position = iteration * count
    while len(chosen) < count:
        epoch, index = divmod(position, len(prompts))
        order = torch.randperm(len(prompts), generator=seeds.torch("ppo", "prompts", epoch))
        taken = order[index : index + count - len(chosen)].tolist()
        chosen += [prompts[row] for row in taken]
        position += len(taken)
    return each_repeated(chosen, params.samples_per_prompt)


def _budget_used(kl: float, done: int, params: PPOParams) -> str | None:
    if params.kl_budget is None or kl <= params.kl_budget or done == params.iterations:
        return None
    return (
        f"the KL budget is used up ({kl:.2f} of {params.kl_budget} nats per response); PPO ends "
        f"after {done} of {params.iterations} iterations"
    )


def _sequence_kl(rollout: Rollout) -> float:
    log_ratio = rollout.logprobs - rollout.ref_logprobs
    return sequence_sums(log_ratio, rollout.response_mask).mean().item()
