"""Optimiser and learning-rate schedule of one training loop."""

from dataclasses import dataclass
from typing import Literal

from rlhf.params.ranges import CountOrZero, Fraction, NonNegative, OpenFraction, Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimiserParams:
    """Optimiser and learning-rate schedule of one training loop."""

    name: Literal["adamw", "muon"] = "adamw"
    """`muon` trains the hidden matrices by Muon (Jordan 2024) and everything else by AdamW."""
    lr: Positive = 1e-3
    """Peak learning rate of AdamW."""
    muon_lr: Positive = 5e-3
    """Peak learning rate of Muon; its updates are scaled to the RMS of AdamW's."""
    beta1: OpenFraction = 0.9
    """AdamW's decay rate of the gradient's mean."""
    beta2: OpenFraction = 0.95
    """AdamW's decay rate of the gradient's square."""
    eps: Positive = 1e-8
    """AdamW's epsilon, added outside the square root as torch does."""
    weight_decay: NonNegative = 0.0
    """Decoupled weight decay, for matrices only."""
    warmup_steps: CountOrZero = 20
    """Steps of linear warm-up."""
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """The way from the peak to `final_fraction` of it."""
    final_fraction: Fraction = 0.1
    """Where the rate arrives one step after the last (in PPO one rollout), as a fraction of the
    peak (not for `constant`)."""
    max_grad_norm: Positive = 1.0
    """Gradients are scaled down to this global norm."""
