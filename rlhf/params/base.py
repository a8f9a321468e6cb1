"""The base model: one of your own, or the embedded one."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlhf.params.optimiser import OptimiserParams
from rlhf.params.ranges import Count, Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedModelParams:
    """Size and training of the embedded model."""

    vocabulary_size: Count = 1536
    """Upper bound; merging stops earlier when no pair is left."""
    layers: Count = 2
    """Transformer blocks."""
    hidden_size: Count = 128
    """Width of the residual stream."""
    heads: Count = 4
    """Attention heads."""
    mlp_size: Count = 384
    """Width inside the gated MLP."""
    max_positions: Count = 256
    """Longest sequence in tokens."""
    rope_theta: Positive = 10_000.0
    """Base of the rotary position frequencies."""
    steps: Count = 1200
    """Optimiser steps."""
    batch_size: Count = 16
    """Sequences per step."""
    sequence_length: Count = 96
    """Tokens per sequence."""
    optimiser: OptimiserParams = field(
        default_factory=lambda: OptimiserParams(
            name="muon", lr=5e-3, muon_lr=1e-2, weight_decay=0.01, warmup_steps=30
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseParams:
    """The model everything starts from."""

    model: str | None = None
    """A local folder in Hugging Face format or a hub id; null pre-trains the embedded model."""
    revision: str | None = None
    """Commit of a hub id; required with one."""
    chat_template_args: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    """Values for variables of your model's chat template, such as `enable_thinking: false`."""
    embedded: EmbeddedModelParams = field(default_factory=EmbeddedModelParams)
