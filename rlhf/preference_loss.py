"""The loss of a reward model: Bradley-Terry on the scores of pairs."""

from typing import NamedTuple

import torch
from torch.nn import functional

from rlhf.compute import sent
from rlhf.shapes import PerSequence, Scalar


class PreferenceLoss(NamedTuple):
    """The Bradley-Terry loss and how the pairs are ranked; the last two carry no gradient."""

    loss: Scalar
    accuracy: Scalar
    """Share of the pairs ranked as labelled, without labelled ties; equal scores count as half."""
    margin: Scalar
    """Mean of chosen minus rejected score."""


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
    to a constant, near 0. All results are means weighted by `weights`. Their sum is read: where
    they lie on the host, no device is waited for.
    """
    gaps = chosen_scores - rejected_scores
    deltas = gaps if margins is None else gaps - margins
    labels = torch.ones_like(gaps) if soft_labels is None else soft_labels
    smooth = labels * (1 - label_smoothing) + (1 - labels) * label_smoothing
    agree, disagree = functional.logsigmoid(deltas), functional.logsigmoid(-deltas)
    losses = -smooth * agree - (1 - smooth) * disagree
    centring = centring_coef * (chosen_scores + rejected_scores).square()
    weights = torch.ones(gaps.shape, dtype=gaps.dtype) if weights is None else weights
    shares = sent(_shares(weights), gaps.device)
    return PreferenceLoss(
        loss=(shares * (losses + centring)).sum(),
        accuracy=_accuracy(gaps.detach(), labels, shares),
        margin=(shares * gaps.detach()).sum(),
    )


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
