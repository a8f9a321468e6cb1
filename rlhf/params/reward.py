"""Reward-model training."""

from dataclasses import dataclass, field

from rlhf.params.optimiser import OptimiserParams
from rlhf.params.ranges import Count, NonNegative, OpenFraction


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardParams:
    """Reward-model training."""

    retrain: bool = True
    """false copies the reward model that a round starts from, once there is one."""
    epochs: Count = 2
    """Passes over all preferences so far."""
    batch_size: Count = 32
    """Pairs per optimiser step."""
    micro_batch_size: Count = 64
    """Pairs per forward pass; changes memory, never the gradient."""
    max_tokens: Count = 192
    """Pairs with a longer side (prompt and answer) are left out and counted."""
    label_smoothing: OpenFraction = 0.0
    """Probability mass moved to the other side of each label."""
    centring_coef: NonNegative = 1e-3
    """Weight of mean((score_chosen + score_rejected)^2), which keeps scores around zero."""
    optimiser: OptimiserParams = field(default_factory=lambda: OptimiserParams(lr=2e-3))
