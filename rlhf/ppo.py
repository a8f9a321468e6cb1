"""Proximal policy optimisation of a language model against a reward model, one round.

For each rollout (notation of Schulman et al. 2017):

    answers  y ~ pi(. | x)                          rlhf.rollouts
    scores   s = reward model(x, y)                 normalised, once, by the model itself
    rewards  r_t = -kl_coef (log pi - log ref)_t, and s is added at the last real token
    values   V_t; advantages A_t by GAE, then whitened over the rollout; returns R_t = A_t + V_t
    update   several passes of minibatches on the clipped policy loss and the value loss

Where this differs from common implementations: the score falls on the last real token whether or
not the answer was cut; every mean is over real tokens of the whole optimiser step; values are not
clipped by default; log-probabilities of the rollout come from the training forward pass. All
randomness comes from named seeds, so a round can go on at any iteration.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlhf.advantages import explained_variance, gae
from rlhf.batches import PPOBatch, Rollout
from rlhf.compute import Compute
from rlhf.kl import KLController
from rlhf.logprobs import token_logprobs_and_entropy
from rlhf.losses import policy_loss, value_loss
from rlhf.masked import masked_sum, rescale, sequence_sums, whiten
from rlhf.optimisers import Optimiser, schedule_factor
from rlhf.params.ppo import PPOParams
from rlhf.rewards import (
    clip_scores,
    penalise_length,
    penalise_missing_end,
    replace_missing_end,
    shape_rewards,
)
from rlhf.rollouts import PPOModels, TokenIds, collect_rollout
from rlhf.seeding import Seeds


class TrainingStopped(RuntimeError):
    """Training ended itself, since going on would do harm; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PPOMetrics:
    """One iteration: a rollout and its update. KL and lengths are per answer, KL in nats."""

    score: float
    kl: float
    kl_coef: float
    reward: float
    entropy: float
    length: float
    finished: float
    clipped_scores: float
    policy_loss: float
    approx_kl: float
    clip_fraction: float
    ratio: float
    value_loss: float
    value_clip_fraction: float
    explained_variance: float
    grad_norm: float
    value_grad_norm: float
    optimiser_steps: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Iteration:
    """What the loop yields: figures, and the rollout for whoever wants to read samples."""

    metrics: PPOMetrics
    rollout: Rollout


