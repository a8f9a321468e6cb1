"""Estimators of the advantage, and the quality of a critic.

With a value function, generalised advantage estimation (Schulman et al. 2016, eq. 16):

    δ_t = r_t + γ V_{t+1} - V_t
    A_t = δ_t + γλ A_{t+1}
    R_t = A_t + V_t                 the target of the value model

t + 1 is the next real token. Behind the last one the episode is over: V and A are 0 there, and
nothing is bootstrapped from the padding. Masked positions in the middle of a row (a user's turn
between two of the policy's) are skipped: they cost no discount. The returns are built from
the advantages as they are, before any whitening.

Without one, R = Σ_t r_t of each of the k responses to a prompt, the same advantage for all tokens
of a response:

    rloo           A_i = R_i - mean of the other k - 1       (Ahmadian et al. 2024, section 3.2)
    grpo           A_i = (R_i - mean) / std                  (Shao et al. 2024, section 4.1.2)
                   A_i = R_i - mean                          (Liu et al. 2025, "Dr. GRPO")

or the return from each token on, for prompts with any number of responses:

    reinforce_pp   A_t = R_t = r_t + γ R_{t+1}               (Hu 2025, section 3)

What r_t holds is for `rlhf.reward_shaping`: the KL penalty of every token too, or the score alone.
REINFORCE++ then whitens its advantages over the rollout, as PPO does; the others do not.

Where this differs from the papers: GRPO's std is the one of a sample (divided by k - 1), as the
common code has it, without an epsilon; responses whose returns differ by no more than rounding
give 0. GRPO's mean of each response's mean loss is the mean over all tokens here (`rlhf.ppo`).
"""

from typing import NamedTuple

import torch

from rlhf.masked import keep, masked_variance, noise_floor, noise_floors, sequence_sums
from rlhf.shapes import PerPrompt, PerToken, ResponseMask, Scalar


class Advantages(NamedTuple):
    """How much better than expected each token was, and the return that says so.

    To a value function the returns are what it should have said.
    """

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


def rloo(rewards: PerToken, response_mask: ResponseMask, *, samples_per_prompt: int) -> Advantages:
    """Leave-one-out: a response's return less the mean of the others' to its prompt, at each token.

    Each `samples_per_prompt` rows on end belong to one prompt (Ahmadian et al. 2024).
    """
    returns = _grouped_returns(rewards, response_mask, samples_per_prompt)
    others = (returns.sum(dim=1, keepdim=True) - returns) / (samples_per_prompt - 1)
    return _at_every_token(returns - others, returns, response_mask)


def grpo(
    rewards: PerToken, response_mask: ResponseMask, *, samples_per_prompt: int, divide_by_std: bool
) -> Advantages:
    """A response's return less the mean of all to its prompt, over their standard deviation or not.

    Each `samples_per_prompt` rows on end belong to one prompt (Shao et al. 2024; without the
    division Liu et al. 2025). Where all returns of a prompt are equal, the advantages are 0.
    """
    returns = _grouped_returns(rewards, response_mask, samples_per_prompt)
    advantages = returns - returns.mean(dim=1, keepdim=True)
    if divide_by_std:
        variance = advantages.square().sum(dim=1, keepdim=True) / (samples_per_prompt - 1)
        # Of each prompt its own: the rounding of returns in the millions is not that of others.
        constant = variance <= noise_floors(returns)
        scale = torch.where(constant, 0.0, torch.where(constant, 1.0, variance).rsqrt())
        advantages = advantages * scale
    return _at_every_token(advantages, returns, response_mask)


def reinforce_pp(rewards: PerToken, response_mask: ResponseMask, *, gamma: float) -> Advantages:
    """The discounted return from each token on, which whitening makes an advantage (Hu 2025).

    It is what `gae` gives at λ = 1 for values of 0.
    """
    return gae(rewards, torch.zeros_like(rewards), response_mask, gamma=gamma, lam=1.0)


def explained_variance(values: PerToken, returns: PerToken, mask: ResponseMask) -> Scalar:
    """Share of the variance of the returns that the values explain: 1 - Var(R - V) / Var(R).

    1 is a perfect critic, 0 one no better than a constant, below 0 a worse one. Constant returns
    leave nothing to explain and give 0, never NaN.
    """
    variance = masked_variance(returns, mask)
    constant = variance <= noise_floor(returns, mask)
    unexplained = masked_variance(returns - values, mask)
    return torch.where(constant, 0.0, 1 - unexplained / variance)


def _grouped_returns(
    rewards: PerToken, response_mask: ResponseMask, samples_per_prompt: int
) -> PerPrompt:
    """The sum of each response's rewards, with the responses to a prompt in one row."""
    if samples_per_prompt < 2 or len(rewards) % samples_per_prompt:
        raise ValueError(
            f"samples_per_prompt: expected 2 or more that divide {len(rewards)} responses, found "
            f"{samples_per_prompt}"
        )
    return sequence_sums(rewards.detach(), response_mask).view(-1, samples_per_prompt)


def _at_every_token(
    advantages: PerPrompt, returns: PerPrompt, response_mask: ResponseMask
) -> Advantages:
    """One number for each response, at each of its real tokens."""
    columns = (numbers.view(-1, 1).expand_as(response_mask) for numbers in (advantages, returns))
    return Advantages(*(keep(column, response_mask) for column in columns))
