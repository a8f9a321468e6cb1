"""Log-probabilities and entropy of a policy's tokens.

    log π(a_t) = z_{t,a_t} / T - log Σ_v exp(z_{t,v} / T)
    H_t        = - Σ_v π(v) log π(v)

The same temperature T divides the logits in sampling, in old, new and reference log-probabilities
and in the entropy: one policy, one distribution. Half-precision logits are read in float32. Token
ids in the padding must be legal ids (0 will do); what is computed there is for a mask to drop.
"""

from typing import NamedTuple

import torch

from rlhf.masked import accumulation_dtype
from rlhf.picked_logprobs import is_used_for, picked_logprobs, picked_logprobs_and_entropy
from rlhf.shapes import Logits, PerToken, ResponseIds


class TokenLogprobs(NamedTuple):
    """What one log-softmax gives at every response position."""

    logprobs: PerToken
    entropy: PerToken


def token_logprobs(logits: Logits, token_ids: ResponseIds, *, temperature: float) -> PerToken:
    """Log-probability of each token under the policy, in nats."""
    if is_used_for(logits):
        return picked_logprobs(_wide(logits, temperature), token_ids, temperature=temperature)
    return _pick(log_policy(logits, temperature=temperature), token_ids)


def token_logprobs_and_entropy(
    logits: Logits, token_ids: ResponseIds, *, temperature: float, train_entropy: bool = True
) -> TokenLogprobs:
    """Log-probability of each token and entropy at each position, from one log-softmax.

    Both are in nats; the entropy lies between 0 and log(vocabulary). An entropy that no loss
    uses (`train_entropy=False`) needs no gradient, which costs six passes over the logits.
    """
    if is_used_for(logits) and not train_entropy:
        wide = _wide(logits, temperature)
        found = picked_logprobs_and_entropy(wide, token_ids, temperature=temperature)
        return TokenLogprobs(*found)
    log_probabilities = log_policy(logits, temperature=temperature)
    with torch.set_grad_enabled(train_entropy and torch.is_grad_enabled()):
        entropies = _entropy(log_probabilities)
    return TokenLogprobs(_pick(log_probabilities, token_ids), entropies)


def log_policy(logits: Logits, *, temperature: float) -> Logits:
    """Log-probability of every token of the vocabulary at each position, in nats."""
    wide = _wide(logits, temperature)
    # Dividing by 1 changes no bit, but it reads and writes all logits, forward and backward.
    return torch.log_softmax(wide if temperature == 1 else wide / temperature, dim=-1)


def _wide(logits: Logits, temperature: float) -> Logits:
    if not temperature > 0:
        raise ValueError(f"temperature: expected a number above 0, found {temperature}")
    return logits.to(accumulation_dtype(logits))


def _pick(log_probabilities: Logits, token_ids: ResponseIds) -> PerToken:
    if log_probabilities.device.type == "cpu":
        return log_probabilities.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)
    # The gradient of `gather` makes the host wait for a GPU whose algorithms are deterministic.
    rows = log_probabilities.flatten(0, -2)
    row = torch.arange(len(rows), device=rows.device)
    return rows[row, token_ids.flatten()].view(token_ids.shape)


def _entropy(log_probabilities: Logits) -> PerToken:
    # A forbidden token has log-probability -inf; it adds p log p = 0, where 0 · inf would be NaN.
    finite = log_probabilities.masked_fill(log_probabilities == -torch.inf, 0.0)
    return -(log_probabilities.exp() * finite).sum(dim=-1)
