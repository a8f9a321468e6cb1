"""Evaluation of a policy."""

from dataclasses import dataclass, field

from rlhf.params.ranges import Count
from rlhf.params.sampling import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateParams:
    """Evaluation of a policy."""

    prompts: Count = 512
    """Prompts of the split that are answered, from the first on."""
    batch_size: Count = 256
    """Prompts answered at a time."""
    max_prompt_tokens: Count = 96
    """Longer prompts are left out and counted."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
