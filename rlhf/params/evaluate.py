"""Evaluation of a policy."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge

from rlhf.params.ranges import Count
from rlhf.params.sampling import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateParams:
    """Evaluation of a policy."""

    prompts: Annotated[int, Ge(2)] = 512
    """Prompts of the split that are answered, from the first on."""
    batch_size: Count = 256
    """Prompts answered at a time."""
    max_prompt_tokens: Count = 96
    """Longer prompts are left out and counted."""
    judge: Literal["reward", "language_model", "reward_model"] = "reward"
    """Who compares a policy with SFT where there is no gold score: what rewarded the round (its
    reward model, or rules), or the judge of `label.language_model` or `label.reward_model`."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    """Of the responses. The KL is that between whole distributions at `temperature`: with `top_k`,
    `top_p` or `min_new_tokens` its sum is taken along responses that the policy alone would draw
    less often or oftener, and is no longer an unbiased estimate for the policy."""
