"""The objective of PPO on one micro-batch, in as many losses as need no activation in common.

Every loss and metric is divided by the token count of the whole minibatch.
"""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from rlhf.actor_critic import ActorCritic
from rlhf.batches import HostMasks, PPOBatch
from rlhf.masked import masked_mean
from rlhf.params.ppo import PPOParams
from rlhf.ppo_losses import entropy_bonus, kl_loss, policy_loss, value_loss
from rlhf.shapes import HiddenStates
from rlhf.token_chunks import chunked_logprobs_and_entropy

Loss = tuple[Tensor, dict[str, Tensor]]
"""A loss of a micro-batch, and what it says by name."""


class Part(NamedTuple):
    """A micro-batch, and which of its tokens are real, on the host."""

    batch: PPOBatch
    masks: HostMasks


class Setting(NamedTuple):
    """What a minibatch is trained with."""

    params: PPOParams
    kl_coef: float
    """Of the penalty, where it is a part of the loss."""
    tokens: int
    """Response tokens of the whole minibatch."""


def losses(actor: ActorCritic, *, train_policy: bool) -> list[Callable[..., Loss]]:
    """The losses of a micro-batch that have a forward and a backward pass of their own.

    A separate value model shares nothing with the policy: so one's activations are let go before
    the other's are computed, and no gradient is another.
    """
    if not train_policy:
        return [_loss_of_values]
    return [_loss_of_both] if actor.value_trunk is None else [_loss_of_values, _loss_of_policy]


def _loss_of_values(actor: ActorCritic, part: Part, setting: Setting) -> Loss:
    values = actor.values(*_rows(part), packing=setting.params.packing)
    return _value_part(values, part.batch, setting)


def _loss_of_policy(actor: ActorCritic, part: Part, setting: Setting) -> Loss:
    hidden = actor.hidden(*_rows(part), packing=setting.params.packing)
    return _policy_part(actor, hidden, part, setting)


def _loss_of_both(actor: ActorCritic, part: Part, setting: Setting) -> Loss:
    states = actor.states(*_rows(part), packing=setting.params.packing)
    value_loss, metrics = _value_part(states.values, part.batch, setting)
    loss, others = _policy_part(actor, states.hidden, part, setting)
    return value_loss + loss, metrics | others


def _rows(part: Part) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, masks = part
    return batch.prompt_ids, masks.prompt, batch.response_ids, masks.response


def _policy_part(actor: ActorCritic, hidden: HiddenStates, part: Part, setting: Setting) -> Loss:
    """The policy's loss and its metrics, all divided by the minibatch's token count."""
    params, tokens, batch = setting.params, setting.tokens, part.batch
    mask = batch.response_mask
    current = chunked_logprobs_and_entropy(
        actor.lm,
        hidden,
        batch.response_ids,
        temperature=params.sampling.temperature,
        train_entropy=params.entropy_coef != 0,
        only=part.masks.response if params.packing else None,
    )
    entropy = entropy_bonus(current.entropy, mask, normaliser=float(tokens))
    policy = policy_loss(
        current.logprobs,
        batch.old_logprobs,
        batch.advantages,
        mask,
        clip_range=params.clip_range,
        dual_clip=params.dual_clip,
        normaliser=float(tokens),
    )
    loss = policy.loss - params.entropy_coef * entropy
    ratios = (current.logprobs - batch.old_logprobs).exp()
    metrics = {
        "entropy": entropy,
        "policy_loss": policy.loss,
        "approx_kl": policy.approx_kl,
        "clip_fraction": policy.clip_fraction,
        "ratio": masked_mean(ratios, mask, normaliser=float(tokens)),
    }
    if params.kl_in == "loss":
        metrics["kl_loss"] = kl_loss(
            current.logprobs,
            batch.ref_logprobs,
            mask,
            estimator=params.kl_estimator,
            normaliser=float(tokens),
        )
        loss = loss + setting.kl_coef * metrics["kl_loss"]
    return loss, metrics


def _value_part(values: Tensor, batch: PPOBatch, setting: Setting) -> Loss:
    """The weighted value loss and its metrics; 0 and none without a value function."""
    params, tokens = setting.params, setting.tokens
    if not params.has_value_function():
        return values.new_zeros(()), {}
    value = value_loss(
        values,
        batch.old_values,
        batch.returns,
        batch.response_mask,
        clip_range=params.value_clip_range,
        normaliser=float(tokens),
        huber_delta=params.value_huber_delta,
    )
    metrics = {"value_loss": value.loss, "value_clip_fraction": value.clip_fraction}
    return params.value_coef * value.loss, metrics
