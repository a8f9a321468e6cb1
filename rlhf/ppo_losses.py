"""The losses of PPO: clipped policy, value, KL as a loss, and the entropy bonus.

Each is a sum over real tokens divided by a count. `normaliser` is that count for the whole
optimiser step: given it, the results of the micro-batches of a step add up to those of the step, so
the micro-batch size changes neither a gradient nor a metric. Without it the count is that of the
mask at hand. Whatever stands behind a mask reaches neither loss nor gradient: `keep` stops the
gradient, the masked sum stops the value.
"""

from typing import NamedTuple

import torch
from torch.nn import functional

from rlhf.kl import approx_kl, kl_estimate
from rlhf.masked import Normaliser, keep, masked_mean
from rlhf.params.kl import KLEstimator
from rlhf.shapes import PerToken, ResponseMask, Scalar


class PolicyLoss(NamedTuple):
    """The clipped surrogate and what it did; the last two carry no gradient."""

    loss: Scalar
    clip_fraction: Scalar
    """Share of tokens at which the clip binds, so that they give no gradient."""
    approx_kl: Scalar
    """Mean of (r - 1) - log r, in nats per token."""


class ValueLoss(NamedTuple):
    """The error of the value model; the fraction carries no gradient."""

    loss: Scalar
    clip_fraction: Scalar
    """Share of tokens at which the clipped error is the larger one."""


def policy_loss(
    logprobs: PerToken,
    old_logprobs: PerToken,
    advantages: PerToken,
    response_mask: ResponseMask,
    *,
    clip_range: float,
    dual_clip: float | None = None,
    normaliser: Normaliser = None,
) -> PolicyLoss:
    """Clipped surrogate of PPO, as a loss (Schulman et al. 2017, eq. 7).

        r_t = π(a_t) / π_old(a_t)
        L_t = max(-A_t r_t, -A_t clip(r_t, 1 - ε, 1 + ε))

    With `dual_clip` c > 1, tokens with A_t < 0 cost at most -c A_t (Ye et al. 2020, eq. 5).
    """
    advantages = advantages.detach()
    ratio = keep(logprobs - old_logprobs, response_mask).exp()
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_range, 1 + clip_range)
    losses = torch.maximum(unclipped, clipped)
    if dual_clip is not None:
        losses = _dual_clipped(losses, advantages, dual_clip)
    return PolicyLoss(
        loss=masked_mean(losses, response_mask, normaliser=normaliser),
        clip_fraction=masked_mean(
            (clipped > unclipped).to(losses.dtype), response_mask, normaliser=normaliser
        ),
        approx_kl=approx_kl(
            logprobs.detach(), old_logprobs.detach(), response_mask, normaliser=normaliser
        ),
    )


def value_loss(
    values: PerToken,
    old_values: PerToken,
    returns: PerToken,
    response_mask: ResponseMask,
    *,
    clip_range: float | None,
    normaliser: Normaliser = None,
    huber_delta: float | None = None,
) -> ValueLoss:
    """Half the squared error of the values, clipped about the old ones (Schulman et al. 2017).

        L_t = ½ max((V_t - R_t)², (clip(V_t, V_old - ε, V_old + ε) - R_t)²)

    `clip_range` None turns clipping off. With `huber_delta` δ an error e beyond δ costs
    δ (|e| - δ/2) in place of e²/2 (Huber 1964).
    """
    values = keep(values, response_mask)
    old_values, returns = old_values.detach(), returns.detach()
    unclipped = _half_squared(values - returns, huber_delta)
    clipped = unclipped
    if clip_range is not None:
        near_old = old_values + (values - old_values).clamp(-clip_range, clip_range)
        clipped = _half_squared(near_old - returns, huber_delta)
    losses = torch.maximum(unclipped, clipped)
    return ValueLoss(
        loss=masked_mean(losses, response_mask, normaliser=normaliser),
        clip_fraction=masked_mean(
            (clipped > unclipped).to(losses.dtype), response_mask, normaliser=normaliser
        ),
    )


def kl_loss(
    logprobs: PerToken,
    ref_logprobs: PerToken,
    response_mask: ResponseMask,
    *,
    estimator: KLEstimator,
    normaliser: Normaliser = None,
) -> Scalar:
    """Mean KL to the reference over the real tokens, in nats, to be added to a loss with a weight.

    k2 has the gradient of KL(policy‖reference), k3 that of KL(reference‖policy), see `rlhf.kl`; k1
    raises ValueError. It holds for tokens sampled from the policy itself, so best in the first
    pass; and each token accounts for itself only, not for the KL of the tokens that follow it.
    """
    if estimator == "k1":
        raise ValueError("estimator: k1 has no use as a loss, its mean gradient is 0; use k2 or k3")
    kept = keep(logprobs, response_mask)
    kept_reference = keep(ref_logprobs.detach(), response_mask)
    estimate = kl_estimate(kept, kept_reference, estimator=estimator)
    return masked_mean(estimate, response_mask, normaliser=normaliser)


def entropy_bonus(
    entropy: PerToken, response_mask: ResponseMask, *, normaliser: Normaliser = None
) -> Scalar:
    """Mean entropy over the real tokens, in nats, to be subtracted from a loss with a weight."""
    return masked_mean(entropy, response_mask, normaliser=normaliser)


def _dual_clipped(losses: PerToken, advantages: PerToken, bound: float) -> PerToken:
    if not bound > 1:
        raise ValueError(f"dual_clip: expected a number above 1, found {bound}")
    return torch.where(advantages < 0, torch.minimum(losses, -bound * advantages), losses)


def _half_squared(errors: PerToken, huber_delta: float | None) -> PerToken:
    if huber_delta is None:
        return errors.square() / 2
    return functional.huber_loss(
        errors, torch.zeros_like(errors), reduction="none", delta=huber_delta
    )
