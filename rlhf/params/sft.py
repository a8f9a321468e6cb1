"""Supervised fine-tuning."""

from dataclasses import dataclass, field

from rlhf.params.lora import LoraParams
from rlhf.params.optimiser import OptimiserParams
from rlhf.params.ranges import Count, OpenFraction


@dataclass(frozen=True, slots=True, kw_only=True)
class SFTParams:
    """Supervised fine-tuning."""

    epochs: Count = 1
    """Passes over the demonstrations."""
    batch_size: Count = 16
    """Demonstrations per optimiser step."""
    micro_batch_size: Count = 64
    """Demonstrations per forward pass; changes memory, never the gradient."""
    recompute_layers: bool = False
    """Compute the activations of each layer again in the backward pass instead of keeping them: a
    fraction of the memory for a third more time; changes no weight."""
    max_tokens: Count = 192
    """Longer demonstrations (prompt and response) are left out and counted."""
    heldout_fraction: OpenFraction = 0.0
    """Share of the prompts whose demonstrations are not trained on, but measured before and after;
    decided by the prompt alone."""
    packing: bool = False
    """Put several demonstrations in a row, none of which sees another; changes speed, never the
    gradient. A row has `max_tokens`, on a CPU of most families as many as there are."""
    lora: LoraParams | None = None
    """Train low-rank adapters and merge them in the end; null trains all weights."""
    optimiser: OptimiserParams = field(
        default_factory=lambda: OptimiserParams(name="muon", lr=2e-3, muon_lr=6e-3, warmup_steps=30)
    )
