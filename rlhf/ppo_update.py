"""The update of PPO: passes of minibatches over one rollout, and everything they change.

Without a value function there is no value loss, and no optimiser for it.

Every metric and every gradient is divided by the token count of the whole minibatch, so that the
size of the micro-batches changes neither, nor does the number of processes.
"""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rlhf.actor_critic import ActorCritic
from rlhf.batches import PPOBatch
from rlhf.compute import Compute, sent
from rlhf.kl import KLController
from rlhf.optimisers import (
    Optimiser,
    changing_weights,
    load_weights,
    read_step,
    require_finite_norms,
    schedule_factor,
)
from rlhf.params.optimiser import OptimiserParams
from rlhf.params.ppo import PPOParams
from rlhf.ppo_guards import Flat, check_first_step, check_losses
from rlhf.ppo_metrics import UpdateMetrics
from rlhf.ppo_objective import Part, Setting, losses
from rlhf.rollouts import MicroBatches, PPOModels
from rlhf.seeding import Seeds
from rlhf.sharding import Held
from rlhf.weight_average import WeightAverage


class PPOTraining:
    """Models, optimisers and KL controller of a round, and its progress."""

    def __init__(self, models: PPOModels, params: PPOParams, held: Held | None = None):
        """Fresh optimisers: each round starts without the moments of the one before.

        `held` divides the actor, which every process has whole without it.
        """
        actor = models.actor
        self.models = models
        self.held = Held(actor) if held is None else held
        self.optimiser = Optimiser(params.optimiser, actor.lm.named_parameters())
        self.value_optimiser = _value_optimiser(actor, params)
        self.controller = KLController(coef=params.kl_coef, adaptive=params.kl_adaptive)
        self.average: WeightAverage | None = None
        if params.average_decay is not None:
            self.average = WeightAverage(actor.lm, params.average_decay)
        self._value_only = params.value_warmup_iterations
        self.iteration = 0
        self.flat = Flat()
        self.end: str | None = None
        """Why the round ended although iterations are left."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes from one iteration to the next."""
        return {
            "actor": changing_weights(self.models.actor),
            "optimiser": self.optimiser.state_dict(),
            "value_optimiser": _state_of(self.value_optimiser),
            "controller": self.controller.state_dict(),
            "average": _state_of(self.average),
            "iteration": self.iteration,
            "flat": asdict(self.flat),
            "end": self.end,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        load_weights(self.models.actor, state["actor"])
        self.optimiser.load_state_dict(state["optimiser"])
        if self.value_optimiser is not None:
            self.value_optimiser.load_state_dict(state["value_optimiser"])
        self.controller.load_state_dict(state["controller"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.iteration = state["iteration"]
        self.flat = Flat(**state["flat"])
        self.end = state["end"]

    def sampling_models(self, compute: Compute) -> PPOModels:
        """The models with an actor that responds and scores without the other processes."""
        return self.models._replace(actor=self.held.whole(compute))

    def require_finite_weights(self) -> None:
        """Raise NonFiniteError where a weight in training is NaN or infinite."""
        self.optimiser.require_finite_weights()
        if self.value_optimiser is not None:
            self.value_optimiser.require_finite_weights()

    def finish_iteration(self, kl: float, responses: int) -> None:
        """What follows the update of an iteration: the controller, the average, the count."""
        if self.iteration >= self._value_only:
            self.controller.update(kl, responses)
            if self.average is not None:
                self.average.add()
        self.iteration += 1


def _value_optimiser(actor: ActorCritic, params: PPOParams) -> Optimiser | None:
    assert (actor.value_head is not None) == params.has_value_function()
    if actor.value_head is None:
        return None
    weights = [(f"value_head.{n}", w) for n, w in actor.value_head.named_parameters()]
    if actor.value_trunk is not None:
        weights += list(actor.value_trunk.named_parameters())
    return Optimiser(params.value_optimiser, weights)


def _state_of(part: Optimiser | WeightAverage | None) -> dict[str, Any] | None:
    return None if part is None else part.state_dict()


def update(
    training: PPOTraining,
    batch: PPOBatch,
    params: PPOParams,
    iteration: int,
    *,
    compute: Compute,
    seeds: Seeds,
) -> UpdateMetrics:
    """All passes over a rollout; means of the metrics over the optimiser steps.

    Raises:
        SelfCheckError: something had moved before the first step.
        NonFiniteError: a loss, a gradient or a weight was not finite.
    """
    train_policy = iteration >= params.value_warmup_iterations
    rows: list[dict[str, float]] = []
    masks = batch.masks()
    passes = params.value_epochs or params.epochs
    for epoch in range(passes):
        on_policy = train_policy and epoch < params.epochs
        for part in _minibatches(len(batch), params, iteration, epoch, seeds):
            minibatch = Part(_select(batch, part), masks.select(part))
            row = _optimise(training, minibatch, params, on_policy, iteration, compute)
            if on_policy and not any("ratio" in earlier for earlier in rows):
                check_first_step(row, iteration)
            rows.append(row)
        if on_policy and params.target_approx_kl is not None:
            moved = sum(row["approx_kl"] for row in rows[-params.minibatches :])
            if moved / params.minibatches > params.target_approx_kl:
                break
    training.require_finite_weights()
    names = dict.fromkeys(name for row in rows for name in row)
    means = {name: _mean([row[name] for row in rows if name in row]) for name in names}
    skipped = passes - len(rows) // params.minibatches
    return UpdateMetrics(**means, optimiser_steps=len(rows), skipped_passes=skipped)


def micro_batches(
    rows: int, params: PPOParams, iteration: int, compute: Compute, seeds: Seeds
) -> MicroBatches:
    """How to score a rollout so that, as far as the precision needs it, its first pass agrees."""
    first_pass = None
    if compute.precision != "float32":
        first_pass = _minibatches(rows, params, iteration, 0, seeds)
    return MicroBatches(params.micro_batch_size, first_pass, params.packing)


def _minibatches(
    rows: int, params: PPOParams, iteration: int, epoch: int, seeds: Seeds
) -> tuple[Tensor, ...]:
    """The rows of each minibatch of a pass, in the order in which they train."""
    order = torch.randperm(rows, generator=seeds.torch("ppo", "minibatches", iteration, epoch))
    parts: tuple[Tensor, ...] = order.split(rows // params.minibatches)
    return parts


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _select(batch: PPOBatch, rows: Tensor) -> PPOBatch:
    """Rows that the host chose, without waiting for the batch's device."""
    return batch.select(sent(rows, batch.prompt_ids.device))


def _optimise(
    training: PPOTraining,
    minibatch: Part,
    params: PPOParams,
    train_policy: bool,
    iteration: int,
    compute: Compute,
) -> dict[str, float]:
    """One optimiser step, from the gradient of the whole minibatch."""
    names, parts = _backward(training, minibatch, params, train_policy, compute)
    stepping = {}
    if train_policy:
        stepping["grad_norm"] = training.optimiser
    else:
        training.optimiser.discard()
    if training.value_optimiser is not None:
        stepping["value_grad_norm"] = training.value_optimiser
    found = read_step(parts, len(names), list(stepping.values()))
    sums = dict(zip(names, found.totals, strict=True))
    check_losses(sums, iteration)
    require_finite_norms(found.norms)
    sums |= zip(stepping, found.norms, strict=True)
    if train_policy:
        alone = params.value_warmup_iterations
        policy = params.optimiser
        training.optimiser.apply(_rate(policy, params.epochs, iteration, params, after=alone))
    if training.value_optimiser is not None:
        epochs = params.value_epochs or params.epochs
        training.value_optimiser.apply(_rate(params.value_optimiser, epochs, iteration, params))
    return sums


def _backward(
    training: PPOTraining,
    minibatch: Part,
    params: PPOParams,
    train_policy: bool,
    compute: Compute,
) -> tuple[list[str], list[list[Tensor]]]:
    """Micro-batches add up to the gradient of the whole minibatch, and to metrics of these names.

    Rows of similar length share a micro-batch, so that little padding is computed.
    """
    batch, masks = minibatch
    tokens = int(masks.response.sum())
    by_length = masks.lengths().argsort(stable=True)
    actor, setting = training.models.actor, Setting(params, training.controller.coef, tokens)
    names: list[str] = []
    found: list[list[Tensor]] = []
    with training.held.step(compute):
        for micro in training.held.micro_batches(by_length, params.micro_batch_size):
            real = masks.select(micro.rows)
            part = Part(_select(batch, micro.rows).trimmed(real), real.trimmed())
            metrics: dict[str, Tensor] = {}
            for loss_of in losses(actor, train_policy=train_policy):
                with compute.autocast():
                    loss, read = training.held.compute(partial(loss_of, actor, part, setting))
                micro.counted(loss).backward()
                metrics |= {name: micro.counted(value).detach() for name, value in read.items()}
            names = list(metrics)
            found.append(list(metrics.values()))
    return names, found


def _rate(
    optimiser: OptimiserParams, epochs: int, iteration: int, params: PPOParams, *, after: int = 0
) -> float:
    """Fraction of the peak learning rate; it changes from rollout to rollout, not within one.

    The schedule begins `after` so many iterations, in which this optimiser has not stepped.
    """
    steps = epochs * params.minibatches
    return schedule_factor(
        optimiser, (iteration - after) * steps, (params.iterations - after) * steps
    )
