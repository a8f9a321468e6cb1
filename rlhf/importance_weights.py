"""Importance weights of tokens that another policy has sampled.

    w_t = min(π_old(a_t) / μ(a_t), C)

An engine that samples with the policy's own weights is another policy μ, since its kernels round
otherwise (Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL
training"). Each token's policy loss is multiplied by its weight. The cap C bounds the variance, at
the cost of a bias where it binds. Where μ is π_old, every weight is 1.
"""

from typing import NamedTuple

from rlhf.masked import keep, masked_mean
from rlhf.shapes import PerToken, ResponseMask, Scalar


class ImportanceWeights(NamedTuple):
    """What corrects for another sampler; behind the mask every weight is 1."""

    weights: PerToken
    truncated: Scalar
    """Share of tokens whose weight is the cap."""


def importance_weights(
    logprobs: PerToken, sampler_logprobs: PerToken, response_mask: ResponseMask, *, cap: float
) -> ImportanceWeights:
    """Truncated weights of the sampled tokens, from what policy and sampler say of them."""
    ratio = keep(logprobs - sampler_logprobs, response_mask).exp()
    truncated = (ratio > cap).to(ratio.dtype)
    return ImportanceWeights(ratio.clamp(max=cap), masked_mean(truncated, response_mask))
