"""The losses of PPO, of the reward model and of supervised fine-tuning.

Each is a sum over real tokens (or pairs) divided by a count. `normaliser` is that count for the
whole optimiser step: given it, the results of the micro-batches of a step add up to those of the
step, so the micro-batch size changes neither a gradient nor a metric. Without it the count is
that of the mask at hand. Whatever stands behind a mask reaches neither loss nor gradient: `keep`
closes the way of the gradient, the masked sum that of the value.
"""

from typing import NamedTuple

import torch
from torch.nn import functional

from rlhf.kl import approx_kl_per_token, kl_estimate
from rlhf.masked import accumulation_dtype, keep, masked_sum, token_count
from rlhf.params.kl import KLEstimator
from rlhf.shapes import (
    AttentionMask,
    PerSequence,
    PerToken,
    ResponseMask,
    Scalar,
    SequenceLogits,
    TokenIds,
)

Normaliser = Scalar | float | int | None


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


class PreferenceLoss(NamedTuple):
    """The Bradley-Terry loss and how the pairs stand; the last two carry no gradient."""

    loss: Scalar
    accuracy: Scalar
    """Share of the pairs ranked as labelled; equal scores count as half, labelled ties not."""
    margin: Scalar
    """Mean of chosen minus rejected score."""


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

    With `dual_clip` c > 1, tokens of A_t < 0 lose at most -c A_t (Ye et al. 2020, eq. 5).
    """
    advantages = advantages.detach()
    ratio = keep(logprobs - old_logprobs, response_mask).exp()
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_range, 1 + clip_range)
    losses = torch.maximum(unclipped, clipped)
    if dual_clip is not None:
        losses = _dual_clipped(losses, advantages, dual_clip)
    kl = approx_kl_per_token(logprobs.detach(), old_logprobs.detach(), response_mask)
    return PolicyLoss(
        loss=_normalised(losses, response_mask, normaliser),
        clip_fraction=_share(clipped > unclipped, response_mask, normaliser, losses.dtype),
        approx_kl=_normalised(kl, response_mask, normaliser),
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

    `clip_range` None leaves the clip out. With `huber_delta` δ an error e beyond δ costs
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
        loss=_normalised(losses, response_mask, normaliser),
        clip_fraction=_share(clipped > unclipped, response_mask, normaliser, losses.dtype),
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
    pass; and each token answers for itself only, not for the KL of the tokens that follow it.
    """
    if estimator == "k1":
        raise ValueError("estimator: k1 has no use as a loss, its mean gradient is 0; use k2 or k3")
    kept = keep(logprobs, response_mask)
    kept_reference = keep(ref_logprobs.detach(), response_mask)
    estimate = kl_estimate(kept, kept_reference, estimator=estimator)
    return _normalised(estimate, response_mask, normaliser)


def entropy_bonus(
    entropy: PerToken, response_mask: ResponseMask, *, normaliser: Normaliser = None
) -> Scalar:
    """Mean entropy over the real tokens, in nats, to be subtracted from a loss with a weight."""
    return _normalised(entropy, response_mask, normaliser)


def preference_loss(
    chosen_scores: PerSequence,
    rejected_scores: PerSequence,
    *,
    margins: PerSequence | None = None,
    weights: PerSequence | None = None,
    label_smoothing: float = 0.0,
    soft_labels: PerSequence | None = None,
    centring_coef: float = 0.0,
) -> PreferenceLoss:
    """Bradley-Terry loss of a reward model (Christiano et al. 2017, section 2.2.3).

        Δ = chosen - rejected - margin
        L = -p log σ(Δ) - (1 - p) log σ(-Δ) + c (chosen + rejected)²

    p is the soft label (1: chosen surely better; ½: a tie), moved towards ½ by smoothing s to
    p (1 - s) + (1 - p) s. The centring term keeps the scores, which the comparisons leave free up
    to a constant, near 0. All results are means weighted by `weights`.
    """
    gaps = chosen_scores - rejected_scores
    deltas = gaps if margins is None else gaps - margins
    labels = torch.ones_like(gaps) if soft_labels is None else soft_labels
    smooth = labels * (1 - label_smoothing) + (1 - labels) * label_smoothing
    agree, disagree = functional.logsigmoid(deltas), functional.logsigmoid(-deltas)
    losses = -smooth * agree - (1 - smooth) * disagree
    centring = centring_coef * (chosen_scores + rejected_scores).square()
    shares = _shares(torch.ones_like(gaps) if weights is None else weights)
    return PreferenceLoss(
        loss=(shares * (losses + centring)).sum(),
        accuracy=_accuracy(gaps.detach(), labels, shares),
        margin=(shares * gaps.detach()).sum(),
    )


def language_model_loss(
    logits: SequenceLogits,
    labels: TokenIds,
    loss_mask: AttentionMask,
    *,
    normaliser: Normaliser = None,
) -> Scalar:
    """Mean of -log p(label) over the tokens under the mask, in nats per token.

    The logits at position t predict the label at position t: the caller has shifted them already
    (`logits[:, :-1]` with `ids[:, 1:]`). Labels behind the mask may be anything.
    """
    picked = logits[loss_mask]
    total = functional.cross_entropy(
        picked.to(accumulation_dtype(picked)), labels[loss_mask], reduction="sum"
    )
    return total / (token_count(loss_mask) if normaliser is None else normaliser)


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


def _normalised(values: PerToken, mask: ResponseMask, normaliser: Normaliser) -> Scalar:
    """Masked sum over the count of the optimiser step, or of this mask where none is given."""
    return masked_sum(values, mask) / (token_count(mask) if normaliser is None else normaliser)


def _share(
    hits: ResponseMask, mask: ResponseMask, normaliser: Normaliser, dtype: torch.dtype
) -> Scalar:
    return _normalised(hits.to(dtype), mask, normaliser)


def _shares(weights: PerSequence) -> PerSequence:
    """Weights divided by their sum."""
    total = weights.sum()
    if not bool(total > 0):
        raise ValueError(f"weights: expected a sum above 0, found {float(total)}")
    return weights / total


def _accuracy(gaps: PerSequence, labels: PerSequence, shares: PerSequence) -> Scalar:
    """Weighted share of decided pairs ranked as labelled; ½ where every pair is a tie."""
    direction = torch.sign(2 * labels - 1)
    decided = shares * direction.abs()
    agreement = (1 + torch.sign(gaps) * direction) / 2
    total = decided.sum()
    none_decided = total == 0
    accuracy = (decided * agreement).sum() / torch.where(none_decided, 1.0, total)
    return torch.where(none_decided, 0.5, accuracy)
