"""Direct preference optimisation, a baseline of PPO."""

from dataclasses import dataclass, field

from rlhf.params.optimiser import OptimiserParams
from rlhf.params.ranges import Count, Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class DPOParams:
    """Direct preference optimisation, a baseline of PPO; no section of params.yaml."""

    beta: Positive = 0.1
    """How strongly the policy is held at the reference; 0 would not hold it at all."""
    epochs: Count = 1
    """Passes over all preferences."""
    batch_size: Count = 16
    """Pairs per optimiser step."""
    max_tokens: Count = 192
    """Pairs with a longer side (prompt and response) are left out."""
    optimiser: OptimiserParams = field(default_factory=lambda: OptimiserParams(lr=2e-4))