class PPOTraining:
    """Models, optimisers and KL controller of a round, and how many iterations are done."""

    def __init__(self, models: PPOModels, params: PPOParams):
        """Fresh optimisers: each round starts without the moments of the one before."""
        actor = models.actor
        self.models = models
        self.optimiser = Optimiser(params.optimiser, actor.lm.named_parameters())
        value_weights = [(f"value_head.{n}", w) for n, w in actor.value_head.named_parameters()]
        if actor.value_trunk is not None:
            value_weights += list(actor.value_trunk.named_parameters())
        self.value_optimiser = Optimiser(params.value_optimiser, value_weights)
        self.controller = KLController(coef=params.kl_coef, adaptive=params.kl_adaptive)
        self.iteration = 0

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes from one iteration to the next."""
        return {
            "actor": self.models.actor.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "value_optimiser": self.value_optimiser.state_dict(),
            "controller": self.controller.state_dict(),
            "iteration": self.iteration,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.models.actor.load_state_dict(state["actor"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.value_optimiser.load_state_dict(state["value_optimiser"])
        self.controller.load_state_dict(state["controller"])
        self.iteration = state["iteration"]


def train(
    training: PPOTraining,
    prompts: Sequence[Sequence[int]],
    params: PPOParams,
    tokens: TokenIds,
    *,
    compute: Compute,
    seeds: Seeds,
) -> Iterator[Iteration]:
    """Run the round; yields after each iteration.

    Raises:
        TrainingStopped: the KL alarm went off, or a self-check failed.
        NonFiniteError: a gradient was not finite.
    """
    for iteration in range(training.iteration, params.iterations):
        chosen = _choose_prompts(prompts, params.rollout_size, iteration, seeds)
        rollout = collect_rollout(
            training.models,
            chosen,
            params.sampling,
            tokens,
            micro_batch_size=params.micro_batch_size,
            compute=compute,
            generator=seeds.torch("ppo", "sampling", iteration, device=compute.device),
        )
        kl_coef = training.controller.coef
        rewards, clipped = compute_rewards(rollout, params, kl_coef=kl_coef)
        batch = build_batch(rollout, rewards, params)
        kl = _sequence_kl(rollout)
        _check_kl(kl, iteration, params)
        update = _update(training, batch, params, iteration, compute=compute, seeds=seeds)
        training.controller.update(kl, len(rollout))
        training.iteration = iteration + 1
        metrics = PPOMetrics(
            score=rollout.scores.mean().item(),
            kl=kl,
            kl_coef=kl_coef,
            reward=sequence_sums(rewards, rollout.response_mask).mean().item(),
            length=rollout.response_mask.sum(dim=1).float().mean().item(),
            finished=rollout.ended.float().mean().item(),
            clipped_scores=clipped,
            explained_variance=explained_variance(
                batch.old_values, batch.returns, batch.response_mask
            ).item(),
            tokens=int(rollout.response_mask.sum()),
            **update,
        )
        yield Iteration(metrics, rollout)
        if params.kl_budget is not None and kl > params.kl_budget:
            return


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
        kl_coef=kl_coef,
        estimator=params.kl_estimator,
    )
    return (rescale(rewards, rollout.response_mask) if params.whiten_rewards else rewards), clipped


def build_batch(rollout: Rollout, rewards: Tensor, params: PPOParams) -> PPOBatch:
    """What the update trains on: advantages (whitened over the rollout) and returns (never)."""
    mask = rollout.response_mask
    result = gae(rewards, rollout.values, mask, gamma=params.gamma, lam=params.lam)
    advantages = result.advantages
    return PPOBatch(
        prompt_ids=rollout.prompt_ids,
        prompt_mask=rollout.prompt_mask,
        response_ids=rollout.response_ids,
        response_mask=mask,
        old_logprobs=rollout.logprobs,
        old_values=rollout.values,
        advantages=whiten(advantages, mask) if params.whiten_advantages else advantages,
        returns=result.returns,
    )


def _choose_prompts(
    prompts: Sequence[Sequence[int]], count: int, iteration: int, seeds: Seeds
) -> list[Sequence[int]]:
    """The iteration's slice of an endless order, reshuffled whenever it has been used up."""
    chosen: list[Sequence[int]] = []
    position = iteration * count
    while len(chosen) < count:
        epoch, index = divmod(position, len(prompts))
        order = torch.randperm(len(prompts), generator=seeds.torch("ppo", "prompts", epoch))
        taken = order[index : index + count - len(chosen)].tolist()
        chosen += [prompts[row] for row in taken]
        position += len(taken)
    return chosen


def _sequence_kl(rollout: Rollout) -> float:
    log_ratio = rollout.logprobs - rollout.ref_logprobs
    return sequence_sums(log_ratio, rollout.response_mask).mean().item()


def _check_kl(kl: float, iteration: int, params: PPOParams) -> None:
    if not math.isfinite(kl):
        raise TrainingStopped(f"iteration {iteration + 1}: the KL to the reference is {kl}")
    if kl < -params.kl_alarm:
        raise TrainingStopped(
            f"iteration {iteration + 1}: the mean KL per answer is {kl:.2f} nats, below "
            f"-{params.kl_alarm}: a KL cannot be this negative unless answers are sampled and "
            "scored differently (temperature, masks or weights)"
        )


