"""From one score per response to one reward per token.

    r_t = -β KL_t                       at every real token, the end token included
    r_T = -β KL_T + score               at the last real token T, end token or not
    r_t = 0                             in the padding

so that the rewards of a response sum to score - β Σ_t KL_t (Ziegler et al. 2019, eq. 2). The score
is first corrected by the functions below; none of them touches the KL part.

Where we differ from the common code: the score stands on the last real token itself, never on the
padding behind it, so finished and cut-off responses are treated alike.
"""

from typing import NamedTuple

import torch

from rlhf.kl import kl_estimate
from rlhf.masked import keep, last_token_index, sequence_sums
from rlhf.params.kl import KLEstimator
from rlhf.shapes import PerSequence, PerSequenceFlag, PerToken, ResponseMask, Scalar


class ClippedScores(NamedTuple):
    """Scores within bounds, and how many had to be moved there."""

    scores: PerSequence
    clipped_fraction: Scalar


def shape_rewards(
    scores: PerSequence,
    logprobs: PerToken,
    ref_logprobs: PerToken,
    response_mask: ResponseMask,
    *,
    kl_coef: float,
    estimator: KLEstimator = "k1",
) -> PerToken:
    """Reward of each token: KL penalty everywhere, score on the last real token; no gradient.

    A response without a real token raises `EmptyMaskError`.
    """
    kl = kl_estimate(logprobs.detach(), ref_logprobs.detach(), estimator=estimator)
    penalties = keep(-kl_coef * kl, response_mask)
    last = last_token_index(response_mask).unsqueeze(1)
    positions = torch.arange(response_mask.shape[1], device=response_mask.device)
    with_score = penalties + scores.detach().unsqueeze(1)
    return torch.where(positions == last, with_score, penalties)


def penalise_missing_end(
    scores: PerSequence, ended: PerSequenceFlag, *, penalty: float
) -> PerSequence:
    """Scores with `penalty` subtracted from responses that have no end token."""
    return torch.where(ended, scores, scores - penalty)


def replace_missing_end(
    scores: PerSequence, ended: PerSequenceFlag, *, replacement: float
) -> PerSequence:
    """Scores with `replacement` in the place of those of responses that have no end token."""
    return torch.where(ended, scores, replacement)


def penalise_length(
    scores: PerSequence, response_mask: ResponseMask, *, per_token: float
) -> PerSequence:
    """Scores with `per_token` subtracted for each real token of the response."""
    lengths = sequence_sums(torch.ones_like(response_mask, dtype=scores.dtype), response_mask)
    return scores - per_token * lengths


def clip_scores(scores: PerSequence, *, limit: float) -> ClippedScores:
    """Scores bounded to [-limit, limit], and the fraction that lay outside."""
    if not limit > 0:
        raise ValueError(f"limit: expected a number above 0, found {limit}")
    outside = (scores.abs() > limit).to(scores.dtype)
    return ClippedScores(scores.clamp(-limit, limit), outside.mean())
