"""Generalised advantage estimation and the quality of a critic.

    δ_t = r_t + γ V_{t+1} - V_t
    A_t = δ_t + γλ A_{t+1}          (Schulman et al. 2016, eq. 16)
    R_t = A_t + V_t                 the target of the value model

t + 1 is the next real token. Behind the last one the episode is over: V and A are 0 there, and
nothing is bootstrapped from the padding. Masked positions in the middle of a row (a user's turn
between two of the policy's) are skipped: they cost no discount. The returns are built from
the advantages as they are, before any whitening.
"""

from typing import NamedTuple

import torch

from rlhf.masked import keep, masked_variance, noise_floor
from rlhf.shapes import PerToken, ResponseMask, Scalar


class Advantages(NamedTuple):
    """How much better than expected each token was, and what the value should have been."""

    advantages: PerToken
    returns: PerToken


def gae(
    rewards: PerToken,
    values: PerToken,
    response_mask: ResponseMask,
    *,
    gamma: float,
    lam: float,
) -> Advantages:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16) on the real tokens.

    Padding is exactly 0 in both results. Neither carries a gradient.
    """
    kept_values = keep(values.detach(), response_mask)
    columns = zip(
        rewards.detach().unbind(1), kept_values.unbind(1), response_mask.unbind(1), strict=True
    )
    next_value = torch.zeros_like(kept_values[:, 0])
    next_advantage = torch.zeros_like(next_value)
    reversed_advantages = []
    for reward, value, real in reversed(list(columns)):
        delta = reward + gamma * next_value - value
        advantage = delta + gamma * lam * next_advantage
        next_value = torch.where(real, value, next_value)
        next_advantage = torch.where(real, advantage, next_advantage)
        reversed_advantages.append(advantage)
    advantages = keep(torch.stack(reversed_advantages[::-1], dim=1), response_mask)
    return Advantages(advantages, advantages + kept_values)


def explained_variance(values: PerToken, returns: PerToken, mask: ResponseMask) -> Scalar:
    """Share of the variance of the returns that the values explain: 1 - Var(R - V) / Var(R).

    1 is a perfect critic, 0 one no better than a constant, below 0 a worse one. Constant returns
    leave nothing to explain and give 0, never NaN.
    """
    variance = masked_variance(returns, mask)
    constant = variance <= noise_floor(returns, mask)
    unexplained = masked_variance(returns - values, mask)
    return torch.where(constant, 0.0, 1 - unexplained / variance)
