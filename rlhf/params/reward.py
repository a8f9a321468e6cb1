"""Reward-model training."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rlhf.params.lora import LoraParams
from rlhf.params.optimiser import OptimiserParams
from rlhf.params.ranges import BelowHalf, Count, Fraction, NonNegative

NO_MODEL = "none"
"""As `reward.model`: rules or a function give the score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardParams:
    """Reward-model training."""

    model: str | None = None
    """Score with a model that others have trained instead of training one: the folder of a
    sequence classifier of one label (or two: the logit of label 1 less that of label 0), used
    through text where its tokenizer is not the policy's. `none`: no reward model at all, where
    rules or a function of your own give the score. null trains one."""
    preferences: Literal["all", "newest"] = "all"
    """Train on the preferences of all rounds so far, or on the round's own only."""
    retrain: bool = True
    """false copies the reward model that a round starts from, once there is one."""
    epochs: Count = 2
    """Passes over these preferences."""
    batch_size: Count = 16
    """Pairs per optimiser step."""
    micro_batch_size: Count = 64
    """Pairs per forward pass; changes memory, never the gradient."""
    recompute_layers: bool = False
    """Compute the activations of each layer again in the backward pass instead of keeping them: a
    fraction of the memory for a third more time; changes no weight."""
    packing: bool = False
    """Put several pairs in a row, none of which sees another; changes speed, never the
    gradient."""
    max_tokens: Count = 192
    """Pairs with a longer side (prompt and response) are left out and counted."""
    margins: bool = True
    """Graded labels ask for a gap of their margin (0 to 1; of scored responses the difference of
    their scores, in their own units); false takes them as plain ones."""
    source_weights: Mapping[str, NonNegative] = field(default_factory=dict)
    """Weight per kind of annotator (human, rubric, llm, ...), beside the label's own; 1 where none
    is given, the mean of the kinds where several agreed."""
    label_smoothing: BelowHalf = 0.0
    """Probability mass moved to the other side of each label; half of it would leave none."""
    centring_coef: NonNegative = 1e-3
    """Weight of mean((score_chosen + score_rejected)^2), which keeps scores around zero."""
    ensemble: Count = 1
    """Reward models that score together, each with its own head to start from and data order."""
    ensemble_k: NonNegative = 1.0
    """Score of an ensemble: the members' mean less this many of their standard deviations, brought
    to mean 0 and deviation 1 like that of a single model."""
    lora: LoraParams | None = None
    """Train low-rank adapters and the head, and merge them in the end; null trains all weights."""
    optimiser: OptimiserParams = field(default_factory=lambda: OptimiserParams(lr=1e-3))
    probes: Literal["block", "report"] = "block"
    """A reward model that fails a probe ends the round before its PPO, or is only reported."""
    over_optimisation: Literal["stop", "report"] = "report"
    """What an alarm of the fresh labels does: end the round before its PPO, or be reported."""
    min_fresh_accuracy: Fraction = 0.6
    """Share of fresh pairs that the reward model has to order as their labels do, or alarm."""
