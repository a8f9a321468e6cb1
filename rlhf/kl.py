"""Kullback-Leibler divergence: estimates from samples, the exact value, and its control.

With x sampled from the policy π and d = log π(x) - log q(x) for a reference q, each of these is an
estimate of KL(π‖q) (J. Schulman, "Approximating KL divergence", 2020):

    k1 = d                  unbiased, of either sign
    k2 = d² / 2             biased, low variance, never negative
    k3 = exp(-d) - 1 + d    unbiased, never negative

k1 is not clamped at 0: its negative samples are what makes it unbiased. All values are in nats.

A good estimate of a value need not have a good gradient (Tang & Munos, "On a few pitfalls in KL
divergence gradient estimation for RL", 2025). With x held fixed and g = ∇ log π(x):

    ∇k1 = g               mean 0, whatever π and q are: as a loss it is noise, so it is refused
    ∇k2 = d g             mean ∇KL(π‖q): the right gradient
    ∇k3 = (1 - exp(-d)) g mean ∇KL(q‖π), the other direction; alike only where π is close to q
"""

import math

import torch

from rlhf.logprobs import log_policy
from rlhf.masked import Normaliser, keep, masked_mean
from rlhf.params.kl import AdaptiveKLParams, KLEstimator
from rlhf.shapes import Logits, PerToken, ResponseMask, Scalar

MAX_RELATIVE_ERROR = 0.2
"""Bound on the relative error to which the adaptive controller reacts (Ziegler et al. 2019)."""


def kl_estimate(logprobs: PerToken, ref_logprobs: PerToken, *, estimator: KLEstimator) -> PerToken:
    """Estimate of KL(policy‖reference) at each sampled token, in nats."""
    difference = logprobs - ref_logprobs
    match estimator:
        case "k1":
            return difference
        case "k2":
            return difference.square() / 2
        case "k3":
            return _excess(-difference)


def full_kl(logits: Logits, ref_logits: Logits, *, temperature: float) -> PerToken:
    """Exact KL(policy‖reference) at each position, summed over the vocabulary, in nats."""
    log_probabilities = log_policy(logits, temperature=temperature)
    ref_log_probabilities = log_policy(ref_logits, temperature=temperature)
    probabilities = log_probabilities.exp()
    # A token that the policy never writes adds 0, also where the reference forbids it too.
    differences = torch.where(probabilities > 0, log_probabilities - ref_log_probabilities, 0.0)
    return (probabilities * differences).sum(dim=-1)


def approx_kl(
    logprobs: PerToken,
    old_logprobs: PerToken,
    mask: ResponseMask,
    *,
    normaliser: Normaliser = None,
) -> Scalar:
    """Mean over the mask of (r - 1) - log r with r = π/π_old: k3 of KL(π_old‖π), in nats."""
    return masked_mean(_excess(keep(logprobs - old_logprobs, mask)), mask, normaliser=normaliser)


def _excess(log_ratio: PerToken) -> PerToken:
    """exp(x) - 1 - x, without cancellation near 0."""
    return torch.expm1(log_ratio) - log_ratio


class KLController:
    """The coefficient β of the KL penalty: fixed, or following a target.

    After n episodes with a mean KL per response of k nats (Ziegler et al. 2019, section 2.2):

        e = clip(k / target - 1, -0.2, 0.2);    β ← β (1 + e n / horizon)

    n / horizon is bounded by 1 so that β stays positive whatever the batch size.
    """

    def __init__(self, *, coef: float, adaptive: AdaptiveKLParams | None = None) -> None:
        """Start at `coef`; without `adaptive` it stays there."""
        if not (math.isfinite(coef) and coef >= 0):
            raise ValueError(f"coef: expected a finite number of at least 0, found {coef}")
        self._coef = coef
        self._adaptive = adaptive

    @property
    def coef(self) -> float:
        """The coefficient to use now, in score units per nat."""
        return self._coef

    def update(self, kl_per_sequence: float, episodes: int) -> None:
        """Take in the mean KL per response (sum over its tokens, in nats) of so many episodes."""
        if self._adaptive is None:
            return
        if not math.isfinite(kl_per_sequence):
            raise ValueError(f"kl_per_sequence: expected a finite number, found {kl_per_sequence}")
        error = kl_per_sequence / self._adaptive.target - 1
        bounded = min(max(error, -MAX_RELATIVE_ERROR), MAX_RELATIVE_ERROR)
        self._coef *= 1 + bounded * min(episodes / self._adaptive.horizon, 1.0)

    def state_dict(self) -> dict[str, float]:
        """The state that a checkpoint must hold."""
        return {"coef": self._coef}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Continue from a state of `state_dict`."""
        self._coef = state["coef"]