def _update(
    training: PPOTraining,
    batch: PPOBatch,
    params: PPOParams,
    iteration: int,
    *,
    compute: Compute,
    seeds: Seeds,
) -> dict[str, Any]:
    """All passes over a rollout; means of the figures over the optimiser steps."""
    size = len(batch) // params.minibatches
    train_policy = iteration >= params.value_warmup_iterations
    rows: list[dict[str, float]] = []
    for epoch in range(params.value_epochs or params.epochs):
        on_policy = train_policy and epoch < params.epochs
        order = torch.randperm(
            len(batch), generator=seeds.torch("ppo", "minibatches", iteration, epoch)
        )
        for part in order.to(compute.device).split(size):
            figures = _optimise(training, batch.select(part), params, on_policy, iteration, compute)
            if on_policy and not any("ratio" in row for row in rows):
                _check_first_ratio(figures, iteration)
            rows.append(figures)
        if on_policy and params.target_approx_kl is not None:
            moved = sum(row["approx_kl"] for row in rows[-params.minibatches :])
            if moved / params.minibatches > params.target_approx_kl:
                break
    names = dict.fromkeys(name for row in rows for name in row)
    means = {name: _mean([row[name] for row in rows if name in row]) for name in names}
    silent = ("policy_loss", "approx_kl", "clip_fraction", "ratio", "grad_norm")
    return {**dict.fromkeys(silent, 0.0), **means, "optimiser_steps": len(rows)}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _check_first_ratio(figures: dict[str, float], iteration: int) -> None:
    """Before the first step of an update nothing has moved: ratio 1, KL 0, nothing clipped."""
    if abs(figures["ratio"] - 1) > 1e-3 or figures["approx_kl"] > 1e-4:
        raise TrainingStopped(
            f"self-check 'first ratio is 1' failed in iteration {iteration + 1}: ratio "
            f"{figures['ratio']:.6f}, approximate KL {figures['approx_kl']:.2e}"
        )


def _optimise(
    training: PPOTraining,
    minibatch: PPOBatch,
    params: PPOParams,
    train_policy: bool,
    iteration: int,
    compute: Compute,
) -> dict[str, float]:
    """One optimiser step; micro-batches add up to the gradient of the whole minibatch.

    Rows of similar length share a micro-batch, so that little padding is computed.
    """
    tokens = int(minibatch.response_mask.sum())
    lengths = minibatch.prompt_mask.sum(dim=1) + minibatch.response_mask.sum(dim=1)
    by_length = minibatch.select(lengths.argsort(stable=True))
    sums: dict[str, float] = {}
    for micro in by_length.split(params.micro_batch_size):
        with compute.autocast():
            loss, figures = _losses(training.models, micro.trimmed(), params, train_policy, tokens)
        loss.backward()
        for name, value in figures.items():
            sums[name] = sums.get(name, 0.0) + value.item()
    if train_policy:
        factor = schedule_factor(
            params.optimiser,
            iteration * params.epochs * params.minibatches,
            params.iterations * params.epochs * params.minibatches,
        )
        sums["grad_norm"] = training.optimiser.step(factor)
    else:
        training.optimiser.discard()
    sums["value_grad_norm"] = training.value_optimiser.step(1.0)
    return sums


def _losses(
    models: PPOModels, batch: PPOBatch, params: PPOParams, train_policy: bool, tokens: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a micro-batch and its figures, all divided by the minibatch's token count."""
    mask = batch.response_mask
    output = models.actor(batch.prompt_ids, batch.prompt_mask, batch.response_ids, mask)
    value = value_loss(
        output.values,
        batch.old_values,
        batch.returns,
        mask,
        clip_range=params.value_clip_range,
        normaliser=float(tokens),
    )
    loss = params.value_coef * value.loss
    figures = {"value_loss": value.loss, "value_clip_fraction": value.clip_fraction}
    current = token_logprobs_and_entropy(
        output.logits, batch.response_ids, temperature=params.sampling.temperature
    )
    entropy = masked_sum(current.entropy, mask) / tokens
    figures["entropy"] = entropy
    if train_policy:
        policy = policy_loss(
            current.logprobs,
            batch.old_logprobs,
            batch.advantages,
            mask,
            clip_range=params.clip_range,
            dual_clip=params.dual_clip,
            normaliser=float(tokens),
        )
        loss = loss + policy.loss - params.entropy_coef * entropy
        ratio = masked_sum((current.logprobs - batch.old_logprobs).exp(), mask) / tokens
        figures |= {
            "policy_loss": policy.loss,
            "approx_kl": policy.approx_kl,
            "clip_fraction": policy.clip_fraction,
            "ratio": ratio,
        }
    return loss, figures
